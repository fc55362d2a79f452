"""The file of a witness survives a write that is cut short anywhere."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from storage.backends import crash_points
from storage.errors import Corrupt, Unavailable
from storage.ledger import witness_file
from storage.ledger.journal import Head
from storage.ledger.witness import Witness

HEADS = [Head(ledger="ab" * 16, seq=seq, hash=f"{seq:064x}") for seq in range(5)]
PAGE = 4096


@pytest.fixture
def witness(tmp_path: Path) -> Witness:
    """Return a witness that saw three events."""
    witness = Witness(tmp_path)
    for head in HEADS[1:4]:
        witness.advance(head)
    return witness


def file_of(witness: Witness) -> Path:
    return witness.folder / "witness.json"


def test_the_older_copy_is_written_over_and_the_file_stays(witness: Witness) -> None:
    path = file_of(witness)
    before, number = path.read_bytes(), path.stat().st_ino
    witness.advance(HEADS[4])
    after = path.read_bytes()
    assert path.stat().st_ino == number
    assert [before[at:][:PAGE] == after[at:][:PAGE] for at in (0, PAGE)] in ([True, False], [False, True])
    assert witness.read() == HEADS[4]


@pytest.mark.parametrize("written", [0, 1, 60, 200, 512, PAGE - 1])
def test_a_write_cut_short_leaves_the_event_before_and_the_next_one_is_written(witness: Witness, written: int) -> None:
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


def test_one_flipped_bit_in_both_copies_is_damage_and_in_one_is_a_write_cut_short(witness: Witness) -> None:
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


def test_an_operator_moves_both_copies_back(witness: Witness) -> None:
    witness.advance(HEADS[1], back=True)
    assert file_of(witness).read_bytes() == witness_file.encode(HEADS[1])
    witness.advance(HEADS[2])
    assert witness.read() == HEADS[2]


def test_an_event_is_one_sync_and_it_comes_before_anything_else(
    witness: Witness, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    sync = os.fsync

    def synced(file: int) -> None:
        sync(file)
        done.append("sync")

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(crash_points, "hook", done.append)
    witness.advance(HEADS[4])
    assert done == ["sync", "witness.synced"]


@pytest.mark.parametrize("error", ["pwrite", "fsync"])
def test_a_disk_that_fails_is_one_clear_error_and_the_event_before_is_still_there(
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


def test_two_processes_that_go_on_by_turns_leave_the_newest_event_whole(tmp_path: Path) -> None:
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
