r"""The second moment of records minus a public mean, clipped again, for scores and directions around the mean.

Rows stay sparse. They end in a public constant, as those of `CentredMoment`, and their second moment M is summed; the
moment around the mean m is ``S = P^T M P`` with ``P = [I; -m^T]``.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from dpca_tasks.accounting.relation import Relation
from dpca_tasks.errors import InvalidInput
from dpca_tasks.kernels.gridding import SHIFT_BITS, grid_shifted_records
from dpca_tasks.layouts import Layout
from dpca_tasks.queries.augmented_moment import extended_rows
from dpca_tasks.queries.base import Norm, RowSum
from dpca_tasks.queries.second_moment import SecondMoment
from dpca_tasks.records.blocks import Block, RowBlock

RADIUS = 2.0
"""A bound on the norm of an extended record, in clip norms; its constants have norm 1."""

SHIFT_STEP = 2.0**-SHIFT_BITS
"""The grid step of a mean, in clip norms."""


def on_shift_grid(mean: NDArray[np.float64]) -> NDArray[np.int64]:
    """Scale a mean in clip norms to norm at most 1, and round it toward zero to the public grid of `SHIFT_STEP`."""
    length = max(float(np.sqrt(np.square(mean).sum())), 1.0)
    return np.trunc(mean / length * 2.0**SHIFT_BITS).astype(np.int64)


def relation_around(relation: Relation) -> Relation:
    """Return the relation whose bounds hold around a mean: replace_one for zero_out.

    An emptied record that keeps rows is at ``-m`` there, so emptying a record replaces it by a particular one.
    """
    return "replace_one" if relation == "zero_out" else relation


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ShiftedMoment(RowSum):
    r"""Sum ``Z_u^T Z_u`` over records u, where ``Z_u P`` is ``X_u`` minus the mean, clipped to norm 1.

    ``X_u`` is clipped to norm 1, each of its m rows is extended by ``1 / sqrt(m)``, and the result is multiplied by the
    largest weight up to 1 for which ``||Z_u P||_F <= 1``.

    Parameters
    ----------
    shift : int64 array of shape (n_features,)
        The mean m in steps of ``2^-16`` clip norms, of norm at most 1; defined as by `CentredMoment` for records of
        several rows.

    Notes
    -----
    Sensitivity. ``Y_u = Z_u P`` has norm at most 1 *as a program*: `dpca_tasks.kernels.gridding` compares
    integers after all rounding, for each record by itself. S is the sum of ``Y_u^T Y_u``, so its scores move as proved
    for `SecondMoment`: by 1 for add_remove, 2 for replace_one. An emptied record may keep its rows, hence its
    constants, and then adds a multiple of ``m m^T`` of trace at most 1, like another record: 2 for zero_out too.
    The proof uses no property of m. ``Z_u`` itself has norm up to 2, so noise is not added to M, and other norms are
    refused.

    The capacity is that of `SecondMoment` with one more bit, for that norm. S is computed from M in floating point,
    with an error of about ``2^-50`` of the number of records.
    """

    shift: NDArray[np.int64]

    name: ClassVar[str] = "shifted_moment"
    version: ClassVar[int] = 1
    degree: ClassVar[int] = 2

    def __post_init__(self) -> None:
        """Check the mean and the grid of extended records."""
        RowSum.__post_init__(self)
        _ = self._moment
        shift = self.shift
        if shift.shape != (self.n_features,) or shift.dtype != np.int64 or not _is_short(shift):
            raise InvalidInput(
                f"shift of shape {shift.shape} must have n_features={self.n_features} entries and norm at most 1; "
                "pass what on_shift_grid returns."
            )

    @property
    def layout(self) -> Layout:
        """The symmetric matrix M of order d + 1."""
        return self._moment.layout

    def sensitivity(self, norm: Norm) -> float:
        """Return the sensitivity that the class notes prove."""
        if norm != "scores":
            raise InvalidInput(f"norm={norm!r} is not stated for records around a mean; use centred_moment.")
        return 1.0 if relation_around(self.relation) == "add_remove" else 2.0

    def grid(self, block: Block) -> RowBlock:
        """Clip, extend, shift, clip again and grid the records of a stored block, in units of 2 clip norms."""
        rows = extended_rows(block, n_features=self.n_features, clip_norm=self.clip_norm, constant=self.clip_norm)
        values, indices = np.asarray(rows.values, np.float64), np.asarray(rows.indices, np.int32)
        return RowBlock(
            values=grid_shifted_records(
                values, indices, rows.row_ptr, rows.record_ptr, self.shift, self.clip_norm, self.bits
            ),
            indices=indices,
            row_ptr=rows.row_ptr,
            record_ptr=rows.record_ptr,
            first_record=rows.first_record,
            n_features=self.n_features + 1,
            bits=self.bits + 1,
            density=rows.density,
        )

    def add(self, block: RowBlock, total: NDArray[np.int64]) -> None:
        """Add the outer products of the block's extended rows, in steps of ``4^-bits``."""
        self._moment.add(block, total)

    def map(self, block: RowBlock) -> NDArray[np.int64]:
        """Return the outer products of the block's extended rows."""
        return self._moment.map(block)

    def matrix(self, total: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return S, exactly symmetric."""
        half = lowered(RowSum.matrix(self, total), self.shift)
        whole = lowered(half.T, self.shift)
        return np.asarray((whole + whole.T) / 2)

    @property
    def _moment(self) -> SecondMoment:
        return SecondMoment(
            n_features=self.n_features + 1,
            clip_norm=RADIUS * self.clip_norm,
            relation=self.relation,
            bits=self.bits + 1,
        )


def moment_around(
    shift: NDArray[np.int64] | None, *, n_features: int, clip_norm: float, relation: Relation, bits: int
) -> SecondMoment | ShiftedMoment:
    """Return the second moment of records around a public mean, or around the origin if ``shift`` is None."""
    if shift is None:
        return SecondMoment(n_features=n_features, clip_norm=clip_norm, relation=relation, bits=bits)
    return ShiftedMoment(n_features=n_features, clip_norm=clip_norm, relation=relation, bits=bits, shift=shift)


def lifted(directions: NDArray[np.int64], shift: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return ``P V`` of shape (d + 1, p), exactly, for integer V whose entries are multiples of ``2^16``."""
    last = -(shift @ (directions >> SHIFT_BITS))
    return np.vstack([directions, last])


def lowered(images: NDArray[np.float64], shift: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return ``P^T U`` of shape (d, p), for U of shape (d + 1, p)."""
    return images[:-1] - np.outer(shift / 2.0**SHIFT_BITS, images[-1])


def _is_short(shift: NDArray[np.int64]) -> bool:
    """Tell whether the norm is at most 1, exactly; entries above 1 are not squared, which avoids overflow."""
    most = 1 << SHIFT_BITS
    return bool((shift >= -most).all() and (shift <= most).all() and int(np.vdot(shift, shift)) <= most * most)
