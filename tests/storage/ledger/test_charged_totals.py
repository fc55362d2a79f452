"""The noted total of a budget is what its releases add up to, to the last unit, and nothing leaves one that is not."""

from dataclasses import replace

import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dpca_tasks.accounting import charges
from storage.database import tables
from storage.database.engine import transaction
from storage.errors import Corrupt, Refused
from storage.ledger import journal
from storage.ledger.budgets import Budget
from storage.ledger.charged_totals import ChargedTotal, is_charged, read_total
from storage.ledger.ledger import Ledger
from storage.workspace import Workspace
from tests.storage.releasing import POPULATION, TENTH, begin, gaussian, open_budget, reserve
from tests.storage.streaming import answer_tick, begin_tick, open_stream, register

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


def added_up(ledger: Ledger) -> charges.Charge:
    """Add up all charges with Python's integers, beside the ledger's own code."""
    budget = ledger.budget(POPULATION)
    with transaction(ledger.engine) as connection:
        rows = connection.execute(sa.select(tables.release.c.charge).where(is_charged(budget))).scalars().all()
    decoded = [charges.decode(bytes(row)) for row in rows]
    return tuple(map(sum, zip(budget.build_filter().zero, *decoded, strict=True)))


@pytest.mark.parametrize("kind", ["gdp", "renyi"])
def test_the_note_follows_every_step_of_a_release(ledger: Ledger, kind: str) -> None:
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


def test_a_stream_and_its_ticks_are_followed(sqlite_ledger: Ledger) -> None:
    ledger = sqlite_ledger
    open_budget(ledger, epsilon=4.0)
    register(ledger)
    open_stream(ledger)
    answer_tick(ledger, begin_tick(ledger))
    reserve(ledger)
    assert noted(ledger).charge == added_up(ledger)
    assert noted(ledger).releases == 3
    ledger.verify()


def test_a_missing_note_is_added_up_and_noted_anew(ledger: Ledger) -> None:
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
def test_a_note_that_was_edited_admits_nothing_and_is_found(ledger: Ledger, column: str) -> None:
    open_budget(ledger)
    begin(ledger)
    value = {"charge": "[0, 0, 0, 0]", "releases": 0}[column]
    with ledger.engine.begin() as connection:
        connection.execute(tables.charged_total.update().values({column: value}))
    with pytest.raises(Corrupt, match="the noted total of budget 'people' is not what the journal adds up to"):
        ledger.verify()
    entries = len(entries_of(ledger))
    for use in (
        lambda: reserve(ledger, "another"),
        lambda: ledger.statement(POPULATION),
        lambda: ledger.quote(POPULATION, TENTH, epsilon=0.1, delta=1e-9),
        lambda: ledger.runs_that_fit(POPULATION, epsilon=0.1, delta=1e-9),
    ):
        with pytest.raises(Corrupt, match="is not the total that the journal states"):
            use()
    assert len(entries_of(ledger)) == entries


def test_a_release_that_was_edited_away_admits_nothing(ledger: Ledger) -> None:
    open_budget(ledger)
    reserve(ledger, "first")
    with ledger.engine.begin() as connection:
        connection.exec_driver_sql("UPDATE release SET state = 'abandoned'")
    assert not has_note(ledger)
    with pytest.raises(Corrupt, match="is not the total that the journal states"):
        reserve(ledger, "second")


def entries_of(ledger: Ledger) -> list[str]:
    with transaction(ledger.engine) as connection:
        return list(connection.execute(sa.select(tables.event.c.name)).scalars())


def test_an_entry_that_states_no_total_admits_nothing(sqlite_ledger: Ledger) -> None:
    open_budget(sqlite_ledger)
    reserve(sqlite_ledger, "first")
    with sqlite_ledger.engine.begin() as connection:
        journal.append(connection, "release_abandoned", population=POPULATION)
    with pytest.raises(Corrupt, match="is not the total that the journal states"):
        reserve(sqlite_ledger, "second")


def test_units_that_this_version_does_not_know_are_refused(ledger: Ledger) -> None:
    open_budget(ledger)
    reserve(ledger)
    with ledger.engine.begin() as connection:
        connection.execute(tables.charged_total.update().values(accounting="other-1"))
    with pytest.raises(Refused, match="units of accounting 'other-1'"):
        reserve(ledger, "another")


def test_a_restored_ledger_is_charged_with_what_it_lacked(sqlite_ledger: Ledger) -> None:
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
        assert part == replace(whole, releases=shown, earlier=6 - len(shown))
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
        told = {"total": [9 * number for number in numbers], "releases": 9}
        journal.append(connection, "release_reserved", population=population, detail=told)
        assert read_total(connection, budget).charge == tuple(9 * number for number in numbers)
