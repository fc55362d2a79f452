"""The journal only grows, shows every change to it, and is missed when it is taken back."""

import json
import shutil
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from storage import database, journal
from storage.database import transaction
from storage.errors import Corrupt, Invalid, Refused, Unavailable
from storage.journal import Head, Witness

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
    engine = database.connect(database_url)
    with transaction(engine) as connection:
        journal.identify(connection)
    return engine


def write(engine: sa.Engine, *, count: int = 3) -> Head:
    """Append some events, and return the last."""
    for number in range(count):
        with transaction(engine) as connection:
            journal.append(connection, "step_kept", population="p", release_id="r", detail={"number": number})
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
        rows = connection.execute(sa.select(database.event).order_by(database.event.c.seq)).all()
    assert [row.seq for row in rows] == [1, 2, 3, 4]
    assert [row.prev_hash for row in rows] == ["0" * 64, *(row.hash for row in rows[:-1])]
    assert (last.seq, last.hash) == (4, rows[-1].hash)
    assert json.loads(rows[-1].detail) == {"number": 2}
    assert verify(engine) == 4


def test_a_ledger_keeps_its_id(engine: sa.Engine) -> None:
    with transaction(engine) as connection:
        first = journal.identify(connection)
    with transaction(engine) as connection:
        assert journal.identify(connection) == first == journal.head(connection).ledger
    assert verify(engine) == 1


def test_a_name_that_is_not_in_the_table_is_refused(engine: sa.Engine) -> None:
    with transaction(engine) as connection, pytest.raises(Invalid, match="not one of"):
        journal.append(connection, "refund")
    assert verify(engine) == 1


@pytest.mark.parametrize("field", FIELDS)
def test_any_change_of_an_event_is_seen(engine: sa.Engine, field: str) -> None:
    write(engine)
    tamper(engine, database.event.update().where(database.event.c.seq == 3).values({field: FIELDS[field]}))
    with pytest.raises(Corrupt, match="event 3 of the journal"):
        verify(engine)


def test_an_event_that_was_taken_out_is_seen(engine: sa.Engine) -> None:
    write(engine)
    tamper(engine, database.event.delete().where(database.event.c.seq == 2))
    with pytest.raises(Corrupt, match="event 2 of the journal"):
        verify(engine)


def test_events_that_are_renumbered_over_a_gap_are_seen(engine: sa.Engine) -> None:
    write(engine)
    seq = database.event.c.seq
    tamper(engine, database.event.delete().where(seq == 3))
    tamper(engine, database.event.update().where(seq == 4).values(seq=3))
    with pytest.raises(Corrupt, match="event 3 of the journal"):
        verify(engine)


def test_the_witness_is_what_was_noted_last(tmp_path: Path) -> None:
    witness = Witness(tmp_path / "keys")
    assert witness.read() is None
    head = Head(ledger="l", seq=3, hash="h")
    witness.advance(head)
    assert witness.read() == head


def test_the_witness_never_moves_back_unless_an_operator_says_so(tmp_path: Path) -> None:
    witness, head = Witness(tmp_path), Head(ledger="l", seq=3, hash="h")
    witness.advance(head)
    witness.advance(replace(head, seq=2))
    assert witness.read() == head
    witness.advance(replace(head, seq=2), back=True)
    assert witness.read() == replace(head, seq=2)


def test_many_writers_leave_the_newest_witness(tmp_path: Path) -> None:
    heads = [Head(ledger="l", seq=seq, hash=str(seq)) for seq in range(1, 65)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(Witness(tmp_path).advance, sorted(heads, key=lambda head: head.seq * 37 % 65)))
    assert Witness(tmp_path).read() == heads[-1]
    assert {path.name for path in tmp_path.iterdir()} == {"witness.json", ".witness.lock"}


def check(engine: sa.Engine, folder: Path, *, restored: bool = False) -> None:
    with transaction(engine) as connection:
        Witness(folder).check(connection, restored=restored)


def test_a_journal_that_went_on_after_its_witness_is_fine(engine: sa.Engine, tmp_path: Path) -> None:
    Witness(tmp_path).advance(write(engine))
    check(engine, tmp_path)
    write(engine)
    check(engine, tmp_path)


def test_a_new_journal_needs_no_witness_and_an_old_one_does(engine: sa.Engine, tmp_path: Path) -> None:
    check(engine, tmp_path)
    write(engine)
    with pytest.raises(Refused, match="has no witness of this ledger"):
        check(engine, tmp_path)
    check(engine, tmp_path, restored=True)


@pytest.mark.parametrize("since", [0, 1, 5])
def test_a_restored_journal_is_refused_also_when_it_went_on(tmp_path: Path, since: int) -> None:
    kept, copied = tmp_path / "kept", tmp_path / "copied"
    engine = database.connect(f"sqlite:///{kept}")
    with transaction(engine) as connection:
        journal.identify(connection)
    write(engine)
    shutil.copy(kept, copied)
    Witness(tmp_path).advance(write(engine, count=2))
    restored = database.connect(f"sqlite:///{copied}")
    write(restored, count=since)
    with pytest.raises(Refused, match="has un-spent"):
        check(restored, tmp_path)
    check(restored, tmp_path, restored=True)


@pytest.mark.parametrize("restored", [False, True])
def test_another_ledger_is_refused_also_as_a_restored_one(engine: sa.Engine, tmp_path: Path, *, restored: bool) -> None:
    Witness(tmp_path).advance(replace(write(engine), ledger="another"))
    with pytest.raises(Refused, match="belongs to ledger another"):
        check(engine, tmp_path, restored=restored)


@pytest.mark.parametrize(
    "content", ["", "[]", "{", '{"ledger": "l"}', '{"ledger": "l", "seq": 1, "hash": "h", "x": 1}']
)
def test_a_damaged_witness_is_not_taken_for_none(tmp_path: Path, content: str) -> None:
    (tmp_path / "witness.json").write_text(content)
    with pytest.raises(Corrupt, match="is damaged"):
        Witness(tmp_path).read()


def test_an_unreadable_witness_is_not_taken_for_none(tmp_path: Path) -> None:
    (tmp_path / "witness.json").mkdir()
    with pytest.raises(Unavailable, match="cannot be read"):
        Witness(tmp_path).read()
