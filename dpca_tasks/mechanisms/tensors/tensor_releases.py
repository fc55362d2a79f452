r"""Tensor decomposition of moments: the two releases of a tensor mechanism, and the components computed from them.

A tensor mechanism first releases the second moment A of the records. Then it releases the *core*, which is the third
moment T along the leading eigenvectors U of the noisy second moment, ``T(U, U, U)``. The components are topics of
documents, or means of a mixture. They are computed from both answers by the robust tensor power method. `TensorProblem`
holds the public facts of a request.

*The query of the core* depends only on the noisy second moment and on public facts. The eigenvectors are rounded to a
public grid of step ``2^-24``, and all later computations use the rounded vectors. So these are orthonormal only up to
about ``2^-24 sqrt(D)`` for D features. The resulting relative error of components has the same size, far below the
error from any noise.

*The robust tensor power method* finds the components of a symmetric tensor of order 3 that is nearly orthogonal. For a
tensor ``T = sum_k lambda_k v_k (x) v_k (x) v_k`` with orthonormal ``v_k``, the ``v_k`` are the stable fixed points of
the iteration ``u <- T(I, u, u) / |T(I, u, u)|``. The iteration is run from several public random starts, and the result
with the largest ``T(u, u, u)`` is iterated further. The component found is subtracted from the tensor. Then the next
component is found in the same way.

>>> import numpy as np
>>> v, _ = np.linalg.qr(np.random.default_rng(0).standard_normal((3, 3)))
>>> values, vectors = robust_power_method(np.einsum("k,ik,jk,lk", [3.0, 2.0, 1.0], v, v, v), n_components=3)
>>> values.round(12).tolist(), bool(np.allclose(vectors, v.T))
([3.0, 2.0, 1.0], True)

*Whitening.* Suppose that ``n_k`` records belong to component k, with mean ``mu_k``. Then the second moment is
``A = sum_k n_k mu_k mu_k^T``. Its leading eigenvectors U and eigenvalues L, those above the noise, give the whitening
``W = U L^(-1/2)``. The whitened third moment is ``T(W, W, W) = sum_k n_k^(-1/2) v_k (x) v_k (x) v_k`` with orthonormal
``v_k``, and it follows from the core ``T(U, U, U)``. The tensor power method gives ``v_k`` and the values
``lambda_k = n_k^(-1/2)``. Then ``mu_k = lambda_k U L^(1/2) v_k``, and the weights of the components are proportional to
``lambda_k^(-2)``. Moments are sums over records. The number N of records is needed only for the variance of a mixture's
noise. All these computations are post-processing of released numbers.

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

START_SEED = 20140801  # seed of the public random starts of the power method; no guarantee depends on it

type Array = NDArray[np.float64]


def robust_power_method(
    tensor: Array, *, n_components: int, seed: int = START_SEED, restarts: int = 20, steps: int = 60, polish: int = 20
) -> tuple[Array, Array]:
    """Find the components of a nearly orthogonal symmetric tensor, one after the other, by the robust power method.

    Each component found is subtracted from the tensor.

    Parameters
    ----------
    tensor : array of shape (K, K, K)
        The symmetric tensor T.
    n_components : int
        The largest number of components to find.
    seed : int
        The public seed of the random starts.
    restarts, steps, polish : int
        The number of starts for each component, the number of iterations of each start, and the number of further
        iterations of the best start.

    Returns
    -------
    values : float64 array of shape (found,)
        The value ``T(v, v, v)`` of each component v, in the order in which they were found. The signs of the vectors
        are chosen so that all values are positive.
    vectors : float64 array of shape (found, K)
        The components v, of norm 1.

    Guarantees
    ----------
    Fewer components than requested are found if no start reaches a positive value, or if a number is not finite. The
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
    """Return the vector ``T(I, u, u)`` for each row u of ``rows``, where T is the tensor of order 3."""
    order = len(tensor)
    once = (rows @ tensor.reshape(order, order * order)).reshape(-1, order, order)
    return np.asarray(np.einsum("rij,rj->ri", once, rows))


def _values(tensor: Array, rows: Array) -> Array:
    """Return the number ``T(u, u, u)`` for each row u of ``rows``, where T is the tensor of order 3."""
    return np.asarray(np.einsum("ri,ri->r", _applied(tensor, rows), rows))


def _unit(rows: Array) -> Array:
    """Scale each row to norm 1; a row of zeros remains zero."""
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    return rows / np.where(norms > 0, norms, 1.0)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Eigenspace:
    """The leading eigenpairs of a released second moment whose eigenvalues exceed the noise.

    Parameters
    ----------
    values : float64 array of shape (K',)
        The eigenvalues, descending, not divided by the number of records. For a mixture, the contribution of
        ``noise_variance`` is already subtracted.
    directions : float64 array of shape (D, K')
        The eigenvectors U as columns.
    requested : int
        The number K of requested components; ``K' <= K``.
    floor : float
        The threshold that eigenvalues must exceed, from the noise of the release.
    noise_variance : float, optional
        For a mixture: the variance of a record around the mean of its component, in each coordinate.
    """

    values: Array
    directions: Array
    requested: int
    floor: float
    noise_variance: float | None = None

    @property
    def above(self) -> int:
        """The number of eigenvalues above the floor; it may be 0, because the leading pair is always stored."""
        return int((self.values > self.floor).sum())


def moment_floor(order: int, *, noise_std: float) -> float:
    """Return ``sqrt(2 D) std``, the spectral norm of an isotropic noise matrix of order D.

    ``noise_std`` is the std of its diagonal entries.
    """
    return math.sqrt(2.0 * order) * noise_std


def eigenspace(matrix: Array, *, n_components: int, floor: float) -> Eigenspace:
    """Return the leading eigenpairs of the second moment of documents, which sums over pairs of words.

    At most ``n_components`` eigenpairs are returned, fewer if fewer eigenvalues exceed ``floor``, but at least one.
    """
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
    """Return the leading eigenpairs of a mixture's second moment, after the points' noise variance is subtracted.

    Parameters
    ----------
    matrix : array of shape (D, D)
        The second moment, not divided by the number of records.
    n_components : int
        The requested number K of eigenpairs, below D.
    floor : float
        The threshold that an eigenvalue must exceed after the noise variance is subtracted.
    n_records : float
        The public number N of records.
    noise_variance : float, optional
        The declared variance of the points around their means, in each coordinate. By default it is estimated as the
        mean of the ``D - K`` least eigenvalues divided by N, or 0 if this mean is negative.
    most : float
        The largest variance that clipped points can have, which bounds the estimate.
    """
    values, rows = leading_eigenpairs(matrix, n_components)
    if noise_variance is None:
        rest = float(np.trace(matrix) - values.sum()) / (len(matrix) - n_components)
        noise_variance = min(max(rest / n_records, 0.0), most)
    return _above(values - n_records * noise_variance, rows, floor=floor, noise_variance=noise_variance)


def components_of(core: Array, space: Eigenspace, *, model: ComponentModel) -> Components:
    """Compute the components of a topic model or mixture from a released core and the released eigenpairs.

    Parameters
    ----------
    core : array of shape (K', K', K')
        The third moment along the eigenvectors, ``T(U, U, U)``.
    space : Eigenspace
        The leading eigenpairs of the second moment.
    model : {"topics", "mixture"}
        Topics are mapped to probabilities: negative entries become 0, and the others are scaled to sum 1.

    Returns
    -------
    Components
        The components by falling weight. ``outcome`` states the numbers of components that were ``requested``, that
        are ``above`` the noise of the second moment (the eigenvalue threshold ``floor``), and that were ``found`` in
        the third moment. ``failed`` is true if no component is above the noise.
    """
    least = np.maximum(space.values, space.floor)
    roots = np.sqrt(np.where(least > 0, least, math.inf))  # an infinite root excludes a direction with eigenvalue 0
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
"""The largest number of coordinates of a second moment, which is kept in memory with 8 bytes per coordinate."""
FEWEST_WORDS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorProblem(Terms):
    """Public facts of a request for the topics of documents or the means of a mixture.

    Parameters
    ----------
    n_features : int
        The declared number D of columns: words of a vocabulary, or coordinates of a point.
    model : {"topics", "mixture"}
        ``topics``: a record is a document, whose words all come from one topic. ``mixture``: a record is a point near
        the mean of its component, with noise of equal variance in every coordinate.
    words_at_most : int, optional
        For topics: the public bound on the number of words that are counted in a document.
    clip_norm : float, data units, optional
        For a mixture: the bound R on the norm of a point. Longer points are scaled down to norm R.
    noise_variance : float, squared data units, optional
        For a mixture: the variance s2 of the points around their means in each coordinate, if it is publicly known.
        Otherwise it is estimated from the release.
    **others
        As for `Terms`. The estimate of the variance uses ``records_at_most`` as the number of records.
    """

    n_features: int
    model: ComponentModel
    words_at_most: int | None = None
    clip_norm: float | None = None
    noise_variance: float | None = None

    @property
    def unit(self) -> float:
        """The largest trace of one record's second moment: 1 for a document, ``clip_norm^2`` for a point."""
        return 1.0 if self.clip_norm is None else self.clip_norm**2


def check_tensor(problem: TensorProblem, *, components: int) -> None:
    """Refuse invalid public facts of a request for topics or a mixture, and impossible numbers of components.

    Raises
    ------
    InvalidInput
        When a required bound of the model is missing or out of its domain, or a bound of the other model is given. When
        the number of components is below 1, or not below the number of features. When the second moment does not fit in
        memory.
    """
    if not 1 <= components < problem.n_features:
        raise InvalidInput(
            f"components={components} must be at least 1 and below n_features={problem.n_features}; correct it."
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
            "three words of a document; state a public bound on the number of words in a document."
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
            f"noise_variance={problem.noise_variance} must be from 0 to {most:.6g}, clip_norm^2 / n_features, because "
            "points with more noise are longer than clip_norm; correct noise_variance or clip_norm."
        )


POINT_FACTOR, SCORE_FACTOR = 1.3, 1.4
CORE_SENSITIVITY = 2.0
"""A bound on the sensitivity of a core for any directions, up to rounding, in the unit of the core's query."""
_GRID_LOSS = 0.01
_FAR = 16.0  # margin for noise whose norm is drawn separately, in multiples of its scale
_LEAST_MARGIN = 1.0 + 2.0**-30


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorReleases:
    """The queries of a tensor mechanism, for the second moment and the core, and the post-processing of the answers.

    Parameters
    ----------
    problem : TensorProblem
        The public facts of the request.
    components : int
        The requested number K of components.
    point_factor : float
        For a mixture: the clip norm R divided by the root mean square norm of points. This norm is
        ``sqrt(m^2 + D s2)`` for means of norm m, so the factor determines m.
    score_factor : float
        For a mixture: the bound on the norm of a point's scores (coordinates along the leading eigenvectors), divided
        by the root mean square of this norm, ``sqrt(m^2 + K s2)``.
    """

    problem: TensorProblem
    components: int
    point_factor: float = field(default=POINT_FACTOR, metadata={"ge": 1})
    score_factor: float = field(default=SCORE_FACTOR, metadata={"ge": 1})

    def check(self) -> None:
        """Refuse invalid public facts, and factors below 1.

        Raises
        ------
        InvalidInput
            As for `check_tensor`. Also when a factor is below 1 or infinite.
        """
        check_tensor(self.problem, components=self.components)
        if not all(1 <= factor < math.inf for factor in (self.point_factor, self.score_factor)):
            raise InvalidInput(
                f"point_factor={self.point_factor} and score_factor={self.score_factor} must be at least 1 and finite, "
                "because smaller factors clip the components; 1.3 and 1.4 are usual."
            )

    def moment_query(self, *, bits: int) -> WordPairs | SecondMoment:
        """Return the query for the second moment: over pairs of words for topics, over clipped points for a mixture."""
        if self.problem.model == "topics":
            return WordPairs(**self._requested(bits), words_at_most=self._words_at_most)
        assert self.problem.clip_norm is not None
        return SecondMoment(**self._requested(bits), clip_norm=self.problem.clip_norm)

    def moment_bits(self, *, noise_multiplier: float) -> int:
        """Return the bits of the finest grid that the noise permits for the second moment.

        The std of the noise is ``noise_multiplier`` times the sensitivity.
        """
        coarse = self.moment_query(bits=1)
        return grid_bits(noise_std=noise_multiplier * coarse.sensitivity("l2"), degree=coarse.degree)

    def moment_std(self, *, noise_multiplier: float) -> float:
        """Return the std of the noise on the diagonal of the second moment, in the units of the moment."""
        query = self.moment_query(bits=1)
        return noise_multiplier * query.sensitivity("l2") * query.unit

    def core_bits(self, *, noise_multiplier: float) -> int:
        """Return the bits of the finest grid that the noise permits for the core, for any directions."""
        return grid_bits(noise_std=noise_multiplier * CORE_SENSITIVITY, degree=1)

    def space(self, matrix: Array, *, std: float) -> Eigenspace:
        """Return the eigenpairs of a released second moment that exceed the noise.

        The eigenvectors are rounded to the public grid.

        Parameters
        ----------
        matrix : array of shape (D, D)
            The released noisy second moment.
        std : float
            The std of the isotropic noise on the diagonal.
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
        """Return the query for the core: the third moment along the eigenvectors of a released second moment."""
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
        """Return the bound on the norm of a point's scores, which are its coordinates along the eigenvectors.

        The bound is at most the clip norm R, and at least the minimum that the query requires for the noise variance.
        """
        assert self.problem.clip_norm is not None
        assert space.noise_variance is not None
        kept, s2, clip_norm = len(space.values), space.noise_variance, self.problem.clip_norm
        means = max((clip_norm / self.point_factor) ** 2 - self.problem.n_features * s2, 0.0)
        usual = self.score_factor * math.sqrt(means + kept * s2)
        least = math.sqrt(s2 / min(0.5, 2.0 / (kept + 2)))
        return min(max(usual, least * _LEAST_MARGIN), clip_norm * _LEAST_MARGIN)

    def components_from(self, core: Array, space: Eigenspace) -> Components:
        """Compute the components of the model from a released core and the released eigenpairs."""
        return components_of(core, space, model=self.problem.model)

    def warnings(self, *, bits: int) -> tuple[str, ...]:
        """Return warnings about limits of the utility that follow from public facts."""
        problem, query = self.problem, self.moment_query(bits=bits)
        if isinstance(query, WordPairs):
            if query.largest_loss <= _GRID_LOSS:
                return ()
            return (
                f"rounding to the grid loses up to {query.largest_loss:.2g} of the word pairs of a document of "
                f"{query.words_at_most} words; count fewer words per document, or use a larger epsilon.",
            )
        if problem.noise_variance is not None or (problem.relation != "add_remove" and problem.records_declared):
            return ()
        return (
            f"the variance of the mixture's noise is estimated for {problem.records_at_most} records, and is too small "
            "if there are fewer records; declare the number of records, or noise_variance.",
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
    """Plan the releases of the second moment and of the core; ``noises`` holds the noise of each."""
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
    """Return ``space`` with its directions and noise variance replaced by those in the core's query.

    In a resumed release, these are the stored public inputs of the query.
    """
    assert isinstance(query, WordTriples | PointTriples)
    variance = float(np.sum(query.noise_variance)) if isinstance(query, PointTriples) else None
    return replace(space, directions=query.directions / 2.0**DIRECTION_BITS, noise_variance=variance)


def spread(noise: NoiseDistribution, order: int) -> float:
    """Return the diagonal std of isotropic noise with the same spectral norm as ``noise``.

    The std is divided by the noise multiplier.
    """
    if isinstance(noise, SymmetricRadial | CubeRadial):
        return noise.spread(order)
    return math.sqrt(2.0) if isinstance(noise, UpperTriangle) else 1.0


def _largest(noise: NoiseDistribution, order: int) -> float:
    """Return a bound on the noise's standard deviation, divided by the sensitivity.

    For noise whose norm is drawn separately, the bound has a margin for a large norm.
    """
    is_radial = isinstance(noise, SymmetricRadial | CubeRadial)
    return noise.noise_multiplier * (spread(noise, order) + (_FAR if is_radial else 0.0))


def checked_split(split: float) -> Fraction:
    """Return the setting ``split``, the second moment's share of the budget, as a fraction.

    Raises
    ------
    InvalidInput
        When the share is not strictly between 0 and 1, so that one of the two releases would get no budget.
    """
    if not 0 < split < 1:
        raise InvalidInput(f"split={split} must be in (0, 1), the share of the second moment; 0.5 is usual.")
    return Fraction(split)
