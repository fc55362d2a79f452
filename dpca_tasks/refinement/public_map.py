"""A public linear map of records, with entries on a grid, that shrinks a few known directions.

A release in rounds (`dpca_tasks.refinement.rounds`) multiplies records by such a map before it clips them.

>>> axis = np.eye(3)[:, :1]
>>> halved = PublicMap.on_grid(axis, np.array([0.5]))
>>> halved.forward(np.ones((3, 1))).ravel().tolist()
[0.5, 1.0, 1.0]
>>> halved.inverse(halved.forward(np.ones((3, 1)))).ravel().tolist()
[1.0, 1.0, 1.0]
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

type Matrix = NDArray[np.float64]

MAP_BITS = 12
"""U and W of a map are multiples of ``2^-12``."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PublicMap:
    """The linear map ``T = I - W U^T`` of d features, exactly as its integers define it.

    Parameters
    ----------
    directions, reductions : int64 arrays of shape (d, r)
        U and ``W = U diag(1 - t)``, both in steps of ``2^-12``. The map multiplies direction i by t_i. With r = 0 the
        map is the identity.

    Notes
    -----
    U and W are rounded independently, so T need not be symmetric. A record x becomes ``T x``, and its second moment
    ``T x x^T T^T``. The inverse is ``I + W (I - U^T W)^-1 U^T``, by Woodbury's formula.
    """

    directions: NDArray[np.int64]
    reductions: NDArray[np.int64]

    @classmethod
    def identity(cls, n_features: int) -> "PublicMap":
        """Return the identity map."""
        none = np.zeros((n_features, 0), np.int64)
        return cls(directions=none, reductions=none)

    @classmethod
    def on_grid(cls, directions: Matrix, factors: Matrix) -> "PublicMap":
        """Return a map, rounded to the grid, that multiplies r orthonormal columns by factors t from 0 to 1."""
        steps = directions * 2.0**MAP_BITS
        return cls(
            directions=np.rint(steps).astype(np.int64), reductions=np.rint(steps * (1.0 - factors)).astype(np.int64)
        )

    @property
    def width(self) -> int:
        """The number r of directions."""
        return int(self.directions.shape[1])

    @property
    def basis(self) -> Matrix:
        """The matrix U of directions, as floats."""
        return np.asarray(self.directions * 2.0**-MAP_BITS)

    def forward(self, columns: Matrix) -> Matrix:
        """Apply the map T to columns B of shape (d, p): return ``T B``."""
        return np.asarray(columns - self.reduced @ (self.basis.T @ columns))

    def inverse(self, columns: Matrix) -> Matrix:
        """Apply the inverse of the map T to columns B: return ``T^-1 B``."""
        return np.asarray(columns + self._restored @ (self.basis.T @ columns))

    def inverse_transposed(self, columns: Matrix) -> Matrix:
        """Apply the transposed inverse of the map T to columns B: return ``T^-T B``."""
        return np.asarray(columns + self.basis @ (self._restored.T @ columns))

    def around(self, matrix: Matrix) -> Matrix:
        """Return ``T A T^T`` for the map T and a symmetric matrix A of shape (d, d)."""
        return _both_sides(matrix, -self.reduced, self.basis)

    def transposed_around(self, matrix: Matrix) -> Matrix:
        """Return ``T^T A T`` for the map T and a symmetric matrix A."""
        return _both_sides(matrix, -self.basis, self.reduced)

    def inverse_around(self, matrix: Matrix) -> Matrix:
        """Return ``T^-1 A T^-T`` for the map T and a symmetric matrix A."""
        return _both_sides(matrix, self._restored, self.basis)

    def gram(self, basis: Matrix) -> Matrix:
        """Return ``Q^T T^T T Q`` for the map T and the columns Q of ``basis``."""
        mapped = self.forward(basis)
        return np.asarray(mapped.T @ mapped)

    @property
    def reduced(self) -> Matrix:
        """The matrix ``W = U diag(1 - t)`` of reductions, as floats."""
        return np.asarray(self.reductions * 2.0**-MAP_BITS)

    @property
    def _restored(self) -> Matrix:
        """The matrix R with which the inverse map is ``I + R U^T``."""
        reduced = self.reduced
        core = np.eye(self.width) - self.basis.T @ reduced
        return np.asarray(np.linalg.solve(core.T, reduced.T).T)


def _both_sides(matrix: Matrix, left: Matrix, right: Matrix) -> Matrix:
    """Return ``(I + L R^T) A (I + L R^T)^T`` for symmetric A; the result is exactly symmetric."""
    inner = right.T @ matrix
    change = left @ (inner + (inner @ right) @ left.T / 2.0)
    return np.asarray(matrix + (change + change.T))
