"""Products X^T (X V) of clipped records or clipped contributions with public directions.

- `MomentProduct` is the product X^T (X V) of clipped records with public directions V: one step of a power method.
- `ReplacedProduct` is rounded so that its sensitivity for replaced records is proved near sqrt 2 instead of 2.
- `ClippedProduct` has contributions clipped to a norm below 1: less noise, the same directions.

For a Gaussian row x the clipped contribution has mean ``Sigma V M`` with M positive definite, by Stein's lemma. So its
columns span the same space as the columns of ``Sigma V``; for other rows clipping is a robust weighting.
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
    """Return whether entries are at most 1 in magnitude, without taking the magnitude of the least int64."""
    return bool(directions.min() >= -(2**DIRECTION_BITS) and directions.max() <= 2**DIRECTION_BITS)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MomentProduct(RowSum):
    r"""Sum ``X_u^T Y_u`` over records u, where ``Y_u`` is ``X_u V`` on the grid, clipped to norm 1.

    Parameters
    ----------
    directions : int64 array of shape (n_features, p)
        V in steps of ``2^-24``, entries at most 1 in magnitude; orthonormal columns in practice.

    Notes
    -----
    Sensitivity. ``||X_u||_F <= 1`` by the grid, ``||Y_u||_F <= 1`` by the clip in integers, so
    ``||X_u^T Y_u||_F <= 1``: the l2 sensitivity is 1 for add_remove and zero_out. For replace_one it is 2 by the
    triangle inequality. The sharper ``sqrt 2`` of the unrounded map does not hold after the scores of records of many
    rows are rounded; `ReplacedProduct` rounds those differently. The proof uses no property of V. Every ``Y_u`` is a
    function of that record and V only: exact integer products, an integer rounding rule, and one division and square
    root in a fixed order.

    References
    ----------
    Hardt and Price (2014), The noisy power method, Algorithm 1; Hardt and Roth (2013).
    """

    directions: NDArray[np.int64]

    name: ClassVar[str] = "moment_product"
    version: ClassVar[int] = 1
    degree: ClassVar[int] = 2

    def __post_init__(self) -> None:
        """Check that scores are exact in floats: a row's norm times a column's is at most ``2^52``."""
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
        """The matrix as a vector, row by row."""
        return Layout(kind="vector", order=self.directions.size)

    @property
    def longest(self) -> int:
        """The largest number of rows of a record with rounded scores; for longer records the product is rounded."""
        return UNLIMITED

    @property
    def most(self) -> int:
        """The largest norm of a record's contribution, in steps."""
        return self.steps_per_unit

    def sensitivity(self, norm: Norm) -> float:
        """Return the sensitivity that the class notes prove."""
        if norm != "l2":
            raise InvalidInput(f"norm={norm!r} is not stated for the moment product; use Gaussian noise (l2).")
        return 2.0 if self.relation == "replace_one" else 1.0

    def add(self, block: RowBlock, total: NDArray[np.int64]) -> None:
        """Add the block's products, in steps of ``4^-bits``."""
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
"""Largest change of a record's contribution by rounded scores; with a coarse grid, one row may exceed it."""

_LENGTH = 1.0 + 2.0**-12  # a bound on the spectral norm of V
_SCORES = 1.25  # root mean square change of a score by rounding and clipping, in steps: (1 + 1/4) ** (1/2), rounded up
_UP = 1.0 + 2.0**-50  # covers the rounding of a bound


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ReplacedProduct(MomentProduct):
    r"""Sum ``X_u^T Y_u`` over records u of few rows, and the rounded ``X_u^T X_u V`` over the others.

    Parameters
    ----------
    directions : int64 array of shape (n_features, p)
        V, as for `MomentProduct`; of spectral norm about 1.

    Notes
    -----
    Sensitivity for replace_one, in l2. Record u adds ``s M_u V + E_u``. Here ``M_u = X_u^T X_u``, s in [0, 1] is 1
    unless something was clipped, and E is the rounding error. ``A = s M_u`` and the B of another record are positive
    semi-definite with trace at most 1, so ``||A - B||_F^2 <= ||A||^2 + ||B||^2 <= 2``, and ``||A - B||_2 <= 1``. Hence
    ``||(A - B) V||_F <= sqrt(2) ||V||_2``, and ``||V||_2`` for a single direction. The rounding errors of two records
    add at most ``2 ||E||_F``:

    - *A record of m rows, at most* `longest`. With ``Y_u = s X_u V + R``, ``||E||_F = ||X_u^T R||_F <= ||R||_F``.
      Scores rounded to nearest, with s = 1, have ``||R||_F <= sqrt(m p) / 2`` steps of ``2^-bits``. Clipped scores are
      those of ``t X_u V`` rounded toward zero. For ``t <= 1`` take s = t, and ``||R||_F <= sqrt(m p)``. For ``t > 1``
      take s = 1: here ``(t - 1) ||X_u V||_F <= sqrt(m p) / 2``, since rounding to nearest made the scores too long,
      and an entry is off by at most 1, or by ``t - 1`` of itself: ``||R||_F <= sqrt(m p + m p / 4)``.
    - *Any other.* Its d p entries are off by at most 1 step of ``4^-bits`` each: ``||E||_F <= sqrt(d p) / 4^bits``.

    The spectral norm of V must be at most 1 + 2^-12. If it is not, or if 2 is smaller, the bound is 2, by the triangle
    inequality. For the other relations the bound is 1, as proved for `MomentProduct`: contributions of both kinds have
    norm at most 1, compared in integers.
    """

    name: ClassVar[str] = "replaced_product"
    version: ClassVar[int] = 1

    @property
    def longest(self) -> int:
        """The largest number of rows whose rounded scores change a contribution by at most `rounding`; at least 1."""
        if self.relation != "replace_one":
            return UNLIMITED
        rows: int = math.floor((self.rounding * 2.0**self.bits / _SCORES) ** 2 / self.directions.shape[1])
        return max(1, rows)

    def sensitivity(self, norm: Norm) -> float:
        """Return the sensitivity that the class notes prove."""
        triangle = MomentProduct.sensitivity(self, norm)
        if self.relation != "replace_one" or not self.is_contraction():
            return triangle
        exact = (1.0 if self.directions.shape[1] == 1 else math.sqrt(2.0)) * self.length
        return min(triangle, (exact + 2.0 * self.error) * _UP)

    @property
    def rounding(self) -> float:
        """The largest change of a record's contribution by rounded scores of several rows."""
        return ROUNDING

    @property
    def error(self) -> float:
        """A bound on the norm of one record's rounding error."""
        order, width = self.directions.shape
        scores = _SCORES * math.sqrt(self.longest * width) / 2.0**self.bits
        return max(scores, math.sqrt(order * width) / 4.0**self.bits)

    @property
    def length(self) -> float:
        """The bound on the spectral norm of V that `is_contraction` tests."""
        return _LENGTH

    def is_contraction(self) -> bool:
        """Return whether the spectral norm of V is at most `length`, tested by its square as a margin for rounding."""
        columns = self.directions / 2.0**DIRECTION_BITS
        with one_thread():
            return bool(np.linalg.eigvalsh(columns.T @ columns)[-1] <= _LENGTH)


_ROUNDING = 2.0**-11


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ClippedProduct(ReplacedProduct):
    r"""Sum the contributions of `ReplacedProduct`, each clipped to a norm.

    Parameters
    ----------
    message_clip : float
        The bound c on the Frobenius norm of a record's contribution, in ``(0, 1]``; rounded down to the grid.

    Notes
    -----
    For add_remove and zero_out the sensitivity is c, compared in integers: ``||X_u^T Y_u|| <= ||X_u|| ||Y_u|| <= c``.

    For replace_one it combines `replaced_bound` with the rounding errors that `ReplacedProduct` bounds. There record u
    adds ``M V + E``: M is positive semi-definite of trace at most 1, ``||M V|| <= c + ||E||``, and V is a contraction
    up to a factor `length`. A contraction is a block of orthonormal columns in more dimensions, where M has zeros. So
    let V be the first columns of the identity, with blocks ``M V = [P; S^T]`` and R the remaining diagonal block of M.
    Let P', S', R' be the blocks of another record, m and n the norms of ``M V`` and ``M' V``, and
    ``q = sqrt(tr(P P'))``. Then

        ||M V - M' V||^2 = m^2 + n^2 + 2 T,    T = -q^2 - <S, S'>.

    - ``m^2 <= tr(P)``, since M is at most 1; so ``tr(R) <= 1 - m^2``. As ``S = P^(1/2) K R^(1/2)`` for a contraction K,
      ``|<S, S'>| <= ||P'^(1/2) P^(1/2)|| ||R^(1/2) R'^(1/2)|| <= q r`` with ``r = sqrt((1 - m^2) (1 - n^2))``.
    - If ``q <= m n``, then T is at most the largest ``t r - t^2`` for t up to m n. With ``m = sin(a)``, ``n = sin(b)``
      the bound ``m^2 + n^2 + 2 T`` is ``sin(a + b)^2`` where ``tan(a) tan(b) <= 1/2`` (then ``a + b < pi / 2``), and
      ``(1 + m^2) (1 + n^2) / 2`` elsewhere. Both grow with m and n, so it is largest at ``m = n = c``.
    - If ``q > m n``: ``|<S, S'>| <= sqrt((m^2 - |P|^2) (n^2 - |P'|^2)) <= m n - |P| |P'| <= m n - q^2``, so that the
      bound is ``(m + n)^2 - 4 m^2 n^2``. For ``c^2 <= 1/3`` it grows with m and n, and at ``m = n = c`` it equals the
      bound of the case ``q <= m n``. For larger c, let m be the larger of the two. Up to ``m^2 = 1/2`` the bound is at
      most ``4 m^2 (1 - m^2)``, beyond that at most ``4 m^4 / (4 m^2 - 1)``, both at most ``(1 + m^2)^2 / 2``.

    For one direction also ``||(M - M') v|| <= 1``, since the spectral norm of ``M - M'`` is at most 1.

    References
    ----------
    Ge, Wang, Wang and Liu (2018), Minimax-optimal privacy-preserving sparse PCA in distributed systems, for the step;
    the clipping and its bounds are proved here.
    """

    message_clip: float

    name: ClassVar[str] = "clipped_product"
    version: ClassVar[int] = 1

    def __post_init__(self) -> None:
        """Check that the bound is at least one step of the grid."""
        ReplacedProduct.__post_init__(self)
        if not 0 < self.message_clip <= 1 or self.most < 1:
            raise InvalidInput(
                f"message_clip={self.message_clip!r} must be above 0, at least one step of the grid, and at most 1 "
                "(no clipping); 0.25 is usual."
            )

    @property
    def most(self) -> int:
        """The largest norm of a record's contribution, in steps: the clip rounded down."""
        return math.floor(self.message_clip * self.steps_per_unit)

    @property
    def rounding(self) -> float:
        """The largest change of a contribution by rounded scores of several rows; it is small, as contributions are."""
        return _ROUNDING

    def sensitivity(self, norm: Norm) -> float:
        """Return the sensitivity that the class notes prove."""
        unclipped = ReplacedProduct.sensitivity(self, norm)
        clip = self.most / self.steps_per_unit
        if self.relation != "replace_one":
            return clip
        if not self.is_contraction():
            return min(unclipped, 2.0 * clip)
        replaced = replaced_bound(min(clip + self.error, 1.0), width=self.directions.shape[1]) * self.length
        return min(unclipped, 2.0 * clip, (replaced + 2.0 * self.error) * _UP)


def replaced_bound(clip: float, *, width: int) -> float:
    """Return the largest distance of the exact contributions of two records to ``width`` directions, each clipped.

    It is ``2 c sqrt(1 - c^2)`` up to ``c^2 = 1/3``, then ``(1 + c^2) / sqrt(2)``; at most 1 for one direction.
    """
    square = clip * clip
    bound = 2.0 * clip * math.sqrt(1.0 - square) if 3.0 * square <= 1.0 else (1.0 + square) / math.sqrt(2.0)
    return min(bound, 1.0) if width == 1 else bound
