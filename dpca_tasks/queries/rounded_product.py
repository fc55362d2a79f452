"""Products ``X^T (X V)`` of clipped records X with public directions V, each of which is one step of a power method.

- `MomentProduct` sums the product over records and rounds the scores ``X V``.
- `ReplacedProduct` is rounded differently, so that its sensitivity to a replaced record is near ``sqrt 2``, not 2.
- `ClippedProduct` also clips the contribution of each record to a norm below 1, which allows less noise.

For Gaussian rows with covariance Sigma, clipping does not change the subspace of the step. By Stein's lemma the mean of
a clipped contribution is ``Sigma V M`` with M positive definite, and its columns span the same space as those of
``Sigma V``. For other distributions, clipping is a robust weighting of rows.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from dpca_tasks.errors import InvalidInput
from dpca_tasks.kernels.dense_products import add_dense_moment_products, add_long_products, is_dense
from dpca_tasks.kernels.products import add_moment_products, add_near_moment_products, is_near
from dpca_tasks.layouts import Layout
from dpca_tasks.queries.base import Norm, RowSum
from dpca_tasks.records.blocks import RowBlock
from dpca_tasks.threads import one_thread

DIRECTION_BITS = 24
UNLIMITED = 1 << 62


def on_direction_grid(directions: NDArray[np.float64]) -> NDArray[np.int64]:
    """Round orthonormal columns to the public grid of step ``2^-24``."""
    return np.rint(directions * 2.0**DIRECTION_BITS).astype(np.int64)


def is_on_grid(directions: NDArray[np.int64]) -> bool:
    """Return whether all entries of directions, in steps of ``2^-24``, have magnitude at most 1.

    The comparison takes no absolute values, because the absolute value of the smallest int64 overflows.
    """
    return bool(directions.min() >= -(2**DIRECTION_BITS) and directions.max() <= 2**DIRECTION_BITS)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MomentProduct(RowSum):
    r"""Sum ``X_u^T Y_u`` over records u, where ``Y_u`` are the scores ``X_u V``, rounded and clipped to norm 1.

    Parameters
    ----------
    directions : int64 array of shape (n_features, p)
        The directions V in steps of ``2^-24``, with entries of magnitude at most 1; orthonormal columns in practice.

    Notes
    -----
    Sensitivity. Records are clipped to ``||X_u||_F <= 1``, and scores to ``||Y_u||_F <= 1``, both compared in integers.
    So ``||X_u^T Y_u||_F <= 1``, and the l2 sensitivity is 1 for add_remove and zero_out. For replace_one it is 2 by the
    triangle inequality. Without rounding the sensitivity for replace_one would be ``sqrt 2``, but rounding the scores
    of records with many rows breaks this bound; `ReplacedProduct` rounds such records differently. The proof uses no
    property of V. ``Y_u`` is a function of the record u and of V only: exact integer products, an integer rounding
    rule, and one division and one square root in a fixed order.

    References
    ----------
    Hardt and Price (2014), The noisy power method, Algorithm 1; Hardt and Roth (2013).
    """

    directions: NDArray[np.int64]

    name: ClassVar[str] = "moment_product"
    version: ClassVar[int] = 1
    degree: ClassVar[int] = 2

    def __post_init__(self) -> None:
        """Check the directions, and that scores are exact in float64: row norm times column norm is up to ``2^52``."""
        RowSum.__post_init__(self)
        rows, width = self.directions.shape
        if rows != self.n_features or width < 1 or not is_on_grid(self.directions):
            raise InvalidInput(
                f"directions of shape {self.directions.shape} must have n_features={self.n_features} rows "
                "and entries of magnitude at most 1; pass orthonormal columns."
            )
        if self.bits + DIRECTION_BITS + math.log2(self.n_features) / 2 > 52:
            raise InvalidInput(f"bits={self.bits} is too fine for exact products; use at most 14.")

    @property
    def layout(self) -> Layout:
        """The layout of the sum: a vector with the entries of the product matrix, row by row."""
        return Layout(kind="vector", order=self.directions.size)

    @property
    def longest(self) -> int:
        """The largest number of rows of a record for which its scores are rounded.

        For a record with more rows, the product is rounded instead of the scores.
        """
        return UNLIMITED

    @property
    def most(self) -> int:
        """The largest norm of the contribution of one record, in grid steps."""
        return self.steps_per_unit

    def sensitivity(self, norm: Norm) -> float:
        """Return the l2 sensitivity, as proved in the Notes section of the class."""
        if norm != "l2":
            raise InvalidInput(f"a moment product has no sensitivity in norm={norm!r}; use Gaussian noise (l2).")
        return 2.0 if self.relation == "replace_one" else 1.0

    def add(self, block: RowBlock, total: NDArray[np.int64]) -> None:
        """Add the products of a block's records with the directions to ``total``, in steps of ``4^-bits``."""
        rows = (block.values, block.indices, block.row_ptr, block.record_ptr)
        if is_dense(block.density):
            kernel = add_dense_moment_products
        else:
            kernel = add_near_moment_products if is_near(block.values.size, self.directions) else add_moment_products
        directions, longest, most = self.directions.astype(np.int32), self.longest, self.most
        kernel(*rows, directions, DIRECTION_BITS, self.bits, longest, most, total)
        if longest < UNLIMITED:
            add_long_products(*rows, directions, DIRECTION_BITS, self.bits, longest, most, total)


ROUNDING = 2.0**-7
"""Largest change of a record's contribution by rounding of scores; on a coarse grid a single row may exceed it."""

_LENGTH = 1.0 + 2.0**-12  # a bound on the spectral norm of V
_SCORES = 1.25  # bound on the rms change of a score by rounding and clipping, in steps: sqrt(1 + 1/4), rounded up
_UP = 1.0 + 2.0**-50  # factor that makes a computed bound an upper bound despite rounding


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ReplacedProduct(MomentProduct):
    r"""Sum ``X_u^T X_u V`` over records u: with rounded scores for short records, rounded as a whole for long ones.

    A record of at most `longest` rows contributes ``X_u^T Y_u`` with the rounded and clipped scores ``Y_u`` of
    `MomentProduct`. For a record with more rows, the product ``X_u^T X_u V`` itself is rounded.

    Parameters
    ----------
    directions : int64 array of shape (n_features, p)
        The directions V, as for `MomentProduct`, of spectral norm about 1.

    Notes
    -----
    Sensitivity for replace_one, in l2. Record u adds ``s M_u V + E_u``. Here ``M_u = X_u^T X_u``, the factor s in
    [0, 1] is 1 unless the contribution was clipped, and ``E_u`` is the rounding error. Let ``A = s M_u``, and let B be
    the same matrix of the other record. Both are positive semi-definite with trace at most 1. So
    ``||A - B||_F^2 <= ||A||^2 + ||B||^2 <= 2``, and ``||A - B||_2 <= 1``. Hence
    ``||(A - B) V||_F <= sqrt(2) ||V||_2``, and at most ``||V||_2`` for a single direction. The rounding errors of the
    two records add at most ``2 ||E||_F``, where E is the larger of them:

    - *A record of m rows, at most* `longest`. Write ``Y_u = s X_u V + R``, so ``||E||_F = ||X_u^T R||_F <= ||R||_F``.
      If scores are rounded to nearest and not clipped, s = 1 and ``||R||_F <= sqrt(m p) / 2`` steps of ``2^-bits``.
      If scores are clipped, ``Y_u`` is ``t X_u V`` rounded toward zero. For ``t <= 1`` take s = t, with
      ``||R||_F <= sqrt(m p)``. For ``t > 1`` take s = 1. Then ``(t - 1) ||X_u V||_F <= sqrt(m p) / 2``, since rounding
      to nearest made the scores too long. An entry is off by at most one step, or by ``t - 1`` times itself, so
      ``||R||_F <= sqrt(m p + m p / 4)``.
    - *A longer record.* Each of the d p entries of the product is off by at most one step of ``4^-bits``, so
      ``||E||_F <= sqrt(d p) / 4^bits``.

    These bounds need a V of spectral norm at most ``1 + 2^-12``. Otherwise, or where 2 is less, the bound is 2, by the
    triangle inequality. For the other relations the bound is 1, as proved for `MomentProduct`: the contributions of
    short and of long records have norm at most 1, compared in integers.
    """

    name: ClassVar[str] = "replaced_product"
    version: ClassVar[int] = 1

    @property
    def longest(self) -> int:
        """The largest number of rows, at least 1, for which rounded scores change a contribution by at most `rounding`.

        For other relations than replace_one the number is unlimited.
        """
        if self.relation != "replace_one":
            return UNLIMITED
        rows: int = math.floor((self.rounding * 2.0**self.bits / _SCORES) ** 2 / self.directions.shape[1])
        return max(1, rows)

    def sensitivity(self, norm: Norm) -> float:
        """Return the l2 sensitivity, as proved in the Notes section of the class."""
        triangle = MomentProduct.sensitivity(self, norm)
        if self.relation != "replace_one" or not self.is_contraction():
            return triangle
        exact = (1.0 if self.directions.shape[1] == 1 else math.sqrt(2.0)) * self.length
        return min(triangle, (exact + 2.0 * self.error) * _UP)

    @property
    def rounding(self) -> float:
        """The largest allowed change of a record's contribution by rounding of its scores, if it has several rows."""
        return ROUNDING

    @property
    def error(self) -> float:
        """A bound on the norm of the rounding error in the contribution of one record."""
        order, width = self.directions.shape
        scores = _SCORES * math.sqrt(self.longest * width) / 2.0**self.bits
        return max(scores, math.sqrt(order * width) / 4.0**self.bits)

    @property
    def length(self) -> float:
        """The bound on the spectral norm of the directions that `is_contraction` tests."""
        return _LENGTH

    def is_contraction(self) -> bool:
        """Return whether the spectral norm of the directions is at most `length`.

        The squared norm is compared with `length`, which is stricter and so leaves a margin for rounding errors.
        """
        columns = self.directions / 2.0**DIRECTION_BITS
        with one_thread():
            return bool(np.linalg.eigvalsh(columns.T @ columns)[-1] <= _LENGTH)


_ROUNDING = 2.0**-11


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ClippedProduct(ReplacedProduct):
    r"""Sum the contributions of `ReplacedProduct`, each clipped to the norm ``message_clip``.

    Parameters
    ----------
    message_clip : float
        The bound c on the Frobenius norm of a record's contribution, in ``(0, 1]``; rounded down to the grid.

    Notes
    -----
    For add_remove and zero_out the sensitivity is c, compared in integers: ``||X_u^T Y_u|| <= ||X_u|| ||Y_u|| <= c``.

    For replace_one the sensitivity combines `replaced_bound` with the rounding errors that `ReplacedProduct` bounds.
    Record u adds ``M V + E``. Here M is positive semi-definite of trace at most 1, ``||M V|| <= c + ||E||``, and V is a
    contraction up to the factor `length`. A contraction is a block of orthonormal columns in more dimensions, and M can
    be extended to them by zeros. So let V be the first columns of the identity. Write ``M V = [P; S^T]``, and let R be
    the remaining diagonal block of M. Let M', P', S', R' be the matrices of the other record, m and n the norms of
    ``M V`` and ``M' V``, and ``q = sqrt(tr(P P'))``. Then

        ||M V - M' V||^2 = m^2 + n^2 + 2 T,    T = -q^2 - <S, S'>.

    - ``m^2 <= tr(P)``, since the spectral norm of M is at most 1, so ``tr(R) <= 1 - m^2``. As
      ``S = P^(1/2) K R^(1/2)`` for a contraction K,
      ``|<S, S'>| <= ||P'^(1/2) P^(1/2)|| ||R^(1/2) R'^(1/2)|| <= q r`` with ``r = sqrt((1 - m^2) (1 - n^2))``.
    - Case ``q <= m n``. T is at most the largest ``t r - t^2`` for t up to m n. Write ``m = sin(a)`` and
      ``n = sin(b)``. The bound ``m^2 + n^2 + 2 T`` is ``sin(a + b)^2`` if ``tan(a) tan(b) <= 1/2`` (then
      ``a + b < pi / 2``), and otherwise ``(1 + m^2) (1 + n^2) / 2``. Both grow with m and n, so the bound is largest at
      ``m = n = c``.
    - Case ``q > m n``. Here ``|<S, S'>| <= sqrt((m^2 - |P|^2) (n^2 - |P'|^2)) <= m n - |P| |P'| <= m n - q^2``, so the
      bound is ``(m + n)^2 - 4 m^2 n^2``. For ``c^2 <= 1/3`` it grows with m and n, and at ``m = n = c`` it equals the
      bound of the first case. For larger c, let m be the larger of m and n. Up to ``m^2 = 1/2`` the bound is at most
      ``4 m^2 (1 - m^2)``, and beyond that at most ``4 m^4 / (4 m^2 - 1)``. Both are at most ``(1 + m^2)^2 / 2``.

    For a single direction v, ``||(M - M') v|| <= 1`` also holds, since the spectral norm of ``M - M'`` is at most 1.

    References
    ----------
    Ge, Wang, Wang and Liu (2018), Minimax-optimal privacy-preserving sparse PCA in distributed systems. The step is
    theirs; the clipping and its bounds are new and proved above.
    """

    message_clip: float

    name: ClassVar[str] = "clipped_product"
    version: ClassVar[int] = 1

    def __post_init__(self) -> None:
        """Check that ``message_clip`` is at most 1 and at least one grid step."""
        ReplacedProduct.__post_init__(self)
        if not 0 < self.message_clip <= 1 or self.most < 1:
            raise InvalidInput(
                f"message_clip={self.message_clip!r} must be above 0, at least one step of the grid, and at most 1 "
                "(no clipping); 0.25 is usual."
            )

    @property
    def most(self) -> int:
        """The largest norm of the contribution of one record in grid steps: ``message_clip`` rounded down."""
        return math.floor(self.message_clip * self.steps_per_unit)

    @property
    def rounding(self) -> float:
        """The largest allowed change of a record's contribution by rounding of its scores, if it has several rows.

        It is smaller than for `ReplacedProduct`, because clipped contributions are smaller.
        """
        return _ROUNDING

    def sensitivity(self, norm: Norm) -> float:
        """Return the l2 sensitivity, as proved in the Notes section of the class."""
        unclipped = ReplacedProduct.sensitivity(self, norm)
        clip = self.most / self.steps_per_unit
        if self.relation != "replace_one":
            return clip
        if not self.is_contraction():
            return min(unclipped, 2.0 * clip)
        replaced = replaced_bound(min(clip + self.error, 1.0), width=self.directions.shape[1]) * self.length
        return min(unclipped, 2.0 * clip, (replaced + 2.0 * self.error) * _UP)


def replaced_bound(clip: float, *, width: int) -> float:
    """Return a bound on the distance between the contributions of two records, each clipped to norm c (``clip``).

    The contribution of a record X is ``X^T X V`` for ``width`` orthonormal directions V, without rounding. The bound is
    ``2 c sqrt(1 - c^2)`` if ``c^2 <= 1/3``, and otherwise ``(1 + c^2) / sqrt(2)``. For a single direction the bound is
    at most 1. It is proved in the Notes section of `ClippedProduct`.
    """
    square = clip * clip
    bound = 2.0 * clip * math.sqrt(1.0 - square) if 3.0 * square <= 1.0 else (1.0 + square) / math.sqrt(2.0)
    return min(bound, 1.0) if width == 1 else bound
