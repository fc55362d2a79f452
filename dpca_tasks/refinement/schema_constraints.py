"""Linear constraints that a declared schema imposes on every second moment, and the orthogonal projection onto them.

A categorical column becomes a group of features, of which at most one is nonzero in a row. So ``S_ij = 0`` for two
different features i and j of one group. Some groups are *filled*: every row has a nonzero feature in them, with the
same value in all filled groups. For filled groups g and h with indicator vectors 1_g and 1_h, each row x satisfies
``x^T (1_g - 1_h) = 0``, so ``S (1_g - 1_h) = 0``. Clipping scales all entries of a row by the same factor, so both
equations hold after clipping too.

The constraints follow from the public schema alone. Let L be the linear space of symmetric matrices that satisfy them.
The orthogonal projection onto L is post-processing of a release: it removes noise and no signal. The remaining noise is
normal on L, and its standard deviation is `Constraints.ratio` times the standard deviation before.

>>> space = Constraints(n_features=5, groups=((0, 2), (2, 5)), filled=(True, True))
>>> space.project(np.ones((5, 5))).round(3)[0].tolist()
[1.714, 0.0, 0.571, 0.571, 0.571]
>>> round(space.ratio(), 3)
0.632

Notes
-----
Let Z be the operator that sets the entries of the first constraint to 0, and let the g columns of G be the indicators
of the filled groups. The projection of A is ``P = Z(A - G Y^T - Y G^T)``, for the Y of shape (d, g) for which all
columns of ``P G`` are equal. Alternating projections onto both constraints also converge to P, but slowly. Conjugate
gradients find Y up to rounding, and each step only costs ``O(d g)``, since the groups are disjoint.
"""

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from dpca_tasks.refinement.conjugate_gradients import conjugate_gradients

type Matrix = NDArray[np.float64]

ACCURACY = 1e-24
"""Conjugate gradients stop when the residual's squared norm, relative to the sums over groups, is at most this."""
_STEPS = 1_000


@dataclass(frozen=True, kw_only=True, eq=False)
class Constraints:
    """Disjoint groups of features; in each row, at most one feature of a group is nonzero.

    Parameters
    ----------
    n_features : int
        The number d of features.
    groups : tuple of pairs of int
        For each group, the index of its first feature, and the index after its last feature.
    filled : tuple of bool
        For each group, whether exactly one of its features is nonzero in every row, with the value 1.
    """

    n_features: int
    groups: tuple[tuple[int, int], ...]
    filled: tuple[bool, ...]

    @classmethod
    def of(cls, facts: Mapping[str, Any] | None, *, n_features: int) -> Self | None:
        """Create constraints from the output of `facts` in a manifest; return None if ``facts`` is None."""
        if facts is None:
            return None
        groups = tuple((int(start), int(stop)) for start, stop in facts["groups"])
        return cls(n_features=n_features, groups=groups, filled=tuple(map(bool, facts["filled"])))

    def facts(self) -> dict[str, Any]:
        """Return ``groups`` and ``filled`` as plain JSON values."""
        return {"groups": [list(group) for group in self.groups], "filled": list(self.filled)}

    @property
    def sizes(self) -> tuple[int, ...]:
        """The sizes of the filled groups."""
        return tuple(stop - start for (start, stop), full in zip(self.groups, self.filled, strict=True) if full)

    @property
    def excludes(self) -> bool:
        """True if some symmetric matrix violates the constraints."""
        return len(self.sizes) > 1 or any(stop - start > 1 for start, stop in self.groups)

    @property
    def width(self) -> int:
        """The dimension of the space orthogonal to all null vectors ``1_g - 1_h``; the remaining noise is in it."""
        return self.n_features - max(len(self.sizes) - 1, 0)

    @cached_property
    def members(self) -> Matrix:
        """The indicator vectors of the g filled groups, as columns of a matrix of shape (d, g)."""
        found = np.zeros((self.n_features, len(self.sizes)))
        full = (ends for ends, full in zip(self.groups, self.filled, strict=True) if full)
        for column, (start, stop) in enumerate(full):
            found[start:stop, column] = 1.0
        return found

    def dimension(self, *, constant: bool = False) -> int:
        """Return the dimension of the space L of matrices that satisfy the constraints.

        If ``constant`` is true, a constant was appended to the rows.

        Notes
        -----
        Let there be g filled groups, of sizes n. The entries of S between two filled groups are a table of counts. Its
        margins are the diagonal entries of both groups, so the diagonals of all groups have equal sums. This gives
        ``sum n - (g - 1)`` free diagonal entries, and ``(n - 1) (n' - 1)`` further free entries for two groups of sizes
        n and n'. Each other feature has ``sum n - (g - 1)`` free entries with the filled groups.
        """
        sizes = self.sizes
        diagonal = sum(sizes) - max(len(sizes) - 1, 0)
        tables = sum((one - 1) * (two - 1) for one, two in itertools.combinations(sizes, 2))
        others = self.n_features - sum(sizes) + constant
        zeros = sum(
            math.comb(stop - start, 2) for (start, stop), full in zip(self.groups, self.filled, strict=True) if not full
        )
        return diagonal + tables + others * diagonal + others * (others + 1) // 2 - zeros

    def ratio(self, *, constant: bool = False, centred: bool = False) -> float:
        """Return the standard deviation of the noise after the projection, divided by its value before.

        If ``centred`` is true, the projection is `project_centred`, for moments around a mean.
        """
        left = math.comb(self.width + 1, 2) if centred else self.dimension(constant=constant)
        return math.sqrt(left / math.comb(self.n_features + constant + 1, 2))

    def project(self, matrix: Matrix) -> Matrix:
        """Return the nearest matrix that satisfies the constraints, in the Frobenius norm.

        Parameters
        ----------
        matrix : float64 array of shape (d, d) or (d + 1, d + 1)
            Symmetric. The order is d + 1 if a constant was appended to the rows.
        """
        kept = matrix.copy()
        self._set_zeros(kept)
        if len(self.sizes) < 2:
            return kept
        members = np.vstack([self.members, np.zeros((len(matrix) - self.n_features, len(self.sizes)))])
        product = members @ self._multipliers(kept @ members, members).T
        product += product.T
        self._set_zeros(product)
        kept -= product
        return kept

    def project_centred(self, matrix: Matrix) -> Matrix:
        """Return the nearest symmetric matrix A with ``A (1_g - 1_h) = 0`` for all filled groups g and h.

        A moment around a mean satisfies these equations, but not the zeros within groups.
        """
        if len(self.sizes) < 2:
            return matrix
        null = self._null
        inner = null.T @ matrix
        change = null @ (inner - (inner @ null) @ null.T / 2.0)
        return np.asarray(matrix - (change + change.T))

    @cached_property
    def _null(self) -> Matrix:
        """An orthonormal basis of the null vectors ``1_g - 1_h``, of shape (d, g - 1)."""
        return np.linalg.qr(self.members[:, 1:] - self.members[:, :1])[0]

    def _set_zeros(self, matrix: Matrix) -> None:
        for start, stop in self.groups:
            block = matrix[start:stop, start:stop]
            block[...] = np.diag(np.diag(block))

    def _multipliers(self, sums: Matrix, members: Matrix) -> Matrix:
        """Return Y of the notes above: ``Z(G Y^T + Y G^T) G C = A G C``, where C subtracts the mean of each row.

        ``sums`` is ``A G``, and ``members`` is G.
        """
        sizes, full = np.array(self.sizes, float), members.any(axis=1)
        own = members.astype(bool)
        at = own.argmax(axis=1)

        def image(found: Matrix) -> Matrix:
            sums = (members.T @ found).T[at]  # entry (i, h): the sum over group h, in the column of i's group
            product = found * sizes + np.where(full[:, None], sums, 0.0)
            product[own] = 2.0 * found[own]
            return _differences(product)

        enough = ACCURACY * float(np.square(sums).sum())
        none = np.zeros_like(sums)
        return conjugate_gradients(image, _differences(sums), start=none, steps=_STEPS, enough=enough)


def _differences(sums: Matrix) -> Matrix:
    return np.asarray(sums - sums.mean(axis=1, keepdims=True))
