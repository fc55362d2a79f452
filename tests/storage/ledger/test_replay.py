"""Edited rows of the ledger: rows edited with the triggers disabled are refused before use, on both databases.

`tests.storage.ledger.test_journal` edits the same rows and finds them by reading everything.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import sqlalchemy as sa

from dpca.errors import Corrupt
from dpca.home import store
from storage.database import tables
from storage.database.engine import transaction
from storage.datasets.catalog import Catalog
from storage.ledger import arrivals
from storage.ledger.ledger import Ledger
from storage.registry.publishing import add_version, promote, rebuild_pointers
from tests.storage.ledger.conftest import EDITS, drop_triggers
from tests.storage.releasing import (
    POPULATION,
    TENTH,
    begin_tick,
    event_names,
    key_names,
    open_budget,
    open_stream,
    publish_tick,
    register,
    reserve,
)

type Use = Callable[[Ledger], object]

RUN_KEYS = ("run", "begun", "waiting", "given up", "closed")


@contextmanager
def edited(ledger: Ledger, statement: str) -> Iterator[None]:
    """Edit rows manually, without the triggers, and restore the rows at the end of the context."""
    _, name, *_ = statement.removeprefix("DELETE ").split()
    table = tables.metadata.tables[name]
    with ledger.engine.begin() as connection:
        drop_triggers(connection)
        before = connection.execute(sa.select(table)).mappings().all()
        zero = {"zero": bytes(64)} if ":zero" in statement else {}
        assert connection.execute(sa.text(statement), zero).rowcount >= 1
    yield
    with ledger.engine.begin() as connection:
        if "SET ticks" in statement:  # `ticks` is part of the primary key, so the edited row is replaced
            connection.execute(table.delete())
        for row in before:
            here = sa.and_(*(column == row[column.name] for column in table.primary_key))
            if not connection.execute(table.update().where(here).values(**row)).rowcount:
                connection.execute(table.insert().values(**row))


def ids_of(ledger: Ledger) -> dict[str, str]:
    """Return the ids of releases by their run keys."""
    table = tables.release.c
    with transaction(ledger.engine) as connection:
        return {row.run_key: row.id for row in connection.execute(sa.select(table.run_key, table.id))}


def refused(ledger: Ledger, use: Use) -> str:
    """Use an edited row: the ledger must refuse it in one line and change nothing; return the refusal."""
    before, keys = event_names(ledger), key_names(ledger)
    with pytest.raises(Corrupt) as raised:
        use(ledger)
    assert (event_names(ledger), key_names(ledger)) == (before, keys)
    assert "\n" not in str(raised.value)
    return str(raised.value)


def uses_of_release(release_id: str) -> list[Use]:
    def record(connection: sa.Connection) -> None:
        raise AssertionError("an edited release was committed")

    return [
        lambda ledger: ledger.release(release_id),
        lambda ledger: ledger.begin(release_id),
        lambda ledger: ledger.key(release_id),
        lambda ledger: ledger.steps(release_id).settle(1, "x"),
        lambda ledger: ledger.commit(release_id, artifact_digest="e" * 64, record=record),
        lambda ledger: ledger.abandon(release_id),
        lambda ledger: ledger.close(release_id),
    ]


def rebuild(ledger: Ledger) -> None:
    with ledger.transaction() as connection:
        rebuild_pointers(connection, store(), ["map"])


def move_alias(ledger: Ledger) -> None:
    with ledger.transaction() as connection:
        promote(connection, name="map", version=1, alias="champion")


def catalog(ledger: Ledger) -> Catalog:
    return Catalog(ledger.engine, ledger.home)


def uses_of(ledger: Ledger) -> dict[str, list[Use]]:
    """Return, for each edited row, the operations that use it."""
    ids = ids_of(ledger)
    of_budget: list[Use] = [
        lambda ledger: reserve(ledger, "another"),
        lambda ledger: ledger.statement(POPULATION),
        lambda ledger: ledger.quote(POPULATION, TENTH, epsilon=0.1, delta=1e-9),
        lambda ledger: ledger.begin(ids["waiting"]),
    ]
    run = uses_of_release(ids["run"])
    return {
        **{name: run for name, (statement, *_) in EDITS.items() if "UPDATE release" in statement},
        **{name: OF_SNAPSHOTS for name, (statement, *_) in EDITS.items() if "UPDATE snapshot" in statement},
        "a larger budget": of_budget,
        "a release taken back": uses_of_release(ids["begun"]),
        "an end": uses_of_release(ids["waiting"]),
        "another version": [rebuild, move_alias],
        "another champion": [rebuild, move_alias],
    }


OF_SNAPSHOTS: list[Use] = [
    lambda ledger: catalog(ledger).current("news"),
    lambda ledger: catalog(ledger).entry("s" * 32),
    lambda ledger: reserve(ledger, "another"),
]
UNUSED = {"another answer"}
"""Edits of steps, whose answer is read from a file that ends with its digest."""


def test_an_edited_row_is_refused_before_it_is_used(used: Ledger) -> None:
    cases = uses_of(used)
    assert cases.keys() | UNUSED == EDITS.keys()
    for name, uses in cases.items():
        statement, row, columns = EDITS[name]
        with edited(used, statement):
            for use in uses:
                line = refused(used, use)
                assert row in line, name
                assert columns in line or "has a row, but no entry in the journal" in line, name
    used.verify()


def test_states_that_contradict_the_journal_are_refused(used: Ledger) -> None:
    """Set each release to a state that the journal does not state: every use must be refused.

    Otherwise an abandoned release could be reserved again and released uncharged, or a begun one refunded.
    """
    ids, tried = ids_of(used), 0
    for run_key in RUN_KEYS:
        for state in ("reserved", "noising", "abandoned", "closed", "committed"):
            if used.release(ids[run_key]).state == state:
                continue
            tried += 1
            artifact = "'x'" if state == "committed" else "NULL"
            values = f"state = '{state}', artifact_digest = {artifact}"
            with edited(used, f"UPDATE release SET {values} WHERE run_key = '{run_key}'"):
                _, begin, *_, abandon, _ = uses_of_release(ids[run_key])
                for use in (begin, abandon, lambda ledger: reserve(ledger, run_key)):  # noqa: B023
                    assert "(state" in refused(used, use)
                used.sweep()
            assert {ids["begun"], ids["waiting"]} <= key_names(used)
    assert tried == 20


def test_a_charge_removed_by_an_edit_is_detected_at_the_next_refund(used: Ledger) -> None:
    """Delete the stored total and refund a charge by an edit: the next change must be refused.

    Without a stored total, the ledger sums rows, which it must compare with the journal.
    """
    waiting = ids_of(used)["waiting"]
    refund = "UPDATE release SET state = 'abandoned', artifact_digest = NULL WHERE run_key = 'run'"
    with edited(used, refund), edited(used, "DELETE FROM charged_total"):
        for use in (lambda ledger: ledger.abandon(waiting), lambda ledger: reserve(ledger, "another")):
            assert "differ from the total in the journal" in refused(used, use)


def test_a_manually_removed_or_restored_snapshot_is_refused(used: Ledger) -> None:
    def refuses() -> None:
        for use in OF_SNAPSHOTS:
            assert "(removed)" in refused(used, use)
        with pytest.raises(Corrupt, match="removed"):
            used.verify()

    with edited(used, "UPDATE snapshot SET removed_at = 'now'"):
        refuses()
    catalog(used).remove("news", force=True)
    with edited(used, "UPDATE snapshot SET removed_at = NULL"):
        refuses()


EPOCHS = (
    "UPDATE arrival_epoch SET lost_at = NULL WHERE id = 'first'",
    "UPDATE arrival_epoch SET lost_at = 'now' WHERE id = 'second'",
    "UPDATE arrival_epoch SET population = 'others' WHERE id = 'second'",
)
SEGMENTS = tuple(f"UPDATE arrival_segment SET {edit}" for edit in ("number = NULL", "number = 99", "digest = 'x'"))


def test_a_table_of_arrivals_that_was_edited_is_refused(ledger: Ledger) -> None:
    with transaction(ledger.engine) as connection:
        arrivals.begin_epoch(connection, population="people", epoch="first")
        arrivals.lose_epoch(connection, "first")
        arrivals.begin_epoch(connection, population="people", epoch="second")
        arrivals.plan_segment(connection, epoch="second", segment="part")
        assert arrivals.record_segment(connection, epoch="second", segment="part", digest="d", known=[]) == 1
    for statement in (*EPOCHS, *SEGMENTS):
        with edited(ledger, statement), transaction(ledger.engine) as connection:
            with pytest.raises(Corrupt):
                arrivals.record_segment(connection, epoch="second", segment="part", digest="d", known=[])
            if statement in EPOCHS:
                with pytest.raises(Corrupt):
                    arrivals.epoch_of(connection, "people")
    with transaction(ledger.engine) as connection:
        assert arrivals.epoch_of(connection, "people") == "second"
        assert [segment.id for segment in arrivals.segments_of(connection, "second")] == ["part"]


def test_a_stream_or_tick_that_was_edited_is_refused(ledger: Ledger) -> None:
    open_budget(ledger)
    register(ledger)
    open_stream(ledger)
    publish_tick(ledger)
    for statement in (
        "UPDATE stream SET terms = '{}'",
        "UPDATE stream_charge SET ticks = 99",
        "UPDATE tick SET number = 99",
        "UPDATE tick_answer SET digest = 'x'",
        "UPDATE release SET state = 'closed', artifact_digest = NULL WHERE run_key LIKE 'stream % tick 1'",
        "UPDATE release SET state = 'abandoned' WHERE run_key LIKE 'stream nightly%'",
    ):
        with edited(ledger, statement):
            refused(ledger, lambda ledger: begin_tick(ledger, "night 2"))
    ledger.streams.close("nightly")
    with edited(ledger, "UPDATE release SET state = 'noising' WHERE run_key LIKE 'stream nightly%'"):
        refused(ledger, lambda ledger: begin_tick(ledger, "night 2"))


def test_a_manually_inserted_or_deleted_version_or_alias_is_refused(used: Ledger) -> None:
    with edited(used, "DELETE FROM alias WHERE alias = 'champion'"):
        assert "map@champion, but its row is missing" in refused(used, rebuild)
        assert "map@champion, but its row is missing" in refused(used, move_alias)
    begun = ids_of(used)["begun"]
    with used.engine.begin() as connection:
        forged = f"INSERT INTO version SELECT name, 2, 'x', '{begun}', created_at FROM version"
        assert connection.exec_driver_sql(forged).rowcount == 1
    assert "map@2 has a row, but no entry in the journal" in refused(used, rebuild)


def test_names_with_equal_prefixes_or_inside_reasons_are_not_confused(sqlite_ledger: Ledger) -> None:
    ledger = sqlite_ledger
    open_budget(ledger)
    for name in ("map", "map-2", "ma"):
        granted = reserve(ledger, name)
        ledger.begin(granted.release_id)
        with ledger.transaction() as connection:
            add_version(connection, name=name, digest="d" * 64, release_id=granted.release_id)
            promote(connection, name=name, version=1, alias="champion", why={"name": "map", "to": "map"})
    for name in ("map", "map-2", "ma"):
        with ledger.transaction() as connection:
            promote(connection, name=name, version=1, alias="shadow")
