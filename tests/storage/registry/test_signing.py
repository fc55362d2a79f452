"""Signatures of publishers and the trust of consumers.

A publisher signs what the ledger contains, under increasing numbers, also after crashes, restores and lost files. Only
the root key delegates, retires, revokes and replaces keys, and a consumer follows the chain of roots.
"""

import errno
import shutil
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from dpca.artifacts.base import canonical_json
from dpca.backends import atomic_files
from dpca.backends.local import LocalPlace
from dpca.errors import Conflict, Corrupt, Invalid, Refused, Unavailable
from dpca.home import key_folder
from dpca.registry.pointers import Pointer
from dpca.registry.reader import Registry
from dpca.registry.roots import (
    PUBLISHERS_KEY,
    Publisher,
    Root,
    SignedPointer,
    digest_of,
    public_name,
    sign,
    signature_path,
)
from dpca.registry.trust import Trust
from storage.registry import signing
from storage.registry.signing import NEXT_KEY, Signer, init_root, make_key, make_new_key, read_key, update_root
from storage.workspace import Workspace
from tests.storage.registry.conftest import (
    NAME as ROOTS_NAME,
)
from tests.storage.registry.conftest import (
    PINNED,
    ROOT_KEY,
    Publication,
    consumer,
    key_of,
    numbered,
    publication,
    put_back,
    refusal,
)
from tests.storage.releasing import open_budget, publish

NAME = "map"


@pytest.fixture
def workspace(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    """Return a workspace with one signed version of a name, and a root key."""
    monkeypatch.setenv("DPCA_STATE_FOLDER", str(tmp_path / "state"))
    workspace = Workspace.open()
    open_budget(workspace.ledger)
    publish(workspace.ledger)
    workspace.rebuild_pointers()
    init_root(workspace.store, [ROOT_KEY], publishers={publisher(): Publisher()})
    return workspace


def publisher() -> str:
    return public_name(read_key(key_folder() / PUBLISHERS_KEY))


def consumed() -> Registry:
    return Registry.open(trust=PINNED)


def test_a_publication_is_signed_and_its_number_grows_with_each_change(workspace: Workspace) -> None:
    assert numbered(workspace.store, NAME) == 1
    for number, version in enumerate((1, 1, 1), start=2):
        workspace.promote(NAME, version=version, alias=f"alias-{number}")
        assert consumed().resolve(f"{NAME}@alias-{number}").version == 1
        assert numbered(workspace.store, NAME) == number
    workspace.rebuild_pointers()
    Workspace.open()
    assert numbered(workspace.store, NAME) == 4


@pytest.mark.parametrize("point", ["record.committed", "pointer.signed", "pointer.written", "pointer.row_written"])
def test_after_a_crash_the_old_or_the_new_state_is_signed_and_opening_finishes(
    workspace: Workspace, point: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert consumed().resolve(NAME).version == 1

    def die(reached: str) -> None:
        if reached == point:
            raise KeyboardInterrupt

    with monkeypatch.context() as crash:
        crash.setattr(atomic_files, "hook", die)
        with pytest.raises(KeyboardInterrupt):
            workspace.promote(NAME, version=1, alias="champion")
    aliases = consumed().resolve(NAME).aliases
    assert aliases == (() if point == "record.committed" else ("champion",))
    Workspace.open()
    assert consumed().resolve(f"{NAME}@champion").version == 1
    assert numbered(workspace.store, NAME) == 2


def test_with_an_older_database_the_number_continues_from_the_file(workspace: Workspace, home: Path) -> None:
    for alias in ("one", "two"):
        workspace.promote(NAME, version=1, alias=alias)
    assert consumed().resolve(NAME).version == 1
    workspace.ledger.engine.dispose()
    with closing(sqlite3.connect(home / "dpca.sqlite")) as database, database:
        database.execute("UPDATE signed_pointer SET number = 1, tag = 'older'")
    Workspace.open().promote(NAME, version=1, alias="three")
    assert numbered(workspace.store, NAME) == 4
    assert consumed().resolve(f"{NAME}@three").version == 1


def test_with_an_older_file_the_number_continues_from_the_database(workspace: Workspace, home: Path) -> None:
    older = {path: (home / path).read_bytes() for path in (SignedPointer.path(NAME), Pointer.path(NAME))}
    workspace.promote(NAME, version=1, alias="champion")
    assert consumed().resolve(f"{NAME}@champion").version == 1
    for path, payload in older.items():
        (home / path).write_bytes(payload)
    Workspace.open()
    assert numbered(workspace.store, NAME) > 2
    assert consumed().resolve(f"{NAME}@champion").version == 1


def test_after_a_loss_of_both_the_number_continues_above_the_newest_seen_by_consumers(
    workspace: Workspace, home: Path
) -> None:
    for alias in ("one", "two", "three"):
        workspace.promote(NAME, version=1, alias=alias)
    consumed().resolve(NAME)
    shutil.rmtree(home / "registry" / "signed")
    workspace.ledger.engine.dispose()
    with closing(sqlite3.connect(home / "dpca.sqlite")) as database, database:
        database.execute("DELETE FROM signed_pointer")
    again = Workspace.open()
    assert again.resign() == 1
    assert numbered(again.store, NAME) == 1
    with pytest.raises(Refused, match="resign --above 4"):
        consumed().resolve(NAME)
    again.resign(above=4)
    assert numbered(again.store, NAME) == 5
    assert consumed().resolve(NAME).version == 1


def test_a_lost_or_changed_signed_pointer_is_rewritten_on_opening(workspace: Workspace, home: Path) -> None:
    path = home / SignedPointer.path(NAME)
    for damage in (b"", b"{}", path.read_bytes().replace(b"a", b"b", 1)):
        path.write_bytes(damage)
        Workspace.open()
        assert consumed().resolve(NAME).version == 1
    path.unlink()
    Workspace.open()
    assert consumed().resolve(NAME).version == 1


def test_signing_again_verifies_every_byte_first(workspace: Workspace, home: Path) -> None:
    digest = consumed().resolve(NAME).digest
    chunk = next((home / "registry" / "artifacts" / digest).rglob("c/0/0"))
    signed = (home / SignedPointer.path(NAME)).read_bytes()
    chunk.write_bytes(bytes(chunk.stat().st_size))
    with pytest.raises(Corrupt, match="has digest"):
        workspace.resign()
    assert (home / SignedPointer.path(NAME)).read_bytes() == signed


def test_the_next_key_signs_once_the_root_delegates_to_it(workspace: Workspace) -> None:
    old = publisher()
    after = Signer(keys=key_folder()).rotate()
    assert Signer(keys=key_folder()).rotate() == after
    workspace.promote(NAME, version=1, alias="one")
    assert publisher() == old
    update_root(workspace.store, [ROOT_KEY], delegate={after: ("*",)}, retire=[old])
    assert consumed().load(NAME).n_components == 2
    workspace.promote(NAME, version=1, alias="two")
    assert publisher() == after
    assert not (key_folder() / NEXT_KEY).exists()
    assert consumed().resolve(f"{NAME}@two").version == 1


def test_after_a_revocation_nothing_loads_until_signed_again(workspace: Workspace) -> None:
    old = publisher()
    after = Signer(keys=key_folder()).rotate()
    update_root(workspace.store, [ROOT_KEY], delegate={after: ("*",)}, revoke=[old])
    with pytest.raises(Refused, match="was revoked in version 2"):
        consumed().load(NAME)
    assert Workspace.open().resign() == 1
    assert consumed().load(NAME).n_components == 2


def test_a_key_and_its_file_are_readable_by_their_owner_alone(workspace: Workspace, tmp_path: Path) -> None:
    assert (key_folder() / PUBLISHERS_KEY).stat().st_mode & 0o777 == 0o600
    made = make_new_key(tmp_path / "root.key")
    assert (tmp_path / "root.key").stat().st_mode & 0o777 == 0o600
    assert read_key(tmp_path / "root.key").private_bytes_raw() == made.private_bytes_raw()
    (tmp_path / "short.key").write_bytes(b"short")
    with pytest.raises(Corrupt, match="not a signing key of 32 bytes"):
        read_key(tmp_path / "short.key")


@pytest.mark.parametrize("make", [make_key, make_new_key])
def test_concurrent_creators_of_a_key_get_the_same_key(
    tmp_path: Path, make: Callable[[Path], Ed25519PrivateKey]
) -> None:
    def made(path: Path) -> bytes | None:
        try:
            return make(path).private_bytes_raw()
        except Conflict:
            return None

    with ThreadPoolExecutor(8) as pool:
        for path in (tmp_path / f"{number}.key" for number in range(50)):
            given = set(pool.map(made, [path] * 8)) - {None}
            assert given == {read_key(path).private_bytes_raw()}


def test_a_new_key_that_cannot_be_written_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, payload: bytes) -> None:
        raise OSError(errno.ENOSPC, "no space", path)

    path = tmp_path / "root.key"
    with monkeypatch.context() as patch:
        patch.setattr(signing, "write_atomically", full)
        with pytest.raises(Unavailable, match="cannot be written"):
            make_new_key(path)
    assert not path.exists()
    assert make_new_key(path).private_bytes_raw() == path.read_bytes()


def test_a_signature_contains_its_artifact_and_no_name(workspace: Workspace) -> None:
    digest = consumed().resolve(NAME).digest
    payload = workspace.store.read(signature_path(digest)).payload
    assert digest.encode() in payload
    assert NAME.encode() not in payload.replace(b"manifest", b"")


def test_a_signed_pointer_expires_where_days_are_set(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DPCA_SIGNATURE_DAYS", "30")
    workspace.resign()
    found = SignedPointer.decode(NAME, workspace.store.read(SignedPointer.path(NAME)).payload)
    assert found.expires is not None
    assert consumed().resolve(NAME).version == 1
    monkeypatch.setenv("DPCA_SIGNATURE_DAYS", "soon")
    with pytest.raises(ValueError, match="must be a whole number of days"):
        workspace.resign()


SIGNED, PLAIN = SignedPointer.path(ROOTS_NAME), Pointer.path(ROOTS_NAME)


class TestKeys:
    def test_content_signed_by_a_retired_key_stays_valid_and_a_new_key_signs(self, made: Publication) -> None:
        old, after = made.publisher, read_key(made.signer.keys / "publisher-signing.key")
        assert consumer(made).resolve(ROOTS_NAME).version == 1
        new = make_key(made.home / "keys" / "publisher-signing.next.key")
        root = update_root(made.place, [ROOT_KEY], delegate={public_name(new): ("*",)}, retire=[old])
        assert root.publishers[old] == Publisher(state="retired", through={ROOTS_NAME: 1})
        assert consumer(made).load(ROOTS_NAME).n_components == 2
        made.publish(epsilon=2.0)
        assert made.publisher == public_name(new)
        for version in (1, 2):
            assert consumer(made).load(f"{ROOTS_NAME}@{version}").manifest["privacy"]["epsilon"] == float(version)
        pointer = Pointer(name=ROOTS_NAME, versions=made.versions, aliases={"champion": 1})
        late = SignedPointer(pointer=pointer, number=9, now=str(digest_of(pointer.encode())), before=None)
        put_back(made.place, {SIGNED: late.sign(after), PLAIN: pointer.encode()})
        assert f"was retired after pointer 1 of '{ROOTS_NAME}'" in refusal(consumer(made))

    def test_content_signed_by_a_revoked_key_is_refused_until_signed_again(self, made: Publication) -> None:
        old, digest = made.publisher, made.versions[1]
        update_root(made.place, [ROOT_KEY], revoke=[old])
        assert "was revoked in version 2 of the root" in refusal(consumer(made))
        new = made.change_key()
        update_root(made.place, [ROOT_KEY], delegate={new: ("*",)})
        assert "was revoked in version 3 of the root" in refusal(consumer(made))
        stranger = sign({"artifact": digest}, role="artifact", keys=[key_of(7)])
        made.point()
        assert consumer(made).load(ROOTS_NAME).n_components == 2
        put_back(made.place, {signature_path(digest): stranger})
        assert "not a publisher's key" in refusal(consumer(made))
        with pytest.raises(Refused, match="revoked permanently"):
            update_root(made.place, [ROOT_KEY], delegate={old: ("*",)})

    def test_an_unsigned_root_or_one_with_a_foreign_signature_is_refused(self, made: Publication) -> None:
        registry = consumer(made)
        root = registry.trust.root(made.place) if registry.trust is not None else None
        assert root is not None
        forged = replace(root, version=2, publishers={public_name(key_of(9)): Publisher()})
        put_back(made.place, {Root.path(2): sign(forged.facts(), role="root", keys=[key_of(9)])})
        assert "not a root with enough signatures of its own keys" in refusal(registry)
        own = replace(forged, keys=(public_name(key_of(9)),), publishers={})
        put_back(made.place, {Root.path(2): sign(own.facts(), role="root", keys=[key_of(9)])})
        assert "is not signed by 1 of the keys of version 1" in refusal(registry)
        put_back(made.place, {Root.path(2): canonical_json({"signed": own.facts(), "signatures": {}})})
        assert "not a root with enough signatures of its own keys" in refusal(registry)

    def test_a_root_with_a_threshold_needs_that_number_of_signatures(self, publishers_home: Path) -> None:
        keys = [key_of(1), key_of(2)]
        made = publication(publishers_home, LocalPlace(publishers_home), keys=keys)
        pins = [public_name(key) for key in keys]
        assert consumer(made, *pins).resolve(ROOTS_NAME).version == 1
        with pytest.raises(Refused, match="needs 2 keys of the previous version"):
            update_root(made.place, keys[:1], revoke=[made.publisher])
        root = Trust.pinned_to(made.place, pins).root(made.place)
        alone = replace(root, version=2, threshold=1)
        put_back(made.place, {Root.path(2): sign(alone.facts(), role="root", keys=keys[:1])})
        assert "is not signed by 2 of the keys of version 1" in refusal(consumer(made, *pins))

    def test_consumers_with_old_or_new_pins_follow_a_change_of_root_keys(self, made: Publication) -> None:
        new = key_of(3)
        old = consumer(made)
        old.resolve(ROOTS_NAME)
        update_root(made.place, [ROOT_KEY, new], add=[public_name(new)], drop=[PINNED])
        update_root(made.place, [new], revoke=[made.publisher])
        assert "was revoked" in refusal(old)
        assert "was revoked" in refusal(consumer(made, public_name(new)))
        with pytest.raises(Refused, match="needs 1 keys of the previous version"):
            update_root(made.place, [ROOT_KEY], revoke=[made.publisher])

    def test_a_pin_that_signed_no_root_is_refused(self, made: Publication) -> None:
        assert "has no root signed by the pinned key" in refusal(consumer(made, public_name(key_of(8))))
        with pytest.raises(Invalid, match="64 hex digits"):
            consumer(made, "key")
