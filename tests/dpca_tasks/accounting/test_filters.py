"""Privacy filters: charges are sound against adaptive analysts, and budget shares and history are exact.

Filters charge enough for every event, admit whole budgets, and keep delta against adaptive analysts. A share of a
budget is the largest epsilon that all runs can get: all runs are admitted, and with the next larger float the last is
not. A budget's history reproduces the numbers stated at the time, in time linear in the number of releases.
"""

import functools
import itertools
import json
import math
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

import mpmath
import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, stats

from dpca_tasks.accounting import calibration, filters, prices
from dpca_tasks.accounting.calibration import UNITS, gaussian_noise_multiplier, laplace_noise_multiplier, largest_units
from dpca_tasks.accounting.events import parts_of
from dpca_tasks.accounting.filters import (
    DELTA_UNITS,
    ORDERS,
    GdpFilter,
    PrivacyFilter,
    RenyiFilter,
    build_filter,
    burn_down,
)
from dpca_tasks.accounting.prices import (
    MOST,
    RENYI_UNITS,
    Charge,
    add,
    dominating_units,
    encode,
    loss_epsilon,
    total_of,
)
from dpca_tasks.accounting.subsampled import sampled_gaussian_noise_multiplier
from dpca_tasks.errors import InvalidInput

KINDS = ("gdp", "renyi")
PURE = {"name": "approximate", "epsilon": 0.3, "delta": 0.0}
ROUGH = {"name": "approximate", "epsilon": 0.2, "delta": 1e-7}
LAPLACE = {"name": "laplace", "noise_multiplier": 4.0}


def gaussian(multiplier: float) -> dict[str, Any]:
    return {"name": "gaussian", "noise_multiplier": multiplier}


def sampled(rate: float, multiplier: float, count: int) -> dict[str, Any]:
    once = {"name": "poisson_sampled", "rate": rate, "event": gaussian(multiplier)}
    return {"name": "self_composed", "event": once, "count": count}


def spend(rules: PrivacyFilter, events: Sequence[Mapping[str, Any]], *, delta: float = 1e-6) -> tuple[int, ...]:
    total = rules.zero
    for event in events:
        total = add(total, rules.charge(event, delta=delta))
    return total


@pytest.mark.parametrize("delta", [1e-9, 1e-6, 1e-3, 0.2])
@pytest.mark.parametrize("epsilon", [1e-3, 0.1, 0.5, 1.0, 3.0, 10.0, 50.0])
@pytest.mark.parametrize("releases", [1, 7])
def test_one_request_may_use_up_the_complete_budget(epsilon: float, delta: float, releases: int) -> None:
    rules = build_filter("gdp", epsilon=epsilon, delta=delta)
    assert rules.remaining(rules.zero) == epsilon
    multiplier = gaussian_noise_multiplier(epsilon=epsilon, delta=delta, releases=releases)
    event = {"name": "self_composed", "event": gaussian(multiplier), "count": releases}
    total = rules.charge(event, delta=delta)
    assert rules.admits(total)
    assert epsilon * (1 - 1e-9) < rules.spent(total) <= epsilon
    assert rules.remaining(total) < 1e-3 * epsilon
    assert not rules.admits(add(total, rules.charge(gaussian(multiplier * 1e3), delta=delta)))


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=25)
@given(
    epsilon=st.floats(0.5, 20),
    delta=st.sampled_from([1e-8, 1e-5, 1e-3]),
    part=st.floats(0.05, 0.9),
    pure=st.booleans(),
)
def test_a_request_for_the_remaining_budget_fits_and_one_percent_more_does_not(
    kind: str, *, epsilon: float, delta: float, part: float, pure: bool
) -> None:
    rules = build_filter(kind, epsilon=epsilon, delta=delta)
    begun = spend(rules, [gaussian(1e6)], delta=delta)
    first = gaussian_noise_multiplier(epsilon=part * rules.remaining(begun), delta=delta)
    total = spend(rules, [gaussian(1e6), gaussian(first), *([{**PURE, "epsilon": 0.01 * epsilon}] if pure else [])])
    remaining = rules.remaining(total)
    assert 0 < remaining < epsilon

    def fits(requested: float) -> bool:
        event = gaussian(gaussian_noise_multiplier(epsilon=requested, delta=delta))
        return rules.admits(add(total, rules.charge(event, delta=delta)))

    assert fits(remaining)
    assert not fits(1.01 * remaining)


def pld_epsilon(events: Sequence[Mapping[str, Any]], delta: float) -> float:
    """Return a lower bound on epsilon by composing privacy loss distributions, rounded on a fine grid toward less loss.

    The result is cached, because the same events are evaluated for several filters and take a second.
    """
    return _pld_epsilon(json.dumps(events), delta)


@functools.cache
def _pld_epsilon(encoded: str, delta: float) -> float:
    events = json.loads(encoded)
    rounding = {"value_discretization_interval": 1e-4, "pessimistic_estimate": False}
    losses, sound = [], 1.0
    for parts in map(parts_of, events):
        for (rate, z), count in (*parts.sampled.items(), *(((1.0, z), n) for z, n in parts.gaussians.items())):
            once = privacy_loss_distribution.from_gaussian_mechanism(z, sampling_prob=rate, **rounding)
            losses.append(once.self_compose(count))
        for (epsilon, failure), count in parts.approximate.items():
            once = privacy_loss_distribution.from_randomized_response(2 / (1 + math.exp(epsilon)), 2, **rounding)
            losses.append(once.self_compose(count))
            sound *= (1 - failure) ** count
    composed = functools.reduce(lambda left, right: left.compose(right), losses)
    return float(composed.get_epsilon_for_delta(1 - (1 - delta) / sound))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "events",
    [
        [gaussian(10.0)],
        [PURE, gaussian(5.0)],
        [PURE, LAPLACE, PURE],
        [sampled(0.01, 1.0, 200)],
        [PURE, gaussian(8.0), sampled(0.01, 1.5, 100)],
        [gaussian(6.0), sampled(0.001, 0.9, 500), LAPLACE, ROUGH, sampled(0.1, 6.0, 20)],
    ],
    ids=["gaussian", "pure-gaussian", "pure", "sampled", "pure-gaussian-sampled", "all"],
)
def test_composed_epsilon_is_never_below_that_of_loss_distributions(kind: str, events: list[dict[str, Any]]) -> None:
    delta = 1e-5
    rules = build_filter(kind, epsilon=50.0, delta=delta, failure_delta=delta / 2)
    total = spend(rules, events, delta=1e-6)
    assert rules.admits(total)
    assert rules.spent(total) >= pld_epsilon(events, delta)


def test_the_gaussian_filter_is_exact_and_the_renyi_filter_close() -> None:
    events: list[Mapping[str, Any]] = [gaussian(20.0)] * 10
    exact = pld_epsilon(events, 1e-6)
    gdp, renyi = (build_filter(kind, epsilon=9.0, delta=1e-6) for kind in KINDS)
    assert gdp.spent(spend(gdp, events)) == pytest.approx(exact, rel=2e-3)
    assert exact < renyi.spent(spend(renyi, events)) < 1.4 * exact


@given(st.floats(1e-9, 200))
def test_the_dominating_gaussian_has_the_privacy_of_randomised_response(epsilon: float) -> None:
    units = dominating_units(epsilon)
    with mpmath.workdps(120):
        mu = mpmath.sqrt(mpmath.mpf(units) / UNITS)
        shown = 1 / (1 + mpmath.exp(mpmath.mpf(epsilon)))
        assert mpmath.ncdf(-mu / 2) <= shown
        if epsilon <= 40:
            assert mpmath.ncdf(-mpmath.sqrt(mpmath.mpf(max(units - 2, 0)) / UNITS) / 2) > shown


@pytest.mark.parametrize("epsilon", [0.05, 0.7, 3.0])
def test_the_dominating_gaussians_trade_off_is_below_that_of_every_pure_event(epsilon: float) -> None:
    mu = math.sqrt(dominating_units(epsilon) / UNITS)
    errors = np.linspace(0, 1, 10_001)
    gaussian_trade_off = stats.norm.cdf(stats.norm.isf(errors) - mu)
    pure = np.maximum.reduce([0 * errors, 1 - math.exp(epsilon) * errors, math.exp(-epsilon) * (1 - errors)])
    assert (gaussian_trade_off <= pure + 1e-12).all()


@pytest.mark.parametrize("epsilon", [1e-3, 0.5, 4.0])
def test_pure_events_have_the_divergence_of_randomised_response(epsilon: float) -> None:
    rules = RenyiFilter(epsilon=1.0, delta=1e-6)
    *_, failures = charge = rules.charge({**PURE, "epsilon": epsilon}, delta=1e-6)
    assert failures == 0
    keep, flip = (1 / (1 + mpmath.exp(sign * mpmath.mpf(epsilon))) for sign in (-1, 1))
    for order, charged in zip(ORDERS, charge[2:-1], strict=True):
        moment = sum(p * (p / q) ** (order - 1) for p, q in ((keep, flip), (flip, keep)))
        assert charged / RENYI_UNITS == pytest.approx(float(mpmath.log(moment) / (order - 1)), rel=1e-6, abs=3e-12)


def test_sampled_steps_cost_the_renyi_filter_no_delta() -> None:
    rules = build_filter("renyi", epsilon=2.0, delta=1e-5)
    total = rules.charge(sampled(0.01, 1.0, 100), delta=1e-6)
    assert rules.admits(total)
    assert rules.failures(total) == 0


@pytest.mark.parametrize("kind", KINDS)
def test_failure_delta_is_not_spent_unless_it_was_reserved(kind: str) -> None:
    rules = build_filter(kind, epsilon=5.0, delta=1e-5)
    assert not rules.admits(rules.charge(ROUGH, delta=1e-6))


@pytest.mark.parametrize("kind", KINDS)
def test_reserved_failure_delta_can_be_spent_completely(kind: str) -> None:
    rules = build_filter(kind, epsilon=5.0, delta=1e-5, failure_delta=3e-7)
    total = spend(rules, [ROUGH, ROUGH, {**ROUGH, "delta": 3e-7 - 2e-7}])
    assert rules.admits(total)
    assert rules.failures(total) == pytest.approx(3e-7)
    assert not rules.admits(add(total, rules.charge({**ROUGH, "delta": 1e-20}, delta=1e-6)))
    assert rules.admits(build_filter(kind, epsilon=5.0, delta=1e-5).zero) is True


def test_no_adaptive_choice_exceeds_delta() -> None:
    """Play an adaptive game that breaks a filter which lets the analyst divide delta after an answer.

    A Gaussian takes half of mu squared. After observing its privacy loss, the analyst chooses whichever gains more: one
    event that fails with all the remaining delta, or the rest of mu squared. If both were admitted, 1.9 delta would be
    reached.
    """
    epsilon, delta = 1.0, 1e-5

    def gain(loss: float, square: float) -> float:
        rest, mu = epsilon - loss, math.sqrt(square)
        return float(stats.norm.cdf(mu / 2 - rest / mu) - math.exp(rest) * stats.norm.cdf(-mu / 2 - rest / mu))

    whole = largest_units(epsilon, delta) / UNITS
    first = whole / 2
    left = delta - gain(0.0, first)

    def best(loss: float) -> float:
        gone = max(0.0, 1 - math.exp(epsilon - loss))
        density = stats.norm.pdf(loss, first / 2, math.sqrt(first))
        return float(density * max(gone + left * (1 - gone), gain(loss, whole - first)))

    reach = 9 * math.sqrt(first)
    lost, _ = integrate.quad(best, first / 2 - reach, first / 2 + reach, points=[epsilon], limit=500, epsabs=1e-12)
    assert lost > 1.8 * delta, "the game is worth playing"

    rules = GdpFilter(epsilon=epsilon, delta=delta)
    begun = rules.charge(gaussian(1 / math.sqrt(first)), delta=delta)
    rest = gaussian(math.nextafter(1 / math.sqrt(whole - first), math.inf))
    assert rules.admits(add(begun, rules.charge_after(begun, rest, delta=delta)))
    other = rules.charge_after(begun, {**PURE, "epsilon": 1e-9, "delta": left}, delta=delta)
    assert not rules.admits(add(begun, other))


OPENINGS: list[Mapping[str, Any]] = [PURE, LAPLACE, ROUGH, sampled(0.01, 1.5, 100)]


def play(rules: PrivacyFilter, events: Sequence[Mapping[str, Any]], *, delta: float) -> tuple[int, ...]:
    """Charge the events one after the other, as the ledger does; return the total charge."""
    total = rules.zero
    for event in events:
        total = add(total, rules.charge_after(total, event, delta=delta))
    return total


searched_multiplier = functools.cache(sampled_gaussian_noise_multiplier)
"""The cached search, whose result does not depend on the filter."""


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("epsilon", [0.1, 3.7])
@pytest.mark.parametrize("replaced", [False, True])
def test_a_new_budget_admits_any_single_release_that_uses_it_completely(
    kind: str, *, epsilon: float, replaced: bool
) -> None:
    delta = 1e-6
    rules = build_filter(kind, epsilon=epsilon, delta=delta, replaced=replaced)
    half = (epsilon / 2, delta / (1 + math.exp(epsilon / 2))) if replaced else (epsilon, delta)
    z = searched_multiplier(epsilon=half[0], delta=half[1], rate=0.05, steps=20)
    for event in (
        {**PURE, "epsilon": epsilon},
        {**PURE, "epsilon": epsilon, "delta": delta},
        {"name": "laplace", "noise_multiplier": laplace_noise_multiplier(epsilon=epsilon)},
        gaussian(gaussian_noise_multiplier(epsilon=epsilon, delta=delta)),
        sampled(0.05, z, 20),
    ):
        charge = rules.charge_after(rules.zero, event, delta=delta)
        assert rules.admits(charge), event
        assert rules.spent(charge) <= epsilon
        assert rules.spent(charge) >= epsilon * 0.99
        dearer = build_filter(kind, epsilon=epsilon * 0.98, delta=delta, replaced=replaced)
        assert not dearer.admits(dearer.charge_after(dearer.zero, event, delta=delta)), event


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("opening", [OPENINGS[:1], OPENINGS[1:3], OPENINGS], ids=len)
def test_charges_are_never_below_the_epsilon_of_composed_loss_distributions(
    kind: str, opening: list[Mapping[str, Any]]
) -> None:
    delta = 1e-5
    rules = build_filter(kind, epsilon=9.0, delta=delta, failure_delta=delta / 2)
    events = [*opening, gaussian(3.0), gaussian(7.0)]
    total = play(rules, events, delta=1e-6)
    assert rules.admits(total)
    assert rules.spent(total) >= pld_epsilon(events, delta)
    assert total[:2] == play(rules, opening, delta=1e-6)[:2], "what opened stays as it was charged"


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=10)
@given(st.permutations([*OPENINGS, gaussian(9.0), gaussian(12.0)]))
def test_no_standalone_charge_follows_a_composed_charge(kind: str, events: list[Mapping[str, Any]]) -> None:
    rules = build_filter(kind, epsilon=9.0, delta=1e-5, failure_delta=5e-6)
    total = rules.zero
    for event in events:
        charge = rules.charge_after(total, event, delta=1e-6)
        if any(total[2:]):
            assert charge == rules.charge(event, delta=1e-6)
        assert not (any(charge[:2]) and any(charge[2:]))
        total = add(total, charge)


def test_no_adaptive_choice_after_a_first_standalone_charge_exceeds_delta() -> None:
    """Play an adaptive game in which the analyst takes the best admitted event after a first answer.

    The first release is randomized response that fails with its delta and then reveals everything. After it, the
    analyst may take the whole composition or one standalone charge of the rest. The best choice differs between the
    answers.
    """
    epsilon, delta = 1.0, 1e-5
    own, failure = 0.3, 4e-6
    rules = GdpFilter(epsilon=epsilon, delta=delta)
    opened = rules.charge_after(rules.zero, {**PURE, "epsilon": own, "delta": failure}, delta=delta)
    left = rules.own_left(opened)
    assert left is not None
    assert left[0] + own <= epsilon
    assert left[1] + failure <= delta
    mu = math.sqrt(largest_units(*left) / UNITS)
    assert rules.admits(add(opened, rules.charge(gaussian(math.nextafter(1 / mu, math.inf)), delta=delta)))

    def gauss(rest: float) -> float:
        return float(stats.norm.cdf(mu / 2 - rest / mu) - math.exp(rest) * stats.norm.cdf(-mu / 2 - rest / mu))

    def alone(rest: float) -> float:
        true = 1 / (1 + math.exp(-left[0]))
        return left[1] + (1 - left[1]) * max(0.0, true - math.exp(rest) * (1 - true), 1 - math.exp(rest))

    true = 1 / (1 + math.exp(-own))
    best = [max(gauss(epsilon - loss), alone(epsilon - loss)) for loss in (own, -own)]
    lost = failure + (1 - failure) * (true * best[0] + (1 - true) * best[1])
    assert lost <= delta
    assert lost > 0.7 * delta, "the game is worth playing"


@given(st.lists(st.lists(st.integers(0, MOST), min_size=3, max_size=3), max_size=50))
def test_stored_charges_add_up_exactly(charges: list[list[int]]) -> None:
    stored = [encode(tuple(charge)) for charge in charges]
    exact = tuple(sum(column) for column in zip(*charges, strict=True)) if charges else (0, 0, 0)
    assert total_of(stored, zero=(0, 0, 0)) == exact


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "event",
    [
        gaussian(1e-12),
        {"name": "laplace", "noise_multiplier": 1e-9},
        {"name": "self_composed", "event": {**ROUGH, "delta": 0.9}, "count": 10**30},
    ],
    ids=["gaussian", "laplace", "many"],
)
def test_an_unbounded_event_has_a_charge_but_is_never_admitted(kind: str, event: dict[str, Any]) -> None:
    rules = build_filter(kind, epsilon=100.0, delta=0.9, failure_delta=0.5)
    charge = rules.charge(event, delta=1e-6)
    assert total_of([encode(charge)], zero=rules.zero) == charge
    assert not rules.admits(charge)
    assert not rules.admits(add(charge, charge))


@pytest.mark.parametrize("kind", KINDS)
def test_an_event_of_epsilon_zero_costs_only_its_delta(kind: str) -> None:
    rules = build_filter(kind, epsilon=1.0, delta=1e-5, failure_delta=1e-6)
    *curve, failures = rules.charge({**ROUGH, "epsilon": 0.0, "delta": 2.0**-20}, delta=1e-6)
    assert failures == DELTA_UNITS >> 20
    assert max(curve) <= 1


def test_charges_of_sampled_steps_with_small_epsilon_are_not_limited_by_a_grid() -> None:
    parts = parts_of(sampled(0.01, 4.0, 10))
    renyi = build_filter("renyi", epsilon=9.0, delta=1e-6)
    assert 0 < loss_epsilon(parts, delta=1e-6) < renyi.spent(renyi.charge(sampled(0.01, 4.0, 10), delta=1e-6))
    assert loss_epsilon(parts, delta=1e-6) == pytest.approx(pld_epsilon([sampled(0.01, 4.0, 10)], 1e-6), rel=0.1)


def test_an_unknown_filter_is_refused() -> None:
    with pytest.raises(InvalidInput, match="choose one of gdp, renyi"):
        build_filter("pld", epsilon=1.0, delta=1e-6)


DELTA = 1e-6
GAUSSIAN = {"name": "gaussian", "noise_multiplier": 4.0}
KNOWN = {"name": "approximate", "epsilon": 0.2, "delta": 1e-8}
BEFORE = {
    "nothing": [],
    "gaussian": [GAUSSIAN],
    "pure": [PURE],
    "mixed": [PURE, GAUSSIAN, KNOWN, PURE],
}
TERMS = {
    f"{kind}, {'set aside' if aside else 'none set aside'}": {"kind": kind, "failure_delta": aside}
    for kind, aside in (("gdp", 0.0), ("gdp", DELTA / 10), ("renyi", DELTA / 10))
}


def charged(rules: PrivacyFilter, before: list[dict[str, Any]]) -> prices.Charge:
    """Return the total charge of a sequence of events, without those that the filter refuses."""
    total = rules.zero
    for event in before:
        after = prices.add(total, rules.charge_after(total, event, delta=DELTA))
        total = after if rules.admits(after) or event["name"] == "non_private" else total
    return total


def one_by_one(rules: PrivacyFilter, total: prices.Charge, *, epsilon: float, delta: float) -> int:
    """Return the number of equal Gaussian runs that the ledger would admit one after the other."""
    event = {"name": "gaussian", "noise_multiplier": gaussian_noise_multiplier(epsilon=epsilon, delta=delta)}
    for count in itertools.count():
        total = prices.add(total, rules.charge_after(total, event, delta=delta))
        if not rules.admits(total):
            return count
    raise AssertionError


@pytest.mark.parametrize("before", BEFORE.values(), ids=BEFORE)
@pytest.mark.parametrize("terms", TERMS.values(), ids=TERMS)
@pytest.mark.parametrize(("runs", "delta"), [(1, DELTA), (52, DELTA), (7, 1e-4)])
def test_every_run_gets_its_share_and_the_next_float_is_too_much(
    terms: dict[str, Any], before: list[dict[str, Any]], runs: int, delta: float
) -> None:
    rules = build_filter(**terms, epsilon=4.0, delta=DELTA)
    total = charged(rules, before)
    each = filters.largest_epsilon(rules, total, runs=runs, delta=delta)
    assert one_by_one(rules, total, epsilon=each, delta=delta) >= runs
    assert one_by_one(rules, total, epsilon=math.nextafter(each, math.inf), delta=delta) < runs
    assert filters.admitted_runs(rules, total, epsilon=each, delta=delta) == runs
    after = filters.total_after_runs(rules, total, runs=runs, epsilon=each, delta=delta)
    assert after is not None
    assert rules.admits(after)
    assert rules.remaining(after) < 0.02 * each


@pytest.mark.parametrize("kind", ["gdp", "renyi"])
@pytest.mark.parametrize("epsilon", [1e-6, 0.01, 0.7, 3.9, 4.1, 50.0])
def test_runs_that_fit_are_those_that_are_admitted_one_by_one(kind: str, epsilon: float) -> None:
    rules = build_filter(kind, epsilon=4.0, delta=DELTA)
    for before in ([], [PURE, GAUSSIAN]):
        total = charged(rules, before)
        count = filters.admitted_runs(rules, total, epsilon=epsilon, delta=DELTA)
        if epsilon >= 0.1:
            assert count == one_by_one(rules, total, epsilon=epsilon, delta=DELTA)
        else:
            event = {"name": "gaussian", "noise_multiplier": gaussian_noise_multiplier(epsilon=epsilon, delta=DELTA)}
            charge = rules.charge(event, delta=DELTA)
            totals = [prices.add(total, tuple(runs * unit for unit in charge)) for runs in (count, count + 1)]
            assert [rules.admits(each) for each in totals] == [True, False]


def test_a_single_run_has_a_standalone_charge_if_that_is_lower() -> None:
    """With the Renyi filter, a first Gaussian of the whole budget is admitted by its standalone charge.

    The charge by composition would be too large.
    """
    rules = build_filter("renyi", epsilon=4.0, delta=DELTA)
    assert filters.largest_epsilon(rules, rules.zero, runs=1, delta=DELTA) >= 4.0 * (1 - 1e-12)
    assert filters.largest_epsilon(rules, rules.zero, runs=2, delta=DELTA) < 3.0


def test_one_run_gets_the_complete_remaining_budget() -> None:
    for kind, before in itertools.product(("gdp", "renyi"), BEFORE.values()):
        rules = build_filter(kind, epsilon=4.0, delta=DELTA)
        total = charged(rules, before)
        each = filters.largest_epsilon(rules, total, runs=1, delta=DELTA)
        assert rules.remaining(total) <= each <= rules.remaining(total) * (1 + 1e-6)


def test_an_empty_budget_and_more_runs_than_units_give_no_share() -> None:
    rules = build_filter("gdp", epsilon=4.0, delta=DELTA)
    voided = charged(rules, [{"name": "non_private"}])
    spent = charged(rules, [{"name": "approximate", "epsilon": 4.0, "delta": 0.0}])
    for total, runs in ((voided, 1), (spent, 1), (spent, 52), (rules.zero, 2**57)):
        assert filters.largest_epsilon(rules, total, runs=runs, delta=DELTA) == 0.0
    assert filters.admitted_runs(rules, voided, epsilon=0.1, delta=DELTA) == 0


@pytest.mark.parametrize(("runs", "delta"), [(0, DELTA), (-1, DELTA), (True, DELTA), (3, 0.0), (3, 1.0)])
def test_a_number_of_runs_outside_its_domain_is_refused(runs: int, delta: float) -> None:
    rules = build_filter("gdp", epsilon=4.0, delta=DELTA)
    with pytest.raises(InvalidInput):
        filters.largest_epsilon(rules, rules.zero, runs=runs, delta=delta)


BURN_DOWN_GAUSSIAN = {"name": "gaussian", "noise_multiplier": 30.0}
BURN_DOWN_PURE = {"name": "approximate", "epsilon": 0.01, "delta": 0.0}
BURN_DOWN_KNOWN = {"name": "approximate", "epsilon": 0.02, "delta": 1e-9}
TINY = {"name": "gaussian", "noise_multiplier": 1e7}
HUGE = {"name": "gaussian", "noise_multiplier": 0.05}

BURN_DOWN_TERMS: dict[str, dict[str, Any]] = {
    "gdp": {"kind": "gdp", "epsilon": 3.0, "delta": 1e-6},
    "gdp, with failures": {"kind": "gdp", "epsilon": 3.0, "delta": 1e-6, "failure_delta": 1e-7},
    "gdp, generous": {"kind": "gdp", "epsilon": 900.0, "delta": 1e-5, "failure_delta": 1e-6},
    "renyi": {"kind": "renyi", "epsilon": 5.0, "delta": 1e-6, "failure_delta": 1e-7},
}
COURSES = {
    "gaussians": [BURN_DOWN_GAUSSIAN] * 12,
    "opened by pure ones": [
        BURN_DOWN_PURE,
        BURN_DOWN_PURE,
        BURN_DOWN_KNOWN,
        BURN_DOWN_GAUSSIAN,
        BURN_DOWN_GAUSSIAN,
        BURN_DOWN_PURE,
        BURN_DOWN_KNOWN,
        BURN_DOWN_GAUSSIAN,
    ],
    "sizes from nothing to all": [TINY, TINY, BURN_DOWN_GAUSSIAN, HUGE, BURN_DOWN_GAUSSIAN],
}


def totals_of(rules: PrivacyFilter, course: list[dict[str, Any]]) -> list[Charge]:
    totals = [rules.zero]
    for event in course:
        totals.append(prices.add(totals[-1], rules.charge_after(totals[-1], event, delta=1e-9)))
    return totals[1:]


@pytest.mark.parametrize("course", COURSES.values(), ids=COURSES)
@pytest.mark.parametrize("terms", BURN_DOWN_TERMS.values(), ids=BURN_DOWN_TERMS)
def test_recomputed_totals_equal_the_totals_stated_at_the_time_or_slightly_exceed_them(
    terms: dict[str, Any], course: list[dict[str, Any]]
) -> None:
    rules = build_filter(**terms)
    totals = totals_of(rules, course)
    found = burn_down(rules, totals)
    exact = [(rules.spent(total), rules.remaining(total)) for total in totals]
    assert found[-1] == exact[-1]
    for (spent, remaining), (least, most) in zip(found, exact, strict=True):
        assert least <= spent <= least + 2e-11 * (1 + least)
        assert most - 2e-8 * (1 + most) <= remaining <= most
        assert f"{spent:.6g}" == f"{least:.6g}"


def test_a_voided_budget_has_unbounded_spending_from_then_on() -> None:
    rules = build_filter("gdp", epsilon=3.0, delta=1e-6)
    before = totals_of(rules, [BURN_DOWN_GAUSSIAN] * 3)
    void = prices.add(before[-1], (0, 0, MOST, 0))
    assert burn_down(rules, [*before, void, void])[-2:] == [(math.inf, 0.0)] * 2


def test_a_budget_without_releases_has_spent_nothing() -> None:
    assert burn_down(build_filter("gdp", epsilon=3.0, delta=1e-6), []) == []


@pytest.mark.parametrize("releases", [20, 2_400])
def test_searches_with_fifty_digits_do_not_grow_with_the_number_of_releases(
    releases: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rules = build_filter("gdp", epsilon=50.0, delta=1e-6)
    charge = rules.charge({"name": "gaussian", "noise_multiplier": 310.0}, delta=1e-9)
    requested: list[int] = []
    is_private = calibration.is_private

    def counted(units: int, *, epsilon: float, delta: float) -> bool:
        requested.append(units)
        return is_private(units, epsilon=epsilon, delta=delta)

    monkeypatch.setattr(calibration, "is_private", counted)
    burn_down(rules, list(itertools.accumulate([charge] * releases, prices.add)))
    assert 0 < len(requested) < 200


@pytest.mark.parametrize("delta", [1e-12, 1e-6, 1e-2])
@pytest.mark.parametrize("mu", [1e-4, 0.03, 1.0, 9.0])
def test_floats_agree_with_fifty_digits(mu: float, delta: float) -> None:
    units = math.ceil(Fraction(mu) ** 2 * calibration.UNITS)
    exact = calibration.smallest_epsilon(units, delta)
    (found,) = calibration.float_epsilons(*(np.array([number]) for number in (units / calibration.UNITS, delta)))
    if exact == 0.0:
        assert math.isnan(found)
    else:
        assert found == pytest.approx(exact, rel=1e-9, abs=1e-11)


def test_a_stored_charge_is_read_as_it_was_written() -> None:
    charge = (1, 2**127 - 1, 0, 2**64)
    assert prices.decode(prices.encode(charge)) == charge
