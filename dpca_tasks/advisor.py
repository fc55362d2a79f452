"""Ranking of mechanisms by expected captured variance and cost, from public facts alone.

The captured variance is the variance in the k components over that of the best k directions. It is computed for the
declared spectrum or, without one, for the most favourable spectrum. No row is read and nothing is charged.

>>> problem = Problem(n_features=123, clip_norm=1.0, records_at_most=32_561, spectrum="0.3,0.1,0.05")
>>> target = PrivacyTarget(epsilon=1.0, delta=1e-6)
>>> best, *_ = advise(problem, target, n_components=5, only=("analyze_gauss", "laplace"))
>>> best.mechanism.name, best.expects_noise, best.expected.captured[0] > 0.95
('analyze_gauss', False, True)
>>> [round(epsilon, 3) for epsilon in split_budget(target, releases=12)]
[0.264, 0.083]
"""

import dataclasses
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from dpca_tasks.accounting.calibration import gaussian_epsilon, gaussian_noise_multiplier
from dpca_tasks.accounting.events import Relation, steps
from dpca_tasks.errors import DpcaError, InvalidInput
from dpca_tasks.forecast.expected_overlaps import (
    Iterations,
    overlaps_with_draws,
    overlaps_with_iterations,
    overlaps_with_matrix,
    overlaps_with_noised,
)
from dpca_tasks.forecast.noise_forecast import Forecast, epsilon_needed, forecast_of, spectrum_shares
from dpca_tasks.mechanisms.base import Center, Mechanism, Plan, PrivacyTarget, Problem, Subspace
from dpca_tasks.mechanisms.eigenpairs import most_passes
from dpca_tasks.mechanisms.noise_level import least_visible, product_edge
from dpca_tasks.mechanisms.noisy_products import is_halved, product_noise
from dpca_tasks.mechanisms.prior_releases import main_mechanism
from dpca_tasks.mechanisms.subspace import MECHANISMS
from dpca_tasks.noise.distributions import Gaussian

_RELATIONS: tuple[Relation, ...] = get_args(Relation)
_CENTERS: tuple[Center, ...] = get_args(Center)

type Vector = NDArray[np.float64]

RANDOM = 1.25
"""Components expected to capture at most this many times what random directions capture count as noise."""
BARELY = 0.02
"""Where no component can exceed the noise, captured variance within this margin of random directions is noise too."""
GAINED = 0.7
"""Largest observed share of the missing variance that refinement recovered, on real and synthetic data."""
CERTAIN = 0.2
"""Widest interval whose midpoint is reported as the expected captured variance."""

_UNSEEN = 10.0  # if no component can exceed the noise, refinement gains at most this many times the excess over random

_SCORED = ("isometric", "upper_triangle")  # kinds of noise under which refinements are scored
_MUCH_MEMORY = 4e9
_SECONDS, _MINUTES = 1e11, 7e12  # operations in a minute and in an hour on one core
_ALIKE = 0.02  # expected captured variances that differ by less than this are ranked by cost


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """Expected captured variance, as intervals.

    Where the release can be refined, the upper end includes the largest expected gain of refinement.

    Parameters
    ----------
    captured : (float, float)
        Share of the variance of the best k components.
    beyond_first : (float, float)
        The same share after the first component is removed. For one component it equals `captured`.
    random, random_beyond_first : float
        The same two shares for k random directions.
    """

    captured: tuple[float, float]
    beyond_first: tuple[float, float]
    random: float
    random_beyond_first: float
    seen: bool
    """Whether the first component can exceed the noise."""

    @property
    def is_noise(self) -> bool:
        """True if the components are expected to be no better than random directions."""
        barely = not self.seen and self.captured[0] <= self.random + BARELY
        return barely or self.captured[0] <= RANDOM * self.random

    @property
    def likely(self) -> float | None:
        """The midpoint of the interval if its width is at most `CERTAIN`, else None."""
        low, high = self.captured
        return (low + high) / 2.0 if high - low <= CERTAIN else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Costs of a mechanism other than privacy.

    Parameters
    ----------
    passes : float
        Number of passes over the rows.
    memory : float, bytes
        Memory of the coordinator in addition to the rows.
    time : {"seconds", "minutes", "hours"}
        Time of linear algebra at the coordinator in addition to the passes.
    """

    passes: float
    memory: float
    time: str

    def __str__(self) -> str:
        """State the cost in words."""
        return (
            f"{self.passes:.3g} passes over the rows, {self.memory / 1e6:,.0f} MB and {self.time} of linear algebra "
            "besides"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """A planned mechanism with its forecast, its expected captured variance and its cost."""

    mechanism: Any
    plan: Plan
    forecast: Forecast
    expected: Expected
    cost: Cost

    @property
    def expects_noise(self) -> bool:
        """True if the components are expected to be no better than random directions."""
        if self.forecast.problem.spectrum:
            return self.expected.is_noise
        return self.forecast.expects_noise

    def epsilon_needed(self) -> float | None:
        """Return the epsilon from which the k-th component can exceed the noise."""
        return epsilon_needed(self.mechanism, self.plan, strength=self.forecast.strength)


def advise(
    problem: Problem,
    target: PrivacyTarget,
    *,
    n_components: int,
    releases: int = 1,
    only: Iterable[str] | None = None,
) -> list[Advice]:
    """Rank mechanisms by expected captured variance, and by cost where that is about equal.

    Parameters
    ----------
    problem : Problem
        The public facts, with the spectrum if it is declared.
    target : PrivacyTarget
        The guarantee of all releases together.
    n_components : int
        The number k.
    releases : int
        Number of releases of the same kind that share the target.
    only : iterable of str
        Names of mechanisms; all private ones by default.

    Returns
    -------
    list of Advice, the best one first
        Mechanisms that refuse the request are left out.

    Raises
    ------
    InvalidInput
        If the declared spectrum is not valid.
    """
    if problem.spectrum:
        spectrum_shares(problem.spectrum, n_features=problem.n_features)
    found = []
    for name in MECHANISMS if only is None else only:
        mechanism = MECHANISMS[name](n_components=n_components)
        try:
            plan = _planned(mechanism, problem, target, releases)
        except DpcaError:
            continue
        found.append(_advice(mechanism, plan))
    return sorted(found, key=_rank)


def public_problem(
    *, records_at_most: int, n_features: int, relation: str, center: str = "none", spectrum: str = ""
) -> Problem:
    """Return the public facts of a request, with the clip norm of the rows as the unit.

    Raises
    ------
    InvalidInput
        If the relation or the center is not among its choices, or the spectrum is not valid.
    """
    related, centred = (one for one in _RELATIONS if one == relation), (one for one in _CENTERS if one == center)
    try:
        terms: tuple[Relation, Center] = (next(related), next(centred))
    except StopIteration:
        raise InvalidInput(
            f"relation={relation!r} and center={center!r} must be among {', '.join((*_RELATIONS, *_CENTERS))}; "
            "choose one of each."
        ) from None
    if spectrum:
        spectrum_shares(spectrum, n_features=n_features)
    return Problem(
        n_features=n_features,
        clip_norm=1.0,
        records_at_most=records_at_most,
        relation=terms[0],
        center=terms[1],
        spectrum=spectrum,
    )


def expect(mechanism: Mechanism[Subspace], plan: Plan) -> Expected:
    """Return the expected captured variance of a planned mechanism, for the declared or most favourable spectrum."""
    return _expected(main_mechanism(mechanism), plan)


def split_budget(target: PrivacyTarget, *, releases: int) -> tuple[float, float]:
    """Return the epsilon of each of several equal releases that share a target, for Gaussian and for other releases.

    Gaussian releases compose exactly: their squared mu add up. For other releases epsilon and delta add up.
    """
    others = target.epsilon / releases
    if target.delta == 0.0:
        return others, others
    noise = gaussian_noise_multiplier(epsilon=target.epsilon, delta=target.delta, releases=releases)
    return gaussian_epsilon(noise_multiplier=noise, delta=target.delta), others


def _planned(mechanism: Mechanism[Subspace], problem: Problem, target: PrivacyTarget, releases: int) -> Plan:
    if releases == 1:
        return mechanism.plan(problem, target)
    gaussian, others = split_budget(target, releases=releases)
    plan = mechanism.plan(problem, dataclasses.replace(target, epsilon=others, delta=target.delta / releases))
    if target.delta == 0.0 or any(step["name"] != "gaussian" for step in steps(plan.event)):
        return plan
    return mechanism.plan(problem, dataclasses.replace(target, epsilon=gaussian))


def _advice(mechanism: Mechanism[Subspace], plan: Plan) -> Advice:
    forecast = forecast_of(plan, n_components=main_mechanism(mechanism).n_components)
    assert forecast is not None  # every private mechanism states a noise level
    return Advice(
        mechanism=mechanism,
        plan=plan,
        forecast=forecast,
        expected=expect(mechanism, plan),
        cost=cost_of(mechanism, plan),
    )


def _rank(advice: Advice) -> tuple[bool, int, float, float, str]:
    low, high = advice.expected.captured
    heavy = advice.cost.memory > _MUCH_MEMORY or advice.cost.time == "hours"
    alike = round((low + high) / 2.0 / _ALIKE)
    passes = 0.0 if advice.expects_noise else advice.cost.passes  # among useless ones, the least noisy is first
    return heavy, -alike, passes, advice.forecast.level, advice.plan.mechanism


def _expected(mechanism: Any, plan: Plan) -> Expected:
    problem, count = plan.problem, mechanism.n_components
    order = problem.n_features
    shares = (
        spectrum_shares(problem.spectrum, n_features=order)
        if problem.spectrum
        else np.where(np.arange(order) < count, 1.0 / count, 0.0)
    )
    overlaps = _overlaps(mechanism, plan, problem.records_at_most * shares)
    refined = plan.moment_noise in _SCORED and plan.moment_formed
    seen = plan.level is not None and problem.records_at_most * float(shares[0]) >= plan.level
    kept = slice(1, None) if count > 1 else slice(None)
    part_kept = min(getattr(mechanism, "rows_kept", order) / order, 1.0)  # share of even loadings in these rows
    intervals, randoms = [], []
    for part in (slice(None), kept):
        most = float(shares[:count][part].sum())
        random = min(count / order * float(shares[part].sum()) / most, 1.0) if most > 0.0 else 1.0
        low = min(max(float(overlaps[part] @ shares[part]) / most, 0.0), 1.0) if most > 0.0 else 1.0
        high, low = low, max(low * part_kept, min(low, random))
        gain = GAINED * (1.0 - low) if refined and low > RANDOM * random else high - low
        if refined and not seen:
            gain = min(gain, _UNSEEN * max(low - random, 0.0))
        intervals.append((low, low + gain))
        randoms.append(random)
    return Expected(
        captured=intervals[0], beyond_first=intervals[1], random=randoms[0], random_beyond_first=randoms[1], seen=seen
    )


def _overlaps(mechanism: Any, plan: Plan, strengths: Vector) -> Vector:
    """Return the overlaps of a planned mechanism's directions with components of given strengths."""
    count, problem = mechanism.n_components, plan.problem
    match plan.mechanism:
        case "exponential":
            assert plan.level is not None
            return overlaps_with_draws(strengths, n_components=count, scale=2.0 * plan.level / problem.n_features)
        case "noisy_power" | "dp_spca" | "dp_vrpca":
            return overlaps_with_iterations(strengths, _iterations(mechanism, plan))
        case "dps_pca" if mechanism.form == "rounds":
            assert plan.level is not None
            each = plan.level / product_edge(problem.n_features, count, std=1.0)
            run = Iterations(n_components=count, steps=mechanism.iterations, noise_std=each, width=count)
            return overlaps_with_iterations(strengths, run)
        case "smooth_sensitivity" | "propose_test_release":
            assert plan.level is not None
            gap = float(strengths[count - 1] - strengths[count])
            noise = plan.level / gap if gap > plan.level else math.inf
            return overlaps_with_noised(strengths, n_components=count, noise=noise)
    std = plan.moment_std
    if std is None:  # only the level of the noise is stated
        assert plan.level is not None
        std = plan.level / least_visible(problem.n_features)
    wishart = plan.moment_noise == "wishart"
    return overlaps_with_matrix(strengths, n_components=count, noise_std=std, wishart=wishart)


def _iterations(mechanism: Any, plan: Plan) -> Iterations:
    problem, count = plan.problem, mechanism.n_components
    noise = Gaussian(noise_multiplier=plan.noise_multiplier)
    if plan.mechanism == "noisy_power":
        width = min(problem.n_features, count + mechanism.oversampling)
        std = product_noise(problem, noise, width=width, rate=1.0)
        return Iterations(n_components=count, steps=mechanism.iterations, noise_std=std, width=width)
    rate, steps_in_all, kept_for = mechanism.rate, getattr(mechanism, "steps", 0), 1
    if plan.mechanism == "dp_vrpca":  # the steps of an epoch share the noise of its full product
        steps_in_all, kept_for = mechanism.epochs * mechanism.inner_steps, mechanism.inner_steps
        noise, rate = full_noise(mechanism, plan), 1.0
    elif mechanism.form == "one_row":
        rate, steps_in_all = 0.01, 100  # small batches with the same total noise
    halved = is_halved(problem, rate=mechanism.rate)
    std = product_noise(problem, noise, width=count, rate=rate, halved=halved)
    return Iterations(
        n_components=count,
        steps=steps_in_all,
        noise_std=std,
        width=count,
        step_size=mechanism.integrated_time / (steps_in_all * problem.records_at_most),
        kept_for=kept_for,
    )


def full_noise(mechanism: Any, plan: Plan) -> Gaussian:
    """Return the noise of the full products of an event that also contains sampled steps."""
    multiplier = max(_gaussian_multipliers(plan.event), default=plan.noise_multiplier)
    return Gaussian(noise_multiplier=multiplier)


def _gaussian_multipliers(event: Any) -> Iterator[float]:
    for step in steps(event):
        if step["name"] == "gaussian":
            yield float(step["noise_multiplier"])


def cost_of(mechanism: Any, plan: Plan) -> Cost:
    """Return the costs of a planned mechanism other than privacy."""
    inner, order = main_mechanism(mechanism), float(plan.problem.n_features)
    count = inner.n_components
    thin, square = 8.0 * order * (count + 8), 8.0 * order**2
    match plan.mechanism:
        case "exponential":
            return Cost(passes=1, memory=3 * square, time=_time(9.0 * count * order**3))
        case "noisy_power" | "dps_pca":
            return Cost(passes=inner.iterations, memory=2 * thin, time=_time(order * count**2 * inner.iterations))
        case "dp_spca":
            passes = 1.0 if inner.form == "one_row" else inner.rate * inner.steps
            return Cost(passes=passes, memory=64 * thin, time=_time(4.0 * order * count**2 * inner.steps))
        case "dp_vrpca":
            in_all = inner.epochs * inner.inner_steps
            return Cost(
                passes=inner.epochs + inner.rate * in_all, memory=64 * thin, time=_time(8.0 * order * count**2 * in_all)
            )
        case "smooth_sensitivity" | "propose_test_release":
            return Cost(passes=inner.passes, memory=4 * thin, time=_time(order * (count + 8) ** 2 * inner.passes))
    if plan.moment_formed:
        rounds = plan.rounds
        return Cost(
            passes=rounds, memory=(2 + rounds) * square, time=_time(rounds * (2_000.0 * order**2 + 4.0 * order**3))
        )
    passes = most_passes(int(order), count + 8)
    return Cost(passes=passes, memory=4 * thin, time=_time(30.0 * order**2 * passes))


def _time(operations: float) -> str:
    return "seconds" if operations < _SECONDS else "minutes" if operations < _MINUTES else "hours"
