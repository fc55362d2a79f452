"""Plan, release and eigenpairs of one noisy second moment, shared by several mechanisms.

With ``center=private`` a public constant c, in clip norms, is appended to each row. The second moment of the extended
rows contains the second moment, the sum and the count of the original rows. So one query answers all three, with
``1 + c^2`` times the sensitivity of the plain second moment. The centred moment is post-processing of the answer.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpca.moments import centred
from dpca_tasks.forecast.noise_forecast import forecast
from dpca_tasks.mechanisms.base import Plan, PrivacyTarget, Problem, Subspace, grid_warnings
from dpca_tasks.mechanisms.eigenpairs import spectrum_and_leading
from dpca_tasks.mechanisms.noise_level import least_visible, semicircle_edge, wishart_edge, wishart_visible
from dpca_tasks.noise.distributions import (
    NoiseDistribution,
    Symmetric,
    SymmetricLaplace,
    UpperTriangle,
    check_tail,
    grid_bits,
)
from dpca_tasks.noise.pure_matrices import WishartDifference
from dpca_tasks.privacy.curator import Curator
from dpca_tasks.queries.base import RowSum
from dpca_tasks.queries.second_moment import CONSTANT, CentredMoment, SecondMoment

UNSEEN = 2.0**-8
"""The tolerated numerical error of eigenvalues and of eigenvector residuals, relative to the noise's std."""
KEPT = 64  # the number of leading eigenpairs in a result: enough for plots, and for later results with another k


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Moment:
    """A released noisy second moment, in data units squared and not divided by the number of records.

    ``matrix`` is the moment around ``mean`` if a mean was released, else around the origin. ``released`` is the matrix
    before centring, and ``noise`` holds the public facts about its noise, both as in
    `dpca_tasks.mechanisms.base.Subspace`.
    """

    matrix: NDArray[np.float64]
    mean: NDArray[np.float64] | None = None
    released: NDArray[np.float64] | None = None
    noise: dict[str, Any] | None = None


def plan_moment(
    mechanism: str,
    problem: Problem,
    target: PrivacyTarget,
    noise: NoiseDistribution,
    *,
    n_components: int,
    spread: float = 1.0,
    printed: bool = False,
) -> Plan:
    """Plan one release of the second moment with a given noise, for a result of ``n_components`` directions.

    ``spread`` is the largest std of an entry of the noise matrix, divided by the scale of the noise.
    """
    coarse = moment_query(problem, bits=1)
    check_tail(noise, draws=coarse.layout.size, delta=target.delta)
    scale = noise.noise_multiplier * coarse.sensitivity(noise.norm)
    bits = grid_bits(noise_std=scale * spread, degree=coarse.degree)
    unit = coarse.unit / problem.clip_norm**2
    edge, visible = _edges(noise, problem, order=coarse.layout.order)
    level = scale * visible * unit
    return Plan(
        mechanism=mechanism,
        problem=problem,
        target=target,
        noise_multiplier=noise.noise_multiplier,
        bits=bits,
        event=noise.event,
        notes=(
            *forecast(problem, n_components=n_components, level=level).warnings(),
            *grid_warnings(problem, bits=bits),
        ),
        printed=printed,
        noise_edge=scale * edge * unit,
        moment_noise=moment_law(noise),
        moment_std=scale * off_diagonal(noise, coarse.layout.order) * unit,
        level=level,
    )


def _edges(noise: NoiseDistribution, problem: Problem, *, order: int) -> tuple[float, float]:
    """Return a bound that eigenvalues of a noise matrix rarely exceed, and the least visible strength of a signal.

    Both are divided by the scale of the noise.
    """
    if isinstance(noise, WishartDifference):
        return wishart_edge(order), wishart_visible(order)
    std = off_diagonal(noise, order)
    return semicircle_edge(problem.n_features, std=std), std * least_visible(problem.n_features)


def release_moment(curator: Curator, plan: Plan, noise: NoiseDistribution) -> Moment:
    """Release the planned noisy second moment, around a released mean if the problem is centred."""
    query = moment_query(plan.problem, bits=plan.bits)
    facts = noise_facts(query, noise, plan.problem)
    return moment_from(curator.release(query, noise), plan.problem, noise=facts)


def noise_facts(query: RowSum, law: NoiseDistribution, problem: Problem) -> dict[str, Any]:
    """Return the public facts about the noise of a released second moment, as in the ``noise`` of a `Moment`."""
    scale = law.noise_multiplier * query.sensitivity(law.norm) * query.unit
    std = scale * off_diagonal(law, query.layout.order)
    return measured_noise(problem, law=moment_law(law), std=std, step=query.unit / query.steps_per_unit)


def measured_noise(problem: Problem, *, law: str, std: float, step: float) -> dict[str, Any]:
    """Return the facts about a moment's noise as a mapping, with the keys of ``noise`` in a `Subspace`.

    ``std`` and ``step`` are in data units squared. The mapping adds the constant that was appended to the rows.
    """
    constant = None if problem.center == "none" else CONSTANT * problem.clip_norm
    return {"law": law, "std": std, "step": step, "constant": constant}


def moment_law(law: NoiseDistribution) -> str:
    """Return the name by which refinements identify the law of a symmetric noise matrix, such as "isometric"."""
    match law:
        case UpperTriangle():
            return "upper_triangle"
        case SymmetricLaplace():
            return "laplace"
        case WishartDifference():
            return "wishart"
    return "isometric"


def off_diagonal(law: NoiseDistribution, order: int) -> float:
    """Return the std of a noise matrix's entries off the diagonal, divided by the scale of the noise."""
    match law:
        case Symmetric():
            return law.off_diagonal
        case WishartDifference():
            return math.sqrt(2.0 * (order + 1.0))
    return math.sqrt(2.0)


def moment_from(answer: NDArray[np.float64], problem: Problem, *, noise: dict[str, Any] | None = None) -> Moment:
    """Convert the released answer of `moment_query` into a `Moment`, around the mean if the problem is centred.

    A refinement needs the uncentred answer and the facts about its noise. The moment contains both only if ``noise`` is
    given.
    """
    constant = None if problem.center == "none" else CONSTANT * problem.clip_norm
    return around_mean(answer, constant=constant, noise=noise)


def around_mean(answer: NDArray[np.float64], *, constant: float | None, noise: dict[str, Any] | None = None) -> Moment:
    """Convert a released second moment into a `Moment`, around the mean if ``constant`` was appended to the rows.

    The constant is in data units.
    """
    released = None if noise is None else answer
    if constant is None:
        return Moment(matrix=answer, released=released, noise=noise)
    matrix, mean = centred(answer[:-1, :-1], answer[:-1, -1] / constant, answer[-1, -1] / constant**2)
    return Moment(matrix=matrix, mean=mean, released=released, noise=noise)


def decompose(moment: Moment, *, n_components: int) -> Subspace:
    """Return the subspace of the ``n_components`` leading eigenvectors of a released second moment.

    At least `KEPT` eigenpairs are computed, if the matrix has as many. Eigenvectors after the first ``n_components``
    are in ``further``.
    """
    count = min(moment.matrix.shape[0], max(n_components, KEPT))
    harmless = 0.0 if moment.noise is None else UNSEEN * moment.noise["std"]
    values, rows = spectrum_and_leading(moment.matrix, count, within=harmless)
    total = float(np.trace(moment.matrix))
    return Subspace(
        components=rows[:n_components],
        eigenvalues=values[:n_components],
        spectrum=values[:count],
        further=rows[n_components:] if count > n_components else None,
        total_variance=total if total > 0 else None,
        mean=moment.mean,
        released=moment.released,
        noise=moment.noise,
        all_eigenvalues=values,
    )


def moment_query(problem: Problem, *, bits: int) -> SecondMoment | CentredMoment:
    """Return the query for the second moment of the records; with ``center=private``, also for mean and count."""
    kind = SecondMoment if problem.center == "none" else CentredMoment
    return kind(n_features=problem.n_features, clip_norm=problem.clip_norm, relation=problem.relation, bits=bits)
