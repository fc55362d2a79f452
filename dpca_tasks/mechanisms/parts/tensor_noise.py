"""The expected noise of a tensor release that is planned, before its directions are known; from public facts alone."""

import math
from collections.abc import Callable
from dataclasses import dataclass

from dpca_tasks.accounting import events
from dpca_tasks.mechanisms.base import Plan
from dpca_tasks.mechanisms.parts.tensor_forecast import longest_row
from dpca_tasks.mechanisms.parts.tensor_releases import TensorReleases


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedNoise:
    """Stds on the diagonals: of the second moment, and of the core by the number of components and their overlap."""

    moment_std: float
    core_std: Callable[[int, float], float]


def lengths_of(releases: TensorReleases, *, declared: float | None) -> Callable[[int], float]:
    """Return the length of one of k components: declared, or the one that is assumed without a declaration.

    Topics are assumed to share the words evenly, and centres to lie as far out as the clip norm allows for.
    """
    problem = releases.problem
    if declared is not None:
        return lambda _: declared
    if problem.clip_norm is None:
        return lambda count: math.sqrt(count / problem.n_features)
    around = problem.n_features * (problem.noise_variance or 0.0)
    longest = math.sqrt(max((problem.clip_norm / releases.point_factor) ** 2 - around, 0.0))
    return lambda _: longest


def noise_of(plan: Plan, releases: TensorReleases, *, length: Callable[[int], float]) -> ExpectedNoise:
    """Return the noise that a plan adds to either release.

    Parameters
    ----------
    plan : Plan
        Of two steps: the second moment, and the core.
    releases : TensorReleases
        That are planned.
    length : callable
        As `lengths_of` returns it; the directions of topics are taken to have rows as long.
    """
    moment, core = (_multiplier(step) for step in events.steps(plan.event))
    order = releases.problem.n_features
    over = moment(order * (order + 1) // 2)
    if plan.printed:
        over *= math.sqrt(2.0)  # printed noise has one std on and off the diagonal

    def core_std(count: int, overlap: float) -> float:
        drawn = core(count * (count + 1) * (count + 2) // 6)
        return drawn * _core_sensitivity(releases, count, length=length(count), overlap=overlap)

    return ExpectedNoise(moment_std=releases.moment_std(noise_multiplier=over), core_std=core_std)


def _multiplier(step: events.Event) -> Callable[[int], float]:
    """Return the std of a coordinate over the sensitivity, of noise on so many coordinates."""
    if step["name"] == "gaussian":
        return lambda _: float(step["noise_multiplier"])
    return lambda coordinates: math.sqrt(coordinates + 1.0) / float(step["epsilon"])


def _core_sensitivity(releases: TensorReleases, count: int, *, length: float, overlap: float) -> float:
    """Return about the sensitivity of the core, in its units."""
    problem = releases.problem
    is_replaced = problem.relation == "replace_one"
    if problem.clip_norm is None:
        alone = longest_row(count, n_features=problem.n_features, length=length, overlap=overlap) ** 3
        return min(math.sqrt(2.0), 2.0 * alone) if is_replaced else alone
    variance = problem.noise_variance or 0.0
    usual = releases.score_factor * math.sqrt(length**2 + count * variance)
    square = min(problem.clip_norm, usual) ** 2
    largest = square**3 - 6.0 * variance * square**2 + (3 * count + 6) * variance**2 * square
    return math.sqrt(max(largest, 0.0)) * (2.0 if is_replaced else 1.0)
