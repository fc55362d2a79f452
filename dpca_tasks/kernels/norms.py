"""Norms of records as they are stored, and what is made with them before a record is on any grid.

Loops run in a fixed order inside one record and use only ``+ - * / sqrt``: the same bits in any block.
"""

import numpy as np
from numba import njit
from numpy.typing import NDArray


@njit(cache=True, nogil=True)
def record_norm(values: NDArray[np.floating], start: int, stop: int) -> tuple[float, float]:
    """Return a power of two, and the norm of the record times it; that is not below infinity if a value is not finite.

    The power is 1 unless squares would overflow, or vanish, as they stand.
    """
    factor, squares = 1.0, sum_of_squares(values, start, stop, 1.0)
    if not 2.0**-900 < squares < 2.0**900:
        factor = 2.0**600 if squares < 1.0 else 2.0**-600
        squares = sum_of_squares(values, start, stop, factor)
    return factor, np.sqrt(squares)


@njit(cache=True, nogil=True)
def sum_of_squares(values: NDArray[np.floating], start: int, stop: int, factor: float) -> float:
    """Return the sum of squares of a record times a factor."""
    squares = 0.0
    for at in range(start, stop):
        part = np.float64(values[at]) * factor
        squares += part * part
    return squares


@njit(cache=True, nogil=True)
def normalise_records(
    values: NDArray[np.floating], row_ptr: NDArray[np.int64], record_ptr: NDArray[np.int64], length: float
) -> NDArray[np.float64]:
    """Scale each record to norm ``length``; empty and non-finite ones stay as they are."""
    scaled = values.astype(np.float64)
    for record in range(record_ptr.size - 1):
        start, stop = row_ptr[record_ptr[record]], row_ptr[record_ptr[record + 1]]
        factor, root = record_norm(scaled, start, stop)
        if not 0.0 < root < np.inf:
            continue
        for at in range(start, stop):
            scaled[at] = scaled[at] * factor / root * length
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
        factor, root = record_norm(values, row_ptr[first], row_ptr[last])
        finite = root < np.inf
        clipped = finite and root > clip_norm * factor
        for row in range(first, last):
            for at in range(row_ptr[row], row_ptr[row + 1]):
                columns[at + row] = indices[at]
                if clipped:
                    longer[at + row] = np.float64(values[at]) * factor / root * clip_norm
                elif finite:
                    longer[at + row] = np.float64(values[at])
            end = row_ptr[row + 1] + row
            columns[end] = column
            longer[end] = constant / np.sqrt(np.float64(last - first))
    return longer, columns, row_ptr + np.arange(row_ptr.size)


@njit(cache=True, nogil=True)
def shared_constant(square: int, n_rows: int) -> np.int32:
    """Return ``floor(sqrt(square / m))``, the largest constant that m rows can share; exact for ``square <= 2^52``."""
    return np.int32(np.floor(np.sqrt(np.float64(square // max(n_rows, 1)))))


@njit(cache=True, nogil=True)
def append_constants(
    values: NDArray[np.int32],
    indices: NDArray[np.int32],
    row_ptr: NDArray[np.int64],
    record_ptr: NDArray[np.int64],
    square: int,
    column: int,
) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.int64]]:
    """Append `shared_constant` to each of the m rows of a record on the grid, at ``column``.

    A record's constants depend on its number of rows alone, and their squares sum to at most ``square``.
    """
    longer = np.empty(values.size + row_ptr.size - 1, np.int32)
    columns = np.empty(longer.size, np.int32)
    for record in range(record_ptr.size - 1):
        first, last = record_ptr[record], record_ptr[record + 1]
        constant = shared_constant(square, last - first)
        for row in range(first, last):
            start, stop = row_ptr[row], row_ptr[row + 1]
            longer[start + row : stop + row] = values[start:stop]
            columns[start + row : stop + row] = indices[start:stop]
            longer[stop + row] = constant
            columns[stop + row] = column
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
        factor, root = record_norm(values, row_ptr[record_ptr[record]], row_ptr[record_ptr[record + 1]])
        if 0.0 < root < np.inf:
            at = np.searchsorted(edges, root / factor)
            bins[record] = at if at < edges.size else edges.size - 1
    return bins
