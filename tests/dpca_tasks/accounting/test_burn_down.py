"""A budget's history says what its numbers of the day said, in time that grows with the releases alone."""

import itertools
import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from dpca_tasks.accounting import charges, gaussian
from dpca_tasks.accounting.burn_down import burn_down
from dpca_tasks.accounting.charges import Charge
from dpca_tasks.accounting.filters import PrivacyFilter, build_filter
from dpca_tasks.accounting.prices import MOST

GAUSSIAN = {"name": "gaussian", "noise_multiplier": 30.0}
PURE = {"name": "approximate", "epsilon": 0.01, "delta": 0.0}
KNOWN = {"name": "approximate", "epsilon": 0.02, "delta": 1e-9}
TINY = {"name": "gaussian", "noise_multiplier": 1e7}
HUGE = {"name": "gaussian", "noise_multiplier": 0.05}

TERMS: dict[str, dict[str, Any]] = {
    "gdp": {"kind": "gdp", "epsilon": 3.0, "delta": 1e-6},
    "gdp, with failures": {"kind": "gdp", "epsilon": 3.0, "delta": 1e-6, "failure_delta": 1e-7},
    "gdp, generous": {"kind": "gdp", "epsilon": 900.0, "delta": 1e-5, "failure_delta": 1e-6},
    "renyi": {"kind": "renyi", "epsilon": 5.0, "delta": 1e-6, "failure_delta": 1e-7},
}
COURSES = {
    "gaussians": [GAUSSIAN] * 12,
    "opened by pure ones": [PURE, PURE, KNOWN, GAUSSIAN, GAUSSIAN, PURE, KNOWN, GAUSSIAN],
    "sizes from nothing to all": [TINY, TINY, GAUSSIAN, HUGE, GAUSSIAN],
}


def totals_of(rules: PrivacyFilter, course: list[dict[str, Any]]) -> list[Charge]:
    totals = [rules.zero]
    for event in course:
        totals.append(charges.add(totals[-1], rules.charge_after(totals[-1], event, delta=1e-9)))
    return totals[1:]


@pytest.mark.parametrize("course", COURSES.values(), ids=COURSES)
@pytest.mark.parametrize("terms", TERMS.values(), ids=TERMS)
def test_numbers_are_those_of_the_day_or_on_the_safe_side_by_almost_nothing(
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


def test_a_voided_budget_has_spent_without_bound_from_then_on() -> None:
    rules = build_filter("gdp", epsilon=3.0, delta=1e-6)
    before = totals_of(rules, [GAUSSIAN] * 3)
    void = charges.add(before[-1], (0, 0, MOST, 0))
    assert burn_down(rules, [*before, void, void])[-2:] == [(math.inf, 0.0)] * 2


def test_nothing_was_spent_where_nothing_was_released() -> None:
    assert burn_down(build_filter("gdp", epsilon=3.0, delta=1e-6), []) == []


@pytest.mark.parametrize("releases", [20, 2_400])
def test_searches_with_fifty_digits_do_not_grow_with_the_number_of_releases(
    releases: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rules = build_filter("gdp", epsilon=50.0, delta=1e-6)
    charge = rules.charge({"name": "gaussian", "noise_multiplier": 310.0}, delta=1e-9)
    asked: list[int] = []
    is_private = gaussian.is_private

    def counted(units: int, *, epsilon: float, delta: float) -> bool:
        asked.append(units)
        return is_private(units, epsilon=epsilon, delta=delta)

    monkeypatch.setattr(gaussian, "is_private", counted)
    burn_down(rules, list(itertools.accumulate([charge] * releases, charges.add)))
    assert 0 < len(asked) < 200


@pytest.mark.parametrize("delta", [1e-12, 1e-6, 1e-2])
@pytest.mark.parametrize("mu", [1e-4, 0.03, 1.0, 9.0])
def test_floats_agree_with_fifty_digits(mu: float, delta: float) -> None:
    units = math.ceil(Fraction(mu) ** 2 * gaussian.UNITS)
    exact = gaussian.smallest_epsilon(units, delta)
    (found,) = gaussian.float_epsilons(*(np.array([number]) for number in (units / gaussian.UNITS, delta)))
    if exact == 0.0:
        assert math.isnan(found)
    else:
        assert found == pytest.approx(exact, rel=1e-9, abs=1e-11)


def test_a_stored_charge_is_read_as_it_was_written() -> None:
    charge = (1, 2**127 - 1, 0, 2**64)
    assert charges.decode(charges.encode(charge)) == charge
