"""Synthetic ratings from seeds: a low-rank matrix as in the DPALS paper, and a skewed one that resembles real ratings.

>>> made = skewed(n_users=200, n_items=100, seed=1)
>>> made.train.shape, float(made.train.data.min()) >= made.low
((200, 100), True)

"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

RANK, LOW_RANK_ITEMS, LOW_RANK_RANGE = 5, 1_000, 10.0
SKEWED_USERS, SKEWED_ITEMS, TESTED = 16_000, 2_500, 0.1
_SEED, _HELD_OUT, _OBSERVED, _USERS_AT_ONCE = 20210719, 50, 0.5, 1_000
_DECAY, _FLATTENED = 1.6, 0.01
_LEAST, _MOST, _ACTIVITY = 20, 0.4, (4.2, 0.9)
_OF_LIGHT, _OF_HEAVY = 1.2, 0.7
_MEAN, _USERS_STD, _ITEMS_STD, _POPULAR, _SIGNAL, _NOISE = 3.4, 0.4, 0.35, 0.25, 0.55, 0.75
_SIGNAL_RANK = 6


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SplitRatings:
    """Ratings to train on, and held-out ratings of the same users.

    Attributes
    ----------
    train, held : csr_array of shape (n_users, n_items)
        Stored entries are ratings. No rating is in both matrices.
    low, high : float
        The public range of ratings.
    """

    train: sparse.csr_array
    held: sparse.csr_array
    low: float
    high: float

    @property
    def n_users(self) -> int:
        """The number of users."""
        return int(self.train.shape[0])

    @property
    def n_items(self) -> int:
        """The number of items."""
        return int(self.train.shape[1])

    def tested(self, at_most: int) -> NDArray[np.int64]:
        """Return the first ``at_most`` users that have held-out ratings."""
        return np.flatnonzero(np.diff(self.held.indptr))[:at_most]


def ratings_of(ratings: sparse.csr_array, user: int) -> tuple[NDArray[np.integer], NDArray[np.float64]]:
    """Return the items that a user rated, and the ratings."""
    part = slice(ratings.indptr[user], ratings.indptr[user + 1])
    return ratings.indices[part], ratings.data[part]


def expected_count(n_users: int) -> int:
    """Return the expected number of ratings of a user in the low-rank task: ``20 ln n``."""
    return round(20.0 * math.log(n_users))


def low_rank(*, n_users: int, seed: int, n_items: int = LOW_RANK_ITEMS, tested: int = 1_000) -> SplitRatings:
    """Return the task of the paper: entries of a matrix of rank 5 and std 1, each observed with ``p = 20 ln n / m``.

    The probability is capped at one half. Rows of U are standard normal, rows of V are normal with variance ``1 / 5``.
    For each of the first ``tested`` users, 50 unobserved entries are held out. All entries are exact.
    """
    rng = np.random.default_rng([_SEED, seed])
    users = rng.standard_normal((n_users, RANK))
    items = rng.standard_normal((n_items, RANK)) / math.sqrt(RANK)
    share = min(_OBSERVED, expected_count(n_users) / n_items)
    parts, held = [], [np.empty(0, np.int64)]
    for start in range(0, n_users, _USERS_AT_ONCE):
        coins = rng.random((min(_USERS_AT_ONCE, n_users - start), n_items))
        parts.append(sparse.csr_array(coins < share))
        for coin in coins[: max(0, tested - start)]:
            unseen = rng.permutation(np.flatnonzero(coin >= share))
            held.append(np.sort(unseen[:_HELD_OUT]))
    train = sparse.vstack(parts, format="csr")
    sizes = np.zeros(n_users, np.int64)
    sizes[: len(held) - 1] = [each.size for each in held[1:]]
    held_ptr = np.concatenate([[0], np.cumsum(sizes)])
    return SplitRatings(
        train=_product(users, items, train.indices, train.indptr),
        held=_product(users, items, np.concatenate(held), held_ptr),
        low=-LOW_RANK_RANGE,
        high=LOW_RANK_RANGE,
    )


def skewed(*, n_users: int = SKEWED_USERS, n_items: int = SKEWED_ITEMS, seed: int, taste: float = 0.0) -> SplitRatings:
    r"""Return half-star ratings in which few items have most of the ratings, with a tenth of them held out.

    Notes
    -----
    With ``m`` items, of rank ``s = 1 .. m``, and all variables independent:

    - the log-popularity of an item is ``l_s = -1.6 ln(s + 0.01 m)``, and ``z_s`` its standard score over the items;
    - a user rates ``N = floor(exp(4.2 + 0.9 g))`` items, ``g`` standard normal, clipped to ``[20, 0.4 m]``. They are
      the items of the N largest ``c l_s + G_s``, with standard Gumbel ``G_s``. Here ``c`` falls from 1.2 for 20 ratings
      to 0.7 for ``0.4 m``, linearly in ``ln N``, so that light users rate popular items. With ``taste``, the keys also
      have ``taste u_i . v_s`` for v_s of std ``1 / sqrt 6``: users choose what they like, as in preference data;
    - ratings are ``3.4 + b_i + b_s + u_i . v_s + e``: ``b_i`` of std 0.4; ``b_s`` of std 0.35, plus ``0.25 z_s``;
      ``u_i`` six standard normal numbers and ``v_s`` six of std ``0.55 / sqrt 6``; ``e`` of std 0.75. They are rounded
      to half stars and clipped to ``[0.5, 5]``.
    """
    rng = np.random.default_rng([_SEED, seed])
    popularity = -_DECAY * np.log(np.arange(1, n_items + 1) + _FLATTENED * n_items)
    most = max(_LEAST, round(_MOST * n_items))
    counts = np.exp(_ACTIVITY[0] + _ACTIVITY[1] * rng.standard_normal(n_users)).clip(_LEAST, most).astype(np.int64)
    lightness = 1.0 - np.log(counts / _LEAST) / math.log(max(most / _LEAST, 1.0 + 1e-9))
    pulls = _OF_HEAVY + (_OF_LIGHT - _OF_HEAVY) * lightness
    of_users = _USERS_STD * rng.standard_normal(n_users)
    of_items = _ITEMS_STD * rng.standard_normal(n_items)
    of_items += _POPULAR * (popularity - popularity.mean()) / popularity.std()
    users = rng.standard_normal((n_users, _SIGNAL_RANK))
    items = _SIGNAL / math.sqrt(_SIGNAL_RANK) * rng.standard_normal((n_items, _SIGNAL_RANK))
    chosen = []
    for user, (pull, count) in enumerate(zip(pulls.tolist(), counts.tolist(), strict=True)):
        keys = pull * popularity + rng.gumbel(size=n_items)
        if taste:
            keys += taste / _SIGNAL * (items @ users[user])
        chosen.append(np.sort(np.argpartition(-keys, count - 1)[:count]))
    rated = sparse.csr_array(
        (np.ones(counts.sum()), np.concatenate(chosen), np.concatenate([[0], np.cumsum(counts)])),
        shape=(n_users, n_items),
    )
    signal = _product(users, items, rated.indices, rated.indptr)
    of_user = np.repeat(of_users, counts)
    ratings = _MEAN + of_user + of_items[rated.indices] + signal.data + _NOISE * rng.standard_normal(signal.nnz)
    rated.data = np.clip(np.rint(2.0 * ratings) / 2.0, 0.5, 5.0)
    return split(rated, low=0.5, high=5.0, rng=rng)


def split(ratings: sparse.csr_array, *, low: float, high: float, rng: np.random.Generator) -> SplitRatings:
    """Hold out a random tenth of all ratings."""
    held = rng.random(ratings.nnz) < TESTED
    return SplitRatings(train=_kept(ratings, ~held), held=_kept(ratings, held), low=low, high=high)


def pairs(ratings: SplitRatings) -> SplitRatings:
    """Return the same pairs of user and item as implicit data: every rating becomes 1, in the range ``[0, 1]``."""
    train, held = ratings.train.copy(), ratings.held.copy()
    train.data[:], held.data[:] = 1.0, 1.0
    return SplitRatings(train=train, held=held, low=0.0, high=1.0)


def _kept(ratings: sparse.csr_array, keep: NDArray[np.bool_]) -> sparse.csr_array:
    starts = np.concatenate([[0], np.cumsum(keep)])[ratings.indptr]
    return sparse.csr_array((ratings.data[keep], ratings.indices[keep], starts), shape=ratings.shape)


def _product(
    users: NDArray[np.float64], items: NDArray[np.float64], indices: NDArray[np.integer], row_ptr: NDArray[np.integer]
) -> sparse.csr_array:
    """Return the entries of ``U V^T`` at the positions that ``indices`` and ``row_ptr`` give, as a sparse matrix."""
    rows = np.repeat(np.arange(len(users)), np.diff(row_ptr))
    values = np.zeros(rows.size)
    for factor in range(users.shape[1]):
        values += users[rows, factor] * items[indices, factor]
    return sparse.csr_array((values, indices, row_ptr), shape=(len(users), len(items)))
