"""Expected overlaps of noisy directions with the true ones, from the strengths of all components.

A release finds k orthonormal directions. The overlap of component j is the sum of the squared products of these
directions with the component. It is 1 if the component is found, and all overlaps sum to k. Strengths are in records at
the clip norm, in any order. All formulas are for isotropic noise in the limit of many features; with 20 features they
are accurate to a few hundredths.

>>> strengths = np.array([300.0, 60.0] + [1.0] * 398)
>>> overlaps_with_matrix(strengths, n_components=1, noise_std=3.0)[0].round(3)
np.float64(0.96)
>>> overlaps_with_draws(strengths, n_components=1, scale=0.1)[0][:1].round(2).tolist()
[0.93]

References
----------
Pastur (1972) for the spectrum of a matrix plus noise; Allez and Bouchaud (2014), Eigenvector dynamics, for overlaps;
Kent, Ganeiber and Mardia (2018) for the equation of a Bingham distribution's concentration.

Notes
-----
With many features, matrices, draws and noised directions have closed forms. With few features they are simulated,
because single releases vary. Iterated products are always simulated, on the declared spectrum. The noise of a product
is isotropic, so in the mean iterations on any matrix behave as on the diagonal matrix of the same strengths, which is
public. Truncation to few features depends on the eigenvectors: it is simulated for two extremes, each component in one
feature, and components spread evenly over all features. All draws come from one fixed public seed.

>>> strengths = np.array([300.0, 60.0] + [1.0] * 398)
>>> run = Iterations(n_components=1, steps=8, noise_std=3.0, width=4)
>>> overlaps_with_iterations(strengths, run)[0][0].round(1)
np.float64(1.0)
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import fft

from dpca_tasks.forecast.expected_rounds import LastRound
from dpca_tasks.mechanisms.noisy_products import Iterate, is_averaged, iterate_truncated, orthonormal
from dpca_tasks.noise.bingham import STEPS_PER_UNIT, Peeling
from dpca_tasks.noise.keystream import subkey
from dpca_tasks.threads import one_thread

type Vector = NDArray[np.float64]
type Selfenergy = Callable[[complex], complex]

_EXACT, _BINS = 160, 240  # strengths that are treated individually, and bins of the others
_HEIGHTS = np.geomspace(1e4, 1e-4, 90)  # heights of the contour above the axis, over the size of the noise
_ITERATIONS = 30


def overlaps_with_matrix(strengths: Vector, *, n_components: int, noise_std: float, wishart: bool = False) -> Vector:
    """Return the overlaps of the k leading eigenvectors of a matrix plus symmetric noise.

    The resolvent of the sum equals the resolvent of the matrix at a point shifted by the self-energy of the noise. Its
    integral along the vertical line through a is the projector on eigenvalues above a. The point a is chosen so that
    this projector has rank k.

    Parameters
    ----------
    strengths : array of shape (d,)
        Eigenvalues of the matrix.
    noise_std : float
        The std of the noise off the diagonal.
    wishart : bool
        Whether the noise is a difference of two Wishart matrices; otherwise its eigenvalues fill a semicircle.
    """
    order = len(strengths)
    if noise_std <= 0.0:
        return _leading(strengths, n_components)
    values, counts, places = _binned(strengths)
    size = noise_std * math.sqrt(order)
    squared = size**2 / 2.0 if wishart else size**2

    def selfenergy(mean: complex) -> complex:
        return 2.0 * squared * mean / (1.0 - squared * mean**2) if wishart else squared * mean

    def found(point: float) -> Vector:
        return _above(point, values, counts, selfenergy, size)

    from scipy.optimize import brentq  # slow to import

    low, high = float(values.min()) - 4.0 * size, float(values.max()) + 4.0 * size
    point = brentq(lambda a: float(counts @ found(a)) - n_components, low, high, xtol=1e-3 * size)
    weights = np.clip(found(point), 0.0, 1.0)
    return np.asarray((weights * (n_components / float(counts @ weights)))[places])


SMALL = 100
"""Number of features up to which noisy matrices are simulated: releases vary there."""


def overlaps_with_small_matrix(
    strengths: Vector, *, n_components: int, noise_std: float, wishart: bool = False
) -> list[Vector]:
    """Return what `overlaps_with_matrix` returns in the mean, for several draws of the noise."""
    order = len(strengths)

    def draw(rng: np.random.Generator) -> Vector:
        if wishart:
            one, other = (rng.standard_normal((order + 1, order)) for _ in range(2))
            noise = (one.T @ one - other.T @ other) / math.sqrt(2.0 * (order + 1))
        else:
            noise = rng.standard_normal((order, order))
            noise = (noise + noise.T) / math.sqrt(2.0)
        with one_thread():
            vectors = np.linalg.eigh(np.diag(strengths) + noise_std * noise)[1]
        return np.asarray((vectors[:, -n_components:] ** 2).sum(axis=1))

    return draws_of(draw, 1)


DRAWN = 300
"""Number of features up to which draws are simulated; each draw decomposes a matrix of this order."""


def overlaps_with_draws(strengths: Vector, *, n_components: int, scale: float) -> list[Vector]:
    """Return the overlaps of directions drawn one by one with density ``exp(v^T S v / scale)``, for each simulation.

    In the eigenbasis of S, the squared coordinates of a draw are ``1 / (b + 2 l_i)`` in the mean. Here l are the
    distances of the eigenvalues from the largest one, divided by the scale, and b is such that the means sum to 1. Up
    to `DRAWN` features the mechanism's own sampler draws from the diagonal matrix, with public keys. With more features
    the means are computed: a draw removes the part of a component that it found, with the strength of this part.
    """
    if len(strengths) <= DRAWN:
        sampler = Peeling(n_components=n_components, epsilon=1.0, delta=0.0)  # the scale is given, not the epsilon

        def draw(rng: np.random.Generator) -> Vector:
            key = subkey(rng.bytes(32), label="forecast", info=b"")
            rows = sampler.draw(key, np.diag(strengths), scale=scale) / STEPS_PER_UNIT
            return np.asarray((rows**2).sum(axis=0))

        return draws_of(draw, len(strengths) ** 2 * n_components // 20)
    kept, found = np.ones(len(strengths)), np.zeros(len(strengths))  # remaining and found part of each component
    for _ in range(n_components):
        drawn = _mean_squares(strengths * kept, scale)
        found += kept * drawn
        kept *= 1.0 - drawn
    between = found * (1.0 - found)  # distributes the rest of k among partly found components
    return [np.asarray(found + (n_components - found.sum()) * between / max(float(between.sum()), 1e-300))]


def _mean_squares(values: Vector, scale: float) -> Vector:
    """Return the mean squared coordinates of a draw in the eigenbasis of a matrix with these eigenvalues."""
    from scipy.optimize import brentq  # slow to import

    below = 2.0 * (values.max() - values) / scale
    return np.asarray(1.0 / (brentq(lambda b: float(np.sum(1.0 / (b + below))) - 1.0, 1e-9, len(values) + 1.0) + below))


def overlaps_with_noised(strengths: Vector, *, n_components: int, kept: float) -> list[Vector]:
    """Return the overlaps of exact directions plus noise, orthonormalised, for each simulation.

    Up to `SMALL` features the noise is simulated. With more features the mean is computed.

    Parameters
    ----------
    kept : float
        The share of a noised direction's squared length that is the direction itself; 0 for noise alone.
    """
    exact, order = _leading(strengths, n_components), len(strengths)
    if order > SMALL:
        return [np.asarray(kept * exact + (1.0 - kept) * n_components / order)]

    def draw(rng: np.random.Generator) -> Vector:
        noise = rng.standard_normal((order, n_components)) * math.sqrt((1.0 - kept) / order)
        return np.asarray((orthonormal(math.sqrt(kept) * np.eye(order)[:, exact > 0.0] + noise) ** 2).sum(axis=1))

    return draws_of(draw, order * n_components)


def overlaps_with_rounds(strengths: Vector, last: LastRound, *, n_components: int) -> list[Vector]:
    """Return the overlaps of the k leading directions with the components, for each simulation.

    Notes
    -----
    After the last map the noise is even, so `overlaps_with_matrix` gives the overlap o of component i with the leading
    directions. A direction that is mapped back by ``1 / t_i`` has the overlap ``(o / t_i^2) / (o / t_i^2 + 1 - o)``.
    All directions are taken that are as strong after the map as the weakest of the k, which may be more than k. Between
    them the noise has standard deviation ``s / (t_i t_j)``, and it mixes them: the mixture is simulated.
    """
    squares, order = last.factors**2, len(strengths)
    mapped, ranks = squares * strengths, np.argsort(-strengths, kind="stable")
    required = np.union1d(ranks[:n_components], np.flatnonzero(squares < 1.0))
    width = int((mapped >= mapped[required].min()).sum())
    if width >= order:
        width = n_components
    seen = overlaps_with_matrix(mapped, n_components=width, noise_std=last.noise_std)
    seen = seen / squares / (seen / squares + 1.0 - np.minimum(seen, 1.0))
    best = ranks[:width]
    stds = last.noise_std / np.multiply.outer(last.factors[best], last.factors[best])

    def draw(rng: np.random.Generator) -> Vector:
        noise = rng.standard_normal((width, width))
        noise = np.tril(noise, -1) + np.tril(noise, -1).T + math.sqrt(2.0) * np.diag(np.diag(noise))
        with one_thread():
            vectors = np.linalg.eigh(np.diag(strengths[best]) + stds * noise)[1][:, -n_components:]
        found = np.zeros(len(strengths))
        found[best] = seen[best] * np.square(vectors).sum(axis=1)
        rest = np.delete(np.arange(len(strengths)), best)
        found[rest] = max(n_components - float(found.sum()), 0.0) / max(len(rest), 1)
        return np.minimum(found, 1.0)

    return draws_of(draw, width**2)


def _leading(strengths: Vector, n_components: int) -> Vector:
    exact = np.zeros(len(strengths))
    exact[np.argsort(-strengths, kind="stable")[:n_components]] = 1.0
    return exact


def _binned(strengths: Vector) -> tuple[Vector, Vector, NDArray[np.intp]]:
    """Return strengths with the smaller ones averaged in bins, the size of each bin, and the bin of each strength."""
    ranks = np.argsort(-strengths, kind="stable")
    places = np.empty(len(strengths), dtype=np.intp)
    beyond = np.maximum(np.arange(len(strengths)) - _EXACT, 0)
    width = max(1, -(-len(strengths) // _BINS))
    places[ranks] = np.minimum(np.arange(len(strengths)), _EXACT) + beyond // width
    counts = np.bincount(places).astype(np.float64)
    return np.bincount(places, weights=strengths) / counts, counts, places


def _above(point: float, values: Vector, counts: Vector, selfenergy: Selfenergy, size: float) -> Vector:
    """Return the overlaps with eigenvalues above a point.

    An overlap is one half, less the integral along the upper vertical line through the point, over pi.
    """
    heights = _HEIGHTS * size
    spots = point + 1j * heights
    order = float(counts.sum())
    moved = np.zeros(len(spots), dtype=np.complex128)
    start = 0j
    for index, spot in enumerate(spots):
        moved[index] = start = _solved(complex(spot), start, values, counts / order, selfenergy)
    parts = np.real(1.0 / (spots[:, None] - moved[:, None] - values))
    along = -np.trapezoid(parts * heights[:, None], np.log(heights), axis=0)
    beyond = (point - values) / heights[0]
    before = parts[-1] * heights[-1]
    return np.asarray(0.5 - (along + beyond + before) / math.pi)


def _solved(spot: complex, start: complex, values: Vector, shares: Vector, selfenergy: Selfenergy) -> complex:
    """Return the self-energy at a point by fixed-point iteration from its value at a higher point.

    Averaging the iterates keeps the result on the right sheet.
    """
    moved = start
    for _ in range(_ITERATIONS):
        mean = complex(np.sum(shares / (spot - moved - values)))
        after = 0.5 * (moved + selfenergy(mean))
        if abs(after - moved) <= 1e-7 * abs(after):
            return after
        moved = after
    return moved


_SEED, _NUMBERS, _MOST_DRAWS = 20180412, 40_000, 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Iterations:
    """Iterations ``V <- orth(V + step_size (S V + noise))``, of which the second half is averaged.

    Parameters
    ----------
    n_components : int
        The number k of directions that are kept.
    steps : int
    noise_std : float, records at the clip norm
        The std of the noise in a product's entries.
    width : int
        The number of columns of V.
    step_size : float
        The step size; if it is infinite, V is replaced by the noisy product.
    sampled : (float, float)
        The sampling rate of a product, and the number of records.
    """

    n_components: int
    steps: int
    noise_std: float
    width: int
    step_size: float = math.inf
    sampled: tuple[float, float] = (1.0, 1.0)


def overlaps_with_iterations(strengths: Vector, run: Iterations) -> list[Vector]:
    """Return the overlaps of the leading k directions of the averaged projectors, one array for each draw."""
    return draws_of(lambda rng: _draw(strengths, run, rng), len(strengths) * run.width)


def draws_of(draw: Callable[[np.random.Generator], Vector], numbers: int) -> list[Vector]:
    """Return simulations from the public seed: several if one needs few random numbers, otherwise one.

    With few numbers releases vary, and the draws show how much. With many, one draw is already an average.
    """
    rng = np.random.default_rng(_SEED)
    return [draw(rng) for _ in range(max(1, min(_MOST_DRAWS, _NUMBERS // numbers)))]


def _draw(strengths: Vector, run: Iterations, rng: np.random.Generator) -> Vector:
    directions = orthonormal(rng.standard_normal((len(strengths), run.width)))
    iterates = []
    for step in range(run.steps):
        if math.isfinite(run.step_size) and is_averaged(step, run.steps):
            iterates.append(directions)
        product = noisy_product(strengths, directions, rng, noise_std=run.noise_std, sampled=run.sampled)
        whole = math.isinf(run.step_size)
        directions = orthonormal(product if whole else directions + run.step_size * product)
        if whole and step >= run.steps // 2:
            iterates.append(directions)
    return overlaps_of_averaged(iterates, run.n_components)


def noisy_product(
    strengths: Vector,
    directions: NDArray[np.float64],
    rng: np.random.Generator,
    *,
    noise_std: float,
    sampled: tuple[float, float] = (1.0, 1.0),
) -> NDArray[np.float64]:
    """Simulate a noisy product of a diagonal moment with directions, as the sum over a sample over its rate.

    Parameters
    ----------
    sampled : (float, float)
        The rate of the sample, and the number of records. The error of a sample of Gaussian rows has the covariance
        ``(1 - q) / q v^T S v S / n`` in the mean, for a column v.
    """
    rate, n_records = sampled
    exact = strengths[:, None] * directions
    noise = noise_std * rng.standard_normal(directions.shape)
    if rate < 1.0:
        seen = np.einsum("ij,ij->j", directions, exact) / n_records
        spread = np.sqrt((1.0 - rate) / rate * strengths[:, None] * seen)
        noise += spread * rng.standard_normal(directions.shape)
    return np.asarray(exact + noise)


def overlaps_of_averaged(bases: Sequence[NDArray[np.float64]], n_components: int) -> Vector:
    """Return the overlaps of the leading k directions of a sum of projectors, for components along the axes."""
    columns = np.hstack(bases)
    with one_thread():
        values, vectors = np.linalg.eigh(columns.T @ columns)
        leading = columns @ (vectors[:, -n_components:] / np.sqrt(values[-n_components:]))
    return np.asarray((leading**2).sum(axis=1))


@dataclass(frozen=True, slots=True, kw_only=True)
class TruncatedRounds:
    """Rounds of noisy products of clipped messages, whose directions are truncated to few features.

    Parameters
    ----------
    n_components, iterations, burn_in, rows_kept : int
        As for `dpca_tasks.mechanisms.noisy_products.iterate_truncated`.
    noise_std : float, records at the clip norm
        The std of the noise in a product's entries.
    message_clip : float
        The bound on the norm of a record's message; at 1 nothing is clipped.
    n_records : float
        The number of records at the clip norm.
    """

    n_components: int
    iterations: int
    burn_in: int
    rows_kept: int
    noise_std: float
    message_clip: float
    n_records: float


def overlaps_with_truncation(strengths: Vector, run: TruncatedRounds, *, spread: bool) -> list[Vector]:
    """Return the overlaps of truncated rounds, for components in one feature each or spread evenly over all.

    All messages are taken to have the mean squared norm, ``tr(V^T S V) / n``: clipping multiplies a product by the
    message clip over this norm, if it is below 1.
    """
    signs = np.where(np.random.default_rng(_SEED).random(len(strengths)) < 0.5, -1.0, 1.0)[:, None]

    def to_components(directions: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.asarray(fft.dct(signs * directions, axis=0, norm="ortho")) if spread else directions

    def to_features(directions: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.asarray(signs * fft.idct(directions, axis=0, norm="ortho")) if spread else directions

    def draw(rng: np.random.Generator) -> Vector:
        def answer(directions: NDArray[np.float64]) -> Iterate:
            within = to_components(directions)
            product = strengths[:, None] * within
            norm = math.sqrt(float(np.sum(within * product)) / run.n_records)
            if norm > run.message_clip:
                product *= run.message_clip / norm
            noise = run.noise_std * rng.standard_normal(directions.shape)
            return Iterate(directions=directions, product=to_features(product) + noise)

        found = iterate_truncated(
            answer,
            n_features=len(strengths),
            n_components=run.n_components,
            iterations=run.iterations,
            burn_in=run.burn_in,
            rows_kept=run.rows_kept,
        )
        return np.asarray((to_components(found.T) ** 2).sum(axis=1))

    return draws_of(draw, len(strengths) * run.n_components)
