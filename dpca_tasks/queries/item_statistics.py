"""The sums over users in one round of alternating least squares, from which the factor of each item is computed."""

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
_UP = 1.0 + 2.0**-48  # factor that makes a computed bound an upper bound despite rounding


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ItemStatistics(RatingsSum, TiledSum):
    r"""The sums from which alternating least squares computes the factor of each item j.

    The sums are ``H_j = sum_i q_ij u_i u_i^T`` and ``w_j = sum_i q_ij m_ij u_i``, over the counted ratings of item j by
    users i. The factor ``u_i`` of user i is a ridge regression of the user's ratings on the given item factors, over
    all items in use. Its norm is bounded by ``user_norm`` with the rule ``clip``. ``m_ij`` is the rating minus the
    offsets of item and user. It is scaled like ``u_i`` (except under ``clip="paper"``), and then clipped to
    ``rating_clip``. ``q_ij`` is 1 for the at most K (`ratings_per_user`) chosen ratings of user i, or, with
    ``weights``, the weight of the rating. With a ``gram_share`` there is a third part, the Gram matrix
    ``sum_i u_i u_i^T`` over all users.

    Parameters
    ----------
    factors : integer array of shape (n_items, rank)
        Public item factors, in steps of ``unit``.
    priorities : float64 array of shape (n_items,)
        Public. For each user, the K ratings of items with the lowest priorities are counted. An item of infinite
        priority is not in use.
    unit, ridge, rating_bound : float
        One step of the factors, the ridge of the users' regression, and the bound of ratings in that regression.
    user_norm, rating_clip : float
        The bound Gu on ``|u_i|`` and the bound GM on ``|m_ij|``.
    clip : {"normalise", "weight", "paper"}
        ``normalise`` scales every ``u_i`` to norm Gu, and the ratings of the user likewise. ``weight`` does so only if
        ``u_i`` is longer than Gu. ``paper`` scales a longer ``u_i``, but not the ratings.
    outer_share : float
        The share h of the squared privacy loss that goes to H; the rest ``1 - h`` goes to w.
    weights : float64 array of shape (n_items,), optional
        Public. With weights, all ratings of items in use are counted. A user's weights ``q_ij`` are a multiple of
        these, and their squares add up to at most ``min(K, number of ratings)``.
    unobserved : float64 array of shape (rank, rank), optional
        Public. A matrix that is added to the matrix of every user's regression: the weight of all items, rated or not,
        times ``V^T V`` for item factors V.
    gram_share : float
        The share of the squared privacy loss that goes to the Gram matrix, which reduces the share of w. 0 for no Gram
        matrix.
    **others
        As for `RatingsSum`.

    Notes
    -----
    Sensitivity, in units of ``Gu^2`` for H and of ``Gu GM`` for w. In these units ``|u| <= 1`` and ``|m| <= 1`` are
    compared in integers, so the bounds hold exactly for products of these integers. A user's ``u_i`` and ``m_ij``
    depend only on that user's row and on public numbers. At most K items are counted for each user.

    - *add_remove, zero_out.* ``||u u^T||_F = |u|^2 <= 1`` and ``|m u| <= 1`` for each of K items. So H and w each
      change by at most ``sqrt K``. A user without ratings has ``u = 0``.
    - *replace_one*: a user with factor u and ratings m is replaced by a user with factor v and ratings m'. Let c be the
      cosine between u and v. On an item that both rated, the squared change of H is at most ``2 - 2 c^2``, and the
      squared change of w at most ``2 + 2 c`` (ratings of opposite signs). On a pair of different items both squared
      changes are at most 2. Weight the squared changes by the shares h and ``w = 1 - h``. A common item then
      contributes ``h (2 - 2 c^2) + w (2 + 2 c)``. This is largest at ``c = w / 2h``, with the value
      ``F = 2 h + 2 w + w^2 / 2h`` if ``w <= 2 h``, and otherwise ``F = 4 w``. F is at least the 2 of different items.
      Shorter u and v, of lengths a and b, contribute less:
      ``h (a^4 + b^4 - 2 a^2 b^2 c^2) + w (a^2 + b^2 + 2 a b c)``. This grows when both are scaled up until ``a = 1``.
      At the worst c the value is then ``h (1 + b^4) + w (1 + b^2) + w^2 / 2h`` if ``w <= 2 h b``. Otherwise it is
      ``h (1 - b^2)^2 + w (1 + b)^2`` at ``c = 1``, with the derivative ``(1 + b) (2 w - 4 h b (1 - b)) >= 0``. Both
      values grow with b up to ``b = 1``. So the bounds of H and of w are ``sqrt(K F)``.

    *With the Gram matrix*, of share g. The bound of the Gram matrix lacks the factor ``sqrt K``. If a user is removed,
    the Gram matrix changes by ``|u|^2 <= 1``. If a user is replaced, its squared change is
    ``a^4 + b^4 - 2 a^2 b^2 c^2``, as for H on one common item. Let a fraction f of the K items be common. Then the
    weighted squared change is at most f times the contribution of common items, with ``h + g`` in place of h, plus
    ``1 - f`` times
    ``h (a^4 + b^4) + w (a^2 + b^2) + g (a^4 + b^4 - 2 a^2 b^2 c^2) <= 2 h + 2 w + 2 g``. So F with ``h + g`` in place
    of h bounds all parts.

    *With weights*, q of one user and p of the other user. The squares of q add up to Q, the squares of p to P, and both
    Q and P are at most K. If the first user is removed, H changes by at most ``sqrt(Q) |u|^2``, and w by at most
    ``sqrt(Q)``. If the first user is replaced by the second, the weighted squared change is at most
    ``h (Q a^4 + P b^4 - 2 X a^2 b^2 c^2) + w (Q a^2 + P b^2 + 2 X a b c)`` with ``X = sum_j q_j p_j <= sqrt(Q P)``.
    This is linear in X. At ``X = 0`` it is at most ``2 K (h + w)``. At ``X = sqrt(Q P)`` it is a convex function of
    ``sqrt Q``, and of ``sqrt P``, so it is largest where each of them is 0 or ``sqrt K``. If both are ``sqrt K``, the
    value is that of equal weights, and otherwise at most K. Weights are integers, and their squares are compared with
    the bound in integers.

    Noise on H is isometric: it has equal standard deviation in every direction of the symmetric matrices.
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
        """Check the public parameters of the query."""
        RatingsSum.__post_init__(self)
        positive = (self.unit, self.ridge, self.rating_bound, self.user_norm, self.rating_clip)
        if not all(0 < value < math.inf for value in positive) or not (
            0 < self.outer_share < 1 - self.gram_share and self.gram_share >= 0
        ):
            raise InvalidInput(
                "ridge, bounds, unit and shares must be positive, and the sum of shares must be below 1; correct them."
            )
        if (
            self.factors.ndim != 2
            or len(self.factors) != self.n_features
            or self.priorities.shape != (self.n_features,)
        ):
            raise InvalidInput("factors and priorities must have one row per item; correct them.")
        if np.isnan(self.priorities).any():
            raise InvalidInput("a priority is NaN; pass numbers, or infinity for an item that is not in use.")
        if self.weights is not None and not (
            self.weights.shape == self.priorities.shape and np.all((self.weights > 0) & (self.weights < math.inf))
        ):
            raise InvalidInput("weights must be positive and finite, one per item; correct them.")
        if self.unobserved is not None and self.unobserved.shape != (self.rank, self.rank):
            raise InvalidInput(f"unobserved must be a matrix of shape ({self.rank}, {self.rank}); correct it.")
        JointSum.__post_init__(self)

    @property
    def rank(self) -> int:
        """The rank r of the factorization, which is the length of the factor of an item or user."""
        return int(self.factors.shape[1])

    @property
    def parts(self) -> Mapping[str, Part]:
        """The parts: H as a stack of symmetric matrices, w as a vector, and the Gram matrix if ``gram_share`` > 0."""
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
        """The bits of the grid of weights: a weight of 1 is ``2^weight_bits`` steps."""
        return 0 if self.weights is None else WEIGHT_BITS

    def users(self, block: RowBlock) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """Return the factors and the scaled ratings of a block's users, as integers on the grid."""
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
        """Return the weight of each rating in a block, in steps of ``2^-weight_bits``; 0 for ratings not counted."""
        if self.weights is None:
            return self.chosen(block, self.priorities).astype(np.int32)
        used = self.priorities < np.inf
        return balanced_weights(block.indices, block.row_ptr, self.weights, used, self.most, WEIGHT_BITS)

    @property
    def prepared_bytes(self) -> tuple[int, int, int, int]:
        """Bounds on the bytes of prepared users: per record, per row, per stored value, and per block."""
        return 2 * self.rank, 0, 10, 8 * (self.n_features + 1)

    def prepare(self, block: RowBlock) -> "PreparedUsers":
        """Compute the factors of a block's users, and sort their counted ratings by item."""
        users, ratings = self.users(block)
        by_item = sort_by_item(block.indices, block.row_ptr, self.counted(block), ratings, self.n_features)
        return PreparedUsers(users=users.astype(np.int16), by_item=by_item, has_gram=self.gram_share > 0)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PreparedUsers:
    """The factors of a block's users on the grid, and the counted ratings sorted by item; the repr shows no data."""

    users: NDArray[np.int16] = field(repr=False)
    by_item: tuple[NDArray[np.int64], NDArray[np.int32], NDArray[np.int32], NDArray[np.int16]] = field(repr=False)
    has_gram: bool = field(repr=False)

    @property
    def nbytes(self) -> int:
        """The number of bytes of all arrays of this object."""
        return self.users.nbytes + sum(array.nbytes for array in self.by_item)

    def add(self, tile: Tile, total: NDArray[np.int64]) -> None:
        """Add the sums over the users of this block, for the items of a tile, to the tile's total."""
        rank, count = self.users.shape[1], tile.last - tile.first
        edge = count * rank * (rank + 1) // 2
        outer, weighted = total[:edge].reshape(count, -1), total[edge : edge + count * rank].reshape(count, -1)
        add_item_sums(self.users, *self.by_item, tile.first, outer, weighted)
        if self.has_gram and tile.first == 0:
            total[edge + count * rank :] += packed_gram(self.users)
