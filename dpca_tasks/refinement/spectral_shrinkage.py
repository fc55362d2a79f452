"""Denoised leading eigenvectors of a signal plus noise of known size: empirical Bayes, and two steps of messages.

All matrices are in units of the noise: E has standard deviation 1 off its diagonal. Leading eigenvectors v of A with
strengths theta are rows ``theta v``, which are the signal's rows plus noise of standard deviation 1 in every entry.
Rows of the signal (features) differ in size, and the prior says only that: row i is normal with variances
``g_i s_j^2``, s from the data, g_i from a fixed grid with fitted weights. Its posterior mean shrinks rows that hold
noise alone, which rotates the columns towards the signal. Where all rows are alike, nothing changes.

Approximate message passing goes on from there: multiply by A, take off what the noise remembers of the last step (the
Onsager term), take posterior means again.

Everything has fixed counts and grids and no stopping rule, so the same matrix gives the same bits.

References
----------
Zhong, Su and Fan (2022), Empirical Bayes PCA in high dimensions; Montanari and Venkataramanan (2021), Estimation of
low-rank matrices via approximate message passing. The prior over row sizes is neither's.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from dpca_tasks.mechanisms.eigenpairs import leading_eigenpairs
from dpca_tasks.mechanisms.noise_level import above_edge, edge_quantile, spike_strengths

type Matrix = NDArray[np.float64]
type Products = NDArray[np.float64 | np.float32]
type Method = Literal["none", "eb", "spikes", "all"]

METHODS: tuple[Method, ...] = ("none", "eb", "spikes", "all")
BEYOND = 10
"""Pairs that are denoised beyond the k asked for: they help, and more of them hurts where the matrix is small."""
STEPS = 2
EM_STEPS = 60
SCALES = np.concatenate([[0.0], 4.0 ** np.arange(-3, 7)])
"""The grid of a row's energy over the mean energy of rows."""

_LEAST_ENERGY = 0.02
_LEAST_WEIGHT = 1e-9
_LOST = 1e-6


def width(order: int, n_components: int) -> int:
    """Return the number of pairs that are denoised together."""
    return min(order, n_components + BEYOND)


def frames(
    matrix: Products,
    *,
    n_components: int,
    methods: tuple[Method, ...],
    pairs: tuple[Matrix, Matrix] | None = None,
) -> dict[Method, tuple[Matrix, Matrix]]:
    """Estimate the leading k directions of the signal in a matrix with noise of unit size, by several methods.

    Parameters
    ----------
    matrix : float64 or float32 array of shape (d, d)
        Symmetric, in units of its noise; it is multiplied in its own precision.
    n_components : int
        k.
    methods : tuple of str
        ``none``: the leading eigenvectors. ``eb``: their posterior means. ``spikes`` and ``all``: after two steps of
        message passing on the pairs above the noise, or on all.
    pairs : pair of float64 arrays of shapes (K,) and (K, d), optional
        The K leading eigenvalues of the matrix, descending, and eigenvectors as rows, K being `width`, where they are
        known or computed otherwise.

    Returns
    -------
    dict
        For each method its values ``u^T A u``, shape (k,), and orthonormal columns, shape (d, k).

    Guarantees
    ----------
    Where k + 10 pairs are all there are, every method returns the eigenvectors: its columns span everything.
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
    """The posterior of rows of signal: which scale each has, and by what each of its entries shrinks under a scale."""

    noisy: Matrix  # (d, K)
    scale_weights: Matrix  # (d, 11): P
    kept: Matrix  # (11, K): a = 1 - h

    @property
    def shrinkage(self) -> Matrix:
        return self.scale_weights @ self.kept

    @property
    def mean(self) -> Matrix:
        return self.noisy * self.shrinkage

    def jacobian(self) -> Matrix:
        """Return the K x K sum over rows of the derivative of the posterior mean (first index) in the noisy row."""
        noisy, removed = self.noisy, 1.0 - self.kept
        shrinkage = self.shrinkage
        total = np.diag(shrinkage.sum(axis=0)) + (noisy * shrinkage).T @ (noisy * (self.scale_weights @ removed))
        for weights, kept, taken in zip(self.scale_weights.T, self.kept, removed, strict=True):
            total -= kept[:, None] * (noisy.T @ (noisy * weights[:, None])) * taken
        return total


def _fitted(noisy: Matrix) -> _Rows:
    """Fit the prior to rows of signal plus unit noise, by maximum likelihood over the weights of the scales."""
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
    """Return the posterior mean of rows of signal, shape (d, K), given them plus noise of unit size."""
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
    """Multiply by the matrix, and take off the noise's memory of the directions before; return state and directions."""
    directions, mixture = np.linalg.qr(rows.mean)
    derivative = np.linalg.pinv(mixture, rcond=_LOST).T @ rows.jacobian()
    return _product(matrix, directions) - before @ derivative.T, directions


def _product(matrix: Products, columns: Matrix) -> Matrix:
    """Multiply in the precision of the matrix."""
    return np.asarray(matrix @ columns.astype(matrix.dtype, copy=False), np.float64)


def _orthonormal(columns: Matrix, spare: Matrix) -> Matrix:
    """Orthonormalise columns in their order; one that vanishes gives way to a spare one, and that to unit vectors."""
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
    """Return the direction of what a column has outside a basis; None where that is next to nothing."""
    length = float(np.linalg.norm(column))
    if not length > 0.0:
        return None
    rest = column / length
    for _ in range(2):
        rest = rest - basis @ (basis.T @ rest)
    left = float(np.linalg.norm(rest))
    return rest / left if left >= _LOST else None


def _rayleigh_ritz(matrix: Products, basis: Matrix, count: int) -> tuple[Matrix, Matrix]:
    """Return the leading Ritz values and vectors of a matrix on a basis."""
    inner = basis.T @ _product(matrix, basis)
    values, mixtures = leading_eigenpairs((inner + inner.T) / 2.0, count)
    return values, basis @ mixtures.T
