"""Orthonormal columns with few rows that are not zero: the truncation step of sparse subspaces.

Everything here is post-processing of released matrices. Ties go to the smaller index, and a matrix of deficient rank is
completed from public numbers, so the result never depends on a library's choice.

>>> basis = truncated(np.array([[0.0, 1.0], [0.6, 0.0], [0.0, 0.0], [0.8, 0.0]]), rows_kept=2)
>>> np.abs(basis).round(3).tolist()
[[0.0, 1.0], [0.0, 0.0], [0.0, 0.0], [1.0, 0.0]]
"""

import numpy as np
from numpy.typing import NDArray

from dpca_tasks.threads import one_thread

COMPLETION_SEED = 20180411  # columns that are missing are public; no guarantee depends on them
_RANK = 1e-12  # what is this short, relative to the longest, is no direction


def truncated(matrix: NDArray[np.float64], *, rows_kept: int) -> NDArray[np.float64]:
    """Keep the rows of largest norm, ties by index, and return orthonormal columns that span what is left."""
    rows = _longest_rows(matrix, rows_kept)
    basis = np.zeros_like(matrix)
    basis[rows] = completed(matrix[rows])
    return basis


def completed(matrix: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the orthonormal factor of a thin QR with positive diagonal; missing directions are public random ones."""
    q, r = _thin_qr(matrix)
    lengths = np.abs(np.diag(r))
    if lengths.min() > _RANK * lengths.max():
        return q * np.where(np.diag(r) < 0, -1.0, 1.0)
    with one_thread():
        left, values, _ = np.linalg.svd(matrix, full_matrices=False)
    rank = int(np.count_nonzero(values > _RANK * values[0]))
    public = np.random.default_rng(COMPLETION_SEED).standard_normal(matrix.shape)
    return _thin_qr(np.hstack([left[:, :rank], public[:, rank:]]))[0]


def truncated_step(
    moment: NDArray[np.float64], directions: NDArray[np.float64], *, rows_kept: int
) -> NDArray[np.float64]:
    """Multiply row-sparse directions by a symmetric matrix, orthonormalise, and truncate: one step of the iteration."""
    rows = np.flatnonzero(directions.any(axis=1))
    with one_thread():
        product = moment[rows].T @ directions[rows]
    return truncated(completed(product), rows_kept=rows_kept)


def _longest_rows(matrix: NDArray[np.float64], count: int) -> NDArray[np.intp]:
    norms = np.einsum("ij,ij->i", matrix, matrix)
    return np.sort(np.argsort(-norms, kind="stable")[:count])


def _thin_qr(matrix: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    with one_thread():
        q, r = np.linalg.qr(matrix)
    return q, r
