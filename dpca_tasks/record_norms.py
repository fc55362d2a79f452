"""Norms of records as they are stored, and what is made with them before a record is on any grid.

Loops run in a fixed order inside one record and use only ``+ - * / sqrt``: the same bits in any block. The largest
magnitude is divided out first, so that no square overflows.
"""

import numpy as np
from numba import njit
from numpy.typing import NDArray


@njit(cache=True, nogil=True)
def record_norm(values: NDArray[np.floating], start: int, stop: int) -> tuple[float, float]:
    """Return the largest magnitude and the norm over it; infinity when a value is not finite."""
    largest = 0.0
    for at in range(start, stop):
        size = abs(np.float64(values[at]))
        if not size < np.inf:  # NaN too
            return np.inf, 1.0
        largest = max(largest, size)
    squares = 0.0
    if largest > 0.0:
        for at in range(start, stop):
            part = np.float64(values[at]) / largest
            squares += part * part
    return largest, np.sqrt(squares)


@njit(cache=True, nogil=True)
def normalise_records(
    values: NDArray[np.floating], row_ptr: NDArray[np.int64], record_ptr: NDArray[np.int64], length: float
) -> NDArray[np.float64]:
    """Scale each record to norm ``length``; empty and non-finite ones stay as they are."""
    scaled = values.astype(np.float64)
    for record in range(record_ptr.size - 1):
        start, stop = row_ptr[record_ptr[record]], row_ptr[record_ptr[record + 1]]
        largest, root = record_norm(scaled, start, stop)
        if not 0.0 < largest < np.inf:
            continue
        for at in range(start, stop):
            scaled[at] = scaled[at] / largest / root * length
    return scaled


@njit(cache=True, nogil=True)
def extend_records(
    values: NDArray[np.floating],
    indices: NDArray[np.int32],
    row_ptr: NDArray[np.int64],
    record_ptr: NDArray[np.int64],
    clip_norm: float,
    constant: float,
    column: int,
) -> tuple[NDArray[np.float64], NDArray[np.int32], NDArray[np.int64]]:
    """Clip each record to ``clip_norm`` and append ``constant / sqrt(m)`` to each of its m rows, at ``column``.

    A non-finite record becomes the empty one; its rows get the constant too.
    """
    n_rows = row_ptr.size - 1
    longer = np.zeros(values.size + n_rows, np.float64)
    columns = np.empty(longer.size, np.int32)
    for record in range(record_ptr.size - 1):
        first, last = record_ptr[record], record_ptr[record + 1]
        largest, root = record_norm(values, row_ptr[first], row_ptr[last])
        finite = largest < np.inf
        clipped = finite and largest / clip_norm * root > 1.0
        for row in range(first, last):
            for at in range(row_ptr[row], row_ptr[row + 1]):
                columns[at + row] = indices[at]
                if clipped:
                    longer[at + row] = np.float64(values[at]) / largest / root * clip_norm
                elif finite:
                    longer[at + row] = np.float64(values[at])
            end = row_ptr[row + 1] + row
            columns[end] = column
            longer[end] = constant / np.sqrt(np.float64(last - first))
    return longer, columns, row_ptr + np.arange(row_ptr.size)


@njit(cache=True, nogil=True)
def norm_bins(
    values: NDArray[np.floating],
    row_ptr: NDArray[np.int64],
    record_ptr: NDArray[np.int64],
    edges: NDArray[np.float64],
) -> NDArray[np.int64]:
    """Return the first edge that is at least each record's norm (past the last: the last); -1 for no norm.

    Empty and non-finite records have none.
    """
    bins = np.full(record_ptr.size - 1, -1, np.int64)
    for record in range(record_ptr.size - 1):
        largest, root = record_norm(values, row_ptr[record_ptr[record]], row_ptr[record_ptr[record + 1]])
        if 0.0 < largest < np.inf:
            at = np.searchsorted(edges, largest * root)
            bins[record] = at if at < edges.size else edges.size - 1
    return bins
