"""Loops over users that hide a share of each user's ratings, and score predictions of the hidden ones.

Everything about one user is computed from that user's row alone, in a fixed order: the same bits in any block.
"""

import numpy as np
from numba import njit
from numpy.typing import NDArray

from dpca_tasks.kernels.user_factors import mixed

_SEED = np.uint64(0x5EED0FA5B11D)


@njit(cache=True, nogil=True)
def hidden_ratings(indices: NDArray[np.integer], row_ptr: NDArray[np.int64], one_in: int) -> NDArray[np.bool_]:
    """Mark one in so many ratings of each user, at least one of two or more; of a single rating none.

    Which ones follows from the items that the user rated, and from nothing else.
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
    """Add for each user with hidden ratings: the mean squared error over the squared range, Recall, NDCG, and 1.

    Items are ranked by predicted rating, ties by number, without those that were not hidden. All four are from 0 to 1,
    rounded to ``2^bits`` steps; ``discounts`` are those of the places of the list, in whole steps of any unit.
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
