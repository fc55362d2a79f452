"""The second moment of users' centred rating rows, or of what is left of them after public directions."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from dpca_tasks.errors import InvalidInput
from dpca_tasks.kernels.gridding import grid_records
from dpca_tasks.kernels.user_factors import descend, residuals, scale_rows
from dpca_tasks.layouts import Layout
from dpca_tasks.queries.base import SQRT_2_UP
from dpca_tasks.queries.joint_sum import JointSum, Part
from dpca_tasks.queries.ratings import RatingsSum
from dpca_tasks.queries.second_moment import SecondMoment
from dpca_tasks.records.blocks import RowBlock

Scaling = Literal["clip", "normalise", "by_count"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RatingMoment(RatingsSum):
    r"""The sum of ``x_i x_i^T`` over users, where ``x_i`` holds what is left of user i's chosen ratings.

    What is left is the rating without both offsets, clipped to ``rating_bound``, and without the user's prediction by
    the rounds of the Frank-Wolfe method so far (`dpca_tasks.kernels.user_factors.descend`), which is computed from
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
        Leave rows as they are; bring every row to ``row_norm``; or divide it by the square root of its number of
        chosen ratings.
    **others
        As for `RatingsSum`.

    Notes
    -----
    Sensitivity, in units of ``L^2``. A user's row is a function of that user's ratings and of public numbers, and the
    squares of its integers sum to at most ``4^bits``, compared in integers: ``|x| <= 1``.

    - *add_remove, zero_out.* ``||x x^T||_F = |x|^2 <= 1``; a user without ratings adds nothing.
    - *replace_one*, by y: ``||x x^T - y y^T||_F^2 = |x|^4 + |y|^4 - 2 (x . y)^2 <= 2``, attained by orthogonal rows.

    The number of counted ratings does not enter, since the norm bounds what a user adds.
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
        """Return the users' rows on the grid of their norm, of which `map` adds up outer products."""
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

    def map(self, block: RowBlock) -> NDArray[np.int64]:
        """Return the moment of a block in grid steps."""
        total = np.zeros(self.layout.size, np.int64)
        self.add(block, total)
        return total

    def add(self, block: RowBlock, total: NDArray[np.int64]) -> None:
        """Add the moment of a block to a running total."""
        moment = SecondMoment(n_features=self.n_features, clip_norm=1.0, relation=self.relation, bits=self.bits)
        moment.add(self.rows(block), total)
