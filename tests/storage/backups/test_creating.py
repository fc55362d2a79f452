"""A backup is of one point of the journal, whole or not there, closed to others, and holds no key that adds noise."""

import hashlib
import re
import stat
from pathlib import Path

import pytest

from storage.backends.base import Stored
from storage.backends.local import LocalPlace
from storage.backups import contents as manifest
from storage.backups import creating
from storage.backups.contents import STORE, fingerprint
from storage.backups.creating import create_backup
from storage.backups.rehearsing import rehearse_backup
from storage.backups.signatures import open_backup
from storage.errors import Corrupt, NotFound, Refused, Unavailable
from storage.home import database_url
from storage.ledger.ledger import Ledger
from storage.ledger.trail_export import KEY_FILE
from storage.registry.signed_pointers import PUBLISHERS_KEY
from storage.workspace import Workspace
from tests.storage.releasing import POPULATION, key_names, publish

PASSPHRASE = "a dozen words or so"


def test_no_key_of_a_release_no_staged_step_and_no_witness_is_in_it(filled_on_sqlite: Ledger, tmp_path: Path) -> None:
    keys = filled_on_sqlite.home / "keys"
    noise = [(keys / name).read_bytes() for name in key_names(filled_on_sqlite) if len(name) == 32]
    assert len(noise) == 2, "of a release that began, and of one that is reserved"
    staged = [path.read_bytes() for path in (filled_on_sqlite.home / "staging").rglob("*.npz")]
    secrets = [*noise, *staged, *((keys / name).read_bytes() for name in (PUBLISHERS_KEY, KEY_FILE))]
    create_backup(tmp_path / "backup", datasets=True, passphrase=PASSPHRASE)
    for path in (tmp_path / "backup").rglob("*"):
        assert "witness" not in path.name
        held = path.read_bytes() if path.is_file() else b""
        assert not any(secret in held or secret.hex().encode() in held for secret in secrets), path
    assert open_backup(tmp_path / "backup").keys == (PUBLISHERS_KEY, KEY_FILE)


def test_it_is_closed_to_others_and_lists_every_file(filled_on_sqlite: Ledger, tmp_path: Path) -> None:
    contents = create_backup(tmp_path / "new" / "backup")
    contents.check_files(tmp_path / "new" / "backup")
    assert contents == open_backup(tmp_path / "new" / "backup")
    assert contents.spent == {POPULATION: filled_on_sqlite.statement(POPULATION).spent}
    assert (contents.missing, contents.keys) == ((), ())
    for path in (tmp_path / "new" / "backup", *(tmp_path / "new" / "backup").rglob("*")):
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600)


def test_one_that_fails_leaves_nothing(
    filled_on_sqlite: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_folder: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(creating, "list_files", full)
    with pytest.raises(Unavailable, match="No space left"):
        create_backup(tmp_path / "backups" / "monday")
    assert list((tmp_path / "backups").iterdir()) == []


def test_what_others_do_meanwhile_is_left_to_the_next_one(
    filled: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = filled.verify()
    write = vars(creating)["write_rows"]

    def publish_first(*args: object) -> None:
        publish(filled, "fifth")
        write(*args)

    monkeypatch.setattr(creating, "write_rows", publish_first)
    contents = create_backup(tmp_path / "backup")
    assert contents.entries == before < filled.verify()
    assert rehearse_backup(tmp_path / "backup", database_url=database_url()).versions == 3


def test_it_is_neither_written_over_another_nor_into_the_home(filled_on_sqlite: Ledger, tmp_path: Path) -> None:
    with pytest.raises(Refused, match="part of the home"):
        create_backup(filled_on_sqlite.home / "backup")
    create_backup(tmp_path / "backup")
    with pytest.raises(Refused, match="never written over"):
        create_backup(tmp_path / "backup")
    with pytest.raises(NotFound, match="is no backup"):
        open_backup(tmp_path)


def test_an_artifact_that_is_lost_is_listed_and_the_rest_is_backed_up(filled_on_sqlite: Ledger, tmp_path: Path) -> None:
    digest = Workspace.open().registry.resolve("map@1").digest
    damaged = filled_on_sqlite.home / "registry" / "artifacts" / digest / "manifest.json"
    damaged.write_text(damaged.read_text() + " ")
    contents = create_backup(tmp_path / "backup")
    assert contents.missing == (f"registry/artifacts/{digest}",)
    assert rehearse_backup(tmp_path / "backup", database_url=database_url()).missing == 1


@pytest.mark.parametrize("folder", ["registry/names", "registry/signatures", "trail"])
def test_a_small_file_that_is_lost_is_listed_and_those_beside_it_are_backed_up(
    filled_on_sqlite: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str
) -> None:
    home, backup, read = filled_on_sqlite.home, tmp_path / "backup", LocalPlace.read
    held = sorted(path.relative_to(home).as_posix() for path in (home / folder).rglob("*") if path.is_file())
    lost, beside = held[0], held[1:]

    def read_others(place: LocalPlace, path: str) -> Stored:
        if path == lost:
            raise FileNotFoundError(path)  # it went after it was listed
        return read(place, path)

    monkeypatch.setattr(LocalPlace, "read", read_others)
    assert create_backup(backup).missing == (lost,)
    assert not (backup / STORE / lost).exists()
    for path in beside:
        assert (backup / STORE / path).read_bytes() == (home / path).read_bytes()


def test_each_file_of_a_backup_is_compared_by_its_bytes_and_not_by_its_size(
    filled_on_sqlite: Ledger, tmp_path: Path
) -> None:
    folder = tmp_path / "backup"
    contents = create_backup(folder)
    contents.check_files(folder)
    assert len(contents.files) > 10
    for path in contents.files:
        sound = (folder / path).read_bytes()
        changed = [sound[:at] + bytes([sound[at] ^ 1]) + sound[at + 1 :] for at in {0, len(sound) - 1} if sound]
        for other in [*changed, sound + b"\0", sound[:-1] if sound else b"x"]:
            (folder / path).write_bytes(other)
            with pytest.raises(Corrupt, match=re.escape(path)):
                contents.check_files(folder)
        (folder / path).write_bytes(sound)
    contents.check_files(folder)


def test_a_fingerprint_is_the_size_and_the_sha_256_of_all_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manifest, "_PIECE", 7)
    for size in (0, 6, 7, 8, 50):
        payload = bytes(range(size))
        (tmp_path / "file").write_bytes(payload)
        assert fingerprint(tmp_path / "file") == (size, hashlib.sha256(payload).hexdigest())
