"""Compiled loops over ratings, for private matrix completion and for the scoring of predictions.

All results for one user are computed from that user's row alone, in a fixed order, with ``+ - * / sqrt``. So their bits
do not depend on the block in which the row is stored. All sums over users are sums of integers.

- *Gridding*: the ratings of each user are clipped to a public range and rounded, with one row per user.
- *Alternating least squares*: the choice of the ratings that count, the factor of each user, and sums for each item.
- *Frank-Wolfe*: the residuals of the ratings of each user after the previous rounds.
- *Scoring*: some ratings of each user are hidden, and predictions of the hidden ratings are scored.
- *Items*: ratings are sorted by item, and exact sums for each item are taken over the users who rated the item.
"""

import numpy as np
from numba import njit
from numpy.typing import NDArray

NORMALISE, WEIGHT_CLIP, PAPER_CLIP = range(3)
"""Rules that bound the norm of a user's factor.

``NORMALISE`` scales every factor to the bound, and the user's ratings likewise. ``WEIGHT_CLIP`` does so only for
factors longer than the bound. ``PAPER_CLIP`` scales only these factors, and never the ratings.
"""
_TINY, _HUGE = 1e-150, 1e150


@njit(cache=True, nogil=True)
def mixed(word: np.uint64, item: int) -> np.uint64:
    """Hash a user's random word and an item's number to 64 bits; the hashes put items in a random order per user."""
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
    """Mark the ratings of each user that count: the ``most`` ratings with the lowest item priorities.

    Equal priorities are in random order, by the user's random word. Ratings of items of infinite priority never count.
    """
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
    """Return each rating minus the offsets of its item and its user, and the offset of each user.

    The offset of a user is the mean of that user's ratings minus item offsets, computed with ``prior`` additional
    values equal to ``centre``. If ``prior`` is infinite, the offset is ``centre``.
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
    """Return the factor of each user: a ridge regression of the user's residuals on item factors, by Cholesky.

    The factor is ``(ridge I + P + sum_j v_j v_j^T)^-1 sum_j clip(left_j, bound) v_j``. The sums are over the items
    j whose rating is marked in ``used``. ``v_j`` is the item factor, ``unit`` times the integers in ``factors``.
    ``left_j`` is the residual of the rating, and P is ``unobserved``. Inner loops run along rows, over entries that do
    not depend on each other.
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
    """Return the factor of each user, bounded to norm ``user_norm`` and rounded to integers, and the applied scales.

    On the integer grid, ``user_norm`` is ``2^bits`` steps. The squares of a user's integers sum to at most ``4^bits``,
    compared in int64. A factor that is 0, or not finite, becomes 0.
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
    """Multiply each user's residual ratings by the user's scale, clip them to ``bound``, and round to integers.

    On the integer grid, ``bound`` is ``2^bits`` steps. Under the rule `PAPER_CLIP`, ratings are not scaled.
    """
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
    """Return the finite ratings in the first row of each record, clipped to ``[low, high]``, as sparse integer rows.

    An integer counts steps above ``low``, and the range has ``2^bits`` steps. Rows are canonical: no item occurs twice
    in a row.
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
    """Return the residual of each rating after the Frank-Wolfe rounds so far, and each user's coefficients.

    The prediction y of a user is a combination of public directions v_t, one per round; the coefficients are the
    weights of the directions. Ratings are first clipped to ``bound``. Round t, counted from 0, has the step size
    ``eta = 2 / (t + 2)``. Let d be the residual of the user's ratings, clipped to norm ``row_norm``. Then y becomes
    ``(1 - eta) y + eta gains[t] (d . v_t) v_t``. The vector v_t is ``unit`` times column t of ``directions``.
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
    """Scale each row in place to norm ``length``, or with ``by_count`` divide it by the square root of its size.

    Empty and zero rows are not changed.
    """
    for row in range(row_ptr.size - 1):
        start, stop = row_ptr[row], row_ptr[row + 1]
        squares = 0.0
        for at in range(start, stop):
            squares += values[at] * values[at]
        scale = np.sqrt(float(stop - start)) if by_count else np.sqrt(squares) / length
        if 0.0 < scale < np.inf:
            for at in range(start, stop):
                values[at] /= scale


_SEED = np.uint64(0x5EED0FA5B11D)


@njit(cache=True, nogil=True)
def hidden_ratings(indices: NDArray[np.integer], row_ptr: NDArray[np.int64], one_in: int) -> NDArray[np.bool_]:
    """Mark the ratings that are hidden to score predictions: one in ``one_in`` of each user's ratings.

    At least one rating is hidden if the user has two or more, and none if the user has a single rating. The choice
    depends only on the set of items that the user rated.
    """
    hidden = np.zeros(indices.size, np.bool_)
    for user in range(row_ptr.size - 1):
        start, stop = row_ptr[user], row_ptr[user + 1]
        if stop - start < 2:
            continue
        word = np.uint64(0)
        for at in range(start, stop):
            word += mixed(_SEED, indices[at])
        coins = np.empty(stop - start, np.uint64)
        for at in range(start, stop):
            coins[at - start] = mixed(word, indices[at])
        order = np.argsort(coins, kind="mergesort")
        for at in range(max(1, (stop - start) // one_in)):
            hidden[start + order[at]] = True
    return hidden


@njit(cache=True, nogil=True)
def add_prediction_scores(
    values: NDArray[np.int32],
    indices: NDArray[np.integer],
    row_ptr: NDArray[np.int64],
    hidden: NDArray[np.bool_],
    own: NDArray[np.float64],
    solved: NDArray[np.float64],
    offsets: NDArray[np.float64],
    factors: NDArray[np.integer],
    unit: float,
    low: float,
    high: float,
    step: float,
    discounts: NDArray[np.int64],
    bits: int,
    total: NDArray[np.int64],
) -> None:
    """Add four numbers to ``total`` for each user with hidden ratings: squared error, Recall, NDCG, and the constant 1.

    The first number is the mean squared error of the predictions, divided by the squared range of ratings. For Recall
    and NDCG, all items except those with visible ratings are ranked by predicted rating, and equal predictions by item
    number. All four numbers are from 0 to 1, rounded to ``2^bits`` steps. ``discounts`` are the NDCG discounts of the
    ranks from the first on, as integers in any unit.
    """
    n_items, rank, count = offsets.size, solved.shape[1], discounts.size
    scores = np.empty(n_items)
    steps = 2.0**bits
    for user in range(row_ptr.size - 1):
        start, stop = row_ptr[user], row_ptr[user + 1]
        n_hidden = 0
        for at in range(start, stop):
            n_hidden += hidden[at]
        if n_hidden == 0:
            continue
        for item in range(n_items):
            score = own[user] + offsets[item]
            for a in range(rank):
                score += solved[user, a] * (unit * factors[item, a])
            score = min(max(score, low), high) if score == score else low
            scores[item] = score
        errors = 0.0
        for at in range(start, stop):
            if hidden[at]:
                error = (scores[indices[at]] - (low + step * values[at])) / (high - low)
                errors += error * error
        for at in range(start, stop):
            if not hidden[at]:
                scores[indices[at]] = -np.inf
        hits, gained = 0, np.int64(0)
        for at in range(start, stop):
            if hidden[at]:
                place, mine = 0, scores[indices[at]]
                for item in range(n_items):
                    if scores[item] > mine or (scores[item] == mine and item < indices[at]):
                        place += 1
                if place < count:
                    hits += 1
                    gained += discounts[place]
        ideal = np.int64(0)
        for place in range(min(n_hidden, count)):
            ideal += discounts[place]
        total[0] += np.int64(np.rint(min(errors / n_hidden, 1.0) * steps))
        total[1] += np.int64(np.rint(min(hits / min(n_hidden, count), 1.0) * steps))
        total[2] += np.int64(np.rint(min(gained / ideal, 1.0) * steps))
        total[3] += np.int64(1) << bits


ROWS = 1 << 10
"""Number of raters whose products BLAS adds at a time; sums are integers below ``2^53``, so any order is exact."""


@njit(cache=True, nogil=True)
def balanced_weights(
    indices: NDArray[np.integer],
    row_ptr: NDArray[np.int64],
    item_weights: NDArray[np.float64],
    used: NDArray[np.bool_],
    most: int,
    bits: int,
) -> NDArray[np.int32]:
    """Return a weight for each rating of an item in ``used``, proportional to the weight of the item.

    Let n be the number of a user's ratings of such items. The squared weights of the user add up to ``min(most, n)``,
    or slightly less because of rounding. Weights are integers, in steps of ``2^-bits``, and their squares are
    compared with the bound in int64. All other ratings get weight 0.
    """
    weights = np.zeros(indices.size, np.int32)
    steps = 2.0**bits
    for user in range(row_ptr.size - 1):
        start, stop = row_ptr[user], row_ptr[user + 1]
        squares, count = 0.0, 0
        for at in range(start, stop):
            if used[indices[at]]:
                squares += item_weights[indices[at]] ** 2
                count += 1
        if count == 0 or not squares > 0.0:
            continue
        bound = np.int64(min(count, most)) << 2 * bits
        scale = np.sqrt(min(count, most) / squares) * steps
        while True:
            within = np.int64(0)
            for at in range(start, stop):
                if used[indices[at]]:
                    weights[at] = np.int32(item_weights[indices[at]] * scale)
                    within += np.int64(weights[at]) ** 2
            if within <= bound:
                break
            scale *= 1 - 2.0**-20
    return weights


@njit(cache=True, nogil=True)
def sort_by_item(
    indices: NDArray[np.integer],
    row_ptr: NDArray[np.int64],
    weights: NDArray[np.int32],
    ratings: NDArray[np.int32],
    n_items: int,
) -> tuple[NDArray[np.int64], NDArray[np.int32], NDArray[np.int32], NDArray[np.int16]]:
    """Sort the ratings of nonzero weight by item.

    Returns
    -------
    starts : int64 array of shape (n_items + 1,)
        The range of item j in the other arrays is from ``starts[j]`` to ``starts[j + 1]``.
    raters, weights, ratings : arrays
        The users who rated the items, with the weights and the ratings.
    """
    starts = np.zeros(n_items + 1, np.int64)
    for at in range(indices.size):
        if weights[at]:
            starts[indices[at] + 1] += 1
    for item in range(n_items):
        starts[item + 1] += starts[item]
    place = starts[:-1].copy()
    raters = np.empty(starts[-1], np.int32)
    of_raters = np.empty(starts[-1], np.int32)
    rated = np.empty(starts[-1], np.int16)
    for user in range(row_ptr.size - 1):
        for at in range(row_ptr[user], row_ptr[user + 1]):
            if weights[at]:
                to = place[indices[at]]
                raters[to], of_raters[to], rated[to] = user, weights[at], ratings[at]
                place[indices[at]] = to + 1
    return starts, raters, of_raters, rated


@njit(cache=True, nogil=True)
def add_item_sums(
    users: NDArray[np.int16],
    starts: NDArray[np.int64],
    raters: NDArray[np.int32],
    weights: NDArray[np.int32],
    ratings: NDArray[np.int16],
    first: int,
    outer: NDArray[np.int64],
    weighted: NDArray[np.int64],
) -> None:
    """Add the sums of ``q u u^T`` and of ``q rating u`` over all raters of each item, for items from ``first`` on.

    Here u is the factor of a rater, and q the weight of the rating. Row i of ``outer`` is the packed upper triangle of
    the first sum for item ``first + i``, and row i of ``weighted`` is the second sum. BLAS adds at most `ROWS` terms at
    a time, each below ``2^43`` for weights below ``2^15`` and values up to ``2^14``.
    """
    rank = users.shape[1]
    left, right = np.empty((ROWS, rank)), np.empty((ROWS, rank + 1))
    for row in range(outer.shape[0]):
        begin, end = starts[first + row], starts[first + row + 1]
        for start in range(begin, end, ROWS):
            count = min(ROWS, end - start)
            for k in range(count):
                weight = np.float64(weights[start + k])
                right[k, rank] = weight * ratings[start + k]
                of_user = users[raters[start + k]]
                for a in range(rank):
                    left[k, a] = of_user[a]
                    right[k, a] = weight * of_user[a]
            product = np.dot(left[:count].T, right[:count])
            at = 0
            for a in range(rank):
                for b in range(a, rank):
                    outer[row, at] += np.int64(product[a, b])
                    at += 1
                weighted[row, a] += np.int64(product[a, rank])


def packed_gram(users: NDArray[np.int16]) -> NDArray[np.int64]:
    """Return the packed upper triangle of ``U^T U`` for the user factors U.

    The result is exact, because all sums that BLAS computes are integers below ``2^53``.
    """
    rank = users.shape[1]
    total = np.zeros((rank, rank), np.int64)
    for start in range(0, len(users), 1 << 20):
        rows = users[start : start + (1 << 20)].astype(np.float64)
        total += (rows.T @ rows).astype(np.int64)
    return total[np.triu_indices(rank)]
