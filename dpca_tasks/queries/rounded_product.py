"""The product X^T (X V) of clipped records with public directions V: one step of a power method."""

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from dpca_tasks.errors import InvalidInput
from dpca_tasks.kernels.dense_products import add_dense_moment_products, is_dense
from dpca_tasks.kernels.long_records import add_long_products
from dpca_tasks.kernels.panels import add_near_moment_products, is_near
from dpca_tasks.kernels.products import add_moment_products
from dpca_tasks.layouts import Layout
from dpca_tasks.queries.base import Norm, RowSum
from dpca_tasks.records.blocks import RowBlock

DIRECTION_BITS = 24
UNLIMITED = 1 << 62


def on_direction_grid(directions: NDArray[np.float64]) -> NDArray[np.int64]:
    """Round orthonormal columns to the public grid of step ``2^-24``."""
    return np.rint(directions * 2.0**DIRECTION_BITS).astype(np.int64)


def is_on_grid(directions: NDArray[np.int64]) -> bool:
    """Tell whether entries are at most 1 in magnitude; the least int64, whose magnitude is none, is not."""
    return bool(directions.min() >= -(2**DIRECTION_BITS) and directions.max() <= 2**DIRECTION_BITS)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MomentProduct(RowSum):
    r"""Sum ``X_u^T Y_u`` over records u, where ``Y_u`` is ``X_u V`` on the grid, clipped to norm 1.

    Parameters
    ----------
    directions : int64 array of shape (n_features, p)
        V in steps of ``2^-24``, entries at most 1 in magnitude; orthonormal columns in practice.

    Notes
    -----
    Sensitivity. ``||X_u||_F <= 1`` by the grid, ``||Y_u||_F <= 1`` by the clip in integers, so
    ``||X_u^T Y_u||_F <= 1``: the l2 sensitivity is 1 for add_remove and zero_out. For replace_one it is 2 by
    the triangle inequality: the sharper ``sqrt 2`` of the unrounded map does not hold after the scores of records of
    many rows are rounded; `dpca_tasks.queries.clipped_product` rounds those differently. The proof uses no property of
    V. Every ``Y_u`` is a function of that record and V only: exact integer products, an integer rounding rule, and one
    division and square root in a fixed order.

    References
    ----------
    Hardt and Price (2014), The noisy power method, Algorithm 1; Hardt and Roth (2013).
    """

    directions: NDArray[np.int64]

    name: ClassVar[str] = "moment_product"
    version: ClassVar[int] = 1
    degree: ClassVar[int] = 2

    def __post_init__(self) -> None:
        """Check that scores are exact in floats: a row's norm times a column's is at most ``2^52``."""
        RowSum.__post_init__(self)
        rows, width = self.directions.shape
        if rows != self.n_features or width < 1 or not is_on_grid(self.directions):
            raise InvalidInput(
                f"directions of shape {self.directions.shape} must have n_features={self.n_features} rows "
                "and entries of magnitude at most 1; pass orthonormal columns."
            )
        if self.bits + DIRECTION_BITS + math.log2(self.n_features) / 2 > 52:
            raise InvalidInput(f"bits={self.bits} is too fine for exact products; use at most 14.")

    @property
    def layout(self) -> Layout:
        """The matrix as a vector, row by row."""
        return Layout(kind="vector", order=self.directions.size)

    @property
    def longest(self) -> int:
        """The largest number of rows of a record whose scores are rounded; for longer ones the product is rounded."""
        return UNLIMITED

    @property
    def most(self) -> int:
        """The largest norm of a record's contribution, in steps."""
        return self.steps_per_unit

    def sensitivity(self, norm: Norm) -> float:
        """Return the sensitivity that the class notes prove."""
        if norm != "l2":
            raise InvalidInput(f"norm={norm!r} is not stated for the moment product; use Gaussian noise (l2).")
        return 2.0 if self.relation == "replace_one" else 1.0

    def add(self, block: RowBlock, total: NDArray[np.int64]) -> None:
        """Add the block's products, in steps of ``4^-bits``."""
        rows = (block.values, block.indices, block.row_ptr, block.record_ptr)
        if is_dense(block.density):
            kernel = add_dense_moment_products
        else:
            kernel = add_near_moment_products if is_near(block.values.size, self.directions) else add_moment_products
        directions, longest, most = self.directions.astype(np.int32), self.longest, self.most
        kernel(*rows, directions, DIRECTION_BITS, self.bits, longest, most, total)
        if longest < UNLIMITED:
            add_long_products(*rows, directions, DIRECTION_BITS, self.bits, longest, most, total)

    def map(self, block: RowBlock) -> NDArray[np.int64]:
        """Return the sum of the block's products."""
        total = np.zeros(self.layout.size, np.int64)
        self.add(block, total)
        return total
