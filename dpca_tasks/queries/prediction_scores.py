"""How well released item factors predict what users hid: squared errors, Recall, NDCG, and the number of users."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from dpca_tasks.errors import InvalidInput
from dpca_tasks.kernels.held_out_ratings import add_prediction_scores, hidden_ratings
from dpca_tasks.kernels.user_factors import descend, residuals, solve_users
from dpca_tasks.layouts import Layout
from dpca_tasks.queries.joint_sum import JointSum, Part
from dpca_tasks.queries.ratings import RatingsSum
from dpca_tasks.records.blocks import RowBlock

ONE_IN = 5
"""One in so many ratings of a user is hidden."""
SCORES = 4
_DISCOUNT_BITS = 30


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PredictionScores(RatingsSum):
    """Sum over users ``(mean squared error / range^2, Recall@k, NDCG@k, 1)``.

    A fifth of a user's ratings is hidden, one at least (`dpca_tasks.kernels.held_out_ratings.hidden_ratings`); the user
    folds in with the others, as a consumer does, and the hidden ones are predicted. All hidden items count alike for
    Recall and NDCG. A user of fewer than two ratings adds nothing.

    Parameters
    ----------
    count : int
        k, how many items are recommended.
    factors : int64 array of shape (n_items, rank)
        Those of the items in steps of `factor_unit`; rank 0 for offsets alone.
    factor_unit, ridge, rating_bound : float
        As unit, ridge and bound of `dpca_tasks.kernels.user_factors.solve_users`.
    unobserved : float64 array of shape (rank, rank), optional
        As for `dpca_tasks.queries.item_statistics.ItemStatistics`.
    gains : float64 array of shape (rank,) or (0,)
        Where users descend instead (`dpca_tasks.kernels.user_factors.descend`), with their `row_norm`.
    **others
        As for `RatingsSum`; all ratings are used, so `ratings_per_user` and coins have no effect.

    Notes
    -----
    Sensitivity. A user adds four numbers, each from 0 to 1 after rounding, or nothing at all: the sum moves by at most
    2 in l2 when a user is added, removed or emptied. When one replaces another, each number moves by at most 1, so the
    sum does by at most 2 as well. What is hidden, folded in and predicted follows from the user's own row and public
    numbers, in a fixed order, so it changes nothing for others. The proof uses no property of factors or offsets.
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

    def map(self, block: RowBlock) -> NDArray[np.int64]:
        """Return the sums of a block's users in grid steps."""
        total = np.zeros(SCORES, np.int64)
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
        return total
