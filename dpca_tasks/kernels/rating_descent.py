"""The loop over users of the Frank-Wolfe method: what is left of each user's ratings after the rounds so far.

As in `dpca_tasks.kernels.user_factors`, everything about one user is computed from that user's row alone, in a fixed
order.
"""

import numpy as np
from numba import njit
from numpy.typing import NDArray


@njit(cache=True, nogil=True)
def descend(
    left: NDArray[np.float64],
    indices: NDArray[np.integer],
    row_ptr: NDArray[np.int64],
    directions: NDArray[np.integer],
    unit: float,
    gains: NDArray[np.float64],
    row_norm: float,
    bound: float,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return what is left of each rating, and each user's coefficients of the directions.

    Ratings are clipped to ``bound``. Round t has the weight ``eta = 2 / (t + 2)``, t from 0: with d what is left of a
    user's ratings, clipped to norm ``row_norm``, the user's prediction y becomes
    ``(1 - eta) y + eta gains[t] (d . v_t) v_t``; the columns v_t are ``unit`` times integers.
    """
    rounds = gains.size
    rest = np.empty(left.size)
    coefficients = np.zeros((row_ptr.size - 1, rounds))
    for user in range(row_ptr.size - 1):
        start, stop = row_ptr[user], row_ptr[user + 1]
        predicted = np.zeros(stop - start)
        own = coefficients[user]
        for at in range(start, stop):
            rest[at] = min(max(left[at], -bound), bound)
        for step in range(rounds):
            squares, score = 0.0, 0.0
            for at in range(start, stop):
                gap = rest[at] - predicted[at - start]
                squares += gap * gap
                score += gap * (unit * directions[indices[at], step])
            norm = np.sqrt(squares)
            if norm > row_norm:
                score *= row_norm / norm
            eta = 2.0 / (step + 2.0)
            for before in range(step):
                own[before] *= 1.0 - eta
            own[step] = eta * gains[step] * score
            for at in range(start, stop):
                move = own[step] * (unit * directions[indices[at], step])
                predicted[at - start] = (1.0 - eta) * predicted[at - start] + move
        for at in range(start, stop):
            rest[at] -= predicted[at - start]
    return rest, coefficients


@njit(cache=True, nogil=True)
def scale_rows(values: NDArray[np.float64], row_ptr: NDArray[np.int64], length: float, *, by_count: bool) -> None:
    """Scale each row to norm ``length``, or divide it by the square root of its number of values; rows of 0 stay."""
    for row in range(row_ptr.size - 1):
        start, stop = row_ptr[row], row_ptr[row + 1]
        squares = 0.0
        for at in range(start, stop):
            squares += values[at] * values[at]
        scale = np.sqrt(float(stop - start)) if by_count else np.sqrt(squares) / length
        if 0.0 < scale < np.inf:
            for at in range(start, stop):
                values[at] /= scale
