"""Factors of items: their public grid, and their solution from noisy statistics.

Users compute on the grid: one unit for training and prediction, whatever the mechanism. The solution for the factors of
all items is post-processing of released numbers.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from dpca_tasks.privacy.curator import TiledAnswer

UNIT = 2.0**-24
"""One step of the grid of item factors, and of directions of ratings."""


def in_steps(factors: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return factors in steps of `UNIT`, rounded to the nearest."""
    return np.rint(factors / UNIT).astype(np.int64)


def on_grid(factors: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return factors rounded to the grid."""
    return np.rint(factors / UNIT) * UNIT


type Statistics = tuple[float, NDArray[np.float64], NDArray[np.float64]]
"""A weight, ``H`` of shape (m, r, r) and ``w`` of shape (m, r)."""


def pool(rounds: Sequence[Statistics]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the weighted means of H and of w over some rounds."""
    whole = sum(weight for weight, _, _ in rounds)
    outer = sum((weight / whole) * outer for weight, outer, _ in rounds)
    weighted = sum((weight / whole) * weighted for weight, _, weighted in rounds)
    return np.asarray(outer), np.asarray(weighted)


def solve_rounds(
    rounds: Sequence[tuple[float, TiledAnswer]], *, rank: int, ridge: float, unobserved: float = 0.0
) -> NDArray[np.float64]:
    """Return the factors of all items from the last rounds, tile by tile: only one tile is held at a time.

    Parameters
    ----------
    rounds : sequence of (float, TiledAnswer)
        Weights, and the answers with parts ``outer`` and ``weighted``, in the same tiles; ``gram`` where it is asked.
    rank : int
    ridge : float
        Of the items' regressions.
    unobserved : float
        The weight of ``gram``, the second moment of all users' factors, in every item's matrix.
    """
    solved, shared = [], None
    for at, tile in enumerate(rounds[-1][1].tiles):
        read = [(weight, answer.read(at)) for weight, answer in rounds]
        if unobserved and tile.first == 0:
            whole = sum(weight for weight, _ in read)
            gram = np.asarray(sum((weight / whole) * parts["gram"] for weight, parts in read))
            shared = unobserved * _projected(gram)
        outer, weighted = pool(
            [(weight, parts["outer"], parts["weighted"].reshape(-1, rank)) for weight, parts in read]
        )
        solved.append(solve_items(outer, weighted, ridge=ridge, shared=shared))
    return np.concatenate(solved)


def solve_items(
    outer: NDArray[np.float64],
    weighted: NDArray[np.float64],
    *,
    ridge: float,
    shared: NDArray[np.float64] | None = None,
) -> NDArray[np.float64]:
    """Return ``(PSD(H_j) + K + ridge I)^-1 w_j`` for each item; the projection comes first, then the ridge.

    Where a Cholesky decomposition of ``H_j`` exists, the projection changes nothing, and is left out. K is ``shared``.
    """
    matrices = outer.copy()
    for matrix in matrices:
        if not _is_definite(matrix):
            matrix[:] = _projected(matrix)
    matrices += ridge * np.eye(outer.shape[1])
    if shared is not None:
        matrices += shared
    return np.asarray(np.linalg.solve(matrices, weighted[:, :, None])[:, :, 0])


def orthonormal(factors: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return ``V (V^T V)^(-1/2)``, which keeps the frame of V; rows of 0 stay 0."""
    values, vectors = np.linalg.eigh(factors.T @ factors)
    roots = np.sqrt(np.maximum(values, 1e-12 * max(values[-1], 1e-300)))
    return np.asarray(factors @ (vectors / roots) @ vectors.T)


def _projected(matrix: NDArray[np.float64]) -> NDArray[np.float64]:
    values, vectors = np.linalg.eigh(matrix)
    return np.asarray((vectors * np.maximum(values, 0.0)) @ vectors.T)


def _is_definite(matrix: NDArray[np.float64]) -> bool:
    try:
        np.linalg.cholesky(matrix)
    except np.linalg.LinAlgError:
        return False
    return True
