"""Second and third moments of documents, and third moments of points, for tensor decomposition.

- `DocumentsSum` is the base class for documents. A record is a document, given by the counts of its words.
- `WordPairs` is the second moment of documents: the frequencies of pairs of words within a document.
- `WordTriples` is the third moment of documents: the frequencies of triples of words, projected onto a few public
  directions.
- `PointTriples` is the third moment of points projected onto a few public directions, corrected for spherical noise.
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
"""Largest allowed bound on the words of a document, for which all products of counts and grid steps are exact."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DocumentsSum(RowSum):
    """Base class of sums over documents; a document is a record that counts the ``n_features`` words of a vocabulary.

    Parameters
    ----------
    words_at_most : int
        A public bound L on the number of words of a document, from 3 to 65,536.
    clip_norm : float
        Must be 1, because counts are never scaled.
    **others
        As for `RowSum`; the sum is on a grid of step ``2^-bits``.

    Notes
    -----
    A record of several rows is one document that contains the words of all rows. An invalid document adds nothing. A
    document is invalid if a count is negative, fractional or not finite, or if it has fewer than 3 or more than
    ``2^40`` words. Of a document with l > L words, L words are counted, and the choice depends only on the document:
    all l words are listed in the order of their ids, and word i, counted from 1, is retained if ``floor(i L / l)``
    exceeds ``floor((i - 1) L / l)``. So the number of retained occurrences of a word differs from its proportional
    share by less than 1.
    """

    words_at_most: int
    clip_norm: float = 1.0

    def __post_init__(self) -> None:
        """Check the public parameters of the query."""
        RowSum.__post_init__(self)
        if not FEWEST_WORDS <= self.words_at_most <= LONGEST:
            raise InvalidInput(
                f"words_at_most={self.words_at_most} must be from {FEWEST_WORDS} to {LONGEST}; "
                "state a public bound on the words of a document."
            )
        if self.clip_norm != 1.0:
            raise InvalidInput(f"clip_norm={self.clip_norm} must be 1: counts are not scaled; leave it out.")

    def grid(self, block: Block) -> RowBlock:
        """Return the word counts of each document of a block, reduced to at most `words_at_most` words."""
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
    """Merge all rows of each record into one row.

    An invalid count becomes NaN, because in a sum a negative or fractional count could be hidden by another count.
    """
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
    r"""Sum the frequencies of word pairs over documents, packed as an upper triangle.

    A document of l words with counts c adds ``(c c^T - diag c) / (l (l - 1))``.

    Notes
    -----
    The matrix M of a document contains the relative frequencies of its ``l (l - 1)`` ordered pairs of words. Each entry
    is rounded toward zero to the grid by a division of integers, ``floor(2^bits n / (l (l - 1)))``, where n, the number
    of such pairs, is below ``2^32``. The result is the same in any block and on any machine. So the entries of M are
    not negative, and their sum is at most 1, exactly.

    Sensitivity, in the Frobenius norm of the full matrix:

    - *add_remove, zero_out.* ``||M||_F <= sum of entries <= 1``, attained by a document that repeats one word.
    - *replace_one*, by a document with matrix N: ``||M - N||_F^2 = ||M||^2 + ||N||^2 - 2 <M, N> <= 2``, since no
      product of entries is negative. The bound is attained by two documents that repeat two different words.

    Rounding reduces each entry by less than one step. A nonzero entry is at least ``2^bits / (l (l - 1))`` steps before
    rounding.
    """

    name: ClassVar[str] = "word_pairs"
    version: ClassVar[int] = 1
    degree: ClassVar[int] = 1

    @property
    def layout(self) -> Layout:
        """The layout of the sum: a symmetric matrix over the words of the vocabulary."""
        return Layout(kind="symmetric", order=self.n_features)

    @property
    def largest_loss(self) -> float:
        """A public bound on the share of its pairs that a document of `words_at_most` words loses by rounding."""
        return min(1.0, self.words_at_most * (self.words_at_most - 1) / self.steps_per_unit)

    def sensitivity(self, norm: Norm) -> float:
        """Return the l2 sensitivity, as proved in the Notes section of the class."""
        if norm != "l2":
            raise InvalidInput(f"word pairs have no sensitivity in norm={norm!r}; use Gaussian noise (l2).")
        return SQRT_2_UP if self.relation == "replace_one" else 1.0

    def add(self, block: RowBlock, total: NDArray[np.int64]) -> None:
        """Add the frequencies of word pairs in a block's documents to ``total``."""
        add_word_pairs(block.values, block.indices, block.row_ptr, self.n_features, self.steps_per_unit, total)


_LENGTH = 1.0 + 2.0**-12  # a bound on the spectral norm of U
_UP = 1.0 + 2.0**-48  # factor that makes a computed bound an upper bound despite rounding


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class WordTriples(DocumentsSum):
    r"""Sum the third moment of every document, projected onto K public directions U, packed as a symmetric cube.

    Let A be the tensor of the relative frequencies of the ``l (l - 1) (l - 2)`` ordered triples of words in a document
    of l words. The document adds the core ``A(U, U, U)``, the projection of A. A is never formed:
    ``A(U, U, U) = (y y y - 3 Sym(S y) + 2 sum_a c_a u_a u_a u_a) / (l (l - 1) (l - 2))``. Here ``u_a`` is row a of U,
    ``c_a`` is the count of word a, ``y = sum_a c_a u_a`` and ``S = sum_a c_a u_a u_a^T``.

    Parameters
    ----------
    directions : int64 array of shape (n_features, K)
        The directions U in steps of ``2^-24``, with entries of magnitude at most 1 and rows of norm at most 2;
        orthonormal columns in practice.
    **others
        As for `DocumentsSum`.

    Notes
    -----
    Sensitivity, in the Frobenius norm of the full cube of K x K x K entries. Let rho be the largest norm of a row of U,
    but at most 1. A core is computed only from its document and U, by sums and products of float64 in a fixed order,
    and rounded to the grid. Then its squares are summed in integers and compared with ``B = floor(4^bits rho^6)``,
    which is also computed from integers. A longer core is scaled to the bound, rounded toward zero, and compared again.
    So the rounded core G has ``||G||_F <= sqrt(B)`` steps, independently of any error in the floats.

    - *add_remove, zero_out.* The bound is ``sqrt(B)`` steps, about ``rho^3``. It is attained by a document that repeats
      the word whose row is longest.
    - *replace_one*, where a core H replaces G: the bound is ``2 sqrt(B)`` steps by the triangle inequality. If the
      spectral norm of U is at most ``1 + 2^-12``, also ``||G - H|| <= (1 + 2^-12)^3 sqrt(2) + 2 ||E||``, where E is a
      rounding error. To see this, write ``G = s A(U, U, U) + E`` and ``H = t C(U, U, U) + F``, with s and t in [0, 1]
      (1 unless a core was scaled). The entries of the tensors A and C are not negative and sum to 1, so
      ``||s A - t C||_F^2 <= s^2 + t^2 - 2 s t <A, C> <= 2``. Multiplication by U along all three indices increases a
      norm by at most the factor ``||U||_2^3``.

    The rounding error E. The document has l words, at most ``2^16``, and entries of ``u_a`` have magnitude at most 1. y
    is exact, because its terms are multiples of ``2^-24`` and its entries are at most l. With ``e = 2^-53`` the error
    of entries of S is at most ``(l^2 + l) e``, and that of the sum of cubes ``(l^2 + 2 l) e``. The error of the core's
    numerator is at most ``(12 l^3 + 29 l^2 + 18 l) e``, including the last two roundings. Divided by
    ``l (l - 1) (l - 2)`` this error is largest for l = 3, and below ``2^-46``. With at most ``2^28`` steps in a unit it
    is ``2^-18`` of a step. Rounding to nearest adds 1/2 of a step, and rounding toward zero 1 step. So
    ``||E||_F <= (1 + 2^-17) K^(3/2)`` steps.
    """

    directions: NDArray[np.int64]

    name: ClassVar[str] = "word_triples"
    version: ClassVar[int] = 1
    degree: ClassVar[int] = 1

    def __post_init__(self) -> None:
        """Check the public parameters of the query."""
        DocumentsSum.__post_init__(self)
        check_directions(self.directions, n_features=self.n_features)
        if self._longest > 4 << 2 * DIRECTION_BITS:  # so that squares of a core of 2^28 steps fit int64
            raise InvalidInput("the rows of directions must have a norm of at most 2; pass orthonormal columns.")

    @property
    def layout(self) -> Layout:
        """The layout of the sum: a symmetric tensor with three indices, each over the K directions."""
        return Layout(kind="cube", order=self.directions.shape[1])

    @property
    def _longest(self) -> int:
        """The largest squared norm of a row of the directions, in squared steps."""
        return int(np.square(self.directions, dtype=np.int64).sum(axis=1).max())

    @property
    def bound(self) -> int:
        """The largest sum of squares of the contribution (core) of a document, in squared steps."""
        one = 1 << 2 * DIRECTION_BITS
        longest = min(self._longest, one)
        return max(1, longest**3 * (1 << 2 * self.bits) // one**3)

    def sensitivity(self, norm: Norm) -> float:
        """Return the l2 sensitivity, as proved in the Notes section of the class."""
        if norm != "l2":
            raise InvalidInput(f"word triples have no sensitivity in norm={norm!r}; use Gaussian noise (l2).")
        alone = math.sqrt(self.bound) / self.steps_per_unit * _UP
        if self.relation != "replace_one":
            return alone
        if not is_contraction(self.directions):
            return 2.0 * alone
        rounding = (1.0 + 2.0**-17) * self.layout.order**1.5 / self.steps_per_unit
        return float(min(2.0 * alone, (math.sqrt(2.0) * _LENGTH**3 + 2.0 * rounding) * _UP))

    def add(self, block: RowBlock, total: NDArray[np.int64]) -> None:
        """Add the projected third moments (cores) of a block's documents to ``total``."""
        rows = (block.values, block.indices, block.row_ptr)
        add_word_cores(*rows, self.directions / 2.0**DIRECTION_BITS, float(self.steps_per_unit), self.bound, total)


def check_directions(directions: NDArray[np.int64], *, n_features: int) -> None:
    """Check that directions have one row per feature, and are integers of magnitude at most ``2^24``."""
    if directions.ndim != 2 or len(directions) != n_features or directions.shape[1] < 1:
        raise InvalidInput(f"directions of shape {directions.shape} must have {n_features} rows; pass such columns.")
    if directions.dtype.kind != "i" or not is_on_grid(directions):
        raise InvalidInput(
            "directions must be integers of magnitude at most 2^24; round orthonormal columns with on_direction_grid."
        )


def is_contraction(directions: NDArray[np.int64]) -> bool:
    """Return whether the spectral norm of directions, in steps of ``2^-24``, is at most ``1 + 2^-12``.

    The squared norm is compared with ``1 + 2^-12``, which is stricter and so leaves a margin for rounding errors.
    """
    columns = directions / 2.0**DIRECTION_BITS
    with one_thread():
        return bool(np.linalg.eigvalsh(columns.T @ columns)[-1] <= _LENGTH)


SCORE_BITS = 18
"""Scores are rounded to a grid on which their bound is ``2^18`` steps."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PointTriples(RowSum):
    r"""Sum ``y y y - s2 Sym3(y)`` over points x, with scores ``y = U^T x`` clipped to ``score_norm``, as a packed cube.

    This is the third moment of points along K directions U, minus the contribution of noise. Noise of variance s2 in
    every direction contributes ``s2 Sym3(y)``, where
    ``Sym3(y)_pqr = y_p [q = r] + y_q [p = r] + y_r [p = q]``.

    Parameters
    ----------
    directions : int64 array of shape (n_features, K)
        The directions U in steps of ``2^-24``, with entries of magnitude at most 1; orthonormal columns in practice.
    score_norm : float, data units
        The bound R on ``|y|``; longer scores are scaled down to norm R.
    noise_variance : float, squared data units
        The variance s2, public or released with noise. It is at most ``2 / (K + 2)`` and at most 1/2, in units of
        ``R^2``. This number and `score_norm` are stored as arrays, because they are public inputs like the directions:
        a resumed release uses the values that an earlier run stored.
    clip_norm : float
        Must be 1, because points themselves are not clipped.
    **others
        As for `RowSum`; the sum is on a grid of step ``2^-bits`` in units of ``R^3``.

    Notes
    -----
    Only the first row of a record is read, so the sensitivity holds for any record. Jobs refuse datasets in which
    records may have several rows. A point adds nothing if its values or scores are not finite.

    Sensitivity, in units of ``R^3`` and in the Frobenius norm of the full cube. The scores of a point are computed only
    from this point and U, in a fixed order, and rounded to a grid of ``2^18`` steps in R. Their squares are compared
    with the bound in integers, so ``|y| <= 1``. s2 is on a grid of step ``2^-36``. So ``f(y) = y y y - s2 Sym3(y)`` is
    an integer multiple of ``2^-54``. It is computed exactly and then rounded toward zero, which increases no norm.

    - *The norm of f.* With ``r = |y|``, ``|f(y)|^2 = r^6 - 6 s2 r^4 + (3 K + 6) s2^2 r^2``, since
      ``<y y y, Sym3(y)> = 3 r^4`` and ``|Sym3(y)|^2 = (3 K + 6) r^2``. For K of at least 2 this never decreases in r,
      so it is at most its value at r = 1. For K = 1 it is ``r^2 (r^2 - 3 s2)^2``, with another peak of ``4 s2^3`` at
      ``r^2 = s2``. Let g be the square root of the largest value. Since s2 is at most ``2 / (K + 2)`` and 1/2, g is at
      most 1.
    - *add_remove, zero_out.* The bound is g; a point at 0 adds nothing.
    - *replace_one.* The bound is ``2 g`` by the triangle inequality. f is odd, so opposite points attain it.

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
        """Check the public parameters of the query."""
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
            raise InvalidInput(f"score_norm={self.radius!r} must be between 1e-100 and 1e100; choose such a bound.")
        most, variance = min(0.5, 2.0 / (self.layout.order + 2)) * self.radius**2, float(np.sum(self.noise_variance))
        if not 0.0 <= variance <= most:
            raise InvalidInput(
                f"noise_variance={variance!r} must be from 0 to {most:.3g}, for scores of norm {self.radius:.3g}; use "
                "a larger score_norm."
            )

    @property
    def layout(self) -> Layout:
        """The layout of the sum: a symmetric tensor with three indices, each over the K directions."""
        return Layout(kind="cube", order=self.directions.shape[1])

    @property
    def radius(self) -> float:
        """The bound R on the norm of scores, as a float."""
        return float(np.sum(self.score_norm))

    @property
    def unit(self) -> float:
        """One unit of the output in data units: ``R^3`` for the bound R on the norm of scores."""
        return self.radius**3

    @property
    def variance_steps(self) -> int:
        """The noise variance, divided by ``R^2`` for the bound R of scores, in steps of ``2^-36``, rounded down."""
        return math.floor(float(np.sum(self.noise_variance)) / self.radius**2 * 4.0**SCORE_BITS)

    def sensitivity(self, norm: Norm) -> float:
        """Return the l2 sensitivity, as proved in the Notes section of the class."""
        if norm != "l2":
            raise InvalidInput(f"point triples have no sensitivity in norm={norm!r}; use Gaussian noise (l2).")
        order, s2 = self.layout.order, self.variance_steps / 4.0**SCORE_BITS
        largest = max(1.0 - 6.0 * s2 + (3 * order + 6) * s2**2, 4.0 * s2**3 if order == 1 else 0.0)
        alone = math.sqrt(largest * _UP)
        return 2.0 * alone if self.relation == "replace_one" else alone

    def grid(self, block: Block) -> RowBlock:
        """Compute the scores of each record's first row, clip them to `score_norm`, and round them to their grid."""
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
        """Add the corrected third moments (cores) of a block's points to ``total``."""
        add_point_cores(block.values, self.layout.order, self.variance_steps, 3 * SCORE_BITS - self.bits, total)
