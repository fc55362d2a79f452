"""Formulas for a released second moment with known noise.

A release adds symmetric Gaussian noise of known size to the second moment ``S = X^T X`` of the clipped rows. Rows may
end in a public constant c, so that mean and count are released too. Everything in this module is computed from the
released matrix and from public facts. It reads no row, so it is post-processing: it costs no privacy.

*Noise.* The released matrix is ``A = S + s P E P^T``. E is symmetric with independent normal entries, of variance 1 off
its diagonal and 2 on it, and ``K = P P^T`` is known. K is the identity for a release in one round. For all vectors a,
b, c and d, ``Cov(a^T A b, c^T A d) = s^2 ((a^T K c)(b^T K d) + (a^T K d)(b^T K c))``. All standard errors follow from
this identity. They describe the noise of the release only, not the sampling of the rows.

*Inverses.* A regression inverts ``A + M``, where M is the matrix of the ridge penalty. The mean of ``(A + M)^-1`` is
close to ``(S + M - h K)^-1`` with ``h = s^2 tr(K (A + M)^-1)``: the noise acts like a penalty that is smaller by h K.
So `resolvent` adds h K before it inverts. It finds the only h for which ``h = s^2 tr(K G)`` with the positive definite
inverse ``G = (A + M + h K)^-1``.

References
----------
Dwork, Talwar, Thakurta and Zhang (2014), Analyze Gauss, for the noise. Bai and Silverstein (2010), Spectral analysis of
large dimensional random matrices, chapter 2, for the deterministic equivalent of the inverse.

Examples
--------
>>> rows = np.array([[1.0, 0.0], [0.0, 2.0], [1.0, 2.0]])
>>> moment = Moment(released=rows.T @ rows, noise_std=0.5)
>>> moment.second_moment().errors.round(2)
array([[0.71, 0.5 ],
       [0.5 , 0.71]])
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dpca.errors import Invalid
from dpca.predictors import Quality, ShrunkInverse, quality_of

type Matrix = NDArray[np.float64]
type Columns = NDArray[np.intp]

DEFAULT_L2 = 1.0
"""The default ridge penalty, in units of the noise edge (the expected largest eigenvalue of the noise).

A penalty of one noise edge makes a matrix of noise alone positive definite. With this penalty, the noise increases the
variance of a coefficient by at most a third over its first-order value, for any rows."""
LEAST_SHARE = 3.0
"""A count, variance or share by which a column is divided must be at least this many of its standard errors.

A smaller value is raised to this bound, or the noise is taken to hide it."""
MARGIN = 2.0
"""A safety factor on a suggested reduction of the noise, since the suggestion is computed from noisy numbers."""
_INFLATED, _DOUBLINGS, _BISECTIONS = 0.35, 40, 200
_MOST_INFLATED = 3.0
"""The largest relative increase of a variance, by noise in the inverse, for which standard errors are computed."""


class Estimate(NamedTuple):
    """Released numbers, and the standard errors that the known noise gives them; both have the same shape."""

    values: Matrix
    errors: Matrix


class TooNoisy(Invalid):
    """The noise hides a requested number.

    Parameters
    ----------
    message : str
    factor : float
        The factor by which the standard deviation of the noise must fall.
    """

    def __init__(self, message: str, *, factor: float) -> None:
        super().__init__(message)
        self.factor = factor


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Moment:
    """A released second moment with its noise.

    Parameters
    ----------
    released : array of shape (p, p), data units squared
        The symmetric release, a sum over rows. Its last row and column belong to the constant, if there is one.
    noise_std : float, data units squared
        s, the standard deviation of the noise off the diagonal if the weights K are the identity.
    constant : float, data units, optional
        c, the public constant at the end of each row. Without it, no mean was released.
    weights : array of shape (p, p), optional
        K, the matrix from which the covariances of the noise follow (see the module), if it is not the identity.

    Raises
    ------
    Invalid
        If the matrix is not square and finite, the noise is not positive, or the weights have another shape.
    """

    released: Matrix
    noise_std: float
    constant: float | None = None
    weights: Matrix | None = None

    def __post_init__(self) -> None:
        """Check the shapes and the noise."""
        order = len(self.released)
        if self.released.shape != (order, order) or self.n_features < 1 or not np.isfinite(self.released).all():
            raise Invalid(f"a moment of shape {self.released.shape} must be square and finite; pass it as released")
        if not (math.isfinite(self.noise_std) and self.noise_std > 0.0):
            raise Invalid(f"noise_std={self.noise_std} must be positive; pass the planned standard deviation")
        if self.weights is not None and self.weights.shape != self.released.shape:
            raise Invalid(
                f"weights of shape {self.weights.shape} must have the shape of the moment; pass both as released"
            )

    @property
    def n_features(self) -> int:
        """The number of features, d."""
        return len(self.released) - (self.constant is not None)

    @property
    def n_rows(self) -> float:
        """The released number of rows.

        Raises
        ------
        Invalid
            If the release has no mean.
        TooNoisy
            If a release in one round has a number of rows below `LEAST_SHARE` of its standard errors.
        """
        constant, last = self._constant(), float(self.released[-1, -1])
        if self._is_uncounted:
            least = LEAST_SHARE * math.sqrt(2.0) * self.noise_std
            factor = MARGIN * least / max(last, least / LEAST_SHARE)
            raise TooNoisy("the noise hides the number of rows", factor=factor)
        return max(last / constant**2, 1.0)

    @property
    def noise_edge(self) -> float:
        """The noise edge: an upper bound of the expected largest eigenvalue of the noise, in units of the matrix."""
        return self._edge(self._weights())

    def second_moment(self) -> Estimate:
        """Return the second moment of the rows, shape (d, d), as a sum over rows in squared data units."""
        d = self.n_features
        return Estimate(self.released[:d, :d], self.noise_std * entry_errors(self._weights()[:d, :d]))

    def mean(self) -> Estimate:
        """Return the mean of the rows, shape (d,), in data units.

        Raises
        ------
        Invalid
            If the release has no mean.
        """
        c, n, weights = self._constant(), self.n_rows, self._weights()
        last, across = float(weights[-1, -1]), weights[:-1, -1]
        means = self.released[:-1, -1] / c / n
        first = (np.diag(weights)[:-1] * last + across**2) / (c * n) ** 2
        both, count = means * across * last / (c**3 * n**2), (means * last / (c**2 * n)) ** 2
        return Estimate(means, self.noise_std * np.sqrt(np.maximum(first - 4.0 * both + 2.0 * count, 0.0)))

    def covariance(self) -> Estimate:
        """Return the covariance of the rows, shape (d, d), in squared data units, divided by the number of rows.

        Raises
        ------
        Invalid
            If the release has no mean.
        """
        c, n, (scatter, noise, across) = self._constant(), self.n_rows, self._centred()
        values = scatter / n
        last = float(self._weights()[-1, -1])
        variances = entry_errors(noise) ** 2 - 4.0 * values / c**2 * np.outer(across, across)
        variances += 2.0 * (values * last / c**2) ** 2
        return Estimate(values, self.noise_std / n * np.sqrt(np.maximum(variances, 0.0)))

    def correlation(self) -> Estimate:
        """Return the correlations of the features, shape (d, d).

        A feature whose variance is below `LEAST_SHARE` standard errors has correlations of 0 with a standard error of
        1.

        Raises
        ------
        Invalid
            If the release has no mean.
        TooNoisy
            If every feature has such a small variance.
        """
        scatter, noise, _ = self._centred()
        least = LEAST_SHARE * math.sqrt(2.0) * self.noise_std * np.diag(noise)
        seen = np.diag(scatter) > least
        if not seen.any():
            factor = float((least / np.maximum(np.diag(scatter), least / LEAST_SHARE)).min())
            raise TooNoisy("the noise hides the variance of every column", factor=MARGIN * factor)
        return self._ratios(scatter, noise, seen=seen)

    def partial_correlation(self, *, l2: float | None = None) -> Estimate:
        """Return the partial correlations of the features given all others, shape (d, d), with a ridge penalty.

        Parameters
        ----------
        l2 : float, squared data units summed over rows, optional
            As in `ridge`. By default, `DEFAULT_L2` times an upper bound of the noise edge of the centred matrix.
        """
        scatter, noise, _ = self._centred()
        penalty = DEFAULT_L2 * self._edge(noise) if l2 is None else l2
        inverse, _, _ = self._inverse(scatter, noise, penalty)
        found = self._ratios(inverse, inverse @ noise @ inverse, seen=np.ones(len(scatter), bool))
        signs = 2.0 * np.eye(len(scatter)) - 1.0
        return Estimate(found.values * signs, found.errors)

    def ridge(self, targets: Columns, features: Columns, *, l2: float | None = None) -> "Regression":
        """Regress targets on features, with an intercept if the release has a mean.

        Parameters
        ----------
        targets, features : arrays of int, shapes (m,) and (q,)
            The indices of columns; no column may be in both arrays.
        l2 : float, squared data units summed over rows, optional
            The penalty: the coefficients minimise ``sum (y - x w - b)^2 + l2 |w|^2`` over the clipped rows, up to the
            noise. By default, `DEFAULT_L2` times the noise edge.

        Returns
        -------
        Regression

        Raises
        ------
        TooNoisy
            If the penalty is so small that noise dominates the inverse.

        Notes
        -----
        The intercept is not penalised, unless the noise hides the number of rows.
        """
        weights = self._weights()
        inner = features if self.constant is None else np.append(features, len(self.released) - 1)
        among, block = np.ix_(inner, inner), np.ix_(inner, targets)
        inverse, shift, penalty = self._inverse(
            self.released[among], weights[among], l2, n_free=0 if self._is_uncounted else len(inner) - len(features)
        )
        found = inverse @ (self.released[block] + shift * weights[block])
        whole = np.zeros((len(self.released), len(targets)))
        whole[inner], whole[targets] = found, whole[targets] - np.eye(len(targets))
        q = len(features)
        intercepts = np.zeros(len(targets)) if self.constant is None else found[q] * self.constant
        predictors, offsets, qualities = (
            (found[:q].T, intercepts, ()) if self._is_uncounted else self._predictors(targets, features, penalty)
        )
        return Regression(
            coefficients=found[:q].T,
            intercepts=intercepts,
            errors=np.sqrt(self._variances(whole, inner, inverse))[:q].T,
            l2=penalty,
            weights=predictors,
            offsets=offsets,
            quality=qualities,
        )

    def discriminant(self, classes: Columns, features: Columns, *, l2: float | None = None) -> "Regression":
        """Return the linear discriminant functions of classes, whose indicators are columns of the release.

        Parameters
        ----------
        classes : array of int, shape (m,)
            The columns that indicate the classes. Each row belongs to one class.
        features : array of int, shape (q,)
        l2 : float, optional
            A penalty on the scatter within classes, as in `ridge`.

        Returns
        -------
        Regression
            One score for each class; the class with the largest score is predicted.

        Notes
        -----
        The class means are regression coefficients of the features on the indicators. So an indicator may have another
        value than 0 and 1, for example in a row that was scaled down by clipping.
        """
        weights = self._weights()
        sizes = np.diag(self.released)[classes]
        least = LEAST_SHARE * math.sqrt(2.0) * self.noise_std * np.diag(weights)[classes]
        if (sizes < least).any():
            raise TooNoisy(
                f"{int((sizes < least).sum())} of {len(classes)} classes have too few rows to exceed the noise",
                factor=MARGIN * float((least / np.maximum(sizes, least / LEAST_SHARE)).max()),
            )
        means = self.released[np.ix_(features, classes)] / sizes
        project = np.zeros((len(features), len(self.released)))
        project[np.arange(len(features)), features] = 1.0
        project[:, classes] -= means
        within = project @ self.released @ project.T
        noise = project @ weights @ project.T
        inverse, _, penalty = self._inverse((within + within.T) / 2.0, noise, l2)
        total = float(sizes.sum())
        found = inverse @ means * total
        whole = project.T @ found
        whole[classes] -= np.diag(total / sizes)
        return Regression(
            coefficients=found.T,
            intercepts=np.log(sizes / total) - (means * found).sum(axis=0) / 2.0,
            errors=np.sqrt(self._variances(whole, features, inverse)).T,
            l2=penalty,
        )

    def components(self, n_components: int, *, scale: Matrix | None = None) -> "Components":
        """Return principal components, around the mean if the release has one.

        Parameters
        ----------
        n_components : int
            The number of components, at most the number of features.
        scale : array of shape (d,), optional
            Positive factors of the columns.

        Returns
        -------
        Components
        """
        d = self.n_features
        if not 1 <= n_components <= d:
            raise Invalid(f"{n_components} components were requested; this release has {d} features; request 1 to {d}")
        if self.constant is None:
            scatter, noise = self.released, self._weights()
        else:
            scatter, noise, _ = self._centred()
        factors = np.ones(d) if scale is None else scale
        scatter, noise = (each * np.outer(factors, factors) for each in (scatter, noise))
        values, vectors = np.linalg.eigh(scatter)
        edge = self._edge(noise)
        values, vectors = values[::-1][:n_components], vectors[:, ::-1][:, :n_components]
        largest = vectors[np.abs(vectors).argmax(axis=0), np.arange(n_components)]
        denoised = np.where(values > edge, (values + np.sqrt(np.maximum(values**2 - edge**2, 0.0))) / 2.0, 0.0)
        return Components(
            directions=(vectors * np.where(largest < 0.0, -1.0, 1.0)).T, values=values, denoised=denoised, edge=edge
        )

    def sample(self, n_rows: int, *, seed: int) -> Matrix:
        """Draw normal rows, shape (n_rows, d), with the released mean and the nearest positive semidefinite covariance.

        Raises
        ------
        Invalid
            If the release has no mean.
        """
        values, vectors = np.linalg.eigh(self.covariance().values)
        root = vectors * np.sqrt(np.maximum(values, 0.0))
        draws = np.random.default_rng(seed).standard_normal((n_rows, len(values)))
        return np.asarray(self.mean().values + draws @ root.T)

    @property
    def _is_uncounted(self) -> bool:
        if self.constant is None or self.weights is not None:
            return False
        return bool(self.released[-1, -1] < LEAST_SHARE * math.sqrt(2.0) * self.noise_std)

    def _constant(self) -> float:
        if self.constant is None:
            raise Invalid("this release has no mean; release the moment with center=private")
        return self.constant

    def _weights(self) -> Matrix:
        return np.eye(len(self.released)) if self.weights is None else self.weights

    def _edge(self, noise: Matrix) -> float:
        return 2.0 * self.noise_std * math.sqrt(float(np.trace(noise)) * float(np.linalg.norm(noise, 2)))

    def _centred(self) -> tuple[Matrix, Matrix, Matrix]:
        """Return the scatter around the mean, the K of its noise, and K's entries between columns and the constant."""
        c = self._constant()
        scatter, mean = centred(self.released[:-1, :-1], self.released[:-1, -1] / c, self.n_rows)
        project = np.column_stack([np.eye(len(mean)), -mean / c])
        weighted = project @ self._weights()
        return scatter, weighted @ project.T, weighted[:, -1]

    def _inverse(
        self, matrix: Matrix, noise: Matrix, l2: float | None, *, n_free: int = 0
    ) -> tuple[Matrix, float, float]:
        """Return (inverse of a matrix plus a penalty, corrected for noise; h, which `resolvent` adds; the penalty).

        The default penalty is doubled until the noise increases variances by at most about a third. A release in one
        round needs no doubling. The last ``n_free`` coordinates are not penalised.

        Raises
        ------
        TooNoisy
            If the noise dominates the inverse.
        """
        if l2 is not None and not (math.isfinite(l2) and l2 >= 0.0):
            raise Invalid(f"l2={l2} must be finite and not negative; leave it out to use the default")
        mask, edge = np.arange(len(matrix)) < len(matrix) - n_free, 2.0 * self.noise_std * math.sqrt(len(self.released))
        penalty = DEFAULT_L2 * edge if l2 is None else l2
        for _ in range(_DOUBLINGS if l2 is None else 1):
            inverse, shift = resolvent(matrix + np.diag(penalty * mask), noise, noise_std=self.noise_std)
            inflation = self._inflation(inverse, noise)
            if inflation <= _INFLATED:
                break
            penalty *= 2.0 if l2 is None else 1.0
        if inflation > _MOST_INFLATED:
            raise TooNoisy(
                f"l2={penalty:.4g} is too small for the noise; leave l2 out, or use at least {edge:.4g}",
                factor=edge / max(penalty, edge / 100.0),
            )
        return inverse, shift, penalty

    def _inflation(self, inverse: Matrix, noise: Matrix) -> float:
        product = inverse @ noise
        return self.noise_std**2 * float((product * product.T).sum())

    def _variances(self, whole: Matrix, inner: Columns, inverse: Matrix) -> Matrix:
        """Return the variance of each entry of ``inverse @ (A v)``, for each column v of ``whole``.

        Notes
        -----
        Noise increases both ``|v|^2`` and the squared inverse by the factor ``1 + q``, with q from `_inflation`. The
        variance, which contains their product, must contain this factor only once. So it is divided by ``1 + q``.
        """
        weights = self._weights()
        among = weights[np.ix_(inner, inner)]
        seen = weights @ whole
        length = (whole * seen).sum(axis=0)
        spread = ((inverse @ among) * inverse).sum(axis=1)
        along = np.square(inverse @ seen[inner])
        scale = self.noise_std**2 / (1.0 + self._inflation(inverse, among))
        return np.asarray(scale * (np.outer(spread, length) + along))

    def _predictors(
        self, targets: Columns, features: Columns, penalty: float
    ) -> tuple[Matrix, Matrix, tuple[Quality, ...]]:
        """Return the weights and offsets of calibrated predictors of the targets, and their qualities.

        Notes
        -----
        Without a mean, the target is regressed on two variables: the scores in the leading direction, without a
        penalty, and a shrunk predictor in all other directions. If columns add up to a constant, the scores in the
        leading direction are nearly constant, so they serve as an intercept.
        """
        s, mean, scale = self.noise_std, np.zeros(self.n_features), 1.0
        if self.constant is None:
            scatter, noise, across = self.released, self._weights(), np.zeros(self.n_features)
        else:
            scatter, noise, across = self._centred()
            mean, scale = self.mean().values, self.constant * self.n_rows
        among, leads = np.ix_(features, features), self.constant is None and len(features) > 1
        inverse = ShrunkInverse(scatter[among], noise[among], noise_std=s, penalty=penalty, leads=leads)
        weights, offsets, qualities = [], [], []
        for target in targets:
            side, shared, own = scatter[features, target], noise[features, target], float(noise[target, target])
            solution, spread = inverse.solve(side, shared), float(scatter[target, target])
            w, lead = solution.vector, float(inverse.leading @ side) / inverse.lead if leads else 0.0
            own += lead**2 - 2.0 * lead * float(inverse.leading @ shared)
            size = float(w @ noise[among] @ w)
            quality = quality_of(
                product=float(w @ side) - solution.bias(shared, inner=own),
                product_error=s * math.sqrt(size * own + float(w @ shared) ** 2),
                square=float(w @ scatter[among] @ w) - solution.square_bias(),
                square_error=math.sqrt(2.0) * s * size,
                spread=max(spread - lead**2 * inverse.lead, math.sqrt(2.0) * s * own),
            )
            centre = float(mean[features] @ w) - solution.bias(across[features], inner=float(across[target])) / scale
            weights.append(quality.slope * w + lead * inverse.leading)
            offsets.append(float(mean[target]) - quality.slope * centre)
            qualities.append(quality)
        return np.array(weights), np.array(offsets), tuple(qualities)

    def _ratios(self, matrix: Matrix, noise: Matrix, *, seen: NDArray[np.bool_]) -> Estimate:
        """Return the ratios ``m_ij / sqrt(m_ii m_jj)`` of a noisy matrix m, with standard errors.

        The parameter `noise` is the matrix K for the noise of m. Rows and columns that the noise hides (not `seen`) get
        ratios of 0 with errors of 1, off the diagonal.
        """
        roots = np.sqrt(np.where(seen, np.diag(matrix), 1.0))
        values = np.clip(matrix / np.outer(roots, roots), -1.0, 1.0)
        k = noise / np.outer(roots, roots)
        own = np.diag(k)
        variances = np.outer(own, own) + k**2 - 2.0 * values * k * np.add.outer(own, own)
        variances += values**2 * (np.add.outer(own**2, own**2) + 2.0 * k**2) / 2.0
        errors = np.minimum(self.noise_std * np.sqrt(np.maximum(variances, 0.0)), 1.0)
        hidden = ~np.logical_and.outer(seen, seen)
        values, errors = np.where(hidden, 0.0, values), np.where(hidden, 1.0, errors)
        np.fill_diagonal(values, 1.0)
        np.fill_diagonal(errors, 0.0)
        return Estimate(values, errors)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Regression:
    """Linear functions of the features: ``x @ coefficients.T + intercepts``.

    Parameters
    ----------
    coefficients : array of shape (m, q)
    intercepts : array of shape (m,)
    errors : array of shape (m, q)
        The standard errors of the coefficients.
    l2 : float, squared data units summed over rows
        The penalty.
    weights, offsets : arrays of shape (m, q) and (m,), optional
        The predictors ``x @ weights.T + offsets`` of a ridge regression. They estimate the mean of the target given x
        with less error than the coefficients, and have no standard errors (see `dpca.predictors`).
    quality : tuple of Quality
        The quality of each predictor on the released rows. If the release has no mean, it is the quality after the
        leading direction is removed. Empty if the noise hides the number of rows.
    """

    coefficients: Matrix
    intercepts: Matrix
    errors: Matrix
    l2: float
    weights: Matrix | None = None
    offsets: Matrix | None = None
    quality: tuple[Quality, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Components:
    """Principal components of the columns, each multiplied by its factor if factors were given.

    Parameters
    ----------
    directions : array of shape (k, d)
        Orthonormal rows; the largest entry of each is positive.
    values : array of shape (k,), squared data units summed over rows
        The eigenvalues of the released matrix, in descending order.
    denoised : array of shape (k,), same units
        The eigenvalues, corrected for the increase by noise; 0 for eigenvalues up to the noise edge.
    edge : float, same units
        The noise edge: an upper bound of the expected largest eigenvalue of the noise.
    """

    directions: Matrix
    values: Matrix
    denoised: Matrix
    edge: float


def centred(matrix: Matrix, total: Matrix, count: float) -> tuple[Matrix, Matrix]:
    """Return ``matrix - count mean mean^T`` and ``mean = total / count``; a noisy count below 1 is replaced by 1."""
    mean = total / max(count, 1.0)
    return matrix - np.outer(total, mean), mean


def resolvent(matrix: Matrix, weights: Matrix, *, noise_std: float) -> tuple[Matrix, float]:
    """Return ``G = (matrix + h weights)^-1`` and h, where h corrects the bias of the inverse that noise causes.

    Parameters
    ----------
    matrix : array of shape (q, q)
        A symmetric matrix that contains the noise ``s P E P^T``.
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
    """Return the positive semidefinite matrix that is nearest in the Frobenius norm.

    A correlation matrix is then rescaled to a unit diagonal, so it is no longer the nearest.
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
    """Return the standard deviation of each entry of ``P E P^T``, given ``noise = P P^T``."""
    own = np.diag(noise)
    return np.asarray(np.sqrt(np.outer(own, own) + noise**2))
