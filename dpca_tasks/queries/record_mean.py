"""The sum of the rows and the count: what a mean takes, for mechanisms that never form a second moment."""

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from dpca_tasks.blocks import Block, RowBlock
from dpca_tasks.errors import InvalidInput
from dpca_tasks.layouts import Layout
from dpca_tasks.queries.base import Norm, RowSum
from dpca_tasks.queries.centred_moment import RADIUS, extended

_UP = 1.0 + 2.0**-50  # covers the rounding of a bound


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RecordMean(RowSum):
    r"""Sum ``Z_u^T z_u`` over records u, where ``z_u`` is the column of constants of the extended record ``Z_u``.

    It is the last column of `CentredMoment`: for records of one row, c times the sum of the rows, then c^2 times
    the count.

    Notes
    -----
    Sensitivity, in units of ``1 + c^2`` squared clip norms, in which ``||Z_u||_F <= 1`` by the grid and
    ``a = ||z_u||^2 <= 1/4`` by a cap in integers. With ``Z_u = [X_u z_u]`` a record adds ``(X_u^T z_u, a)``, where
    ``||X_u^T z_u||^2 <= a (1 - a) <= 3/16``.

    - *l2.* The square is at most ``a (1 - a) + a^2 = a``: 1/2 for add_remove, and 1 for replace_one by the triangle
      inequality. An emptied record may keep its rows, so the last entry moves by ``a - b`` with b in [0, 1/4] too:
      for ``b <= a`` by no more than a, else ``a (1 - a) + (b - a)^2 <= b (1 - b)``, which is less than 1/4.
    - *l1.* ``||X_u^T z_u||_1 <= sqrt(d) ||X_u^T z_u||_2 <= sqrt(3 d) / 4``, and the last entry moves by at most 1/4:
      ``(sqrt(3 d) + 1) / 4`` for add_remove, where rows of equal entries attain it, and for zero_out;
      ``(2 sqrt(3 d) + 1) / 4`` for replace_one, whose last entries are both in [0, 1/4].
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
        """The squared bound of an extended record."""
        return float((RADIUS * self.clip_norm) ** 2)

    def sensitivity(self, norm: Norm) -> float:
        """See the class notes for the proof."""
        replaced = self.relation == "replace_one"
        match norm:
            case "l2":
                return 1.0 if replaced else 0.5
            case "l1":
                return ((2.0 if replaced else 1.0) * math.sqrt(3.0 * self.n_features) + 1.0) / 4.0 * _UP
        raise InvalidInput(f"norm={norm!r} is not stated for the record mean; use a Gaussian (l2) or Laplace law (l1).")

    def grid(self, block: Block) -> RowBlock:
        """Clip, extend and grid a stored block's records."""
        return extended(block, n_features=self.n_features, clip_norm=self.clip_norm, bits=self.bits)

    def map(self, block: RowBlock) -> NDArray[np.int64]:
        """Add the rows of every record, each times its own constant, in steps of ``4^-bits``."""
        sizes = np.diff(block.record_ptr)
        caps = np.floor(np.sqrt(4 ** (self.bits - 1) // np.maximum(sizes, 1))).astype(np.int64)
        lengths = np.diff(block.row_ptr)
        constants = block.values[block.row_ptr[1:] - 1].astype(np.int64)  # the last entry of every extended row
        constants = np.minimum(constants, np.repeat(caps, sizes))
        last = np.zeros(block.values.size, bool)
        last[block.row_ptr[1:] - 1] = True
        values = np.where(last, np.repeat(constants, lengths), block.values.astype(np.int64))
        total = np.zeros(self.layout.size, np.int64)
        np.add.at(total, block.indices, values * np.repeat(constants, lengths))
        return total
