"""Amin, Dick, Kulesza, Munoz and Vassilvitskii (2019), Differentially private covariance estimation, Algorithm 1.

Eigenvalues get Laplace noise of scale ``2 / epsilon_0``; eigenvectors are drawn one after another, each orthogonal to
those before it, by the exponential mechanism with density ``exp(epsilon_i / 4 u^T C u)``. For k components the first k
vectors are drawn, and epsilon is divided evenly among them and the eigenvalues; the span of the vectors is the answer,
to which the eigenvalues add nothing.

*Relation*: one replaced row of norm at most 1, the number of rows public. *Assumptions on the data*: none.

*What it really gives.* A replaced row changes ``u^T C u`` by between -1 and 1, so a draw costs at most
``epsilon_i / 2``, half of what the paper books for it; the eigenvalues move by at most 2 in the l1 norm, and cost
epsilon_0.
"""

import os

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from dpca_tasks.noise.bingham import complement, draw_direction
from dpca_tasks.noise.keystream import subkey


def amin_covariance(
    rows: sparse.csr_array, *, n_components: int, epsilon: float, delta: float = 0.0
) -> NDArray[np.float64]:
    """Return k directions of public rows of norm at most 1, as rows; delta is not used."""
    matrix = np.asarray((rows.T @ rows).toarray())
    share = epsilon / (n_components + 1)
    key, found = os.urandom(32), np.zeros((0, len(matrix)))
    for at in range(n_components):
        basis = complement(found)
        drawn = draw_direction(
            subkey(key, label="direction", info=at.to_bytes(8, "little")), basis.T @ matrix @ basis, scale=4.0 / share
        )
        found = np.vstack([found, basis @ drawn])
    return found


def true_epsilon(*, n_components: int, epsilon: float) -> float:
    """Return the epsilon that the printed noise gives for one replaced row."""
    share = epsilon / (n_components + 1)
    return share + n_components * share / 2.0
