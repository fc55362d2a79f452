"""The sum of the rows and the count, which give a mean, for mechanisms that never form a second moment."""

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from dpca_tasks.errors import InvalidInput
from dpca_tasks.layouts import Layout
from dpca_tasks.queries.augmented_moment import RADIUS, extended
from dpca_tasks.queries.base import Norm, RowSum
from dpca_tasks.records.blocks import Block, RowBlock

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
    ``a = ||z_u||^2 <= 1/4``, compared in integers (`dpca_tasks.queries.augmented_moment.extended`). With
    ``Z_u = [X_u z_u]`` a record adds ``(X_u^T z_u, a)``, where ``||X_u^T z_u||^2 <= 3 a / 4``. An emptied record may
    keep rows, and adds ``(0, b)`` with b in [0, 1/4].

    - *l2.* The square is at most ``3 a / 4 + a^2 <= 1/4`` for add_remove, and ``3 a / 4 + (a - b)^2`` for zero_out,
      convex in a and in b, which is no more: 1/2. For replace_one, with ``u <= 1/2`` and ``v <= u`` the roots of a and
      of the other's, it is ``3/4 (u + v)^2 + (u^2 - v^2)^2 = (u + v)^2 (3/4 + (u - v)^2)``, where ``u + v <= 1 -
      (u - v)``: at most 3/4, at ``u = v = 1/2``.
    - *l1.* ``||X_u^T z_u||_1 <= sqrt(d) ||X_u^T z_u||_2 <= sqrt(3 d) / 4``, and the last entry moves by at most 1/4:
      ``(sqrt(3 d) + 1) / 4`` for add_remove, where rows of equal entries attain it, and for zero_out. For replace_one
      ``(u + v) (k + u - v)`` with ``k = sqrt(3 d) / 2``: at most k, at ``u = v = 1/2``, if ``d > 1``, else 7/8.
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
        """Clip the records of a stored block, append their constants, and put them on the grid."""
        return extended(block, n_features=self.n_features, clip_norm=self.clip_norm, bits=self.bits)

    def map(self, block: RowBlock) -> NDArray[np.int64]:
        """Return the sum of the block's rows, each times its own constant, in steps of ``4^-bits``."""
        constants = block.values[block.row_ptr[1:] - 1].astype(np.int64)  # the last entry of every extended row
        total = np.zeros(self.layout.size, np.int64)
        np.add.at(total, block.indices, block.values * np.repeat(constants, np.diff(block.row_ptr)))
        return total
