"""What a stranger gets: the lock, the wheel, the shipped data set and the Makefile."""

import gzip
import os
import re
import shutil
import subprocess
import tomllib
import zipfile
from collections import Counter
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path

import hatchling.build
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
LOCK = (ROOT / "requirements.lock").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[zipfile.ZipFile]:
    """Build the wheel as an installer would."""
    folder = tmp_path_factory.mktemp("wheel")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        name = hatchling.build.build_wheel(str(folder))
    with zipfile.ZipFile(folder / name) as archive:
        yield archive


def test_lock_names_no_host() -> None:
    assert "://" not in LOCK
    assert "--index" not in LOCK
    assert "file:" not in LOCK


def test_every_locked_version_carries_a_hash() -> None:
    entries = re.split(r"\n(?=\S)", LOCK.strip())
    assert len(entries) > 100
    assert [entry for entry in entries if "==" not in entry or "--hash=sha256:" not in entry] == []


def test_lock_satisfies_every_direct_requirement() -> None:
    locked = {
        canonicalize_name(name): version
        for name, version in re.findall(r"^([A-Za-z0-9._-]+)==([^\s;]+)", LOCK, flags=re.MULTILINE)
    }
    extras = PROJECT["optional-dependencies"]
    requirements = [Requirement(text) for text in [*PROJECT["dependencies"], *extras["postgres"], *extras["test"]]]
    for requirement in requirements:
        if requirement.name != PROJECT["name"]:
            assert requirement.specifier.contains(locked[canonicalize_name(requirement.name)])


def test_wheel_holds_every_file_of_the_three_packages_and_nothing_else(wheel: zipfile.ZipFile) -> None:
    tops = {name.split("/")[0] for name in wheel.namelist()}
    assert tops == {"dpca_tasks", "flows", "storage", f"dpca_pipeline-{PROJECT['version']}.dist-info"}
    for package in ("dpca_tasks", "flows", "storage"):
        files_here = (path.relative_to(ROOT) for path in (ROOT / package).rglob("*") if path.is_file())
        expected = {path.as_posix() for path in files_here if "__pycache__" not in path.parts}
        assert {name for name in wheel.namelist() if name.startswith(f"{package}/")} == expected


def test_wheel_ships_the_data_its_licence_and_the_command(wheel: zipfile.ZipFile) -> None:
    metadata = f"dpca_pipeline-{PROJECT['version']}.dist-info"
    assert wheel.read("flows/data/a9a.svm.gz") == (ROOT / "flows/data/a9a.svm.gz").read_bytes()
    assert b"CC BY 4.0" in wheel.read("flows/data/README.md")
    assert b"Apache License" in wheel.read(f"{metadata}/licenses/LICENSE")
    assert b"dpca = flows.cli:main" in wheel.read(f"{metadata}/entry_points.txt")


def test_shipped_a9a_is_the_known_data_set() -> None:
    packed = files("flows").joinpath("data", "a9a.svm.gz").read_bytes()
    rows = [line.split() for line in gzip.decompress(packed).decode("ascii").splitlines()]
    labels = Counter(row[0] for row in rows)
    entries = Counter(entry for row in rows for entry in row[1:])
    columns = Counter({int(entry.removesuffix(":1")): count for entry, count in entries.items()})
    assert len(rows) == 32_561
    assert labels == {"-1": 24_720, "+1": 7_841}
    assert columns.total() == 451_592
    assert (min(columns), max(columns), len(columns)) == (1, 123, 123)
    assert columns[123] == 1
    assert max(len(row) for row in rows) - 1 == 14
    assert all(len(set(row)) == len(row) for row in rows)


def make(target: str, *, at: Path, path: Path) -> subprocess.CompletedProcess[str]:
    """Run make where ``path`` comes before everything else."""
    environment = os.environ | {"PATH": f"{path}{os.pathsep}{os.environ['PATH']}"}
    return subprocess.run(
        ["make", "--silent", target], cwd=at, env=environment, capture_output=True, text=True, check=False
    )


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """Copy what an environment is built from, and hide every interpreter and uv behind commands that fail."""
    for name in ("Makefile", "pyproject.toml", "requirements.lock"):
        shutil.copy(ROOT / name, tmp_path / name)
    for command in ("python3.13", "python3.12", "python3", "uv"):
        put_command(tmp_path / "bin" / command, "exit 127")
    return tmp_path


def put_command(path: Path, script: str) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def test_make_says_in_one_line_that_no_interpreter_is_new_enough(clone: Path) -> None:
    done = make(".venv", at=clone, path=clone / "bin")
    said = [line for line in done.stderr.splitlines() if not line.startswith("make")]
    assert done.returncode != 0
    assert len(said) == 1
    assert "Python >= 3.12" in said[0]
    assert not (clone / ".venv").exists()


def test_make_takes_the_first_interpreter_that_is_new_enough_and_leaves_nothing_half_built(
    clone: Path,
) -> None:
    base = clone / "bin/base"
    put_command(clone / "bin/python3.13", "echo")  # runs, and finds itself too old
    put_command(clone / "bin/python3.12", f"echo {base}")
    put_command(base, "mkdir .venv; exit 1")
    done = make(".venv", at=clone, path=clone / "bin")
    assert done.returncode != 0
    assert f"with {base}" in done.stderr
    assert not (clone / ".venv").exists()


def test_environment_is_stale_exactly_when_lock_or_project_is_newer(clone: Path) -> None:
    stamp = clone / ".venv/.complete"
    stamp.parent.mkdir()
    stamp.touch()
    for name in ("pyproject.toml", "requirements.lock"):
        os.utime(clone / name, (1, 1))
    assert make(".venv", at=clone, path=clone / "bin").returncode == 0
    for name in ("pyproject.toml", "requirements.lock"):
        newer = stamp.stat().st_mtime + 60
        os.utime(clone / name, (newer, newer))
        assert make(".venv", at=clone, path=clone / "bin").returncode != 0
        os.utime(clone / name, (1, 1))


def test_every_target_is_explained() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    phony = re.search(r"^\.PHONY:(.*)$", makefile, flags=re.MULTILINE)
    assert phony is not None
    explained = re.findall(r"^([a-z-]+):.*## \S", makefile, flags=re.MULTILINE)
    assert sorted(explained) == sorted(phony[1].split())
    assert {"demo", "test", "audit", "lint", "bench", "data", "lock", "clean"} <= set(explained)


def test_ci_runs_lint_documents_tests_audits_then_every_service_and_the_pages() -> None:
    script = ROOT / ".ci/run"
    lines = script.read_text(encoding="utf-8").splitlines()
    assert os.access(script, os.X_OK)
    assert "set -euo pipefail" in lines
    assert lines[-6:] == ["make lint", "make docs", "make test", "make audit", "make integration", "make browser"]
