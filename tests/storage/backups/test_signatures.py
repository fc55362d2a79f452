"""A backup is used as its ledger wrote it: no change without the key or the passphrase goes unseen."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from storage.backups.contents import MANIFEST, SIGNATURE, Contents
from storage.backups.creating import create_backup
from storage.backups.rehearsing import rehearse_backup
from storage.backups.restoring import Target, restore_backup
from storage.backups.signatures import open_backup
from storage.errors import Corrupt, Invalid, Refused, StorageError
from storage.home import database_url
from storage.ledger.ledger import Ledger
from tests.storage.backups.conftest import Move, list_anew, sign

PASSPHRASE, ANOTHER = "correct horse battery", "another horse battery"
READ: dict[str, Callable[..., Any]] = {
    "verify": open_backup,
    "rehearse": lambda folder, **known: rehearse_backup(folder, database_url=database_url(), **known),
    "restore": lambda folder, **known: restore_backup(folder, into=Target.configured(), **known),
}


def erase(folder: Path) -> None:
    """Take all rows and entries of the last release out of a backup."""
    rows = folder / "database" / "release.jsonl"
    *others, last = rows.read_text().splitlines()
    rows.write_text("\n".join([*others, ""]))
    events = folder / "database" / "event.jsonl"
    kept = [line for line in events.read_text().splitlines() if json.loads(last)["id"] not in line]
    events.write_text("\n".join([*kept, ""]))


def forge(folder: Path, thief: Path, **signed: str) -> None:
    """Erase a release from rows and digests together, and sign that with a key of one's own."""
    contents = Contents.decode(Contents.read_bytes(folder), folder)
    erase(folder)
    thief.mkdir(mode=0o700)
    sign(folder, list_anew(folder, contents), keys=thief, **signed)


@pytest.mark.parametrize("by", READ)
def test_a_release_that_is_erased_from_rows_and_digests_is_found(
    filled_on_sqlite: Ledger, tmp_path: Path, move: Move, by: str
) -> None:
    contents = create_backup(tmp_path / "backup", passphrase=PASSPHRASE)
    forge(tmp_path / "backup", tmp_path / "thief", passphrase=ANOTHER)
    move("other")
    for known in ({"key": contents.signed_by}, {"passphrase": PASSPHRASE}, {}):
        with pytest.raises(Refused, match=r"is signed by|under this passphrase") as found:
            READ[by](tmp_path / "backup", **known)
        assert "\n" not in str(found.value)
        assert not list((tmp_path / "other").glob("dpca.sqlite*"))


@pytest.mark.parametrize("by", READ)
def test_the_key_of_this_home_is_the_one_that_counts(filled_on_sqlite: Ledger, tmp_path: Path, by: str) -> None:
    create_backup(tmp_path / "backup")
    forge(tmp_path / "backup", tmp_path / "thief")
    with pytest.raises(Refused, match="the ledger's key is"):
        READ[by](tmp_path / "backup")


@pytest.mark.parametrize("by", READ)
def test_digests_that_are_changed_without_a_signature_are_found(
    filled_on_sqlite: Ledger, tmp_path: Path, by: str
) -> None:
    contents = create_backup(tmp_path / "backup")
    erase(tmp_path / "backup")
    (tmp_path / "backup" / MANIFEST).write_bytes(list_anew(tmp_path / "backup", contents).encode())
    with pytest.raises(Corrupt, match=r"is not what backup\.sig signs"):
        READ[by](tmp_path / "backup")


@pytest.mark.parametrize(
    "written", [None, b"", b"{}", b"[]", b"3", b"[" * 100_000, b'{"signature": 3}', b'{"signature": "zz"}', b"\xff"]
)
def test_a_signature_that_is_none_is_found(filled_on_sqlite: Ledger, tmp_path: Path, written: bytes | None) -> None:
    contents = create_backup(tmp_path / "backup", passphrase=PASSPHRASE)
    path = tmp_path / "backup" / SIGNATURE
    path.unlink() if written is None else path.write_bytes(written)
    for known in ({}, {"key": contents.signed_by}, {"passphrase": PASSPHRASE}):
        with pytest.raises(Corrupt) as found:
            open_backup(tmp_path / "backup", **known)
        assert "\n" not in str(found.value)


@pytest.mark.parametrize("name", ["salt", "mac", "signature"])
def test_every_part_of_a_signature_counts(filled_on_sqlite: Ledger, tmp_path: Path, name: str) -> None:
    create_backup(tmp_path / "backup", passphrase=PASSPHRASE)
    path = tmp_path / "backup" / SIGNATURE
    facts = json.loads(path.read_text())
    first = int(facts[name][0], 16) ^ 1
    path.write_text(json.dumps(facts | {name: f"{first:x}{facts[name][1:]}"}))
    with pytest.raises((Corrupt, Refused)):
        open_backup(tmp_path / "backup", passphrase=PASSPHRASE)


def test_a_mac_that_is_taken_away_leaves_the_key_to_check(filled_on_sqlite: Ledger, tmp_path: Path, move: Move) -> None:
    contents = create_backup(tmp_path / "backup", passphrase=PASSPHRASE)
    path = tmp_path / "backup" / SIGNATURE
    path.write_text(json.dumps({"signature": json.loads(path.read_text())["signature"]}))
    open_backup(tmp_path / "backup", passphrase=PASSPHRASE)  # this home's key signed it
    move("other")
    with pytest.raises(Refused, match="nothing here shows"):
        open_backup(tmp_path / "backup", passphrase=PASSPHRASE)
    assert open_backup(tmp_path / "backup", passphrase=PASSPHRASE, key=contents.signed_by) == contents


def test_a_published_key_counts_more_than_a_passphrase(filled_on_sqlite: Ledger, tmp_path: Path) -> None:
    create_backup(tmp_path / "backup", passphrase=PASSPHRASE)
    with pytest.raises(Refused, match="the ledger's key is"):
        open_backup(tmp_path / "backup", passphrase=PASSPHRASE, key="0" * 64)
    with pytest.raises(Invalid, match="64 hexadecimal digits"):
        open_backup(tmp_path / "backup", key="mine")


def test_what_is_whole_is_opened_by_either(filled_on_sqlite: Ledger, tmp_path: Path, move: Move) -> None:
    contents = create_backup(tmp_path / "backup", passphrase=PASSPHRASE)
    assert open_backup(tmp_path / "backup") == contents
    move("other")
    for known in ({"key": contents.signed_by}, {"passphrase": PASSPHRASE}):
        assert open_backup(tmp_path / "backup", **known) == contents
    with pytest.raises(StorageError, match=contents.signed_by):
        open_backup(tmp_path / "backup")
