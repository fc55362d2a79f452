"""Queries over ratings: user means, item totals, second moments of rating rows, and quality of predictions.

- `RatingsSum` is the base class. A user is a record of one row, and at most K ratings of each user are counted.
- `UserMeans` sums the mean ratings of users and counts users with ratings, which gives a centre of all ratings.
- `ItemTotals` sums centred ratings and counts ratings for each item, which gives item offsets and popularity.
- `RatingMoment` is the second moment of users' centred ratings, or of the residuals after public directions.
- `PredictionScores` sums quality metrics of released item factors over users: squared error, Recall and NDCG for
  hidden ratings, and the number of users.
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
"""The public range of ratings is divided into ``2^RATING_BITS`` grid steps."""
_COINS = 7
"""The number of the random stream that decides which ratings count if a user has too many."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RatingsSum(JointSum):
    """Base class of sums over users, in which at most ``ratings_per_user`` ratings of each user count.

    ``n_features`` is the number of items.

    Parameters
    ----------
    low, high : float
        The public range of ratings. Ratings outside the range are clipped, and ratings that are not finite are dropped.
    ratings_per_user : int
        The number K. If a user has more than K ratings, the K ratings whose items have the lowest priorities are
        counted. Ties are broken at random, by the user's ordinal in the snapshot and the item.
    offsets : float64 array of shape (n_items,)
        Public item offsets, which are subtracted from the ratings.
    centre : float
        The public centre of all ratings.
    prior : float
        The number of additional ratings equal to the centre in the mean of a user; infinite for no user means.
    coin_key : SecretKey, optional
        The key of the random choices; set by the curator.
    coins : {"release", "step"}
        Whether the random choices are the same in all steps of a release, or fresh in each step.

    Notes
    -----
    Only the first row of a record is read, so the sensitivity holds for any record. Jobs refuse datasets in which
    records may have several rows.
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
                f"ratings from low={self.low} to high={self.high} must be a range, finite and with low below high; "
                "correct them."
            )
        if self.ratings_per_user < 1:
            raise InvalidInput(f"ratings_per_user={self.ratings_per_user} must be at least 1; state a public bound.")
        if self.clip_norm != 1.0 or not self.prior >= 0 or self.offsets.shape != (self.n_features,):
            raise InvalidInput("clip_norm must be 1, prior at least 0, and offsets one number per item; correct them.")

    @property
    def most(self) -> int:
        """The largest number of counted ratings of one user: ``ratings_per_user``, or the number of items if less."""
        return min(self.ratings_per_user, self.n_features)

    @property
    def root_most(self) -> float:
        """The square root of `most`, rounded up."""
        return math.nextafter(math.sqrt(self.most), math.inf)

    @property
    def step(self) -> float:
        """The grid step to which ratings are rounded, in units of ratings."""
        return (self.high - self.low) / 2.0**RATING_BITS

    def with_secrets(self, secrets: StepSecrets) -> Self:
        """Return the query with the key that determines which ratings count if a user has too many."""
        key = secrets.release_coins if self.coins == "release" else secrets.step_coins
        return dataclasses.replace(self, coin_key=key)

    def grid(self, block: Block) -> RowBlock:
        """Clip the ratings in the first row of each record to the public range, and round them to the grid."""
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
        """Return a mask of the ratings in a block that count: at most `most` per user, with the lowest priorities."""
        first, count = block.first_record, block.n_records
        coins = (
            np.zeros(count, np.uint64)
            if self.coin_key is None
            else words(self.coin_key, stream=_COINS, start=first, stop=first + count)
        )
        return chosen_ratings(block.indices, block.row_ptr, priorities, self.most, coins)


_UP = 1.0 + 2.0**-50  # factor that makes a computed bound an upper bound despite rounding


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class UserMeans(RatingsSum):
    """Sum the mean ratings of users, and count the users with ratings.

    A user with ratings adds ``mean - (low + high) / 2`` to the sum and 1 to the count. The mean is over all ratings of
    the user, each clipped to the range. Offsets, centre and prior have no effect.

    Parameters
    ----------
    count_share : float
        The share c of the squared privacy loss that goes to the count; the sum has the share ``s = 1 - c``.
    **others
        As for `RatingsSum`.

    Notes
    -----
    Sensitivity, in units of ``(high - low) / 2`` for the sum and of 1 for the count. A user adds one number of
    magnitude at most 1 and one count, for any number of ratings, or nothing at all.

    - *add_remove, zero_out.* The sum and the count each change by at most 1.
    - *replace_one.* If both users have ratings, the sum changes by at most 2 and the count does not change. If one of
      them has none, sum and count each change by at most 1. Let the bounds be ``2 g`` for the sum and ``g`` for the
      count. The squared changes, divided by squared bounds and weighted by shares, add up to at most ``s / g^2`` in the
      first case and ``(s / 4 + c) / g^2`` in the second. So ``g^2 = max(s, s / 4 + c)`` suffices.
    """

    count_share: float

    name: ClassVar[str] = "user_means"
    version: ClassVar[int] = 1
    degree: ClassVar[int] = 1

    def __post_init__(self) -> None:
        """Check the public parameters of the query."""
        RatingsSum.__post_init__(self)
        if not 0 < self.count_share < 1:
            raise InvalidInput(f"count_share={self.count_share} must be in (0, 1); correct it.")
        JointSum.__post_init__(self)

    @property
    def parts(self) -> Mapping[str, Part]:
        """The two parts: the sum in units of half the range of ratings, and the number of users in units of 1."""
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
        )  # computed for each user separately, so that the bits do not depend on the block
        steps = np.where(rated > 0, np.rint(above * 2.0**self.bits), 0.0)
        total += np.array([steps.astype(np.int64).sum(), np.count_nonzero(rated) << self.bits], np.int64)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ItemTotals(RatingsSum):
    r"""For each item j, sum ``clip(r_ij - off_i, D)`` over the counted ratings ``r_ij``, and count these ratings.

    ``off_i`` is the offset of user i (`dpca_tasks.kernels.ratings.residuals`), and clip limits the magnitude to D. At
    most K (`ratings_per_user`) ratings of a user are counted, chosen at random.

    Parameters
    ----------
    bound : float
        The bound D to which a rating minus its offset is clipped.
    count_share : float
        The share c of the squared privacy loss that goes to the counts; the sums have the share ``s = 1 - c``.
    **others
        As for `RatingsSum`.

    Notes
    -----
    Sensitivity. A user adds to at most K items, to each at most D in magnitude and 1 to the count. So for add_remove
    and zero_out the bound of both parts is ``sqrt K``, in units of D and 1. A user without ratings adds nothing.
    ``off_i`` is a function of that user's ratings and of public numbers, so it does not affect other users.

    replace_one: let f of the K items be common to both users. The other items contribute at most ``2 (K - f)`` to the
    squared change of each part. On a common item the sum may change by 2 D, which contributes 4, and the count does not
    change. Weighted by the shares, the squared changes add up to at most ``K (2 (1 - f/K) (s + c) + 4 (f/K) s)``. This
    is linear in f, so it is at most ``K F`` with ``F = max(2 (s + c), 4 s) = max(2, 4 s)``. So the bound of both parts
    is ``sqrt(K F)``.
    """

    bound: float
    count_share: float

    name: ClassVar[str] = "item_totals"
    version: ClassVar[int] = 1
    degree: ClassVar[int] = 1

    def __post_init__(self) -> None:
        """Check the public parameters of the query."""
        RatingsSum.__post_init__(self)
        if not (0 < self.bound < math.inf and 0 < self.count_share < 1):
            raise InvalidInput(
                f"bound={self.bound} must be positive and count_share={self.count_share} in (0, 1); correct them."
            )
        JointSum.__post_init__(self)

    @property
    def parts(self) -> Mapping[str, Part]:
        """The two parts: the sum for each item in units of the bound D, and the count for each item in units of 1."""
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
    r"""Sum ``x_i x_i^T`` over users i, where the row ``x_i`` contains the residuals of the user's counted ratings.

    A residual is the rating minus the offsets of item and user, clipped to ``rating_bound``, minus a prediction. The
    prediction is the result of the previous rounds of the Frank-Wolfe method (`dpca_tasks.kernels.ratings.descend`),
    computed from all ratings of the user. The row ``x_i`` is scaled by the rule ``scaling`` and then clipped to norm
    ``row_norm``.

    Parameters
    ----------
    directions : integer array of shape (n_items, rounds)
        The public directions of previous rounds, in steps of ``unit``; without columns before the first round.
    gains : float64 array of shape (rounds,)
        Public weights of the directions.
    unit : float
        One step of the directions.
    rating_bound, row_norm : float
        The bound on the magnitude of a centred rating, and the bound L on the norm of a row.
    scaling : {"clip", "normalise", "by_count"}
        ``clip`` does not scale rows; ``normalise`` scales every row to norm ``row_norm``; ``by_count`` divides each row
        by the square root of its number of counted ratings.
    **others
        As for `RatingsSum`.

    Notes
    -----
    Sensitivity, in units of ``L^2``. The row x of a user is a function of that user's ratings and of public numbers.
    The squares of its integers sum to at most ``4^bits``, compared in integers, so ``|x| <= 1``.

    - *add_remove, zero_out.* ``||x x^T||_F = |x|^2 <= 1``; a user without ratings adds nothing.
    - *replace_one*, where row y replaces x: ``||x x^T - y y^T||_F^2 = |x|^4 + |y|^4 - 2 (x . y)^2 <= 2``. Orthogonal
      rows attain this.

    The bounds hold for any number of counted ratings, since the norm bounds the contribution of a user.
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
        """Check the public parameters of the query."""
        RatingsSum.__post_init__(self)
        if not all(0 < value < math.inf for value in (self.unit, self.rating_bound, self.row_norm)):
            raise InvalidInput(
                "bounds of ratings and rows, and the unit of directions, must be positive; correct them."
            )
        if self.directions.shape != (self.n_features, self.gains.size) or not np.isfinite(self.gains).all():
            raise InvalidInput("directions must have one row per item, one column per finite gain; correct them.")
        JointSum.__post_init__(self)

    @property
    def parts(self) -> Mapping[str, Part]:
        """A single part: the symmetric matrix over all items."""
        moment = Part(
            layout=Layout(kind="symmetric", order=self.n_features),
            bound=SQRT_2_UP if self.relation == "replace_one" else 1.0,
            share=1.0,
            unit=self.row_norm**2,
            steps_per_unit=4**self.bits,
        )
        return {"moment": moment}

    def rows(self, block: RowBlock) -> RowBlock:
        """Return the scaled and clipped rows of a block's users on the grid, whose outer products `map` sums."""
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
        """Add the second moment of the rows of a block's users to ``total``."""
        moment = SecondMoment(n_features=self.n_features, clip_norm=1.0, relation=self.relation, bits=self.bits)
        moment.add(self.rows(block), total)


ONE_IN = 5
"""To score predictions, one in this many ratings of each user is hidden."""
SCORES = 4
_DISCOUNT_BITS = 30


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PredictionScores(RatingsSum):
    """Sum the quality of predictions over users: ``(mean squared error / range^2, Recall@k, NDCG@k, 1)``.

    A fifth of each user's ratings is hidden, at least one (`dpca_tasks.kernels.ratings.hidden_ratings`). The user's
    factor is computed from the other ratings (folded in), as a consumer of the release does, and the hidden ratings are
    predicted. For Recall and NDCG all hidden items are equally relevant. A user with fewer than two ratings adds
    nothing.

    Parameters
    ----------
    count : int
        The number k of recommended items.
    factors : int64 array of shape (n_items, rank)
        Item factors in steps of `factor_unit`; with rank 0, predictions use offsets alone.
    factor_unit, ridge, rating_bound : float
        The arguments unit, ridge and bound of `dpca_tasks.kernels.ratings.solve_users`.
    unobserved : float64 array of shape (rank, rank), optional
        As for `dpca_tasks.queries.item_statistics.ItemStatistics`.
    gains : float64 array of shape (rank,) or (0,)
        If not empty, user factors are computed by the Frank-Wolfe method (`dpca_tasks.kernels.ratings.descend`) with
        these gains and `row_norm`, instead of by ridge regression.
    **others
        As for `RatingsSum`. All ratings are used, so `ratings_per_user` and coins have no effect.

    Notes
    -----
    Sensitivity. A user adds four numbers, each from 0 to 1 after rounding, or nothing at all. So the sum changes by at
    most 2 in l2 if a user is added, removed or emptied. If a user is replaced, each number changes by at most 1, so the
    sum again changes by at most 2. The hidden ratings, the folded-in factor and the predictions follow from the user's
    row and public numbers, in a fixed order, so they do not affect other users. The proof uses no property of factors
    or offsets.
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
        """Check the public parameters of the query."""
        RatingsSum.__post_init__(self)
        if not 1 <= self.count <= self.n_features:
            raise InvalidInput(f"count={self.count} must be from 1 to the {self.n_features} items; correct it.")
        if len(self.factors) != self.n_features or self.gains.size not in (0, self.factors.shape[1]):
            raise InvalidInput(
                "factors must have a row for each item, and gains a number for each factor; pass complete arrays."
            )
        JointSum.__post_init__(self)

    @property
    def parts(self) -> Mapping[str, Part]:
        """A single part: the vector of the four sums."""
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
