"""Loops that put the ratings of a user on a grid: clipped to a public range, one row a user."""

import numpy as np
from numba import njit
from numpy.typing import NDArray


@njit(cache=True, nogil=True)
def first_rows(
    values: NDArray[np.floating],
    indices: NDArray[np.integer],
    row_ptr: NDArray[np.int64],
    record_ptr: NDArray[np.int64],
    low: float,
    high: float,
    bits: int,
) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.int64]]:
    """Keep the finite ratings of the first row of each record, clipped to ``[low, high]``, as steps above ``low``.

    The range has ``2^bits`` steps. Rows are canonical: no item occurs twice in one.
    """
    kept_values = np.empty(values.size, np.int32)
    kept_items = np.empty(values.size, np.int32)
    starts = np.zeros(record_ptr.size, np.int64)
    steps = 2.0**bits
    kept = 0
    for record in range(record_ptr.size - 1):
        if record_ptr[record] < record_ptr[record + 1]:
            row = record_ptr[record]
            for at in range(row_ptr[row], row_ptr[row + 1]):
                value = np.float64(values[at])
                if np.isfinite(value):
                    rating = min(max(value, low), high)
                    kept_values[kept] = np.int32(np.rint((rating - low) / (high - low) * steps))
                    kept_items[kept] = indices[at]
                    kept += 1
        starts[record + 1] = kept
    return kept_values[:kept], kept_items[:kept], starts
