"""Squares of records along public directions, in integers, each record by itself."""

import numpy as np
from numba import njit
from numpy.typing import NDArray


@njit(cache=True, nogil=True)
def record_squares(
    values: NDArray[np.int32], row_ptr: NDArray[np.int64], record_ptr: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return the squared norm of each record."""
    found = np.zeros(record_ptr.size - 1, np.int64)
    for record in range(found.size):
        for at in range(row_ptr[record_ptr[record]], row_ptr[record_ptr[record + 1]]):
            point = np.int64(values[at])
            found[record] += point * point
    return found


@njit(cache=True, nogil=True)
def add_energies(
    values: NDArray[np.int32],
    indices: NDArray[np.int32],
    row_ptr: NDArray[np.int64],
    record_ptr: NDArray[np.int64],
    directions: NDArray[np.int64],
    direction_bits: int,
    squares: NDArray[np.int64],
    total: NDArray[np.int64],
) -> None:
    """Divide the square of each record into three whole parts, and add them up.

    Scores are exact integer products, rounded to the nearest step. The first part is the square along the first
    direction, at most all; the second that along the others, at most what is left; the third is the rest.
    """
    half = np.int64(1) << (direction_bits - 1)
    width = directions.shape[1]
    for record in range(record_ptr.size - 1):
        first = others = np.int64(0)
        for row in range(record_ptr[record], record_ptr[record + 1]):
            for column in range(width):
                product = np.int64(0)
                for at in range(row_ptr[row], row_ptr[row + 1]):
                    product += np.int64(values[at]) * directions[indices[at], column]
                score = (product + half) >> direction_bits
                if column == 0:
                    first += score * score
                else:
                    others += score * score
        first = min(first, squares[record])
        others = min(others, squares[record] - first)
        total[0] += first
        total[1] += others
        total[2] += squares[record] - first - others
