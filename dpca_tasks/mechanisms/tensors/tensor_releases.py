r"""Tensor decomposition: the two releases, and the components computed from them.

A release is a second moment, then the core of the third moment along its eigenvectors. The robust tensor power method
computes the components of topics and mixtures from both. `TensorProblem` holds the public facts of a request.

*Second query.* It depends only on the first answer and on public facts. Its directions are rounded to the public grid
of step ``2^-24`` and used as rounded from then on. So the only loss is that they are orthonormal up to about ``2^-24
sqrt(D)``. This causes a relative error of components of the same size, far below the error from any noise.

*The robust tensor power method* finds the components of a symmetric tensor of order 3 that is nearly orthogonal. For a
tensor ``T = sum_k lambda_k v_k (x) v_k (x) v_k`` with orthonormal ``v_k``, the ``v_k`` are the stable fixed points of
``u <- T(I, u, u) / |T(I, u, u)|``. Of several public random starts, the one that reaches the largest ``T(u, u, u)`` is
polished and its component subtracted. Then the next component is sought.

>>> import numpy as np
>>> v, _ = np.linalg.qr(np.random.default_rng(0).standard_normal((3, 3)))
>>> values, vectors = robust_power_method(np.einsum("k,ik,jk,lk", [3.0, 2.0, 1.0], v, v, v), n_components=3)
>>> values.round(12).tolist(), bool(np.allclose(vectors, v.T))
([3.0, 2.0, 1.0], True)

*Topics and mixtures* are computed from the eigenpairs above the noise by whitening. The leading eigenpairs ``U, L`` of
a second moment ``A = sum_k n_k mu_k mu_k^T`` give the whitening ``W = U L^(-1/2)``. Under W the third moment is
``T(W, W, W) = sum_k n_k^(-1/2) v_k (x) v_k (x) v_k`` with orthonormal ``v_k``. Then ``mu_k = lambda_k U L^(1/2) v_k``,
and the weights are proportional to ``lambda_k^(-2)``. Moments are sums over records. Their number N cancels, except in
the variance of a mixture's noise. Only the core ``T(U, U, U)`` of the third moment is requested. All functions of this
part are post-processing of released numbers.

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
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpca_tasks.accounting import events
from dpca_tasks.errors import InvalidInput
from dpca_tasks.layouts import Layout
from dpca_tasks.mechanisms.base import ComponentModel, Components, Plan, PrivacyTarget, Terms
from dpca_tasks.mechanisms.eigenpairs import leading_eigenpairs
from dpca_tasks.noise.distributions import NoiseDistribution, UpperTriangle, check_tail, grid_bits
from dpca_tasks.noise.pure_matrices import CubeRadial, SymmetricRadial
from dpca_tasks.privacy.curator import Curator
from dpca_tasks.queries.base import RowSum
from dpca_tasks.queries.rounded_product import DIRECTION_BITS, on_direction_grid
from dpca_tasks.queries.second_moment import SecondMoment
from dpca_tasks.queries.words import PointTriples, WordPairs, WordTriples

START_SEED = 20140801  # starts are public; no guarantee depends on them

type Array = NDArray[np.float64]


def robust_power_method(
    tensor: Array, *, n_components: int, seed: int = START_SEED, restarts: int = 20, steps: int = 60, polish: int = 20
) -> tuple[Array, Array]:
    """Return the values and vectors of a symmetric tensor, subtracting each component when it is found.

    Parameters
    ----------
    tensor : array of shape (K, K, K)
        Symmetric.
    n_components : int
        The largest number of components to find.
    seed : int
        The public seed of the starts.
    restarts, steps, polish : int
        The starts for a component, the iterations of each start, and further iterations of the best start.

    Returns
    -------
    values : float64 array of shape (found,)
        Positive values, in the order in which they were found; the sign of each vector is chosen accordingly.
    vectors : float64 array of shape (found, K)
        Vectors of norm 1.

    Guarantees
    ----------
    Fewer components than requested are found if no start reaches a positive value, or a number is not finite. The
    remaining tensor then contains no component.
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
    """Scale rows to norm 1; a row of zeros stays 0."""
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    return rows / np.where(norms > 0, norms, 1.0)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Eigenspace:
    """The leading eigenpairs of a released second moment that exceed its noise.

    Parameters
    ----------
    values : float64 array of shape (K',)
        Eigenvalues, descending, not divided by the number of records. For a mixture, the variance of its noise is
        already subtracted.
    directions : float64 array of shape (D, K')
        U, the eigenvectors as columns.
    requested : int
        K, the number of requested components; ``K' <= K``.
    floor : float
        The value that eigenvalues had to exceed.
    noise_variance : float, optional
        For a mixture: the variance of its noise in one coordinate of one record.
    """

    values: Array
    directions: Array
    requested: int
    floor: float
    noise_variance: float | None = None

    @property
    def above(self) -> int:
        """The number of eigenvalues above the floor; the leading pair is kept even if it is below the floor."""
        return int((self.values > self.floor).sum())


def moment_floor(order: int, *, noise_std: float) -> float:
    """Return ``sqrt(2 D) std``, the spectral norm of isometric noise with std ``std`` on the diagonal."""
    return math.sqrt(2.0 * order) * noise_std


def eigenspace(matrix: Array, *, n_components: int, floor: float) -> Eigenspace:
    """Return the leading eigenpairs of the pair moment of documents: K, or fewer if fewer exceed a floor."""
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
    """Return the leading eigenpairs of the second moment of points, after subtracting the variance of their noise.

    Parameters
    ----------
    matrix : array of shape (D, D)
        The second moment, not divided by the number of records.
    n_components : int
        K, below D.
    floor : float
        The value that an eigenvalue must exceed after the variance is subtracted.
    n_records : float
        N, a public number.
    noise_variance : float, optional
        The declared variance. By default it is the mean of the ``D - K`` least eigenvalues over N, or 0 if this mean is
        negative.
    most : float
        The largest variance that is possible for points clipped to their norm bound.
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
        Topics are mapped back to the simplex: negative entries become 0, and the others are scaled to sum 1.

    Returns
    -------
    Components
        By falling weight. ``outcome`` has three numbers of components: the requested ones (``requested``), the ones
        ``above`` the noise of the second moment (its ``floor``), and the ones ``found`` in the third moment. ``failed``
        is whether no component was above the noise.
    """
    least = np.maximum(space.values, space.floor)
    roots = np.sqrt(np.where(least > 0, least, math.inf))  # an infinite root excludes a direction without variance
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
            "requested": space.requested,
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
        requested=len(values),
        floor=floor,
        noise_variance=noise_variance,
    )


LARGEST = 1 << 27
"""The largest number of coordinates of a second moment, which is held in memory with 8 bytes each."""
FEWEST_WORDS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorProblem(Terms):
    """Public facts of a request for the topics of documents or the means of a mixture.

    Parameters
    ----------
    n_features : int
        Declared columns D: words of a vocabulary, or coordinates of a point.
    model : {"topics", "mixture"}
        Whether a record is a document, all words of which are from one topic, or a point around one of the means, with
        noise of equal variance in every coordinate.
    words_at_most : int, optional
        For topics: the public bound on the number of words that are counted of a document.
    clip_norm : float, data units, optional
        For a mixture: R, the bound on the norm of a point; longer points are scaled down to R.
    noise_variance : float, squared data units, optional
        For a mixture: s2, the variance of its noise, if it is publicly known; otherwise it follows from the release.
    **others
        As for `Terms`. For a mixture without a declared variance, ``records_at_most`` is taken as the number of
        records, by which the remaining second moment is divided.
    """

    n_features: int
    model: ComponentModel
    words_at_most: int | None = None
    clip_norm: float | None = None
    noise_variance: float | None = None

    @property
    def unit(self) -> float:
        """The largest trace of one record's second moment: 1 for a document, ``R^2`` for a point."""
        return 1.0 if self.clip_norm is None else self.clip_norm**2


def check_tensor(problem: TensorProblem, *, components: int) -> None:
    """Refuse facts that fit no model, and impossible numbers of components.

    Raises
    ------
    InvalidInput
        When a bound of the model is missing or out of its domain, or belongs to the other model. When the number of
        components is below one, or not below the number of features. When the second moment does not fit in memory.
    """
    if not 1 <= components < problem.n_features:
        raise InvalidInput(
            f"components={components} must be at least 1 and below n_features={problem.n_features}; use fewer."
        )
    coordinates = problem.n_features * (problem.n_features + 1) // 2
    if coordinates > LARGEST:
        raise InvalidInput(
            f"the second moment of {problem.n_features} columns has {coordinates} coordinates, and at most {LARGEST} "
            "are held in memory; declare fewer columns."
        )
    if problem.model == "topics":
        _check_topics(problem)
    elif problem.model == "mixture":
        _check_mixture(problem)
    else:
        raise InvalidInput(f"model={problem.model!r} must be topics or mixture; choose one.")


def _check_topics(problem: TensorProblem) -> None:
    if problem.clip_norm is not None or problem.noise_variance is not None:
        raise InvalidInput("clip_norm and noise_variance are for model=mixture; leave them out, or change the model.")
    if problem.words_at_most is None or problem.words_at_most < FEWEST_WORDS:
        raise InvalidInput(
            f"words_at_most={problem.words_at_most} must be at least {FEWEST_WORDS} for model=topics, which compares "
            "three words of a document; state a public bound on the words of one."
        )


def _check_mixture(problem: TensorProblem) -> None:
    if problem.words_at_most is not None:
        raise InvalidInput("words_at_most is for model=topics; leave it out, or change the model.")
    if problem.clip_norm is None or not 0 < problem.clip_norm < math.inf:
        raise InvalidInput(
            f"clip_norm={problem.clip_norm} must be positive and finite for model=mixture; state a public bound on the "
            "norm of a point, such as 1.3 sqrt(m^2 + D s2) for means of norm m and noise of variance s2."
        )
    most = problem.clip_norm**2 / problem.n_features
    if problem.noise_variance is not None and not 0 <= problem.noise_variance <= most:
        raise InvalidInput(
            f"noise_variance={problem.noise_variance} must be from 0 to {most:.6g}, clip_norm^2 / n_features: points "
            "of such noise are longer than clip_norm; correct one of them."
        )


POINT_FACTOR, SCORE_FACTOR = 1.3, 1.4
CORE_SENSITIVITY = 2.0
"""A bound on the sensitivity of a core in its unit, for any directions, up to rounding."""
_GRID_LOSS = 0.01
_FAR = 16.0  # margin for draws of random length, in multiples of their scale, which is almost never exceeded
_LEAST_MARGIN = 1.0 + 2.0**-30


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorReleases:
    """Queries of both releases, and post-processing of their answers.

    Parameters
    ----------
    problem : TensorProblem
    components : int
        K.
    point_factor : float
        For a mixture: the clip norm R over the root mean square of points, ``sqrt(m^2 + D s2)`` for means of norm m.
    score_factor : float
        For a mixture: the bound of scores over their root mean square, ``sqrt(m^2 + K s2)``; m follows from
        ``point_factor``.
    """

    problem: TensorProblem
    components: int
    point_factor: float = field(default=POINT_FACTOR, metadata={"ge": 1})
    score_factor: float = field(default=SCORE_FACTOR, metadata={"ge": 1})

    def check(self) -> None:
        """Refuse facts and factors out of their domain.

        Raises
        ------
        InvalidInput
        """
        check_tensor(self.problem, components=self.components)
        if not all(1 <= factor < math.inf for factor in (self.point_factor, self.score_factor)):
            raise InvalidInput(
                f"point_factor={self.point_factor} and score_factor={self.score_factor} must be at least 1 and finite: "
                "smaller bounds clip the components; 1.3 and 1.4 are usual."
            )

    def moment_query(self, *, bits: int) -> WordPairs | SecondMoment:
        """Return the query of the second moment: of pairs of words, or of clipped points."""
        if self.problem.model == "topics":
            return WordPairs(**self._requested(bits), words_at_most=self._words_at_most)
        assert self.problem.clip_norm is not None
        return SecondMoment(**self._requested(bits), clip_norm=self.problem.clip_norm)

    def moment_bits(self, *, noise_multiplier: float) -> int:
        """Return the finest grid of the second moment that is safe for noise of a std relative to sensitivity."""
        coarse = self.moment_query(bits=1)
        return grid_bits(noise_std=noise_multiplier * coarse.sensitivity("l2"), degree=coarse.degree)

    def moment_std(self, *, noise_multiplier: float) -> float:
        """Return the std of noise on the diagonal of the second moment, in its units."""
        query = self.moment_query(bits=1)
        return noise_multiplier * query.sensitivity("l2") * query.unit

    def core_bits(self, *, noise_multiplier: float) -> int:
        """Return the finest safe grid of the core, for any directions."""
        return grid_bits(noise_std=noise_multiplier * CORE_SENSITIVITY, degree=1)

    def space(self, matrix: Array, *, std: float) -> Eigenspace:
        """Return the eigenpairs of a released second moment that exceed the noise, with directions on the public grid.

        Parameters
        ----------
        matrix : array of shape (D, D)
        std : float
            The std of the noise on the diagonal; the noise is isotropic.
        """
        problem, floor = self.problem, moment_floor(self.problem.n_features, noise_std=std)
        if problem.model == "topics":
            found = eigenspace(matrix, n_components=self.components, floor=floor)
        else:
            found = mixture_eigenspace(
                matrix,
                n_components=self.components,
                floor=floor,
                n_records=problem.records_at_most,
                noise_variance=problem.noise_variance,
                most=problem.unit / problem.n_features,
            )
        return replace(found, directions=on_direction_grid(found.directions) / 2.0**DIRECTION_BITS)

    def core_query(self, space: Eigenspace, *, bits: int) -> WordTriples | PointTriples:
        """Return the query of the core along the directions of a released second moment."""
        directions = on_direction_grid(space.directions)
        if space.noise_variance is None:
            return WordTriples(**self._requested(bits), directions=directions, words_at_most=self._words_at_most)
        return PointTriples(
            **self._requested(bits),
            directions=directions,
            noise_variance=space.noise_variance,
            score_norm=self.score_norm(space),
        )

    def score_norm(self, space: Eigenspace) -> float:
        """Return the bound on scores of points: at most R, and at least what the query needs for its variance."""
        assert self.problem.clip_norm is not None
        assert space.noise_variance is not None
        kept, s2, clip_norm = len(space.values), space.noise_variance, self.problem.clip_norm
        means = max((clip_norm / self.point_factor) ** 2 - self.problem.n_features * s2, 0.0)
        usual = self.score_factor * math.sqrt(means + kept * s2)
        least = math.sqrt(s2 / min(0.5, 2.0 / (kept + 2)))
        return min(max(usual, least * _LEAST_MARGIN), clip_norm * _LEAST_MARGIN)

    def components_from(self, core: Array, space: Eigenspace) -> Components:
        """Return the components of a released core."""
        return components_of(core, space, model=self.problem.model)

    def warnings(self, *, bits: int) -> tuple[str, ...]:
        """Return warnings about limits of the utility, in public terms."""
        problem, query = self.problem, self.moment_query(bits=bits)
        if isinstance(query, WordPairs):
            if query.largest_loss <= _GRID_LOSS:
                return ()
            return (
                f"the grid loses up to {query.largest_loss:.2g} of the pairs of a document of {query.words_at_most} "
                "words; count fewer words per document, or use a larger epsilon for a finer grid.",
            )
        if problem.noise_variance is not None or (problem.relation != "add_remove" and problem.records_declared):
            return ()
        return (
            f"the variance of the mixture's noise is taken over {problem.records_at_most} records, and comes out too "
            "small if there are fewer; declare the number of records, or noise_variance.",
        )

    @property
    def _words_at_most(self) -> int:
        assert self.problem.words_at_most is not None
        return self.problem.words_at_most

    def _requested(self, bits: int) -> dict[str, Any]:
        return {"n_features": self.problem.n_features, "relation": self.problem.relation, "bits": bits}


def plan_releases(
    mechanism: str,
    releases: TensorReleases,
    target: PrivacyTarget,
    noises: tuple[NoiseDistribution, NoiseDistribution],
    *,
    notes: tuple[str, ...] = (),
    printed: bool = False,
) -> Plan:
    """Plan both releases with the noise of each."""
    moment, core = noises
    cube = Layout(kind="cube", order=releases.components)
    layout = releases.moment_query(bits=1).layout
    check_tail(moment, draws=layout.size + cube.size, delta=target.delta)
    releases.core_bits(noise_multiplier=_largest(core, cube.order))
    bits = releases.moment_bits(noise_multiplier=_largest(moment, layout.order))
    return Plan(
        mechanism=mechanism,
        problem=releases.problem,
        target=target,
        noise_multiplier=moment.noise_multiplier,
        bits=bits,
        event=events.composed(moment.event, core.event),
        notes=(*notes, *releases.warnings(bits=bits)),
        printed=printed,
    )


def run_releases(
    curator: Curator, plan: Plan, releases: TensorReleases, noises: tuple[NoiseDistribution, NoiseDistribution]
) -> Components:
    """Release the second moment, then the core along its leading eigenvectors; the rest is post-processing."""
    moment, core = noises
    matrix = curator.release(releases.moment_query(bits=plan.bits), moment)
    over = moment.noise_multiplier * spread(moment, len(matrix))
    space = releases.space(matrix, std=releases.moment_std(noise_multiplier=over))
    bits = releases.core_bits(noise_multiplier=_largest(core, releases.components))
    query = curator.with_stored_inputs(releases.core_query(space, bits=bits))
    return releases.components_from(curator.release(query, core), product_along(query, space))


def product_along(query: RowSum, space: Eigenspace) -> Eigenspace:
    """Return an eigenspace with the directions and the variance of the core query, which may be stored inputs."""
    assert isinstance(query, WordTriples | PointTriples)
    variance = float(np.sum(query.noise_variance)) if isinstance(query, PointTriples) else None
    return replace(space, directions=query.directions / 2.0**DIRECTION_BITS, noise_variance=variance)


def spread(noise: NoiseDistribution, order: int) -> float:
    """Return the diagonal std of isometric noise with the same spectral norm as ``noise``, over its multiplier."""
    if isinstance(noise, SymmetricRadial | CubeRadial):
        return noise.spread(order)
    return math.sqrt(2.0) if isinstance(noise, UpperTriangle) else 1.0


def _largest(noise: NoiseDistribution, order: int) -> float:
    """Return the std of a noise over the sensitivity, with a margin if the length of a draw is random."""
    is_radial = isinstance(noise, SymmetricRadial | CubeRadial)
    return noise.noise_multiplier * (spread(noise, order) + (_FAR if is_radial else 0.0))


def checked_split(split: float) -> Fraction:
    """Return the second moment's share as a fraction.

    Raises
    ------
    InvalidInput
        When the share leaves nothing for one of the two releases.
    """
    if not 0 < split < 1:
        raise InvalidInput(f"split={split} must be in (0, 1), the share of the second moment; 0.5 is usual.")
    return Fraction(split)
