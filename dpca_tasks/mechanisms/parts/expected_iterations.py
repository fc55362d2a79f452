"""Expected overlaps of iterated noisy products with the true directions, by running them on a declared spectrum.

The noise of a product is alike in every direction, so iterations on any matrix do in the mean what they do on the
diagonal one of the same strengths, which is public. Overlaps are as in `dpca_tasks.mechanisms.parts.expected_overlaps`;
all draws come from one fixed public seed.

>>> strengths = np.array([300.0, 60.0] + [1.0] * 398)
>>> run = Iterations(n_components=1, steps=8, noise_std=3.0, width=4)
>>> overlaps_with_iterations(strengths, run)[0].round(1)
np.float64(1.0)
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dpca_tasks.mechanisms.parts.noisy_products import is_averaged, orthonormal
from dpca_tasks.threads import one_thread

type Vector = NDArray[np.float64]

_SEED, _NUMBERS, _MOST_DRAWS = 20180412, 40_000, 4  # many features average themselves


@dataclass(frozen=True, slots=True, kw_only=True)
class Iterations:
    """Iterations ``V <- orth(V + step_size (S V + noise))``, of which the second half is averaged.

    Parameters
    ----------
    n_components : int
        The number k of directions that are kept.
    steps : int
    noise_std : float, records at the clip norm
        Of a product's entries.
    width : int
        Columns of V.
    step_size : float
        Infinite: V is replaced by the noisy product.
    kept_for : int
        Steps that share the noise of one product.
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
