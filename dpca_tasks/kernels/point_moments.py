"""Loops over points: their scores along public directions, and the third moments of bounded scores."""

import numpy as np
from numba import njit
from numpy.typing import NDArray


@njit(cache=True, nogil=True)
def first_row_scores(
    values: NDArray[np.floating],
    indices: NDArray[np.integer],
    row_ptr: NDArray[np.int64],
    record_ptr: NDArray[np.int64],
    directions: NDArray[np.float64],
) -> NDArray[np.float64]:
    """Return ``x^T U`` of each record's first row x, summed in the order of columns; 0 for a record without rows."""
    scores = np.zeros((record_ptr.size - 1, directions.shape[1]))
    for record in range(record_ptr.size - 1):
        row = record_ptr[record]
        if row < record_ptr[record + 1]:
            own = scores[record]
            for at in range(row_ptr[row], row_ptr[row + 1]):
                value, unit = np.float64(values[at]), directions[indices[at]]
                for column in range(own.size):
                    own[column] += value * unit[column]
    return scores


@njit(cache=True, nogil=True)
def add_point_cores(scores: NDArray[np.int32], width: int, variance: int, shift: int, total: NDArray[np.int64]) -> None:
    """Add ``y y y - variance Sym3(y)`` of each point, in steps of ``2^shift``, rounded toward zero, to a packed cube.

    Scores are integers of magnitude at most ``2^18``, and ``variance`` is at most ``2^36``: nothing reaches ``2^58``.
    """
    for first in range(0, scores.size, width):
        at = 0
        for p in range(width):
            y_p = np.int64(scores[first + p])
            for q in range(p, width):
                y_q = np.int64(scores[first + q])
                both = y_p * y_q
                if p == q:
                    both -= variance
                for r in range(q, width):
                    value = both * scores[first + r]
                    if q == r:
                        value -= variance * y_p
                        if p == q:
                            value -= variance * y_p
                    total[at] += value >> shift if value >= 0 else -(-value >> shift)
                    at += 1
