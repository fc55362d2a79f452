"""Moments of documents and points: pairs and triples of words, and triples along public directions.

- `DocumentsSum` is the base class for documents: one record is one document, whose entries count each word.
- `WordPairs` is the pair moment of documents: the frequency of each pair of words within a document.
- `WordTriples` is the third moment of documents along a few public directions U, over three words of a document.
- `PointTriples` is the third moment of points along a few public directions, without the part of spherical noise.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from dpca_tasks.errors import InvalidInput
from dpca_tasks.kernels.word_moments import (
    FEWEST_WORDS,
    add_point_cores,
    add_word_cores,
    add_word_pairs,
    count_words,
    first_row_scores,
)
from dpca_tasks.layouts import Layout
from dpca_tasks.queries.base import SQRT_2_UP, Norm, RowSum
from dpca_tasks.queries.rounded_product import DIRECTION_BITS, is_on_grid
from dpca_tasks.records.blocks import Block, CsrBlock, RowBlock, as_floats, canonical, grid_block
from dpca_tasks.threads import one_thread

LONGEST = 1 << 16
"""Largest bound on the words of a document; up to it all products of counts and steps are exact."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DocumentsSum(RowSum):
    """A sum over documents, each of which has counts of the ``n_features`` words of a vocabulary.

    Parameters
    ----------
    words_at_most : int
        L, a public bound on the words of a document, from 3 to 65,536.
    clip_norm : float
        1: counts are never scaled.
    **others
        As for `RowSum`; the sum is on a grid of step ``2^-bits``.

    Notes
    -----
    A record of several rows is one document that contains all their words. A document with a count that is negative,
    fractional or not finite adds nothing, and neither does one of fewer than 3 words or more than ``2^40``. Of a
    document of l > L words, L are counted, and only the document determines which. List all l words in the order of
    their ids; word i, counted from 1, is kept if ``floor(i L / l)`` increases at i. So the shares of words change by
    less than one word.
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
    """Merge all rows of a record into one; an invalid count becomes NaN, so that no other entry compensates for it."""
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
    zero to the grid by a division of integers, ``floor(2^bits N / (l (l - 1)))`` with N below ``2^32``. The result is
    the same in any block and on any machine. So M has entries that are not negative and sum to at most 1, exactly.

    Sensitivity, in the Frobenius norm of the full matrix:

    - *add_remove, zero_out.* ``||M||_F <= sum of entries <= 1``, attained by a document that repeats one word.
    - *replace_one*, by a document of matrix N: ``||M - N||_F^2 = ||M||^2 + ||N||^2 - 2 <M, N> <= 2``, since no product
      of entries is negative. It is attained by two documents that repeat one word each, a different one.

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
        """The largest share of the matrix of a longest document that is lost by rounding to the grid; public."""
        return min(1.0, self.words_at_most * (self.words_at_most - 1) / self.steps_per_unit)

    def sensitivity(self, norm: Norm) -> float:
        """Return the sensitivity that the class notes prove."""
        if norm != "l2":
            raise InvalidInput(f"norm={norm!r} is not stated for pairs of words; use noise for the l2 norm.")
        return SQRT_2_UP if self.relation == "replace_one" else 1.0

    def add(self, block: RowBlock, total: NDArray[np.int64]) -> None:
        """Add the pairs of the block's documents."""
        add_word_pairs(block.values, block.indices, block.row_ptr, self.n_features, self.steps_per_unit, total)


_LENGTH = 1.0 + 2.0**-12  # a bound on the spectral norm of U
_UP = 1.0 + 2.0**-48  # covers the rounding of a bound


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class WordTriples(DocumentsSum):
    r"""Sum the core ``A(U, U, U)`` of every document, packed as a cube of order K.

    The entries of the tensor A of a document are the shares of its ``l (l - 1) (l - 2)`` ordered triples of words. The
    tensor is never formed: ``A(U, U, U) = (y y y - 3 Sym(S y) + 2 sum_a c_a u_a u_a u_a) / (l (l - 1) (l - 2))``, with
    the rows ``u_a`` of U, ``y = sum_a c_a u_a`` and ``S = sum_a c_a u_a u_a^T``.

    Parameters
    ----------
    directions : int64 array of shape (n_features, K)
        U in steps of ``2^-24``: entries at most 1 in magnitude, rows of norm at most 2; orthonormal columns in
        practice.
    **others
        As for `DocumentsSum`.

    Notes
    -----
    Sensitivity, in the Frobenius norm of the full cube of K x K x K. Let rho be the largest norm of a row of U, or 1 if
    that is more. A core is computed from that document and U alone, by sums and products of float64 in a fixed
    order, and rounded to the grid. Then its squares are summed in integers, and compared with
    ``B = floor(4^bits rho^6)``, which is computed from integers too. A longer core is scaled to the bound, rounded
    toward zero, and compared again. So the core G on the grid has ``||G||_F <= sqrt(B)`` steps, whatever the floats
    were.

    - *add_remove, zero_out.* ``sqrt(B)`` steps, about ``rho^3``: attained by a document that repeats the word of the
      longest row.
    - *replace_one*, by a core H: ``2 sqrt(B)`` steps by the triangle inequality. If the spectral norm of U is at most
      ``1 + 2^-12``, also ``||G - H|| <= (1 + 2^-12)^3 sqrt(2) + 2 ||E||``. With s and t in [0, 1] (1 unless a core was
      scaled), ``G = s A(U, U, U) + E`` and ``H = t B(U, U, U) + F``. The entries of A and B are not negative and sum to
      1, so ``||s A - t B||_F^2 <= s^2 + t^2 - 2 s t <A, B> <= 2``. Multiplication by U in three places increases a norm
      by at most the factor ``||U||_2^3``.

    The rounding error E. There are l words, at most ``2^16``, and ``|u_a| <= 1`` entry by entry. y is exact, because
    its terms are multiples of ``2^-24`` and its sum is at most l. With ``e = 2^-53`` the entries of S are off by at
    most ``(l^2 + l) e``, and those of the sum of cubes by ``(l^2 + 2 l) e``. The core's numerator is off by at most
    ``(12 l^3 + 29 l^2 + 18 l) e``, the last two roundings included. Over ``l (l - 1) (l - 2)`` that is largest for l =
    3, below ``2^-46``: with at most ``2^28`` steps in a unit, ``2^-18`` of a step. Rounding to nearest adds 1/2 of a
    step, and rounding toward zero 1: ``||E||_F <= (1 + 2^-17) K^(3/2)`` steps.
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


def check_directions(directions: NDArray[np.int64], *, n_features: int) -> None:
    """Check that directions have one row per feature and are on their grid."""
    if directions.ndim != 2 or len(directions) != n_features or directions.shape[1] < 1:
        raise InvalidInput(f"directions of shape {directions.shape} must have {n_features} rows; pass such columns.")
    if directions.dtype.kind != "i" or not is_on_grid(directions):
        raise InvalidInput(
            "directions must be integers of magnitude at most 2^24; put orthonormal columns on their grid."
        )


def is_contraction(directions: NDArray[np.int64]) -> bool:
    """Return whether the spectral norm is at most ``1 + 2^-12``; testing its square leaves a margin for rounding."""
    columns = directions / 2.0**DIRECTION_BITS
    with one_thread():
        return bool(np.linalg.eigvalsh(columns.T @ columns)[-1] <= _LENGTH)


SCORE_BITS = 18
"""Binary logarithm of the number of steps of the bound of scores, ``2^18``."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PointTriples(RowSum):
    r"""Sum ``y y y - s2 Sym3(y)`` over points x, with ``y = U^T x`` clipped to ``score_norm``, as a cube of order K.

    ``Sym3(y)_pqr = y_p [q = r] + y_q [p = r] + y_r [p = q]``. Times s2 it is the contribution of noise of variance s2
    in every direction to the third moment.

    Parameters
    ----------
    directions : int64 array of shape (n_features, K)
        U in steps of ``2^-24``, entries at most 1 in magnitude; orthonormal columns in practice.
    score_norm : float, data units
        R, the bound on ``|y|``; longer scores are scaled down to it.
    noise_variance : float, squared data units
        s2, public or released, at most ``2 / (K + 2)`` and at most half of ``R^2``. Both this and `score_norm` are
        stored as arrays, because they are public inputs like the directions: a resumed release takes them as an earlier
        run stored them.
    clip_norm : float
        1: points themselves are not clipped.
    **others
        As for `RowSum`; the sum is on a grid of step ``2^-bits`` in units of ``R^3``.

    Notes
    -----
    Only the first row of a record is read, whatever the record holds; jobs refuse datasets whose records may have more.
    A point with a value that is not finite, or so large that its scores are not, adds nothing.

    Sensitivity, in units of ``R^3`` and in the Frobenius norm of the full cube. The scores of a point are computed from
    that point and U alone, in a fixed order, and rounded to a grid of ``2^18`` steps in R. There their squares are
    compared with the bound in integers: ``|y| <= 1``. s2 is on a grid of step ``2^-36``. So
    ``f(y) = y y y - s2 Sym3(y)`` is an integer multiple of ``2^-54``, computed exactly, and only then rounded toward
    zero, which increases no norm.

    - ``|f(y)|^2 = r^6 - 6 s2 r^4 + (3 K + 6) s2^2 r^2`` with ``r = |y|``, since ``<y y y, Sym3(y)> = 3 r^4`` and
      ``|Sym3(y)|^2 = (3 K + 6) r^2``. For K of 2 and more it never falls, so it is at most its value at r = 1. For
      K = 1 it is ``r^2 (r^2 - 3 s2)^2``, with another peak of ``4 s2^3`` at ``r^2 = s2``. Let g be the square root of
      the larger of both. With s2 at most ``2 / (K + 2)`` and 1/2 it is at most 1.
    - *add_remove, zero_out.* g; a point at 0 adds nothing.
    - *replace_one.* ``2 g`` by the triangle inequality; f is odd, so opposite points attain it.

    The proof uses no property of U.
    """

    directions: NDArray[np.int64]
    score_norm: NDArray[np.float64] | float
    noise_variance: NDArray[np.float64] | float
    clip_norm: float = 1.0

    name: ClassVar[str] = "point_triples"
    version: ClassVar[int] = 1
    degree: ClassVar[int] = 1

    def __post_init__(self) -> None:
        """Check the parameters."""
        RowSum.__post_init__(self)
        check_directions(self.directions, n_features=self.n_features)
        if self.clip_norm != 1.0:
            raise InvalidInput(f"clip_norm={self.clip_norm} must be 1: scores are clipped instead; leave it out.")
        for name in ("score_norm", "noise_variance"):
            number = np.asarray(getattr(self, name), np.float64).reshape(-1)
            if number.size != 1:
                raise InvalidInput(f"{name} must be one number (got {number.size}); pass a float.")
            object.__setattr__(self, name, number)
        if not 1e-100 <= self.radius <= 1e100:
            raise InvalidInput(f"score_norm={self.radius!r} must be positive, between 1e-100 and 1e100.")
        most, variance = min(0.5, 2.0 / (self.layout.order + 2)) * self.radius**2, float(np.sum(self.noise_variance))
        if not 0.0 <= variance <= most:
            raise InvalidInput(
                f"noise_variance={variance!r} must be from 0 to {most:.3g}, for scores of norm {self.radius:.3g}; use "
                "a larger score_norm."
            )

    @property
    def layout(self) -> Layout:
        """A symmetric cube over the directions."""
        return Layout(kind="cube", order=self.directions.shape[1])

    @property
    def radius(self) -> float:
        """The bound of scores, as a float."""
        return float(np.sum(self.score_norm))

    @property
    def unit(self) -> float:
        """One unit of the output in data units."""
        return self.radius**3

    @property
    def variance_steps(self) -> int:
        """The noise variance, in steps of ``2^-36`` of the squared bound of scores, rounded down."""
        return math.floor(float(np.sum(self.noise_variance)) / self.radius**2 * 4.0**SCORE_BITS)

    def sensitivity(self, norm: Norm) -> float:
        """Return the sensitivity that the class notes prove."""
        if norm != "l2":
            raise InvalidInput(f"norm={norm!r} is not stated for triples of points; use noise for the l2 norm.")
        order, s2 = self.layout.order, self.variance_steps / 4.0**SCORE_BITS
        largest = max(1.0 - 6.0 * s2 + (3 * order + 6) * s2**2, 4.0 * s2**3 if order == 1 else 0.0)
        alone = math.sqrt(largest * _UP)
        return 2.0 * alone if self.relation == "replace_one" else alone

    def grid(self, block: Block) -> RowBlock:
        """Convert the scores of each record's first row to their grid, clipped to `score_norm`."""
        rows = canonical(block, n_features=self.n_features)
        directions = self.directions / 2.0**DIRECTION_BITS
        scores = first_row_scores(as_floats(rows.values), rows.indices, rows.row_ptr, rows.record_ptr, directions)
        records, width = scores.shape
        of_scores = CsrBlock(
            values=scores.reshape(-1),
            indices=np.tile(np.arange(width, dtype=np.int32), records),
            row_ptr=width * np.arange(records + 1),
            record_ptr=np.arange(records + 1),
            first_record=block.first_record,
            density=1.0,
        )
        return grid_block(of_scores, n_features=width, clip_norm=self.radius, bits=SCORE_BITS)

    def add(self, block: RowBlock, total: NDArray[np.int64]) -> None:
        """Add the cores of the block's points."""
        add_point_cores(block.values, self.layout.order, self.variance_steps, 3 * SCORE_BITS - self.bits, total)
