"""The printed algorithms of Shang et al. on public rows: DP-SPCA and DP-VRPCA with one row in each step.

They have published noise, or noise that a caller states, and run without the curator: no release may use them. The
paper states a step size of ``1 / 2n`` or ``1 / n``, and T = n for DP-VRPCA. It states neither T for DP-SPCA nor the
number m of epochs.

>>> rows = sparse.csr_array(np.eye(4)[np.repeat([0, 1, 2], [500, 100, 40])])
>>> found, moved = ascend(rows, 1, noise_std=0.0, rng=np.random.default_rng(1), epochs=20, reduced=True)
>>> round(abs(float(found[0, 0])), 2), moved < 0.6
(1.0, True)
"""

import numpy as np
from numba import njit
from numpy.typing import NDArray
from scipy import sparse

from dpca_tasks.threads import one_thread
from papers.lib.experiments import Matrix, orthonormal

_LOOKS = 20  # how often in an epoch the movement is measured


def ascend(
    rows: sparse.csr_array,
    n_components: int,
    *,
    noise_std: float,
    rng: np.random.Generator,
    reduced: bool = False,
    steps: int | None = None,
    epochs: int = 1,
    step_size: float | None = None,
    start: Matrix | None = None,
) -> tuple[Matrix, float]:
    """Run the printed steps, and return the last iterate as rows and the largest movement within an epoch.

    Parameters
    ----------
    rows : sparse array of shape (n, d)
        Rows of norm at most 1.
    n_components : int
    noise_std : float
        The std of the noise that is added to the gradient in each step.
    rng : Generator
    reduced : bool
        Select Algorithm 2, with the signs of equation (14). Otherwise run Algorithm 1 with gradient ``-2 x (x^T V)``.
    steps, epochs : int
        T, by default n, and m.
    step_size : float, optional
        By default ``1 / n`` for Algorithm 2 and ``1 / 2n`` for Algorithm 1.
    start : array of shape (d, k), optional
        By default random.

    Returns
    -------
    (array of shape (k, d), float)
        The movement is the spectral norm of ``V - V~``, V~ the epoch's start.
    """
    n, d = (int(size) for size in rows.shape)
    steps = n if steps is None else steps
    size = ((1.0 if reduced else 0.5) / n) if step_size is None else step_size
    directions = orthonormal(rng.standard_normal((d, n_components))) if start is None else start.copy()
    furthest = 0.0
    with one_thread():
        for _ in range(epochs):
            first = directions.copy()
            mean = rows.T @ (rows @ first) / n if reduced else np.zeros_like(first)
            for part in np.array_split(rng.integers(n, size=steps), _LOOKS):
                directions = _climbed(
                    rows.data,
                    rows.indices,
                    rows.indptr,
                    directions,
                    first if reduced else np.zeros_like(first),
                    np.ascontiguousarray(mean),
                    part,
                    size,
                    1.0 if reduced else 2.0,
                    noise_std,
                    rng,
                )
                furthest = max(furthest, float(np.linalg.norm(directions - first, 2)))
    return np.ascontiguousarray(directions.T), furthest


@njit(cache=True, nogil=True)
def _climbed(
    data: NDArray[np.float64],
    indices: NDArray[np.int32],
    row_ptr: NDArray[np.int32],
    directions: Matrix,
    first: Matrix,
    mean: Matrix,
    picked: NDArray[np.int64],
    size: float,
    factor: float,
    noise_std: float,
    rng: np.random.Generator,
) -> Matrix:
    """Run one step for each picked row, from the start of an epoch or zero, and return the directions."""
    d, k = directions.shape
    identity = np.eye(k)
    for row in picked:
        step = size * mean
        if noise_std > 0.0:
            for i in range(d):
                for j in range(k):
                    step[i, j] -= size * noise_std * rng.standard_normal()
        scores = np.zeros(k)
        for place in range(row_ptr[row], row_ptr[row + 1]):
            at = indices[place]
            for j in range(k):
                scores[j] += data[place] * (directions[at, j] - first[at, j])
        for place in range(row_ptr[row], row_ptr[row + 1]):
            at = indices[place]
            for j in range(k):
                step[at, j] += size * factor * data[place] * scores[j]
        directions = directions + step
        gram = directions.T @ directions
        off = np.abs(gram - identity).max()
        if off > 0.2:  # V (V^T V)^(-1/2), as printed; otherwise by Newton's iteration, to rounding
            values, turn = np.linalg.eigh(gram)
            directions = directions @ ((turn / np.sqrt(values)) @ turn.T)
            off = 0.0
        while off > 1e-13:
            directions = directions @ (1.5 * identity - 0.5 * gram)
            gram = directions.T @ directions
            before, off = off, np.abs(gram - identity).max()
            if off >= before:
                break
    return directions
