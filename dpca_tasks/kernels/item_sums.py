"""Loops over items: ratings sorted by item, and exact sums for each item over its raters."""

import numpy as np
from numba import njit
from numpy.typing import NDArray

ROWS = 1 << 10
"""Raters whose products BLAS adds at once: integers below ``2^53``, hence exact in any order."""


@njit(cache=True, nogil=True)
def balanced_weights(
    indices: NDArray[np.integer],
    row_ptr: NDArray[np.int64],
    item_weights: NDArray[np.float64],
    used: NDArray[np.bool_],
    most: int,
    bits: int,
) -> NDArray[np.int32]:
    """Scale the weights of each user's used ratings until their squares add up to ``min(most, number of ratings)``.

    Weights are integers, in steps of ``2^-bits``; their squares are compared in int64.
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
    """Return where each item's raters begin, the raters of weight above 0, their weights and their ratings."""
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
    """Add ``q u u^T`` (packed upper triangle) and ``q rating u`` of all raters of items from ``first`` on, a row each.

    A product has at most `ROWS` terms, each below ``2^43`` for weights below ``2^15`` and values up to ``2^14``.
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
    """Return the upper triangle of ``U^T U``, exact: integers below ``2^53`` in each part of rows that BLAS adds."""
    rank = users.shape[1]
    total = np.zeros((rank, rank), np.int64)
    for start in range(0, len(users), 1 << 20):
        rows = users[start : start + (1 << 20)].astype(np.float64)
        total += (rows.T @ rows).astype(np.int64)
    return total[np.triu_indices(rank)]
