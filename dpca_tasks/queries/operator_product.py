"""The product X^T (X V) of clipped records with integer V, not rounded anywhere: a pass over a noised operator."""

from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from dpca_tasks.errors import InvalidInput
from dpca_tasks.kernels.products import add_unrounded_products
from dpca_tasks.layouts import Layout
from dpca_tasks.queries.augmented_moment import CentredMoment
from dpca_tasks.queries.base import Norm, RowSum
from dpca_tasks.queries.second_moment import SecondMoment
from dpca_tasks.records.blocks import Block, RowBlock

DIRECTION_BITS = 15
LOW_BITS = 32

_LARGEST_SQUARE = 2 << (2 * DIRECTION_BITS)  # of a column: twice what norm 1 has
_ROWS_AT_ONCE = 1 << 18
_LOW = np.int64((1 << LOW_BITS) - 1)


def as_words(total: NDArray[np.int64]) -> NDArray[np.int64]:
    """Split integers t into two words, ``t = 2^32 high + low`` with low in ``0 .. 2^32 - 1``, stacked."""
    return np.stack([total >> LOW_BITS, total & _LOW])


def carried(words: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the one pair of words of a sum of words: the carry of the lower ones goes to the higher ones."""
    low = as_words(words[1])
    return np.stack([words[0] + low[0], low[1]])


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class UnroundedProduct(RowSum):
    r"""Sum ``X_u^T (X_u V)`` over records u, in two words: the moment's own matrix, applied to V.

    Parameters
    ----------
    moment : SecondMoment or CentredMoment
        Whose matrix it is; its records, on its grid.
    directions : integer array of shape (order of the matrix, p)
        V in steps of ``2^-15``, columns of norm at most ``sqrt 2``.

    Notes
    -----
    Exactness. A row of norm at most ``2^b <= 2^14`` steps times a column of norm below ``2^15.5`` is below ``2^29.5``,
    and an entry of ``x^T (x V)`` below ``2^43.5``; ``2^18`` rows add up to less than ``2^61.5`` in an int64. Then they
    are split into a high and a low word of 32 bits, and words are added: with one split for every ``2^18`` rows
    or block, neither leaves 62 bits before ``2^48`` rows, far beyond the capacity of the design. So V needs one word,
    fine enough for any number of features, and the sum two, instead of a V in several words that would all be
    multiplied.

    Nothing is rounded between the products, so that ``(S + E) V`` is a function of V and of one matrix ``S + E``: it
    is released as such, by `dpca_tasks.privacy.curator.Curator.release_operator`, and not with a noise of its own.
    """

    moment: SecondMoment | CentredMoment
    directions: NDArray[np.integer]

    name: ClassVar[str] = "unrounded_product"
    version: ClassVar[int] = 1
    degree: ClassVar[int] = 2

    def __post_init__(self) -> None:
        """Check that no word can overflow, and narrow V."""
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
        """Multiply a moment's matrix by directions."""
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
        """The moment: its rows, on its grid, serve every product."""
        return self.moment

    @property
    def layout(self) -> Layout:
        """The higher words, then the lower ones, each row by row."""
        return Layout(kind="vector", order=2 * self.directions.size)

    def sensitivity(self, norm: Norm) -> float:
        """Refuse: it is the moment that is noised."""
        raise InvalidInput(f"{self.name} has no noise of its own; use release_operator, or moment_product.")

    def grid(self, block: Block) -> RowBlock:
        """Put records on the moment's grid."""
        return self.moment.grid(block)

    def map(self, block: RowBlock) -> NDArray[np.int64]:
        """Add the block's products, in steps of ``2^-(2 bits + 15)``."""
        high, low = words = np.zeros((2, self.directions.size), np.int64)
        for first in range(0, block.row_ptr.size - 1, _ROWS_AT_ONCE):
            row_ptr = block.row_ptr[first : first + _ROWS_AT_ONCE + 1]
            add_unrounded_products(block.values, block.indices, row_ptr, self.directions, low)
            high += low >> LOW_BITS
            low &= _LOW
        return words.reshape(-1)
