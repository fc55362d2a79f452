"""Witnesses move forward only, miss what was taken back, and note what a copy would forget."""

import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import sqlalchemy as sa

from storage.database.engine import connect, transaction
from storage.errors import Corrupt, Refused, Unavailable
from storage.ledger import journal
from storage.ledger.journal import Head
from storage.ledger.ledger import Ledger
from storage.ledger.witness import Witness, Witnesses
from tests.storage.ledger.test_journal import write
from tests.storage.releasing import begin, open_budget, reserve


@pytest.fixture
def engine(database_url: str) -> sa.Engine:
    engine = connect(database_url)
    with transaction(engine) as connection:
        journal.identify(connection)
    return engine


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
        Witness(folder).check(connection, journal.head(connection), restored=restored)


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
    engine = connect(f"sqlite:///{kept}")
    with transaction(engine) as connection:
        journal.identify(connection)
    write(engine)
    shutil.copy(kept, copied)
    Witness(tmp_path).advance(write(engine, count=2))
    restored = connect(f"sqlite:///{copied}")
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


def test_a_pipe_is_a_damaged_witness_and_nobody_waits_for_it(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "witness.json")
    with pytest.raises(Corrupt, match="is damaged"):
        Witness(tmp_path).read()


def test_a_copy_that_went_on_is_missed_by_the_next_event_of_the_other(tmp_path: Path) -> None:
    engines = []
    for name in ("one", "other"):
        engines.append(connect(f"sqlite:///{tmp_path / name}"))
        if name == "one":
            with transaction(engines[0]) as connection:
                journal.identify(connection)
            write(engines[0])
            shutil.copy(tmp_path / "one", tmp_path / "other")
    at_work = [Witnesses(beside=tmp_path / f"keys-{number}", apart=tmp_path / "apart") for number in range(2)]
    for engine, witness in zip(engines, at_work, strict=True):
        with transaction(engine) as connection:
            witness.check(connection, restored=True)
            current = journal.head(connection)
        witness.advance(current, engine=engine)
    at_work[0].advance(write(engines[0], count=1), engine=engines[0])
    for count in (1, 2):
        with pytest.raises(Refused, match="another copy of it is in use"):
            at_work[1].advance(write(engines[1], count=count), engine=engines[1])


def test_another_process_of_the_same_ledger_is_no_copy(engine: sa.Engine, tmp_path: Path) -> None:
    at_work = [Witnesses(beside=tmp_path / "keys", apart=tmp_path / "apart") for _ in range(2)]
    for turn in range(4):
        last = write(engine, count=1)
        at_work[turn % 2].advance(last, engine=engine)
        assert Witness(tmp_path / "apart").read() == last


def test_a_process_at_work_notices_that_its_ledger_forgot_before_it_writes(sqlite_budget: Ledger) -> None:
    url = str(sqlite_budget.engine.url.database)
    shutil.copy(url, f"{url}.copy")
    reserve(sqlite_budget, "forgotten")
    shutil.copy(f"{url}.copy", url)
    for attempt in (partial(reserve, sqlite_budget, "next"), partial(open_budget, sqlite_budget, "others")):
        with pytest.raises(Refused, match="restored from a copy, or another copy"):
            attempt()
    with transaction(sqlite_budget.engine) as connection:
        assert journal.head(connection).seq == 2


def test_a_process_that_writes_more_than_was_forgotten_notices_it_too(sqlite_budget: Ledger) -> None:
    url = str(sqlite_budget.engine.url.database)
    release = begin(sqlite_budget).release_id
    shutil.copy(url, f"{url}.copy")
    promoted = partial(sqlite_budget.commit, release, artifact_digest="d" * 64)
    reserve(sqlite_budget, "forgotten")
    shutil.copy(f"{url}.copy", url)

    def publish(connection: sa.Connection) -> None:
        for population in ("a", "b"):
            journal.append(connection, "budget_opened", population=population)

    with pytest.raises(Refused, match="lacks event"):
        promoted(record=publish)


def test_notes_are_kept_in_order_and_half_a_line_is_none(tmp_path: Path) -> None:
    witness = Witnesses(beside=tmp_path, apart=tmp_path / "apart")
    assert witness.noted() == []
    witness.note([{"release": {"id": "a"}}, {"version": 1}])
    path = tmp_path / "apart" / "notes.jsonl"
    path.write_bytes(path.read_bytes() + b'{"release": {"i')
    assert witness.noted() == [{"release": {"id": "a"}}, {"version": 1}]
    witness.note([{"version": 2}])
    assert witness.noted() == [{"release": {"id": "a"}}, {"version": 1}, {"version": 2}]
    assert path.stat().st_mode & 0o777 == 0o600
