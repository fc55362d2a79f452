"""The third moment of documents along a few public directions: three words of one document, each seen through U."""

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from dpca_tasks.errors import InvalidInput
from dpca_tasks.kernels.word_moments import add_word_cores
from dpca_tasks.layouts import Layout
from dpca_tasks.queries.base import Norm
from dpca_tasks.queries.documents import DocumentsSum
from dpca_tasks.queries.rounded_product import DIRECTION_BITS, is_on_grid
from dpca_tasks.records.blocks import RowBlock
from dpca_tasks.threads import one_thread

_LENGTH = 1.0 + 2.0**-12  # a bound on the spectral norm of U
_UP = 1.0 + 2.0**-48  # covers the rounding of a bound


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class WordTriples(DocumentsSum):
    r"""Sum the core ``A(U, U, U)`` of every document, packed as a cube of order K.

    The tensor A of a document has the shares of its ``l (l - 1) (l - 2)`` ordered triples of words as its entries. It
    is never formed: ``A(U, U, U) = (y y y - 3 Sym(S y) + 2 sum_a c_a u_a u_a u_a) / (l (l - 1) (l - 2))``, with the
    rows ``u_a`` of U, ``y = sum_a c_a u_a`` and ``S = sum_a c_a u_a u_a^T``.

    Parameters
    ----------
    directions : int64 array of shape (n_features, K)
        U in steps of ``2^-24``: entries at most 1 in magnitude, rows of norm at most 2; orthonormal columns in
        practice.
    **others
        As for `DocumentsSum`.

    Notes
    -----
    Sensitivity, in the Frobenius norm of the full cube of K x K x K, where rho is the largest norm of a row of U, or 1
    if that is more. A core is computed from that document and U alone, by sums and products of float64 in a fixed
    order, and rounded to the grid. Then its squares are summed in integers, and compared with
    ``B = floor(4^bits rho^6)``, itself from integers: a longer core is scaled to the bound, rounded toward zero, and
    compared again. So the grid's core G has ``||G||_F <= sqrt(B)`` steps, whatever floats did.

    - *add_remove, zero_out.* ``sqrt(B)`` steps, about ``rho^3``: attained by a document of the one word of the longest
      row.
    - *replace_one*, by a core H: ``2 sqrt(B)`` steps by the triangle inequality. If the spectral norm of U is at most
      ``1 + 2^-12``, also ``||G - H|| <= (1 + 2^-12)^3 sqrt(2) + 2 ||E||``: with s and t in [0, 1] (1 unless a core was
      scaled), ``G = s A(U, U, U) + E`` and ``H = t B(U, U, U) + F``, where the entries of A and B are not negative and
      sum to 1, so ``||s A - t B||_F^2 <= s^2 + t^2 - 2 s t <A, B> <= 2``, and U in three places multiplies a norm by
      at most ``||U||_2^3``.

    The rounding error E: l words at most ``2^16``, and ``|u_a| <= 1`` entry by entry. y is exact, its terms being
    multiples of ``2^-24`` and its sum at most l. With ``e = 2^-53`` the entries of S are off by at most
    ``(l^2 + l) e``, those of the sum of cubes by ``(l^2 + 2 l) e``, and the core's numerator by at most
    ``(12 l^3 + 29 l^2 + 18 l) e``, the last two roundings included. Over ``l (l - 1) (l - 2)`` that is largest for
    l = 3, below ``2^-46``: with at most ``2^28`` steps in a unit, ``2^-18`` of a step. Rounding to nearest adds 1/2 of
    a step, and rounding toward zero 1: ``||E||_F <= (1 + 2^-17) K^(3/2)`` steps.
    """

    directions: NDArray[np.int64]

    name: ClassVar[str] = "word_triples"
    version: ClassVar[int] = 1
    degree: ClassVar[int] = 1

    def __post_init__(self) -> None:
        """Check the parameters."""
        DocumentsSum.__post_init__(self)
        check_directions(self.directions, n_features=self.n_features)
        if self._longest > 4 << 2 * DIRECTION_BITS:  # so that the squares of a core of 2^28 steps fit an int64
            raise InvalidInput("the rows of directions must have a norm of at most 2; pass orthonormal columns.")

    @property
    def layout(self) -> Layout:
        """A symmetric cube over the directions."""
        return Layout(kind="cube", order=self.directions.shape[1])

    @property
    def _longest(self) -> int:
        """The largest squared norm of a row, in squared steps."""
        return int(np.square(self.directions, dtype=np.int64).sum(axis=1).max())

    @property
    def bound(self) -> int:
        """The largest sum of squares of a core, in squared steps."""
        one = 1 << 2 * DIRECTION_BITS
        longest = min(self._longest, one)
        return max(1, longest**3 * (1 << 2 * self.bits) // one**3)

    def sensitivity(self, norm: Norm) -> float:
        """Return the sensitivity that the class notes prove."""
        if norm != "l2":
            raise InvalidInput(f"norm={norm!r} is not stated for triples of words; use noise for the l2 norm.")
        alone = math.sqrt(self.bound) / self.steps_per_unit * _UP
        if self.relation != "replace_one":
            return alone
        if not is_contraction(self.directions):
            return 2.0 * alone
        rounding = (1.0 + 2.0**-17) * self.layout.order**1.5 / self.steps_per_unit
        return float(min(2.0 * alone, (math.sqrt(2.0) * _LENGTH**3 + 2.0 * rounding) * _UP))

    def add(self, block: RowBlock, total: NDArray[np.int64]) -> None:
        """Add the cores of the block's documents."""
        rows = (block.values, block.indices, block.row_ptr)
        add_word_cores(*rows, self.directions / 2.0**DIRECTION_BITS, float(self.steps_per_unit), self.bound, total)

    def map(self, block: RowBlock) -> NDArray[np.int64]:
        """Return the sum of the block's cores."""
        total = np.zeros(self.layout.size, np.int64)
        self.add(block, total)
        return total


def check_directions(directions: NDArray[np.int64], *, n_features: int) -> None:
    """Refuse directions that are not of one row a feature, or off their grid."""
    if directions.ndim != 2 or len(directions) != n_features or directions.shape[1] < 1:
        raise InvalidInput(f"directions of shape {directions.shape} must have {n_features} rows; pass such columns.")
    if directions.dtype.kind != "i" or not is_on_grid(directions):
        raise InvalidInput(
            "directions must be integers of magnitude at most 2^24; put orthonormal columns on their grid."
        )


def is_contraction(directions: NDArray[np.int64]) -> bool:
    """Tell whether the spectral norm is at most ``1 + 2^-12``; testing its square leaves a margin for rounding."""
    columns = directions / 2.0**DIRECTION_BITS
    with one_thread():
        return bool(np.linalg.eigvalsh(columns.T @ columns)[-1] <= _LENGTH)
