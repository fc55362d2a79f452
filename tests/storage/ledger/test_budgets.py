"""Terms of budgets, their stored totals, and alerts.

Default terms of a budget are tested, what they exclude, and how a refusal states this. The stored total of a budget is
the exact sum of its releases; the charge of no other release is subtracted. Each level of a budget is alerted once per
population, by the charge that reaches it, under any number of concurrent charges.
"""

import re
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dpca.errors import BudgetExhausted, Conflict, Corrupt, Refused
from dpca.privacy_unit import PrivacyUnit
from dpca_tasks.accounting import prices
from dpca_tasks.accounting.calibration import gaussian_noise_multiplier
from dpca_tasks.accounting.events import gaussian as alerts_gaussian
from dpca_tasks.accounting.filters import build_filter, share_left
from storage.database import tables
from storage.database.engine import transaction
from storage.datasets.catalog import Catalog
from storage.ledger import journal
from storage.ledger.budgets import Budget, ChargedTotal, is_charged, read_total
from storage.ledger.ledger import Ledger
from storage.workspace import Workspace
from tests.storage.releasing import (
    DELTA,
    EPSILON,
    POPULATION,
    TENTH,
    answer_tick,
    begin,
    begin_tick,
    calibrated,
    event_names,
    gaussian,
    manifest,
    open_budget,
    open_stream,
    register,
    reserve,
)

TERMS: dict[str, Any] = {"epsilon": 4.0, "delta": DELTA}
SAMPLED = {
    "name": "self_composed",
    "count": 20,
    "event": {"name": "poisson_sampled", "rate": 0.01, "event": gaussian(1.2)},
}


def pure(epsilon: float, delta: float = 0.0) -> dict[str, Any]:
    return {"name": "approximate", "epsilon": epsilon, "delta": delta}


def call(ledger: Ledger, run_key: str, event: Mapping[str, Any], *, epsilon: float = 1.0, delta: float = 0.0) -> None:
    ledger.reserve(
        POPULATION,
        run_key=run_key,
        fingerprint="f",
        event=event,
        epsilon=epsilon,
        delta=delta,
        snapshot_id="s" * 32,
        request={},
    )


def test_a_tenth_of_delta_is_reserved_for_failures_by_default(ledger: Ledger) -> None:
    assert ledger.open_budget("usual", **TERMS).failure_delta == pytest.approx(DELTA / 10)
    assert ledger.open_budget("none", **TERMS, failure_delta=0.0).failure_delta == 0
    assert ledger.open_budget("half", **TERMS, failure_delta=DELTA / 2).failure_delta == DELTA / 2


@pytest.mark.parametrize("stands", [0.0, None, DELTA / 4])
def test_reopening_a_budget_without_terms_keeps_its_terms(ledger: Ledger, stands: float | None) -> None:
    """Open a budget again without all its terms: the original terms stay in force.

    So a nightly script written when the default was 0 continues.
    """
    first = ledger.open_budget(POPULATION, **TERMS, failure_delta=stands)
    assert ledger.open_budget(POPULATION, **TERMS) == first
    assert ledger.open_budget(POPULATION, **TERMS, failure_delta=first.failure_delta) == first
    for other in ({"failure_delta": DELTA / 3}, {"epsilon": 5.0}, {"delta": DELTA / 2}, {"delta": DELTA / 100}):
        with pytest.raises(Conflict, match="never change"):
            ledger.open_budget(POPULATION, **{**TERMS, **other})
    assert event_names(ledger).count("budget_opened") == 1


def test_the_default_failure_delta_costs_gaussians_less_than_one_percent() -> None:
    for epsilon in (0.1, 1.0, 4.0, 10.0):
        for delta in (1e-5, 1e-6, 1e-9):
            noise = [gaussian_noise_multiplier(epsilon=epsilon, delta=part * delta) for part in (1.0, 0.9)]
            assert 1 < noise[1] / noise[0] < 1.01


@pytest.mark.parametrize("event", [pure(0.5), pure(0.5, 1e-8), SAMPLED], ids=["pure", "approximate", "sampled"])
@pytest.mark.parametrize("filter_", ["gdp", "renyi"])
def test_default_terms_admit_every_kind_of_event_after_a_gaussian(
    sqlite_ledger: Ledger, event: Mapping[str, Any], filter_: str
) -> None:
    sqlite_ledger.open_budget(POPULATION, **TERMS, filter=filter_)
    reserve(sqlite_ledger, "first", event=calibrated(0.5))
    call(sqlite_ledger, "other", event, epsilon=0.5, delta=1e-8)
    reserve(sqlite_ledger, "last", event=calibrated(0.5))


def test_a_refused_pure_request_after_a_gaussian_states_cause_and_possible_requests(sqlite_ledger: Ledger) -> None:
    """A refused pure request after a Gaussian release: the message must state the reason and what still fits.

    An earlier message was "has epsilon 3.81729 left for one release, 1 at delta 0 was asked; ask for less".
    """
    sqlite_ledger.open_budget(POPULATION, **TERMS, failure_delta=0.0)
    reserve(sqlite_ledger, "first", event=calibrated(1.0))
    with pytest.raises(BudgetExhausted, match=r"epsilon 3\.81729 left for one Gaussian release; since the first") as no:
        call(sqlite_ledger, "pure", pure(1.0))
    text = str(no.value)
    assert (
        "charged as the Gaussian that dominates it: a request of epsilon 1 at delta 0 would take epsilon 6.2073" in text
    )
    most = float(re.search(r"--epsilon ([0-9.]+) and --delta 0 \(pure differential privacy\)\.", text)[1])  # type: ignore[index]
    with pytest.raises(BudgetExhausted):
        call(sqlite_ledger, "more", pure(1.001 * most))
    call(sqlite_ledger, "most", pure(most))


@pytest.mark.parametrize("filter_", ["gdp", "renyi"])
@pytest.mark.parametrize("failure_delta", [None, 0.0])
def test_a_request_that_a_refusal_states_as_possible_is_admitted(
    sqlite_ledger: Ledger, filter_: str, failure_delta: float | None
) -> None:
    """Request exactly what a refusal states as still possible: the ledger must admit it.

    An earlier message described a request for all of delta as non-private, and suggested to insist on it.
    """
    sqlite_ledger.open_budget(POPULATION, **TERMS, filter=filter_, failure_delta=failure_delta)
    reserve(sqlite_ledger, "first", event=calibrated(1.0))
    with pytest.raises(BudgetExhausted, match=r"its first Gaussian release.*; nothing was charged") as no:
        call(sqlite_ledger, "rough", pure(1.0, DELTA), delta=DELTA)
    epsilon, delta = re.search(r"--epsilon (\S+) and --delta (\S+?)(?:\.$| \()", str(no.value)).groups()  # type: ignore[union-attr]
    assert (float(delta) > 0) == (failure_delta is None)
    call(sqlite_ledger, "most", pure(float(epsilon), float(delta)), delta=float(delta))


def test_a_refused_gaussian_request_mentions_no_other_kind_of_request(sqlite_ledger: Ledger) -> None:
    sqlite_ledger.open_budget(POPULATION, **TERMS)
    reserve(sqlite_ledger, "first", event=calibrated(1.0))
    with pytest.raises(BudgetExhausted, match=r"left for one release, and 1 at delta 1e-06 was requested"):
        reserve(sqlite_ledger, "large", event=calibrated(3.9))


@pytest.mark.parametrize(
    ("declared", "delta", "refused"),
    [
        ((), 9e-6, False),
        ((), 1e-5, True),
        ((200,), 1e-3, False),
        ((200,), 5e-3, True),
        ((200, 5000), 1e-3, True),
        ((200, None), 1e-3, True),
        ((10**7,), 1e-6, True),
    ],
)
def test_the_delta_of_a_budget_must_be_below_one_over_the_records(
    ledger: Ledger, declared: tuple[int | None, ...], delta: float, *, refused: bool
) -> None:
    facts = {"population": POPULATION, "n_features": 3, "path": "p", "content_digest": "c", "created_at": "now"}
    with ledger.transaction() as connection:
        for number, bound in enumerate((*declared, 10**9)):
            row = {"id": str(number), "name": f"data {number}", "records_at_most": bound, **facts}
            others = {"population": "others"} if number == len(declared) else {}
            connection.execute(tables.snapshot.insert().values(**(row | others)))
    if refused:
        with pytest.raises(Refused, match=r"is not below 1/records_at_most=.*--allow-large-delta"):
            ledger.open_budget(POPULATION, epsilon=1.0, delta=delta)
        assert "budget_opened" not in event_names(ledger)
        ledger.open_budget(POPULATION, epsilon=1.0, delta=delta, allow_large_delta=True)
    # reopening a budget with unchanged terms needs no confirmation
    ledger.open_budget(POPULATION, epsilon=1.0, delta=delta)


def test_the_newest_bound_on_records_of_a_dataset_applies(ledger: Ledger) -> None:
    facts = {"population": POPULATION, "name": "data", "n_features": 3, "path": "p", "content_digest": "c"}
    with ledger.transaction() as connection:
        for seq, bound in enumerate((None, 200)):
            row = {"id": str(seq), "records_at_most": bound, "created_at": "now", "seq": seq, **facts}
            connection.execute(tables.snapshot.insert().values(**row))
    ledger.open_budget(POPULATION, epsilon=1.0, delta=1e-3)


UNITS = (
    PrivacyUnit(),
    *(PrivacyUnit(name="patient_id", rows=rows) for rows in (None, 1, 3, 4)),
    PrivacyUnit(name="visit_id", rows=3),
)


@pytest.mark.parametrize("relation", ["add_remove", "zero_out", "replace_one"])
@pytest.mark.parametrize("unit", UNITS, ids=str)
def test_only_snapshots_of_the_unit_are_charged(sqlite_ledger: Ledger, unit: PrivacyUnit, relation: str) -> None:
    named = None if unit == PrivacyUnit() else unit.name
    open_budget(sqlite_ledger, relation=relation, unit=named, rows_per_unit=unit.rows)
    assert sqlite_ledger.budget("people").privacy_unit == unit
    catalog = Catalog(sqlite_ledger.engine, sqlite_ledger.home)
    for number, found in enumerate(UNITS):
        kept = None if found == PrivacyUnit() else found.rows
        facts: dict[str, Any] = {"dataset": f"d{number}", "snapshot": f"{number}" * 32, "rows_digest": f"{number}"}
        own = replace(manifest(sqlite_ledger.id), privacy_unit=found.name, max_rows_per_unit=kept, **facts)
        assert catalog.register(own, path=f"datasets/d{number}").privacy_unit == found
        if unit.covers(found):
            assert reserve(sqlite_ledger, f"run {number}", snapshot_id=own.snapshot).is_new
            continue
        before = sqlite_ledger.statement("people")
        with pytest.raises(Refused, match="as the unit of privacy, and dataset 'd") as refused:
            reserve(sqlite_ledger, f"run {number}", snapshot_id=own.snapshot)
        assert str(unit) in str(refused.value)
        assert str(found) in str(refused.value)
        assert sqlite_ledger.statement("people") == before
    assert sqlite_ledger.verify() > 0


PURE = {"name": "approximate", "epsilon": 0.01, "delta": 0.0}
EVENTS = (TENTH, gaussian(40.0), gaussian(977.3), PURE, {**PURE, "delta": 1e-9})


def noted(ledger: Ledger) -> ChargedTotal:
    assert has_note(ledger)
    budget = ledger.budget(POPULATION)
    with transaction(ledger.engine) as connection:
        return read_total(connection, budget)


def has_note(ledger: Ledger) -> bool:
    with transaction(ledger.engine) as connection:
        return connection.execute(sa.select(tables.charged_total)).first() is not None


def added_up(ledger: Ledger) -> prices.Charge:
    """Sum all charges in Python's integers, independently of the ledger's code."""
    budget = ledger.budget(POPULATION)
    with transaction(ledger.engine) as connection:
        rows = connection.execute(sa.select(tables.release.c.charge).where(is_charged(budget))).scalars().all()
    decoded = [prices.decode(bytes(row)) for row in rows]
    return tuple(map(sum, zip(budget.build_filter().zero, *decoded, strict=True)))


@pytest.mark.parametrize("kind", ["gdp", "renyi"])
def test_the_stored_total_follows_every_step_of_a_release(ledger: Ledger, kind: str) -> None:
    open_budget(ledger, filter=kind, epsilon=4.0, failure_delta=1e-7)
    assert not has_note(ledger)
    for number, event in enumerate((*EVENTS, *EVENTS)):
        kept = reserve(ledger, f"kept {number}", event=event)
        given_up = reserve(ledger, f"given up {number}", event=gaussian(50.0))
        assert noted(ledger).charge == added_up(ledger)
        ledger.abandon(given_up.release_id)
        ledger.begin(kept.release_id)
        ledger.close(kept.release_id)
        total = noted(ledger)
        assert (total.charge, total.releases) == (added_up(ledger), 2 * (number + 1))
    ledger.verify()


def test_the_stored_total_follows_streams_and_ticks(sqlite_ledger: Ledger) -> None:
    ledger = sqlite_ledger
    open_budget(ledger, epsilon=4.0)
    register(ledger)
    open_stream(ledger)
    answer_tick(ledger, begin_tick(ledger))
    reserve(ledger)
    assert noted(ledger).charge == added_up(ledger)
    assert noted(ledger).releases == 3
    ledger.verify()


def test_a_missing_stored_total_is_recomputed_and_stored(ledger: Ledger) -> None:
    open_budget(ledger)
    reserve(ledger, "first")
    spent = ledger.statement(POPULATION).spent
    with ledger.engine.begin() as connection:
        connection.execute(tables.charged_total.delete())
    assert ledger.statement(POPULATION).spent == spent
    assert not has_note(ledger)
    reserve(ledger, "second")
    assert noted(ledger).charge == added_up(ledger)
    with ledger.engine.begin() as connection:
        connection.exec_driver_sql("UPDATE release SET updated_at = 'now'")
    assert has_note(ledger)


@pytest.mark.parametrize("column", ["charge", "releases"])
def test_an_edited_stored_total_admits_nothing_and_is_detected(ledger: Ledger, column: str) -> None:
    open_budget(ledger)
    begin(ledger)
    value = {"charge": "[0, 0, 0, 0]", "releases": 0}[column]
    with ledger.engine.begin() as connection:
        connection.execute(tables.charged_total.update().values({column: value}))
    with pytest.raises(Corrupt, match="the stored total of budget 'people' differs from the sum of the charges"):
        ledger.verify()
    entries = len(entries_of(ledger))
    for use in (
        lambda: reserve(ledger, "another"),
        lambda: ledger.statement(POPULATION),
        lambda: ledger.quote(POPULATION, TENTH, epsilon=0.1, delta=1e-9),
        lambda: ledger.runs_that_fit(POPULATION, epsilon=0.1, delta=1e-9),
    ):
        with pytest.raises(Corrupt, match="differ from the total in the journal"):
            use()
    assert len(entries_of(ledger)) == entries


def test_a_ledger_with_a_deleted_release_admits_nothing(ledger: Ledger) -> None:
    open_budget(ledger)
    reserve(ledger, "first")
    with ledger.engine.begin() as connection:
        connection.exec_driver_sql("UPDATE release SET state = 'abandoned'")
    assert not has_note(ledger)
    with pytest.raises(Corrupt, match="differ from the total in the journal"):
        reserve(ledger, "second")


def entries_of(ledger: Ledger) -> list[str]:
    with transaction(ledger.engine) as connection:
        return list(connection.execute(sa.select(tables.event.c.name)).scalars())


def test_a_journal_entry_without_a_total_admits_nothing(sqlite_ledger: Ledger) -> None:
    open_budget(sqlite_ledger)
    reserve(sqlite_ledger, "first")
    with sqlite_ledger.engine.begin() as connection:
        journal.append(connection, "release_abandoned", population=POPULATION)
    with pytest.raises(Corrupt, match="differ from the total in the journal"):
        reserve(sqlite_ledger, "second")


def test_charges_in_unknown_units_are_refused(ledger: Ledger) -> None:
    open_budget(ledger)
    reserve(ledger)
    with ledger.engine.begin() as connection:
        connection.execute(tables.charged_total.update().values(accounting="other-1"))
    with pytest.raises(Refused, match="units of accounting 'other-1'"):
        reserve(ledger, "another")


def test_a_restored_ledger_is_charged_for_lost_releases(sqlite_ledger: Ledger) -> None:
    open_budget(sqlite_ledger)
    for number in range(3):
        reserve(sqlite_ledger, f"run {number}")
    accepted = Workspace.open(accept_restored="a drill").ledger
    assert noted(accepted).charge == added_up(accepted)
    accepted.verify()


def test_the_newest_releases_are_stated_as_all_of_them_are(ledger: Ledger) -> None:
    open_budget(ledger)
    for number in range(6):
        reserve(ledger, f"run {number}")
    ledger.abandon(reserve(ledger, "run 4").release_id)
    whole, history = ledger.statement(POPULATION), ledger.history(POPULATION)
    assert (len(whole.releases), whole.earlier, len(history)) == (6, 0, 5)
    for newest in (0, 1, 2, 5, 6, 9):
        part = ledger.statement(POPULATION, newest=newest)
        shown = whole.releases[max(6 - newest, 0) :]
        actors = {row.id: whole.actors[row.id] for row in shown}
        assert part == replace(whole, releases=shown, earlier=6 - len(shown), actors=actors)
        assert ledger.history(POPULATION, newest=newest) == history[max(5 - newest, 0) :]


@given(numbers=st.lists(st.integers(0, 2**127), min_size=4, max_size=4))
@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_totals_of_any_size_are_read_back(sqlite_ledger: Ledger, numbers: list[int]) -> None:
    population = "many"
    sqlite_ledger.open_budget(population, epsilon=1.0, delta=1e-6)
    budget: Budget = sqlite_ledger.budget(population)
    row = {"population": population, "charge": str([9 * number for number in numbers]), "accounting": "gdp-2"}
    with transaction(sqlite_ledger.engine) as connection:
        connection.execute(tables.charged_total.delete())
        connection.execute(tables.charged_total.insert().values(**row, releases=9))
        reported = {"total": [9 * number for number in numbers], "releases": 9}
        journal.append(connection, "release_reserved", population=population, detail=reported)
        assert read_total(connection, budget).charge == tuple(9 * number for number in numbers)


def equal(releases: int) -> dict[str, object]:
    """Return the event of one of ``releases`` equal releases that use up the usual budget."""
    multiplier = gaussian_noise_multiplier(epsilon=EPSILON, delta=DELTA, releases=releases)
    return dict(alerts_gaussian((1 + 1e-12) * multiplier))


def levels(ledger: Ledger, *, releases: int, population: str = POPULATION) -> dict[int, tuple[int, ...]]:
    """Reserve equal releases; return the alert levels that each release reached, by its number."""
    found = {}
    for number in range(1, releases + 1):
        grant = reserve(ledger, f"{population} {number}", event=equal(releases), population=population)
        if reached := ledger.alerts(grant.release_id):
            found[number] = reached
    return found


@pytest.mark.parametrize("filter_", ["gdp", "renyi"])
def test_alerts_at_50_20_and_5_percent_are_sent_once_each(sqlite_ledger: Ledger, filter_: str) -> None:
    open_budget(sqlite_ledger, epsilon=EPSILON * (1.0 if filter_ == "gdp" else 1.5), filter=filter_)
    found = levels(sqlite_ledger, releases=20)
    assert [level for reached in found.values() for level in reached] == [50, 20, 5][: len(found)]
    if filter_ == "gdp":
        assert found == {10: (50,), 16: (20,), 19: (5,)}
    count = event_names(sqlite_ledger).count("budget_alerted")
    reserve(sqlite_ledger, f"{POPULATION} 20", event=equal(20))
    assert event_names(sqlite_ledger).count("budget_alerted") == count
    sqlite_ledger.verify()


def test_one_charge_may_reach_every_level_and_populations_are_separate(budget: Ledger) -> None:
    open_budget(budget, "others")
    grant = reserve(budget, "all", event=calibrated(EPSILON))
    assert budget.alerts(grant.release_id) == (50, 20, 5)
    assert budget.alerts(reserve(budget, "all", event=calibrated(EPSILON)).release_id) == (50, 20, 5)
    assert levels(budget, releases=4, population="others") == {2: (50,), 4: (20, 5)}
    assert event_names(budget).count("budget_alerted") == 6


def test_an_alert_level_is_not_sent_again_after_a_refunded_reservation(budget: Ledger) -> None:
    grant = reserve(budget, "first", event=calibrated(0.8 * EPSILON))
    assert budget.alerts(grant.release_id) == (50,)
    budget.abandon(grant.release_id)
    assert budget.alerts(reserve(budget, "again", event=calibrated(0.8 * EPSILON)).release_id) == ()


def test_concurrent_charges_reach_an_alert_level_once(budget: Ledger) -> None:
    def charge(number: int) -> tuple[int, ...]:
        return budget.alerts(reserve(budget, f"at once {number}", event=equal(20)).release_id)

    with ThreadPoolExecutor(max_workers=4) as pool:
        reached = [level for levels in pool.map(charge, range(20)) for level in levels]
    assert sorted(reached) == [5, 20, 50]


def test_the_remaining_percentage_is_0_for_voided_and_100_for_new_budgets() -> None:
    rules = build_filter("gdp", epsilon=EPSILON, delta=DELTA)
    assert share_left(rules, rules.zero) == 1.0
    assert share_left(rules, rules.charge_after(rules.zero, {"name": "non_private"}, delta=DELTA)) == 0.0


@pytest.mark.parametrize(("kind", "epsilon", "delta"), [("gdp", 1e-12, 1e-12), ("renyi", 1e-5, 1e-15)])
def test_without_admissible_gaussians_the_remaining_percentage_is_that_of_epsilon(
    kind: str, epsilon: float, delta: float
) -> None:
    rules = build_filter(kind, epsilon=epsilon, delta=delta)
    assert rules.units_left(rules.zero) <= 0
    assert share_left(rules, rules.zero) == 1.0
    pure = {"name": "approximate", "epsilon": 0.75 * epsilon, "delta": 0.0}
    assert share_left(rules, rules.charge_after(rules.zero, pure, delta=delta)) == pytest.approx(0.25)
