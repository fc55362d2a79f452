"""Journal of the ledger, and its comparison with rows.

The journal is append-only, reveals every change to its entries, and its rollback is detected. A row that was changed,
removed or inserted manually contradicts the journal and is found. Incremental checks find every edit: edits of spent
budget at once, and all others within one round.
"""

import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from typing import Any

import pytest
import sqlalchemy as sa

from dpca.errors import Corrupt, Invalid
from storage.database import tables
from storage.database.engine import connect, transaction
from storage.datasets.catalog import Catalog
from storage.ledger import checks, journal
from storage.ledger.budgets import read_budget
from storage.ledger.checks import Compared, check_changes, compare, compare_part
from storage.ledger.journal import Head
from storage.ledger.ledger import Ledger
from storage.registry.publishing import add_version, promote
from storage.workspace import Workspace
from tests.storage.ledger.conftest import EDITS
from tests.storage.releasing import (
    ANSWER,
    begin,
    commit,
    manifest,
    open_budget,
    open_stream,
    publish_tick,
    register,
    reserve,
)

SOON = 0.3  # seconds after which a call that does not wait for a lock has certainly returned
FIELDS: dict[str, Any] = {
    "population": "other",
    "release_id": "other",
    "name": "alias_moved",
    "detail": "{}",
    "at": "2000-01-01T00:00:00.000000+00:00",
    "actor": "other",
    "prev_hash": "f" * 64,
    "hash": "f" * 64,
}


@pytest.fixture
def engine(database_url: str) -> sa.Engine:
    engine = connect(database_url)
    with transaction(engine) as connection:
        journal.identify(connection)
    return engine


def write(engine: sa.Engine, *, count: int = 3) -> Head:
    """Append ``count`` events to the journal, and return the last one."""
    for number in range(count):
        with transaction(engine) as connection:
            journal.append(connection, "step_kept", population="p", release_id="r", detail={"step": number})
    with transaction(engine) as connection:
        return journal.head(connection)


def verify(engine: sa.Engine) -> int:
    with transaction(engine) as connection:
        return journal.verify(connection)


def tamper(engine: sa.Engine, statement: sa.Update | sa.Delete) -> None:
    """Change the journal as a database owner who drops its triggers can."""
    with engine.begin() as connection:
        if connection.dialect.name == "sqlite":
            names = "SELECT name FROM sqlite_master WHERE type = 'trigger' AND tbl_name = 'event'"
            for name in connection.exec_driver_sql(names).scalars().all():
                connection.exec_driver_sql(f"DROP TRIGGER {name}")
        else:
            connection.exec_driver_sql("ALTER TABLE event DISABLE TRIGGER ALL")
        connection.execute(statement)


def test_events_are_counted_and_chained(engine: sa.Engine) -> None:
    last = write(engine)
    with transaction(engine) as connection:
        rows = connection.execute(sa.select(tables.event).order_by(tables.event.c.seq)).all()
    assert [row.seq for row in rows] == [1, 2, 3, 4]
    assert [row.prev_hash for row in rows] == ["0" * 64, *(row.hash for row in rows[:-1])]
    assert (last.seq, last.hash) == (4, rows[-1].hash)
    assert json.loads(rows[-1].detail) == {"step": 2}
    assert verify(engine) == 4


def test_a_ledger_keeps_its_id(engine: sa.Engine) -> None:
    with transaction(engine) as connection:
        first = journal.identify(connection)
    with transaction(engine) as connection:
        assert journal.identify(connection) == first == journal.head(connection).ledger
    assert verify(engine) == 1


def test_locking_the_journal_waits_for_another_transaction(engine: sa.Engine) -> None:
    order, has_begun = [], threading.Event()

    def lock_second() -> None:
        has_begun.set()
        with transaction(engine) as connection:
            journal.lock(connection)
            order.append("second")

    with ThreadPoolExecutor(1) as pool:
        with transaction(engine) as connection:
            journal.lock(connection)
            second = pool.submit(lock_second)
            has_begun.wait()
            time.sleep(SOON)
            order.append("first")
        second.result()
    assert order == ["first", "second"]


def test_an_unknown_event_name_is_refused(engine: sa.Engine) -> None:
    with transaction(engine) as connection, pytest.raises(Invalid, match="not one of"):
        journal.append(connection, "refund")
    assert verify(engine) == 1


def test_an_unknown_fact_of_an_event_is_refused(engine: sa.Engine) -> None:
    with (
        transaction(engine) as connection,
        pytest.raises(Invalid, match="'step_kept' may not contain the fact 'content'"),
    ):
        journal.append(connection, "step_kept", release_id="r", detail={"step": 0, "content": "f" * 64})
    assert verify(engine) == 1


@pytest.mark.parametrize("field", FIELDS)
def test_any_change_of_an_event_is_detected(engine: sa.Engine, field: str) -> None:
    write(engine)
    tamper(engine, tables.event.update().where(tables.event.c.seq == 3).values({field: FIELDS[field]}))
    with pytest.raises(Corrupt, match="entry 3 of the journal"):
        verify(engine)


def test_a_removed_event_is_detected(engine: sa.Engine) -> None:
    write(engine)
    tamper(engine, tables.event.delete().where(tables.event.c.seq == 2))
    with pytest.raises(Corrupt, match="entry 2 of the journal"):
        verify(engine)


def test_events_renumbered_over_a_gap_are_detected(engine: sa.Engine) -> None:
    write(engine)
    seq = tables.event.c.seq
    tamper(engine, tables.event.delete().where(seq == 3))
    tamper(engine, tables.event.update().where(seq == 4).values(seq=3))
    with pytest.raises(Corrupt, match="entry 3 of the journal"):
        verify(engine)


def found(ledger: Ledger, statement: str) -> str:
    """Edit a row, return the error message of the comparison with the journal, and restore the row."""
    with ledger.engine.connect() as connection:
        assert connection.execute(sa.text(statement), {"zero": bytes(64)} if ":zero" in statement else {}).rowcount == 1
        with pytest.raises(Corrupt) as caught:
            compare(connection)
        connection.rollback()
    text = str(caught.value)
    assert text.endswith("; restore the database from a copy, and accept it with `dpca budget accept-restored`.")
    assert "\n" not in text
    return text


def test_rows_agree_with_the_journal_also_after_an_accepted_restore(used: Ledger) -> None:
    count = used.verify()
    assert Workspace.open(accept_restored="a drill").ledger.verify() == count + 1


def test_an_edited_row_is_detected(used: Ledger) -> None:
    for statement, name, columns in EDITS.values():
        text = found(used, statement)
        assert text.startswith(f"the row of {name}")
        assert f"differs from the journal ({columns});" in text


def test_a_removed_row_is_detected(used: Ledger) -> None:
    for row, name in {
        "step": "step 0 of release ",
        "alias WHERE alias = 'shadow'": "map@shadow",
        "version": "map@1",
    }.items():
        text = found(used, f"DELETE FROM {row}")
        assert text.startswith(f"the journal records {name}")
        assert "but its row is missing" in text


def test_an_inserted_row_is_detected(used: Ledger) -> None:
    columns = ", ".join(column.name for column in tables.release.c if column.name not in ("id", "run_key"))
    text = found(used, f"INSERT INTO release (id, run_key, {columns}) SELECT 'x', 'x', {columns} FROM release LIMIT 1")
    assert text.startswith("release x has a row, but no entry in the journal;")


def test_verification_of_the_ledger_reports_edited_rows(used: Ledger) -> None:
    with used.engine.begin() as connection:
        connection.exec_driver_sql("UPDATE budget SET epsilon = 100")
    with pytest.raises(Corrupt, match=r"the row of budget 'people' .* \(epsilon\)"):
        used.verify()


def test_a_budget_that_is_opened_twice_is_refused(budget: Ledger) -> None:
    with budget.transaction() as connection:
        terms = asdict(read_budget(connection, "people"))
        del terms["population"]
        journal.append(connection, "budget_opened", population="people", detail=terms)
    with pytest.raises(Corrupt, match="the journal opens budget 'people' twice, and terms never change"):
        budget.verify()


AT_ONCE = ("a larger budget", "a smaller charge", "a refund", "another champion")
"""The edits of a budget, an alias, or the spent budget of a population."""
PART = 5


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "PART", PART)


def known_of(ledger: Ledger) -> Compared:
    with transaction(ledger.engine) as connection:
        return compare(connection)


def after(ledger: Ledger, known: Compared) -> Compared:
    """Run one incremental check, which must report nothing; return what is compared by then."""
    with transaction(ledger.engine) as connection:
        return compare_part(connection, known)[0]


def looks_needed(ledger: Ledger, known: Compared, statement: str, **values: Any) -> int | None:
    """Edit a row, and restore it after incremental checks.

    Return the number of checks needed to find the edit, or None if one round does not find it.
    """
    with ledger.engine.connect() as connection:
        assert connection.execute(sa.text(statement), values).rowcount > 0
        for inspect in range(1, 2 + known.entries // PART):
            try:
                known = check_changes(connection, known).known
            except Corrupt:
                connection.rollback()
                return inspect
        connection.rollback()
    return None


@pytest.mark.usefixtures("small_parts")
def test_a_row_that_was_edited_is_found_within_a_round(used: Ledger) -> None:
    known = known_of(used)
    for name, (statement, _, _) in EDITS.items():
        values = {"zero": bytes(64)} if ":zero" in statement else {}
        passes = looks_needed(used, known, statement, **values)
        assert passes is not None, name
        assert name not in AT_ONCE or passes == 1, name


@pytest.mark.usefixtures("small_parts")
def test_a_row_that_was_removed_or_put_in_is_found_at_once(used_on_sqlite: Ledger) -> None:
    known = known_of(used_on_sqlite)
    for statement in (
        "DELETE FROM step",
        "DELETE FROM alias WHERE alias = 'shadow'",
        "DELETE FROM version",
        "INSERT INTO version SELECT 'other', 1, digest, release_id, created_at FROM version",
        "INSERT INTO alias VALUES ('map', 'third', 1)",
    ):
        assert looks_needed(used_on_sqlite, known, statement) == 1, statement


@pytest.mark.usefixtures("small_parts")
def test_any_entry_that_was_edited_dropped_or_exchanged_is_found_within_a_round(used_on_sqlite: Ledger) -> None:
    known = known_of(used_on_sqlite)
    edits = ("UPDATE event SET at = '2000-01-01' WHERE seq = :seq", "DELETE FROM event WHERE seq = :seq")
    exchange = "UPDATE event SET seq = CASE seq WHEN :seq THEN -1 ELSE :seq END WHERE seq IN (:seq, :seq + 1)"
    for seq in range(1, known.entries + 1):
        for edit in edits:
            assert looks_needed(used_on_sqlite, known, edit, seq=seq) is not None, (edit, seq)
        if seq < known.entries:
            assert looks_needed(used_on_sqlite, known, exchange, seq=seq) is not None, (exchange, seq)


@pytest.mark.usefixtures("small_parts")
def test_a_total_that_was_edited_is_found_at_once_also_where_it_agrees_with_the_charges(used_on_sqlite: Ledger) -> None:
    known = known_of(used_on_sqlite)
    assert looks_needed(used_on_sqlite, known, "UPDATE charged_total SET releases = releases + 1") == 1
    count, charge = known.totals["people"]
    forged = {**known.totals, "people": (count, (0,) * len(charge))}
    with pytest.raises(Corrupt, match="the sum of charges from before the last check has changed"):
        after(used_on_sqlite, replace(known, totals=forged))


def _new_budget(ledger: Ledger) -> None:
    open_budget(ledger, "others")


def _new_snapshot(ledger: Ledger) -> None:
    catalog = Catalog(ledger.engine, ledger.home)
    admitted = catalog.admit(name="news", population="people")
    catalog.register(manifest(admitted, snapshot="t" * 32), path="datasets/news/t")


def _new_alias(ledger: Ledger) -> None:
    with ledger.transaction() as connection:
        promote(connection, name="map", version=1, alias="third")


def _second_name(ledger: Ledger) -> None:
    with ledger.transaction() as connection:
        release, digest = connection.exec_driver_sql("SELECT release_id, digest FROM version").one()
        add_version(connection, name="other", digest=digest, release_id=release)


def _ended(ledger: Ledger) -> None:
    begun = begin(ledger, "begun")
    begun.keep(0, ANSWER)
    commit(ledger, begun.release_id)
    ledger.abandon(reserve(ledger, "waiting").release_id)


def _ticks(ledger: Ledger) -> None:
    register(ledger, "u")
    open_stream(ledger, ticks=3)
    publish_tick(ledger)


@pytest.mark.usefixtures("small_parts")
def test_incremental_checks_report_nothing_after_any_regular_operation(
    used: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = known_of(used)
    monkeypatch.setattr(checks, "PART", 30)
    for happen in (_new_budget, _new_snapshot, _new_alias, _second_name, _ended, _ticks):
        happen(used)
        known = after(used, known)
        assert replace(known, read_to=0) == replace(known_of(used), read_to=0), happen.__name__


@pytest.mark.usefixtures("small_parts")
def test_the_parts_of_a_round_of_checks_cover_all_entries(used_on_sqlite: Ledger) -> None:
    known = known_of(used_on_sqlite)
    read: list[int] = []
    for _ in range(-(-known.entries // PART)):
        with transaction(used_on_sqlite.engine) as connection:
            found = check_changes(connection, known)
        assert found.part is not None
        read += range(found.part[0], found.part[1] + 1)
        known = found.known
    assert read == [*range(1, known.entries + 1)]


@pytest.mark.usefixtures("small_parts")
def test_everything_is_checked_if_the_previous_check_was_of_another_history(used_on_sqlite: Ledger) -> None:
    known = known_of(used_on_sqlite)
    with transaction(used_on_sqlite.engine) as connection:
        for other in (replace(known, head="f" * 64), replace(known, entries=known.entries + 1)):
            assert check_changes(connection, other).part is None
    begin(used_on_sqlite, "one")
    begin(used_on_sqlite, "two")
    begin(used_on_sqlite, "three")
    with transaction(used_on_sqlite.engine) as connection:
        assert check_changes(connection, known).known.read_to == known.entries + 7, "more was new than a look reads"


@pytest.mark.usefixtures("small_parts")
def test_an_incremental_check_finds_a_new_tick_without_a_charge(used_on_sqlite: Ledger) -> None:
    known = known_of(used_on_sqlite)
    with used_on_sqlite.transaction() as connection:
        forged = "UPDATE release SET event = :event WHERE run_key = 'begun'"
        connection.execute(sa.text(forged), {"event": '{"name": "stream_tick"}'})
    with pytest.raises(Corrupt):
        after(used_on_sqlite, known)
