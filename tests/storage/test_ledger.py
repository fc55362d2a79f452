"""Budgets are opened once, releases spend once, and nothing un-spends."""

import json
import os
import shutil
import stat
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from storage import database, filters, keys
from storage.errors import BudgetExhausted, Conflict, Corrupt, Invalid, NotFound, Refused, Unavailable
from storage.ledger import Ledger, Release
from storage.leftovers import ORPHAN_AFTER
from tests.storage.releasing import (
    ANSWER,
    DELTA,
    EPSILON,
    POPULATION,
    begin,
    calibrated,
    commit,
    event_names,
    gaussian,
    open_budget,
    reserve,
)

ROUGH = {"name": "approximate", "epsilon": 0.01, "delta": 1e-7}


@pytest.fixture
def budget(ledger: Ledger) -> Ledger:
    """Return a ledger with a budget for ten releases of the usual event."""
    open_budget(ledger)
    return ledger


@pytest.fixture
def sqlite_budget(sqlite_ledger: Ledger) -> Ledger:
    open_budget(sqlite_ledger)
    return sqlite_ledger


def key_names(ledger: Ledger) -> set[str]:
    return {path.name for path in (ledger.home / "keys").iterdir() if "witness" not in path.name}


def age(path: Path, seconds: float) -> None:
    then = time.time() - seconds
    os.utime(path, (then, then))


# Budgets


def test_a_budget_is_opened_once_and_its_terms_never_change(budget: Ledger) -> None:
    open_budget(budget)
    for terms in (
        {"epsilon": 2.0},
        {"delta": 1e-5},
        {"relation": "replace_one"},
        {"filter": "renyi"},
        {"failure_delta": 1e-7},
    ):
        with pytest.raises(Conflict, match="never change"):
            open_budget(budget, **terms)
    assert budget.budget(POPULATION).epsilon == EPSILON
    assert event_names(budget) == ["ledger_created", "budget_opened"]


@pytest.mark.parametrize(
    "terms",
    [
        *({"epsilon": value} for value in (0.0, -1.0, float("nan"), float("inf"), 101.0)),
        *({"delta": value} for value in (0.0, -1.0, 1.0, float("nan"))),
        *({"failure_delta": value} for value in (-1e-9, DELTA, float("nan"))),
        {"relation": "swap"},
        {"filter": "pld"},
        *({"population": value} for value in ("", "  ", "a\nb", "a\0b", "x" * 501)),
    ],
    ids=str,
)
def test_terms_outside_their_domain_are_refused(sqlite_ledger: Ledger, terms: dict[str, object]) -> None:
    with pytest.raises(Invalid):
        open_budget(sqlite_ledger, **terms)  # type: ignore[arg-type]
    assert event_names(sqlite_ledger) == ["ledger_created"]


def test_a_population_without_a_budget_cannot_spend(sqlite_ledger: Ledger) -> None:
    for ask in (sqlite_ledger.budget, sqlite_ledger.statement, sqlite_ledger.history):
        with pytest.raises(NotFound, match="dpca budget open"):
            ask("nobody")
    with pytest.raises(NotFound, match="dpca budget open"):
        reserve(sqlite_ledger)


def test_each_population_has_a_budget_of_its_own(budget: Ledger) -> None:
    open_budget(budget, "others", epsilon=2.0)
    reserve(budget, "a", event=calibrated(EPSILON))
    assert budget.statement("others").spent == 0
    assert budget.statement(POPULATION).spent == pytest.approx(EPSILON)


# Reserving


def test_ten_fit_and_an_eleventh_is_refused_without_a_trace(budget: Ledger) -> None:
    for number in range(10):
        reserve(budget, f"run {number}")
    before, kept = event_names(budget), key_names(budget)
    with pytest.raises(BudgetExhausted, match=r"left for one release, 1 at delta 1e-06 was asked"):
        reserve(budget, "one more")
    assert budget.find("one more") is None
    assert (event_names(budget), key_names(budget)) == (before, kept)
    statement = budget.statement(POPULATION)
    assert len(statement.releases) == 10
    assert statement.spent == pytest.approx(EPSILON, rel=1e-9)
    assert statement.remaining < 1e-3


def test_what_remains_can_be_asked_for_and_a_hundredth_more_cannot(budget: Ledger) -> None:
    reserve(budget, "a", event=calibrated(0.6))
    remaining = budget.statement(POPULATION).remaining
    more = budget.quote(POPULATION, calibrated(1.01 * remaining), epsilon=1.01 * remaining, delta=DELTA)
    assert str(more.refusal).startswith(f"budget {POPULATION!r} has epsilon {remaining:.6g} left")
    with pytest.raises(BudgetExhausted):
        reserve(budget, "b", event=calibrated(1.01 * remaining))
    quote = budget.quote(POPULATION, calibrated(remaining), epsilon=remaining, delta=DELTA)
    assert quote.refusal is None
    reserve(budget, "b", event=calibrated(remaining))
    assert budget.statement(POPULATION).spent == quote.spent


def test_the_same_run_key_is_the_same_release_in_every_state(budget: Ledger) -> None:
    first = reserve(budget)
    assert (first.is_new, first.state) == (True, "reserved")
    again = reserve(budget)
    assert (again.is_new, again.release_id) == (False, first.release_id)
    budget.begin(first.release_id)
    assert reserve(budget).state == "noising"
    commit(budget, first.release_id)
    assert reserve(Ledger.open()).state == "committed"
    assert len(budget.statement(POPULATION).releases) == 1


def test_a_run_key_stands_for_one_request_of_one_population(budget: Ledger) -> None:
    open_budget(budget, "others")
    reserve(budget)
    with pytest.raises(Conflict, match="stands for another request"):
        reserve(budget, fingerprint="g")
    with pytest.raises(Conflict, match="stands for another request"):
        reserve(budget, population="others")


@pytest.mark.parametrize("run_key", ["", " ", "a\0b", "a\nb", "x" * 501])
def test_a_run_key_is_a_name(sqlite_budget: Ledger, run_key: str) -> None:
    with pytest.raises(Invalid, match="run key"):
        reserve(sqlite_budget, run_key)


def test_a_key_that_was_drawn_before_is_refused(budget: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keys, "new_key", lambda: b"k" * 32)
    first = reserve(budget, "a")
    with pytest.raises(Conflict, match="a key serves one release"):
        reserve(budget, "b")
    assert [row.run_key for row in budget.statement(POPULATION).releases] == ["a"]
    assert budget.begin(first.release_id).key == b"k" * 32


def test_events_that_are_not_of_the_table_are_refused(sqlite_budget: Ledger) -> None:
    with pytest.raises(Invalid, match="ledger's table"):
        reserve(sqlite_budget, event={"name": "mystery"})


def test_sampled_steps_go_through_the_empty_record_under_replace_one(sqlite_ledger: Ledger) -> None:
    """Twice the epsilon of one record more or less, at less than half of the delta."""
    event = {"name": "poisson_sampled", "rate": 0.01, "event": gaussian(5.0)}
    spent = {}
    for relation in ("add_remove", "replace_one"):
        open_budget(sqlite_ledger, relation, relation=relation)
        reserve(sqlite_ledger, relation, event=event, population=relation, delta=DELTA / 2)
        spent[relation] = sqlite_ledger.statement(relation).spent
    assert spent["replace_one"] > 2 * spent["add_remove"]


def test_failures_take_only_what_was_set_aside_for_them(sqlite_ledger: Ledger) -> None:
    open_budget(sqlite_ledger)
    open_budget(sqlite_ledger, "careful", failure_delta=2e-7)
    for population in (POPULATION, "careful"):  # from here on, all is one composition
        reserve(sqlite_ledger, f"first of {population}", population=population)
    with pytest.raises(BudgetExhausted, match=r"failure_delta=0 aside .* 1e-07 was asked"):
        reserve(sqlite_ledger, event=ROUGH)
    for number in range(2):
        reserve(sqlite_ledger, f"run {number}", event=ROUGH, population="careful")
    with pytest.raises(BudgetExhausted, match=r"of which 2e-07 is taken and 1e-07 was asked"):
        reserve(sqlite_ledger, "run 2", event=ROUGH, population="careful")
    assert sqlite_ledger.statement("careful").remaining < EPSILON


def test_opening_releases_cost_what_they_are_and_say_what_they_leave(sqlite_budget: Ledger) -> None:
    pure = {"name": "approximate", "epsilon": 0.4, "delta": 0.0}
    reserve(sqlite_budget, "one", event=pure)
    assert sqlite_budget.statement(POPULATION).spent == 0.4
    assert sqlite_budget.statement(POPULATION).remaining == pytest.approx(0.6)
    with pytest.raises(BudgetExhausted, match=r"has epsilon 0\.6 and delta 1e-06 left .* 0\.7 at delta 0 was asked"):
        reserve(sqlite_budget, "two", event={**pure, "epsilon": 0.7})
    reserve(sqlite_budget, "three", event=calibrated(0.59))
    assert sqlite_budget.statement(POPULATION).spent == pytest.approx(0.99)
    with pytest.raises(BudgetExhausted):
        reserve(sqlite_budget, "four", event={**pure, "epsilon": 0.1})


def test_an_opening_release_is_given_back_only_until_the_composition_begins(sqlite_budget: Ledger) -> None:
    """Else whoever saw the composition's answer could choose between its bound and the release."""
    pure = {"name": "approximate", "epsilon": 0.4, "delta": 0.0}
    first, second = (reserve(sqlite_budget, name, event=pure) for name in ("one", "two"))
    sqlite_budget.abandon(first.release_id)
    assert sqlite_budget.statement(POPULATION).spent == 0.4
    reserve(sqlite_budget, "three", event=calibrated(0.3))
    with pytest.raises(Refused, match="can no longer be given back"):
        sqlite_budget.abandon(second.release_id)
    assert sqlite_budget.statement(POPULATION).spent == pytest.approx(0.7)


def test_a_release_without_privacy_is_refused_unless_insisted_on_and_then_voids_the_budget(budget: Ledger) -> None:
    terms: dict[str, Any] = {"fingerprint": "f", "epsilon": float("inf"), "delta": 0.0, "request": {}}
    terms["snapshot_id"] = "s" * 32
    event = {"name": "self_composed", "event": {"name": "non_private"}, "count": 1}
    reserve(budget, "before")
    with pytest.raises(BudgetExhausted, match="i-know-this-is-not-private"):
        budget.reserve(POPULATION, run_key="plain", event=event, **terms)
    assert budget.statement(POPULATION).spent < EPSILON
    with pytest.raises(BudgetExhausted, match="left for one release"):  # insisting opens no other door
        budget.reserve(POPULATION, run_key="dear", event=calibrated(2.0), void=True, **terms)
    for name in ("reference", "another"):
        granted = budget.reserve(POPULATION, run_key=name, event=event, void=True, **terms)
        assert budget.begin(granted.release_id).event == event
    statement = budget.statement(POPULATION)
    assert (statement.spent, statement.remaining) == (float("inf"), 0.0)
    assert event_names(budget).count("budget_voided") == 2
    with pytest.raises(BudgetExhausted, match="voided by a release without privacy"):
        reserve(budget, "after", event=gaussian(1e6))


def test_a_charge_of_older_accounting_is_computed_again(sqlite_budget: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as older:
        older.setattr(filters.GdpFilter, "accounting", "gdp-0")
        older.setattr(filters.GdpFilter, "charge", lambda *_, **__: (0, 0, 1, 0))
        reserve(sqlite_budget, "cheap", event=calibrated(0.8))
    statement = sqlite_budget.statement(POPULATION)
    assert statement.spent == pytest.approx(0.8)
    assert sqlite_budget.history(POPULATION)[0]["spent"] == statement.spent
    with pytest.raises(BudgetExhausted):
        reserve(sqlite_budget, "dear", event=calibrated(0.8))


@pytest.mark.parametrize("filter_", ["gdp", "renyi"])
def test_the_statement_and_the_history_tell_the_same(sqlite_ledger: Ledger, filter_: str) -> None:
    open_budget(sqlite_ledger, epsilon=5.0, filter=filter_)
    assert sqlite_ledger.statement(POPULATION).spent == 0
    assert sqlite_ledger.history(POPULATION) == []
    for number in range(3):
        reserve(sqlite_ledger, f"run {number}", event=gaussian(10.0))
    given_up = reserve(sqlite_ledger, "given up", event=gaussian(10.0))
    sqlite_ledger.abandon(given_up.release_id)
    history, statement = sqlite_ledger.history(POPULATION), sqlite_ledger.statement(POPULATION)
    assert [row["release"] for row in history] == [row.id for row in statement.releases if row.state == "reserved"]
    assert (history[-1]["spent"], history[-1]["remaining"]) == (statement.spent, statement.remaining)
    assert 0 < history[0]["spent"] < history[1]["spent"] < history[2]["spent"]
    assert history[0]["remaining"] > history[1]["remaining"] > history[2]["remaining"] > 0


# Beginning and ending


def test_a_release_goes_from_reservation_to_commit(budget: Ledger) -> None:
    begun = begin(budget)
    begun.keep(0, ANSWER)
    budget.begin(begun.release_id)
    commit(budget, begun.release_id)
    row = budget.release(begun.release_id)
    assert (row.state, row.artifact_digest) == ("committed", "d" * 64)
    assert row == budget.find("run") == budget.statement(POPULATION).releases[0]
    assert isinstance(row, Release)
    assert event_names(budget) == [
        "ledger_created",
        "budget_opened",
        "release_reserved",
        "release_begun",
        "step_kept",
        "release_resumed",
        "release_committed",
    ]
    assert budget.verify() == 7


ENDS: dict[str, Callable[[Ledger, str], None]] = {
    "abandoned": Ledger.abandon,
    "closed": Ledger.close,
    "committed": commit,
}


@pytest.mark.parametrize("state", ENDS)
def test_an_ended_release_never_begins_again(budget: Ledger, state: str) -> None:
    release_id = reserve(budget).release_id
    assert key_names(budget) == {release_id}
    if state != "abandoned":
        budget.begin(release_id).keep(0, ANSWER)
    for _ in range(2):
        ENDS[state](budget, release_id)
    assert reserve(budget).state == state
    assert key_names(budget) == set()
    assert not (budget.home / "staging" / release_id).exists()
    with pytest.raises(Refused, match=rf"is {state}; ask again under another --run-key"):
        budget.begin(release_id)
    for other in ENDS.keys() - {state}:
        with pytest.raises(Refused, match=f"is {state}"):
            ENDS[other](budget, release_id)


def test_abandoned_releases_cost_nothing_and_closed_ones_stay_charged(budget: Ledger) -> None:
    given_up = reserve(budget, "a", event=calibrated(EPSILON))
    budget.abandon(given_up.release_id)
    assert budget.statement(POPULATION).spent == 0
    begun = begin(budget, "b")
    spent = budget.statement(POPULATION).spent
    budget.close(begun.release_id)
    assert budget.statement(POPULATION).spent == spent > 0


def test_only_what_has_not_begun_is_abandoned_and_only_what_has_is_closed_or_committed(budget: Ledger) -> None:
    waiting, begun = reserve(budget, "waiting").release_id, begin(budget, "begun").release_id
    for end in (Ledger.close, commit):
        with pytest.raises(Refused, match="is reserved"):
            end(budget, waiting)
    with pytest.raises(Refused, match="is noising"):
        budget.abandon(begun)
    with pytest.raises(NotFound, match="not in this ledger"):
        budget.begin("nonesuch")


def test_a_commit_is_repeated_with_the_same_artifact_alone(budget: Ledger) -> None:
    begun, calls = begin(budget), []

    def record(connection: sa.Connection) -> int:
        calls.append(connection)
        return len(calls)

    for count in (1, 2):
        assert budget.commit(begun.release_id, artifact_digest="d", record=record) == count
    with pytest.raises(Corrupt, match="one release has one artifact"):
        budget.commit(begun.release_id, artifact_digest="e", record=record)
    assert len(calls) == 2
    assert event_names(budget).count("release_committed") == 1


def test_a_commit_whose_record_fails_did_not_happen(budget: Ledger) -> None:
    begun = begin(budget)

    def record(connection: sa.Connection) -> None:
        connection.execute(database.alias.insert().values(name="n", alias="a", version=1))
        raise Conflict("no")

    with pytest.raises(Conflict):
        budget.commit(begun.release_id, artifact_digest="d", record=record)
    assert reserve(budget).state == "noising"
    assert len(begun.key) == 32
    with budget.transaction() as connection:
        assert connection.execute(sa.select(database.alias)).all() == []


# Keys and what crashes leave


def test_a_key_is_private_and_appears_in_no_text(sqlite_budget: Ledger) -> None:
    begun = begin(sqlite_budget)
    folder = sqlite_budget.home / "keys"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE((folder / begun.release_id).stat().st_mode) == 0o600
    key = begun.key
    with sqlite_budget.transaction() as connection:
        stored = " ".join(
            str(row) for table in database.metadata.sorted_tables for row in connection.execute(table.select())
        )
    for text in (repr(begun), str(begun), stored):
        assert key.hex() not in text
        assert repr(key) not in text


def test_orphans_older_than_an_hour_go_and_all_else_stays(sqlite_budget: Ledger) -> None:
    live = begin(sqlite_budget)
    live.keep(0, ANSWER)
    keys_, staging = sqlite_budget.home / "keys", sqlite_budget.home / "staging"
    names = [f"{number:032x}" for number in range(2)]
    for name in names:
        (keys_ / name).write_bytes(b"k" * 32)
        (keys_ / f".{name}.tmp").write_bytes(b"k" * 16)
        (staging / name / "zarr").mkdir(parents=True)
    kept = [
        keys_ / "witness.json",
        keys_ / "notes of another program",
        keys_ / live.release_id,
        staging / live.release_id,
    ]
    kept[1].touch()
    old = [keys_ / names[0], keys_ / f".{names[0]}.tmp", staging / names[0]]
    young = [keys_ / names[1], keys_ / f".{names[1]}.tmp", staging / names[1]]
    for path in (*old, *kept):
        age(path, ORPHAN_AFTER + 60)
    for path in young:
        age(path, ORPHAN_AFTER - 60)
    Ledger.open()
    assert [path.exists() for path in (*old, *young, *kept)] == [False] * 3 + [True] * 7
    assert live.kept(0) is not None


def test_what_a_crash_left_of_an_ended_release_is_removed_at_once(sqlite_budget: Ledger) -> None:
    begun = begin(sqlite_budget)
    begun.keep(0, ANSWER)
    key = begun.key
    commit(sqlite_budget, begun.release_id)
    (sqlite_budget.home / "keys" / begun.release_id).write_bytes(key)
    (sqlite_budget.home / "staging" / begun.release_id).mkdir()
    Ledger.open()
    assert key_names(sqlite_budget) == set()
    assert not (sqlite_budget.home / "staging" / begun.release_id).exists()


def test_a_lost_key_is_named_and_a_kept_step_needs_none(sqlite_budget: Ledger) -> None:
    begun = begin(sqlite_budget)
    begun.keep(0, ANSWER)
    (sqlite_budget.home / "keys" / begun.release_id).unlink()
    resumed = Ledger.open().begin(begun.release_id)
    assert resumed.kept(0) is not None
    with pytest.raises(Unavailable, match="close the release"):
        _ = resumed.key


def test_a_key_folder_elsewhere_is_used(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DPCA_KEY_FOLDER", str(tmp_path / "elsewhere" / "keys"))
    ledger = Ledger.open()
    open_budget(ledger)
    release_id = reserve(ledger).release_id
    assert (tmp_path / "elsewhere" / "keys" / release_id).exists()
    assert not (home / "keys").exists()


# Restored and foreign ledgers


@pytest.fixture
def restored(sqlite_budget: Ledger) -> Ledger:
    """Return a ledger whose SQLite file was put back to before a release began and was answered."""
    waiting = reserve(sqlite_budget)
    file = sqlite_budget.home / "dpca.sqlite"
    shutil.copy(file, file.with_suffix(".copy"))
    sqlite_budget.begin(waiting.release_id).keep(0, ANSWER)
    file.with_suffix(".copy").rename(file)
    return sqlite_budget


def test_a_restored_ledger_is_refused_until_it_is_accepted(restored: Ledger) -> None:
    with pytest.raises(Refused, match="has un-spent"):
        Ledger.open()
    with pytest.raises(Refused, match="has un-spent"):
        restored.verify()
    accepted = Ledger.open(accept_restored="the disk died")
    assert event_names(accepted)[-1] == "ledger_accepted"
    with accepted.transaction() as connection:
        details = connection.exec_driver_sql("SELECT detail FROM event WHERE name = 'ledger_accepted'").scalars().all()
    (release,) = accepted.statement(POPULATION).releases
    assert [json.loads(detail) for detail in details] == [{"reason": "the disk died", "begun": [release.id]}]
    assert Ledger.open().verify() == len(event_names(accepted))


def test_what_may_have_begun_after_the_copy_cannot_be_abandoned(restored: Ledger) -> None:
    accepted = Ledger.open(accept_restored="the disk died")
    (release,) = accepted.statement(POPULATION).releases
    with pytest.raises(Refused, match="is noising"):
        accepted.abandon(release.id)
    accepted.begin(release.id).keep(0, ANSWER)


def test_a_step_that_was_answered_is_missed_in_a_restored_ledger(sqlite_budget: Ledger) -> None:
    begun = begin(sqlite_budget)
    file = sqlite_budget.home / "dpca.sqlite"
    shutil.copy(file, file.with_suffix(".copy"))
    begun.keep(0, ANSWER)
    file.with_suffix(".copy").rename(file)
    with pytest.raises(Refused, match="has un-spent"):
        Ledger.open()


def test_a_key_folder_of_another_ledger_is_refused_and_cannot_be_accepted(
    ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_budget(ledger)
    monkeypatch.setenv("DPCA_DATABASE_URL", f"sqlite:///{tmp_path / 'another.sqlite'}")
    for reason in (None, "they look alike"):
        with pytest.raises(Refused, match="of one ledger together"):
            Ledger.open(accept_restored=reason)


def test_a_ledger_without_its_key_folder_is_refused(
    ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_budget(ledger)
    monkeypatch.setenv("DPCA_KEY_FOLDER", str(tmp_path / "empty"))
    with pytest.raises(Refused, match="no witness"):
        Ledger.open()
    Ledger.open(accept_restored="keys were lost")
    Ledger.open()


def test_a_tampered_journal_is_found(budget: Ledger) -> None:
    reserve(budget)
    assert budget.verify() == 3
    with budget.engine.begin() as connection:
        if connection.dialect.name == "postgresql":
            connection.exec_driver_sql("ALTER TABLE event DISABLE TRIGGER ALL")
        else:
            connection.exec_driver_sql("DROP TRIGGER event_no_update")
        connection.exec_driver_sql("UPDATE event SET actor = 'somebody else' WHERE seq = 2")
    with pytest.raises(Corrupt, match="event 2 of the journal was changed"):
        budget.verify()
