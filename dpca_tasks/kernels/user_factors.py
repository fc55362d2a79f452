"""Loops over users of a matrix of ratings.

Loops over users of a matrix of ratings: which ratings are used, a user's own factor, and sums for each item.

Everything about one user is computed from that user's row alone, in a fixed order, with ``+ - * / sqrt``: the same bits
in any block. What is added up are integers.

Loops that put the ratings of a user on a grid: clipped to a public range, one row a user.

The loop over users of the Frank-Wolfe method: what is left of each user's ratings after the rounds so far.

As in `dpca_tasks.kernels.user_factors`, everything about one user is computed from that user's row alone, in a fixed
order.
"""

import numpy as np
from numba import njit
from numpy.typing import NDArray

NORMALISE, WEIGHT_CLIP, PAPER_CLIP = range(3)
"""How a user's factor is brought to the bound: always, or only when longer, with or without the ratings."""
_TINY, _HUGE = 1e-150, 1e150


@njit(cache=True, nogil=True)
def mixed(word: np.uint64, item: int) -> np.uint64:
    """Mix a user's random word with an item's number, so that items are in an order of their own for each user."""
    x = word + np.uint64(item) * np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


@njit(cache=True, nogil=True)
def chosen_ratings(
    indices: NDArray[np.integer],
    row_ptr: NDArray[np.int64],
    priorities: NDArray[np.float64],
    most: int,
    words: NDArray[np.uint64],
) -> NDArray[np.bool_]:
    """Mark at most ``most`` ratings of each user: those of the lowest priority, ties by chance; infinite ones never."""
    chosen = np.zeros(indices.size, np.bool_)
    for user in range(row_ptr.size - 1):
        start, stop = row_ptr[user], row_ptr[user + 1]
        count = 0
        for at in range(start, stop):
            chosen[at] = priorities[indices[at]] < np.inf
            count += chosen[at]
        if count <= most:
            continue
        coins = np.empty(stop - start, np.uint64)
        for at in range(start, stop):
            coins[at - start] = mixed(words[user], indices[at])
        order = np.argsort(coins, kind="mergesort")
        ranks = np.empty(stop - start)
        for at in range(order.size):
            ranks[at] = priorities[indices[start + order[at]]]
        order = order[np.argsort(ranks, kind="mergesort")]
        chosen[start:stop] = False
        for at in range(most):
            chosen[start + order[at]] = True
    return chosen


@njit(cache=True, nogil=True)
def residuals(
    values: NDArray[np.int32],
    indices: NDArray[np.integer],
    row_ptr: NDArray[np.int64],
    low: float,
    step: float,
    offsets: NDArray[np.float64],
    centre: float,
    prior: float,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return what is left of each rating without its item's offset and its user's, and the users' offsets.

    A user's offset is the mean of ratings without item offsets, with ``prior`` ratings at ``centre`` added; for an
    infinite ``prior`` it is the centre.
    """
    left = np.empty(values.size)
    own = np.empty(row_ptr.size - 1)
    for user in range(row_ptr.size - 1):
        start, stop = row_ptr[user], row_ptr[user + 1]
        total = 0.0
        for at in range(start, stop):
            left[at] = low + step * values[at] - offsets[indices[at]] - centre
            total += left[at]
        mean = total / (stop - start + prior) if stop > start and prior < np.inf else 0.0
        for at in range(start, stop):
            left[at] -= mean
        own[user] = centre + mean
    return left, own


@njit(cache=True, nogil=True)
def solve_users(
    left: NDArray[np.float64],
    indices: NDArray[np.integer],
    row_ptr: NDArray[np.int64],
    used: NDArray[np.bool_],
    factors: NDArray[np.integer],
    unit: float,
    ridge: float,
    bound: float,
    unobserved: NDArray[np.float64],
) -> NDArray[np.float64]:
    """Return each user's factor: ``(ridge I + P + sum_j v_j v_j^T)^-1 sum_j clip(left_j, bound) v_j``, by Cholesky.

    ``v_j`` is ``unit`` times the integers of item j; ratings that are not ``used`` are left out. P is ``unobserved``.
    Inner loops run along rows, over entries that do not depend on each other.
    """
    rank = factors.shape[1]
    solved = np.zeros((row_ptr.size - 1, rank))
    matrix, column = np.empty((rank, rank)), np.empty(rank)
    scaled = unit * factors
    for user in range(row_ptr.size - 1):
        matrix[:] = unobserved
        right = solved[user]
        for at in range(row_ptr[user], row_ptr[user + 1]):
            if not used[at]:
                continue
            of_item = scaled[indices[at]]
            rating = min(max(left[at], -bound), bound)
            for a in range(rank):
                value = of_item[a]
                right[a] += rating * value
                row = matrix[a]
                for b in range(a + 1):
                    row[b] += value * of_item[b]
        for a in range(rank):
            matrix[a, a] += ridge
        for c in range(rank):
            pivot = np.sqrt(max(matrix[c, c], ridge * 2.0**-40))
            matrix[c, c] = pivot
            for a in range(c + 1, rank):
                column[a] = matrix[a, c] / pivot
                matrix[a, c] = column[a]
            for a in range(c + 1, rank):
                row, entry = matrix[a], column[a]
                for b in range(c + 1, a + 1):
                    row[b] -= entry * column[b]
        for a in range(rank):
            entry = right[a]
            for b in range(a):
                entry -= matrix[a, b] * right[b]
            right[a] = entry / matrix[a, a]
        for a in range(rank - 1, -1, -1):
            entry = right[a]
            for b in range(a + 1, rank):
                entry -= matrix[b, a] * right[b]
            right[a] = entry / matrix[a, a]
    return solved


@njit(cache=True, nogil=True)
def bound_users(
    solved: NDArray[np.float64], user_norm: float, bits: int, rule: int
) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
    """Bring each factor to norm ``user_norm`` by a rule, on a grid where that is ``2^bits`` steps; return the scales.

    The integer squares of a user sum to at most ``4^bits``, compared in int64. A factor that is not finite, or
    vanishes, becomes 0.
    """
    gridded = np.zeros(solved.shape, np.int32)
    scales = np.ones(solved.shape[0])
    steps = 2.0**bits
    for user in range(solved.shape[0]):
        factor = solved[user]
        largest = 0.0
        for a in range(factor.size):
            largest = max(largest, abs(factor[a])) if factor[a] == factor[a] else np.inf
        if not _TINY < largest < _HUGE:
            continue
        squares = 0.0
        for a in range(factor.size):
            part = factor[a] / largest
            squares += part * part
        norm = largest * np.sqrt(squares)
        scale = user_norm / norm
        if rule != NORMALISE and scale > 1.0:
            scale = 1.0
        scales[user] = scale
        within = np.int64(0)
        for a in range(factor.size):
            gridded[user, a] = np.int32(np.rint(factor[a] / norm * (norm * scale / user_norm) * steps))
            within += np.int64(gridded[user, a]) ** 2
        if within > np.int64(1) << 2 * bits:
            for a in range(factor.size):
                gridded[user, a] = np.int32(factor[a] / norm * (norm * scale / user_norm) * (steps * (1 - 2.0**-24)))
    return gridded, scales


@njit(cache=True, nogil=True)
def grid_ratings(
    left: NDArray[np.float64],
    row_ptr: NDArray[np.int64],
    scales: NDArray[np.float64],
    bound: float,
    bits: int,
    rule: int,
) -> NDArray[np.int32]:
    """Scale ratings as their user's factor was, then clip them to ``bound``: ``2^bits`` steps of their grid."""
    gridded = np.empty(left.size, np.int32)
    steps = 2.0**bits
    for user in range(row_ptr.size - 1):
        scale = 1.0 if rule == PAPER_CLIP else scales[user]
        for at in range(row_ptr[user], row_ptr[user + 1]):
            rating = min(max(left[at] * scale, -bound), bound)
            gridded[at] = np.int32(np.rint(rating / bound * steps))
    return gridded


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
