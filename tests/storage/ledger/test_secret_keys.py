"""A key is written for its owner alone, is the one that its release is named after, and goes when it is done."""

import os
import stat
from pathlib import Path

import pytest

from storage.errors import Corrupt, Unavailable
from storage.ledger import secret_keys
from storage.ledger.secret_keys import KeyFolder, new_key, release_id_of

KEY = bytes(range(32))


@pytest.fixture
def folder(tmp_path: Path) -> KeyFolder:
    return KeyFolder(tmp_path / "home" / "keys")


def test_a_key_comes_back(folder: KeyFolder) -> None:
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


def test_an_erased_key_is_gone_and_erasing_again_is_fine(folder: KeyFolder) -> None:
    folder.create(release_id_of(KEY), KEY)
    for _ in range(2):
        folder.erase(release_id_of(KEY))
    assert list(folder.folder.iterdir()) == []
    with pytest.raises(Unavailable, match="close the release"):
        folder.read(release_id_of(KEY))


@pytest.mark.parametrize("content", [b"", KEY[:-1], KEY + b"\n", KEY[:-1] + b"\0"])
def test_another_key_than_the_release_is_named_after_is_refused(folder: KeyFolder, content: bytes) -> None:
    folder.create(release_id_of(KEY), KEY)
    (folder.folder / release_id_of(KEY)).write_bytes(content)
    with pytest.raises(Corrupt, match="is not the key of its release"):
        folder.read(release_id_of(KEY))


def test_a_folder_that_cannot_be_made_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(Unavailable, match="cannot be written"):
        KeyFolder(tmp_path / "file" / "keys").create("a", KEY)


def test_a_folder_that_was_never_used_has_no_keys(folder: KeyFolder) -> None:
    assert folder.release_ids() == []


def test_what_is_no_key_is_not_taken_for_one(folder: KeyFolder) -> None:
    folder.create(release_id_of(KEY), KEY)
    for name in ("witness.json", ".witness.lock", f".{'0' * 32}.tmp", "G" * 32, "0" * 31):
        (folder.folder / name).touch()
    assert folder.release_ids() == [release_id_of(KEY)]


def test_keys_are_drawn_afresh_and_whole() -> None:
    drawn = {new_key() for _ in range(100)}
    assert len(drawn) == 100
    assert {len(key) for key in drawn} == {secret_keys.KEY_BYTES} == {32}


def test_the_name_of_a_release_is_fixed_by_its_key_and_tells_nothing_of_it() -> None:
    # HMAC-SHA256 of the label under the key, by `openssl dgst -sha256 -mac HMAC`
    assert release_id_of(KEY) == "d91f93869dcd54a851d9f6c92564061f"
    assert KEY.hex() not in release_id_of(KEY)
