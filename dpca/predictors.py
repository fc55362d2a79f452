"""Predictors from a noisy second moment: shrunk eigenvalues, and estimates of their quality without the noise.

The coefficients of a ridge regression that have intervals are nearly unbiased. Nearly unbiased coefficients do not
predict best, because noise makes eigenvalues that no row supports. So predictions use a shrunk matrix.

>>> inverse = ShrunkInverse(np.diag([9.0, 0.5]), np.eye(2), noise_std=1.0, penalty=4.0)
>>> inverse.gains.round(4)  # 1 / 4, and 1 / (sqrt(9^2 - 8) + 4)
array([0.25  , 0.0797])
"""

import math
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from dpca.symmetric import Matrix

_LEAST_ROOT = 0.02
"""A derivative at the edge is cut off where the shrunk eigenvalue is below this part of the edge."""


class ShrunkInverse:
    """The inverse of a shrunk noisy matrix plus a penalty.

    Parameters
    ----------
    matrix : array of shape (q, q)
        A symmetric matrix with noise of this K and standard deviation (see `dpca.moments`).
    weights : array of shape (q, q)
        K, positive definite.
    noise_std : float
        s.
    penalty : float
        Added to the shrunk eigenvalues, so the penalty of a solution w is ``penalty w^T K w``.
    leads : bool
        Whether the leading eigenvector is left out of all solutions. It is ``leading``, with its eigenvalue ``lead``.

    Notes
    -----
    All eigenvalues are those after K is mapped to the identity. The edge of the noise is ``e = 2 s sqrt(q)``. An
    eigenvalue v above e belongs to a true eigenvalue near ``t = (v + sqrt(v^2 - e^2)) / 2``, and its eigenvector has a
    squared overlap of ``1 - e^2 / (4 t^2)`` with the true one (Benaych-Georges and Nadakuditi). So the factor of that
    eigenvector which is nearest to the true matrix is their product, ``sqrt(v^2 - e^2)``. Eigenvalues below e become 0.
    The shrunk value plus the penalty is at least e / 2.

    References
    ----------
    Benaych-Georges and Nadakuditi (2011), The eigenvalues and eigenvectors of finite, low rank perturbations of large
    random matrices, Theorems 2.1 and 2.2. Stein (1981), Estimation of the mean of a multivariate normal distribution.
    """

    def __init__(
        self, matrix: Matrix, weights: Matrix, *, noise_std: float, penalty: float, leads: bool = False
    ) -> None:
        root = np.linalg.inv(np.linalg.cholesky(weights))
        values, vectors = np.linalg.eigh(root @ matrix @ root.T)
        edge = 2.0 * noise_std * math.sqrt(len(values))
        self.leading, self.lead = root.T @ vectors[:, -1], max(float(values[-1]), edge)
        if leads:
            values, vectors = values[:-1], vectors[:, :-1]
        shrunk = np.sqrt(np.maximum(values**2 - edge**2, 0.0)) * (values > edge)
        self.variance = noise_std**2
        self.basis = root.T @ vectors
        self.gains = 1.0 / np.maximum(shrunk + penalty, edge / 2.0)
        moves = (shrunk > 0.0) & (shrunk + penalty > edge / 2.0)
        slopes = np.where(moves, -(self.gains**2) * values / np.maximum(shrunk, _LEAST_ROOT * edge), 0.0)
        apart = values[:, None] - values
        with np.errstate(divide="ignore", invalid="ignore"):
            quotients = (self.gains[:, None] - self.gains) / apart
        self.curve = np.where(apart == 0.0, slopes, quotients).sum(axis=0) + slopes

    def solve(self, side: Matrix, noise: Matrix) -> "Solution":
        """Solve for a right side whose noise is ``s P E q``, where ``noise`` is ``P K q`` of shape (q,)."""
        pulled, own = self.basis.T @ side, self.basis.T @ noise
        return Solution(inverse=self, vector=self.basis @ (self.gains * pulled), pulled=pulled, own=own)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Solution:
    """The solution w of an equation with noise, and the expectations of the noise along w.

    Parameters
    ----------
    inverse : ShrunkInverse
    vector : array of shape (q,)
        w.
    pulled, own : arrays of shape (q,)
        The right side, and the noise that it shares with the matrix, both in the eigenbasis.

    Notes
    -----
    By Stein's identity, the expectation of ``<E, F(E)>`` is twice the divergence of F, for symmetric E and F. The
    divergence of a function of the eigenvalues sums the difference quotients of that function. Terms of second order in
    the inverse number of rows are left out.
    """

    inverse: ShrunkInverse
    vector: Matrix
    pulled: Matrix
    own: Matrix

    def bias(self, noise: Matrix, *, inner: float) -> float:
        """Return the expectation of ``w^T (s P E a)``, for ``noise = P K a`` and ``inner = q^T K a``."""
        other, gains = self.inverse.basis.T @ noise, self.inverse.gains
        shared = float(other @ (gains * self.own)) + float((other * self.pulled) @ self.inverse.curve)
        return self.inverse.variance * (float(gains.sum()) * inner + shared)

    def square_bias(self) -> float:
        """Return the expectation of ``w^T (s P E P^T) w``."""
        gains = self.inverse.gains
        seen = gains * self.pulled
        shared = float(gains.sum()) * float(seen @ self.own) + float(seen @ (gains * self.own))
        return 2.0 * self.inverse.variance * (shared + float((seen * self.pulled) @ self.inverse.curve))


@dataclass(frozen=True, slots=True, kw_only=True)
class Quality:
    """How a predictor f fits its target y on the released rows, estimated without the noise.

    Parameters
    ----------
    r_squared, r_squared_error : float
        The squared correlation of f and y, and its approximate standard error from the noise.
    slope : float
        The slope of the regression of y on f. It is above 1 where the penalty shrinks f.
    visibility : float
        The covariance of f and y in units of its standard error.
    """

    r_squared: float
    r_squared_error: float
    slope: float
    visibility: float

    @property
    def is_hidden(self) -> bool:
        """Whether the noise hides that f predicts y at all: their covariance is below two standard errors."""
        return self.visibility < 2.0


def quality_of(*, product: float, product_error: float, square: float, square_error: float, spread: float) -> Quality:
    """Return the quality of a predictor f.

    Parameters
    ----------
    product, product_error : float
        The estimated covariance of f and y, as a sum over rows, and its standard error.
    square, square_error : float
        The estimated variance of f likewise.
    spread : float
        The estimated variance of y likewise.

    Notes
    -----
    A slope that is too uncertain moves a threshold far away. So the slope uses the posterior mean of the correlation,
    under a uniform prior on (0, 1).
    """
    visibility = product / product_error
    product, square = max(product, product_error), max(square, square_error / 2.0)
    correlation = min(product / math.sqrt(square * spread), 1.0)
    relative = 2.0 * product_error / product + square_error / square
    return Quality(
        r_squared=correlation**2,
        r_squared_error=min(correlation**2 * relative, 1.0),
        slope=_mean_in_unit(correlation, correlation * relative / 2.0) * math.sqrt(spread / square),
        visibility=visibility,
    )


def _mean_in_unit(value: float, error: float) -> float:
    """Return the mean of a normal distribution that is cut off to (0, 1); its mode is in (0, 1]."""
    normal = NormalDist()
    low, high = -value / error, (1.0 - value) / error
    return value + error * (normal.pdf(low) - normal.pdf(high)) / (normal.cdf(high) - normal.cdf(low))
