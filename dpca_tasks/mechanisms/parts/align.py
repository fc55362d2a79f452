"""Alignment of a version of a subspace with the version before, so that coordinates of rows do not jump overnight.

A subspace has many bases. Of the bases of tonight's, the one nearest to last night's aligned basis is the orthogonal
Procrustes solution. It spans the same subspace and captures the same variance, but its rows are no principal axes any
more. Only published directions are used.

>>> turned = align(np.eye(2, 3)[::-1], np.eye(2, 3), method="procrustes")
>>> turned.components.tolist(), turned.cosines.tolist(), turned.broke
([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]], [1.0, 1.0], False)
"""

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from dpca_tasks.errors import InvalidInput

type Matrix = NDArray[np.float64]
Alignment = Literal["procrustes", "signs", "none"]

BROKEN = 0.5
"""The cosine between two subspaces below which some coordinate of the one has no counterpart in the other."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Aligned:
    """A version of a subspace in coordinates near those of the version before.

    Parameters
    ----------
    components : float64 array of shape (k, d)
        Orthonormal rows: ``rotation`` times those that were given.
    rotation : float64 array of shape (k, k)
        Orthogonal; a row's coordinates in the given components, times its transpose, are those in these.
    cosines : float64 array of shape (k,)
        Of the principal angles between the two subspaces, falling.
    """

    components: Matrix
    rotation: Matrix
    cosines: Matrix

    @property
    def broke(self) -> bool:
        """Whether coordinates broke: some direction has no counterpart in the version before."""
        return bool(self.cosines[-1] < BROKEN)


def align(components: Matrix, before: Matrix, *, method: Alignment) -> Aligned:
    """Turn components toward those of the version before.

    Parameters
    ----------
    components : float64 array of shape (k, d)
        Orthonormal rows.
    before : float64 array of shape (k, d)
        The rows of the version before, as they were published.
    method : {"procrustes", "signs", "none"}
        ``procrustes``: the nearest basis. ``signs``: components stay principal axes, and only their signs are chosen.
        ``none``: as they are; cosines are computed all the same.
    """
    if method not in get_args(Alignment):
        raise InvalidInput(f"align={method!r} must be one of {', '.join(get_args(Alignment))}; choose one.")
    if components.shape != before.shape:
        raise InvalidInput(
            f"components of shape {components.shape} cannot be aligned with ones of shape {before.shape}; both "
            "versions must have the same components and columns: align with another version, or not at all."
        )
    crossed = before @ components.T
    left, cosines, right = np.linalg.svd(crossed)
    rotation = np.eye(len(components))
    if method == "procrustes":
        rotation = left @ right
    elif method == "signs":
        rotation[np.diag_indices_from(rotation)] = np.where(np.diag(crossed) < 0.0, -1.0, 1.0)
    return Aligned(components=rotation @ components, rotation=rotation, cosines=np.minimum(cosines, 1.0))
