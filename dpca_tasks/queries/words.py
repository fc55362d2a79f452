"""Queries over documents: the moments of pairs and triples of words.

The base of queries over documents: one record is one document, its entries are how often it has each word.

The pair moment of documents: how often two words of one document are these two.

The third moment of documents along a few public directions: three words of one document, each seen through U.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from dpca_tasks.errors import InvalidInput
from dpca_tasks.kernels.word_moments import FEWEST_WORDS, add_word_cores, add_word_pairs, count_words
from dpca_tasks.layouts import Layout
from dpca_tasks.queries.base import SQRT_2_UP, Norm, RowSum
from dpca_tasks.queries.rounded_product import DIRECTION_BITS, is_on_grid
from dpca_tasks.records.blocks import Block, CsrBlock, RowBlock
from dpca_tasks.records.gridding import as_floats, canonical
from dpca_tasks.threads import one_thread

LONGEST = 1 << 16
"""The largest bound on the words of a document: up to it all products of counts and steps are exact."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DocumentsSum(RowSum):
    """A sum over documents, in each of which ``n_features`` words of a vocabulary are counted.

    Parameters
    ----------
    words_at_most : int
        L, a public bound on the words of a document, from 3 to 65,536.
    clip_norm : float
        1: counts are never scaled.
    **others
        As for `RowSum`; the sum lies on a grid of step ``2^-bits``.

    Notes
    -----
    A record of several rows is one document, of all their words. A document with a count that is negative, fractional
    or not finite adds nothing, and neither does one of fewer than 3 words or more than ``2^40``. Of a document of
    l > L words L are counted, chosen by it alone: with all its words in a line, in the order of their ids, those with
    which ``floor(i L / l)`` grows, i from 1. So shares of words stay as they are, to less than one word.
    """

    words_at_most: int
    clip_norm: float = 1.0

    def __post_init__(self) -> None:
        """Check the public parameters."""
        RowSum.__post_init__(self)
        if not FEWEST_WORDS <= self.words_at_most <= LONGEST:
            raise InvalidInput(
                f"words_at_most={self.words_at_most} must be from {FEWEST_WORDS} to {LONGEST}; "
                "state a public bound on the words of a document."
            )
        if self.clip_norm != 1.0:
            raise InvalidInput(f"clip_norm={self.clip_norm} must be 1: counts are not scaled; leave it out.")

    def grid(self, block: Block) -> RowBlock:
        """Return the counts of whole documents, cut to `words_at_most`."""
        rows = canonical(block, n_features=self.n_features)
        if rows.record_ptr.size != rows.row_ptr.size or (np.diff(rows.record_ptr) != 1).any():
            rows = canonical(_as_one_row(rows), n_features=self.n_features)
        counts, words, row_ptr = count_words(as_floats(rows.values), rows.indices, rows.row_ptr, self.words_at_most)
        return RowBlock(
            values=counts,
            indices=words,
            row_ptr=row_ptr,
            record_ptr=np.arange(row_ptr.size),
            first_record=block.first_record,
            n_features=self.n_features,
            bits=self.bits,
            density=block.density,
        )


def _as_one_row(rows: Block) -> Block:
    """Put all rows of a record into one; an entry that is no count becomes NaN, so that no other makes up for it."""
    values = as_floats(rows.values)
    is_count = (values >= 0) & (values == np.floor(values))
    return CsrBlock(
        values=np.where(is_count, values, np.nan),
        indices=rows.indices,
        row_ptr=rows.row_ptr[rows.record_ptr],
        record_ptr=np.arange(rows.record_ptr.size),
        first_record=rows.first_record,
        density=rows.density,
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class WordPairs(DocumentsSum):
    r"""Sum ``(c c^T - diag c) / (l (l - 1))`` over documents of counts c and l words, packed as an upper triangle.

    Notes
    -----
    The entries of a document's matrix M are shares of its ``l (l - 1)`` ordered pairs of words. Each is rounded toward
    zero to the grid by a division of integers, ``floor(2^bits N / (l (l - 1)))`` with N below ``2^32``: the same in any
    block and on any machine. So M has entries that are not negative and sum to at most 1, exactly.

    Sensitivity, in the Frobenius norm of the full matrix:

    - *add_remove, zero_out.* ``||M||_F <= sum of entries <= 1``, attained by a document of one word, many times.
    - *replace_one*, by a document of matrix N: ``||M - N||_F^2 = ||M||^2 + ||N||^2 - 2 <M, N> <= 2``, since no product
      of entries is negative; attained by documents of one word each, of two words.

    Rounding loses less than one step of each entry, and an entry is at least ``2^bits / (l (l - 1))`` steps.
    """

    name: ClassVar[str] = "word_pairs"
    version: ClassVar[int] = 1
    degree: ClassVar[int] = 1

    @property
    def layout(self) -> Layout:
        """A symmetric matrix over the vocabulary."""
        return Layout(kind="symmetric", order=self.n_features)

    @property
    def largest_loss(self) -> float:
        """The largest share that the grid takes of a document's matrix, of the longest documents; public."""
        return min(1.0, self.words_at_most * (self.words_at_most - 1) / self.steps_per_unit)

    def sensitivity(self, norm: Norm) -> float:
        """Return the sensitivity that the class notes prove."""
        if norm != "l2":
            raise InvalidInput(f"norm={norm!r} is not stated for pairs of words; use noise for the l2 norm.")
        return SQRT_2_UP if self.relation == "replace_one" else 1.0

    def add(self, block: RowBlock, total: NDArray[np.int64]) -> None:
        """Add the pairs of the block's documents."""
        add_word_pairs(block.values, block.indices, block.row_ptr, self.n_features, self.steps_per_unit, total)

    def map(self, block: RowBlock) -> NDArray[np.int64]:
        """Return the sum of the block's pairs."""
        total = np.zeros(self.layout.size, np.int64)
        self.add(block, total)
        return total


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
