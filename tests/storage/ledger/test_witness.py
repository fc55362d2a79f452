"""Witnesses of the journal: they only move forward, and detect rollbacks of the database.

Witnesses record what a copy of the database would forget. The file of a witness survives a write that is interrupted
anywhere.
"""

import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import sqlalchemy as sa

from dpca.backends import atomic_files
from dpca.errors import Corrupt, Refused, Unavailable
from storage.database.engine import connect, transaction
from storage.ledger import journal
from storage.ledger import witness as witness_file
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


def test_the_witness_contains_the_last_recorded_event(tmp_path: Path) -> None:
    witness = Witness(tmp_path / "keys")
    assert witness.read() is None
    head = Head(ledger="l", seq=3, hash="h")
    witness.advance(head)
    assert witness.read() == head


def test_the_witness_never_moves_back_without_an_explicit_request(tmp_path: Path) -> None:
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


def test_a_journal_newer_than_its_witness_is_accepted(engine: sa.Engine, tmp_path: Path) -> None:
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
def test_a_restored_journal_is_refused_even_after_new_events(tmp_path: Path, since: int) -> None:
    kept, copied = tmp_path / "kept", tmp_path / "copied"
    engine = connect(f"sqlite:///{kept}")
    with transaction(engine) as connection:
        journal.identify(connection)
    write(engine)
    shutil.copy(kept, copied)
    Witness(tmp_path).advance(write(engine, count=2))
    restored = connect(f"sqlite:///{copied}")
    write(restored, count=since)
    with pytest.raises(Refused, match="counts less than was spent"):
        check(restored, tmp_path)
    check(restored, tmp_path, restored=True)


@pytest.mark.parametrize("restored", [False, True])
def test_another_ledger_is_refused_even_as_a_restored_one(engine: sa.Engine, tmp_path: Path, *, restored: bool) -> None:
    Witness(tmp_path).advance(replace(write(engine), ledger="another"))
    with pytest.raises(Refused, match="belongs to ledger another"):
        check(engine, tmp_path, restored=restored)


@pytest.mark.parametrize(
    "content", ["", "[]", "{", '{"ledger": "l"}', '{"ledger": "l", "seq": 1, "hash": "h", "x": 1}']
)
def test_a_damaged_witness_is_not_treated_as_missing(tmp_path: Path, content: str) -> None:
    (tmp_path / "witness.json").write_text(content)
    with pytest.raises(Corrupt, match="is damaged"):
        Witness(tmp_path).read()


def test_an_unreadable_witness_is_not_treated_as_missing(tmp_path: Path) -> None:
    (tmp_path / "witness.json").mkdir()
    with pytest.raises(Unavailable, match="cannot be read"):
        Witness(tmp_path).read()


def test_a_pipe_is_a_damaged_witness_and_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "witness.json")
    with pytest.raises(Corrupt, match="is damaged"):
        Witness(tmp_path).read()


def test_the_next_event_detects_that_a_copy_of_the_ledger_was_used(tmp_path: Path) -> None:
    engines = []
    for name in ("one", "other"):
        engines.append(connect(f"sqlite:///{tmp_path / name}"))
        if name == "one":
            with transaction(engines[0]) as connection:
                journal.identify(connection)
            write(engines[0])
            shutil.copy(tmp_path / "one", tmp_path / "other")
    at_work = [Witnesses(local=tmp_path / f"keys-{number}", separate=tmp_path / "separate") for number in range(2)]
    for engine, witness in zip(engines, at_work, strict=True):
        with transaction(engine) as connection:
            witness.check(connection, restored=True)
            current = journal.head(connection)
        witness.advance(current, engine=engine)
    at_work[0].advance(write(engines[0], count=1), engine=engines[0])
    for count in (1, 2):
        with pytest.raises(Refused, match="another copy is in use"):
            at_work[1].advance(write(engines[1], count=count), engine=engines[1])


def test_another_process_of_the_same_ledger_is_not_reported_as_a_copy(engine: sa.Engine, tmp_path: Path) -> None:
    at_work = [Witnesses(local=tmp_path / "keys", separate=tmp_path / "separate") for _ in range(2)]
    for turn in range(4):
        last = write(engine, count=1)
        at_work[turn % 2].advance(last, engine=engine)
        assert Witness(tmp_path / "separate").read() == last


def test_a_running_process_detects_a_restored_ledger_before_writing(sqlite_budget: Ledger) -> None:
    url = str(sqlite_budget.engine.url.database)
    shutil.copy(url, f"{url}.copy")
    reserve(sqlite_budget, "forgotten")
    shutil.copy(f"{url}.copy", url)
    for attempt in (partial(reserve, sqlite_budget, "next"), partial(open_budget, sqlite_budget, "others")):
        with pytest.raises(Refused, match="restored from an older copy, or another copy"):
            attempt()
    with transaction(sqlite_budget.engine) as connection:
        assert journal.head(connection).seq == 2


def test_a_running_process_detects_a_restored_ledger_after_many_events(sqlite_budget: Ledger) -> None:
    url = str(sqlite_budget.engine.url.database)
    release = begin(sqlite_budget).release_id
    shutil.copy(url, f"{url}.copy")
    promoted = partial(sqlite_budget.commit, release, artifact_digest="d" * 64)
    reserve(sqlite_budget, "forgotten")
    shutil.copy(f"{url}.copy", url)

    def publish(connection: sa.Connection) -> None:
        for population in ("a", "b"):
            journal.append(connection, "budget_opened", population=population)

    with pytest.raises(Refused, match="lacks the committed entry"):
        promoted(record=publish)


def test_notes_are_read_in_order_without_an_incomplete_last_line(tmp_path: Path) -> None:
    witness = Witnesses(local=tmp_path, separate=tmp_path / "separate")
    assert witness.noted() == []
    witness.note([{"release": {"id": "a"}}, {"version": 1}])
    path = tmp_path / "separate" / "notes.jsonl"
    path.write_bytes(path.read_bytes() + b'{"release": {"i')
    assert witness.noted() == [{"release": {"id": "a"}}, {"version": 1}]
    witness.note([{"version": 2}])
    assert witness.noted() == [{"release": {"id": "a"}}, {"version": 1}, {"version": 2}]
    assert path.stat().st_mode & 0o777 == 0o600


HEADS = [Head(ledger="ab" * 16, seq=seq, hash=f"{seq:064x}") for seq in range(5)]
PAGE = 4096


@pytest.fixture
def witness(tmp_path: Path) -> Witness:
    """Return a witness that has recorded three journal entries."""
    witness = Witness(tmp_path)
    for head in HEADS[1:4]:
        witness.advance(head)
    return witness


def file_of(witness: Witness) -> Path:
    return witness.folder / "witness.json"


def test_the_older_copy_of_the_witness_is_overwritten_in_place(witness: Witness) -> None:
    path = file_of(witness)
    before, number = path.read_bytes(), path.stat().st_ino
    witness.advance(HEADS[4])
    after = path.read_bytes()
    assert path.stat().st_ino == number
    assert [before[at:][:PAGE] == after[at:][:PAGE] for at in (0, PAGE)] in ([True, False], [False, True])
    assert witness.read() == HEADS[4]


@pytest.mark.parametrize("written", [0, 1, 60, 200, 512, PAGE - 1])
def test_an_interrupted_write_keeps_the_previous_event(witness: Witness, written: int) -> None:
    path = file_of(witness)
    before = path.read_bytes()
    witness.advance(HEADS[4])
    after = path.read_bytes()
    at = next(at for at in (0, PAGE) if before[at : at + PAGE] != after[at : at + PAGE])
    torn = after[: at + written] + before[at + written :]
    path.write_bytes(torn)
    assert witness.read() in ((HEADS[3],) if written < 200 else (HEADS[3], HEADS[4]))
    path.write_bytes(after[:at] + after[at : at + written].ljust(PAGE, b"\0") + after[at + PAGE :])
    assert witness.read() == HEADS[3]
    witness.advance(HEADS[2])
    assert witness.read() == HEADS[3]
    witness.advance(HEADS[4])
    assert witness.read() == HEADS[4]
    assert path.read_bytes() == after


def test_a_flipped_bit_is_damage_in_both_copies_and_an_interrupted_write_in_one(witness: Witness) -> None:
    path = file_of(witness)
    sound = path.read_bytes()
    for bit in range(0, 8 * 200, 17):
        damaged = bytearray(sound)
        damaged[bit // 8] ^= 1 << bit % 8
        path.write_bytes(damaged)
        assert witness.read() in HEADS[2:4]
        damaged[PAGE + bit // 8] ^= 1 << bit % 8
        path.write_bytes(damaged)
        with pytest.raises(Corrupt, match=r"witness\.json is damaged; restore it from a copy\."):
            witness.read()
        with pytest.raises(Corrupt, match="is damaged"):
            witness.advance(HEADS[4])


@pytest.mark.parametrize("length", [0, 1, 300, PAGE, PAGE + 1, 2 * PAGE - 1, 2 * PAGE + 1])
def test_a_file_of_another_length_is_damaged(witness: Witness, length: int) -> None:
    path = file_of(witness)
    path.write_bytes((path.read_bytes() + b"\0")[:length])
    with pytest.raises(Corrupt, match="is damaged"):
        witness.read()


def test_an_operator_can_move_both_copies_of_the_witness_back(witness: Witness) -> None:
    witness.advance(HEADS[1], back=True)
    assert file_of(witness).read_bytes() == witness_file.encode(HEADS[1])
    witness.advance(HEADS[2])
    assert witness.read() == HEADS[2]


def test_recording_an_event_needs_one_sync_before_anything_else(
    witness: Witness, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    sync = os.fsync

    def synced(file: int) -> None:
        sync(file)
        done.append("sync")

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(atomic_files, "hook", done.append)
    witness.advance(HEADS[4])
    assert done == ["sync", "witness.synced"]


@pytest.mark.parametrize("error", ["pwrite", "fsync"])
def test_a_failing_disk_is_one_clear_error_and_the_previous_event_is_kept(
    witness: Witness, monkeypatch: pytest.MonkeyPatch, error: str
) -> None:
    def fail(*_: object) -> int:
        if error == "pwrite":
            return 100
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as failing:
        failing.setattr(os, error, fail)
        with pytest.raises(Unavailable, match="cannot be written"):
            witness.advance(HEADS[4])
    assert witness.read() in HEADS[3:]
    witness.advance(HEADS[4])
    assert witness.read() == HEADS[4]


def test_reading_a_witness_writes_and_locks_nothing(witness: Witness) -> None:
    (witness.folder / ".witness.lock").unlink()
    before = file_of(witness).stat()
    assert witness.read() == HEADS[3]
    assert [path.name for path in witness.folder.iterdir()] == ["witness.json"]
    assert file_of(witness).stat().st_mtime_ns == before.st_mtime_ns


def test_two_alternating_processes_leave_the_complete_newest_event(tmp_path: Path) -> None:
    program = (
        "import sys, pathlib\n"
        "from storage.ledger.journal import Head\n"
        "from storage.ledger.witness import Witness\n"
        "witness, mine = Witness(pathlib.Path(sys.argv[1])), int(sys.argv[2])\n"
        "for seq in range(mine, 200, 2):\n"
        "    witness.advance(Head(ledger='l', seq=seq, hash=str(seq)))\n"
        "    seen = witness.read()\n"
        "    assert seen.seq >= seq and seen.hash == str(seen.seq), seen\n"
    )
    started = [subprocess.Popen([sys.executable, "-c", program, str(tmp_path), str(mine)]) for mine in range(2)]
    assert [process.wait() for process in started] == [0, 0]
    assert Witness(tmp_path).read() == Head(ledger="l", seq=199, hash="199")
