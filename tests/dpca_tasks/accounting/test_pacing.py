"""A share of a budget is the largest that every run gets: all are admitted, and with the next float the last is not."""

import itertools
import math
from typing import Any

import pytest

from dpca_tasks.accounting import charges, pacing
from dpca_tasks.accounting.calibration import gaussian_noise_multiplier
from dpca_tasks.accounting.filters import PrivacyFilter, build_filter
from dpca_tasks.errors import InvalidInput

DELTA = 1e-6
GAUSSIAN = {"name": "gaussian", "noise_multiplier": 4.0}
PURE = {"name": "approximate", "epsilon": 0.3, "delta": 0.0}
KNOWN = {"name": "approximate", "epsilon": 0.2, "delta": 1e-8}
BEFORE = {"nothing": [], "gaussian": [GAUSSIAN], "pure": [PURE], "mixed": [PURE, GAUSSIAN, KNOWN, PURE]}
TERMS = {
    f"{kind}, {'set aside' if aside else 'none set aside'}": {"kind": kind, "failure_delta": aside}
    for kind, aside in (("gdp", 0.0), ("gdp", DELTA / 10), ("renyi", DELTA / 10))
}


def charged(rules: PrivacyFilter, before: list[dict[str, Any]]) -> charges.Charge:
    """Return the total after those events that are admitted."""
    total = rules.zero
    for event in before:
        after = charges.add(total, rules.charge_after(total, event, delta=DELTA))
        total = after if rules.admits(after) or event["name"] == "non_private" else total
    return total


def one_by_one(rules: PrivacyFilter, total: charges.Charge, *, epsilon: float, delta: float) -> int:
    """Count the runs as the ledger would admit them."""
    event = {"name": "gaussian", "noise_multiplier": gaussian_noise_multiplier(epsilon=epsilon, delta=delta)}
    for count in itertools.count():
        total = charges.add(total, rules.charge_after(total, event, delta=delta))
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
    each = pacing.largest_epsilon(rules, total, runs=runs, delta=delta)
    assert one_by_one(rules, total, epsilon=each, delta=delta) >= runs
    assert one_by_one(rules, total, epsilon=math.nextafter(each, math.inf), delta=delta) < runs
    assert pacing.admitted_runs(rules, total, epsilon=each, delta=delta) == runs
    after = pacing.total_after_runs(rules, total, runs=runs, epsilon=each, delta=delta)
    assert after is not None
    assert rules.admits(after)
    assert rules.remaining(after) < 0.02 * each


@pytest.mark.parametrize("kind", ["gdp", "renyi"])
@pytest.mark.parametrize("epsilon", [1e-6, 0.01, 0.7, 3.9, 4.1, 50.0])
def test_runs_that_fit_are_those_that_are_admitted_one_by_one(kind: str, epsilon: float) -> None:
    rules = build_filter(kind, epsilon=4.0, delta=DELTA)
    for before in ([], [PURE, GAUSSIAN]):
        total = charged(rules, before)
        count = pacing.admitted_runs(rules, total, epsilon=epsilon, delta=DELTA)
        if epsilon >= 0.1:
            assert count == one_by_one(rules, total, epsilon=epsilon, delta=DELTA)
        else:
            event = {"name": "gaussian", "noise_multiplier": gaussian_noise_multiplier(epsilon=epsilon, delta=DELTA)}
            charge = rules.charge(event, delta=DELTA)
            totals = [charges.add(total, tuple(runs * unit for unit in charge)) for runs in (count, count + 1)]
            assert [rules.admits(each) for each in totals] == [True, False]


def test_a_single_run_may_be_charged_by_itself_where_the_composition_is_dearer() -> None:
    """The Renyi filter admits a first Gaussian of the whole budget alone, which its orders would not."""
    rules = build_filter("renyi", epsilon=4.0, delta=DELTA)
    assert pacing.largest_epsilon(rules, rules.zero, runs=1, delta=DELTA) >= 4.0 * (1 - 1e-12)
    assert pacing.largest_epsilon(rules, rules.zero, runs=2, delta=DELTA) < 3.0


def test_one_run_gets_all_that_remains() -> None:
    for kind, before in itertools.product(("gdp", "renyi"), BEFORE.values()):
        rules = build_filter(kind, epsilon=4.0, delta=DELTA)
        total = charged(rules, before)
        each = pacing.largest_epsilon(rules, total, runs=1, delta=DELTA)
        assert rules.remaining(total) <= each <= rules.remaining(total) * (1 + 1e-6)


def test_nothing_left_and_more_runs_than_units_give_no_share() -> None:
    rules = build_filter("gdp", epsilon=4.0, delta=DELTA)
    voided = charged(rules, [{"name": "non_private"}])
    spent = charged(rules, [{"name": "approximate", "epsilon": 4.0, "delta": 0.0}])
    for total, runs in ((voided, 1), (spent, 1), (spent, 52), (rules.zero, 2**57)):
        assert pacing.largest_epsilon(rules, total, runs=runs, delta=DELTA) == 0.0
    assert pacing.admitted_runs(rules, voided, epsilon=0.1, delta=DELTA) == 0


@pytest.mark.parametrize(("runs", "delta"), [(0, DELTA), (-1, DELTA), (True, DELTA), (3, 0.0), (3, 1.0)])
def test_a_pace_outside_its_domain_is_refused(runs: int, delta: float) -> None:
    rules = build_filter("gdp", epsilon=4.0, delta=DELTA)
    with pytest.raises(InvalidInput):
        pacing.largest_epsilon(rules, rules.zero, runs=runs, delta=delta)
