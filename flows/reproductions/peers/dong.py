r"""Dong, Liang and Yi (2022), Differentially private covariance revisited: SeparateCov and AdaptiveCov.

*GaussCov* adds Gaussian noise of std ``tau^2 / (n sqrt rho)`` to the upper triangle of the covariance of rows of norm
at most tau. *SeparateCov* takes eigenvectors from GaussCov at half of rho and eigenvalues from noise of their own on
the other half: a better matrix where d is large, and for its span GaussCov at half of the budget. *AdaptiveCov* first
finds, by the sparse vector technique, the largest power of two at which cutting rows off costs less than the noise that
it saves, then takes the one of GaussCov and SeparateCov whose bound is smaller.

*Relation*: one replaced row of norm at most 1, the number of rows public. *Assumptions on the data*: none.

*What it really gives.* All but the sparse vector technique are Gaussian: the trace at ``rho / 8``, the matrix at
``3 rho / 4``. The technique is ``sqrt(rho) / 2``-DP. rho is the largest at which an exact accountant of the composition
gives at most the epsilon asked for; the zCDP of the paper would give more noise.
"""

import math
from collections.abc import Callable
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from dpca_tasks.accounting import events
from dpca_tasks.accounting.calibration import gaussian_noise_multiplier
from dpca_tasks.accounting.epsilon_bracket import epsilon_bracket

type Matrix = NDArray[np.float64]

FAILURE = 0.1
_MATRIX_SHARE = 0.75
_LEAST = 2.0**-24  # no row is cut off below


def separate_covariance(rows: sparse.csr_array, *, n_components: int, epsilon: float, delta: float) -> Matrix:
    """Return k directions of public rows by SeparateCov, as rows."""
    rho = 0.5 / gaussian_noise_multiplier(epsilon=epsilon, delta=delta) ** 2
    return _leading(_noisy(rows, rho=rho / 2, cut=1.0, rng=np.random.default_rng()), n_components)


def adaptive_covariance(rows: sparse.csr_array, *, n_components: int, epsilon: float, delta: float) -> Matrix:
    """Return k directions of public rows by AdaptiveCov, as rows."""
    rng, rho = np.random.default_rng(), adaptive_rho(epsilon=epsilon, delta=delta)
    n, d = rows.shape
    squares = np.asarray(rows.multiply(rows).sum(axis=1)).ravel()
    above = math.sqrt(8 / rho * math.log(8 / FAILURE)) / n  # the noise seldom makes it less than the trace
    trace = min(max(squares.sum() / n + 2 / (math.sqrt(rho) * n) * rng.standard_normal() + above, 1e-16), 1.0)
    matrix_rho = _MATRIX_SHARE * rho
    tail = math.log(2 / FAILURE)
    spectral, frobenius = 2 * math.sqrt(d) + 2 * math.sqrt(tail), d + 2 * math.sqrt(tail)
    vector = math.sqrt(d) + math.sqrt(2 * tail)

    def errors(cut: float) -> tuple[float, float]:
        """Return the bounds of GaussCov and SeparateCov in the Frobenius norm."""
        gauss = cut**2 * frobenius / (math.sqrt(matrix_rho) * n)
        apart = cut * 2**1.25 * math.sqrt(trace * spectral / n) / matrix_rho**0.25
        return gauss, apart + cut**2 * math.sqrt(2) * vector / (math.sqrt(matrix_rho) * n)

    cut = _threshold(squares, errors, n=n, epsilon=math.sqrt(rho) / 2, rng=rng)
    gauss, apart = errors(cut)
    return _leading(_noisy(rows, rho=matrix_rho if gauss <= apart else matrix_rho / 2, cut=cut, rng=rng), n_components)


@lru_cache(maxsize=16)
def adaptive_rho(*, epsilon: float, delta: float) -> float:
    """Return the largest rho at which AdaptiveCov really is (epsilon, delta)-DP, to a hundredth."""

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
    """Return where to cut rows off: the sparse vector technique, at epsilon, from norm 1 down by halves.

    Asked is what cutting rows off at tau costs, ``sum (|x|^2 - tau^2)_+``, less n times the error that the noise then
    makes; a replaced row moves it by at most 1. The first tau that costs more than its noise ends the search.
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
    """Return the noisy covariance of rows cut off at a norm."""
    n, d = rows.shape
    norms = np.sqrt(np.asarray(rows.multiply(rows).sum(axis=1)).ravel())
    kept = sparse.diags_array(np.minimum(1.0, cut / np.maximum(norms, 1e-300))) @ rows
    upper = np.triu(rng.standard_normal((d, d)))
    noise = upper + np.triu(upper, 1).T
    return np.asarray((kept.T @ kept).toarray() / n + cut**2 / (n * math.sqrt(rho)) * noise)


def _leading(matrix: Matrix, n_components: int) -> Matrix:
    return np.asarray(np.linalg.eigh(matrix)[1][:, ::-1][:, :n_components].T)
