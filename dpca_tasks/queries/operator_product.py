"""Exact products of a second moment with directions, for released operators and the eigensolver.

`UnroundedProduct` is the exact product X^T (X V) of clipped records with integer V: one application of a released
operator. `ExactProduct` is the exact product S V of a second moment S: one pass of the eigensolver inside the trust
boundary.
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

_LARGEST_SQUARE = 2 << (2 * DIRECTION_BITS)  # of a column: twice that of norm 1
_ROWS_AT_ONCE = 1 << 18
_LOW = np.int64((1 << LOW_BITS) - 1)


def as_words(total: NDArray[np.int64]) -> NDArray[np.int64]:
    """Split integers t into two words, ``t = 2^32 high + low`` with low in ``0 .. 2^32 - 1``, stacked."""
    return np.stack([total >> LOW_BITS, total & _LOW])


def carried(words: NDArray[np.int64]) -> NDArray[np.int64]:
    """Normalise a sum of words: carry the overflow of the low word to the high one."""
    low = as_words(words[1])
    return np.stack([words[0] + low[0], low[1]])


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class UnroundedProduct(RowSum):
    r"""Sum ``X_u^T (X_u V)`` over records u in two words, which applies the matrix of a moment to V.

    Parameters
    ----------
    moment : SecondMoment or CentredMoment
        The query of the matrix, which determines records and grid.
    directions : integer array of shape (order of the matrix, p)
        V in steps of ``2^-15``, with columns of norm at most ``sqrt 2``.

    Notes
    -----
    Exactness. A row of norm at most ``2^b <= 2^14`` steps times a column of norm below ``2^15.5`` is below ``2^29.5``,
    and an entry of ``x^T (x V)`` below ``2^43.5``. So ``2^18`` rows add up to less than ``2^61.5`` in an int64. Then
    the sums are split into a high and a low word of 32 bits, and words are added. With one split for every ``2^18``
    rows or block, neither word exceeds 62 bits before ``2^48`` rows, far beyond the capacity of the design. So V needs
    one word, fine enough for any number of features, and only the sum needs two; a V of several words would multiply
    the work. Nothing is rounded between the products, so ``(S + E) V`` is a function of V and of one matrix ``S + E``.
    That matrix is released by `dpca_tasks.privacy.curator.Curator.release_operator`; no noise is added to the product.
    """

    moment: SecondMoment | CentredMoment
    directions: NDArray[np.integer]

    name: ClassVar[str] = "unrounded_product"
    version: ClassVar[int] = 1
    degree: ClassVar[int] = 2

    def __post_init__(self) -> None:
        """Check that no word can overflow, and convert V to int32."""
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
        """Return the product of a moment's matrix with directions."""
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
        """The moment, whose gridded rows are shared by all products."""
        return self.moment

    @property
    def layout(self) -> Layout:
        """The high words, then the low words, each row by row."""
        return Layout(kind="vector", order=2 * self.directions.size)

    def sensitivity(self, norm: Norm) -> float:
        """Raise InvalidInput, because the noise is added to the moment instead."""
        raise InvalidInput(f"{self.name} has no noise itself; use release_operator, or moment_product.")

    def grid(self, block: Block) -> RowBlock:
        """Convert records to the grid of the moment."""
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
"""Grid of the records. No noise is added on this grid, so it affects the work but not the noise."""

EIGENSOLVER_DIRECTION_BITS = 36
LIMBS, LIMB_BITS = 3, 16


def on_direction_grid(columns: NDArray[np.float64], *, shifted: bool) -> NDArray[np.int64]:
    """Round columns to steps of ``2^-36``; if `shifted`, to ``2^-20``, so that products with a mean are exact."""
    coarser = SHIFT_BITS if shifted else 0
    return np.rint(columns * 2.0 ** (EIGENSOLVER_DIRECTION_BITS - coarser)).astype(np.int64) << coarser


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ExactProduct(RowSum):
    """Sum ``X_u^T (X_u V)`` over clipped records u, as three limbs of 16 bits.

    Parameters
    ----------
    directions : int64 array of shape (n_features, p)
        V in steps of ``2^-36``, with columns of norm 1 up to rounding, as returned by `on_direction_grid`. Secret where
        V depends on the rows; the repr hides it.
    shift : int64 array of shape (n_features,), optional
        A public mean to subtract, as for `ShiftedMoment`. The product is then ``P^T M P V``, and only its sum is
        rounded.

    Notes
    -----
    A row of norm at most ``2^12`` steps times a column of norm ``2^36`` is below ``2^49``. So its limbs are at most
    ``2^17`` in magnitude, and ``2^33`` rows, the capacity of the design, add up to less than ``2^62``. Around a mean
    the norm is the norm of ``Z_u P``; the stored entries are at most ``2^13``, which takes one more bit. The product
    has no noisy release: results computed from it are published only through
    `dpca_tasks.privacy.curator.Curator.perturb`.
    """

    directions: NDArray[np.int64] = field(repr=False)
    shift: NDArray[np.int64] | None = None

    name: ClassVar[str] = "exact_product"
    version: ClassVar[int] = 1
    degree: ClassVar[int] = 2

    def __post_init__(self) -> None:
        """Check that the limbs cannot overflow."""
        RowSum.__post_init__(self)
        _ = self.plain
        columns = self.directions / 2.0**EIGENSOLVER_DIRECTION_BITS
        if self.shift is not None and (self.directions % 2**SHIFT_BITS).any():
            raise InvalidInput("directions around a mean must be multiples of 2^16 steps; use on_direction_grid.")
        if len(columns) != self.n_features or self.bits > BITS or not (np.square(columns).sum(axis=0) < 1.01).all():
            raise InvalidInput(
                f"directions of shape {self.directions.shape} at bits={self.bits} must have n_features="
                f"{self.n_features} rows, columns of norm 1 and at most {BITS} bits; pass orthonormal columns."
            )

    @property
    def plain(self) -> SecondMoment | ShiftedMoment:
        """The moment whose matrix is applied; its gridded rows are shared by all products."""
        return moment_around(
            self.shift,
            n_features=self.n_features,
            clip_norm=self.clip_norm,
            relation=self.relation,
            bits=self.bits,
        )

    @property
    def layout(self) -> Layout:
        """The limbs one after another, each a matrix row by row."""
        rows, columns = self.directions.shape
        return Layout(kind="vector", order=LIMBS * (rows + (self.shift is not None)) * columns)

    def sensitivity(self, norm: Norm) -> float:
        """Raise InvalidInput, because limbs have no useful sensitivity."""
        raise InvalidInput(f"{self.name} has no noisy release; use moment_product.")

    def grid(self, block: Block) -> RowBlock:
        """Convert records to the grid of the moment."""
        return self.plain.grid(block)

    def add(self, block: RowBlock, total: NDArray[np.int64]) -> None:
        """Add the block's products, limb by limb."""
        directions = self.directions if self.shift is None else lifted(self.directions, self.shift)
        limbs = np.zeros((LIMBS, *directions.shape), np.int64)
        add_exact_products(block.values, block.indices, block.row_ptr, directions, LIMB_BITS, limbs)
        total += limbs.ravel()

    def product(self, total: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return ``S V`` of shape (n_features, p) in units of the clip norm, rounded to floats at the end."""
        limbs = total.reshape(LIMBS, -1, self.directions.shape[1]).astype(np.float64)
        whole = (limbs[2] * 2.0**LIMB_BITS + limbs[1]) * 2.0**LIMB_BITS + limbs[0]
        images = whole * 2.0 ** -(2 * self.bits + EIGENSOLVER_DIRECTION_BITS)
        return images if self.shift is None else lowered(images, self.shift)
