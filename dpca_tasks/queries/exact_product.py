"""The product X^T (X V) of clipped records, without rounding: one pass of an eigensolver inside the trust boundary."""

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from dpca_tasks.blocks import RowBlock
from dpca_tasks.errors import InvalidInput
from dpca_tasks.kernels import add_exact_products
from dpca_tasks.layouts import Layout
from dpca_tasks.queries.base import Norm, RowSum

BITS = 12
"""The records' grid. Nothing is noised on it, so it bounds the work and not the noise."""

DIRECTION_BITS = 36
LIMBS, LIMB_BITS = 3, 16


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ExactProduct(RowSum):
    """Sum ``X_u^T (X_u V)`` over records u, as three limbs of 16 bits.

    Parameters
    ----------
    directions : int64 array of shape (n_features, p)
        V in steps of ``2^-36``, columns of norm 1 up to rounding. Secret where V depends on the rows; never shown.

    Notes
    -----
    A row of norm at most ``2^12`` steps times a column of norm ``2^36`` is below ``2^49``, so its limbs are at most
    ``2^17`` in magnitude, and ``2^33`` rows, the capacity of the design, add up to less than ``2^62``. It has no noisy
    release: what is made of it in floating point leaves through `dpca_tasks.privacy.curator.Curator.perturb` alone.
    """

    directions: NDArray[np.int64] = field(repr=False)

    name: ClassVar[str] = "exact_product"
    version: ClassVar[int] = 1
    degree: ClassVar[int] = 2

    def __post_init__(self) -> None:
        """Check that the limbs cannot overflow."""
        RowSum.__post_init__(self)
        columns = self.directions / 2.0**DIRECTION_BITS
        if len(columns) != self.n_features or self.bits > BITS or not (np.square(columns).sum(axis=0) < 1.01).all():
            raise InvalidInput(
                f"directions of shape {self.directions.shape} at bits={self.bits} must have n_features="
                f"{self.n_features} rows, columns of norm 1 and at most {BITS} bits; pass orthonormal columns."
            )

    @property
    def layout(self) -> Layout:
        """The limbs, each the matrix row by row."""
        return Layout(kind="vector", order=LIMBS * self.directions.size)

    def sensitivity(self, norm: Norm) -> float:
        """Refuse: the limbs of a sum have no useful one."""
        raise InvalidInput(f"{self.name} has no noisy release; use moment_product.")

    def map(self, block: RowBlock) -> NDArray[np.int64]:
        """Add the block's products, limb by limb."""
        total = np.zeros((LIMBS, *self.directions.shape), np.int64)
        add_exact_products(block.values, block.indices, block.row_ptr, self.directions, LIMB_BITS, total)
        return total.ravel()

    def product(self, total: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return ``X^T X V`` of shape (n_features, p) in units of the clip norm, rounded to floats at the end."""
        limbs = total.reshape(LIMBS, *self.directions.shape).astype(np.float64)
        whole = (limbs[2] * 2.0**LIMB_BITS + limbs[1]) * 2.0**LIMB_BITS + limbs[0]
        return np.asarray(whole * 2.0 ** -(2 * self.bits + DIRECTION_BITS))
