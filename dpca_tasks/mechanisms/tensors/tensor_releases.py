r"""The two releases of a tensor decomposition: a second moment, then the core of the third along its eigenvectors.

`TensorProblem` holds the public facts of a request for the components of a model.

The second query is made of the first answer and of public facts alone. Its directions are rounded to the public grid of
step ``2^-24`` and used as rounded from then on, so that nothing is lost but that they are orthonormal up to about
``2^-24 sqrt(D)``: an error of components of that size relative to their own, far below that of any noise.
"""

import math
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpca_tasks.accounting import events
from dpca_tasks.errors import InvalidInput
from dpca_tasks.layouts import Layout
from dpca_tasks.mechanisms.base import ComponentModel, Components, Plan, PrivacyTarget, Terms
from dpca_tasks.mechanisms.tensors.tensor_moments import (
    Eigenspace,
    components_of,
    eigenspace,
    mixture_eigenspace,
    moment_floor,
)
from dpca_tasks.noise.distributions import NoiseDistribution, UpperTriangle, check_tail
from dpca_tasks.noise.joint import grid_bits
from dpca_tasks.noise.radial_laplace import CubeRadial, SymmetricRadial
from dpca_tasks.privacy.curator import Curator
from dpca_tasks.queries.base import RowSum
from dpca_tasks.queries.point_triples import PointTriples
from dpca_tasks.queries.rounded_product import DIRECTION_BITS, on_direction_grid
from dpca_tasks.queries.second_moment import SecondMoment
from dpca_tasks.queries.words import WordPairs, WordTriples

LARGEST = 1 << 27
"""Coordinates of a second moment: they are held in memory, 8 bytes each."""
FEWEST_WORDS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorProblem(Terms):
    """The public facts of a request for the topics of documents or the means of a mixture.

    Parameters
    ----------
    n_features : int
        Declared columns D: words of a vocabulary, or coordinates of a point.
    model : {"topics", "mixture"}
        Whether a record is a document, all words of which are of one topic, or a point around one of the means, with
        noise of one variance in every coordinate.
    words_at_most : int, optional
        Of topics: the public bound on the words that are counted of a document.
    clip_norm : float, data units, optional
        Of a mixture: R, the bound on the norm of a point; longer ones are scaled down to it.
    noise_variance : float, squared data units, optional
        Of a mixture: s2, the variance of its noise, where it is publicly known; else it follows from the release.
    **others
        As for `Terms`. Of a mixture whose variance is not declared ``records_at_most`` is taken to be the number of
        records: what is left of the second moment is divided by it.
    """

    n_features: int
    model: ComponentModel
    words_at_most: int | None = None
    clip_norm: float | None = None
    noise_variance: float | None = None

    @property
    def unit(self) -> float:
        """The largest trace of one record's second moment: 1 of a document, ``R^2`` of a point."""
        return 1.0 if self.clip_norm is None else self.clip_norm**2


def check_tensor(problem: TensorProblem, *, components: int) -> None:
    """Refuse facts that are those of no model, and more components than there can be.

    Raises
    ------
    InvalidInput
        When a bound of the model is missing or out of its domain, or of the other model; when there are fewer
        components than one, or not fewer than features.
    """
    if not 1 <= components < problem.n_features:
        raise InvalidInput(
            f"components={components} must be at least 1 and below n_features={problem.n_features}; ask for fewer."
        )
    coordinates = problem.n_features * (problem.n_features + 1) // 2
    if coordinates > LARGEST:
        raise InvalidInput(
            f"the second moment of {problem.n_features} columns has {coordinates} coordinates, and {LARGEST} are held "
            "in memory; declare the columns that matter."
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
"""A bound on the sensitivity of a core in its unit, whatever its directions are, but for rounding."""
_GRID_LOSS = 0.01
_FAR = 16.0  # a draw of random length is hardly ever longer by as many multiples of its scale
_LEAST_MARGIN = 1.0 + 2.0**-30

type Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorReleases:
    """The queries of both releases, and what is made of their answers.

    Parameters
    ----------
    problem : TensorProblem
    components : int
        K.
    point_factor, score_factor : float
        Of a mixture. R over the root mean square of points, ``sqrt(m^2 + D s2)`` where means have norm m; and the bound
        of scores over theirs, ``sqrt(m^2 + K s2)``, in which m follows from the first.
    """

    problem: TensorProblem
    components: int
    point_factor: float = POINT_FACTOR
    score_factor: float = SCORE_FACTOR

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
                "shorter bounds clip what is sought; 1.3 and 1.4 are usual."
            )

    def moment_query(self, *, bits: int) -> WordPairs | SecondMoment:
        """Return the query of the second moment: of pairs of words, or of clipped points."""
        if self.problem.model == "topics":
            return WordPairs(**self._asked(bits), words_at_most=self._words_at_most)
        assert self.problem.clip_norm is not None
        return SecondMoment(**self._asked(bits), clip_norm=self.problem.clip_norm)

    def moment_bits(self, *, noise_multiplier: float) -> int:
        """Return the finest grid of the second moment that is safe under a noise, of std relative to sensitivity."""
        coarse = self.moment_query(bits=1)
        return grid_bits(noise_std=noise_multiplier * coarse.sensitivity("l2"), degree=coarse.degree)

    def moment_std(self, *, noise_multiplier: float) -> float:
        """Return the std of noise on the diagonal of the second moment, in its units."""
        query = self.moment_query(bits=1)
        return noise_multiplier * query.sensitivity("l2") * query.unit

    def core_bits(self, *, noise_multiplier: float) -> int:
        """Return the same grid of the core, for any directions."""
        return grid_bits(noise_std=noise_multiplier * CORE_SENSITIVITY, degree=1)

    def space(self, matrix: Array, *, std: float) -> Eigenspace:
        """Return the eigenpairs of a released second moment that stand above the noise, on the public grid.

        Parameters
        ----------
        matrix : array of shape (D, D)
        std : float
            Of the noise on its diagonal, in every direction alike.
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
            return WordTriples(**self._asked(bits), directions=directions, words_at_most=self._words_at_most)
        return PointTriples(
            **self._asked(bits),
            directions=directions,
            noise_variance=space.noise_variance,
            score_norm=self.score_norm(space),
        )

    def score_norm(self, space: Eigenspace) -> float:
        """Return the bound on scores of points: R at most, and as much as the query needs for its variance."""
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
        """Return what limits the utility, in public terms."""
        problem, query = self.problem, self.moment_query(bits=bits)
        if isinstance(query, WordPairs):
            if query.largest_loss <= _GRID_LOSS:
                return ()
            return (
                f"the grid takes up to {query.largest_loss:.2g} of the pairs of a document of {query.words_at_most} "
                "words; count fewer words of a document, or take a larger epsilon, which gives a finer grid.",
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

    def _asked(self, bits: int) -> dict[str, Any]:
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
    return releases.components_from(curator.release(query, core), asked_along(query, space))


def asked_along(query: RowSum, space: Eigenspace) -> Eigenspace:
    """Return an eigenspace with the directions, and the variance, that a core was asked with: perhaps stored ones."""
    assert isinstance(query, WordTriples | PointTriples)
    variance = float(np.sum(query.noise_variance)) if isinstance(query, PointTriples) else None
    return replace(space, directions=query.directions / 2.0**DIRECTION_BITS, noise_variance=variance)


def spread(noise: NoiseDistribution, order: int) -> float:
    """Return the std on the diagonal of isometric noise with the spectral norm of a noise, over its multiplier."""
    if isinstance(noise, SymmetricRadial | CubeRadial):
        return noise.spread(order)
    return math.sqrt(2.0) if isinstance(noise, UpperTriangle) else 1.0


def _largest(noise: NoiseDistribution, order: int) -> float:
    """Return the std of a noise over the sensitivity, and more where the length of a draw is random."""
    is_radial = isinstance(noise, SymmetricRadial | CubeRadial)
    return noise.noise_multiplier * (spread(noise, order) + (_FAR if is_radial else 0.0))


def checked_split(split: float) -> Fraction:
    """Return the share of the second moment.

    Raises
    ------
    InvalidInput
        When it leaves nothing to one of the two releases.
    """
    if not 0 < split < 1:
        raise InvalidInput(f"split={split} must be in (0, 1), the share of the second moment; 0.5 is usual.")
    return Fraction(split)
