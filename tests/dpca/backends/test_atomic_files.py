"""Atomic files and private homes: files appear completely or not at all, and only the owner can open a home.

Writes are in an order that survives a crash, and a digest covers every byte. The content of a home is created with
private permissions, and a home that others can access is refused.
"""

import hashlib
import json
import os
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpca.backends.atomic_files import (
    digest_files,
    digest_tree,
    make_folder,
    move_folder,
    read_tree,
    sync_tree,
    write_atomically,
)
from dpca.errors import Refused
from dpca.home import key_folder, writable_home
from flows.cli import main
from storage.workspace import Workspace

# Folder names are capitals and file names are not, so no path is both a folder and a file.
PATHS = st.tuples(st.sampled_from(["", "X/", "X/Y/"]), st.text("abc", min_size=1, max_size=4)).map("".join)
TREES = st.dictionaries(PATHS, st.binary(max_size=40))


def grow(root: Path, files: dict[str, bytes]) -> None:
    for relative, payload in files.items():
        path = root / relative
        assert path.is_relative_to(root)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(payload)


@pytest.fixture
def effects(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """Return a list that records file syncs and renames in the order in which they happen."""
    recorded: list[tuple[str, str]] = []
    fsync, replace, rename = os.fsync, Path.replace, Path.rename

    def record_sync(descriptor: int) -> None:
        recorded.append(("sync", Path(f"/proc/self/fd/{descriptor}").readlink().name))
        fsync(descriptor)

    def record_replace(path: Path, target: Path) -> Path:
        recorded.append(("rename", target.name))
        return replace(path, target)

    def record_rename(path: Path, target: Path) -> Path:
        recorded.append(("rename", target.name))
        return rename(path, target)

    monkeypatch.setattr(os, "fsync", record_sync)
    monkeypatch.setattr(Path, "replace", record_replace)
    monkeypatch.setattr(Path, "rename", record_rename)
    return recorded


def test_a_file_is_synced_before_and_its_folder_after_the_rename(
    tmp_path: Path, effects: list[tuple[str, str]]
) -> None:
    write_atomically(tmp_path / "note", b"new")
    (first, temporary), *rest = effects
    assert first == "sync"
    assert temporary != "note"
    assert rest == [("rename", "note"), ("sync", tmp_path.name)]


def test_a_file_is_replaced_completely_without_leftovers(tmp_path: Path) -> None:
    path = tmp_path / "note"
    write_atomically(path, b"a long first content")
    write_atomically(path, b"second")
    assert path.read_bytes() == b"second"
    assert [*tmp_path.iterdir()] == [path]


def test_a_name_may_be_as_long_as_the_file_system_allows(tmp_path: Path) -> None:
    write_atomically(tmp_path / ("n" * 255), b"kept")
    assert (tmp_path / ("n" * 255)).read_bytes() == b"kept"


def test_a_private_file_is_never_readable_by_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    fsync = os.fsync

    def inspect(descriptor: int) -> None:
        status = os.fstat(descriptor)
        if stat.S_ISREG(status.st_mode):
            seen.append(stat.S_IMODE(status.st_mode))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", inspect)
    write_atomically(tmp_path / "key", b"secret")
    assert seen == [0o600]
    assert stat.S_IMODE((tmp_path / "key").stat().st_mode) == 0o600


def test_a_failed_write_keeps_the_old_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "note"
    path.write_bytes(b"old")

    def full(_: int) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="no space"):
        write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    assert [*tmp_path.iterdir()] == [path]


def test_a_killed_writer_leaves_the_old_content(tmp_path: Path) -> None:
    path = tmp_path / "note"
    path.write_bytes(b"old")
    program = (
        "import os, sys, pathlib, dpca.backends.atomic_files as durable\n"
        "os.fsync = lambda _: os._exit(9)\n"
        "durable.write_atomically(pathlib.Path(sys.argv[1]), b'new')\n"
    )
    assert subprocess.run([sys.executable, "-c", program, str(path)], check=False).returncode == 9
    assert path.read_bytes() == b"old"


def test_a_folder_is_synced_bottom_up_before_it_moves(tmp_path: Path, effects: list[tuple[str, str]]) -> None:
    staged, shelf = tmp_path / "staged", tmp_path / "shelf"
    grow(staged, {"top": b"1", "inner/leaf": b"2"})
    shelf.mkdir()
    assert move_folder(staged, shelf / "final")
    before, after = (
        effects[: effects.index(("rename", "final"))],
        effects[effects.index(("rename", "final")) + 1 :],
    )
    assert sorted(before) == sorted([("sync", name) for name in ("leaf", "inner", "top", "staged")])
    assert before[-1] == ("sync", "staged")
    assert before.index(("sync", "leaf")) < before.index(("sync", "inner"))
    assert after == [("sync", "shelf"), ("sync", tmp_path.name)]
    assert read_tree(shelf / "final") == {"top": b"1", "inner/leaf": b"2"}
    assert not staged.exists()


@pytest.mark.parametrize("occupant", ["folder", "file"])
def test_a_folder_never_replaces_existing_content(tmp_path: Path, occupant: str) -> None:
    staged, address = tmp_path / "staged", tmp_path / "address"
    grow(staged, {"a": b"new"})
    if occupant == "folder":
        grow(address, {"a": b"old"})
    else:
        address.write_bytes(b"old")
    assert not move_folder(staged, address)
    assert (address / "a" if occupant == "folder" else address).read_bytes() == b"old"
    assert read_tree(staged) == {"a": b"new"}


def test_moving_to_a_missing_parent_folder_is_an_error(tmp_path: Path) -> None:
    grow(tmp_path / "staged", {"a": b""})
    with pytest.raises(FileNotFoundError):
        move_folder(tmp_path / "staged", tmp_path / "missing" / "address")


def test_new_parents_are_synced_into_their_parents(tmp_path: Path, effects: list[tuple[str, str]]) -> None:
    make_folder(tmp_path / "a" / "b")
    assert effects == [("sync", tmp_path.name), ("sync", "a")]
    assert stat.S_IMODE((tmp_path / "a" / "b").stat().st_mode) == 0o700
    make_folder(tmp_path / "a" / "b")
    assert len(effects) == 2


@pytest.mark.parametrize("before", ["mkdir", "chmod"])
def test_a_folder_that_is_removed_during_creation_is_created_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: str
) -> None:
    shelf, path = tmp_path / "shelf", tmp_path / "shelf" / "x"
    step = getattr(Path, before)
    removed: list[Path] = []

    def remove_first(self: Path, *args: Any, **options: Any) -> None:
        if self == path and not removed:
            removed.append(shelf)
            shutil.rmtree(shelf)
        step(self, *args, **options)

    monkeypatch.setattr(Path, before, remove_first)
    make_folder(path)
    assert removed
    assert [stat.S_IMODE(each.stat().st_mode) for each in (shelf, path)] == [0o700] * 2


@pytest.mark.parametrize("path", ["/proc/none/folder", "/dev/fd/none"])
def test_creating_an_impossible_folder_ends_with_an_error(path: str) -> None:
    with pytest.raises(OSError, match="none"):
        make_folder(Path(path))


@given(files=TREES)
def test_a_tree_has_the_digest_of_its_files(files: dict[str, bytes]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        grow(root, files)
        assert read_tree(root) == files
        assert digest_tree(root) == digest_files(files)


@given(files=TREES)
def test_the_digest_is_sha256_of_the_sorted_paths_sizes_and_digests(files: dict[str, bytes]) -> None:
    listing = [[path, len(files[path]), hashlib.sha256(files[path]).hexdigest()] for path in sorted(files)]
    expected = hashlib.sha256(json.dumps(listing, separators=(",", ":")).encode()).hexdigest()
    assert digest_files(dict(reversed(files.items()))) == expected


@given(one=TREES, other=TREES)
def test_unlike_trees_have_unlike_digests(one: dict[str, bytes], other: dict[str, bytes]) -> None:
    assert (digest_files(one) == digest_files(other)) == (one == other)


@pytest.mark.parametrize("target", ["a", "inner", "nowhere"])
def test_links_are_refused(tmp_path: Path, target: str) -> None:
    grow(tmp_path, {"a": b"1", "inner/b": b"2"})
    (tmp_path / "link").symlink_to(tmp_path / target)
    for read in (read_tree, digest_tree):
        with pytest.raises(OSError, match="neither a file nor a folder"):
            read(tmp_path)


def test_a_missing_root_is_an_error(tmp_path: Path) -> None:
    for read in (read_tree, digest_tree):
        with pytest.raises(FileNotFoundError):
            read(tmp_path / "missing")


def test_syncing_a_tree_reaches_the_root(tmp_path: Path, effects: list[tuple[str, str]]) -> None:
    sync_tree(tmp_path)
    assert effects == [("sync", tmp_path.name)]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in [name for name in os.environ if name.startswith("DPCA_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("DPCA_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("DPCA_CLUSTER", "none")
    return tmp_path / "home"


@pytest.fixture(params=[0o000, 0o022, 0o277], ids=oct)
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def modes(root: Path) -> set[tuple[str, int]]:
    paths = [root, *root.rglob("*")]
    return {("folder" if path.is_dir() else "file", stat.S_IMODE(path.stat().st_mode)) for path in paths}


@pytest.mark.usefixtures("home")
def test_files_folders_and_database_are_private_for_any_umask(umask: int, tmp_path: Path) -> None:
    assert umask != 0o077
    Workspace.open().ledger.open_budget("people", epsilon=1.0, delta=1e-6)
    staged = tmp_path / "home" / "staging" / "one"
    make_folder(staged)
    write_atomically(staged / "file", b"kept")
    (staged / "other").touch(mode=0o666)
    (staged / "folder").mkdir(mode=0o777)
    assert move_folder(staged, tmp_path / "home" / "moved")
    lock = tmp_path / "home" / "keys" / ".witness.lock"
    lock.unlink(missing_ok=True)  # the lock file may be readable, because it is empty and its folder is private
    assert modes(tmp_path / "home") == {("folder", 0o700), ("file", 0o600)}


@pytest.mark.usefixtures("home")
def test_a_complete_job_leaves_no_file_that_others_can_open(tmp_path: Path, home: Path) -> None:
    source = tmp_path / "people.svm"
    source.write_text("1 1:1 2:0.5\n" * 40)
    before = os.umask(0)
    try:
        for words in (
            f"dataset ingest {source} --name people --features 3 --direct",
            "budget open people --epsilon 2 --delta 1e-6",
            "subspace fit people --components 1 --epsilon 1 --delta 1e-6 --clip-norm 1.5 --publish sub --direct --yes",
            f"transform sub {source} --output {home / 'scores.npy'}",
        ):
            assert main(words.split()) == 0, words
    finally:
        os.umask(before)
    assert modes(home) == {("folder", 0o700), ("file", 0o600)}


@pytest.mark.usefixtures("home")
@pytest.mark.parametrize("mode", [0o755, 0o711, 0o770, 0o704, 0o2775])
def test_a_home_that_others_can_enter_is_refused_with_the_command_that_closes_it(
    mode: int, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    home.mkdir()
    home.chmod(mode)
    assert main(["budget", "open", "people", "--epsilon", "1", "--delta", "1e-6"]) == 1
    message = capsys.readouterr().err
    assert len(message.splitlines()) == 1
    assert f"`chmod 700 {home}`" in message
    assert "DPCA_ALLOW_SHARED_HOME=true" in message
    assert list(home.iterdir()) == []
    home.chmod(0o700)
    assert main(["budget", "open", "people", "--epsilon", "1", "--delta", "1e-6"]) == 0
    home.chmod(mode)
    capsys.readouterr()
    assert main(["budget", "show", "people"]) == 1
    assert f"`chmod 700 {home}`" in capsys.readouterr().err


@pytest.mark.usefixtures("home")
def test_an_explicit_setting_permits_a_shared_home(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home.mkdir()
    home.chmod(0o755)
    monkeypatch.setenv("DPCA_ALLOW_SHARED_HOME", "no")
    with pytest.raises(Refused, match="mode 755"):
        writable_home()
    monkeypatch.setenv("DPCA_ALLOW_SHARED_HOME", "true")
    Workspace.open()
    assert stat.S_IMODE((home / "dpca.sqlite").stat().st_mode) == 0o600


@pytest.mark.usefixtures("home")
def test_a_key_folder_that_others_can_enter_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = tmp_path / "elsewhere"
    keys.mkdir(mode=0o700)
    monkeypatch.setenv("DPCA_KEY_FOLDER", str(keys))
    assert key_folder() == keys
    keys.chmod(0o750)
    with pytest.raises(Refused, match=f"`chmod 700 {keys}`"):
        key_folder()


@pytest.mark.usefixtures("home")
def test_links_are_followed(home: Path, tmp_path: Path) -> None:
    there, keys = tmp_path / "there", tmp_path / "keys"
    there.mkdir(mode=0o700)
    home.symlink_to(there)
    assert writable_home() == home
    keys.mkdir()
    keys.chmod(0o755)
    (there / "keys").symlink_to(keys)
    with pytest.raises(Refused, match=f"`chmod 700 {keys}`"):
        writable_home()
    keys.chmod(0o700)
    writable_home()
    (tmp_path / "database").touch()
    (tmp_path / "database").chmod(0o644)
    (there / "dpca.sqlite").symlink_to(tmp_path / "database")
    with pytest.raises(Refused, match=f"`chmod 600 {tmp_path / 'database'}`"):
        writable_home()
    (there / "dpca.sqlite").unlink()
    there.chmod(0o755)
    with pytest.raises(Refused, match=f"leads to {there}, which is open to other users .mode 755.; run `chmod 700"):
        writable_home()


@pytest.mark.usefixtures("home")
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_a_home_of_another_user_is_refused(home: Path) -> None:
    home.mkdir(mode=0o700)
    os.chown(home, 65_534, 65_534)
    with pytest.raises(Refused, match=f"belongs to user 65534; run `chown 0 {home}`"):
        writable_home()
