"""A home is its owner's alone: what is in it is made so, and one that others can enter is refused."""

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from flows.cli import main
from storage.backends.atomic_files import make_folder, move_folder, write_atomically
from storage.errors import Refused
from storage.home import key_folder, writable_home
from storage.workspace import Workspace


@pytest.fixture(autouse=True)
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


def test_files_folders_and_database_are_their_owners_alone_whatever_the_umask(umask: int, tmp_path: Path) -> None:
    assert umask != 0o077
    Workspace.open().ledger.open_budget("people", epsilon=1.0, delta=1e-6)
    staged = tmp_path / "home" / "staging" / "one"
    make_folder(staged)
    write_atomically(staged / "file", b"kept")
    (staged / "other").touch(mode=0o666)
    (staged / "folder").mkdir(mode=0o777)
    assert move_folder(staged, tmp_path / "home" / "moved")
    lock = tmp_path / "home" / "keys" / ".witness.lock"
    lock.unlink(missing_ok=True)  # is empty, and its folder is closed
    assert modes(tmp_path / "home") == {("folder", 0o700), ("file", 0o600)}


def test_a_whole_job_leaves_nothing_that_others_can_open(tmp_path: Path, home: Path) -> None:
    source = tmp_path / "people.svm"
    source.write_text("1 1:1 2:0.5\n" * 40)
    before = os.umask(0)
    try:
        for words in (
            f"dataset ingest {source} --name people --features 3 --direct",
            "budget open people --epsilon 2 --delta 1e-6",
            "subspace fit people --components 1 --epsilon 1 --delta 1e-6 --clip-norm 1.5 --publish sub --direct --yes",
            f"subspace transform sub {source} --output {home / 'scores.npy'}",
        ):
            assert main(words.split()) == 0, words
    finally:
        os.umask(before)
    assert modes(home) == {("folder", 0o700), ("file", 0o600)}


@pytest.mark.parametrize("mode", [0o755, 0o711, 0o770, 0o704, 0o2775])
def test_a_home_that_others_can_enter_is_refused_with_the_command_that_closes_it(
    mode: int, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    home.mkdir()
    home.chmod(mode)
    assert main(["budget", "open", "people", "--epsilon", "1", "--delta", "1e-6"]) == 1
    said = capsys.readouterr().err
    assert len(said.splitlines()) == 1
    assert f"`chmod 700 {home}`" in said
    assert "DPCA_ALLOW_SHARED_HOME=true" in said
    assert list(home.iterdir()) == []
    home.chmod(0o700)
    assert main(["budget", "open", "people", "--epsilon", "1", "--delta", "1e-6"]) == 0
    home.chmod(mode)
    capsys.readouterr()
    assert main(["budget", "show", "people"]) == 1
    assert f"`chmod 700 {home}`" in capsys.readouterr().err


def test_who_insists_may_share_a_home(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home.mkdir()
    home.chmod(0o755)
    monkeypatch.setenv("DPCA_ALLOW_SHARED_HOME", "no")
    with pytest.raises(Refused, match="mode 755"):
        writable_home()
    monkeypatch.setenv("DPCA_ALLOW_SHARED_HOME", "true")
    Workspace.open()
    assert stat.S_IMODE((home / "dpca.sqlite").stat().st_mode) == 0o600


def test_a_key_folder_that_others_can_enter_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = tmp_path / "elsewhere"
    keys.mkdir(mode=0o700)
    monkeypatch.setenv("DPCA_KEY_FOLDER", str(keys))
    assert key_folder() == keys
    keys.chmod(0o750)
    with pytest.raises(Refused, match=f"`chmod 700 {keys}`"):
        key_folder()


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


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_a_home_of_somebody_else_is_refused(home: Path) -> None:
    home.mkdir(mode=0o700)
    os.chown(home, 65_534, 65_534)
    with pytest.raises(Refused, match=f"belongs to user 65534; run `chown 0 {home}`"):
        writable_home()
