"""Shared parts of mechanisms on one noised second moment: its plan, its release, and its eigenpairs.

With ``center=private`` the rows are extended by a public constant, and one query of ``1 + c^2`` times the sensitivity
gives second moment, mean and count at once; centring is post-processing of that answer.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dpca_tasks.mechanisms.base import Plan, PrivacyTarget, Problem, grid_warnings
from dpca_tasks.mechanisms.parts.eigenpairs import leading_eigenpairs
from dpca_tasks.mechanisms.parts.noise_level import level_warnings
from dpca_tasks.mechanisms.results import Subspace
from dpca_tasks.noise.distributions import NoiseDistribution, check_tail
from dpca_tasks.noise.grid import grid_bits
from dpca_tasks.privacy.curator import Curator
from dpca_tasks.queries.augmented_moment import CONSTANT, CentredMoment
from dpca_tasks.queries.second_moment import SecondMoment

KEPT = 64  # number of leading eigenpairs in a result: public, enough for plots and for other k


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Moment:
    """A released second moment, around the mean if there is one; in data units squared, not divided by n."""

    matrix: NDArray[np.float64]
    mean: NDArray[np.float64] | None = None


def plan_moment(
    mechanism: str,
    problem: Problem,
    target: PrivacyTarget,
    noise: NoiseDistribution,
    *,
    n_components: int,
    edge: float,
    spread: float = 1.0,
    real_epsilon: float | None = None,
) -> Plan:
    """Plan one release of the second moment with given noise, to keep its k leading directions.

    ``edge`` is the largest eigenvalue of the noise, and ``spread`` its largest std, both divided by its scale.
    """
    coarse = moment_query(problem, bits=1)
    check_tail(noise, draws=coarse.layout.size, delta=target.delta)
    scale = noise.noise_multiplier * coarse.sensitivity(noise.norm)
    bits = grid_bits(noise_std=scale * spread, degree=coarse.degree)
    level = scale * edge * coarse.unit / problem.clip_norm**2
    return Plan(
        mechanism=mechanism,
        problem=problem,
        target=target,
        noise_multiplier=noise.noise_multiplier,
        bits=bits,
        event=noise.event,
        warnings=level_warnings(problem, n_components=n_components, level=level) + grid_warnings(problem, bits=bits),
        real_epsilon=real_epsilon,
        noise_edge=level,
    )


def release_moment(curator: Curator, plan: Plan, noise: NoiseDistribution) -> Moment:
    """Release the planned second moment, centred if the problem is."""
    return moment_from(curator.release(moment_query(plan.problem, bits=plan.bits), noise), plan.problem)


def moment_from(answer: NDArray[np.float64], problem: Problem) -> Moment:
    """Convert the answer to `moment_query` to a moment, centred if the problem is."""
    if problem.center == "none":
        return Moment(matrix=answer)
    constant = CONSTANT * problem.clip_norm
    return centred(answer[:-1, :-1], answer[:-1, -1] / constant, answer[-1, -1] / constant**2)


def centred(matrix: NDArray[np.float64], total: NDArray[np.float64], count: float) -> Moment:
    """Subtract ``n mean mean^T`` from a second moment; a noisy count below 1 is replaced by 1."""
    mean = total / max(count, 1.0)
    return Moment(matrix=matrix - np.outer(total, mean), mean=mean)


def decompose(moment: Moment, *, n_components: int) -> Subspace:
    """Compute the leading eigenpairs of a released second moment: k or `KEPT`, whichever is larger."""
    count = min(moment.matrix.shape[0], max(n_components, KEPT))
    spectrum, rows = leading_eigenpairs(moment.matrix, count)
    total = float(np.trace(moment.matrix))
    return Subspace(
        components=rows[:n_components],
        eigenvalues=spectrum[:n_components],
        spectrum=spectrum,
        further=rows[n_components:] if count > n_components else None,
        total_variance=total if total > 0 else None,
        mean=moment.mean,
    )


def moment_query(problem: Problem, *, bits: int) -> SecondMoment | CentredMoment:
    """Return the second moment query of a problem, with the mean if it is centred."""
    kind = SecondMoment if problem.center == "none" else CentredMoment
    return kind(n_features=problem.n_features, clip_norm=problem.clip_norm, relation=problem.relation, bits=bits)
