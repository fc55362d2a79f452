"""The solution for the factors of all items from noisy statistics: post-processing of released numbers."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

type Statistics = tuple[float, NDArray[np.float64], NDArray[np.float64]]
"""A weight, ``H`` of shape (m, r, r) and ``w`` of shape (m, r)."""


def pool(rounds: Sequence[Statistics]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the weighted means of H and of w over some rounds."""
    whole = sum(weight for weight, _, _ in rounds)
    outer = sum((weight / whole) * outer for weight, outer, _ in rounds)
    weighted = sum((weight / whole) * weighted for weight, _, weighted in rounds)
    return np.asarray(outer), np.asarray(weighted)


def solve_items(outer: NDArray[np.float64], weighted: NDArray[np.float64], *, ridge: float) -> NDArray[np.float64]:
    """Return ``(PSD(H_j) + ridge I)^-1 w_j`` for each item; the projection comes first, then the ridge.

    Where a Cholesky decomposition of ``H_j`` exists, the projection changes nothing, and is left out.
    """
    matrices = outer.copy()
    for matrix in matrices:
        if not _is_definite(matrix):
            values, vectors = np.linalg.eigh(matrix)
            matrix[:] = (vectors * np.maximum(values, 0.0)) @ vectors.T
    matrices += ridge * np.eye(outer.shape[1])
    return np.asarray(np.linalg.solve(matrices, weighted[:, :, None])[:, :, 0])


def orthonormal(factors: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return ``V (V^T V)^(-1/2)``, which keeps the frame of V; rows of 0 stay 0."""
    values, vectors = np.linalg.eigh(factors.T @ factors)
    roots = np.sqrt(np.maximum(values, 1e-12 * max(values[-1], 1e-300)))
    return np.asarray(factors @ (vectors / roots) @ vectors.T)


def _is_definite(matrix: NDArray[np.float64]) -> bool:
    try:
        np.linalg.cholesky(matrix)
    except np.linalg.LinAlgError:
        return False
    return True
