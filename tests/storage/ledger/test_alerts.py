"""A level of a budget is alerted once a population, by the charge that reaches it, however many charge at once."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from dpca_tasks.accounting.calibration import gaussian_noise_multiplier
from dpca_tasks.accounting.events import gaussian
from dpca_tasks.accounting.filters import build_filter
from dpca_tasks.accounting.pacing import share_left
from storage.ledger.ledger import Ledger
from tests.storage.releasing import DELTA, EPSILON, POPULATION, calibrated, event_names, open_budget, reserve


def equal(releases: int) -> dict[str, object]:
    """Return the event of one of so many equal releases that use up the usual budget."""
    multiplier = gaussian_noise_multiplier(epsilon=EPSILON, delta=DELTA, releases=releases)
    return dict(gaussian((1 + 1e-12) * multiplier))


def levels(ledger: Ledger, *, releases: int, population: str = POPULATION) -> dict[int, tuple[int, ...]]:
    """Reserve so many equal releases; return the levels that each reached, by its number."""
    found = {}
    for number in range(1, releases + 1):
        grant = reserve(ledger, f"{population} {number}", event=equal(releases), population=population)
        if reached := ledger.alerts(grant.release_id):
            found[number] = reached
    return found


@pytest.mark.parametrize("filter_", ["gdp", "renyi"])
def test_half_a_fifth_and_a_twentieth_left_are_alerted_once_each(sqlite_ledger: Ledger, filter_: str) -> None:
    open_budget(sqlite_ledger, epsilon=EPSILON * (1.0 if filter_ == "gdp" else 1.5), filter=filter_)
    found = levels(sqlite_ledger, releases=20)
    assert [level for reached in found.values() for level in reached] == [50, 20, 5][: len(found)]
    if filter_ == "gdp":
        assert found == {10: (50,), 16: (20,), 19: (5,)}
    count = event_names(sqlite_ledger).count("budget_alerted")
    reserve(sqlite_ledger, f"{POPULATION} 20", event=equal(20))
    assert event_names(sqlite_ledger).count("budget_alerted") == count
    sqlite_ledger.verify()


def test_one_charge_may_reach_every_level_and_populations_are_apart(budget: Ledger) -> None:
    open_budget(budget, "others")
    grant = reserve(budget, "all", event=calibrated(EPSILON))
    assert budget.alerts(grant.release_id) == (50, 20, 5)
    assert budget.alerts(reserve(budget, "all", event=calibrated(EPSILON)).release_id) == (50, 20, 5)
    assert levels(budget, releases=4, population="others") == {2: (50,), 4: (20, 5)}
    assert event_names(budget).count("budget_alerted") == 6


def test_a_level_that_was_reached_stays_alerted_when_a_reservation_is_given_back(budget: Ledger) -> None:
    grant = reserve(budget, "first", event=calibrated(0.8 * EPSILON))
    assert budget.alerts(grant.release_id) == (50,)
    budget.abandon(grant.release_id)
    assert budget.alerts(reserve(budget, "again", event=calibrated(0.8 * EPSILON)).release_id) == ()


def test_charges_at_once_reach_a_level_once(budget: Ledger) -> None:
    def charge(number: int) -> tuple[int, ...]:
        return budget.alerts(reserve(budget, f"at once {number}", event=equal(20)).release_id)

    with ThreadPoolExecutor(max_workers=4) as pool:
        reached = [level for levels in pool.map(charge, range(20)) for level in levels]
    assert sorted(reached) == [5, 20, 50]


def test_nothing_is_left_of_a_voided_budget_and_all_of_a_fresh_one() -> None:
    rules = build_filter("gdp", epsilon=EPSILON, delta=DELTA)
    assert share_left(rules, rules.zero) == 1.0
    assert share_left(rules, rules.charge_after(rules.zero, {"name": "non_private"}, delta=DELTA)) == 0.0


@pytest.mark.parametrize(("kind", "epsilon", "delta"), [("gdp", 1e-12, 1e-12), ("renyi", 1e-5, 1e-15)])
def test_where_no_gaussian_release_is_admitted_what_is_left_is_left_of_epsilon(
    kind: str, epsilon: float, delta: float
) -> None:
    rules = build_filter(kind, epsilon=epsilon, delta=delta)
    assert rules.units_left(rules.zero) <= 0
    assert share_left(rules, rules.zero) == 1.0
    pure = {"name": "approximate", "epsilon": 0.75 * epsilon, "delta": 0.0}
    assert share_left(rules, rules.charge_after(rules.zero, pure, delta=delta)) == pytest.approx(0.25)
