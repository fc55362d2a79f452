"""Second moment, mean and count in one query: the second moment of rows with a public constant appended."""

import dataclasses
import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from dpca_tasks.kernels.norms import append_constants, extend_records
from dpca_tasks.layouts import Layout
from dpca_tasks.queries.base import Norm, RowSum
from dpca_tasks.queries.second_moment import SecondMoment
from dpca_tasks.records.blocks import Block, CsrBlock, RowBlock
from dpca_tasks.records.gridding import as_floats, canonical, grid_block

CONSTANT = 1.0 / math.sqrt(3.0)
"""c, in clip norms: the constant of a one-row record is then exactly half of its bound, which is on every grid."""
RADIUS = math.sqrt(1.0 + CONSTANT**2)
"""The largest norm of a clipped record with its constants, in clip norms."""

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
    In units of ``RADIUS clip_norm``, the squares of a record's own entries sum to at most 3/4 and those of its
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
    moment is post-processing of them. A record of m rows has ``c / sqrt(m)`` after each, rounded down.

    Notes
    -----
    Sensitivity, in units of ``1 + c^2`` squared clip norms, in which ``s = ||X_u||_F^2 <= 3/4`` and
    ``a = ||z_u||^2 <= 1/4``, both compared in integers (`extended`). So ``||Z_u||_F <= 1``: this is the second moment
    of records of norm at most 1 in ``d + 1`` columns, and for add_remove and replace_one the bounds of `SecondMoment`
    hold as proved there.

    An emptied record may keep any number of rows, hence constants, of squared norm ``b <= 1/4``. The sum then moves by
    ``D = [[X^T X, X^T z], [z^T X, a - b]]``, with ``||X^T z||^2 <= a s``.

    - *l2.* ``||D||_F^2 <= s^2 + 2 a s + (a - b)^2``, which is convex in a and in b and grows with s: at most 1, at
      ``s = 3/4``, ``a = 1/4`` and ``b = 0``.
    - *nuclear.* Let ``w = X^T z / sqrt(a)`` and ``p = |w|^2 <= s``. Then ``X^T X - w w^T`` is positive semi-definite of
      trace ``s - p``, and ``[[w w^T, sqrt(a) w], [sqrt(a) w^T, a - b]]`` has nuclear norm ``sqrt((p + a - b)^2 + 4 p
      b)``, which less p grows with p. So ``||D||_*^2 <= (s + a - b)^2 + 4 s b``, convex in a and in b: at most 21/16,
      at ``s = 3/4`` and ``a = b = 1/4``. *Scores* move within an interval of that length.
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
        """Clip the records of a stored block, append their constants, and put them on the grid."""
        return extended(block, n_features=self.n_features, clip_norm=self.clip_norm, bits=self.bits)

    def add(self, block: RowBlock, total: NDArray[np.int64]) -> None:
        """Add the outer products of the block's extended rows."""
        self._moment.add(block, total)

    def map(self, block: RowBlock) -> NDArray[np.int64]:
        """Return the outer products of the block's extended rows."""
        return self._moment.map(block)

    @property
    def _moment(self) -> SecondMoment:
        return SecondMoment(
            n_features=self.n_features + 1,
            clip_norm=RADIUS * self.clip_norm,
            relation=self.relation,
            bits=self.bits,
        )
