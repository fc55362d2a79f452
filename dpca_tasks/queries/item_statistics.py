"""The statistics of one round of alternating least squares: what each item's factor is solved from."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from dpca_tasks.errors import InvalidInput
from dpca_tasks.kernels.user_factors import (
    NORMALISE,
    PAPER_CLIP,
    WEIGHT_CLIP,
    add_item_statistics,
    bound_users,
    grid_ratings,
    residuals,
    solve_users,
)
from dpca_tasks.layouts import Layout
from dpca_tasks.queries.joint_sum import JointSum, Part
from dpca_tasks.queries.ratings import RatingsSum
from dpca_tasks.records.blocks import RowBlock

Clip = Literal["normalise", "weight", "paper"]
_RULES: Mapping[Clip, int] = {"normalise": NORMALISE, "weight": WEIGHT_CLIP, "paper": PAPER_CLIP}
_UP = 1.0 + 2.0**-48  # covers the rounding of a bound


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ItemStatistics(RatingsSum):
    r"""For each item ``H_j = sum_i u_i u_i^T`` and ``w_j = sum_i m_ij u_i`` over its chosen ratings.

    ``u_i`` is user i's ridge regression on the given item factors, from all ratings of items in use, brought to norm
    ``user_norm`` by the rule ``clip``; ``m_ij`` is the rating without both offsets, scaled as ``u_i`` was (not for
    ``paper``), and clipped to ``rating_clip`` after that.

    Parameters
    ----------
    factors : integer array of shape (n_items, rank)
        Public item factors, in steps of ``unit``.
    priorities : float64 array of shape (n_items,)
        Public. The K ratings of the lowest priority are counted; an item of infinite priority is not in use.
    unit, ridge, rating_bound : float
        One step of the factors, the ridge of the users' regression, and the bound of ratings in it.
    user_norm, rating_clip : float
        The bounds Gu and GM.
    clip : {"normalise", "weight", "paper"}
        Bring every ``u_i`` to the bound; or only longer ones, with their ratings; or only these, without.
    outer_share : float
        The share h of the squared loss that goes to H; w has ``1 - h``.
    **others
        As for `RatingsSum`.

    Notes
    -----
    Sensitivity, in units of ``Gu^2`` for H and of ``Gu GM`` for w, in which ``|u| <= 1`` and ``|m| <= 1`` are compared
    in integers, so that products of these integers obey what follows exactly. A user's ``u_i`` and ``m_ij`` depend on
    that user's row and on public numbers alone. At most K items are counted.

    - *add_remove, zero_out.* ``||u u^T||_F = |u|^2 <= 1`` and ``|m u| <= 1`` for each of K items: both bounds are
      ``sqrt K``. A user without ratings has ``u = 0``.
    - *replace_one*, by v and m'. With a cosine c between u and v, on a common item the square of H moves by at most
      ``2 - 2 c^2`` and that of w by at most ``2 + 2 c`` (opposite signs of the ratings); on two different items by 2
      and 2. In units in which each part's bound has the square of its share, with ``w = 1 - h``, a common item moves by
      ``h (2 - 2 c^2) + w (2 + 2 c)``, most at ``c = w / 2h``: by ``F = 2 h + 2 w + w^2 / 2h`` if ``w <= 2 h``, else by
      ``F = 4 w``, and F is at least the 2 of different items. Shorter u and v, of lengths a and b, move it less: by
      ``h (a^4 + b^4 - 2 a^2 b^2 c^2) + w (a^2 + b^2 + 2 a b c)``, which grows when both are scaled up until ``a = 1``.
      At the worst c it is then ``h (1 + b^4) + w (1 + b^2) + w^2 / 2h`` where ``w <= 2 h b``, else ``h (1 - b^2)^2 +
      w (1 + b)^2`` at ``c = 1``, with the derivative ``(1 + b) (2 w - 4 h b (1 - b)) >= 0``: both grow up to
      ``b = 1``. Both bounds are ``sqrt(K F)``.

    Noise on H is isometric: of equal std in every direction of the symmetric matrices.
    """

    factors: NDArray[np.int64]
    priorities: NDArray[np.float64]
    unit: float
    ridge: float
    rating_bound: float
    user_norm: float
    rating_clip: float
    clip: Clip
    outer_share: float

    name: ClassVar[str] = "item_statistics"
    version: ClassVar[int] = 1
    degree: ClassVar[int] = 2

    def __post_init__(self) -> None:
        """Check the parameters."""
        RatingsSum.__post_init__(self)
        positive = (self.unit, self.ridge, self.rating_bound, self.user_norm, self.rating_clip)
        if not all(0 < value < math.inf for value in positive) or not 0 < self.outer_share < 1:
            raise InvalidInput("ridge, bounds and the unit of factors must be positive, outer_share in (0, 1).")
        if (
            self.factors.ndim != 2
            or len(self.factors) != self.n_features
            or self.priorities.shape != (self.n_features,)
        ):
            raise InvalidInput("factors and priorities must have one row an item; correct them.")
        if np.isnan(self.priorities).any():
            raise InvalidInput("a priority is NaN; priorities are numbers, infinite for an item that is not in use.")
        JointSum.__post_init__(self)

    @property
    def rank(self) -> int:
        """The number of factors r."""
        return int(self.factors.shape[1])

    @property
    def parts(self) -> Mapping[str, Part]:
        """H as a stack of symmetric matrices, w as a vector; products of two numbers on the grid."""
        m, r = self.n_features, self.rank
        h, w = self.outer_share, 1.0 - self.outer_share
        factor = 1.0
        if self.relation == "replace_one":
            factor = 2.0 * h + 2.0 * w + w * w / (2.0 * h) if w <= 2.0 * h else 4.0 * w
        bound = self.root_most * math.sqrt(factor) * _UP
        steps = 4**self.bits
        return {
            "outer": Part(
                layout=Layout(kind="stack", order=r, count=m),
                bound=bound,
                share=h * (1 - 2.0**-50),
                unit=self.user_norm**2,
                steps_per_unit=steps,
            ),
            "weighted": Part(
                layout=Layout(kind="vector", order=m * r),
                bound=bound,
                share=w * (1 - 2.0**-50),
                unit=self.user_norm * self.rating_clip,
                steps_per_unit=steps,
            ),
        }

    def users(self, block: RowBlock) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """Return the users' factors and their ratings on the grid, of which `map` adds up products."""
        rule = _RULES[self.clip]
        facts = (self.low, self.step, self.offsets, self.centre, self.prior)
        left, _ = residuals(block.values, block.indices, block.row_ptr, *facts)
        used = self.priorities[block.indices] < np.inf
        solved = solve_users(
            left, block.indices, block.row_ptr, used, self.factors, self.unit, self.ridge, self.rating_bound
        )
        users, scales = bound_users(solved, self.user_norm, self.bits, rule)
        return users, grid_ratings(left, block.row_ptr, scales, self.rating_clip, self.bits, rule)

    def map(self, block: RowBlock) -> NDArray[np.int64]:
        """Return the statistics of a block in grid steps."""
        total = np.zeros(self.layout.size, np.int64)
        self.add(block, total)
        return total

    def add(self, block: RowBlock, total: NDArray[np.int64]) -> None:
        """Add the statistics of a block to a running total."""
        parts = self.split(total)
        users, ratings = self.users(block)
        add_item_statistics(
            users,
            ratings,
            block.indices,
            block.row_ptr,
            self.chosen(block, self.priorities),
            parts["outer"].reshape(self.n_features, -1),
            parts["weighted"].reshape(self.n_features, -1),
        )
