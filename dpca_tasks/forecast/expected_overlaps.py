"""Expected overlaps of released directions with the true components, from the strengths of all components.

The components are the eigenvectors of the second moment of the records, and the strengths are its eigenvalues. A
release finds k orthonormal directions. The overlap of a component is the sum of its squared inner products with these k
directions. The overlap is 1 if the directions span the component, and the overlaps of all components sum to k.
Strengths are in squared clip norms, in any order: a record at the clip norm along a component adds 1 to its strength.
All formulas are for isotropic noise in the limit of many features. With 20 features they are accurate to a few
hundredths.

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
With many features, overlaps come from closed forms for a noisy matrix, for random draws of directions and for
directions with added noise. With few features these three mechanisms are simulated, because single releases vary.
Iterated noisy products are always simulated. The noise of a product is isotropic, so the mean result depends only on
the strengths. The simulation therefore uses the diagonal matrix of the declared strengths, which is public. The effect
of truncation to few features also depends on the eigenvectors. Truncation is simulated for two extremes: each component
in one feature, and components spread evenly over all features. All simulations use one fixed public seed.

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

from dpca_tasks.mechanisms.noisy_products import Iterate, is_averaged, iterate_truncated, orthonormal
from dpca_tasks.mechanisms.released_rounds import LastRound
from dpca_tasks.noise.bingham import STEPS_PER_UNIT, Peeling
from dpca_tasks.noise.keystream import subkey
from dpca_tasks.threads import one_thread

type Vector = NDArray[np.float64]
type Selfenergy = Callable[[complex], complex]

_EXACT, _BINS = 160, 240  # the 160 largest eigenvalues are used exactly; at most 240 bins average the others
_HEIGHTS = np.geomspace(1e4, 1e-4, 90)  # imaginary parts of the integration points, divided by noise_std * sqrt(d)
_ITERATIONS = 30
_NEGLIGIBLE = 300.0  # if the eigengap is more than this multiple of the noise, the noise is neglected


def overlaps_with_matrix(strengths: Vector, *, n_components: int, noise_std: float, wishart: bool = False) -> Vector:
    """Return the overlaps of a matrix's eigenvectors with the k leading eigenvectors of the matrix plus noise.

    The mean resolvent of the noisy matrix equals the resolvent of the exact matrix at a shifted point. The shift is the
    self-energy of the noise. The integral of the resolvent along the vertical line through a real number a gives the
    projector on the noisy matrix's eigenvectors with eigenvalues above a. The number a is chosen so that this projector
    has rank k.

    Parameters
    ----------
    strengths : array of shape (d,)
        Eigenvalues of the exact matrix.
    noise_std : float
        The std of the symmetric noise off the diagonal, in the units of ``strengths``.
    wishart : bool
        Whether the noise is a difference of two Wishart matrices. Otherwise the eigenvalues of the noise follow the
        semicircle law.
    """
    order = len(strengths)
    if noise_std <= 0.0:
        return _leading(strengths, n_components)
    size, falling = noise_std * math.sqrt(order), -np.sort(-strengths)
    if n_components == order or falling[n_components - 1] - falling[n_components] > _NEGLIGIBLE * size:
        return _leading(strengths, n_components)  # all overlaps are within 1e-5 of 0 or 1
    values, counts, places = _binned(strengths)
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
"""The number of features up to which noisy matrices are simulated, because single releases vary."""


def overlaps_with_small_matrix(
    strengths: Vector, *, n_components: int, noise_std: float, wishart: bool = False
) -> list[Vector]:
    """Simulate the overlaps of `overlaps_with_matrix`; return one array of overlaps for each draw of the noise."""
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
"""The number of features up to which drawn directions are simulated; each draw decomposes a matrix of this order."""


def overlaps_with_draws(strengths: Vector, *, n_components: int, scale: float) -> list[Vector]:
    """Return the overlaps of directions drawn by the exponential mechanism, one array for each simulation.

    The mechanism draws k directions v one by one, with density ``exp(v^T S v / scale)`` for the second moment S. Up to
    `DRAWN` features, the sampler of the mechanism itself draws for the diagonal matrix of the strengths, with public
    keys. With more features the mean overlaps are computed. The squared coordinate i of a draw in the eigenbasis of S
    has mean ``1 / (b + 2 l_i)``. Here ``l_i`` is the distance of eigenvalue i from the largest eigenvalue, divided by
    the scale, and b makes the means sum to 1. After each draw, the strength of each component is reduced by
    the part of the component that the drawn directions contain.
    """
    if len(strengths) <= DRAWN:
        sampler = Peeling(n_components=n_components, epsilon=1.0, delta=0.0)  # epsilon has no effect on `draw`

        def draw(rng: np.random.Generator) -> Vector:
            key = subkey(rng.bytes(32), label="forecast", info=b"")
            rows = sampler.draw(key, np.diag(strengths), scale=scale) / STEPS_PER_UNIT
            return np.asarray((rows**2).sum(axis=0))

        return draws_of(draw, len(strengths) ** 2 * n_components // 20)
    # for each component: the part outside the drawn directions, and the part inside
    kept, found = np.ones(len(strengths)), np.zeros(len(strengths))
    for _ in range(n_components):
        drawn = _mean_squares(strengths * kept, scale)
        found += kept * drawn
        kept *= 1.0 - drawn
    between = found * (1.0 - found)  # the overlaps must sum to k; those near 0 or 1 change the least
    return [np.asarray(found + (n_components - found.sum()) * between / max(float(between.sum()), 1e-300))]


def _mean_squares(values: Vector, scale: float) -> Vector:
    """Return the mean squared coordinates of a drawn unit vector v in the eigenbasis of a matrix.

    The matrix M has the eigenvalues ``values``, and v has density ``exp(v^T M v / scale)``.
    """
    from scipy.optimize import brentq  # slow to import

    below = 2.0 * (values.max() - values) / scale
    return np.asarray(1.0 / (brentq(lambda b: float(np.sum(1.0 / (b + below))) - 1.0, 1e-9, len(values) + 1.0) + below))


def overlaps_with_noised(strengths: Vector, *, n_components: int, kept: float) -> list[Vector]:
    """Return the overlaps of exact directions plus noise, orthonormalised, one array for each simulation.

    Up to `SMALL` features the noise is simulated. With more features the list holds the mean overlaps alone.

    Parameters
    ----------
    kept : float
        The share of the exact direction in a noised direction's squared length; 0 for noise alone.
    """
    exact, order = _leading(strengths, n_components), len(strengths)
    if order > SMALL:
        return [np.asarray(kept * exact + (1.0 - kept) * n_components / order)]

    def draw(rng: np.random.Generator) -> Vector:
        noise = rng.standard_normal((order, n_components)) * math.sqrt((1.0 - kept) / order)
        return np.asarray((orthonormal(math.sqrt(kept) * np.eye(order)[:, exact > 0.0] + noise) ** 2).sum(axis=1))

    return draws_of(draw, order * n_components)


def overlaps_with_rounds(strengths: Vector, last: LastRound, *, n_components: int) -> list[Vector]:
    """Return the overlaps of the k leading directions of a release in rounds, one array for each simulation.

    Notes
    -----
    The last round measures the moment after a public map that multiplies component i by the factor ``t_i``. The noise
    of the mapped moment is isotropic, with standard deviation s. So `overlaps_with_matrix` gives the overlap o of
    component i with the leading directions of the mapped moment. After the map is undone, this overlap becomes
    ``(o / t_i^2) / (o / t_i^2 + 1 - o)``. The leading directions are all those whose mapped strength is at least the
    least mapped strength among the k leading and all shrunk components. These may be more than k directions. The noise
    between directions i and j has the standard deviation ``s / (t_i t_j)`` after the map is undone. Its effect, which
    mixes these directions, is simulated.
    """
    squares, order = last.factors**2, len(strengths)
    mapped, ranks = squares * strengths, np.argsort(-strengths, kind="stable")
    required = np.union1d(ranks[:n_components], np.flatnonzero(squares < 1.0))
    best = np.flatnonzero(mapped >= mapped[required].min())
    width, seen = len(best), np.ones(order)
    if width < order:
        seen = overlaps_with_matrix(mapped, n_components=width, noise_std=last.noise_std)
        seen = seen / squares / (seen / squares + 1.0 - np.minimum(seen, 1.0))
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
    """Average the smaller strengths in bins; return each bin's mean and size, and the bin of each strength.

    Each of the `_EXACT` largest strengths has a bin alone.
    """
    ranks = np.argsort(-strengths, kind="stable")
    places = np.empty(len(strengths), dtype=np.intp)
    beyond = np.maximum(np.arange(len(strengths)) - _EXACT, 0)
    width = max(1, -(-len(strengths) // _BINS))
    places[ranks] = np.minimum(np.arange(len(strengths)), _EXACT) + beyond // width
    counts = np.bincount(places).astype(np.float64)
    return np.bincount(places, weights=strengths) / counts, counts, places


def _above(point: float, values: Vector, counts: Vector, selfenergy: Selfenergy, size: float) -> Vector:
    """Return each eigenvector's overlap with the noisy matrix's eigenvectors for eigenvalues above a point.

    The exact matrix has the eigenvalues ``values``, with multiplicities ``counts``. The overlap is one half minus
    ``1 / pi`` times an integral of the real part of the resolvent. The path runs upward from the point in the complex
    plane.
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
    """Return the self-energy of the noise at a complex number, by fixed-point iteration.

    The iteration starts from the self-energy at a number with a larger imaginary part. Each step averages the old and
    the new value, so that the iteration converges to the physical solution.
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
    """Settings of noisy iterations ``V <- orth(V + step_size (S V + noise))``; the second half of them is averaged.

    Parameters
    ----------
    n_components : int
        The number k of directions in the result.
    steps : int
        The number of iterations.
    noise_std : float, records at the clip norm
        The std of the noise in each entry of a product ``S V``.
    width : int
        The number of columns of V.
    step_size : float
        The step size; infinite for ``V <- orth(S V + noise)``.
    sampled : (float, float)
        The sampling rate of records for each product, and the number of records.
    """

    n_components: int
    steps: int
    noise_std: float
    width: int
    step_size: float = math.inf
    sampled: tuple[float, float] = (1.0, 1.0)


def overlaps_with_iterations(strengths: Vector, run: Iterations) -> list[Vector]:
    """Simulate `Iterations`; return the overlaps of their k resulting directions, one array for each simulation."""
    return draws_of(lambda rng: _draw(strengths, run, rng), len(strengths) * run.width)


def draws_of(draw: Callable[[np.random.Generator], Vector], numbers: int) -> list[Vector]:
    """Return the results of one or several simulated releases, drawn from the public seed.

    If a simulation needs few random numbers, releases vary, and up to `_MOST_DRAWS` simulations show how much. If a
    simulation needs many random numbers, releases hardly vary, and one simulation suffices.

    Parameters
    ----------
    draw : callable
        Simulates one release with a generator.
    numbers : int
        How many random numbers one simulation needs.
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
    """Simulate a noisy product ``S V`` of a diagonal second moment S with directions V, estimated from a sample.

    Parameters
    ----------
    strengths : array of shape (d,), records at the clip norm
        The diagonal of S.
    directions : array of shape (d, p)
        The columns of V.
    noise_std : float, records at the clip norm
        The std of the privacy noise in each entry of the product.
    sampled : (float, float)
        The sampling rate q, and the number n of records. The product over the sample is divided by q. Sampling of
        Gaussian rows adds to ``S v``, for a column v, an error of mean covariance ``(1 - q) / q v^T S v S / n``.
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
    """Return the overlaps of the k leading eigenvectors of a sum of projectors with the coordinate axes.

    Each projector is ``V V^T`` for one orthonormal V of ``bases``. In the simulations the components are the axes.
    """
    columns = np.hstack(bases)
    with one_thread():
        values, vectors = np.linalg.eigh(columns.T @ columns)
        leading = columns @ (vectors[:, -n_components:] / np.sqrt(values[-n_components:]))
    return np.asarray((leading**2).sum(axis=1))


@dataclass(frozen=True, slots=True, kw_only=True)
class TruncatedRounds:
    """Settings of truncated rounds: noisy products of clipped messages, whose directions keep only a few features.

    Parameters
    ----------
    n_components, iterations, burn_in, rows_kept : int
        As for `dpca_tasks.mechanisms.noisy_products.iterate_truncated`.
    noise_std : float, records at the clip norm
        The std of the noise in each entry of a product.
    message_clip : float
        The bound on the norm of a record's message, which is its contribution to a product; 1 for no clipping.
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
    """Simulate truncated rounds; return the overlaps of the found directions, one array for each draw.

    With ``spread``, each component is spread evenly over all features; otherwise each component is one feature. A
    message is the contribution of one record to a product ``S V``. The simulation assumes that all n messages have the
    same norm, ``sqrt(tr(V^T S V) / n)``. So clipping multiplies the product by ``message_clip`` divided by this norm,
    if this ratio is below 1.
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
