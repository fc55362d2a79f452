"""A released noisy second moment with its public facts, and the denoising of its eigenvectors.

*Input.* A `NoisyMoment` is a released matrix with public facts about its noise. It is the only input of a refinement,
which never takes rows, keys or noise streams of a release. So everything computed from it is post-processing of a
release that is already charged.

*Coordinates.* Computations use units of the noise and standard coordinates (`standardised`): columns are sorted by
their diagonal entries, and their signs make the entries of the last row nonnegative. So a permutation of the columns,
other signs or another unit of measurement give the same numbers. Public random matrices are added to the released
matrix. The order and the signs depend on the release, but the law of the random matrices is the same in all
coordinates. So they stay independent of the release.

*Denoising* of leading eigenvectors uses empirical Bayes, and two steps of message passing. All matrices are in units of
the noise: E has standard deviation 1 off its diagonal. Let v_j be the leading eigenvectors of ``A = S + E``, and
theta_j their strengths. The matrix with columns ``theta_j v_j`` is a signal plus noise of standard deviation 1 in every
entry. Its rows belong to features, and the signal differs in size between rows. The prior states only this: entry j of
row i is normal with variance ``g_i s_j^2``. Here s_j is estimated from the data, and g_i comes from a fixed grid with
fitted weights. The posterior mean shrinks rows that contain noise alone, which rotates the columns towards the signal.
If all rows have the same size, nothing changes.

*Approximate message passing* continues from the posterior means. Each step multiplies them by A, subtracts the
correlation of the noise with the previous step (the Onsager term), and takes posterior means again.

The numbers of steps and the grid of g_i are fixed, and no step depends on a stopping rule. So the same matrix gives the
same bits.

References
----------
Zhong, Su and Fan (2022), Empirical Bayes PCA in high dimensions; Montanari and Venkataramanan (2021), Estimation of
low-rank matrices via approximate message passing. The prior over row sizes is from neither paper.
"""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import eigh

from dpca_tasks.errors import InvalidInput
from dpca_tasks.mechanisms.eigenpairs import leading_eigenpairs, signed
from dpca_tasks.mechanisms.noise_level import above_edge, edge_quantile, spike_strengths, widened_edge, wishart_edge
from dpca_tasks.refinement.schema_constraints import Constraints

type Matrix = NDArray[np.float64]
type NoiseKind = Literal["isometric", "upper_triangle", "wishart", "laplace"]

PUBLIC_SEED = 20_261_122
"""The seed of every public random number of a refinement: a constant, so that results are reproducible."""
TOP_UP, CHOICE, REPORT, START = 0, 1, 2, 3
"""Numbers of the random streams of `PUBLIC_SEED`, one for each use.

The uses are noise on a diagonal, the choice of a method, the score of that method, and the start of Krylov iterations.
"""

RESOLVED = 2.0**50
"""The size of a matrix entry, in stds of the noise, beyond which rounding errors are as large as the noise."""

_ASYMMETRY = 1e-9  # tolerance for rounding in the given matrix, relative to the largest entry
_STRIP = 64  # the number of rows that are compared, or averaged, at a time
_COARSEST = 100.0  # the least number of grid steps in one std of the noise


@dataclass(frozen=True, kw_only=True, eq=False)
class NoisyMoment:
    """A released symmetric matrix, and the public facts about its noise.

    Parameters
    ----------
    matrix : float64 array of shape (d, d)
        The released matrix. If a constant was appended to the rows for centring, its order is d + 1.
    noise_std : float, units of the matrix
        The planned standard deviation of the noise off the diagonal, not a fitted one.
    noise : {"isometric", "upper_triangle", "wishart", "laplace"}
        The law of the noise. ``isometric``: normal, sqrt 2 times as large on the diagonal. ``upper_triangle``: normal,
        with one std for all entries.
    constant : float, data units, optional
        The constant that was appended to the rows, if the moment is to be centred.
    step : float, units of the matrix
        The grid step of the released entries.
    eigenvalues : float64 array of shape (d,), units of the matrix, optional
        All eigenvalues of the matrix, descending, after centring if the moment is to be centred. If given, they are not
        computed again.
    vectors : float64 array of shape (m, d), optional
        The eigenvectors of the leading ``eigenvalues``, as rows.
    constraints : Constraints, optional
        The public constraints that the matrix satisfies, because it was projected onto them. ``noise_std`` is then the
        std of the noise after the projection.
    """

    matrix: Matrix
    noise_std: float
    noise: NoiseKind = "isometric"
    constant: float | None = None
    step: float = 0.0
    eigenvalues: Matrix | None = None
    vectors: Matrix | None = None
    constraints: Constraints | None = None

    def __post_init__(self) -> None:
        """Refuse a matrix that is not symmetric with finite entries, and an invalid size of the noise."""
        order = self.matrix.shape[0]
        if self.matrix.shape != (order, order) or order < (1 if self.constant is None else 2):
            raise InvalidInput(f"a matrix of shape {self.matrix.shape} must be square; pass a released second moment")
        if not (math.isfinite(self._largest) and _is_symmetric(self.matrix, largest=self._largest)):
            raise InvalidInput("the matrix must be symmetric with finite entries; pass it as released")
        if not (math.isfinite(self.noise_std) and self.noise_std >= 0.0):
            raise InvalidInput(f"noise_std={self.noise_std} must be finite and not negative; pass the planned one")

    @property
    def order(self) -> int:
        """The number of features, d."""
        return len(self.matrix) - (self.constant is not None)

    @property
    def isometric(self) -> bool:
        """True if the noise is normal, and isotropic as released or after public noise is added to the diagonal."""
        return self.noise in ("isometric", "upper_triangle")

    @property
    def isotropic(self) -> bool:
        """True if the noise is normal and isotropic, including that of a released mean, and no constraints apply."""
        topped_up = self.noise == "upper_triangle" and self.constant is None
        return self.constraints is None and (self.noise == "isometric" or topped_up)

    @property
    def guarded(self) -> bool:
        """True if a refinement can be scored: the noise is normal, and large compared with rounding and grid."""
        return self.resolved and self.isometric and self.step * _COARSEST <= self.noise_std

    @property
    def resolved(self) -> bool:
        """True if the noise is positive, and larger than the rounding errors of the largest entry."""
        return self.noise_std > 0.0 and self._largest <= RESOLVED * self.noise_std

    @cached_property
    def _largest(self) -> float:
        return max(float(self.matrix.max()), -float(self.matrix.min()))  # NaN if an entry is NaN

    @cached_property
    def standard(self) -> "Standardised":
        """The moment in units of its noise."""
        return standardised(self)

    def centred(self) -> Matrix:
        """Return the second moment as released; if a constant was appended to the rows, centre it first."""
        return self.matrix if self.constant is None else _centred(self.matrix, least=self.constant**2)


@dataclass(frozen=True, kw_only=True, eq=False)
class Standardised:
    """A noisy moment in units of its noise and in standard coordinates (see the notes of this module).

    ``source`` is the moment as released. Arrays are computed on first use.
    """

    source: NoisyMoment

    @property
    def noise(self) -> NoiseKind:
        """The law of the noise."""
        return self.source.noise

    @property
    def least(self) -> float | None:
        """The least divisor for centring, the squared constant in units of the noise; None without centring."""
        constant = self.source.constant
        return None if constant is None else constant**2 / self.source.noise_std

    @cached_property
    def isotropic_std(self) -> float:
        """The standard deviation that the noise had before the projection onto constraints; 1 without constraints."""
        constraints = self.source.constraints
        return 1.0 if constraints is None else 1.0 / constraints.ratio(constant=self.least is not None)

    def projected(self, matrix: Matrix) -> Matrix:
        """Project a matrix in standard coordinates, with the shape of `released`, onto the constraints, if any."""
        constraints = self.source.constraints
        if constraints is None:
            return matrix
        signs = self._placed[1]
        own = np.empty_like(matrix)
        own[np.ix_(self._places, self._places)] = matrix * signs * signs[:, None]
        own = constraints.project(own)
        return np.asarray(own[np.ix_(self._places, self._places)] * signs * signs[:, None])

    @cached_property
    def order(self) -> NDArray[np.intp]:
        """For each of the d columns in standard order, the index of the column in the release."""
        return np.argsort(np.diag(self.source.matrix)[: self.source.order], kind="stable")

    @property
    def signs(self) -> Matrix:
        """The factor, 1 or -1, by which each of the d columns was multiplied."""
        return self._placed[1][: self.source.order]

    @property
    def released(self) -> Matrix:
        """The released matrix in standard coordinates, including the row and column of an appended constant."""
        return self._placed[0]

    @cached_property
    def _places(self) -> NDArray[np.intp]:
        return self.order if self.source.constant is None else np.append(self.order, self.source.order)

    @cached_property
    def _placed(self) -> tuple[Matrix, Matrix]:
        moment = self.source
        places = self._places
        released = moment.matrix[places].take(places, axis=1)
        released /= moment.noise_std
        _symmetrise(released)
        signs = np.where(released[-1] < 0.0, -1.0, 1.0)
        signs[-1] = 1.0
        released *= signs
        released *= signs[:, None]
        if moment.noise == "upper_triangle":
            rng = np.random.default_rng((PUBLIC_SEED, TOP_UP))
            released[np.diag_indices_from(released)] += rng.standard_normal(len(released))
        return released, signs

    @cached_property
    def moment(self) -> Matrix:
        """The second moment of order d, centred if a constant was appended to the rows."""
        return self.centred(self.released)

    @cached_property
    def eigenvalues(self) -> Matrix:
        """All eigenvalues of the moment, descending."""
        if self._known is None:
            return np.asarray(eigh(self.moment, eigvals_only=True)[::-1])
        return self._known / self.source.noise_std

    def leading(self, count: int) -> tuple[Matrix, Matrix]:
        """Return the leading eigenvalues, descending, and their eigenvectors as rows, in standard coordinates."""
        known = self.source.vectors
        if known is None or len(known) < count or self._known is None:
            return leading_eigenpairs(self.moment, count)
        return self.eigenvalues[:count], signed(self.columns(known[:count]).T)

    @property
    def _known(self) -> Matrix | None:
        return None if self.noise == "upper_triangle" else self.source.eigenvalues  # noise was added to the diagonal

    def centred(self, released: Matrix) -> Matrix:
        """Centre a matrix of the shape of `released`, if this shape includes an appended constant; else return it."""
        return released if self.least is None else _centred(released, least=self.least)

    @property
    def count(self) -> float:
        """The released number of records times the squared constant, in units of the noise, at least `least`."""
        assert self.least is not None
        is_topped_up = self.noise == "upper_triangle"
        released = self.released[-1, -1] if is_topped_up else self.source.matrix[-1, -1] / self.source.noise_std
        return max(float(released), self.least)

    @cached_property
    def mean(self) -> Matrix:
        """The released mean divided by the appended constant; zeros if the moment is not centred."""
        if self.least is None:
            return np.zeros(self.source.order)
        total = np.abs(self.source.matrix[-1, :-1]) / self.source.noise_std  # the signs make it nonnegative
        return np.asarray(total[self.order] / self.count)

    @cached_property
    def edge(self) -> float:
        """An upper bound on the largest eigenvalue of the noise that holds in 99 of 100 cases."""
        if self.noise == "wishart":
            noisy = len(self.source.matrix)
            return wishart_edge(noisy) / math.sqrt(2.0 * (noisy + 1.0))
        constraints = self.source.constraints
        order = self.source.order if constraints is None else constraints.width
        shift = float(self.mean @ self.mean)
        return self.isotropic_std * (edge_quantile(order) if self.least is None else widened_edge(order, shift=shift))

    def own_rows(self, columns: Matrix) -> Matrix:
        """Convert columns of shape (d, k) in standard coordinates to rows in the coordinates of the release."""
        rows = np.empty_like(columns.T)
        rows[:, self.order] = columns.T * self.signs
        return rows

    def columns(self, own_rows: Matrix) -> Matrix:
        """Convert rows in the release's coordinates to columns in standard coordinates."""
        return np.ascontiguousarray((own_rows[:, self.order] * self.signs).T)


def standardised(moment: NoisyMoment) -> Standardised:
    """Return a moment in units of its noise, and in coordinates that ignore the order and signs of its columns."""
    return Standardised(source=moment)


def _is_symmetric(matrix: Matrix, *, largest: float) -> bool:
    strips = (slice(start, start + _STRIP) for start in range(0, len(matrix), _STRIP))
    return all(np.abs(matrix[rows] - matrix[:, rows].T).max() <= _ASYMMETRY * largest for rows in strips)


def _symmetrise(matrix: Matrix) -> None:
    """Replace a matrix, in place, by its mean with its transpose."""
    for start in range(0, len(matrix), _STRIP):
        stop = start + _STRIP
        strip = (matrix[start:stop, start:] + matrix[start:, start:stop].T) / 2.0
        matrix[start:stop, start:], matrix[start:, start:stop] = strip, strip.T


def _centred(extended: Matrix, *, least: float) -> Matrix:
    """Subtract ``n mean mean^T`` from a second moment whose rows end in a constant.

    A noisy number n of rows below 1 is replaced by 1. ``least`` is the square of the constant, in units of the matrix.
    """
    total = extended[:-1, -1]
    return extended[:-1, :-1] - np.outer(total, total / max(float(extended[-1, -1]), least))


type Products = NDArray[np.float64 | np.float32]
type Method = Literal["none", "eb", "spikes", "all"]

METHODS: tuple[Method, ...] = ("none", "eb", "spikes", "all")
BEYOND = 10
"""The number of pairs that are denoised in addition to the requested k.

They improve the result. More pairs would make it worse if the matrix is small.
"""
STEPS = 2
EM_STEPS = 60
SCALES = np.concatenate([[0.0], 4.0 ** np.arange(-3, 7)])
"""The possible values of g_i: the sum of squares of a row, relative to the mean over all rows."""

_LEAST_ENERGY = 0.02
_LEAST_WEIGHT = 1e-9
_LOST = 1e-6


def width(order: int, n_components: int) -> int:
    """Return the number of pairs that are denoised together: ``k + 10``, at most ``order``."""
    return min(order, n_components + BEYOND)


def frames(
    matrix: Products,
    *,
    n_components: int,
    methods: tuple[Method, ...],
    pairs: tuple[Matrix, Matrix] | None = None,
) -> dict[Method, tuple[Matrix, Matrix]]:
    """Estimate the k leading directions of the signal in a noisy matrix, by several methods.

    Parameters
    ----------
    matrix : float64 or float32 array of shape (d, d)
        Symmetric, in units of its noise; products use the precision of the matrix.
    n_components : int
        The number k of directions.
    methods : tuple of str
        ``none``: the leading eigenvectors. ``eb``: their posterior means. ``spikes`` and ``all``: posterior means after
        two steps of message passing, from the pairs above the noise or from all K pairs.
    pairs : pair of float64 arrays of shapes (K,) and (K, d), optional
        The K leading eigenvalues of the matrix, descending, and eigenvectors as rows, where K is `width`. By default,
        they are computed.

    Returns
    -------
    dict
        For each method its k orthonormal directions u, as columns, preceded by the values ``u^T A u`` for the matrix A.

    Guarantees
    ----------
    If d is at most k + 10, every method returns the eigenvectors, since the K pairs span the whole space.
    """
    order = len(matrix)
    count = width(order, n_components)
    values, rows = leading_eigenpairs(matrix.astype(np.float64, copy=False), count) if pairs is None else pairs
    vectors = rows.T
    raw = values[:n_components], vectors[:, :n_components]
    if count == order:
        return dict.fromkeys(methods, raw)
    found: dict[Method, tuple[Matrix, Matrix]] = {"none": raw}
    if set(methods) == {"none"}:
        return found
    strengths = spike_strengths(values, order=order)
    shrunk = posterior_mean(vectors * strengths)
    detected = above_edge(values, edge=edge_quantile(order))

    def finished(columns: Matrix) -> tuple[Matrix, Matrix]:
        return _rayleigh_ritz(matrix, _orthonormal(columns, vectors), n_components)

    if "eb" in methods or detected == 0:
        found["eb"] = finished(shrunk)
    for method, iterated in (("spikes", detected), ("all", count)):
        if method not in methods:
            continue
        if iterated == 0:
            found[method] = found["eb"]
        elif method == "all" and detected == count and "spikes" in found:
            found[method] = found["spikes"]
        else:
            passed = _passed_messages(matrix, vectors[:, :iterated], strengths[:iterated])
            found[method] = finished(np.hstack([passed, shrunk[:, iterated:]]))
    return {method: found[method] for method in methods}


@dataclass(frozen=True, slots=True, eq=False)
class _Rows:
    """The posterior of the signal, given the noisy rows.

    ``scale_weights`` are the posterior probabilities of the 11 scales for each row. ``kept`` is the factor by which the
    posterior mean multiplies an entry, for each scale and column.
    """

    noisy: Matrix  # (d, K)
    scale_weights: Matrix  # (d, 11)
    kept: Matrix  # (11, K)

    @property
    def shrinkage(self) -> Matrix:
        return self.scale_weights @ self.kept

    @property
    def mean(self) -> Matrix:
        return self.noisy * self.shrinkage

    def jacobian(self) -> Matrix:
        """Return the sum over rows of the K x K matrices ``d mean_i / d noisy_j``, for entries i and j of a row."""
        noisy, removed = self.noisy, 1.0 - self.kept
        shrinkage = self.shrinkage
        total = np.diag(shrinkage.sum(axis=0)) + (noisy * shrinkage).T @ (noisy * (self.scale_weights @ removed))
        for weights, kept, taken in zip(self.scale_weights.T, self.kept, removed, strict=True):
            total -= kept[:, None] * (noisy.T @ (noisy * weights[:, None])) * taken
        return total


def _fitted(noisy: Matrix) -> _Rows:
    """Fit the prior to noisy rows, with maximum likelihood weights of the scales, and return the posterior."""
    squares = noisy * noisy
    energies = np.maximum(squares.mean(axis=0) - 1.0, _LEAST_ENERGY)
    variances = 1.0 + SCALES[:, None] * energies
    log_likelihood = -0.5 * (squares @ (1.0 / variances).T + np.log(variances).sum(axis=1))
    likelihood = np.exp(log_likelihood - log_likelihood.max(axis=1, keepdims=True))
    weights = np.full(len(SCALES), 1.0 / len(SCALES))
    for _ in range(EM_STEPS):
        weights = weights * (1.0 / (likelihood @ weights) @ likelihood) / len(noisy) + _LEAST_WEIGHT
        weights /= weights.sum()
    posterior = likelihood * weights
    posterior /= posterior.sum(axis=1, keepdims=True)
    return _Rows(noisy, posterior, 1.0 - 1.0 / variances)


def posterior_mean(noisy: Matrix) -> Matrix:
    """Return the posterior mean of the signal, of shape (d, K), given the signal plus noise of std 1."""
    return _fitted(noisy).mean


def _passed_messages(matrix: Products, vectors: Matrix, strengths: Matrix) -> Matrix:
    """Return the posterior means after `STEPS` steps of approximate message passing from leading eigenvectors."""
    rows, before = _fitted(vectors * strengths), vectors
    for _ in range(STEPS):
        state, directions = _step(matrix, rows, before)
        turned, sizes, turn = np.linalg.svd(state, full_matrices=False)
        rows, before = _fitted(turned * sizes), directions @ turn.T
    return rows.mean


def _step(matrix: Products, rows: _Rows, before: Matrix) -> tuple[Matrix, Matrix]:
    """Perform one step: multiply by the matrix and subtract the Onsager term of the previous directions.

    The result is the new noisy rows, and the orthonormal directions of this step.
    """
    directions, mixture = np.linalg.qr(rows.mean)
    derivative = np.linalg.pinv(mixture, rcond=_LOST).T @ rows.jacobian()
    return _product(matrix, directions) - before @ derivative.T, directions


def _product(matrix: Products, columns: Matrix) -> Matrix:
    """Multiply columns in the precision of the matrix."""
    return np.asarray(matrix @ columns.astype(matrix.dtype, copy=False), np.float64)


def _orthonormal(columns: Matrix, spare: Matrix) -> Matrix:
    """Orthonormalise columns in order; a vanishing column is replaced by a spare column, or else by a unit vector."""
    basis = np.zeros_like(columns)
    units = 0
    for j in range(columns.shape[1]):
        column = columns[:, j]
        for spared in range(columns.shape[0] + 1):
            rest = _outside(column, basis[:, :j])
            if rest is not None:
                basis[:, j] = rest
                break
            if spared == 0:
                column = spare[:, j]
            else:
                column = np.zeros(columns.shape[0])
                column[units] = 1.0
                units += 1
    return basis


def _outside(column: Matrix, basis: Matrix) -> Matrix | None:
    """Return the part of a column orthogonal to a basis, scaled to length 1; None if this part nearly vanishes."""
    length = float(np.linalg.norm(column))
    if not length > 0.0:
        return None
    rest = column / length
    for _ in range(2):
        rest = rest - basis @ (basis.T @ rest)
    left = float(np.linalg.norm(rest))
    return rest / left if left >= _LOST else None


def _rayleigh_ritz(matrix: Products, basis: Matrix, count: int) -> tuple[Matrix, Matrix]:
    """Return the leading Ritz values, and Ritz vectors as columns, of a matrix on the span of a basis."""
    inner = basis.T @ _product(matrix, basis)
    values, mixtures = leading_eigenpairs((inner + inner.T) / 2.0, count)
    return values, basis @ mixtures.T
