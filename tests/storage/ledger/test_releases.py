"""States and keys of releases.

A release begins and ends once: committed, closed or abandoned. The id of a release is derived from its key. A key is
readable by its owner alone, and is removed when the release ends. Keys and other leftovers of crashes are removed.
"""

import errno
import os
import stat
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import sqlalchemy as sa

from dpca.errors import Conflict, Corrupt, Finished, NotFound, Refused, Unavailable
from storage.database import tables
from storage.datasets.catalog import Catalog
from storage.ledger import releases
from storage.ledger.ledger import Ledger, Release
from storage.ledger.releases import ORPHAN_AFTER, KeyFolder, new_key, release_id_of, remove_orphans
from storage.workspace import Workspace
from tests.storage.releasing import (
    ANSWER,
    EPSILON,
    POPULATION,
    begin,
    calibrated,
    commit,
    event_names,
    key_names,
    manifest,
    open_budget,
    reserve,
)


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
    message = (
        "was finished by another process" if state == "committed" else f"is {state}; repeat the request with another"
    )
    with pytest.raises(Refused, match=message):
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


def test_only_unbegun_releases_are_abandoned_and_only_begun_ones_closed_or_committed(budget: Ledger) -> None:
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
    with pytest.raises(Finished, match="a release has one artifact"):
        budget.commit(begun.release_id, artifact_digest="e", record=record)
    assert len(calls) == 2
    assert event_names(budget).count("release_committed") == 1


def test_a_commit_with_a_failing_record_is_rolled_back(budget: Ledger) -> None:
    begun = begin(budget)

    def record(connection: sa.Connection) -> None:
        connection.execute(tables.alias.insert().values(name="n", alias="a", version=1))
        raise Conflict("no")

    with pytest.raises(Conflict):
        budget.commit(begun.release_id, artifact_digest="d", record=record)
    assert reserve(budget).state == "noising"
    assert len(begun.key) == 32
    with budget.transaction() as connection:
        assert connection.execute(sa.select(tables.alias)).all() == []


@pytest.mark.parametrize("relation", ["add_remove", "zero_out", "replace_one"])
def test_beginning_a_release_returns_its_charged_relation_and_content_digest(ledger: Ledger, relation: str) -> None:
    """Begin a release: the ledger must return the charged relation, and the content digest of the snapshot.

    The rows may have been registered before the reservation: terms never change, and a removed snapshot keeps its row.
    """
    open_budget(ledger, relation=relation)
    digest, catalog = "c" * 64, Catalog(ledger.engine, ledger.home)
    catalog.register(manifest(ledger.id), path="datasets/news/s")
    begun = begin(ledger)
    assert (begun.relation, begun.content) == (relation, digest)
    assert digest not in repr(begun)
    catalog.remove("news", force=True)
    assert ledger.begin(begun.release_id).content == digest


def test_a_snapshot_that_was_never_registered_has_no_digest(budget: Ledger) -> None:
    assert begin(budget).content is None


KEY = bytes(range(32))


@pytest.fixture
def folder(tmp_path: Path) -> KeyFolder:
    return KeyFolder(tmp_path / "home" / "keys")


def test_a_stored_key_is_read_back(folder: KeyFolder) -> None:
    folder.create(release_id_of(KEY), KEY)
    assert folder.read(release_id_of(KEY)) == KEY
    assert folder.release_ids() == [release_id_of(KEY)]


def test_only_the_owner_may_read(folder: KeyFolder) -> None:
    old = os.umask(0)
    try:
        folder.create(release_id_of(KEY), KEY)
    finally:
        os.umask(old)
    assert stat.S_IMODE(folder.folder.stat().st_mode) == 0o700
    assert stat.S_IMODE((folder.folder / release_id_of(KEY)).stat().st_mode) == 0o600


def test_an_erased_key_is_gone_and_can_be_erased_again(folder: KeyFolder) -> None:
    folder.create(release_id_of(KEY), KEY)
    for _ in range(2):
        folder.erase(release_id_of(KEY))
    assert list(folder.folder.iterdir()) == []
    with pytest.raises(Unavailable, match="close the release"):
        folder.read(release_id_of(KEY))


@pytest.mark.parametrize("content", [b"", KEY[:-1], KEY + b"\n", KEY[:-1] + b"\0"])
def test_a_key_that_does_not_match_the_release_id_is_refused(folder: KeyFolder, content: bytes) -> None:
    folder.create(release_id_of(KEY), KEY)
    (folder.folder / release_id_of(KEY)).write_bytes(content)
    with pytest.raises(Corrupt, match="is not the key of this release"):
        folder.read(release_id_of(KEY))


def test_an_impossible_key_folder_is_reported_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(Unavailable, match="cannot be written"):
        KeyFolder(tmp_path / "file" / "keys").create("a", KEY)


def test_a_folder_that_was_never_used_has_no_keys(folder: KeyFolder) -> None:
    assert folder.release_ids() == []


def test_files_that_are_not_keys_are_ignored(folder: KeyFolder) -> None:
    folder.create(release_id_of(KEY), KEY)
    for name in ("witness.json", ".witness.lock", f".{'0' * 32}.tmp", "G" * 32, "0" * 31):
        (folder.folder / name).touch()
    assert folder.release_ids() == [release_id_of(KEY)]


def test_each_drawn_key_is_new_and_complete() -> None:
    drawn = {new_key() for _ in range(100)}
    assert len(drawn) == 100
    assert {len(key) for key in drawn} == {releases.KEY_BYTES} == {32}


def test_the_id_of_a_release_is_derived_from_its_key_without_revealing_it() -> None:
    # computed as HMAC-SHA256 of the label under the key, by `openssl dgst -sha256 -mac HMAC`
    assert release_id_of(KEY) == "d91f93869dcd54a851d9f6c92564061f"
    assert KEY.hex() not in release_id_of(KEY)


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


def test_keys_without_a_row_are_removed_at_once_and_other_orphans_after_an_hour(sqlite_budget: Ledger) -> None:
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
def test_a_key_drawn_during_a_paused_cleanup_is_kept(
    sqlite_budget: Ledger, monkeypatch: pytest.MonkeyPatch, orphans: int
) -> None:
    folder, drawn = sqlite_budget.home / "keys", list[str]()
    for number in range(orphans):
        (folder / f"{number:032x}").write_bytes(b"k" * 32)
    listed = KeyFolder.release_ids

    def and_then_sleep(keys: KeyFolder) -> list[str]:
        found = listed(keys)
        if not drawn:
            drawn.append("")  # runs once, as another process that reserves between the listing and the removal of keys
            drawn.append(reserve(sqlite_budget).release_id)
            for path in folder.iterdir():
                age(path, ORPHAN_AFTER + 60)
        return found

    monkeypatch.setattr(KeyFolder, "release_ids", and_then_sleep)
    sqlite_budget.sweep()
    assert key_names(sqlite_budget) == {drawn[1]}


def test_leftovers_of_an_ended_release_are_removed_at_once(sqlite_budget: Ledger) -> None:
    begun = begin(sqlite_budget)
    begun.keep(0, ANSWER)
    key = begun.key
    commit(sqlite_budget, begun.release_id)
    (sqlite_budget.home / "keys" / begun.release_id).write_bytes(key)
    (sqlite_budget.home / "staging" / begun.release_id).mkdir()
    Workspace.open()
    assert key_names(sqlite_budget) == set()
    assert not (sqlite_budget.home / "staging" / begun.release_id).exists()


def test_a_lost_key_is_named_and_a_stored_step_needs_no_key(sqlite_budget: Ledger) -> None:
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


def test_a_folder_that_is_still_written_to_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail to remove an old folder because it is not empty: the folder must remain.

    A process may still be writing into it, because the clock of this or of that process may have jumped.
    """
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
