"""Queries over ratings for means, item totals, moments of users' rows, and scores of predictions.

- `RatingsSum` is the base class: one user is one record of one row, and at most K ratings of each user are counted.
- `UserMeans` sums users' mean ratings and counts users with ratings, from which a centre of all ratings follows.
- `ItemTotals` sums centred ratings and counts ratings for each item, from which item offsets and popularity follow.
- `RatingMoment` is the second moment of users' centred rating rows, or of their residuals after public directions.
- `PredictionScores` measures how well released item factors predict hidden ratings: squared errors, Recall, NDCG, and
  the number of users.
"""

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal, Self

import numpy as np
from numpy.typing import NDArray

from dpca_tasks.errors import InvalidInput
from dpca_tasks.kernels.gridding import grid_records
from dpca_tasks.kernels.ratings import (
    PAPER_CLIP,
    add_prediction_scores,
    chosen_ratings,
    descend,
    first_rows,
    grid_ratings,
    hidden_ratings,
    residuals,
    scale_rows,
    solve_users,
)
from dpca_tasks.layouts import Layout
from dpca_tasks.noise.keystream import SecretKey, words
from dpca_tasks.queries.base import SQRT_2_UP, RowSum, StepSecrets
from dpca_tasks.queries.joint_sum import JointSum, Part
from dpca_tasks.queries.second_moment import SecondMoment
from dpca_tasks.records.blocks import Block, RowBlock, as_floats, canonical

Coins = Literal["release", "step"]
RATING_BITS = 16
"""Binary logarithm of the number of steps of the public range of ratings, ``2^16``."""
_COINS = 7
"""Stream of the coins that choose ratings."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RatingsSum(JointSum):
    """A joint sum over users of at most ``ratings_per_user`` ratings each; ``n_features`` is the number of items.

    Parameters
    ----------
    low, high : float
        The public range of ratings. Ratings outside it are clipped, and ratings that are not finite are dropped.
    ratings_per_user : int
        K. If a user has more, the K ratings of the lowest priority are counted. Coins that depend on the user's ordinal
        in the snapshot and on the item break ties.
    offsets : float64 array of shape (n_items,)
        Public offsets of the items, subtracted from their ratings.
    centre : float
        The public centre of all ratings.
    prior : float
        The number of additional ratings at the centre in a user's mean; infinite for no user means.
    coin_key : SecretKey, optional
        The key of the coins, which only the curator has.
    coins : {"release", "step"}
        Whether all steps of a release share these coins, or each step has separate ones.

    Notes
    -----
    Only the first row of a record is read, whatever the record holds; jobs refuse datasets whose records may have more.
    """

    low: float
    high: float
    ratings_per_user: int
    offsets: NDArray[np.float64]
    centre: float
    prior: float
    coin_key: SecretKey | None = field(default=None, repr=False)
    coins: Coins = "release"

    def __post_init__(self) -> None:
        """Check the public parameters."""
        RowSum.__post_init__(self)
        if not (math.isfinite(self.low) and math.isfinite(self.high) and self.low < self.high):
            raise InvalidInput(
                f"ratings between {self.low} and {self.high} must be a range; state the lower one first."
            )
        if self.ratings_per_user < 1:
            raise InvalidInput(f"ratings_per_user={self.ratings_per_user} must be at least 1; state a public bound.")
        if self.clip_norm != 1.0 or not self.prior >= 0 or self.offsets.shape != (self.n_features,):
            raise InvalidInput("clip_norm must be 1, prior at least 0, and offsets one a feature; correct them.")

    @property
    def most(self) -> int:
        """The largest number of ratings of one user that are counted: K, or all items."""
        return min(self.ratings_per_user, self.n_features)

    @property
    def root_most(self) -> float:
        """The square root of `most`, rounded up."""
        return math.nextafter(math.sqrt(self.most), math.inf)

    @property
    def step(self) -> float:
        """One step of the grid of ratings."""
        return (self.high - self.low) / 2.0**RATING_BITS

    def with_secrets(self, secrets: StepSecrets) -> Self:
        """Return the query with its coins: one key for everything that a step counts."""
        key = secrets.release_coins if self.coins == "release" else secrets.step_coins
        return dataclasses.replace(self, coin_key=key)

    def grid(self, block: Block) -> RowBlock:
        """Clip the ratings of each record's first row, and convert them to the grid of ratings."""
        rows = canonical(block, n_features=self.n_features)
        values, items, row_ptr = first_rows(
            as_floats(rows.values), rows.indices, rows.row_ptr, rows.record_ptr, self.low, self.high, RATING_BITS
        )
        return RowBlock(
            values=values,
            indices=items,
            row_ptr=row_ptr,
            record_ptr=np.arange(row_ptr.size),
            first_record=block.first_record,
            n_features=self.n_features,
            bits=RATING_BITS,
            density=block.density,
        )

    def chosen(self, block: RowBlock, priorities: NDArray[np.float64]) -> NDArray[np.bool_]:
        """Mark the ratings that are counted."""
        first, count = block.first_record, block.n_records
        coins = (
            np.zeros(count, np.uint64)
            if self.coin_key is None
            else words(self.coin_key, stream=_COINS, start=first, stop=first + count)
        )
        return chosen_ratings(block.indices, block.row_ptr, priorities, self.most, coins)


_UP = 1.0 + 2.0**-50  # covers the rounding of a bound


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class UserMeans(RatingsSum):
    """The sum over users with ratings of ``mean - (low + high) / 2``, and the number of these users.

    The mean is over all ratings of a user, each clipped to the range. Offsets, centre and prior have no effect.

    Parameters
    ----------
    count_share : float
        The share c of the squared loss that goes to the number; the sum has ``s = 1 - c``.
    **others
        As for `RatingsSum`.

    Notes
    -----
    Sensitivity, in units of ``R = (high - low) / 2`` for the sum and of 1 for the number. However many ratings a user
    has, the user adds one number of magnitude at most 1 and one count, or nothing at all.

    - *add_remove, zero_out.* Both bounds are 1.
    - *replace_one.* Where both users have ratings, the sum moves by at most 2 and the number not at all. Where one user
      has none, both move by at most 1. With bounds ``2 g`` and ``g`` the square moves by at most ``s / g^2`` in the
      first case and ``(s / 4 + c) / g^2`` in the second, so ``g^2 = max(s, s / 4 + c)`` is enough.
    """

    count_share: float

    name: ClassVar[str] = "user_means"
    version: ClassVar[int] = 1
    degree: ClassVar[int] = 1

    def __post_init__(self) -> None:
        """Check the parameters."""
        RatingsSum.__post_init__(self)
        if not 0 < self.count_share < 1:
            raise InvalidInput(f"count_share={self.count_share} must be in (0, 1); correct it.")
        JointSum.__post_init__(self)

    @property
    def parts(self) -> Mapping[str, Part]:
        """The sum in units of half the range, the number in units of 1, both on the grid."""
        count, one = self.count_share, Layout(kind="vector", order=1)
        bounds = {"sum": _UP, "number": _UP}
        if self.relation == "replace_one":
            least = math.sqrt(max(1.0 - count, (1.0 - count) / 4.0 + count))
            bounds = {"sum": 2.0 * least * _UP, "number": least * _UP}
        shares = {"sum": (1.0 - count) * (1 - 2.0**-50), "number": count}
        units = {"sum": (self.high - self.low) / 2.0, "number": 1.0}
        return {
            name: Part(layout=one, bound=bounds[name], share=share, unit=units[name], steps_per_unit=2**self.bits)
            for name, share in shares.items()
        }

    def add(self, block: RowBlock, total: NDArray[np.int64]) -> None:
        """Add the sum and the number of a block in grid steps."""
        rated = np.diff(block.row_ptr)
        sums = np.diff(np.concatenate([[0], np.cumsum(block.values, dtype=np.int64)])[block.row_ptr])
        above = (
            2.0 * sums / np.maximum(rated, 1) / 2.0**RATING_BITS - 1.0
        )  # of each user alone: equal bits in any block
        steps = np.where(rated > 0, np.rint(above * 2.0**self.bits), 0.0)
        total += np.array([steps.astype(np.int64).sum(), np.count_nonzero(rated) << self.bits], np.int64)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ItemTotals(RatingsSum):
    r"""For each item the sum of ``clip(r_ij - off_i, D)`` over its chosen ratings, and their number.

    ``off_i`` is the user's offset (`dpca_tasks.kernels.ratings.residuals`). At most K ratings of a user are chosen, at
    random.

    Parameters
    ----------
    bound : float
        D, the bound to which a rating without its offset is clipped.
    count_share : float
        The share c of the squared loss that goes to the counts; the sums have ``s = 1 - c``.
    **others
        As for `RatingsSum`.

    Notes
    -----
    Sensitivity. A user adds to at most K items, to each at most D in magnitude and 1 in count. So both parts have the
    bound ``sqrt K`` (in units D and 1) for add_remove and zero_out, where a user without ratings adds nothing. Off_i is
    a function of that user's ratings and of public numbers, so it changes nothing for others.

    Where a user replaces another, let f of K items be common. The other items of both users add up to ``2 (K - f)``
    squares in each part. On common items sums may differ by 2 D, 4 squares each, and counts are equal. In units in
    which each part's bound has the square of its share, the square moves by at most
    ``2 (1 - f/K) (s + c) + 4 (f/K) s`` times K. This is linear in f, so at most ``K F`` with
    ``F = max(2 (s + c), 4 s) = max(2, 4 s)``: both bounds are ``sqrt(K F)``.
    """

    bound: float
    count_share: float

    name: ClassVar[str] = "item_totals"
    version: ClassVar[int] = 1
    degree: ClassVar[int] = 1

    def __post_init__(self) -> None:
        """Check the parameters."""
        RatingsSum.__post_init__(self)
        if not (0 < self.bound < math.inf and 0 < self.count_share < 1):
            raise InvalidInput(
                f"bound={self.bound} must be positive and count_share={self.count_share} in (0, 1); correct them."
            )
        JointSum.__post_init__(self)

    @property
    def parts(self) -> Mapping[str, Part]:
        """Sums in units of D, counts in units of 1, both on the grid."""
        items = Layout(kind="vector", order=self.n_features)
        factor = max(2.0, 4.0 * (1.0 - self.count_share)) if self.relation == "replace_one" else 1.0
        bound = self.root_most * math.sqrt(factor) * _UP
        shares = {"sums": (1.0 - self.count_share) * (1 - 2.0**-50), "counts": self.count_share}
        units = {"sums": self.bound, "counts": 1.0}
        return {
            name: Part(layout=items, bound=bound, share=share, unit=units[name], steps_per_unit=2**self.bits)
            for name, share in shares.items()
        }

    def add(self, block: RowBlock, total: NDArray[np.int64]) -> None:
        """Add the totals of a block in grid steps."""
        parts = self.split(total)
        chosen = self.chosen(block, np.zeros(self.n_features))
        facts = (self.low, self.step, self.offsets, self.centre, self.prior)
        left, _ = residuals(block.values, block.indices, block.row_ptr, *facts)
        scales = np.ones(block.n_records)
        steps = grid_ratings(left, block.row_ptr, scales, self.bound, self.bits, PAPER_CLIP)
        np.add.at(parts["sums"], block.indices[chosen], steps[chosen])
        np.add.at(parts["counts"], block.indices[chosen], 1 << self.bits)


Scaling = Literal["clip", "normalise", "by_count"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RatingMoment(RatingsSum):
    r"""The sum of ``x_i x_i^T`` over users, where ``x_i`` holds the residuals of user i's chosen ratings.

    A residual is the rating without both offsets, clipped to ``rating_bound``, minus the user's prediction by the
    previous rounds of the Frank-Wolfe method (`dpca_tasks.kernels.ratings.descend`). The prediction is computed from
    all ratings of the user. The row is scaled by the rule ``scaling``, then clipped to norm ``row_norm``.

    Parameters
    ----------
    directions : integer array of shape (n_items, rounds)
        Public, in steps of ``unit``; no column before the first round.
    gains : float64 array of shape (rounds,)
        Public weights of the directions.
    unit : float
        One step of the directions.
    rating_bound, row_norm : float
        The bounds GM of a centred rating and L of a row.
    scaling : {"clip", "normalise", "by_count"}
        Leave rows unscaled; scale every row to ``row_norm``; or divide it by the square root of its number of chosen
        ratings.
    **others
        As for `RatingsSum`.

    Notes
    -----
    Sensitivity, in units of ``L^2``. A user's row is a function of that user's ratings and of public numbers, and the
    squares of its integers sum to at most ``4^bits``, compared in integers: ``|x| <= 1``.

    - *add_remove, zero_out.* ``||x x^T||_F = |x|^2 <= 1``; a user without ratings adds nothing.
    - *replace_one*, by y: ``||x x^T - y y^T||_F^2 = |x|^4 + |y|^4 - 2 (x . y)^2 <= 2``, attained by orthogonal rows.

    The number of counted ratings does not matter, since the norm bounds the contribution of a user.
    """

    directions: NDArray[np.int64]
    gains: NDArray[np.float64]
    unit: float
    rating_bound: float
    row_norm: float
    scaling: Scaling

    name: ClassVar[str] = "rating_moment"
    version: ClassVar[int] = 1
    degree: ClassVar[int] = 2

    def __post_init__(self) -> None:
        """Check the parameters."""
        RatingsSum.__post_init__(self)
        if not all(0 < value < math.inf for value in (self.unit, self.rating_bound, self.row_norm)):
            raise InvalidInput(
                "bounds of ratings and rows, and the unit of directions, must be positive; correct them."
            )
        if self.directions.shape != (self.n_features, self.gains.size) or not np.isfinite(self.gains).all():
            raise InvalidInput("directions must have one row an item and one column a finite gain; correct them.")
        JointSum.__post_init__(self)

    @property
    def parts(self) -> Mapping[str, Part]:
        """One symmetric matrix over the items, of products of two numbers on the grid."""
        moment = Part(
            layout=Layout(kind="symmetric", order=self.n_features),
            bound=SQRT_2_UP if self.relation == "replace_one" else 1.0,
            share=1.0,
            unit=self.row_norm**2,
            steps_per_unit=4**self.bits,
        )
        return {"moment": moment}

    def rows(self, block: RowBlock) -> RowBlock:
        """Return the users' rows on the grid of their norm, whose outer products `map` adds up."""
        facts = (self.low, self.step, self.offsets, self.centre, self.prior)
        left, _ = residuals(block.values, block.indices, block.row_ptr, *facts)
        steps = (self.directions, self.unit, self.gains, self.row_norm, self.rating_bound)
        rest, _ = descend(left, block.indices, block.row_ptr, *steps)
        chosen = self.chosen(block, np.zeros(self.n_features))
        row_ptr = np.concatenate([[0], np.cumsum(chosen)])[block.row_ptr]
        values = rest[chosen]
        if self.scaling != "clip":
            scale_rows(values, row_ptr, self.row_norm, by_count=self.scaling == "by_count")
        return RowBlock(
            values=grid_records(values, row_ptr, block.record_ptr, self.row_norm, 4**self.bits),
            indices=block.indices[chosen],
            row_ptr=row_ptr,
            record_ptr=block.record_ptr,
            first_record=block.first_record,
            n_features=self.n_features,
            bits=self.bits,
            density=block.density,
        )

    def add(self, block: RowBlock, total: NDArray[np.int64]) -> None:
        """Add the moment of a block to a running total."""
        moment = SecondMoment(n_features=self.n_features, clip_norm=1.0, relation=self.relation, bits=self.bits)
        moment.add(self.rows(block), total)


ONE_IN = 5
"""One in this many ratings of a user is hidden."""
SCORES = 4
_DISCOUNT_BITS = 30


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PredictionScores(RatingsSum):
    """Sum over users ``(mean squared error / range^2, Recall@k, NDCG@k, 1)``.

    A fifth of a user's ratings is hidden, at least one (`dpca_tasks.kernels.ratings.hidden_ratings`). The user's factor
    is folded in from the other ratings, as a consumer of the release does, and the hidden ratings are predicted. All
    hidden items count alike for Recall and NDCG. A user of fewer than two ratings adds nothing.

    Parameters
    ----------
    count : int
        k, the number of recommended items.
    factors : int64 array of shape (n_items, rank)
        Item factors in steps of `factor_unit`; rank 0 for offsets alone.
    factor_unit, ridge, rating_bound : float
        As unit, ridge and bound of `dpca_tasks.kernels.ratings.solve_users`.
    unobserved : float64 array of shape (rank, rank), optional
        As for `dpca_tasks.queries.item_statistics.ItemStatistics`.
    gains : float64 array of shape (rank,) or (0,)
        If not empty, users descend instead (`dpca_tasks.kernels.ratings.descend`), with their `row_norm`.
    **others
        As for `RatingsSum`; all ratings are used, so `ratings_per_user` and coins have no effect.

    Notes
    -----
    Sensitivity. A user adds four numbers, each from 0 to 1 after rounding, or nothing at all. So the sum moves by at
    most 2 in l2 when a user is added, removed or emptied. When one replaces another, each number moves by at most 1, so
    the sum moves by at most 2 as well. The hidden ratings, the folded-in factor and the predictions follow from the
    user's row and public numbers, in a fixed order, so they change nothing for others. The proof uses no property of
    factors or offsets.
    """

    count: int
    factors: NDArray[np.int64]
    factor_unit: float
    ridge: float
    rating_bound: float
    gains: NDArray[np.float64]
    row_norm: float
    unobserved: NDArray[np.float64] | None = None

    name: ClassVar[str] = "prediction_scores"
    version: ClassVar[int] = 1
    degree: ClassVar[int] = 1

    def __post_init__(self) -> None:
        """Check the parameters."""
        RatingsSum.__post_init__(self)
        if not 1 <= self.count <= self.n_features:
            raise InvalidInput(f"count={self.count} must be from 1 to the {self.n_features} items; correct it.")
        if len(self.factors) != self.n_features or self.gains.size not in (0, self.factors.shape[1]):
            raise InvalidInput("factors must have a row for each item, and gains a number for each factor; pass all.")
        JointSum.__post_init__(self)

    @property
    def parts(self) -> Mapping[str, Part]:
        """The four numbers, on one grid."""
        layout = Layout(kind="vector", order=SCORES)
        return {"scores": Part(layout=layout, bound=2.0, share=1.0, unit=1.0, steps_per_unit=2**self.bits)}

    def add(self, block: RowBlock, total: NDArray[np.int64]) -> None:
        """Add the sums of a block's users in grid steps."""
        hidden = hidden_ratings(block.indices, block.row_ptr, ONE_IN)
        row_ptr = np.concatenate([[0], np.cumsum(~hidden)])[block.row_ptr]
        values, items = block.values[~hidden], block.indices[~hidden]
        left, own = residuals(values, items, row_ptr, self.low, self.step, self.offsets, self.centre, self.prior)
        if self.gains.size:
            steps = (self.factors, self.factor_unit, self.gains, self.row_norm, self.rating_bound)
            _, solved = descend(left, items, row_ptr, *steps)
        else:
            every = np.ones(items.size, np.bool_)
            rank = self.factors.shape[1]
            of_all = np.zeros((rank, rank)) if self.unobserved is None else self.unobserved
            solve = (self.factors, self.factor_unit, self.ridge, self.rating_bound, of_all)
            solved = solve_users(left, items, row_ptr, every, *solve)
        discounts = np.rint(2.0**_DISCOUNT_BITS / np.log2(np.arange(2, self.count + 2))).astype(np.int64)
        of_users = (block.values, block.indices, block.row_ptr, hidden, own, solved)
        of_items = (self.offsets, self.factors, self.factor_unit, self.low, self.high, self.step)
        add_prediction_scores(*of_users, *of_items, discounts, self.bits, total)
