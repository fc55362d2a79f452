"""Second moments of clipped records, with mean and count, or the mean alone.

- `SecondMoment` is the second moment X^T X of clipped records: the sufficient statistic of PCA.
- `CentredMoment` is second moment, mean and count in one query: the second moment of rows with a public constant
  appended.
- `RecordMean` is the sum of the rows and the count, which give a mean, for mechanisms that never form a second moment.
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
    Sensitivity, with every record ``X_u`` (rows of one individual, divided by the clip norm) of Frobenius norm at most
    1, as `dpca_tasks.records.blocks` ensures in integers. Write ``M_u = X_u^T X_u``; it is positive semi-definite with
    trace ``||X_u||_F^2 <= 1``.

    - *l2* (Frobenius norm of the full matrix). ``||M_u||_F <= tr M_u <= 1``: add_remove and zero_out move the
      sum by one ``M_u``. For replace_one, ``||M_u - M_v||_F^2 = ||M_u||^2 + ||M_v||^2 - 2 <M_u, M_v> <= 2``,
      since the inner product of positive semi-definite matrices is not negative; orthogonal unit rows attain
      ``sqrt 2``.
    - *nuclear* (the sum of the absolute eigenvalues of the difference). ``||M_u||_* = tr M_u <= 1``, and 2
      for replace_one by the triangle inequality. *Scores* ``tr(V^T S V)``, for V of orthonormal columns, move by
      ``||X_u V||_F^2``, within [0, 1], or by the difference of two such numbers, within [-1, 1]: the same bounds.
    - *l1* of the packed triangle. With ``s = sum_r ||x_r||_1^2 <= d sum_r ||x_r||_2^2 <= d``, the triangle's
      entries add up to at most ``(s + tr M_u) / 2 <= (d + 1) / 2``, and to twice that for replace_one.

    References
    ----------
    Dwork, Talwar, Thakurta, Zhang (2014), Analyze Gauss, Algorithm 1; the replace-one bound is the sharp one.
    """

    name: ClassVar[str] = "second_moment"
    version: ClassVar[int] = 1
    degree: ClassVar[int] = 2

    @property
    def layout(self) -> Layout:
        """A symmetric matrix of order d."""
        return Layout(kind="symmetric", order=self.n_features)

    def sensitivity(self, norm: Norm) -> float:
        """Return the sensitivity that the class notes prove."""
        replaced = self.relation == "replace_one"
        match norm:
            case "l2":
                return SQRT_2_UP if replaced else 1.0
            case "nuclear" | "scores":
                return 2.0 if replaced else 1.0
            case "l1":
                return (self.n_features + 1) * (1.0 if replaced else 0.5)
        raise InvalidInput(f"norm={norm!r} is unknown; the second moment states l1, l2, nuclear and scores.")

    def add(self, block: RowBlock, total: NDArray[np.int64]) -> None:
        """Add the outer products of the block's rows, in steps of ``4^-bits``.

        A coordinate of one record, or of a part of its rows, is at most ``4^bits <= 2^28`` steps by Cauchy-Schwarz. So
        int64 holds the sum of ``2^33`` records, the capacity of the design.
        """
        arguments = (block.values, block.indices, block.row_ptr, self.n_features, total)
        add_others = add_dense_outer_products if is_dense(block.density) else add_outer_products
        if is_packed(block.density, self.n_features):
            add_packed_outer_products(*arguments, add_others)
        else:
            add_others(*arguments)


CONSTANT = 1.0 / math.sqrt(3.0)
"""c, in clip norms: the constant of a one-row record is then exactly half of its bound, which is on every grid."""
RADIUS = math.sqrt(1.0 + CONSTANT**2)
"""Largest norm of a clipped record with its constants, in clip norms."""

_EMPTIED_NUCLEAR = math.nextafter(math.sqrt(21.0) / 4.0, math.inf)


def extended_rows(block: Block, *, n_features: int, clip_norm: float, constant: float) -> CsrBlock:
    """Clip records to ``clip_norm`` and append a constant, in data units, to their rows as a last column.

    Each of the m rows of a record gets ``constant / sqrt(m)``, so the constants of every record have the same norm.
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
    """Clip records to ``clip_norm``, round them to the grid of norm ``RADIUS clip_norm``, and append c to their rows.

    Guarantees
    ----------
    In units of ``RADIUS clip_norm``, the squares of a record's original entries sum to at most 3/4 and those of its
    constants to at most 1/4, both compared in integers. The constants depend only on the number of rows: an emptied
    record that keeps its rows keeps its constants, to the last bit.
    """
    square = 1 << 2 * bits
    rows = grid_block(block, n_features=n_features, clip_norm=clip_norm, bits=bits, bound=3 * square // 4)
    values, indices, row_ptr = append_constants(
        rows.values, rows.indices, rows.row_ptr, rows.record_ptr, square // 4, n_features
    )
    return dataclasses.replace(rows, values=values, indices=indices, row_ptr=row_ptr, n_features=n_features + 1)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CentredMoment(RowSum):
    r"""Sum ``Z_u^T Z_u`` over records u, where ``Z_u = [X_u z_u]`` is ``X_u`` with a public constant c after every row.

    For records of one row its blocks are the second moment, c times the sum, and c^2 times the count. A centred second
    moment is post-processing of these blocks. A record of m rows has ``c / sqrt(m)`` after each, rounded down.

    Notes
    -----
    Sensitivity, in units of ``1 + c^2`` squared clip norms, in which ``s = ||X_u||_F^2 <= 3/4`` and
    ``a = ||z_u||^2 <= 1/4``, both compared in integers (`extended`). So ``||Z_u||_F <= 1``: this is the second moment
    of records of norm at most 1 in ``d + 1`` columns, and for add_remove and replace_one the bounds of `SecondMoment`
    hold as proved there.

    An emptied record may keep any number of rows, hence constants, of squared norm ``b <= 1/4``. The sum then moves by
    ``D = [[X^T X, X^T z], [z^T X, a - b]]``, with ``||X^T z||^2 <= a s``.

    - *l2.* ``||D||_F^2 <= s^2 + 2 a s + (a - b)^2``, which is convex in a and in b and grows with s. It is at most 1,
      at ``s = 3/4``, ``a = 1/4`` and ``b = 0``.
    - *nuclear.* Let ``w = X^T z / sqrt(a)`` and ``p = |w|^2 <= s``. Then ``X^T X - w w^T`` is positive semi-definite of
      trace ``s - p``, and ``[[w w^T, sqrt(a) w], [sqrt(a) w^T, a - b]]`` has nuclear norm
      ``sqrt((p + a - b)^2 + 4 p b)``, which less p grows with p. So ``||D||_*^2 <= (s + a - b)^2 + 4 s b``, convex in a
      and in b: at most 21/16, at ``s = 3/4`` and ``a = b = 1/4``. *Scores* move within an interval of that length.
    - *l1* of the packed triangle: ``s (d + 1) / 2 + sqrt(d a s) + |a - b| <= 3 (d + 1) / 8 + sqrt(3 d) / 4 + 1/4``,
      which is ``(d + 2) / 2 - (sqrt(d) - sqrt(3))^2 / 8``: within the ``(d + 2) / 2`` of `SecondMoment`.
    """

    name: ClassVar[str] = "centred_moment"
    version: ClassVar[int] = 1
    degree: ClassVar[int] = 2

    @property
    def layout(self) -> Layout:
        """A symmetric matrix of order d + 1."""
        return self._moment.layout

    @property
    def unit(self) -> float:
        """The squared norm bound of an extended record."""
        return self._moment.unit

    def sensitivity(self, norm: Norm) -> float:
        """Return the sensitivity that the class notes prove."""
        if norm in ("nuclear", "scores") and self.relation == "zero_out":
            return _EMPTIED_NUCLEAR
        return self._moment.sensitivity(norm)

    def grid(self, block: Block) -> RowBlock:
        """Clip the records of a stored block, append their constants, and convert them to the grid."""
        return extended(block, n_features=self.n_features, clip_norm=self.clip_norm, bits=self.bits)

    def add(self, block: RowBlock, total: NDArray[np.int64]) -> None:
        """Add the outer products of the block's extended rows."""
        self._moment.add(block, total)

    @property
    def _moment(self) -> SecondMoment:
        return SecondMoment(
            n_features=self.n_features + 1,
            clip_norm=RADIUS * self.clip_norm,
            relation=self.relation,
            bits=self.bits,
        )


_UP = 1.0 + 2.0**-50  # covers the rounding of a bound
_REPLACED = math.nextafter(math.sqrt(3.0) / 2.0, math.inf)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RecordMean(RowSum):
    r"""Sum ``Z_u^T z_u`` over records u, where ``z_u`` is the column of constants of the extended record ``Z_u``.

    It is the last column of `CentredMoment`: for records of one row, c times the sum of the rows, then c^2 times
    the count.

    Notes
    -----
    Sensitivity, in units of ``1 + c^2`` squared clip norms, in which ``||X_u||_F^2 <= 3/4`` and
    ``a = ||z_u||^2 <= 1/4``, compared in integers (`extended`). With ``Z_u = [X_u z_u]`` a record adds
    ``(X_u^T z_u, a)``, where ``||X_u^T z_u||^2 <= 3 a / 4``. An emptied record may keep rows, and adds ``(0, b)`` with
    b in [0, 1/4].

    - *l2.* The square is at most ``3 a / 4 + a^2 <= 1/4`` for add_remove. For zero_out it is at most
      ``3 a / 4 + (a - b)^2``, convex in a and in b, which is no more than 1/4 either: both sensitivities are 1/2. For
      replace_one, let ``u <= 1/2`` and ``v <= u`` be the roots of a and of the other record's a. The square is
      ``3/4 (u + v)^2 + (u^2 - v^2)^2 = (u + v)^2 (3/4 + (u - v)^2)``, where ``u + v <= 1 - (u - v)``: at most 3/4, at
      ``u = v = 1/2``.
    - *l1.* ``||X_u^T z_u||_1 <= sqrt(d) ||X_u^T z_u||_2 <= sqrt(3 d) / 4``, and the last entry moves by at most 1/4.
      This gives ``(sqrt(3 d) + 1) / 4`` for add_remove, where rows of equal entries attain it, and for zero_out. For
      replace_one ``(u + v) (k + u - v)`` with ``k = sqrt(3 d) / 2``: at most k, at ``u = v = 1/2``, if ``d > 1``, else
      7/8.
    """

    name: ClassVar[str] = "record_mean"
    version: ClassVar[int] = 1
    degree: ClassVar[int] = 2

    @property
    def layout(self) -> Layout:
        """A vector of d + 1: the sum, then the count."""
        return Layout(kind="vector", order=self.n_features + 1)

    @property
    def unit(self) -> float:
        """The squared norm bound of an extended record."""
        return float((RADIUS * self.clip_norm) ** 2)

    def sensitivity(self, norm: Norm) -> float:
        """Return the sensitivity that the class notes prove."""
        replaced = self.relation == "replace_one"
        match norm:
            case "l2":
                return _REPLACED if replaced else 0.5
            case "l1":
                root = math.sqrt(3.0 * self.n_features) * _UP
                return max(root / 2.0, 0.875) if replaced else (root + 1.0) / 4.0
        raise InvalidInput(f"norm={norm!r} is not stated for the record mean; use Gaussian (l2) or Laplace noise (l1).")

    def grid(self, block: Block) -> RowBlock:
        """Clip the records of a stored block, append their constants, and convert them to the grid."""
        return extended(block, n_features=self.n_features, clip_norm=self.clip_norm, bits=self.bits)

    def add(self, block: RowBlock, total: NDArray[np.int64]) -> None:
        """Add the block's rows, each times its constant, in steps of ``4^-bits``."""
        constants = block.values[block.row_ptr[1:] - 1].astype(np.int64)  # the last entry of every extended row
        np.add.at(total, block.indices, block.values * np.repeat(constants, np.diff(block.row_ptr)))
