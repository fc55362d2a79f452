"""Loops that put records on the integer grid: canonical rows, merged duplicates, and the clip in integers."""

import numpy as np
from numba import njit
from numpy.typing import NDArray

from dpca_tasks.kernels.norms import record_norm


@njit(cache=True, nogil=True)
def rows_are_canonical(indices: NDArray[np.integer], row_ptr: NDArray[np.int64], n_features: int) -> bool:
    """Tell whether every row has strictly increasing column ids inside ``0 .. n_features - 1``.

    So it is when ids fail to increase only where a row begins, and each row begins and ends inside.
    """
    falls = 0
    for at in range(1, indices.size):
        falls += indices[at] <= indices[at - 1]
    for row in range(row_ptr.size - 1):
        first, stop = row_ptr[row], row_ptr[row + 1]
        if first < stop:
            if indices[first] < 0 or indices[stop - 1] >= n_features:
                return False
            falls -= first > 0 and indices[first] <= indices[first - 1]
    return bool(falls == 0)


@njit(cache=True, nogil=True)
def merge_duplicates(
    values: NDArray[np.float64], rows: NDArray[np.int64], columns: NDArray[np.int64]
) -> tuple[NDArray[np.float64], NDArray[np.int64], NDArray[np.int64]]:
    """Add up neighbours with the same row and column; the entries are sorted by both."""
    merged, row_ids, column_ids = np.empty_like(values), np.empty_like(rows), np.empty_like(columns)
    count = 0
    for at in range(values.size):
        if count and row_ids[count - 1] == rows[at] and column_ids[count - 1] == columns[at]:
            merged[count - 1] += values[at]
        else:
            merged[count], row_ids[count], column_ids[count] = values[at], rows[at], columns[at]
            count += 1
    return merged[:count], row_ids[:count], column_ids[:count]


@njit(cache=True, nogil=True)
def grid_records(
    values: NDArray[np.floating],
    row_ptr: NDArray[np.int64],
    record_ptr: NDArray[np.int64],
    clip_norm: float,
    bound: int,
) -> NDArray[np.int32]:
    """Clip each record to ``clip_norm`` if it is longer, and round it to a grid on which that is ``sqrt(bound)`` steps.

    No record's squares sum to more than ``bound``; see `blocks`.
    """
    half_range = np.sqrt(np.float64(bound))
    gridded = np.empty(values.size, np.int32)
    for at in range(values.size):  # all as they are, in one loop without a branch
        part = np.float64(values[at]) / clip_norm * half_range
        part = part if part < half_range + 1.0 else half_range + 1.0  # NaN too; too long by itself
        part = part if part > -half_range - 1.0 else -half_range - 1.0
        gridded[at] = np.int32(np.rint(part))
    for record in range(record_ptr.size - 1):
        start, stop = row_ptr[record_ptr[record]], row_ptr[record_ptr[record + 1]]
        if is_within(gridded, start, stop, bound):
            continue
        factor, root = record_norm(values, start, stop)
        if not root < np.inf:
            gridded[start:stop] = 0
            continue
        unit = clip_norm * factor
        if root > unit:
            unit = root
            for at in range(start, stop):
                gridded[at] = np.int32(np.rint(np.float64(values[at]) * factor * (half_range / unit)))
            if is_within(gridded, start, stop, bound):
                continue
        shrunk = half_range * (1.0 - 2.0**-24) / unit
        for at in range(start, stop):
            gridded[at] = np.int32(np.float64(values[at]) * factor * shrunk)  # toward zero
        if not is_within(gridded, start, stop, bound):  # impossible by the analysis in `blocks`; it holds even so
            gridded[start:stop] = 0
    return gridded


@njit(cache=True, nogil=True)
def is_within(gridded: NDArray[np.int32], start: int, stop: int, bound: int) -> bool:
    """Tell whether the squares of entries of magnitude at most ``sqrt(bound) + 1`` sum to at most ``bound``.

    The sum is looked at often enough that it cannot pass ``2^63``: at most ``4^28``, 64 squares are near ``2^62``.
    """
    total = np.int64(0)
    while stop - start > 64:
        for at in range(start, start + 64):
            total += np.int64(gridded[at]) * np.int64(gridded[at])
        if total > bound:
            return False
        start += 64
    for at in range(np.uint64(start), np.uint64(stop)):  # alone, since most records are short
        total += np.int64(gridded[at]) * np.int64(gridded[at])
    return bool(total <= bound)
