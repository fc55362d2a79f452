r"""Biswas, Dong, Kamath and Ullman (2020), CoinPress: practical private mean and covariance estimation, Algorithm 3.

The rows count as draws of N(0, Sigma) with ``I / K' <= Sigma <= K I``. Each step maps them by A, so that the covariance
is believed to be at most I, cuts them off at the radius gamma that such normals seldom pass, and adds Gaussian noise to
their second moment; all but the last step then shrink the belief, ``A <- U^{-1/2} A`` with U an upper bound of what was
found. The last step has three quarters of the budget.

*Relation*: one replaced row, the number of rows public. *Public bounds*: K, an upper bound of the largest eigenvalue of
the covariance; the board states the largest eigenvalue of the public data, rounded up to a power of two, which no owner
of private data knows so well. *Assumptions on the data*: accuracy needs rows that are normal, of a covariance without
small eigenvalues, which ours are not; privacy needs nothing, since rows are cut off.

*What it really gives.* A step moves by at most ``sqrt 2 gamma^2 / n``, its noise has std ``gamma^2 / (n sqrt rho_i)``
in the upper triangle, which is ``rho_i``-zCDP. All steps are Gaussian, so the conversion to (epsilon, delta) is exact:
together they are one Gaussian mechanism of multiplier ``1 / sqrt(2 rho)``.
"""

import math

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from dpca_tasks.accounting.calibration import gaussian_noise_multiplier

type Matrix = NDArray[np.float64]

STEPS, LAST_SHARE, FAILURE = 3, 0.75, 0.1


def coinpress_covariance(
    rows: sparse.csr_array, *, n_components: int, epsilon: float, delta: float, largest: float
) -> Matrix:
    """Return k directions of public rows, as rows; ``largest`` is the public bound K of the covariance."""
    rng, points = np.random.default_rng(), rows.toarray()
    rho = 0.5 / gaussian_noise_multiplier(epsilon=epsilon, delta=delta) ** 2
    belief = np.eye(points.shape[1]) / math.sqrt(largest)
    for _ in range(STEPS - 1):
        found, slack = _step(points @ belief.T, rho=rho * (1 - LAST_SHARE) / (STEPS - 1), rng=rng)
        belief = _inverse_root(found + slack * np.eye(len(found))) @ belief
    found, _ = _step(points @ belief.T, rho=rho * LAST_SHARE, rng=rng)
    back = np.linalg.inv(belief)
    return np.asarray(np.linalg.eigh(back @ found @ back.T)[1][:, ::-1][:, :n_components].T)


def _step(points: Matrix, *, rho: float, rng: np.random.Generator) -> tuple[Matrix, float]:
    """Return the noisy second moment of rows cut off at gamma, and how far above it the covariance may lie."""
    n, d = points.shape
    tail = math.log(1 / FAILURE)
    gamma = math.sqrt(d + 2 * math.sqrt(d * tail) + 2 * tail)
    lengths = np.linalg.norm(points, axis=1, keepdims=True)
    cut = points * np.minimum(1.0, gamma / np.maximum(lengths, 1e-300))
    std = gamma**2 / (n * math.sqrt(rho))
    upper = np.triu(rng.standard_normal((d, d)))
    noise = std * (upper + np.triu(upper, 1).T)
    sampling = math.sqrt(d / n) + math.sqrt(2 * math.log(2 / FAILURE) / n)
    slack = 2 * sampling + sampling**2 + std * (2 * math.sqrt(d) + 2 * math.sqrt(math.log(1 / FAILURE)))
    return cut.T @ cut / n + noise, slack


def _inverse_root(matrix: Matrix) -> Matrix:
    """Return ``U^{-1/2}``; eigenvalues that noise made negative count as tiny."""
    values, vectors = np.linalg.eigh(matrix)
    return np.asarray((vectors / np.sqrt(np.maximum(values, 1e-9))) @ vectors.T)
