"""Exact products of a second moment with directions V, for eigensolvers that never form the moment.

`UnroundedProduct` is the exact product ``X^T (X V)`` of clipped rows X. It serves to apply a noisy moment that is
released as an operator. `ExactProduct` is the exact product ``S V`` of a second moment S. The eigensolver inside the
trust boundary uses one such product per pass.
"""

from dataclasses import dataclass, field
from typing import ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from dpca_tasks.errors import InvalidInput
from dpca_tasks.kernels.gridding import SHIFT_BITS
from dpca_tasks.kernels.products import add_exact_products, add_unrounded_products
from dpca_tasks.layouts import Layout
from dpca_tasks.queries.base import Norm, RowSum
from dpca_tasks.queries.recentred_moment import ShiftedMoment, lifted, lowered, moment_around
from dpca_tasks.queries.second_moment import CentredMoment, SecondMoment
from dpca_tasks.records.blocks import Block, RowBlock

DIRECTION_BITS = 15
LOW_BITS = 32

_LARGEST_SQUARE = 2 << (2 * DIRECTION_BITS)  # limit of the squared norm of a column of V: 2, in squared steps
_ROWS_AT_ONCE = 1 << 18
_LOW = np.int64((1 << LOW_BITS) - 1)


def as_words(total: NDArray[np.int64]) -> NDArray[np.int64]:
    """Split integers t into stacked words ``[high, low]`` with ``t = 2^32 high + low`` and ``0 <= low < 2^32``."""
    return np.stack([total >> LOW_BITS, total & _LOW])


def carried(words: NDArray[np.int64]) -> NDArray[np.int64]:
    """Normalise a sum of words ``[high, low]``: carry the part of the low word beyond 32 bits into the high word."""
    low = as_words(words[1])
    return np.stack([words[0] + low[0], low[1]])


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class UnroundedProduct(RowSum):
    r"""Sum ``X_u^T (X_u V)`` over records u, which applies the second moment to directions V, in two 32-bit words.

    Parameters
    ----------
    moment : SecondMoment or CentredMoment
        The query of the second moment, which determines the rows ``X_u`` and their grid.
    directions : integer array of shape (order of the second moment, p)
        The directions V in steps of ``2^-15``, with columns of norm at most ``sqrt 2``.

    Notes
    -----
    Exactness. A row x has norm at most ``2^14`` steps, and a column of V norm below ``2^15.5``. So an entry of ``x V``
    is below ``2^29.5``, and an entry of ``x^T (x V)`` below ``2^43.5``. The sum over ``2^18`` rows is below ``2^61.5``
    and fits an int64. After every ``2^18`` rows, or at the end of a block, the sums are split into a high and a low
    word of 32 bits, and words are added separately. Neither word exceeds 62 bits before ``2^48`` rows, far more than
    the largest supported number of records. So V needs only one word, which is fine enough for any number of features.
    A V of several words would multiply the work.

    Privacy. Nothing is rounded between the two products. So with the noise matrix E, ``(S + E) V`` is a function of V
    and of the noisy second moment ``S + E``. `dpca_tasks.privacy.curator.Curator.release_operator` releases this
    matrix, and adds no further noise to products.
    """

    moment: SecondMoment | CentredMoment
    directions: NDArray[np.integer]

    name: ClassVar[str] = "unrounded_product"
    version: ClassVar[int] = 1
    degree: ClassVar[int] = 2

    def __post_init__(self) -> None:
        """Check that V is small enough that no word can overflow, and convert V to int32."""
        RowSum.__post_init__(self)
        order, columns = self.moment.layout.order, self.directions.astype(np.float64)
        if len(columns) != order or not (np.square(columns).sum(axis=0) <= _LARGEST_SQUARE).all():
            raise InvalidInput(
                f"directions of shape {columns.shape} must have {order} rows and columns of norm at most sqrt 2; "
                "pass orthonormal columns."
            )
        object.__setattr__(self, "directions", self.directions.astype(np.int32))

    @classmethod
    def of(cls, moment: SecondMoment | CentredMoment, directions: NDArray[np.integer]) -> Self:
        """Return the query for the product of a second moment with directions."""
        return cls(
            n_features=moment.n_features,
            clip_norm=moment.clip_norm,
            relation=moment.relation,
            bits=moment.bits,
            moment=moment,
            directions=directions,
        )

    @property
    def plain(self) -> RowSum:
        """The query of the second moment; its rows on the grid are shared by all products."""
        return self.moment

    @property
    def layout(self) -> Layout:
        """The layout of the sum: a vector with the high words of the product, row by row, then its low words."""
        return Layout(kind="vector", order=2 * self.directions.size)

    def sensitivity(self, norm: Norm) -> float:
        """Raise InvalidInput, because noise is never added to this product but to the second moment itself."""
        raise InvalidInput(f"{self.name} cannot be noised; use Curator.release_operator, or the query MomentProduct.")

    def grid(self, block: Block) -> RowBlock:
        """Clip the records of a stored block and round them to the grid of the second moment."""
        return self.moment.grid(block)

    def add(self, block: RowBlock, total: NDArray[np.int64]) -> None:
        """Add the block's products, in steps of ``2^-(2 bits + 15)``."""
        high, low = words = np.zeros((2, self.directions.size), np.int64)
        for first in range(0, block.row_ptr.size - 1, _ROWS_AT_ONCE):
            row_ptr = block.row_ptr[first : first + _ROWS_AT_ONCE + 1]
            add_unrounded_products(block.values, block.indices, row_ptr, self.directions, low)
            high += low >> LOW_BITS
            low &= _LOW
        total += words.reshape(-1)


BITS = 12
"""The bits of the grid of records. No noise is added on this grid, so it affects computing time but not noise."""

EIGENSOLVER_DIRECTION_BITS = 36
LIMBS, LIMB_BITS = 3, 16


def on_direction_grid(columns: NDArray[np.float64], *, shifted: bool) -> NDArray[np.int64]:
    """Round columns to integers in steps of ``2^-36``.

    If ``shifted``, columns are rounded to multiples of ``2^-20``, so that their products with a public mean are exact.
    """
    coarser = SHIFT_BITS if shifted else 0
    return np.rint(columns * 2.0 ** (EIGENSOLVER_DIRECTION_BITS - coarser)).astype(np.int64) << coarser


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ExactProduct(RowSum):
    """Sum ``X_u^T (X_u V)`` over clipped records u exactly, as integers of three 16-bit limbs.

    Parameters
    ----------
    directions : int64 array of shape (n_features, p)
        The directions V in steps of ``2^-36``, with columns of norm 1 up to rounding, as returned by
        `on_direction_grid`. V is secret if it depends on the rows, so the repr hides it.
    shift : int64 array of shape (n_features,), optional
        A public mean to subtract, as for `ShiftedMoment`. In the notation of `ShiftedMoment` the product is then
        ``P^T M P V``, and only the final sum is rounded.

    Notes
    -----
    A row of norm at most ``2^12`` steps times a column of norm ``2^36`` steps is below ``2^49``. So the limbs of this
    score are at most ``2^17`` in magnitude. ``2^33`` rows, the largest supported number, add up to less than ``2^62``.
    Around a mean, ``2^12`` bounds the norm of a row minus the mean, and stored entries are at most ``2^13``, which
    takes one more bit. No noise is ever added to this product. Results computed from it are published only through
    `dpca_tasks.privacy.curator.Curator.perturb`.
    """

    directions: NDArray[np.int64] = field(repr=False)
    shift: NDArray[np.int64] | None = None

    name: ClassVar[str] = "exact_product"
    version: ClassVar[int] = 1
    degree: ClassVar[int] = 2

    def __post_init__(self) -> None:
        """Check that V is small enough that the limbs cannot overflow."""
        RowSum.__post_init__(self)
        _ = self.plain
        columns = self.directions / 2.0**EIGENSOLVER_DIRECTION_BITS
        if self.shift is not None and (self.directions % 2**SHIFT_BITS).any():
            raise InvalidInput("directions around a mean must be multiples of 2^16 steps; use on_direction_grid.")
        if len(columns) != self.n_features or self.bits > BITS or not (np.square(columns).sum(axis=0) < 1.01).all():
            raise InvalidInput(
                f"directions of shape {self.directions.shape} must have n_features={self.n_features} rows and columns "
                f"of norm 1, and bits={self.bits} must be at most {BITS}; pass orthonormal columns."
            )

    @property
    def plain(self) -> SecondMoment | ShiftedMoment:
        """The query of the second moment; its rows on the grid are shared by all products."""
        return moment_around(
            self.shift,
            n_features=self.n_features,
            clip_norm=self.clip_norm,
            relation=self.relation,
            bits=self.bits,
        )

    @property
    def layout(self) -> Layout:
        """The layout of the sum: a vector with the matrix of each limb, row by row, lowest limb first."""
        rows, columns = self.directions.shape
        return Layout(kind="vector", order=LIMBS * (rows + (self.shift is not None)) * columns)

    def sensitivity(self, norm: Norm) -> float:
        """Raise InvalidInput, because noise is never added to this product."""
        raise InvalidInput(f"{self.name} cannot be noised; use the query MomentProduct.")

    def grid(self, block: Block) -> RowBlock:
        """Clip the records of a stored block and round them to the grid of the second moment."""
        return self.plain.grid(block)

    def add(self, block: RowBlock, total: NDArray[np.int64]) -> None:
        """Add the block's products, limb by limb."""
        directions = self.directions if self.shift is None else lifted(self.directions, self.shift)
        limbs = np.zeros((LIMBS, *directions.shape), np.int64)
        add_exact_products(block.values, block.indices, block.row_ptr, directions, LIMB_BITS, limbs)
        total += limbs.ravel()

    def product(self, total: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return ``S V`` of shape (n_features, p) in units of the clip norm, given the limbs that `map` sums.

        The integers are rounded to floats only in this last step.
        """
        limbs = total.reshape(LIMBS, -1, self.directions.shape[1]).astype(np.float64)
        whole = (limbs[2] * 2.0**LIMB_BITS + limbs[1]) * 2.0**LIMB_BITS + limbs[0]
        images = whole * 2.0 ** -(2 * self.bits + EIGENSOLVER_DIRECTION_BITS)
        return images if self.shift is None else lowered(images, self.shift)
