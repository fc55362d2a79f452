"""Formulas for symmetric matrices with known noise: inverses, nearest matrices, and errors of entries.

>>> resolvent(np.diag([4.0, 2.0]), np.eye(2), noise_std=1.0)[1] > 0.0
True
"""

import math

import numpy as np
from numpy.typing import NDArray

type Matrix = NDArray[np.float64]

_BISECTIONS = 200


def resolvent(matrix: Matrix, weights: Matrix, *, noise_std: float) -> tuple[Matrix, float]:
    """Return ``G = (matrix + h weights)^-1`` and h, where h corrects the bias of the inverse that noise causes.

    Parameters
    ----------
    matrix : array of shape (q, q)
        A symmetric matrix that contains the noise ``s P E P^T`` (see `dpca.moments`).
    weights : array of shape (q, q)
        ``K = P P^T``, positive definite.
    noise_std : float
        s, the scale of the noise.

    Returns
    -------
    tuple of array of shape (q, q) and float
        G, which is positive definite, and ``h = s^2 tr(K G)``.
    """
    root = np.linalg.inv(np.linalg.cholesky(weights))
    values, vectors = np.linalg.eigh(root @ matrix @ root.T)
    low = max(-float(values[0]), 0.0)
    high = low + noise_std * math.sqrt(len(values))
    for _ in range(_BISECTIONS):
        shift = (low + high) / 2.0
        if values[0] + shift <= 0.0 or shift < noise_std**2 * float((1.0 / (values + shift)).sum()):
            low = shift
        else:
            high = shift
    vectors = root.T @ vectors
    return (vectors / (values + high)) @ vectors.T, high


def nearest_psd(matrix: Matrix) -> Matrix:
    """Return the positive semidefinite matrix that is nearest in the Frobenius norm; a unit diagonal is restored.

    The unit diagonal of a correlation matrix is restored by rescaling, after which the matrix is no longer the nearest.
    """
    values, vectors = np.linalg.eigh(matrix)
    if values[0] >= 0.0:
        return matrix
    found = (vectors * np.maximum(values, 0.0)) @ vectors.T
    if (np.diag(matrix) == 1.0).all():
        roots = np.sqrt(np.diag(found))
        found = found / np.outer(roots, roots)
    return np.asarray((found + found.T) / 2.0)


def entry_errors(noise: Matrix) -> Matrix:
    """Return the standard deviation of each entry of ``P E P^T`` (see `dpca.moments`), given ``noise = P P^T``."""
    own = np.diag(noise)
    return np.asarray(np.sqrt(np.outer(own, own) + noise**2))
