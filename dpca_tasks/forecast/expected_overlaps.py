"""Expected overlaps of noisy directions with the true ones, from the strengths of all components.

A release finds k orthonormal directions. The overlap of component j is the sum of the squared products of these
directions with the component. It is 1 if the component is found, and all overlaps sum to k. Strengths are in records at
the clip norm, in any order. All formulas are for isotropic noise in the limit of many features; with 20 features they
are accurate to a few hundredths.

>>> strengths = np.array([300.0, 60.0] + [1.0] * 398)
>>> overlaps_with_matrix(strengths, n_components=1, noise_std=3.0)[0].round(3)
np.float64(0.96)
>>> overlaps_with_draws(strengths, n_components=1, scale=0.1)[:1].round(2).tolist()
[0.93]

References
----------
Pastur (1972) for the spectrum of a matrix plus noise; Allez and Bouchaud (2014), Eigenvector dynamics, for overlaps;
Kent, Ganeiber and Mardia (2018) for the equation of a Bingham distribution's concentration.

Notes
-----
Matrices and draws have closed forms. Iterated products are simulated on the declared spectrum. The noise of a product
is isotropic, so in the mean iterations on any matrix behave as on the diagonal matrix of the same strengths, which is
public. All draws come from one fixed public seed.

>>> strengths = np.array([300.0, 60.0] + [1.0] * 398)
>>> run = Iterations(n_components=1, steps=8, noise_std=3.0, width=4)
>>> overlaps_with_iterations(strengths, run)[0].round(1)
np.float64(1.0)
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dpca_tasks.mechanisms.noisy_products import is_averaged, orthonormal
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


def overlaps_with_draws(strengths: Vector, *, n_components: int, scale: float) -> Vector:
    """Return the overlaps of directions drawn one by one with density ``exp(v^T S v / scale)``.

    A draw has the squared products ``1 / (b + 2 l_i)`` with the components. Here l are the distances to the largest
    strength over the scale, and b is such that the products sum to 1. The part of a component that a draw found is
    removed before the next draw, together with its strength.
    """
    from scipy.optimize import brentq  # slow to import

    kept, found = np.ones(len(strengths)), np.zeros(len(strengths))  # remaining and found part of each component
    for _ in range(n_components):
        left = strengths * kept
        below = 2.0 * (left.max() - left) / scale
        concentration = brentq(lambda b, below=below: float(np.sum(1.0 / (b + below))) - 1.0, 1e-9, len(left) + 1.0)
        drawn = 1.0 / (concentration + below)
        found += kept * drawn
        kept *= 1.0 - drawn
    between = found * (1.0 - found)  # distributes the rest of k among partly found components
    return np.asarray(found + (n_components - found.sum()) * between / max(float(between.sum()), 1e-300))


def overlaps_with_noised(strengths: Vector, *, n_components: int, noise: float) -> Vector:
    """Return the overlaps of exact directions plus noise of a given length, orthonormalised.

    Infinite noise gives random directions.

    Parameters
    ----------
    noise : float
        The length of the noise of a direction; a direction itself has length 1.
    """
    order, exact = len(strengths), _leading(strengths, n_components)
    kept = 0.0 if math.isinf(noise) else 1.0 / (1.0 + noise**2)
    return np.asarray(kept * exact + (1.0 - kept) * n_components / order)


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


_SEED, _NUMBERS, _MOST_DRAWS = 20180412, 40_000, 4  # with many features one draw is already an average


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
    kept_for : int
        The number of steps that share the noise of one product.
    """

    n_components: int
    steps: int
    noise_std: float
    width: int
    step_size: float = math.inf
    kept_for: int = 1


def overlaps_with_iterations(strengths: Vector, run: Iterations) -> Vector:
    """Return the overlaps of the leading k directions of the averaged projectors."""
    draws = max(1, min(_MOST_DRAWS, _NUMBERS // (len(strengths) * run.width)))
    rng = np.random.default_rng(_SEED)
    return np.asarray(sum(_draw(strengths, run, rng) for _ in range(draws)) / draws)


def _draw(strengths: Vector, run: Iterations, rng: np.random.Generator) -> Vector:
    shape = (len(strengths), run.width)
    directions = orthonormal(rng.standard_normal(shape))
    iterates, noise = [], np.zeros(shape)
    for step in range(run.steps):
        if step % run.kept_for == 0:
            noise = run.noise_std * rng.standard_normal(shape)
        if math.isfinite(run.step_size) and is_averaged(step, run.steps):
            iterates.append(directions)
        product = strengths[:, None] * directions + noise
        whole = math.isinf(run.step_size)
        directions = orthonormal(product if whole else directions + run.step_size * product)
        if whole and step >= run.steps // 2:
            iterates.append(directions)
    columns = np.hstack(iterates)
    with one_thread():
        values, vectors = np.linalg.eigh(columns.T @ columns)
        leading = columns @ (vectors[:, -run.n_components :] / np.sqrt(values[-run.n_components :]))
    return np.asarray((leading**2).sum(axis=1))
