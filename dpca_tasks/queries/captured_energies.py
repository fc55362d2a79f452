"""The squares of the records along the first of some public directions, along the others, and off all of them."""

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from dpca_tasks.errors import InvalidInput
from dpca_tasks.kernels.gridding import add_energies, record_squares, shifted_squares
from dpca_tasks.layouts import Layout
from dpca_tasks.queries.base import SQRT_2_UP, Norm, RowSum
from dpca_tasks.queries.recentred_moment import SHIFT_STEP, ShiftedMoment, relation_around
from dpca_tasks.queries.rounded_product import DIRECTION_BITS, is_on_grid
from dpca_tasks.records.blocks import Block, RowBlock

PARTS = 3


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CapturedEnergies(RowSum):
    r"""Sum ``(||X_u w_1||^2, sum_j>1 ||X_u w_j||^2, the rest of ||X_u||^2)`` over records u.

    Parameters
    ----------
    directions : int64 array of shape (n_features, k)
        W in steps of ``2^-24``, entries at most 1 in magnitude; orthonormal columns in practice.
    shift : int64 array of shape (n_features,), optional
        A public mean, as for `ShiftedMoment`: records are taken around it, and clipped again.

    Notes
    -----
    Sensitivity. A record adds three whole numbers of steps, none negative, that add up to its squared norm: each is cut
    to what the ones before it leave. That norm is at most 1, compared in integers when the record is put on the grid.
    So a record adds a point p of the set of all ``p >= 0`` with ``p_1 + p_2 + p_3 <= 1``.

    - *add_remove and zero_out*: the sum moves by p, and ``||p||_2 <= ||p||_1 <= 1``. A record along ``w_1`` attains it.
    - *replace_one*: it moves by ``p - q`` of two such points, and ``||p - q||_1 <= 2``. In l2 ``||p - q||^2 = ||p||^2 +
      ||q||^2 - 2 <p, q> <= 2``, since no entry is negative. Records along ``w_1`` and ``w_2`` attain both.
    - *Around a mean* the same holds of records around it; an emptied record that keeps its rows is one at ``-m``, so
      emptying a record replaces it by a particular one, and the bounds are those of replace_one.

    The proof uses no property of W or of the mean: directions that are not quite orthonormal on their grid, or rounded
    scores, change what is measured by about ``2^-24`` and a step, and not the bounds.
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
        """The key in the table of sensitivities, with whether there is a mean."""
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
        """Clip the records of a stored block, around the mean if there is one, and put them on the grid."""
        return RowSum.grid(self, block) if self.shift is None else self._around.grid(block)

    def map(self, block: RowBlock) -> NDArray[np.int64]:
        """Return the sums of the block's records, in steps of ``4^-bits``."""
        total = np.zeros(PARTS, np.int64)
        rows = (block.values, block.indices, block.row_ptr, block.record_ptr)
        if self.shift is None:
            squares, directions = record_squares(block.values, block.row_ptr, block.record_ptr), self.directions
        else:
            squares = shifted_squares(*rows, self.shift)
            last = -np.rint(self.shift @ self.directions.astype(np.float64) * SHIFT_STEP).astype(np.int64)
            directions = np.vstack([self.directions, last])
        add_energies(*rows, directions, DIRECTION_BITS, squares, total)
        return total

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
