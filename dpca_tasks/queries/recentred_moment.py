r"""Second moments of records minus a public mean, whole or along public directions.

`ShiftedMoment` is the second moment of records minus a public mean, clipped again, for scores and directions around the
mean. Rows stay sparse. As in `CentredMoment` they end in a public constant, and their second moment M is summed. The
moment around the mean m is ``S = P^T M P`` with ``P = [I; -m^T]``.

`CapturedEnergies` sums the squares of the records along the first of some public directions, along the others, and
orthogonal to all of them.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from dpca_tasks.accounting.events import Relation
from dpca_tasks.errors import InvalidInput
from dpca_tasks.kernels.gridding import SHIFT_BITS, add_energies, grid_shifted_records, record_squares, shifted_squares
from dpca_tasks.layouts import Layout
from dpca_tasks.queries.base import SQRT_2_UP, Norm, RowSum
from dpca_tasks.queries.rounded_product import DIRECTION_BITS, is_on_grid
from dpca_tasks.queries.second_moment import SecondMoment, extended_rows
from dpca_tasks.records.blocks import Block, RowBlock

RADIUS = 2.0
"""Bound on the norm of an extended record, in clip norms; its constants have norm 1."""

SHIFT_STEP = 2.0**-SHIFT_BITS
"""Grid step of a mean, in clip norms."""


def on_shift_grid(mean: NDArray[np.float64]) -> NDArray[np.int64]:
    """Scale a mean in clip norms to norm at most 1, and round it toward zero to the public grid of `SHIFT_STEP`."""
    length = max(float(np.sqrt(np.square(mean).sum())), 1.0)
    return np.trunc(mean / length * 2.0**SHIFT_BITS).astype(np.int64)


def relation_around(relation: Relation) -> Relation:
    """Return the relation whose bounds hold around a mean: replace_one for zero_out.

    Around a mean an emptied record that keeps rows is at ``-m``, so emptying a record replaces it by a particular one.
    """
    return "replace_one" if relation == "zero_out" else relation


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ShiftedMoment(RowSum):
    r"""Sum ``Z_u^T Z_u`` over records u, where ``Z_u P`` is ``X_u`` minus the mean, clipped to norm 1.

    ``X_u`` is clipped to norm 1, and each of its m rows is extended by ``1 / sqrt(m)``. The result is multiplied by the
    largest weight up to 1 for which ``||Z_u P||_F <= 1``.

    Parameters
    ----------
    shift : int64 array of shape (n_features,)
        The mean m in steps of ``2^-16`` clip norms, of norm at most 1. For records of several rows it is defined as by
        `CentredMoment`.

    Notes
    -----
    Sensitivity. ``Y_u = Z_u P`` has norm at most 1 *as a program*: `dpca_tasks.kernels.gridding` compares integers
    after all rounding, separately for each record. S is the sum of ``Y_u^T Y_u``, so its scores move as proved for
    `SecondMoment`: by 1 for add_remove, 2 for replace_one. An emptied record may keep its rows, hence its constants. It
    then adds a multiple of ``m m^T`` of trace at most 1, like another record: 2 for zero_out too. The proof uses no
    property of m. ``Z_u`` itself has norm up to 2, so noise is not added to M, and other norms are refused.

    The capacity is as for `SecondMoment` with one more bit, because the norm of ``Z_u`` is up to 2. S is computed from
    M in floating point, with an error of about ``2^-50`` of the number of records.
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
        if shift.shape != (self.n_features,) or shift.dtype != np.int64 or not is_short(shift):
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


def is_short(shift: NDArray[np.int64]) -> bool:
    """Return whether the norm is at most 1, exactly; entries above 1 are not squared, which avoids overflow."""
    most = 1 << SHIFT_BITS
    return bool((shift >= -most).all() and (shift <= most).all() and int(np.vdot(shift, shift)) <= most * most)


PARTS = 3


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CapturedEnergies(RowSum):
    r"""Sum ``(||X_u w_1||^2, sum_j>1 ||X_u w_j||^2, the rest of ||X_u||^2)`` over records u.

    Parameters
    ----------
    directions : int64 array of shape (n_features, k)
        W in steps of ``2^-24``, entries at most 1 in magnitude; orthonormal columns in practice.
    shift : int64 array of shape (n_features,), optional
        A public mean, as for `ShiftedMoment`; records are shifted by it and clipped again.

    Notes
    -----
    Sensitivity. A record adds three whole numbers of steps, none negative, that add up to its squared norm: each number
    is capped at what the preceding ones leave. That norm is at most 1, compared in integers when the record is
    converted to the grid. So a record adds a point p of the set of all ``p >= 0`` with ``p_1 + p_2 + p_3 <= 1``.

    - *add_remove and zero_out*: the sum moves by p, and ``||p||_2 <= ||p||_1 <= 1``. A record along ``w_1`` attains it.
    - *replace_one*: it moves by ``p - q`` of two such points, and ``||p - q||_1 <= 2``. In l2
      ``||p - q||^2 = ||p||^2 + ||q||^2 - 2 <p, q> <= 2``, since no entry is negative. Records along ``w_1`` and ``w_2``
      attain both.
    - *Around a mean* the same holds for records around it. An emptied record that keeps its rows is a record at ``-m``.
      So emptying a record replaces it by a particular one, and the bounds of replace_one apply.

    The proof uses no property of W or of the mean. Directions that are not quite orthonormal on their grid, or rounded
    scores, change the measured value by about ``2^-24`` and a step, but not the bounds.
    """

    directions: NDArray[np.int64]
    shift: NDArray[np.int64] | None = None

    name: ClassVar[str] = "captured_energies"
    version: ClassVar[int] = 1
    degree: ClassVar[int] = 2

    def __post_init__(self) -> None:
        """Check that scores are exact: a row's norm times a column's stays below ``2^62``."""
        RowSum.__post_init__(self)
        if self.shift is not None:
            _ = self._around
        rows, width = self.directions.shape
        if rows != self.n_features or width < 1 or not is_on_grid(self.directions):
            raise InvalidInput(
                f"directions of shape {self.directions.shape} must have n_features={self.n_features} rows "
                "and entries of magnitude at most 1; pass orthonormal columns."
            )
        if self.bits + DIRECTION_BITS + math.log2(self.n_features + 1) / 2 > 60:
            raise InvalidInput(f"bits={self.bits} is too fine for exact products; use at most 14.")

    @property
    def kind(self) -> str:
        """The key in the table of sensitivities, which includes whether there is a mean."""
        return f"{self.name} {self.version}" + ("" if self.shift is None else " around a mean")

    @property
    def layout(self) -> Layout:
        """Three numbers."""
        return Layout(kind="vector", order=PARTS)

    def sensitivity(self, norm: Norm) -> float:
        """Return the sensitivity that the class notes prove."""
        if norm not in ("l1", "l2"):
            raise InvalidInput(f"norm={norm!r} is not stated for energies; use Laplace (l1) or Gaussian noise (l2).")
        relation = self.relation if self.shift is None else relation_around(self.relation)
        if relation != "replace_one":
            return 1.0
        return SQRT_2_UP if norm == "l2" else 2.0

    def grid(self, block: Block) -> RowBlock:
        """Clip the records of a stored block, around the mean if there is one, and convert them to the grid."""
        return RowSum.grid(self, block) if self.shift is None else self._around.grid(block)

    def add(self, block: RowBlock, total: NDArray[np.int64]) -> None:
        """Add the sums of the block's records, in steps of ``4^-bits``."""
        rows = (block.values, block.indices, block.row_ptr, block.record_ptr)
        if self.shift is None:
            squares, directions = record_squares(block.values, block.row_ptr, block.record_ptr), self.directions
        else:
            squares = shifted_squares(*rows, self.shift)
            last = -np.rint(self.shift @ self.directions.astype(np.float64) * SHIFT_STEP).astype(np.int64)
            directions = np.vstack([self.directions, last])
        add_energies(*rows, directions, DIRECTION_BITS, squares, total)

    @property
    def _around(self) -> ShiftedMoment:
        assert self.shift is not None
        return ShiftedMoment(
            n_features=self.n_features,
            clip_norm=self.clip_norm,
            relation=self.relation,
            bits=self.bits,
            shift=self.shift,
        )
