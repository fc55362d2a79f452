"""Keys are private, and go with what crashes leave."""

import errno
import os
import stat
import time
from pathlib import Path

import pytest

from storage.database import tables
from storage.errors import Unavailable
from storage.ledger.ledger import Ledger
from storage.ledger.orphans import ORPHAN_AFTER, remove_orphans
from storage.ledger.secret_keys import KeyFolder
from storage.workspace import Workspace
from tests.storage.releasing import (
    ANSWER,
    begin,
    commit,
    key_names,
    open_budget,
    reserve,
)


def age(path: Path, seconds: float) -> None:
    then = time.time() - seconds
    os.utime(path, (then, then))


def test_a_key_is_private_and_appears_in_no_text(sqlite_budget: Ledger) -> None:
    begun = begin(sqlite_budget)
    folder = sqlite_budget.home / "keys"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE((folder / begun.release_id).stat().st_mode) == 0o600
    key = begun.key
    with sqlite_budget.transaction() as connection:
        stored = " ".join(
            str(row) for table in tables.metadata.sorted_tables for row in connection.execute(table.select())
        )
    for text in (repr(begun), str(begun), stored):
        assert key.hex() not in text
        assert repr(key) not in text


def test_keys_without_a_row_go_at_once_other_orphans_after_an_hour_and_all_else_stays(sqlite_budget: Ledger) -> None:
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
    young = [keys_ / f".{names[1]}.tmp", staging / names[1]]
    for path in (*old, *kept):
        age(path, ORPHAN_AFTER + 60)
    for path in young:
        age(path, ORPHAN_AFTER - 60)
    Workspace.open()
    assert [path.exists() for path in (*old, keys_ / names[1])] == [False] * 4
    assert [path.exists() for path in (*young, *kept)] == [True] * 6
    assert live.kept(0) is not None


@pytest.mark.parametrize("orphans", [0, 1])
def test_a_key_drawn_while_a_sweep_slept_is_kept_whatever_the_clock_says(
    sqlite_budget: Ledger, monkeypatch: pytest.MonkeyPatch, orphans: int
) -> None:
    folder, drawn = sqlite_budget.home / "keys", list[str]()
    for number in range(orphans):
        (folder / f"{number:032x}").write_bytes(b"k" * 32)
    listed = KeyFolder.release_ids

    def and_then_sleep(keys: KeyFolder) -> list[str]:
        found = listed(keys)
        if not drawn:
            drawn.append("")  # another process, which lists nothing
            drawn.append(reserve(sqlite_budget).release_id)
            for path in folder.iterdir():
                age(path, ORPHAN_AFTER + 60)
        return found

    monkeypatch.setattr(KeyFolder, "release_ids", and_then_sleep)
    sqlite_budget.sweep()
    assert key_names(sqlite_budget) == {drawn[1]}


def test_what_a_crash_left_of_an_ended_release_is_removed_at_once(sqlite_budget: Ledger) -> None:
    begun = begin(sqlite_budget)
    begun.keep(0, ANSWER)
    key = begun.key
    commit(sqlite_budget, begun.release_id)
    (sqlite_budget.home / "keys" / begun.release_id).write_bytes(key)
    (sqlite_budget.home / "staging" / begun.release_id).mkdir()
    Workspace.open()
    assert key_names(sqlite_budget) == set()
    assert not (sqlite_budget.home / "staging" / begun.release_id).exists()


def test_a_lost_key_is_named_and_a_kept_step_needs_none(sqlite_budget: Ledger) -> None:
    begun = begin(sqlite_budget)
    begun.keep(0, ANSWER)
    (sqlite_budget.home / "keys" / begun.release_id).unlink()
    resumed = Workspace.open().ledger.begin(begun.release_id)
    assert resumed.kept(0) is not None
    with pytest.raises(Unavailable, match="close the release"):
        _ = resumed.key


def test_a_key_folder_elsewhere_is_used(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DPCA_KEY_FOLDER", str(tmp_path / "elsewhere" / "keys"))
    ledger = Workspace.open().ledger
    open_budget(ledger)
    release_id = reserve(ledger).release_id
    assert (tmp_path / "elsewhere" / "keys" / release_id).exists()
    assert not (home / "keys").exists()


def test_a_folder_into_which_somebody_still_writes_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock of its writer, or of who sweeps, may have jumped."""
    staged = tmp_path / f"{0:032x}"
    staged.mkdir()
    age(staged, ORPHAN_AFTER + 60.0)

    def refuses(*_: object, **__: object) -> None:
        raise OSError(errno.ENOTEMPTY, "Directory not empty")

    with monkeypatch.context() as patch:
        patch.setattr(os, "rmdir", refuses)
        remove_orphans(tmp_path, among={staged.name})
    assert staged.is_dir()
    remove_orphans(tmp_path, among={staged.name})
    assert not staged.exists()
