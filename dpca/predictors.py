"""Ridge predictors from a noisy second moment, and estimates of their quality that correct for the noise.

`dpca.moments` computes nearly unbiased ridge coefficients with standard errors. They do not predict best, because
some eigenvalues of the released matrix are pure noise. So the predictors use the matrix with shrunk eigenvalues. The
matrix is ``A = S + s P E P^T`` with ``K = P P^T``, in the symbols of `dpca.moments`.

>>> inverse = ShrunkInverse(np.diag([9.0, 0.5]), np.eye(2), noise_std=1.0, penalty=4.0)
>>> inverse.gains.round(4)  # 1 / 4, and 1 / (sqrt(9^2 - 8) + 4)
array([0.25  , 0.0797])
"""

import math
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

type Matrix = NDArray[np.float64]

_LEAST_ROOT = 0.02
"""A lower bound, as a fraction of the noise edge, of the divisor in a derivative that is infinite at the edge."""


class ShrunkInverse:
    """The inverse of a noisy matrix whose eigenvalues are shrunk and then increased by a penalty.

    Parameters
    ----------
    matrix : array of shape (q, q)
        A, symmetric.
    weights : array of shape (q, q)
        ``K = P P^T``, positive definite.
    noise_std : float
        s, the scale of the noise of A.
    penalty : float
        Added to the shrunk eigenvalues, so the penalty of a solution w is ``penalty w^T K w``.
    leads : bool
        True to leave the leading eigenvector out of all solutions. The attributes ``leading`` and ``lead`` hold this
        eigenvector and its eigenvalue.

    Notes
    -----
    All eigenvalues are those of ``L^-1 A L^-T`` with ``K = L L^T``, a matrix whose noise has weights of the identity.
    The largest eigenvalue of noise alone is near the noise edge ``e = 2 s sqrt(q)``. An eigenvalue v above e belongs to
    a true eigenvalue near ``t = (v + sqrt(v^2 - e^2)) / 2``. The eigenvector of v has a squared overlap of
    ``1 - e^2 / (4 t^2)`` with the true eigenvector (Benaych-Georges and Nadakuditi). So v is replaced by
    ``t (1 - e^2 / (4 t^2)) = sqrt(v^2 - e^2)``, which brings the matrix nearest to the true one in the Frobenius norm.
    Eigenvalues below e become 0. The sum of a shrunk eigenvalue and the penalty is raised to e / 2 if it is smaller.

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
        """Return the inverse times the right side ``side``, whose noise is ``s P E b``; ``noise`` is ``P b``."""
        pulled, own = self.basis.T @ side, self.basis.T @ noise
        return Solution(inverse=self, vector=self.basis @ (self.gains * pulled), pulled=pulled, own=own)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Solution:
    """The solution w of a linear equation in which matrix and right side share noise.

    Its methods return expectations of products of w and the noise.

    Parameters
    ----------
    inverse : ShrunkInverse
    vector : array of shape (q,)
        w.
    pulled, own : arrays of shape (q,)
        The right side, and the vector ``P b`` of its noise (see `ShrunkInverse.solve`), in the basis of eigenvectors.

    Notes
    -----
    By Stein's identity, the expectation of ``<E, F(E)>`` is twice the divergence of F, for symmetric E and F. If F
    applies a function f to the eigenvalues of a matrix, the divergence is the sum of the difference quotients of f over
    pairs of eigenvalues. Terms of second order in the inverse number of rows are left out.
    """

    inverse: ShrunkInverse
    vector: Matrix
    pulled: Matrix
    own: Matrix

    def bias(self, noise: Matrix, *, inner: float) -> float:
        """Return the expectation of ``w^T (s P E a)``, given ``noise = P a`` and ``inner = b^T a``.

        The vector b is that of the right side (see `ShrunkInverse.solve`).
        """
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
    """The quality of a predictor f of a target y on the released rows, corrected for the noise of the release.

    Parameters
    ----------
    r_squared, r_squared_error : float
        The squared correlation of f and y, and its approximate standard error from the noise.
    slope : float
        The slope of the regression of y on f. It is above 1 if the penalty makes f too small.
    visibility : float
        The estimated covariance of f and y, divided by its standard error.
    """

    r_squared: float
    r_squared_error: float
    slope: float
    visibility: float

    @property
    def is_hidden(self) -> bool:
        """Whether the noise hides that f predicts y: the covariance of f and y is below two of its standard errors."""
        return self.visibility < 2.0


def quality_of(*, product: float, product_error: float, square: float, square_error: float, spread: float) -> Quality:
    """Return the quality of a predictor f of a target y, from their estimated variances and covariance.

    Parameters
    ----------
    product, product_error : float
        The covariance of f and y, as a sum over rows, and its standard error.
    square, square_error : float
        The variance of f, as a sum over rows, and its standard error.
    spread : float
        The variance of y, as a sum over rows.

    Notes
    -----
    An uncertain slope could scale predictions far too much. So the slope is computed from the posterior mean of the
    correlation under a uniform prior on (0, 1), instead of from the estimated correlation.
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
    """Return the mean of the normal distribution N(value, error^2) truncated to (0, 1), for a value in (0, 1]."""
    normal = NormalDist()
    low, high = -value / error, (1.0 - value) / error
    return value + error * (normal.pdf(low) - normal.pdf(high)) / (normal.cdf(high) - normal.cdf(low))
