"""The algorithms DP-SPCA and DP-VRPCA as printed by Shang et al., with one row per step, on public rows only.

They add the printed noise, or noise that the caller specifies, without the curator. So no release may use them. The
paper states a step size of ``1 / 2n`` for DP-SPCA and ``1 / n`` for DP-VRPCA, and T = n steps for DP-VRPCA. It states
neither the number T of steps for DP-SPCA nor the number m of epochs.

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

_LOOKS = 20  # number of times per epoch at which the movement of the directions is measured


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
    """Run a printed algorithm, and return the final directions and their largest movement within an epoch.

    Parameters
    ----------
    rows : sparse array of shape (n, d)
        Rows of norm at most 1.
    n_components : int
    noise_std : float
        The std of the noise that is added to the gradient in each step.
    rng : Generator
    reduced : bool
        Run Algorithm 2 (DP-VRPCA), with the signs of equation (14). Otherwise run Algorithm 1 (DP-SPCA), with the
        gradient ``-2 x (x^T V)``.
    steps, epochs : int
        The numbers T of steps, by default n, and m of epochs.
    step_size : float, optional
        By default ``1 / n`` for Algorithm 2 and ``1 / 2n`` for Algorithm 1.
    start : array of shape (d, k), optional
        The start directions; random by default.

    Returns
    -------
    (array of shape (k, d), float)
        The directions as rows, and the movement. The movement is the spectral norm of ``V - V~``, where V~ are the
        directions at the start of the epoch.
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
    """Run one step for each picked row, and return the directions.

    ``first`` has the directions at the start of the epoch. Algorithm 2 corrects each step by the gradient at these
    directions. For Algorithm 1, ``first`` is zero.
    """
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
        if off > 0.2:  # V (V^T V)^(-1/2) as printed; Newton's iteration if V is nearly orthonormal
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
