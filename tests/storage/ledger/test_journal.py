"""The journal only grows, shows every change to it, and is missed when it is taken back."""

import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import sqlalchemy as sa

from storage.database import tables
from storage.database.engine import connect, transaction
from storage.errors import Corrupt, Invalid
from storage.ledger import journal
from storage.ledger.journal import Head

SOON = 0.3  # seconds after which whoever does not wait has long gone on
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
    """Append some events, and return the last."""
    for number in range(count):
        with transaction(engine) as connection:
            journal.append(connection, "step_kept", population="p", release_id="r", detail={"step": number})
    with transaction(engine) as connection:
        return journal.head(connection)


def verify(engine: sa.Engine) -> int:
    with transaction(engine) as connection:
        return journal.verify(connection)


def tamper(engine: sa.Engine, statement: sa.Update | sa.Delete) -> None:
    """Change the journal as someone may who owns the database and drops its rules."""
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


def test_whoever_locks_the_journal_waits_for_the_other_transaction(engine: sa.Engine) -> None:
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


def test_a_name_that_is_not_in_the_table_is_refused(engine: sa.Engine) -> None:
    with transaction(engine) as connection, pytest.raises(Invalid, match="not one of"):
        journal.append(connection, "refund")
    assert verify(engine) == 1


def test_a_fact_that_is_not_in_the_table_is_refused(engine: sa.Engine) -> None:
    with transaction(engine) as connection, pytest.raises(Invalid, match="'step_kept' has no fact 'content'"):
        journal.append(connection, "step_kept", release_id="r", detail={"step": 0, "content": "f" * 64})
    assert verify(engine) == 1


@pytest.mark.parametrize("field", FIELDS)
def test_any_change_of_an_event_is_seen(engine: sa.Engine, field: str) -> None:
    write(engine)
    tamper(engine, tables.event.update().where(tables.event.c.seq == 3).values({field: FIELDS[field]}))
    with pytest.raises(Corrupt, match="event 3 of the journal"):
        verify(engine)


def test_an_event_that_was_taken_out_is_seen(engine: sa.Engine) -> None:
    write(engine)
    tamper(engine, tables.event.delete().where(tables.event.c.seq == 2))
    with pytest.raises(Corrupt, match="event 2 of the journal"):
        verify(engine)


def test_events_that_are_renumbered_over_a_gap_are_seen(engine: sa.Engine) -> None:
    write(engine)
    seq = tables.event.c.seq
    tamper(engine, tables.event.delete().where(seq == 3))
    tamper(engine, tables.event.update().where(seq == 4).values(seq=3))
    with pytest.raises(Corrupt, match="event 3 of the journal"):
        verify(engine)
