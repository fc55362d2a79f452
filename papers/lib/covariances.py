"""Covariance methods from three papers, for comparison with dpca on the board; they run only on public data.

**Amin, Dick, Kulesza, Munoz and Vassilvitskii (2019), Differentially private covariance estimation, Algorithm 1.**

Eigenvalues get Laplace noise of scale ``2 / epsilon_0``. Eigenvectors are drawn one after another, each orthogonal to
the previous ones, by the exponential mechanism with density ``exp(epsilon_i / 4 u^T C u)``. For k components the first
k vectors are drawn, and epsilon is divided evenly among them and the eigenvalues. The result is the span of the
vectors, which does not depend on the noisy eigenvalues.

*Relation*: one replaced row of norm at most 1, the number of rows public. *Assumptions on the data*: none.

*Actual guarantee.* A replaced row changes ``u^T C u`` by between -1 and 1. So a draw costs at most ``epsilon_i / 2``,
half of what the paper counts for it. The eigenvalues move by at most 2 in the l1 norm, and cost epsilon_0.

**Biswas, Dong, Kamath and Ullman (2020), CoinPress: practical private mean and covariance estimation, Algorithm 3.**

The rows are treated as draws from N(0, Sigma) with ``I / K' <= Sigma <= K I``. Each step maps them by A, after which
the covariance is assumed to be at most I. It clips them at the radius gamma, which such normal vectors seldom exceed,
and adds Gaussian noise to their second moment. All but the last step then tighten the assumption: ``A <- U^{-1/2} A``,
with U an upper bound of the covariance from that estimate. The last step has three quarters of the budget.

*Relation*: one replaced row, the number of rows public. *Public bounds*: K, an upper bound of the largest eigenvalue of
the covariance. The board states the largest eigenvalue of the public data, rounded up to a power of two. No owner of
private data has such an accurate bound. *Assumptions on the data*: accuracy needs normal rows whose covariance has no
small eigenvalues, which our data do not satisfy. Privacy needs no assumption, since rows are clipped.

*Actual guarantee.* A step moves by at most ``sqrt 2 gamma^2 / n``. Its noise has std ``gamma^2 / (n sqrt rho_i)`` in
the upper triangle, which is ``rho_i``-zCDP. All steps are Gaussian, so the conversion to (epsilon, delta) is exact:
together they are one Gaussian mechanism of multiplier ``1 / sqrt(2 rho)``.

**Dong, Liang and Yi (2022), Differentially private covariance revisited: SeparateCov and AdaptiveCov.**

*GaussCov* adds Gaussian noise of std ``tau^2 / (n sqrt rho)`` to the upper triangle of the covariance of rows of norm
at most tau. *SeparateCov* takes eigenvectors from GaussCov at half of rho, and eigenvalues with separate noise at the
other half. This gives a better matrix for large d, but the same span as GaussCov at half of the budget. *AdaptiveCov*
first finds a clipping norm by the sparse vector technique. It halves the norm from 1, and stops before the first norm
at which clipping costs more than the noise. Then it uses GaussCov or SeparateCov, whichever has the smaller bound.

*Relation*: one replaced row of norm at most 1, the number of rows public. *Assumptions on the data*: none.

*Actual guarantee.* All parts but the sparse vector technique are Gaussian: the trace at ``rho / 8``, the matrix at
``3 rho / 4``. The technique is ``sqrt(rho) / 2``-DP. rho is the largest value for which an exact accountant of the
composition gives at most the requested epsilon. The zCDP of the paper would give more noise.
"""

import math
import os
from collections.abc import Callable
from functools import lru_cache

import numpy as np
from scipy import sparse

from dpca_tasks.accounting import events
from dpca_tasks.accounting.calibration import gaussian_noise_multiplier
from dpca_tasks.accounting.epsilon_bracket import epsilon_bracket
from dpca_tasks.mechanisms.eigenpairs import leading_eigenpairs
from dpca_tasks.noise.bingham import complement, draw_direction
from dpca_tasks.noise.keystream import subkey
from papers.lib.experiments import Matrix, upper_noise
from papers.lib.public_data import second_moment


def amin_covariance(rows: sparse.csr_array, *, n_components: int, epsilon: float, delta: float = 0.0) -> Matrix:
    """Return k directions of public rows by the method of Amin et al., as rows; ``delta`` is not used."""
    matrix = second_moment(rows)
    share = epsilon / (n_components + 1)
    key, found = os.urandom(32), np.zeros((0, len(matrix)))
    for at in range(n_components):
        basis = complement(found)
        drawn = draw_direction(
            subkey(key, label="direction", info=at.to_bytes(8, "little")), basis.T @ matrix @ basis, scale=4.0 / share
        )
        found = np.vstack([found, basis @ drawn])
    return found


def amin_epsilon(*, n_components: int, epsilon: float) -> float:
    """Return the true epsilon of the printed noise of Amin et al., for one replaced row."""
    share = epsilon / (n_components + 1)
    return share + n_components * share / 2.0


STEPS, LAST_SHARE = 3, 0.75


def coinpress_covariance(
    rows: sparse.csr_array, *, n_components: int, epsilon: float, delta: float, largest: float
) -> Matrix:
    """Return k directions of public rows by CoinPress, as rows.

    ``largest`` is the public bound K on the largest eigenvalue of the covariance.
    """
    rng, points = np.random.default_rng(), rows.toarray()
    rho = 0.5 / gaussian_noise_multiplier(epsilon=epsilon, delta=delta) ** 2
    belief = np.eye(points.shape[1]) / math.sqrt(largest)
    for _ in range(STEPS - 1):
        found, slack = _step(points @ belief.T, rho=rho * (1 - LAST_SHARE) / (STEPS - 1), rng=rng)
        belief = _inverse_root(found + slack * np.eye(len(found))) @ belief
    found, _ = _step(points @ belief.T, rho=rho * LAST_SHARE, rng=rng)
    back = np.linalg.inv(belief)
    return leading_eigenpairs(back @ found @ back.T, n_components)[1]


def _step(points: Matrix, *, rho: float, rng: np.random.Generator) -> tuple[Matrix, float]:
    """Run one step of CoinPress: return the noisy second moment of clipped rows, and a bound on its error.

    The bound is on how far the covariance may exceed the noisy second moment.
    """
    n, d = points.shape
    tail = math.log(1 / FAILURE)
    gamma = math.sqrt(d + 2 * math.sqrt(d * tail) + 2 * tail)
    lengths = np.linalg.norm(points, axis=1, keepdims=True)
    cut = points * np.minimum(1.0, gamma / np.maximum(lengths, 1e-300))
    std = gamma**2 / (n * math.sqrt(rho))
    noise = std * upper_noise(rng, d)
    sampling = math.sqrt(d / n) + math.sqrt(2 * math.log(2 / FAILURE) / n)
    slack = 2 * sampling + sampling**2 + std * (2 * math.sqrt(d) + 2 * math.sqrt(math.log(1 / FAILURE)))
    return cut.T @ cut / n + noise, slack


def _inverse_root(matrix: Matrix) -> Matrix:
    """Return ``U^{-1/2}`` of a matrix U; eigenvalues that noise made negative are replaced by a tiny value."""
    values, vectors = np.linalg.eigh(matrix)
    return np.asarray((vectors / np.sqrt(np.maximum(values, 1e-9))) @ vectors.T)


FAILURE = 0.1
_MATRIX_SHARE = 0.75
_LEAST = 2.0**-24  # the smallest clipping norm that the search of AdaptiveCov tries


def separate_covariance(rows: sparse.csr_array, *, n_components: int, epsilon: float, delta: float) -> Matrix:
    """Return k directions of public rows by SeparateCov, as rows."""
    rho = 0.5 / gaussian_noise_multiplier(epsilon=epsilon, delta=delta) ** 2
    return leading_eigenpairs(_noisy(rows, rho=rho / 2, cut=1.0, rng=np.random.default_rng()), n_components)[1]


def adaptive_covariance(rows: sparse.csr_array, *, n_components: int, epsilon: float, delta: float) -> Matrix:
    """Return k directions of public rows by AdaptiveCov, as rows."""
    rng, rho = np.random.default_rng(), adaptive_rho(epsilon=epsilon, delta=delta)
    n, d = rows.shape
    squares = np.asarray(rows.multiply(rows).sum(axis=1)).ravel()
    above = math.sqrt(8 / rho * math.log(8 / FAILURE)) / n  # keeps the noisy trace above the true trace, usually
    trace = min(max(squares.sum() / n + 2 / (math.sqrt(rho) * n) * rng.standard_normal() + above, 1e-16), 1.0)
    matrix_rho = _MATRIX_SHARE * rho
    tail = math.log(2 / FAILURE)
    spectral, frobenius = 2 * math.sqrt(d) + 2 * math.sqrt(tail), d + 2 * math.sqrt(tail)
    vector = math.sqrt(d) + math.sqrt(2 * tail)

    def errors(cut: float) -> tuple[float, float]:
        """Return bounds on the Frobenius errors of GaussCov and SeparateCov for rows clipped at ``cut``."""
        gauss = cut**2 * frobenius / (math.sqrt(matrix_rho) * n)
        separate = cut * 2**1.25 * math.sqrt(trace * spectral / n) / matrix_rho**0.25
        return gauss, separate + cut**2 * math.sqrt(2) * vector / (math.sqrt(matrix_rho) * n)

    cut = _threshold(squares, errors, n=n, epsilon=math.sqrt(rho) / 2, rng=rng)
    gauss, separate = errors(cut)
    chosen = matrix_rho if gauss <= separate else matrix_rho / 2
    return leading_eigenpairs(_noisy(rows, rho=chosen, cut=cut, rng=rng), n_components)[1]


@lru_cache(maxsize=16)
def adaptive_rho(*, epsilon: float, delta: float) -> float:
    """Return, to within one percent, the largest rho at which AdaptiveCov is (epsilon, delta)-DP."""

    def holds(rho: float) -> bool:
        gaussians = events.gaussian(1 / math.sqrt(2 * (_MATRIX_SHARE + 0.125) * rho))
        both = events.composed(gaussians, events.approximate(math.sqrt(rho) / 2, 0.0))
        return epsilon_bracket(both, delta=delta, within=0.01).upper <= epsilon

    above = 0.5 / gaussian_noise_multiplier(epsilon=epsilon, delta=delta) ** 2 / (_MATRIX_SHARE + 0.125)
    below = above / 8
    while not holds(below):
        below /= 2
    while above > 1.01 * below:
        middle = math.sqrt(below * above)
        below, above = (middle, above) if holds(middle) else (below, middle)
    return below


def _threshold(
    squares: Matrix,
    errors: Callable[[float], tuple[float, float]],
    *,
    n: int,
    epsilon: float,
    rng: np.random.Generator,
) -> float:
    """Return a clipping norm found by the sparse vector technique at epsilon, halving from norm 1.

    At a clipping norm tau, the query is the loss from clipping, ``sum (|x|^2 - tau^2)_+``, minus n times the error from
    noise. A replaced row changes the query by at most 1. The search ends at the first tau at which the loss from
    clipping exceeds the error from noise, and returns the previous norm.
    """
    limit = rng.laplace(0.0, 2 / epsilon)
    cut = 1.0
    while cut > _LEAST:
        lower = cut / 2
        excess = float(np.maximum(squares - lower**2, 0.0).sum()) - n * min(errors(lower))
        if excess + rng.laplace(0.0, 4 / epsilon) >= limit:
            return cut
        cut = lower
    return cut


def _noisy(rows: sparse.csr_array, *, rho: float, cut: float, rng: np.random.Generator) -> Matrix:
    """Return the covariance of rows clipped at norm ``cut``, with the Gaussian noise of GaussCov."""
    n, d = rows.shape
    norms = np.sqrt(np.asarray(rows.multiply(rows).sum(axis=1)).ravel())
    kept = sparse.diags_array(np.minimum(1.0, cut / np.maximum(norms, 1e-300))) @ rows
    return np.asarray(second_moment(kept) / n + cut**2 / (n * math.sqrt(rho)) * upper_noise(rng, d))
