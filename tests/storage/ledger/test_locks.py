"""Locks of the ledger, full disks, and numbers of ingests.

A writing transaction must lock rows before it reads the rows that it bases decisions on. A transaction of SQLite locks
the whole database when it begins. So a missing row lock has an effect on PostgreSQL alone, and there only in a race.
These tests therefore record statements: SQLAlchemy keeps ``FOR UPDATE`` in them, although it does not send it to
SQLite.

A reservation on a full disk is charged with its key or not at all, and no key exists without a row. The numbers of
ingests and the rows of the tables of first-seen ids are tested as well.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from dpca.backends import atomic_files
from dpca.errors import Corrupt, Unavailable
from storage.database import tables
from storage.database.engine import reading
from storage.datasets.catalog import Catalog
from storage.ledger import arrivals, journal
from storage.ledger.checks import compare
from storage.ledger.ledger import Ledger
from storage.workspace import Workspace
from tests.namespaces import isolated, small_disk
from tests.storage import releasing
from tests.storage.releasing import (
    begin,
    begin_tick,
    commit,
    event_names,
    key_names,
    manifest,
    open_budget,
    open_stream,
    publish,
    register,
    reserve,
)


@dataclass(slots=True)
class Trace:
    """The statements of all transactions in order, each as operation and table."""

    transactions: list[list[tuple[str, str]]] = field(default_factory=list)

    def add(self, what: str, table: str) -> None:
        self.transactions[-1].append((what, table))

    def writing(self, write: tuple[str, str]) -> list[list[tuple[str, str]]]:
        """Return the transactions that contain a given operation on a table."""
        return [statements for statements in self.transactions if write in statements]


def _record(trace: Trace, statement: Any) -> None:
    if isinstance(statement, sa.Insert | sa.Update):
        trace.add("insert" if isinstance(statement, sa.Insert) else "update", str(statement.entity_description["name"]))
    elif isinstance(statement, sa.Select):
        what = "read" if statement._for_update_arg is None else "lock"
        for table in statement.get_final_froms():
            trace.add(what, str(getattr(table, "name", table)))


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trace]:
    """Run every write operation of a ledger on SQLite, and return the recorded transactions."""
    found = Trace()

    def lock(connection: sa.Connection) -> None:
        found.add("lock", "journal")

    def started(connection: sa.Connection) -> None:
        found.transactions.append([])

    def executed(connection: sa.Connection, statement: Any, *_: Any) -> None:
        _record(found, statement)

    with pytest.MonkeyPatch.context() as patch:
        for name in ("DPCA_DATABASE_URL", "DPCA_KEY_FOLDER", "DPCA_STORE_URL"):
            patch.delenv(name, raising=False)
        patch.setenv("DPCA_HOME", str(tmp_path_factory.mktemp("locks") / "home"))
        ledger = Workspace.open().ledger
        patch.setattr(journal, "lock", lock)
        sa.event.listen(ledger.engine, "begin", started)
        sa.event.listen(ledger.engine, "before_execute", executed)
        act(ledger)
        yield found


def act(ledger: Ledger) -> None:
    """Run every writing operation on releases and streams."""
    open_budget(ledger)
    ledger.abandon(reserve(ledger, "given up").release_id)
    begin(ledger, "closed").keep(0, {"a": releasing.STREAMED})
    ledger.close(begin(ledger, "closed").release_id)
    commit(ledger, begin(ledger, "committed").release_id)
    publish(ledger, "published")
    releasing.register(ledger)
    releasing.open_stream(ledger)
    releasing.publish_tick(ledger, "night 1")
    releasing.begin_tick(ledger, "night 2")
    ledger.streams.close_tick(releasing.NAME, 2)
    ledger.streams.close(releasing.NAME)


JOURNAL, BUDGET, RELEASE = ("lock", "journal"), ("lock", "budget"), ("lock", "release")
RULES: dict[tuple[str, str], tuple[set[tuple[str, str]], tuple[str, str] | None]] = {
    ("insert", "budget"): ({JOURNAL}, ("read", "budget")),
    ("insert", "release"): ({JOURNAL, BUDGET}, ("read", "charged_total")),
    ("update", "release"): ({RELEASE}, None),
    ("insert", "event"): ({JOURNAL}, None),
    ("insert", "step"): ({RELEASE}, ("read", "step")),
    ("insert", "stream"): ({JOURNAL, BUDGET}, ("read", "charged_total")),
    ("insert", "tick"): ({JOURNAL, BUDGET}, ("read", "charged_total")),
    ("insert", "tick_answer"): ({RELEASE}, ("read", "tick_answer")),
    ("insert", "version"): ({JOURNAL}, ("read", "published")),
}
"""For each write, the locks that must precede it and the first read that it depends on.

A transaction also holds the ledger's lock from its start, which `tests.storage.database` tests; a snapshot needs no
other.
"""


@pytest.mark.parametrize("write", RULES, ids=" ".join)
def test_rows_are_locked_before_they_are_read_for_a_decision_or_written(trace: Trace, write: tuple[str, str]) -> None:
    locks, read = RULES[write]
    writing = trace.writing(write)
    assert writing
    for statements in writing:
        first = statements.index(read) if read in statements else statements.index(write)
        assert locks <= set(statements[: min(first, statements.index(write))])


def test_each_append_reads_the_end_of_the_journal_under_its_lock(trace: Trace) -> None:
    for statements in trace.writing(("insert", "event")):
        written = statements.index(("insert", "event"))
        last_read = max(at for at, each in enumerate(statements[:written]) if each == ("read", "event"))
        assert JOURNAL in statements[:last_read]


def test_a_tick_is_bound_to_its_stream_under_the_lock(trace: Trace) -> None:
    for statements in trace.writing(("insert", "tick")):
        after = statements[statements.index(BUDGET) : statements.index(("insert", "tick"))]
        assert ("read", "stream") in after


def test_every_transaction_that_writes_a_charge_changes_its_total_under_the_lock(trace: Trace) -> None:
    changing = trace.writing(("insert", "charged_total"))
    assert len(changing) > 5
    for statements in changing:
        assert BUDGET in statements[: statements.index(("read", "charged_total"))]


SIZE = 2048
"""KiB of the disk."""
LEVELS = (0, 1, 2, 3, 4, 6, 8, 10, 12, 16, 24, 32)
"""Pages of 4 KiB that are free."""


def release_ids(ledger: Ledger) -> set[str]:
    table = tables.release.c
    with reading(ledger.engine) as connection:
        query = sa.select(table.id).where(table.state.in_(("reserved", "noising")), table.snapshot_id != "stream")
        return set(connection.execute(query).scalars())


def fill(home: Path, *, free: int) -> None:
    """Fill a disk until ``free`` pages are left."""
    (home / "filler").unlink(missing_ok=True)
    space = os.statvfs(home)
    with (home / "filler").open("wb") as filler:
        os.posix_fallocate(filler.fileno(), 0, max(1, space.f_bavail - free) * space.f_bsize)


def test_a_reservation_on_a_full_disk_leaves_no_key(home: Path) -> None:
    """Reserve on disks with different free space: no key may be left without a row.

    At some levels the key cannot be written, at others the row; with a few free pages the release is charged.
    """

    def body() -> None:
        small_disk(home, kib=SIZE)
        ledger = Workspace.open().ledger
        open_budget(ledger, epsilon=50.0)
        register(ledger)
        open_stream(ledger, ticks=40)
        reserve(ledger, "with room")
        refused = 0
        for free in LEVELS:
            fill(home, free=free)
            for act in (lambda: reserve(ledger, f"run {free}"), lambda: begin_tick(ledger, f"night {free}")):  # noqa: B023
                try:
                    act()
                except Unavailable:
                    refused += 1
                assert key_names(ledger) == release_ids(ledger)
            (home / "filler").unlink()
            for tick in ledger.streams.show("nightly")[1][-1:]:
                ledger.streams.close_tick("nightly", tick.tick)
        assert 4 <= refused < 2 * len(LEVELS)
        assert Workspace.open().ledger.verify() > 0
        assert key_names(ledger) == release_ids(ledger)

    isolated(body)


@pytest.mark.parametrize("point", ["reserve.key_written", "reserve.row_written"])
def test_the_unused_key_of_a_killed_process_is_removed_at_the_next_opening(
    sqlite_budget: Ledger, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    class Killed(BaseException):
        """Exception that simulates a killed process."""

    def die(reached: str) -> None:
        if reached == point:
            raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(atomic_files, "hook", die)
        with pytest.raises(Killed):
            reserve(sqlite_budget)
    assert len(key_names(sqlite_budget)) == 1
    Workspace.open()
    assert key_names(sqlite_budget) == set()


def register_of_arrivals(ledger: Ledger, snapshot: str, *, number: int | None = None) -> int | None:
    made = manifest(ledger.id, snapshot=snapshot * 32)
    return Catalog(ledger.engine, ledger.home).register(made, path=f"datasets/{snapshot}", number=number).number


def record(ledger: Ledger, epoch: str, segment: str, known: list[arrivals.Segment]) -> int | None:
    with ledger.transaction() as connection:
        arrivals.plan_segment(connection, epoch=epoch, segment=segment)
    with ledger.transaction() as connection:
        return arrivals.record_segment(connection, epoch=epoch, segment=segment, digest="d", known=known)


def segments(ledger: Ledger, epoch: str) -> list[arrivals.Segment]:
    with ledger.transaction() as connection:
        return arrivals.segments_of(connection, epoch)


@pytest.fixture
def epoch(ledger: Ledger) -> str:
    with ledger.transaction() as connection:
        return arrivals.begin_epoch(connection, population="people", epoch="e1")


def test_numbers_of_ingests_follow_the_order_of_registration(ledger: Ledger, epoch: str) -> None:
    assert register_of_arrivals(ledger, "a") == 1
    slow = record(ledger, epoch, "slow", [])
    quick = record(ledger, epoch, "quick", segments(ledger, epoch))
    assert (slow, quick) == (2, 3)
    assert register_of_arrivals(ledger, "b", number=quick) == 3
    # the number is not 2, because a tick may already be bound to the other ingest
    assert register_of_arrivals(ledger, "c", number=slow) == 4
    assert register_of_arrivals(ledger, "d") == 5
    catalog = Catalog(ledger.engine, ledger.home)
    assert [catalog.number(name * 32) for name in "abcd"] == [1, 3, 4, 5]
    assert catalog.current("news").number == 5
    assert ledger.verify() == len(event_names(ledger))


def test_the_number_of_an_ingest_that_failed_is_not_used_again(ledger: Ledger, epoch: str) -> None:
    assert record(ledger, epoch, "failed", []) == 1
    assert register_of_arrivals(ledger, "a") == 2


def test_a_segment_compared_with_outdated_segments_is_not_registered(ledger: Ledger, epoch: str) -> None:
    assert record(ledger, epoch, "first", []) == 1
    assert record(ledger, epoch, "second", []) is None
    (first,) = segments(ledger, epoch)
    assert record(ledger, epoch, "third", [first]) == 2
    with ledger.transaction() as connection:
        assert arrivals.folders_of(connection, "people") == {"first", "second", "third"}
        arrivals.lose_epoch(connection, epoch)
    assert record(ledger, epoch, "fourth", segments(ledger, epoch)) is None


def test_a_population_has_one_first_seen_table_until_it_is_lost(ledger: Ledger, epoch: str) -> None:
    with ledger.transaction() as connection:
        assert arrivals.begin_epoch(connection, population="people", epoch="e2") == epoch
        assert arrivals.begin_epoch(connection, population="others", epoch="e3") == "e3"
        arrivals.lose_epoch(connection, epoch)
        arrivals.lose_epoch(connection, epoch)
        assert arrivals.epoch_of(connection, "people") is None
        assert arrivals.begin_epoch(connection, population="people", epoch="e4") == "e4"
    assert event_names(ledger).count("arrivals_lost") == 1
    assert ledger.verify() == len(event_names(ledger))


def test_accepting_a_restored_ledger_ends_every_first_seen_table(ledger: Ledger, epoch: str) -> None:
    Workspace.open(accept_restored="a test")
    with ledger.transaction() as connection:
        assert arrivals.epoch_of(connection, "people") is None


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE arrival_segment SET number = 9",
        "UPDATE arrival_segment SET digest = 'x'",
        "UPDATE arrival_epoch SET population = 'x'",
        "UPDATE arrival_epoch SET lost_at = NULL WHERE lost_at IS NOT NULL",
        "DELETE FROM arrival_segment",
        "DELETE FROM arrival_epoch",
    ],
    ids=lambda statement: statement.lower().replace(" ", "-").replace("'", ""),
)
def test_rows_of_first_seen_ids_are_never_changed_or_deleted(ledger: Ledger, epoch: str, statement: str) -> None:
    record(ledger, epoch, "first", [])
    with ledger.transaction() as connection:
        arrivals.lose_every_epoch(connection)
    with pytest.raises(sa.exc.DBAPIError, match=r"never|once"), ledger.engine.begin() as connection:
        connection.exec_driver_sql(statement)


def test_manually_changed_numbers_are_detected(ledger: Ledger) -> None:
    register_of_arrivals(ledger, "a")
    with ledger.transaction() as connection:
        connection.exec_driver_sql("UPDATE snapshot SET number = 7")
    with pytest.raises(Corrupt, match=r"differs from the journal \(number\)"), ledger.transaction() as found:
        compare(found)


def test_a_manually_inserted_segment_is_detected(ledger: Ledger, epoch: str) -> None:
    with ledger.transaction() as connection:
        arrivals.plan_segment(connection, epoch=epoch, segment="planned")
        compare(connection)
        connection.exec_driver_sql("UPDATE arrival_segment SET number = 7, digest = 'x'")
    with (
        pytest.raises(Corrupt, match=r"segment .* of first-seen ids has a row, but no entry in the journal"),
        ledger.transaction() as found,
    ):
        compare(found)
