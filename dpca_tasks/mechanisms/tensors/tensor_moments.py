r"""Components of topics and mixtures from released moments, by the robust tensor power method.

*The robust tensor power method* finds the components of a symmetric tensor of order 3 that is nearly orthogonal. A
tensor ``T = sum_k lambda_k v_k (x) v_k (x) v_k`` with orthonormal ``v_k`` has them as its stable fixed points under
``u <- T(I, u, u) / |T(I, u, u)|``. From several public random starts the one that reaches the largest ``T(u, u, u)`` is
polished and subtracted, and so on.

>>> import numpy as np
>>> v, _ = np.linalg.qr(np.random.default_rng(0).standard_normal((3, 3)))
>>> values, vectors = robust_power_method(np.einsum("k,ik,jk,lk", [3.0, 2.0, 1.0], v, v, v), n_components=3)
>>> values.round(12).tolist(), bool(np.allclose(vectors, v.T))
([3.0, 2.0, 1.0], True)

*Topics and mixtures*: eigenpairs above the noise, whitening, and back. Of a second moment ``A = sum_k n_k mu_k mu_k^T``
the leading eigenpairs ``U, L`` give the whitening ``W = U L^(-1/2)``, under which the third moment is ``T(W, W, W) =
sum_k n_k^(-1/2) v_k (x) v_k (x) v_k`` with orthonormal ``v_k``; then ``mu_k = lambda_k U L^(1/2) v_k`` and the weights
are proportional to ``lambda_k^(-2)``. Moments are sums over records: their number N cancels, but for the variance of a
mixture's noise. The core ``T(U, U, U)`` is all that is asked of the third moment. All functions are post-processing of
released numbers.

>>> import numpy as np
>>> means, counts = np.array([[0.6, 0.4, 0.0, 0.0], [0.0, 0.2, 0.3, 0.5]]), np.array([400.0, 600.0])
>>> space = eigenspace((means.T * counts) @ means, n_components=2, floor=0.0)
>>> scores = means @ space.directions
>>> core = np.einsum("n,ni,nj,nk->ijk", counts, scores, scores, scores)
>>> found = components_of(core, space, model="topics")
>>> found.weights.round(12).tolist(), bool(np.allclose(found.components, means[::-1]))
([0.6, 0.4], True)

References
----------
Anandkumar, Ge, Hsu, Kakade and Telgarsky (2014), Tensor decompositions for learning latent variable models,
Algorithm 1 and Theorem 4.3.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dpca_tasks.mechanisms.base import ComponentModel, Components
from dpca_tasks.mechanisms.eigenpairs import leading_eigenpairs

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


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Eigenspace:
    """The leading eigenpairs of a released second moment that stand above its noise.

    Parameters
    ----------
    values : float64 array of shape (K',)
        Descending; of a mixture without the variance of its noise. Not divided by the number of records.
    directions : float64 array of shape (D, K')
        U, its eigenvectors as columns.
    asked : int
        K, the components that were asked for; ``K' <= K``.
    floor : float
        What an eigenvalue had to exceed.
    noise_variance : float, optional
        Of a mixture: in a coordinate of one record.
    """

    values: Array
    directions: Array
    asked: int
    floor: float
    noise_variance: float | None = None

    @property
    def above(self) -> int:
        """The number of eigenvalues above the floor; the leading pair is kept even if it is not."""
        return int((self.values > self.floor).sum())


def moment_floor(order: int, *, noise_std: float) -> float:
    """Return ``sqrt(2 D) std``, the spectral norm of isometric noise, ``std`` being that of the diagonal."""
    return math.sqrt(2.0 * order) * noise_std


def eigenspace(matrix: Array, *, n_components: int, floor: float) -> Eigenspace:
    """Return the leading eigenpairs of the pair moment of documents: K, or those above a floor if these are fewer."""
    values, rows = leading_eigenpairs(matrix, n_components)
    return _above(values, rows, floor=floor)


def mixture_eigenspace(
    matrix: Array,
    *,
    n_components: int,
    floor: float,
    n_records: float,
    noise_variance: float | None = None,
    most: float = math.inf,
) -> Eigenspace:
    """Return the same of the second moment of points, without the variance of their noise.

    Parameters
    ----------
    matrix : array of shape (D, D)
        Not divided by the number of records.
    n_components : int
        K, below D.
    floor : float
        What an eigenvalue has to exceed when that variance is taken off.
    n_records : float
        N, a public number.
    noise_variance : float, optional
        As it was declared. By default it is the mean of the ``D - K`` least eigenvalues over N, or 0 if that is
        negative.
    most : float
        The largest that it can be for points of the norm to which they were clipped.
    """
    values, rows = leading_eigenpairs(matrix, n_components)
    if noise_variance is None:
        rest = float(np.trace(matrix) - values.sum()) / (len(matrix) - n_components)
        noise_variance = min(max(rest / n_records, 0.0), most)
    return _above(values - n_records * noise_variance, rows, floor=floor, noise_variance=noise_variance)


def components_of(core: Array, space: Eigenspace, *, model: ComponentModel) -> Components:
    """Return the components of a released core.

    Parameters
    ----------
    core : array of shape (K', K', K')
        ``T(U, U, U)`` with the directions of the eigenspace.
    space : Eigenspace
    model : {"topics", "mixture"}
        Topics are put back on the simplex: negative entries become 0, the others sum to 1.

    Returns
    -------
    Components
        By falling weight. ``outcome`` counts the components that were ``asked`` for, those ``above`` the noise of the
        second moment (its ``floor``), and those ``found`` in the third; ``failed`` is whether none was above.
    """
    least = np.maximum(space.values, space.floor)
    roots = np.sqrt(np.where(least > 0, least, math.inf))  # along a direction that holds nothing, nothing is found
    whitened = core / (roots[:, None, None] * roots[:, None] * roots)
    values, vectors = robust_power_method(whitened, n_components=len(roots))
    components = values[:, None] * ((vectors * roots) @ space.directions.T)
    if model == "topics":
        components = np.maximum(components, 0.0)
        held = components.sum(axis=1) > 0
        components, values = components[held], values[held]
        components /= components.sum(axis=1, keepdims=True)
    weights = values**-2
    weights /= weights.sum()
    order = np.argsort(-weights, kind="stable")
    return Components(
        components=components[order],
        weights=weights[order],
        model=model,
        noise_variance=space.noise_variance,
        eigenvalues=space.values,
        outcome={
            "asked": space.asked,
            "above": space.above,
            "found": len(order),
            "floor": float(space.floor),
            "failed": space.above == 0,
        },
    )


def _above(values: Array, rows: Array, *, floor: float, noise_variance: float | None = None) -> Eigenspace:
    kept = max(int((values > floor).sum()), 1)
    return Eigenspace(
        values=values[:kept],
        directions=rows[:kept].T,
        asked=len(values),
        floor=floor,
        noise_variance=noise_variance,
    )
