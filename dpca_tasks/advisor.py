"""Ranking of mechanisms by expected captured variance and cost, from public facts alone.

The captured variance is the variance in the k components, divided by the variance in the best k directions. It is
computed for the spectrum that the user declares or, without a declaration, for the most favourable spectrum. No row is
read, and no privacy budget is charged.

>>> problem = Problem(n_features=123, clip_norm=1.0, records_at_most=32_561, spectrum="0.3,0.1,0.05")
>>> target = PrivacyTarget(epsilon=1.0, delta=1e-6)
>>> best, *_ = advise(problem, target, n_components=5, only=("analyze_gauss", "laplace"))
>>> best.mechanism.name, best.expects_noise, best.expected.captured[0] > 0.95
('analyze_gauss', False, True)
>>> [round(epsilon, 3) for epsilon in split_budget(target, releases=12)]
[0.264, 0.083]
"""

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from dpca_tasks.accounting.calibration import gaussian_epsilon, gaussian_noise_multiplier
from dpca_tasks.accounting.events import Relation, steps
from dpca_tasks.errors import DpcaError, InvalidInput
from dpca_tasks.forecast.expected_overlaps import (
    SMALL,
    Iterations,
    TruncatedRounds,
    draws_of,
    noisy_product,
    overlaps_of_averaged,
    overlaps_with_draws,
    overlaps_with_iterations,
    overlaps_with_matrix,
    overlaps_with_noised,
    overlaps_with_rounds,
    overlaps_with_small_matrix,
    overlaps_with_truncation,
)
from dpca_tasks.forecast.noise_forecast import Forecast, epsilon_needed, forecast_of, spectrum_shares
from dpca_tasks.mechanisms.base import Center, Mechanism, Plan, PrivacyTarget, Problem, Subspace
from dpca_tasks.mechanisms.eigenpairs import most_passes
from dpca_tasks.mechanisms.noise_level import least_visible
from dpca_tasks.mechanisms.noisy_products import is_halved, orthonormal, product_noise
from dpca_tasks.mechanisms.prior_releases import main_mechanism
from dpca_tasks.mechanisms.released_rounds import last_rounds, noises_of
from dpca_tasks.mechanisms.subspace import MECHANISMS
from dpca_tasks.noise.distributions import Gaussian

_RELATIONS: tuple[Relation, ...] = get_args(Relation)
_CENTERS: tuple[Center, ...] = get_args(Center)

type Vector = NDArray[np.float64]

RANDOM = 1.25
"""Components that are expected to capture at most this many times the variance of random directions count as noise."""
BARELY = 0.02
"""If no component can exceed the noise, a captured variance at most this much above random directions is noise too."""
GAINED = 0.7
"""Largest observed share of the missing variance that refinement recovered, on real and synthetic data."""
CERTAIN = 0.2
"""Widest interval whose midpoint is reported as the expected captured variance."""

_UNSEEN = 10.0  # if noise hides all components: largest gain of refinement over the (captured - random) variance

_SCORED = ("isometric", "upper_triangle")  # kinds of noise for which releases can be refined
_MUCH_MEMORY = 4e9
_SECONDS, _MINUTES = 1e11, 7e12  # operations in a minute and in an hour on one core
_ALIKE = 0.02  # expected captured variances that differ by less than this are ranked by cost


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """Expected captured variance of a release, as intervals.

    An interval covers the random variation between releases, and facts about the data that a spectrum does not state.
    If the release can be refined, the upper end includes the largest expected gain of refinement.

    Parameters
    ----------
    captured : (float, float)
        Variance in the k components, divided by the variance in the best k directions.
    beyond_first : (float, float)
        The same quotient after the first component is removed. For a single component it equals `captured`.
    random, random_beyond_first : float
        The values of `captured` and `beyond_first` for k random directions.
    mean : float
        The mean of `captured` without refinement, for the most favourable of the facts that a spectrum does not state.
    seen : bool
        Whether the first component can exceed the noise.
    """

    captured: tuple[float, float]
    beyond_first: tuple[float, float]
    random: float
    random_beyond_first: float
    mean: float
    seen: bool

    @property
    def is_noise(self) -> bool:
        """True if the components are expected to be no better than random directions."""
        barely = not self.seen and self.mean <= self.random + BARELY
        return barely or self.mean <= RANDOM * self.random

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
        Number of passes over the rows; fractional if a pass samples only a share of the rows.
    memory : float, bytes
        Memory of the coordinator in addition to the rows.
    time : {"seconds", "minutes", "hours"}
        Time of linear algebra at the coordinator in addition to the passes.
    """

    passes: float
    memory: float
    time: str

    def __str__(self) -> str:
        """Return the cost as a phrase for tables and logs."""
        return (
            f"{self.passes:.3g} passes over the rows, {self.memory / 1e6:,.0f} MB and {self.time} of additional linear "
            "algebra"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """A planned mechanism with its noise forecast, its expected captured variance and its cost."""

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
        """Return the least epsilon at which the k-th component can exceed the noise."""
        return epsilon_needed(self.mechanism, self.plan, strength=self.forecast.strength)


def advise(
    problem: Problem,
    target: PrivacyTarget,
    *,
    n_components: int,
    releases: int = 1,
    only: Iterable[str] | None = None,
) -> list[Advice]:
    """Rank mechanisms by expected captured variance, or by cost if the captured variances are about equal.

    Parameters
    ----------
    problem : Problem
        The public facts about the data, and the spectrum if the user declares one.
    target : PrivacyTarget
        The privacy guarantee of all releases together.
    n_components : int
        The number k of components.
    releases : int
        Number of releases of the same kind that share the target.
    only : iterable of str
        Names of the mechanisms to compare; by default all private mechanisms.

    Returns
    -------
    list of Advice, the best one first
        The mechanisms that accept the request.

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
    """Return the public facts of a request as a `Problem`, in units in which the clip norm is 1.

    Raises
    ------
    InvalidInput
        If the relation, the center or the spectrum is not valid.
    """
    related, centred = (one for one in _RELATIONS if one == relation), (one for one in _CENTERS if one == center)
    try:
        terms: tuple[Relation, Center] = (next(related), next(centred))
    except StopIteration:
        raise InvalidInput(
            f"relation={relation!r} must be one of {', '.join(_RELATIONS)}, and center={center!r} one of "
            f"{', '.join(_CENTERS)}; choose one of each."
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
    """Return the expected captured variance of a planned mechanism, for the declared spectrum.

    Without a declared spectrum, the most favourable one is assumed: equal variance in k directions and none elsewhere.
    """
    return _expected(main_mechanism(mechanism), plan)


def split_budget(target: PrivacyTarget, *, releases: int) -> tuple[float, float]:
    """Return two values of epsilon for each of several equal releases that together meet a privacy target.

    The first value is for Gaussian releases, which compose exactly: the squares of their GDP parameters mu add up. The
    second value is for all other releases, whose epsilon and delta add up.
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
    assert forecast is not None  # every plan of a private mechanism states a noise level
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
    passes = 0.0 if advice.expects_noise else advice.cost.passes  # if all results are noise, the least noisy is first
    if advice.plan.rounds > 1:
        passes = min(passes, 1.0)  # the user can choose rounds=1, which captures as much if more rounds gain nothing
    return heavy, -alike, passes, advice.forecast.level, advice.plan.mechanism


def _expected(mechanism: Any, plan: Plan) -> Expected:
    problem, count = plan.problem, mechanism.n_components
    order = problem.n_features
    shares = (
        spectrum_shares(problem.spectrum, n_features=order)
        if problem.spectrum
        else np.where(np.arange(order) < count, 1.0 / count, 0.0)
    )
    cases = _overlaps(mechanism, plan, problem.records_at_most * shares)
    refined = plan.moment_noise in _SCORED and plan.moment_formed
    seen = plan.level is not None and problem.records_at_most * float(shares[0]) >= plan.level
    kept = slice(1, None) if count > 1 else slice(None)
    intervals, randoms, means = [], [], []
    for part in (slice(None), kept):
        most = float(shares[:count][part].sum())
        random = min(count / order * float(shares[part].sum()) / most, 1.0) if most > 0.0 else 1.0
        found = [
            [min(max(float(draw[part] @ shares[part]) / most, 0.0), 1.0) if most > 0.0 else 1.0 for draw in draws]
            for draws in cases
        ]
        low, high = min(map(min, found)), max(map(max, found))
        mean = max(float(np.mean(each)) for each in found)
        if refined and mean > RANDOM * random:
            best = low + min(GAINED * (1.0 - low), _UNSEEN * max(mean - random, 0.0))
            high = max(high, mean + GAINED * (1.0 - mean) if seen else best)
        intervals.append((low, high))
        randoms.append(random)
        means.append(mean)
    return Expected(
        captured=intervals[0],
        beyond_first=intervals[1],
        random=randoms[0],
        random_beyond_first=randoms[1],
        mean=means[0],
        seen=seen,
    )


def _overlaps(mechanism: Any, plan: Plan, strengths: Vector) -> list[list[Vector]]:
    """Simulate how well the released directions of a planned mechanism match components of given strengths.

    A draw contains the overlap of the released subspace with each component. The result has several lists of draws if
    the overlaps depend on facts that a spectrum does not state, such as the number of features in a component.
    """
    count, problem = mechanism.n_components, plan.problem
    match plan.mechanism:
        case "exponential":
            assert plan.level is not None
            scale = 2.0 * plan.level / problem.n_features
            return [overlaps_with_draws(strengths, n_components=count, scale=scale)]
        case "noisy_power" | "dp_spca":
            return [overlaps_with_iterations(strengths, _iterations(mechanism, plan))]
        case "dp_vrpca":
            return [_with_corrections(mechanism, plan, strengths)]
        case "dps_pca":
            return _with_truncation(mechanism, plan, strengths)
        case "smooth_sensitivity" | "propose_test_release":
            gap = float(strengths[count - 1] - strengths[count])
            kept = mechanism.kept_lengths(plan, gap=gap)
            return [overlaps_with_noised(strengths, n_components=count, kept=each) for each in kept]
    if plan.rounds > 1:
        cases = last_rounds(problem, noises_of(plan.event), strengths, n_components=count)
        found = [overlaps_with_rounds(strengths, last, n_components=count) for last in cases]
        single = _overlaps(mechanism, dataclasses.replace(plan, rounds=1), strengths)
        # one round can be forecast better than several if the leading components are nearly equal
        is_better = _mean(single, strengths) > max(_mean([each], strengths) for each in found)
        return found + single if is_better else found
    std = plan.moment_std
    if std is None:  # the plan states only the noise level, from which the standard deviation follows
        assert plan.level is not None
        std = plan.level / least_visible(problem.n_features)
    wishart = plan.moment_noise == "wishart"
    if problem.n_features <= SMALL:
        return [overlaps_with_small_matrix(strengths, n_components=count, noise_std=std, wishart=wishart)]
    return [[overlaps_with_matrix(strengths, n_components=count, noise_std=std, wishart=wishart)]]


def _mean(cases: list[list[Vector]], strengths: Vector) -> float:
    """Return the mean variance that the subspaces of simulated releases capture."""
    return float(np.mean([[draw @ strengths for draw in draws] for draws in cases]))


def _iterations(mechanism: Any, plan: Plan) -> Iterations:
    problem, count = plan.problem, mechanism.n_components
    noise = Gaussian(noise_multiplier=plan.noise_multiplier)
    if plan.mechanism == "noisy_power":
        width = min(problem.n_features, count + mechanism.oversampling)
        std = product_noise(problem, noise, width=width, rate=1.0)
        return Iterations(n_components=count, steps=mechanism.iterations, noise_std=std, width=width)
    small = mechanism.form == "one_row"  # simulate fewer and larger batches with the same total noise
    rate, steps_in_all = (0.01, 100) if small else (mechanism.rate, mechanism.steps)
    std = product_noise(problem, noise, width=count, rate=rate, halved=is_halved(problem, rate=mechanism.rate))
    return Iterations(
        n_components=count,
        steps=steps_in_all,
        noise_std=std,
        width=count,
        step_size=mechanism.integrated_time / (steps_in_all * problem.records_at_most),
        sampled=(rate, problem.records_at_most),
    )


def _with_corrections(mechanism: Any, plan: Plan, strengths: Vector) -> list[Vector]:
    """Simulate the epochs of DP-VRPCA for components of given strengths, and return draws of the overlaps."""
    problem, count = plan.problem, mechanism.n_components
    halved = is_halved(problem, rate=mechanism.rate)
    stds = [
        product_noise(problem, noise, width=count, rate=rate, halved=halved)
        for noise, rate in zip(mechanism.noises(plan), (1.0, mechanism.rate), strict=True)
    ]
    sampled = (mechanism.rate, problem.records_at_most)

    def draw(rng: np.random.Generator) -> Vector:
        found = mechanism.iterates(
            orthonormal(rng.standard_normal((problem.n_features, count))),
            problem.records_at_most,
            full=lambda directions: noisy_product(strengths, directions, rng, noise_std=stds[0]),
            correction=lambda moved: noisy_product(strengths, moved, rng, noise_std=stds[1], sampled=sampled),
        )
        return overlaps_of_averaged([each.directions for each in found], count)

    return draws_of(draw, problem.n_features * count)


def _with_truncation(mechanism: Any, plan: Plan, strengths: Vector) -> list[list[Vector]]:
    """Return draws of the overlaps of DPS-PCA: first for components spread over all features, then for sparse ones."""
    problem, count = plan.problem, mechanism.n_components
    rows_kept = min(mechanism.rows_kept, problem.n_features)
    if mechanism.form == "one_round":
        assert plan.level is not None
        std = plan.level / least_visible(problem.n_features)
        spread = overlaps_with_matrix(strengths, n_components=count, noise_std=std) * (rows_kept / problem.n_features)
        few = np.zeros_like(strengths)
        few[:rows_kept] = overlaps_with_matrix(strengths[:rows_kept], n_components=count, noise_std=std)
        return [[spread], [few]]
    clip = mechanism.message_clip if problem.center == "none" else 1.0
    noise = Gaussian(noise_multiplier=plan.noise_multiplier)
    rounds = TruncatedRounds(
        n_components=count,
        iterations=mechanism.iterations,
        burn_in=mechanism.burn_in,
        rows_kept=rows_kept,
        noise_std=product_noise(problem, noise, width=count, rate=1.0, message_clip=clip),
        message_clip=clip,
        n_records=problem.records_at_most,
    )
    return [overlaps_with_truncation(strengths, rounds, spread=spread) for spread in (True, False)]


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
