"""Refined leading pairs of a release of which leading pairs were kept, and not the matrix.

Posterior means need the pairs alone; to bring them into order needs the matrix, in whose place the strengths of the
pairs stand here. That loses a part of what refining gains, nothing can be scored, and so nothing guards against harm:
this is for who asks for it.

>>> rows = np.eye(40)[:20]
>>> found = refine_kept_pairs(np.linspace(90.0, 12.0, 20), rows, noise_std=1.0, n_components=3)
>>> found.refined_by, found.components.shape
('eb', (3, 40))
"""

import numpy as np
from numpy.typing import NDArray

from dpca_tasks.errors import InvalidInput
from dpca_tasks.mechanisms.parts.eigenpairs import signed
from dpca_tasks.mechanisms.parts.noise_edge import spike_strengths
from dpca_tasks.mechanisms.parts.noisy_moment import RESOLVED
from dpca_tasks.mechanisms.parts.refinement import Refinement
from dpca_tasks.mechanisms.parts.spectral_shrinkage import posterior_mean, width
from dpca_tasks.threads import one_thread

type Matrix = NDArray[np.float64]


def refine_kept_pairs(values: Matrix, rows: Matrix, *, noise_std: float, n_components: int) -> Refinement:
    """Refine the leading k pairs by posterior means, from the pairs that were kept.

    Parameters
    ----------
    values : float64 array of shape (m,)
        Leading eigenvalues of the released matrix, descending.
    rows : float64 array of shape (m, d)
        Their eigenvectors.
    noise_std : float, units of the matrix
        The planned standard deviation of the noise off the diagonal.
    n_components : int
        k, at most m.

    Returns
    -------
    Refinement
        By ``eb``, its values being estimates of strengths; the pairs as they are where d is at most k + 10, or there
        is no noise to speak of.

    Raises
    ------
    InvalidInput
        If fewer pairs were kept than are asked for, or shapes or noise are none.
    """
    kept, order = rows.shape
    if values.shape != (kept,) or not (np.isfinite(values).all() and np.isfinite(rows).all()):
        raise InvalidInput(
            f"{values.shape} values and {rows.shape} rows must be pairs of finite numbers; pass such pairs"
        )
    if not 1 <= n_components <= kept:
        raise InvalidInput(
            f"n_components={n_components} must be from 1 to {kept}, the pairs that were kept; pass such a k"
        )
    if not noise_std >= 0.0:
        raise InvalidInput(f"noise_std={noise_std} must not be negative; pass the planned one")
    count = min(width(order, n_components), kept)
    if count == order or not np.abs(values[:1]).max() <= RESOLVED * noise_std:
        return Refinement(
            components=signed(rows[:n_components]), values=values[:n_components], refined_by="none", scores={}
        )
    with one_thread():
        strengths = spike_strengths(values[:count] / noise_std, order=order)
        shrunk = posterior_mean(rows[:count].T * strengths) / np.sqrt(strengths)
        directions, sizes, _ = np.linalg.svd(shrunk, full_matrices=False)
    return Refinement(
        components=signed(directions.T[:n_components]),
        values=sizes[:n_components] ** 2 * noise_std,
        refined_by="eb",
        scores={},
    )
