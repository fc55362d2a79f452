"""Restored backups: they equal the original on either database, are locked, and continue with the same numbers."""

import json
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from dpca.backends.local import LocalPlace
from dpca.errors import Conflict, Corrupt, Invalid, Refused
from dpca.home import STAGING, database_url
from dpca.registry.reader import Registry
from storage.backups import copying as restoring
from storage.backups.contents import MANIFEST, Contents, read_rows
from storage.backups.copying import Target, create_backup, restore_backup
from storage.backups.signatures import open_backup
from storage.database import tables
from storage.database.engine import connect_as_is
from storage.ledger.ledger import Ledger
from storage.ledger.releases import remove_orphans
from storage.ledger.trail_export import KEY_FILE, signing_key
from storage.workspace import Workspace
from tests.conftest import ON_POSTGRESQL
from tests.s3 import Server
from tests.storage.backups.conftest import Move, fill, sign
from tests.storage.releasing import POPULATION, begin, publish

PASSPHRASE = "a dozen words or so"


@pytest.fixture
def other_url(filled: Ledger, request: pytest.FixtureRequest) -> Iterator[str]:
    """Yield the URL of an empty database of the other kind than the one that is backed up.

    The URL is empty for SQLite.
    """
    if not ON_POSTGRESQL or filled.engine.dialect.name == "postgresql":
        yield ""
        return
    with request.getfixturevalue("postgres").database() as url:
        yield url


def rows() -> dict[str, list[Any]]:
    with connect_as_is(database_url()).connect() as connection:
        kept = [table for table in tables.metadata.sorted_tables if table.name not in ("pointer", "charged_total")]
        return {table.name: sorted(map(repr, connection.execute(sa.select(table)))) for table in kept}


def shown() -> dict[str, tuple[str, tuple[str, ...]]]:
    return {str(row): (row.digest, row.aliases) for row in Registry.open().list()}


def test_restored_files_are_never_removed_as_orphans(
    filled_on_sqlite: Ledger, tmp_path: Path, move: Move, monkeypatch: pytest.MonkeyPatch
) -> None:
    def sweep_and_publish(self: LocalPlace, staged: Path, *args: Any, **options: Any) -> bool:
        remove_orphans(staging, among=[path.name for path in staging.iterdir()])
        return published(self, staged, *args, **options)

    consumers = shown()
    create_backup(tmp_path / "backup", passphrase=PASSPHRASE)
    for folder, _, _ in os.walk(tmp_path / "backup"):
        os.utime(folder, (0.0, 0.0))
    staging, published = move("other") / STAGING, LocalPlace.publish
    monkeypatch.setattr(LocalPlace, "publish", sweep_and_publish)
    restore_backup(tmp_path / "backup", into=Target.configured(), passphrase=PASSPHRASE)
    assert shown() == consumers
    for name in consumers:
        Registry.open().load(name)


def test_everything_is_restored_and_locked_until_accepted(
    filled: Ledger, tmp_path: Path, move: Move, other_url: str
) -> None:
    before, consumers, spent = rows(), shown(), filled.statement(POPULATION).spent
    create_backup(tmp_path / "backup", passphrase=PASSPHRASE)
    public = signing_key(filled.home / "keys").public_key()
    home = move("other", database_url=other_url)
    restore_backup(tmp_path / "backup", into=Target.configured(), passphrase=PASSPHRASE)
    assert rows() == before
    assert shown() == consumers
    assert signing_key(home / "keys").public_key() == public
    for _ in range(2):
        with pytest.raises(Refused, match="accept-restored"):
            Workspace.open()
        with pytest.raises(Refused, match="accept-restored"):
            Workspace.read_only()
    accepted = Workspace.open(accept_restored="the machine burnt").ledger
    assert accepted.statement(POPULATION).spent == spent
    assert [row.state for row in accepted.statement(POPULATION).releases].count("reserved") == 0
    accepted.verify()
    new = publish(Workspace.open().ledger, "sixth")
    assert {name: digest for name, (digest, _) in shown().items()} == {
        **{name: digest for name, (digest, _) in consumers.items()},
        "map@2": new,
    }


def test_spending_after_the_backup_is_charged_if_the_witness_exists(
    filled_on_sqlite: Ledger, tmp_path: Path, move: Move
) -> None:
    signed_by = create_backup(tmp_path / "backup").signed_by
    publish(filled_on_sqlite, "fifth")
    begin(filled_on_sqlite, "sixth")
    spent, consumers = filled_on_sqlite.statement(POPULATION).spent, shown()
    move("other", state=False)
    restore_backup(tmp_path / "backup", into=Target.configured(), key=signed_by)
    with pytest.raises(Refused):
        Workspace.open()
    accepted = Workspace.open(accept_restored="the disk died")
    assert [item.versions for item in accepted.recharged] == [("map@2",), ()]
    assert accepted.ledger.statement(POPULATION).spent == spent
    with pytest.raises(Corrupt, match="cannot be read"):
        Registry.open().load("map@2")  # no backup has the files of map@2; the version number is never reused
    publish(Workspace.open().ledger, "seventh")
    assert shown().keys() == {*consumers, "map@3"}


@pytest.mark.parametrize(("part", "found"), [("database", "holds ledger"), ("store", "is not empty")])
def test_a_restore_into_a_nonempty_target_is_refused_without_changes(
    filled_on_sqlite: Ledger, tmp_path: Path, part: str, found: str
) -> None:
    create_backup(tmp_path / "backup")
    publish(filled_on_sqlite, "later")
    before, consumers = rows(), shown()
    with pytest.raises(Refused, match=found) as refused:
        restore_backup(tmp_path / "backup", into=Target.configured(), only=[part])
    assert "\n" not in str(refused.value)
    assert (rows(), shown()) == (before, consumers)
    Workspace.open()


def test_a_restore_does_not_overwrite_another_key(filled_on_sqlite: Ledger, tmp_path: Path) -> None:
    create_backup(tmp_path / "backup", passphrase=PASSPHRASE)
    key = filled_on_sqlite.home / "keys" / KEY_FILE
    restore_backup(tmp_path / "backup", into=Target.configured(), only=["keys"], passphrase=PASSPHRASE)
    key.write_bytes(bytes(32))
    with pytest.raises(Refused, match="differs from the key in the backup"):
        restore_backup(tmp_path / "backup", into=Target.configured(), only=["keys"], passphrase=PASSPHRASE)
    assert key.read_bytes() == bytes(32)
    with pytest.raises(Invalid, match="'noise' is no part of a backup"):
        restore_backup(tmp_path / "backup", into=Target.configured(), only=["noise"])


def test_an_interrupted_restore_spends_nothing(
    filled_on_sqlite: Ledger, tmp_path: Path, move: Move, monkeypatch: pytest.MonkeyPatch
) -> None:
    signed_by = create_backup(tmp_path / "backup").signed_by
    move("other")

    def die(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as cut:
        cut.setattr(restoring, "read_rows", die)
        with pytest.raises(KeyboardInterrupt):
            restore_backup(tmp_path / "backup", into=Target.configured(), key=signed_by)
    with pytest.raises(Refused, match="did not publish"):
        Workspace.open()


@pytest.mark.parametrize("call", range(0, 12, 2))
def test_an_interrupted_restore_can_be_repeated_and_restores_everything(
    filled_on_sqlite: Ledger, tmp_path: Path, move: Move, monkeypatch: pytest.MonkeyPatch, call: int
) -> None:
    before, consumers, signed_by = rows(), shown(), create_backup(tmp_path / "backup").signed_by
    move("other")
    calls = 0

    def cut(function: Any) -> Any:
        def counted(*given: Any, **named: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls > call:
                raise KeyboardInterrupt
            return function(*given, **named)

        return counted

    with monkeypatch.context() as patch:
        for name in ("publish", "write"):
            patch.setattr(LocalPlace, name, cut(getattr(LocalPlace, name)))
        patch.setattr(restoring, "read_rows", cut(read_rows))
        with pytest.raises(KeyboardInterrupt):
            restore_backup(tmp_path / "backup", into=Target.configured(), key=signed_by)
    restore_backup(tmp_path / "backup", into=Target.configured(), key=signed_by)
    assert (rows(), shown()) == (before, consumers)
    with pytest.raises(Refused, match="the database holds"):
        restore_backup(tmp_path / "backup", into=Target.configured(), key=signed_by)


def test_a_database_that_is_filled_during_a_restore_is_not_changed(
    filled_on_sqlite: Ledger, tmp_path: Path, move: Move, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, signed_by = rows(), create_backup(tmp_path / "backup").signed_by
    move("other")
    put_back = vars(restoring)["put_back"]

    def restore_twice(*given: Any, **named: Any) -> None:
        put_back(*given, **named)
        monkeypatch.setattr(restoring, "put_back", put_back)
        restore_backup(tmp_path / "backup", into=Target.configured(), key=signed_by)

    monkeypatch.setattr(restoring, "put_back", restore_twice)
    with pytest.raises(Refused, match="the database holds"):
        restore_backup(tmp_path / "backup", into=Target.configured(), key=signed_by)
    assert rows() == before


def test_a_store_that_contains_another_file_is_refused(filled_on_sqlite: Ledger, tmp_path: Path, move: Move) -> None:
    signed_by = create_backup(tmp_path / "backup").signed_by
    move("other")
    (name, *_) = sorted((tmp_path / "backup" / "store" / "registry" / "names").iterdir())
    put = Target.configured().home / "registry" / "names" / name.name
    put.parent.mkdir(parents=True)
    put.write_bytes(b"{}")
    with pytest.raises(Refused, match="is not empty"):
        restore_backup(tmp_path / "backup", into=Target.configured(), key=signed_by)
    assert put.read_bytes() == b"{}"


@pytest.mark.parametrize("what", ["database/release.jsonl", "store/registry/names", "store/registry/artifacts"])
@pytest.mark.parametrize("by", ["bytes", "link"])
def test_files_exchanged_after_verification_are_not_restored(
    filled_on_sqlite: Ledger, tmp_path: Path, move: Move, monkeypatch: pytest.MonkeyPatch, what: str, by: str
) -> None:
    signed_by = create_backup(tmp_path / "backup").signed_by
    move("other")
    path = next(path for path in sorted((tmp_path / "backup").rglob("*")) if what in str(path) and path.is_file())
    checked = Contents.check_files

    def swapped(contents: Contents, folder: Path) -> None:
        checked(contents, folder)
        (tmp_path / "forged").write_bytes(path.read_bytes().replace(b"1", b"2"))
        path.unlink()
        if by == "link":
            path.symlink_to(tmp_path / "forged")
        else:
            (tmp_path / "forged").rename(path)

    monkeypatch.setattr(Contents, "check_files", swapped)
    with pytest.raises(Corrupt, match="differs from the file that was written"):
        restore_backup(tmp_path / "backup", into=Target.configured(), key=signed_by)


def test_a_backup_of_a_newer_version_is_refused(filled_on_sqlite: Ledger, tmp_path: Path, move: Move) -> None:
    backup = tmp_path / "backup"
    contents = create_backup(backup)
    sign(backup, replace(contents, migration="9999"))
    move("other")
    into = Target.configured()
    with pytest.raises(Refused, match="schema 9999, and this version of dpca restores only schema 0001"):
        restore_backup(backup, into=into, key=contents.signed_by)
    assert not (into.home / "registry").exists()
    reported = json.loads((backup / MANIFEST).read_text())
    (backup / MANIFEST).write_text(json.dumps(reported | {"version": 2}))
    with pytest.raises(Refused, match="with a newer dpca"):
        open_backup(backup)


def test_a_store_of_objects_is_backed_up_and_restored(
    state: Path, home: Path, tmp_path: Path, move: Move, s3_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    s3_server.enter(monkeypatch)
    monkeypatch.setenv("DPCA_STORE_URL", s3_server.url(f"{tmp_path.name}/first"))
    fill(Workspace.open().ledger)
    consumers = shown()
    signed_by = create_backup(tmp_path / "backup").signed_by
    move("other")
    monkeypatch.setenv("DPCA_STORE_URL", s3_server.url(f"{tmp_path.name}/second"))
    restore_backup(tmp_path / "backup", into=Target.configured(), key=signed_by)
    Workspace.open(accept_restored="the bucket is gone")
    assert shown() == consumers
    assert Registry.open().load("map@champion").components.shape == (2, 6)
    restore_backup(
        tmp_path / "backup", into=Target.configured(), only=["store"], key=signed_by
    )  # a second restore of the store has nothing to do
    publish(Workspace.open().ledger, "later")
    with pytest.raises(Refused, match="is not empty"):
        restore_backup(tmp_path / "backup", into=Target.configured(), only=["store"], key=signed_by)


def test_a_ledger_is_not_restored_next_to_the_witness_of_another(
    filled_on_sqlite: Ledger, tmp_path: Path, move: Move
) -> None:
    signed_by = create_backup(tmp_path / "backup").signed_by
    home = move("other")
    Workspace.open().ledger.open_budget("others", epsilon=1.0, delta=1e-6)
    for path in home.glob("dpca.sqlite*"):
        path.unlink()
    restore_backup(tmp_path / "backup", into=Target.configured(), only=["database", "store"], key=signed_by)
    with pytest.raises((Refused, Conflict), match="belongs to ledger"):
        Workspace.open(accept_restored="mixed up")
