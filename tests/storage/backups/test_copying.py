"""Backups: creation, rehearsal and verification, and encryption of their signing keys.

A backup describes one point of the journal, exists completely or not at all, is private, and contains no key that
generates noise. A rehearsal proves that a backup restores, finds changes, and leaves nothing behind. Every part of a
backup is changed: each field of manifest and signature, and each file, also to one of another valid backup. Only
signing keys are sealed; they can be opened only with the passphrase, and only for their ledger. No change made without
the key or the passphrase goes undetected.
"""

import hashlib
import json
import re
import shutil
import stat
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from dpca.backends.base import Stored
from dpca.backends.local import LocalPlace
from dpca.errors import Corrupt, Invalid, NotFound, Refused, StorageError, Unavailable
from dpca.home import database_url
from dpca.registry.roots import PUBLISHERS_KEY
from storage.backups import contents as manifest
from storage.backups import copying, signatures
from storage.backups.contents import MANIFEST, SIGNATURE, STORE, Contents, fingerprint
from storage.backups.copying import Target, create_backup, rehearse_backup, restore_backup
from storage.backups.signatures import open_backup, read_passphrase, seal, sealable_keys, unseal
from storage.database.engine import transaction
from storage.ledger.ledger import Ledger
from storage.ledger.trail_export import KEY_FILE
from storage.workspace import Workspace
from tests.forger import forgeries
from tests.storage.backups.conftest import Move, list_anew, sign
from tests.storage.releasing import POPULATION, key_names, publish

PASSPHRASE = "a dozen words or so"


def test_a_backup_has_no_release_key_no_staged_step_and_no_witness(filled_on_sqlite: Ledger, tmp_path: Path) -> None:
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


def test_a_backup_is_private_and_lists_every_file(filled_on_sqlite: Ledger, tmp_path: Path) -> None:
    contents = create_backup(tmp_path / "new" / "backup")
    contents.check_files(tmp_path / "new" / "backup")
    assert contents == open_backup(tmp_path / "new" / "backup")
    assert contents.spent == {POPULATION: filled_on_sqlite.statement(POPULATION).spent}
    assert (contents.missing, contents.keys) == ((), ())
    for path in (tmp_path / "new" / "backup", *(tmp_path / "new" / "backup").rglob("*")):
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600)


def test_a_failed_backup_leaves_nothing(
    filled_on_sqlite: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_folder: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(copying, "list_files", full)
    with pytest.raises(Unavailable, match="No space left"):
        create_backup(tmp_path / "backups" / "monday")
    assert list((tmp_path / "backups").iterdir()) == []


def test_concurrent_changes_are_left_to_the_next_backup(
    filled: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = filled.verify()
    write = vars(copying)["write_rows"]

    def publish_first(*args: object) -> None:
        publish(filled, "fifth")
        write(*args)

    monkeypatch.setattr(copying, "write_rows", publish_first)
    contents = create_backup(tmp_path / "backup")
    assert contents.entries == before < filled.verify()
    assert rehearse_backup(tmp_path / "backup", database_url=database_url()).versions == 3


def test_a_backup_neither_overwrites_another_nor_is_inside_the_home(filled_on_sqlite: Ledger, tmp_path: Path) -> None:
    with pytest.raises(Refused, match="part of the home"):
        create_backup(filled_on_sqlite.home / "backup")
    create_backup(tmp_path / "backup")
    with pytest.raises(Refused, match="never overwritten"):
        create_backup(tmp_path / "backup")
    empty, link = tmp_path / "empty", tmp_path / "link"
    empty.mkdir()
    link.symlink_to(tmp_path / "nothing")
    for present in (empty, link):
        with pytest.raises(Refused, match="never overwritten"):
            create_backup(present)
    with pytest.raises(NotFound, match="is not a backup"):
        open_backup(tmp_path)


def test_a_lost_artifact_is_listed_and_the_rest_is_backed_up(filled_on_sqlite: Ledger, tmp_path: Path) -> None:
    digest = Workspace.open().registry.resolve("map@1").digest
    damaged = filled_on_sqlite.home / "registry" / "artifacts" / digest / "manifest.json"
    damaged.write_text(damaged.read_text() + " ")
    contents = create_backup(tmp_path / "backup")
    assert contents.missing == (f"registry/artifacts/{digest}",)
    assert rehearse_backup(tmp_path / "backup", database_url=database_url()).missing == 1


@pytest.mark.parametrize("folder", ["registry/names", "registry/signatures", "trail"])
def test_a_lost_small_file_is_listed_and_the_others_are_backed_up(
    filled_on_sqlite: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str
) -> None:
    home, backup, read = filled_on_sqlite.home, tmp_path / "backup", LocalPlace.read
    held = sorted(path.relative_to(home).as_posix() for path in (home / folder).rglob("*") if path.is_file())
    lost, nearby = held[0], held[1:]

    def read_others(place: LocalPlace, path: str) -> Stored:
        if path == lost:
            raise FileNotFoundError(path)  # simulates an artifact file that is removed after it was listed
        return read(place, path)

    monkeypatch.setattr(LocalPlace, "read", read_others)
    assert create_backup(backup).missing == (lost,)
    assert not (backup / STORE / lost).exists()
    for path in nearby:
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


def test_a_rehearsal_states_what_it_proved_and_leaves_nothing(
    filled: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    contents = create_backup(tmp_path / "backup")
    before, events = sorted(tmp_path.rglob("*")), filled.verify()
    found = rehearse_backup(tmp_path / "backup", database_url=database_url())
    assert (found.entries, found.versions, found.populations, found.missing) == (contents.entries, 3, 1, 0)
    assert found.database == filled.engine.dialect.name
    assert sorted(tmp_path.rglob("*")) == before
    assert filled.verify() == events
    with transaction(filled.engine) as connection:
        assert not [name for name in sa.inspect(connection).get_schema_names() if "rehearsal" in name]


def _flip(folder: Path, name: str) -> None:
    path = next(folder.glob(name))
    payload = bytearray(path.read_bytes())
    payload[len(payload) // 2] ^= 1
    path.write_bytes(payload)


def _rewrite(folder: Path, table: str, column: str, value: object) -> None:
    path = folder / "database" / f"{table}.jsonl"
    first, *others = path.read_text().splitlines()
    path.write_text("\n".join([json.dumps(json.loads(first) | {column: value}), *others, ""]))


def _cut(folder: Path) -> None:
    path = folder / "database" / "event.jsonl"
    path.write_text("\n".join([*path.read_text().splitlines()[:-1], ""]))


def _halve(folder: Path, table: str) -> None:
    path = folder / "database" / f"{table}.jsonl"
    path.write_text(path.read_text()[: path.stat().st_size // 2])


def _behead(folder: Path, table: str) -> None:
    path = folder / "database" / f"{table}.jsonl"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[1:]))


CHANGES: dict[str, tuple[Callable[[Path], object], bool]] = {
    "a row": (lambda folder: _flip(folder, "database/release.jsonl"), False),
    "a pointer file": (lambda folder: _flip(folder, "store/registry/names/map.json"), False),
    "an artifact": (lambda folder: _flip(folder, "store/registry/artifacts/*/manifest.json"), False),
    "a file more": (lambda folder: (folder / "more").touch(), False),
    "a file less": (lambda folder: (folder / "database" / "step.jsonl").unlink(), False),
    "a charge, listed anew": (lambda folder: _rewrite(folder, "release", "charge", "00" * 32), True),
    "an entry, listed anew": (lambda folder: _rewrite(folder, "event", "at", "2026-01-01"), True),
    "the last entry is gone, listed anew": (_cut, True),
    "an array, listed anew": (lambda folder: _flip(folder, "store/registry/artifacts/*/*/components/c/0/0"), True),
    "half a row, listed anew": (lambda folder: _halve(folder, "release"), True),
    "a release less, listed anew": (lambda folder: _behead(folder, "release"), True),
    "a table more, listed anew": (lambda folder: (folder / "database" / "more.jsonl").write_text("{}\n"), True),
    "a table of numbers, listed anew": (lambda folder: (folder / "database" / "step.jsonl").write_text("3\n"), True),
    "a version, listed anew": (lambda folder: _rewrite(folder, "version", "digest", "ab" * 32), True),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_backup_is_refused_in_one_line(filled_on_sqlite: Ledger, tmp_path: Path, change: str) -> None:
    contents = create_backup(tmp_path / "backup")
    act, is_listed = CHANGES[change]
    act(tmp_path / "backup")
    if is_listed:
        sign(tmp_path / "backup", list_anew(tmp_path / "backup", contents))
    with pytest.raises(Corrupt) as found:
        rehearse_backup(tmp_path / "backup", database_url=database_url())
    assert "\n" not in str(found.value)


def test_a_changed_spent_budget_is_detected(filled_on_sqlite: Ledger, tmp_path: Path) -> None:
    contents = create_backup(tmp_path / "backup")
    text = {name: spent * (1 + 1e-15) for name, spent in contents.spent.items()}
    sign(tmp_path / "backup", replace(contents, spent=text))
    with pytest.raises(Corrupt, match="the spent epsilon of a population is not the same"):
        rehearse_backup(tmp_path / "backup", database_url=database_url())


def is_refused(folder: Path, key: str) -> bool:
    """Return whether a changed backup is refused in one line."""
    try:
        open_backup(folder, key=key)
    except StorageError as refused:
        return "\n" not in str(refused)
    return False


def test_every_forged_part_of_a_backup_is_refused_in_one_line(filled_on_sqlite: Ledger, tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    key = create_backup(one).signed_by
    publish(filled_on_sqlite, "more")
    create_backup(two)
    accepted: list[str] = []
    for name in (MANIFEST, SIGNATURE):
        honest = (one / name).read_bytes()
        for kind, forged in forgeries(json.loads(honest), json.loads((two / name).read_bytes())):
            (one / name).write_text(json.dumps(forged, indent=1))
            accepted += [] if is_refused(one, key) else [f"{name}: {kind}"]
        (one / name).write_bytes(honest)
    assert accepted == []
    assert not is_refused(one, key)


def test_every_forged_file_of_a_backup_is_refused_in_one_line(filled_on_sqlite: Ledger, tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    key = create_backup(one).signed_by
    publish(filled_on_sqlite, "more")
    create_backup(two)
    paths = [path for path in one.rglob("*") if path.is_file()]
    for at, path in enumerate(paths):
        honest, there = path.read_bytes(), two / path.relative_to(one)
        neighbour = paths[at - 1].read_bytes()
        last = bytes([honest[-1] ^ 1]) if honest else b"1"
        kinds = [honest[:-1] + last, honest + honest, b"", neighbour, *([there.read_bytes()] if there.exists() else [])]
        for forged in kinds:
            if forged != honest:
                path.write_bytes(forged)
                assert is_refused(one, key), path
        path.unlink()
        assert is_refused(one, key), path
        path.write_bytes(honest)
        shutil.copy(path, path.with_name(f"{path.name}.1"))
        assert is_refused(one, key), path
        path.with_name(f"{path.name}.1").unlink()
    assert not is_refused(one, key)


KEYS = {"trail-signing.key": bytes(range(32)), "publisher-signing.key": bytes(32)}


def test_only_signing_keys_are_copied_from_a_key_folder(tmp_path: Path) -> None:
    for name in ("ab" * 16, f"arrivals-{'cd' * 16}", "witness.json", ".witness.lock", "sites.key"):
        (tmp_path / name).write_bytes(b"secret")
    for name, key in KEYS.items():
        (tmp_path / name).write_bytes(key)
    assert sealable_keys(tmp_path) == KEYS
    assert sealable_keys(tmp_path / "absent") == {}


def test_sealed_keys_need_the_passphrase_and_belong_to_one_ledger(monkeypatch: pytest.MonkeyPatch) -> None:
    # key derivation with less memory, for speed; all other parameters are unchanged
    monkeypatch.setattr(signatures, "_MEMORY", 1 << 10)
    sealed = seal(KEYS, passphrase=PASSPHRASE, ledger="a" * 32)
    assert not any(key in sealed or key.hex().encode() in sealed for key in KEYS.values())
    assert unseal(sealed, passphrase=PASSPHRASE, ledger="a" * 32) == KEYS
    for passphrase, ledger in ((PASSPHRASE + "!", "a" * 32), (PASSPHRASE, "b" * 32)):
        with pytest.raises(Refused, match="does not open"):
            unseal(sealed, passphrase=passphrase, ledger=ledger)
    with pytest.raises(Corrupt, match="damaged"):
        unseal(b"{}", passphrase=PASSPHRASE, ledger="a" * 32)
    with pytest.raises(Corrupt, match="not a signing key"):
        unseal(seal({"../x": b""}, passphrase=PASSPHRASE, ledger="c"), passphrase=PASSPHRASE, ledger="c")


def test_a_passphrase_is_the_first_line_of_a_file_and_has_a_minimum_length(tmp_path: Path) -> None:
    file = tmp_path / "passphrase"
    with pytest.raises(NotFound, match="cannot be read"):
        read_passphrase(file)
    file.write_text(f"{PASSPHRASE}\nmore\n")
    assert read_passphrase(file) == PASSPHRASE
    file.write_text("short\n")
    with pytest.raises(Invalid, match="has 5 characters"):
        read_passphrase(file)


SIGNATURES_PASSPHRASE, ANOTHER = "correct horse battery", "another horse battery"
READ: dict[str, Callable[..., Any]] = {
    "verify": open_backup,
    "rehearse": lambda folder, **known: rehearse_backup(folder, database_url=database_url(), **known),
    "restore": lambda folder, **known: restore_backup(folder, into=Target.configured(), **known),
}


def erase(folder: Path) -> None:
    """Remove all rows and entries of the last release from a backup."""
    rows = folder / "database" / "release.jsonl"
    *others, last = rows.read_text().splitlines()
    rows.write_text("\n".join([*others, ""]))
    events = folder / "database" / "event.jsonl"
    kept = [line for line in events.read_text().splitlines() if json.loads(last)["id"] not in line]
    events.write_text("\n".join([*kept, ""]))


def forge(folder: Path, thief: Path, **signed: str) -> None:
    """Remove a release from rows and digests of a backup, and sign the result with another key."""
    contents = Contents.decode(Contents.read_bytes(folder), folder)
    erase(folder)
    thief.mkdir(mode=0o700)
    sign(folder, list_anew(folder, contents), keys=thief, **signed)


@pytest.mark.parametrize("by", READ)
def test_a_release_erased_from_rows_and_digests_is_detected(
    filled_on_sqlite: Ledger, tmp_path: Path, move: Move, by: str
) -> None:
    contents = create_backup(tmp_path / "backup", passphrase=SIGNATURES_PASSPHRASE)
    forge(tmp_path / "backup", tmp_path / "thief", passphrase=ANOTHER)
    move("other")
    for known in ({"key": contents.signed_by}, {"passphrase": SIGNATURES_PASSPHRASE}, {}):
        with pytest.raises(Refused, match=r"is signed by|does not match the backup") as found:
            READ[by](tmp_path / "backup", **known)
        assert "\n" not in str(found.value)
        assert not list((tmp_path / "other").glob("dpca.sqlite*"))


@pytest.mark.parametrize("by", READ)
def test_a_backup_is_verified_by_the_key_of_the_current_home(filled_on_sqlite: Ledger, tmp_path: Path, by: str) -> None:
    create_backup(tmp_path / "backup")
    forge(tmp_path / "backup", tmp_path / "thief")
    with pytest.raises(Refused, match="the ledger's key is"):
        READ[by](tmp_path / "backup")


@pytest.mark.parametrize("by", READ)
def test_changed_digests_without_a_new_signature_are_detected(
    filled_on_sqlite: Ledger, tmp_path: Path, by: str
) -> None:
    contents = create_backup(tmp_path / "backup")
    erase(tmp_path / "backup")
    (tmp_path / "backup" / MANIFEST).write_bytes(list_anew(tmp_path / "backup", contents).encode())
    with pytest.raises(Corrupt, match=r"does not match backup\.sig"):
        READ[by](tmp_path / "backup")


@pytest.mark.parametrize(
    "written", [None, b"", b"{}", b"[]", b"3", b"[" * 100_000, b'{"signature": 3}', b'{"signature": "zz"}', b"\xff"]
)
def test_an_invalid_signature_is_detected(filled_on_sqlite: Ledger, tmp_path: Path, written: bytes | None) -> None:
    contents = create_backup(tmp_path / "backup", passphrase=SIGNATURES_PASSPHRASE)
    path = tmp_path / "backup" / SIGNATURE
    path.unlink() if written is None else path.write_bytes(written)
    for known in ({}, {"key": contents.signed_by}, {"passphrase": SIGNATURES_PASSPHRASE}):
        with pytest.raises(Corrupt) as found:
            open_backup(tmp_path / "backup", **known)
        assert "\n" not in str(found.value)


@pytest.mark.parametrize("name", ["salt", "mac", "signature"])
def test_every_part_of_a_signature_is_verified(filled_on_sqlite: Ledger, tmp_path: Path, name: str) -> None:
    create_backup(tmp_path / "backup", passphrase=SIGNATURES_PASSPHRASE)
    path = tmp_path / "backup" / SIGNATURE
    facts = json.loads(path.read_text())
    first = int(facts[name][0], 16) ^ 1
    path.write_text(json.dumps(facts | {name: f"{first:x}{facts[name][1:]}"}))
    with pytest.raises((Corrupt, Refused)):
        open_backup(tmp_path / "backup", passphrase=SIGNATURES_PASSPHRASE)


def test_a_backup_without_mac_is_verified_by_the_signing_key(
    filled_on_sqlite: Ledger, tmp_path: Path, move: Move
) -> None:
    contents = create_backup(tmp_path / "backup", passphrase=SIGNATURES_PASSPHRASE)
    path = tmp_path / "backup" / SIGNATURE
    path.write_text(json.dumps({"signature": json.loads(path.read_text())["signature"]}))
    # without the MAC, the backup is accepted here, because this home's key signed it
    open_backup(tmp_path / "backup", passphrase=SIGNATURES_PASSPHRASE)
    move("other")
    with pytest.raises(Refused, match="this installation cannot verify"):
        open_backup(tmp_path / "backup", passphrase=SIGNATURES_PASSPHRASE)
    assert open_backup(tmp_path / "backup", passphrase=SIGNATURES_PASSPHRASE, key=contents.signed_by) == contents


def test_verification_by_a_published_key_precedes_that_by_passphrase(filled_on_sqlite: Ledger, tmp_path: Path) -> None:
    create_backup(tmp_path / "backup", passphrase=SIGNATURES_PASSPHRASE)
    with pytest.raises(Refused, match="the ledger's key is"):
        open_backup(tmp_path / "backup", passphrase=SIGNATURES_PASSPHRASE, key="0" * 64)
    with pytest.raises(Invalid, match="64 hexadecimal digits"):
        open_backup(tmp_path / "backup", key="mine")


def test_an_unchanged_backup_is_accepted_by_key_or_passphrase(
    filled_on_sqlite: Ledger, tmp_path: Path, move: Move
) -> None:
    contents = create_backup(tmp_path / "backup", passphrase=SIGNATURES_PASSPHRASE)
    assert open_backup(tmp_path / "backup") == contents
    move("other")
    for known in ({"key": contents.signed_by}, {"passphrase": SIGNATURES_PASSPHRASE}):
        assert open_backup(tmp_path / "backup", **known) == contents
    with pytest.raises(StorageError, match=contents.signed_by):
        open_backup(tmp_path / "backup")
