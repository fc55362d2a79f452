"""Statistics of one round of alternating least squares, from which each item's factor is solved."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from dpca_tasks.errors import InvalidInput
from dpca_tasks.kernels.ratings import (
    NORMALISE,
    PAPER_CLIP,
    WEIGHT_CLIP,
    add_item_sums,
    balanced_weights,
    bound_users,
    grid_ratings,
    packed_gram,
    residuals,
    solve_users,
    sort_by_item,
)
from dpca_tasks.layouts import Layout
from dpca_tasks.queries.joint_sum import JointSum, Part, Tile, TiledSum
from dpca_tasks.queries.ratings import RatingsSum
from dpca_tasks.records.blocks import RowBlock

Clip = Literal["normalise", "weight", "paper"]
_RULES: Mapping[Clip, int] = {"normalise": NORMALISE, "weight": WEIGHT_CLIP, "paper": PAPER_CLIP}
WEIGHT_BITS = 6
_UP = 1.0 + 2.0**-48  # covers the rounding of a bound


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ItemStatistics(RatingsSum, TiledSum):
    r"""For each item ``H_j = sum_i q_ij u_i u_i^T`` and ``w_j = sum_i q_ij m_ij u_i`` over its counted ratings.

    ``u_i`` is user i's ridge regression on the given item factors, from all ratings of items in use. It is brought to
    norm ``user_norm`` by the rule ``clip``. ``m_ij`` is the rating without both offsets, scaled like ``u_i`` (except
    under ``paper``), and clipped to ``rating_clip`` after that. ``q_ij = 1`` for the at most K chosen ratings of user
    i, or, with ``weights``, a weight of each rating. With a ``gram_share`` there is also the matrix
    ``K = sum_i u_i u_i^T`` over all users.

    Parameters
    ----------
    factors : integer array of shape (n_items, rank)
        Public item factors, in steps of ``unit``.
    priorities : float64 array of shape (n_items,)
        Public. The K ratings of the lowest priority are counted; an item of infinite priority is not in use.
    unit, ridge, rating_bound : float
        One step of the factors, the ridge of the users' regression, and the bound of ratings in that regression.
    user_norm, rating_clip : float
        The bounds Gu and GM.
    clip : {"normalise", "weight", "paper"}
        Scale every ``u_i`` to the bound; or scale only longer ones, together with their ratings; or scale only longer
        ones, without their ratings.
    outer_share : float
        The share h of the squared loss that goes to H; w has ``1 - h``.
    weights : float64 array of shape (n_items,), optional
        Public. With weights, all ratings of items in use are counted. Each user's weights are multiples of these, and
        their squares add up to at most ``min(K, number of ratings)``.
    unobserved : float64 array of shape (rank, rank), optional
        Public. Added to the matrix of every user's regression: the weight of all items, rated or not, times ``V^T V``.
    gram_share : float
        The share of the squared loss that goes to the matrix K, taken from the ``1 - h`` of w; 0 for no matrix K.
    **others
        As for `RatingsSum`.

    Notes
    -----
    Sensitivity, in units of ``Gu^2`` for H and of ``Gu GM`` for w. In these units ``|u| <= 1`` and ``|m| <= 1`` are
    compared in integers, so products of these integers obey the following exactly. A user's ``u_i`` and ``m_ij`` depend
    on that user's row and on public numbers alone. At most K items are counted.

    - *add_remove, zero_out.* ``||u u^T||_F = |u|^2 <= 1`` and ``|m u| <= 1`` for each of K items: both bounds are
      ``sqrt K``. A user without ratings has ``u = 0``.
    - *replace_one*, by v and m'. Let c be the cosine between u and v. On a common item the square of H moves by at most
      ``2 - 2 c^2`` and that of w by at most ``2 + 2 c`` (opposite signs of the ratings). On two different items they
      move by 2 and 2. In units in which each part's bound has the square of its share, with ``w = 1 - h``, a common
      item moves by ``h (2 - 2 c^2) + w (2 + 2 c)``. This is largest at ``c = w / 2h``, with the value
      ``F = 2 h + 2 w + w^2 / 2h`` if ``w <= 2 h``, and else ``F = 4 w``. F is at least the 2 of different items.
      Shorter u and v, of lengths a and b, move it less: by ``h (a^4 + b^4 - 2 a^2 b^2 c^2) + w (a^2 + b^2 + 2 a b c)``,
      which grows when both are scaled up until ``a = 1``. At the worst c it is then
      ``h (1 + b^4) + w (1 + b^2) + w^2 / 2h`` where ``w <= 2 h b``. Else it is ``h (1 - b^2)^2 + w (1 + b)^2`` at
      ``c = 1``, with the derivative ``(1 + b) (2 w - 4 h b (1 - b)) >= 0``. Both grow up to ``b = 1``. Both bounds are
      ``sqrt(K F)``.

    *With the matrix K*, of share g, whose bound is without the factor ``sqrt K``. A removed user moves it by
    ``|u|^2 <= 1``. A replaced one moves its square by ``a^4 + b^4 - 2 a^2 b^2 c^2``, like the square of H on one common
    item. Let a fraction f of the K items be common. Then the square moves by f times the movement of common items, with
    ``h + g`` in place of h, plus ``1 - f`` times
    ``h (a^4 + b^4) + w (a^2 + b^2) + g (a^4 + b^4 - 2 a^2 b^2 c^2) <= 2 h + 2 w + 2 g``. So F with ``h + g`` in place
    of h is enough for all parts.

    *With weights* q of one user and p of the other, whose squares add up to Q and P, at most K. A removed user moves H
    by ``sqrt(Q) |u|^2`` at most, and w by ``sqrt(Q)``. A replaced one moves the square by
    ``h (Q a^4 + P b^4 - 2 X a^2 b^2 c^2) + w (Q a^2 + P b^2 + 2 X a b c)``, ``X = sum_j q_j p_j <= sqrt(Q P)``. That is
    linear in X. At ``X = 0`` it is at most ``2 K (h + w)``. At ``X = sqrt(Q P)`` it is a convex function of ``sqrt Q``,
    and of ``sqrt P``, so largest where each is 0 or ``sqrt K``. Where both are ``sqrt K`` its value is that of equal
    weights, and else at most K. Weights are integers, and their squares are compared with the bound in integers.

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
    weights: NDArray[np.float64] | None = None
    unobserved: NDArray[np.float64] | None = None
    gram_share: float = 0.0

    name: ClassVar[str] = "item_statistics"
    version: ClassVar[int] = 1
    degree: ClassVar[int] = 2

    def __post_init__(self) -> None:
        """Check the parameters."""
        RatingsSum.__post_init__(self)
        positive = (self.unit, self.ridge, self.rating_bound, self.user_norm, self.rating_clip)
        if not all(0 < value < math.inf for value in positive) or not (
            0 < self.outer_share < 1 - self.gram_share and self.gram_share >= 0
        ):
            raise InvalidInput(
                "ridge, bounds, the unit of factors and shares must be positive, with a sum of shares below 1."
            )
        if (
            self.factors.ndim != 2
            or len(self.factors) != self.n_features
            or self.priorities.shape != (self.n_features,)
        ):
            raise InvalidInput("factors and priorities must have one row an item; correct them.")
        if np.isnan(self.priorities).any():
            raise InvalidInput("a priority is NaN; priorities are numbers, infinite for an item that is not in use.")
        if self.weights is not None and not (
            self.weights.shape == self.priorities.shape and np.all((self.weights > 0) & (self.weights < math.inf))
        ):
            raise InvalidInput("weights must be positive and finite, one an item; correct them.")
        if self.unobserved is not None and self.unobserved.shape != (self.rank, self.rank):
            raise InvalidInput("the term of all items must be a matrix of the rank's order; correct it.")
        JointSum.__post_init__(self)

    @property
    def rank(self) -> int:
        """The number of factors r."""
        return int(self.factors.shape[1])

    @property
    def parts(self) -> Mapping[str, Part]:
        """H as a stack of symmetric matrices, w as a vector, optionally K; products of numbers on the grid."""
        m, r, gram = self.n_features, self.rank, self.gram_share
        w = 1.0 - self.outer_share - gram
        h = self.outer_share + gram
        factor = 1.0
        if self.relation == "replace_one":
            factor = 2.0 * h + 2.0 * w + w * w / (2.0 * h) if w <= 2.0 * h else 4.0 * w
        bound = self.root_most * math.sqrt(factor) * _UP
        steps = 4**self.bits << self.weight_bits
        parts = {
            "outer": Part(
                layout=Layout(kind="stack", order=r, count=m),
                bound=bound,
                share=self.outer_share * (1 - 2.0**-50),
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
        if gram > 0:
            parts["gram"] = Part(
                layout=Layout(kind="symmetric", order=r),
                bound=math.sqrt(factor) * _UP,
                share=gram * (1 - 2.0**-50),
                unit=self.user_norm**2,
                steps_per_unit=4**self.bits,
            )
        return parts

    @property
    def weight_bits(self) -> int:
        """The binary logarithm of the grid steps of a rating of weight 1."""
        return 0 if self.weights is None else WEIGHT_BITS

    def users(self, block: RowBlock) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """Return the users' factors and their ratings on the grid, from which the sums are computed."""
        rule = _RULES[self.clip]
        facts = (self.low, self.step, self.offsets, self.centre, self.prior)
        left, _ = residuals(block.values, block.indices, block.row_ptr, *facts)
        used = self.priorities[block.indices] < np.inf
        solved = solve_users(
            left,
            block.indices,
            block.row_ptr,
            used,
            self.factors,
            self.unit,
            self.ridge,
            self.rating_bound,
            np.zeros((self.rank, self.rank)) if self.unobserved is None else self.unobserved,
        )
        users, scales = bound_users(solved, self.user_norm, self.bits, rule)
        return users, grid_ratings(left, block.row_ptr, scales, self.rating_clip, self.bits, rule)

    def counted(self, block: RowBlock) -> NDArray[np.int32]:
        """Return the weight of each rating in steps of ``2^-weight_bits``; 0 if the rating is not counted."""
        if self.weights is None:
            return self.chosen(block, self.priorities).astype(np.int32)
        used = self.priorities < np.inf
        return balanced_weights(block.indices, block.row_ptr, self.weights, used, self.most, WEIGHT_BITS)

    @property
    def prepared_bytes(self) -> tuple[int, int, int, int]:
        """The bytes of the users' factors, of the counted ratings, and of the starts of the items."""
        return 2 * self.rank, 0, 10, 8 * (self.n_features + 1)

    def prepare(self, block: RowBlock) -> "PreparedUsers":
        """Solve for the users of a block, and sort their counted ratings by item."""
        users, ratings = self.users(block)
        by_item = sort_by_item(block.indices, block.row_ptr, self.counted(block), ratings, self.n_features)
        return PreparedUsers(users=users.astype(np.int16), by_item=by_item, has_gram=self.gram_share > 0)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PreparedUsers:
    """The factors of a block's users on the grid, and their counted ratings by item. Its repr hides the data."""

    users: NDArray[np.int16] = field(repr=False)
    by_item: tuple[NDArray[np.int64], NDArray[np.int32], NDArray[np.int32], NDArray[np.int16]] = field(repr=False)
    has_gram: bool = field(repr=False)

    @property
    def nbytes(self) -> int:
        """The bytes of all arrays."""
        return self.users.nbytes + sum(array.nbytes for array in self.by_item)

    def add(self, tile: Tile, total: NDArray[np.int64]) -> None:
        """Add the statistics of a tile's items."""
        rank, count = self.users.shape[1], tile.last - tile.first
        edge = count * rank * (rank + 1) // 2
        outer, weighted = total[:edge].reshape(count, -1), total[edge : edge + count * rank].reshape(count, -1)
        add_item_sums(self.users, *self.by_item, tile.first, outer, weighted)
        if self.has_gram and tile.first == 0:
            total[edge + count * rank :] += packed_gram(self.users)
