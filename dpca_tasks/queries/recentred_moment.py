r"""Second moments of records minus a public mean, as a full matrix or only along public directions.

`ShiftedMoment` is the second moment of records minus a public mean m, clipped after the subtraction. It serves to score
and to compute directions around the mean. So that rows stay sparse, a public constant is appended to each row, as in
`CentredMoment`, and the second moment M of these longer rows is summed. The second moment around m is then
``S = P^T M P`` with ``P = [I; -m^T]``.

`CapturedEnergies` sums three parts of the squared norms of records: along the first of several public directions, along
the other directions, and orthogonal to all directions.
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
"""Bound on the norm of a record with appended constants, in clip norms; the constants have norm at most 1."""

SHIFT_STEP = 2.0**-SHIFT_BITS
"""Grid step of a mean, in clip norms."""


def on_shift_grid(mean: NDArray[np.float64]) -> NDArray[np.int64]:
    """Scale a mean, given in clip norms, to norm at most 1, and round it toward zero to steps of `SHIFT_STEP`."""
    length = max(float(np.sqrt(np.square(mean).sum())), 1.0)
    return np.trunc(mean / length * 2.0**SHIFT_BITS).astype(np.int64)


def relation_around(relation: Relation) -> Relation:
    """Return the neighbouring relation whose sensitivity bounds hold after a mean m is subtracted from records.

    For zero_out this is replace_one: an emptied record that keeps its rows becomes ``-m`` after the subtraction, so
    emptying a record replaces it by a particular other record. Other relations are returned unchanged.
    """
    return "replace_one" if relation == "zero_out" else relation


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ShiftedMoment(RowSum):
    r"""The second moment of records minus a public mean m, where each difference is clipped to norm 1.

    The query sums ``M = sum_u Z_u^T Z_u``, from which ``S = P^T M P`` follows with ``P = [I; -m^T]``. ``Z_u`` is made
    from the record ``X_u`` of p rows, clipped to norm 1, by appending ``1 / sqrt(p)`` to each row. ``Z_u P`` is then
    the record minus the mean. ``Z_u`` is multiplied by the largest weight up to 1 for which ``||Z_u P||_F <= 1``.

    Parameters
    ----------
    shift : int64 array of shape (n_features,)
        The mean m in steps of ``2^-16`` clip norms, of norm at most 1. For records of several rows, `CentredMoment`
        defines the mean.

    Notes
    -----
    Sensitivity. ``Y_u = Z_u P`` has norm at most 1, not only in real numbers but in the program:
    `dpca_tasks.kernels.gridding` compares integers after all rounding, separately for each record. S is the sum of
    ``Y_u^T Y_u``. So scores ``tr(V^T S V)`` change as proved for `SecondMoment`: by at most 1 for add_remove and 2 for
    replace_one. An emptied record may keep its rows and so its constants. It then adds a multiple of ``m m^T`` of trace
    at most 1, as another record would, so the bound for zero_out is 2 too. The proof uses no property of m. ``Z_u``
    itself has norm up to 2, so noise is never added to M, and sensitivities in other norms are refused.

    The sum needs one more bit than `SecondMoment`, because the norm of ``Z_u`` is up to 2. S is computed from M in
    floating point, with an error of about ``2^-50`` times the number of records.
    """

    shift: NDArray[np.int64]

    name: ClassVar[str] = "shifted_moment"
    version: ClassVar[int] = 1
    degree: ClassVar[int] = 2

    def __post_init__(self) -> None:
        """Check the mean, and the grid of records with appended constants."""
        RowSum.__post_init__(self)
        _ = self._moment
        shift = self.shift
        if shift.shape != (self.n_features,) or shift.dtype != np.int64 or not is_short(shift):
            raise InvalidInput(
                f"shift of shape {shift.shape} must have n_features={self.n_features} entries and norm at most 1; "
                "pass the result of on_shift_grid."
            )

    @property
    def layout(self) -> Layout:
        """The layout of the sum: the symmetric matrix M of order d + 1, for rows with an appended constant."""
        return self._moment.layout

    def sensitivity(self, norm: Norm) -> float:
        """Return the sensitivity of scores ``tr(V^T S V)``, as proved in the Notes section of the class."""
        if norm != "scores":
            raise InvalidInput(
                f"a moment around a mean has no sensitivity in norm={norm!r}; use CentredMoment for noise on a matrix."
            )
        return 1.0 if relation_around(self.relation) == "add_remove" else 2.0

    def grid(self, block: Block) -> RowBlock:
        """Clip the records of a stored block, append constants, clip the records minus the mean, and round to the grid.

        The unit of the grid is 2 clip norms.
        """
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
        """Add the second moment of a block's rows with constants to ``total``, in steps of ``4^-bits``."""
        self._moment.add(block, total)

    def matrix(self, total: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the second moment S around the mean as an exactly symmetric matrix, given the packed total."""
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
    """Return ``P V`` of shape (d + 1, p) for integer directions V, where ``P = [I; -m^T]`` for the mean m (``shift``).

    The result is exact, because the entries of V are multiples of ``2^16``.
    """
    last = -(shift @ (directions >> SHIFT_BITS))
    return np.vstack([directions, last])


def lowered(images: NDArray[np.float64], shift: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return ``P^T U`` of shape (d, p) for images U of shape (d + 1, p).

    ``P = [I; -m^T]`` for the mean m, which is ``shift`` in steps of ``2^-16``.
    """
    return images[:-1] - np.outer(shift / 2.0**SHIFT_BITS, images[-1])


def is_short(shift: NDArray[np.int64]) -> bool:
    """Return whether a mean on its integer grid has norm at most 1, computed exactly.

    If an entry exceeds 1, the norm is not computed, because its squares could overflow.
    """
    most = 1 << SHIFT_BITS
    return bool((shift >= -most).all() and (shift <= most).all() and int(np.vdot(shift, shift)) <= most * most)


PARTS = 3


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CapturedEnergies(RowSum):
    r"""Sum three parts of the squared norm of each record ``X_u``, split along public directions.

    With the columns ``w_j`` of W, the parts are ``||X_u w_1||^2``, the sum of ``||X_u w_j||^2`` over ``j > 1``, and the
    rest of ``||X_u||^2``.

    Parameters
    ----------
    directions : int64 array of shape (n_features, k)
        The directions W in steps of ``2^-24``, with entries of magnitude at most 1; orthonormal columns in practice.
    shift : int64 array of shape (n_features,), optional
        A public mean, as for `ShiftedMoment`. The mean is subtracted from records, and the differences are clipped.

    Notes
    -----
    Sensitivity. A record adds three whole numbers of grid steps that are not negative and add up to the squared norm of
    the record: each number is cut to what the preceding numbers leave. The squared norm is at most 1, compared in
    integers when the record is converted to the grid. So a record adds a point p with ``p_1, p_2, p_3 >= 0`` and
    ``p_1 + p_2 + p_3 <= 1``.

    - *add_remove and zero_out*: the sum changes by p, and ``||p||_2 <= ||p||_1 <= 1``. A record along ``w_1`` attains
      this.
    - *replace_one*: the sum changes by ``p - q`` for two such points, and ``||p - q||_1 <= 2``. In l2
      ``||p - q||^2 = ||p||^2 + ||q||^2 - 2 <p, q> <= 2``, since no entry is negative. Records along ``w_1`` and ``w_2``
      attain both bounds.
    - *Around a mean m* the same holds for records minus m. An emptied record that keeps its rows becomes ``-m``. So
      emptying a record replaces it by a particular other record, and the bounds of replace_one apply.

    The proof uses no property of W or of the mean. Rounding of scores, and of directions to their grid, changes the
    measured values by about ``2^-24`` plus one step, but not the bounds.
    """

    directions: NDArray[np.int64]
    shift: NDArray[np.int64] | None = None

    name: ClassVar[str] = "captured_energies"
    version: ClassVar[int] = 1
    degree: ClassVar[int] = 2

    def __post_init__(self) -> None:
        """Check the directions, and that scores are exact: row norm times column norm is below ``2^62``."""
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
        """The key of this query in the table of sensitivities; with and without a mean the keys differ."""
        return f"{self.name} {self.version}" + ("" if self.shift is None else " around a mean")

    @property
    def layout(self) -> Layout:
        """The layout of the sum: a vector of three numbers."""
        return Layout(kind="vector", order=PARTS)

    def sensitivity(self, norm: Norm) -> float:
        """Return the sensitivity in a norm, as proved in the Notes section of the class."""
        if norm not in ("l1", "l2"):
            raise InvalidInput(
                f"sums of squared norms have no sensitivity in norm={norm!r}; use Laplace (l1) or Gaussian noise (l2)."
            )
        relation = self.relation if self.shift is None else relation_around(self.relation)
        if relation != "replace_one":
            return 1.0
        return SQRT_2_UP if norm == "l2" else 2.0

    def grid(self, block: Block) -> RowBlock:
        """Clip the records of a stored block, minus the mean if there is one, and round them to the grid."""
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
