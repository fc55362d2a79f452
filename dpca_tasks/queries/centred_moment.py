"""Second moment, mean and count in one query: the moment of rows that end in a public constant."""

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from dpca_tasks.blocks import Block, CsrBlock, RowBlock, as_floats, canonical, grid_block
from dpca_tasks.layouts import Layout
from dpca_tasks.queries.base import Norm, RowSum
from dpca_tasks.queries.second_moment import SecondMoment
from dpca_tasks.record_norms import extend_records

CONSTANT = 1.0 / math.sqrt(3.0)
"""c, in clip norms: an extended record of one row then ends in exactly half of its bound, which is on every grid."""
RADIUS = math.sqrt(1.0 + CONSTANT**2)
"""The norm of a record at the bound with its constants, in clip norms."""

_EMPTIED_NUCLEAR = math.nextafter(2.0 / math.sqrt(3.0), math.inf)


def extended_rows(block: Block, *, n_features: int, clip_norm: float, constant: float) -> CsrBlock:
    """Clip records to ``clip_norm`` and append a constant, in data units, to their rows, as a column behind the others.

    The m rows of one record share its constant, ``constant / sqrt(m)`` each, so that every record has all of it.
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
    )


def extended(block: Block, *, n_features: int, clip_norm: float, bits: int) -> RowBlock:
    """Clip records to ``clip_norm``, append c to their rows, and put them on the grid of norm ``RADIUS clip_norm``."""
    longer = extended_rows(block, n_features=n_features, clip_norm=clip_norm, constant=CONSTANT * clip_norm)
    return grid_block(longer, n_features=n_features + 1, clip_norm=RADIUS * clip_norm, bits=bits)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CentredMoment(RowSum):
    r"""Sum ``Z_u^T Z_u`` over records u, where ``Z_u`` is ``X_u`` with a public constant c after every row.

    For records of one row its blocks are the second moment, c times the sum, and c^2 times the count, of which
    a centred second moment is post-processing. A record of m rows has ``c / sqrt(m)`` after each.

    Notes
    -----
    Sensitivity, in units of ``1 + c^2`` squared clip norms. ``||Z_u||_F^2 = ||X_u||_F^2 + c^2 <= 1 + c^2``, and the
    grid clips ``Z_u`` to that bound in integers. So this is the second moment of records of norm at most 1 in
    ``d + 1`` columns, and for add_remove and replace_one the bounds of `SecondMoment` hold as proved there.

    An emptied record may keep its rows, hence its constants, of norm e say. For one row ``x``, ``|x|^2 <= 1 - e^2``,
    the sum moves by ``D = [[x x^T, e x], [e x^T, 0]]``, with ``||D||_F^2 = |x|^4 + 2 e^2 |x|^2 <= 1 - e^4 <= 1``; its
    nuclear norm squared is ``|x|^4 + 4 e^2 |x|^2 <= (1 - e^2) (1 + 3 e^2) <= 4/3``, and its triangle adds up to at most
    ``(1 - e^2) (d + 1) / 2 + e sqrt(d) <= (d + 2) / 2``. More rows add a positive semi-definite part to ``x x^T`` with
    no share in the rest, and take its trace from ``|x|^2``: no bound grows.
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
        """The squared bound of an extended record."""
        return self._moment.unit

    def sensitivity(self, norm: Norm) -> float:
        """See the class notes for the proof."""
        if norm in ("nuclear", "scores") and self.relation == "zero_out":
            return _EMPTIED_NUCLEAR
        return self._moment.sensitivity(norm)

    def grid(self, block: Block) -> RowBlock:
        """Clip, extend and grid a stored block's records."""
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
