"""What centres and offsets of ratings follow from: users' mean ratings, and sums and counts for each item.

The sum of users' mean ratings and the number of users with ratings, from which a centre of all ratings follows.

Sums of centred ratings and counts of ratings for each item, from which offsets and popularity of items follow.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from dpca_tasks.errors import InvalidInput
from dpca_tasks.kernels.user_factors import PAPER_CLIP, grid_ratings, residuals
from dpca_tasks.layouts import Layout
from dpca_tasks.queries.joint_sum import JointSum, Part
from dpca_tasks.queries.ratings import RATING_BITS, RatingsSum
from dpca_tasks.records.blocks import RowBlock

_UP = 1.0 + 2.0**-50  # covers the rounding of a bound


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class UserMeans(RatingsSum):
    """The sum over users of ``mean - (low + high) / 2``, and the number of users, both of users that have ratings.

    The mean is that of all ratings of a user, each clipped to the range. Offsets, centre and prior have no effect.

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
    - *replace_one.* Where both users have ratings, the sum moves by at most 2 and the number not at all; where one has
      none, both move by at most 1. With bounds ``2 g`` and ``g`` the square moves by at most ``s / g^2`` in the first
      case and ``(s / 4 + c) / g^2`` in the second, so ``g^2 = max(s, s / 4 + c)`` is enough.
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

    def map(self, block: RowBlock) -> NDArray[np.int64]:
        """Return the sum and the number of a block in grid steps."""
        rated = np.diff(block.row_ptr)
        sums = np.diff(np.concatenate([[0], np.cumsum(block.values, dtype=np.int64)])[block.row_ptr])
        above = (
            2.0 * sums / np.maximum(rated, 1) / 2.0**RATING_BITS - 1.0
        )  # of each user alone: equal bits in any block
        steps = np.where(rated > 0, np.rint(above * 2.0**self.bits), 0.0)
        return np.array([steps.astype(np.int64).sum(), np.count_nonzero(rated) << self.bits], np.int64)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ItemTotals(RatingsSum):
    r"""For each item the sum of ``clip(r_ij - off_i, D)`` over its chosen ratings, and their number.

    ``off_i`` is the user's own offset (`dpca_tasks.kernels.user_factors.residuals`). At most K ratings of a user are
    chosen, by chance.

    Parameters
    ----------
    bound : float
        D, which a rating without its offset is clipped to.
    count_share : float
        The share c of the squared loss that goes to the counts; the sums have ``s = 1 - c``.
    **others
        As for `RatingsSum`.

    Notes
    -----
    Sensitivity. A user adds to at most K items, to each at most D in magnitude and 1 in count: both parts have the
    bound ``sqrt K`` (in units D and 1) for add_remove and zero_out, where a user without ratings adds nothing. Off_i is
    a function of that user's ratings and of public numbers, so it changes nothing for others.

    Where a user replaces another, let f of K items be common. The other items of both users add up to ``2 (K - f)``
    squares in each part; on common items sums may differ by 2 D, 4 squares each, and counts are equal. In units in
    which each part's bound has the square of its share, the square moves by at most ``2 (1 - f/K) (s + c) + 4 (f/K) s``
    times K, linear in f, so at most by ``K F`` with ``F = max(2 (s + c), 4 s) = max(2, 4 s)``: both bounds are
    ``sqrt(K F)``.
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

    def map(self, block: RowBlock) -> NDArray[np.int64]:
        """Return the totals of a block in grid steps."""
        total = np.zeros(self.layout.size, np.int64)
        parts = self.split(total)
        chosen = self.chosen(block, np.zeros(self.n_features))
        facts = (self.low, self.step, self.offsets, self.centre, self.prior)
        left, _ = residuals(block.values, block.indices, block.row_ptr, *facts)
        scales = np.ones(block.n_records)
        steps = grid_ratings(left, block.row_ptr, scales, self.bound, self.bits, PAPER_CLIP)
        np.add.at(parts["sums"], block.indices[chosen], steps[chosen])
        np.add.at(parts["counts"], block.indices[chosen], 1 << self.bits)
        return total
