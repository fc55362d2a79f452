r"""The robust tensor power method: the components of a symmetric tensor of order 3 that is nearly orthogonal.

A tensor ``T = sum_k lambda_k v_k (x) v_k (x) v_k`` with orthonormal ``v_k`` has them as its stable fixed points under
``u <- T(I, u, u) / |T(I, u, u)|``. From several public random starts the one that reaches the largest ``T(u, u, u)`` is
polished and subtracted, and so on.

>>> import numpy as np
>>> v, _ = np.linalg.qr(np.random.default_rng(0).standard_normal((3, 3)))
>>> values, vectors = robust_power_method(np.einsum("k,ik,jk,lk", [3.0, 2.0, 1.0], v, v, v), n_components=3)
>>> values.round(12).tolist(), bool(np.allclose(vectors, v.T))
([3.0, 2.0, 1.0], True)

References
----------
Anandkumar, Ge, Hsu, Kakade and Telgarsky (2014), Tensor decompositions for learning latent variable models,
Algorithm 1.
"""

import numpy as np
from numpy.typing import NDArray

START_SEED = 20140801  # starts are public; no guarantee depends on them

type Array = NDArray[np.float64]


def robust_power_method(
    tensor: Array, *, n_components: int, seed: int = START_SEED, restarts: int = 20, steps: int = 60, polish: int = 20
) -> tuple[Array, Array]:
    """Return the values and vectors of a symmetric tensor, one after the other, each subtracted when it is found.

    Parameters
    ----------
    tensor : array of shape (K, K, K)
        Symmetric.
    n_components : int
        How many are sought at most.
    seed : int
        The public seed of the starts.
    restarts, steps, polish : int
        Starts of a component; iterations of each; further ones of the best.

    Returns
    -------
    values : float64 array of shape (found,)
        Positive: the sign of a vector is that of its value. In the order in which they were found.
    vectors : float64 array of shape (found, K)
        Of norm 1.

    Guarantees
    ----------
    Fewer than asked are found where no start reaches a positive value, or a number is not finite: what is left then
    holds no component.
    The same tensor gives the same bits on one machine.
    """
    rest, rng = np.array(tensor, np.float64), np.random.default_rng(seed)
    values, vectors = list[float](), list[Array]()
    while len(values) < n_components and np.isfinite(rest).all():
        starts = _unit(rng.standard_normal((restarts, len(rest))))
        for _ in range(steps):
            starts = _unit(_applied(rest, starts))
        best = starts[[np.argmax(_values(rest, starts))]]
        for _ in range(polish):
            best = _unit(_applied(rest, best))
        (value,) = _values(rest, best)
        if not value > 0:
            break
        values.append(float(value))
        vectors.append(best[0])
        rest -= value * np.einsum("i,j,k->ijk", best[0], best[0], best[0])
    return np.array(values), np.array(vectors).reshape(-1, len(rest))


def _applied(tensor: Array, rows: Array) -> Array:
    """Return ``T(I, u, u)`` of each row u."""
    order = len(tensor)
    once = (rows @ tensor.reshape(order, order * order)).reshape(-1, order, order)
    return np.asarray(np.einsum("rij,rj->ri", once, rows))


def _values(tensor: Array, rows: Array) -> Array:
    """Return ``T(u, u, u)`` of each row u."""
    return np.asarray(np.einsum("ri,ri->r", _applied(tensor, rows), rows))


def _unit(rows: Array) -> Array:
    """Return rows of norm 1; a row that vanished stays 0."""
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    return rows / np.where(norms > 0, norms, 1.0)
