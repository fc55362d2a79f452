"""Algorithms with published noise that no release may have: for comparison on public data alone.

The product refuses these formulas, because they do not keep the epsilon that they claim. What they would have given is
computed here from public rows and a seed, beside the curator, which none of this passes. Nothing here makes a release.
"""

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from dpca_tasks.accounting.published import FORMULAS, Settings
from dpca_tasks.threads import one_thread

type Matrix = NDArray[np.float64]

OVERSAMPLING, ITERATIONS, MIX = 3, 8, 0.5
"""Of the noisy power method, as the product's; and the free mu of DP-SPCA, which the paper does not state."""


def wishart(rows: sparse.csr_array, *, asked: Settings, rng: np.random.Generator) -> Matrix:
    """Return components of ``S`` plus one Wishart matrix of d + 1 degrees of freedom (Jiang, Xie and Zhang)."""
    second_moment, d = _second_moment(rows), asked.n_features
    root = rng.standard_normal((d + 1, d))
    return _leading(second_moment + FORMULAS["wishart"].noise(asked) * (root.T @ root), asked.n_components)


def noisy_power(rows: sparse.csr_array, *, asked: Settings, rng: np.random.Generator) -> Matrix:
    """Return components by noisy power iterations with noise for one entry of the matrix (PPI, Hardt and Price)."""
    asked = power_settings(asked)
    directions = _orthonormal(rng.standard_normal((asked.n_features, asked.n_components)))
    scale = FORMULAS["noisy_power"].noise(asked)
    for _ in range(asked.steps):
        noise = scale * float(np.abs(directions).max()) * rng.standard_normal(directions.shape)
        product = rows.T @ (rows @ directions) + noise
        directions = _orthonormal(product)
    with one_thread():
        left, _, _ = np.linalg.svd(product, full_matrices=False)
    return np.ascontiguousarray(left[:, : asked.n_components - OVERSAMPLING].T)


def power_settings(asked: Settings) -> Settings:
    """Return the settings of the noisy power method's formula: the width of its products, and its iterations."""
    return replace(asked, n_components=asked.n_components + OVERSAMPLING, steps=ITERATIONS)


def stochastic_settings(asked: Settings) -> Settings:
    """Return the settings of DP-SPCA and DP-VRPCA: as many steps as records, one epoch, and mu of `MIX`."""
    return replace(asked, steps=asked.n_records, epochs=1, mix=MIX)


def dp_spca(rows: sparse.csr_array, *, asked: Settings, rng: np.random.Generator) -> Matrix:
    """Return components by Algorithm 1: a row a step, T = n, step size 1 / 2n, the gradient ``-2 x (x^T V)``."""
    noise = FORMULAS["dp_spca"].noise(stochastic_settings(asked))
    return ascend(rows, asked.n_components, noise_std=2.0 * noise, rng=rng)  # G = 2 for this gradient


def dp_vrpca(rows: sparse.csr_array, *, asked: Settings, rng: np.random.Generator) -> Matrix:
    """Return components by Algorithm 2: one epoch, T = n, step size 1 / n, signs as in equation (14)."""
    noise = FORMULAS["dp_vrpca"].noise(stochastic_settings(asked))
    return ascend(rows, asked.n_components, noise_std=noise, rng=rng, reduced=True)


def ascend(
    rows: sparse.csr_array, n_components: int, *, noise_std: float, rng: np.random.Generator, reduced: bool = False
) -> Matrix:
    """Return the last iterate of a row a step, n steps, started at random; ``reduced`` as in Algorithm 2."""
    n, d = (int(size) for size in rows.shape)
    start = _orthonormal(rng.standard_normal((d, n_components)))
    mean = rows.T @ (rows @ start) / n if reduced else np.zeros_like(start)
    size, factor = (1.0 / n, 1.0) if reduced else (0.5 / n, 2.0)
    directions, values, columns, row_ptr = start.copy(), rows.data, rows.indices, rows.indptr
    with one_thread():
        for row in rng.integers(n, size=n).tolist():
            stored = slice(row_ptr[row], row_ptr[row + 1])
            at, x = columns[stored], values[stored]
            seen = directions[at] - start[at] if reduced else directions[at]
            step = size * mean
            if noise_std > 0.0:
                step -= (size * noise_std) * rng.standard_normal(start.shape)
            step[at] += (size * factor) * np.outer(x, x @ seen)
            directions = _symmetrically_orthonormal(directions + step)
    return np.ascontiguousarray(directions.T)


PRINTED: dict[str, Callable[..., Matrix]] = {
    "dp_spca": dp_spca,
    "dp_vrpca": dp_vrpca,
    "noisy_power": noisy_power,
    "wishart": wishart,
}
"""The algorithms by the name of their row in `dpca_tasks.accounting.published.FORMULAS`."""

FORMULA_SETTINGS: dict[str, Callable[[Settings], Settings]] = {
    "dp_spca": stochastic_settings,
    "dp_vrpca": stochastic_settings,
    "noisy_power": power_settings,
    "wishart": lambda asked: asked,
}
"""The settings at which each formula is taken."""


def true_epsilon(name: str, asked: Settings) -> float:
    """Return an upper bound of what a formula's noise gives at the delta asked for; a lower one where the row says so.

    Infinite where no epsilon does, and where losses are too large for the accountant's exponentials.
    """
    row = FORMULAS[name]
    try:
        found = row.bracket(asked)
    except OverflowError:
        return math.inf
    return found.lower if row.bound == "at least" else found.upper


def _second_moment(rows: sparse.csr_array) -> Matrix:
    return np.asarray((rows.T @ rows).toarray())


def _leading(matrix: Matrix, n_components: int) -> Matrix:
    with one_thread():
        return np.ascontiguousarray(np.linalg.eigh(matrix)[1][:, ::-1][:, :n_components].T)


def _orthonormal(columns: Matrix) -> Matrix:
    with one_thread():
        return np.asarray(np.linalg.qr(columns)[0])


def _symmetrically_orthonormal(columns: Matrix) -> Matrix:
    """Return ``V (V^T V)^(-1/2)``, as printed."""
    values, turn = np.linalg.eigh(columns.T @ columns)
    return np.asarray(columns @ ((turn / np.sqrt(values)) @ turn.T))
