"""Queries for the second moment of clipped records, for second moment and mean together, and for the mean alone.

- `SecondMoment` is the second moment ``X^T X`` of clipped records, the sufficient statistic of PCA.
- `CentredMoment` sums second moment, rows and count in one query. It is the second moment of rows to which a public
  constant is appended.
- `RecordMean` sums rows and count, which give a mean, for mechanisms that never form a second moment.
"""

import dataclasses
import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from dpca_tasks.errors import InvalidInput
from dpca_tasks.kernels.dense_products import add_dense_outer_products, is_dense
from dpca_tasks.kernels.gridding import append_constants, extend_records
from dpca_tasks.kernels.outer_products import add_outer_products, add_packed_outer_products, is_packed
from dpca_tasks.layouts import Layout
from dpca_tasks.queries.base import SQRT_2_UP, Norm, RowSum
from dpca_tasks.records.blocks import Block, CsrBlock, RowBlock, as_floats, canonical, grid_block


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SecondMoment(RowSum):
    r"""Sum ``X_u^T X_u`` over records u, packed as an upper triangle.

    Notes
    -----
    Sensitivity. ``X_u`` are the rows of one individual, divided by the clip norm. Their Frobenius norm is at most 1, as
    `dpca_tasks.records.blocks` ensures in integers. Write ``M_u = X_u^T X_u``, which is positive semi-definite with
    trace ``||X_u||_F^2 <= 1``.

    - *l2* is the Frobenius norm of the full matrix. For add_remove and zero_out the sum changes by one ``M_u``, and
      ``||M_u||_F <= tr M_u <= 1``. For replace_one,
      ``||M_u - M_v||_F^2 = ||M_u||^2 + ||M_v||^2 - 2 <M_u, M_v> <= 2``, since the inner product of positive
      semi-definite matrices is not negative. Orthogonal unit rows attain ``sqrt 2``.
    - *nuclear* is the sum of the absolute eigenvalues of the change. ``||M_u||_* = tr M_u <= 1``, and the bound for
      replace_one is 2 by the triangle inequality.
    - *scores* are ``tr(V^T S V)`` for V with orthonormal columns. They change by ``||X_u V||_F^2``, which is within
      [0, 1], or for replace_one by the difference of two such numbers, which is within [-1, 1]. The lengths of these
      intervals are 1 and 2, the same bounds as for the nuclear norm.
    - *l1* is the norm of the packed triangle. With the rows ``x_r`` of the record,
      ``s = sum_r ||x_r||_1^2 <= d sum_r ||x_r||_2^2 <= d``. The absolute entries of the triangle add up to at most
      ``(s + tr M_u) / 2 <= (d + 1) / 2``, and for replace_one the bound is twice that.

    References
    ----------
    Dwork, Talwar, Thakurta, Zhang (2014), Analyze Gauss, Algorithm 1. The replace-one bound is proved above, and sharp.
    """

    name: ClassVar[str] = "second_moment"
    version: ClassVar[int] = 1
    degree: ClassVar[int] = 2

    @property
    def layout(self) -> Layout:
        """The layout of the sum: a symmetric matrix of order d, the number of features."""
        return Layout(kind="symmetric", order=self.n_features)

    def sensitivity(self, norm: Norm) -> float:
        """Return the sensitivity in a norm, as proved in the Notes section of the class."""
        replaced = self.relation == "replace_one"
        match norm:
            case "l2":
                return SQRT_2_UP if replaced else 1.0
            case "nuclear" | "scores":
                return 2.0 if replaced else 1.0
            case "l1":
                return (self.n_features + 1) * (1.0 if replaced else 0.5)
        raise InvalidInput(
            f"the second moment has no sensitivity in norm={norm!r}; use one of l1, l2, nuclear and scores."
        )

    def add(self, block: RowBlock, total: NDArray[np.int64]) -> None:
        """Add the second moment of a block's rows to ``total``, in steps of ``4^-bits``.

        By Cauchy-Schwarz, the contribution of a record, or of some of its rows, to a coordinate is at most
        ``4^bits <= 2^28`` steps. So int64 has room for the sum over ``2^33`` records, the largest supported number.
        """
        arguments = (block.values, block.indices, block.row_ptr, self.n_features, total)
        add_others = add_dense_outer_products if is_dense(block.density) else add_outer_products
        if is_packed(block.density, self.n_features):
            add_packed_outer_products(*arguments, add_others)
        else:
            add_others(*arguments)


CONSTANT = 1.0 / math.sqrt(3.0)
"""The appended constant c, in clip norms. It is half of the norm bound of extended rows, so it is on every grid."""
RADIUS = math.sqrt(1.0 + CONSTANT**2)
"""Largest norm of a clipped record with appended constants, in clip norms."""

_EMPTIED_NUCLEAR = math.nextafter(math.sqrt(21.0) / 4.0, math.inf)


def extended_rows(block: Block, *, n_features: int, clip_norm: float, constant: float) -> CsrBlock:
    """Clip records to ``clip_norm``, and append a last column of constants, in data units, to their rows.

    Each of the m rows of a record gets ``constant / sqrt(m)``. So the constants of every record have the same norm.
    """
    rows = canonical(block, n_features=n_features)
    values, indices, row_ptr = extend_records(
        as_floats(rows.values),
        np.asarray(rows.indices, np.int32),
        rows.row_ptr,
        rows.record_ptr,
        clip_norm,
        constant,
        n_features,
    )
    return CsrBlock(
        values=values,
        indices=indices,
        row_ptr=row_ptr,
        record_ptr=rows.record_ptr,
        first_record=rows.first_record,
        density=rows.density,
        first_seen=rows.first_seen,
    )


def extended(block: Block, *, n_features: int, clip_norm: float, bits: int) -> RowBlock:
    """Clip records to ``clip_norm``, round them to a grid, and append the constants of `CentredMoment` to their rows.

    The unit of the grid is ``RADIUS * clip_norm``.

    Guarantees
    ----------
    In units of ``RADIUS * clip_norm``, the squares of a record's original entries sum to at most 3/4, and the squares
    of its constants to at most 1/4, both compared in integers. The constants depend only on the number of rows of the
    record. So an emptied record that keeps its rows keeps the same constants, bit by bit.
    """
    square = 1 << 2 * bits
    rows = grid_block(block, n_features=n_features, clip_norm=clip_norm, bits=bits, bound=3 * square // 4)
    values, indices, row_ptr = append_constants(
        rows.values, rows.indices, rows.row_ptr, rows.record_ptr, square // 4, n_features
    )
    return dataclasses.replace(rows, values=values, indices=indices, row_ptr=row_ptr, n_features=n_features + 1)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CentredMoment(RowSum):
    r"""Sum second moment, rows and count of records in one query, so that a centred second moment can be released.

    The sum is ``Z_u^T Z_u`` over records u, where ``Z_u = [X_u z_u]``. The column ``z_u`` appends a public constant to
    each row: c for a record of one row, and ``c / sqrt(m)``, rounded down, for a record of m rows. For records of one
    row, the blocks of the sum are the second moment, c times the sum of rows, and ``c^2`` times the count. A centred
    second moment is computed from the noisy blocks as post-processing.

    Notes
    -----
    Sensitivity, in units of ``1 + c^2`` squared clip norms. In these units ``s = ||X_u||_F^2 <= 3/4`` and
    ``a = ||z_u||^2 <= 1/4``, both compared in integers (`extended`). So ``||Z_u||_F <= 1``, and this is the second
    moment of records of norm at most 1 in ``d + 1`` columns. For add_remove and replace_one, the bounds proved for
    `SecondMoment` hold.

    An emptied record may keep any number of rows and so constants, of squared norm ``b <= 1/4``. The sum then changes
    by ``D = [[X^T X, X^T z], [z^T X, a - b]]``, with ``||X^T z||^2 <= a s``.

    - *l2.* ``||D||_F^2 <= s^2 + 2 a s + (a - b)^2``, which is convex in a and in b and grows with s. It is at most 1,
      at ``s = 3/4``, ``a = 1/4`` and ``b = 0``.
    - *nuclear.* Let ``w = X^T z / sqrt(a)`` and ``p = |w|^2 <= s``. Then ``X^T X - w w^T`` is positive semi-definite of
      trace ``s - p``. The rest of D, ``[[w w^T, sqrt(a) w], [sqrt(a) w^T, a - b]]``, has nuclear norm
      ``sqrt((p + a - b)^2 + 4 p b)``. This norm minus p grows with p. So ``||D||_*^2 <= (s + a - b)^2 + 4 s b``, which
      is convex in a and in b, and at most 21/16, at ``s = 3/4`` and ``a = b = 1/4``.
    - *scores* change within an interval of at most that length.
    - *l1* of the packed triangle: ``s (d + 1) / 2 + sqrt(d a s) + |a - b| <= 3 (d + 1) / 8 + sqrt(3 d) / 4 + 1/4``. The
      right side is ``(d + 2) / 2 - (sqrt(d) - sqrt(3))^2 / 8``, at most the bound ``(d + 2) / 2`` of `SecondMoment`.
    """

    name: ClassVar[str] = "centred_moment"
    version: ClassVar[int] = 1
    degree: ClassVar[int] = 2

    @property
    def layout(self) -> Layout:
        """The layout of the sum: a symmetric matrix of order d + 1, for d features and the column of constants."""
        return self._moment.layout

    @property
    def unit(self) -> float:
        """One unit of the output in data units: the largest squared norm of a record with appended constants."""
        return self._moment.unit

    def sensitivity(self, norm: Norm) -> float:
        """Return the sensitivity in a norm, as proved in the Notes section of the class."""
        if norm in ("nuclear", "scores") and self.relation == "zero_out":
            return _EMPTIED_NUCLEAR
        return self._moment.sensitivity(norm)

    def grid(self, block: Block) -> RowBlock:
        """Clip the records of a stored block, round them to the grid, and append constants to their rows."""
        return extended(block, n_features=self.n_features, clip_norm=self.clip_norm, bits=self.bits)

    def add(self, block: RowBlock, total: NDArray[np.int64]) -> None:
        """Add the second moment of a block's rows, which include the constants, to ``total``."""
        self._moment.add(block, total)

    @property
    def _moment(self) -> SecondMoment:
        return SecondMoment(
            n_features=self.n_features + 1,
            clip_norm=RADIUS * self.clip_norm,
            relation=self.relation,
            bits=self.bits,
        )


_UP = 1.0 + 2.0**-50  # factor that makes a computed bound an upper bound despite rounding
_REPLACED = math.nextafter(math.sqrt(3.0) / 2.0, math.inf)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RecordMean(RowSum):
    r"""Query for the sum of the rows and the number of records, which give a mean without a second moment.

    The sum is ``Z_u^T z_u`` over records u. As in `CentredMoment`, ``Z_u = [X_u z_u]``, and the column ``z_u`` appends
    a public constant to each row. The sum is the last column of the matrix of `CentredMoment`: for records of one row,
    c times the sum of the rows, then ``c^2`` times the count.

    Notes
    -----
    Sensitivity, in units of ``1 + c^2`` squared clip norms. In these units ``||X_u||_F^2 <= 3/4`` and
    ``a = ||z_u||^2 <= 1/4``, both ensured in exact integers by `extended`. A record adds ``(X_u^T z_u, a)``, where
    ``||X_u^T z_u||^2 <= 3 a / 4``. A record whose rows are set to 0 may still count: it adds ``(0, b)``, b in [0, 1/4].

    - *l2.* For add_remove the squared change is at most ``3 a / 4 + a^2 <= 1/4``. For zero_out it is at most
      ``3 a / 4 + (a - b)^2``, which is convex in a and in b, and again at most 1/4. So both sensitivities are 1/2. For
      replace_one, let r be the square root of a, at most 1/2, and ``s <= r`` that of the other record's a. The squared
      change is at most ``3/4 (r + s)^2 + (r^2 - s^2)^2 = (r + s)^2 (3/4 + (r - s)^2)``. Since ``r + s <= 1 - (r - s)``,
      this is at most 3/4, at ``r = s = 1/2``.
    - *l1.* ``||X_u^T z_u||_1 <= sqrt(d) ||X_u^T z_u||_2 <= sqrt(3 d) / 4``, and the last entry changes by at most 1/4.
      So the bound for add_remove and zero_out is ``(sqrt(3 d) + 1) / 4``, which rows of equal entries attain for
      add_remove. For replace_one the change is at most ``(r + s) (k + r - s)`` with ``k = sqrt(3 d) / 2``. This is at
      most k if ``d > 1``, at ``r = s = 1/2``, and otherwise at most 7/8.
    """

    name: ClassVar[str] = "record_mean"
    version: ClassVar[int] = 1
    degree: ClassVar[int] = 2

    @property
    def layout(self) -> Layout:
        """The layout of the sum: a vector of length d + 1 with the sum of the rows, then the count."""
        return Layout(kind="vector", order=self.n_features + 1)

    @property
    def unit(self) -> float:
        """One unit of the output in data units: the largest squared norm of a record with appended constants."""
        return float((RADIUS * self.clip_norm) ** 2)

    def sensitivity(self, norm: Norm) -> float:
        """Return the sensitivity in a norm, as proved in the Notes section of the class."""
        replaced = self.relation == "replace_one"
        match norm:
            case "l2":
                return _REPLACED if replaced else 0.5
            case "l1":
                root = math.sqrt(3.0 * self.n_features) * _UP
                return max(root / 2.0, 0.875) if replaced else (root + 1.0) / 4.0
        raise InvalidInput(
            f"the record mean has no sensitivity in norm={norm!r}; use Gaussian noise (l2) or Laplace noise (l1)."
        )

    def grid(self, block: Block) -> RowBlock:
        """Clip the records of a stored block, round them to the grid, and append constants to their rows."""
        return extended(block, n_features=self.n_features, clip_norm=self.clip_norm, bits=self.bits)

    def add(self, block: RowBlock, total: NDArray[np.int64]) -> None:
        """Add the block's rows, each times its constant, in steps of ``4^-bits``."""
        constants = block.values[block.row_ptr[1:] - 1].astype(np.int64)  # the last entry of every extended row
        np.add.at(total, block.indices, block.values * np.repeat(constants, np.diff(block.row_ptr)))
