"""Instructions of CONTRIBUTING for a new mechanism and a new file format: two files each are enough.

The toy mechanism and the toy format are stored as patches; commands must work with each patch applied.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]
PATCHES = Path(__file__).parent
FIT = "subspace fit rows --publish views --epsilon 1 --delta 1e-6 --components 2 --clip-norm 2 --direct --yes"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Return a copy of the source tree, with symbolic links to all folders that no patch changes.

    The links keep compiled kernels in the cache.
    """
    copy = tmp_path / "tree"
    for package in ("dpca", "dpca_tasks", "storage", "flows", "tests"):
        (copy / package).mkdir(parents=True)
        for path in (ROOT / package).iterdir():
            if path.name in ("mechanisms", "formats"):
                shutil.copytree(path, copy / package / path.name, ignore=shutil.ignore_patterns("__pycache__"))
            elif path.name == "mechanism_table.py":
                shutil.copy(path, copy / package)
            elif path.name != "__pycache__":
                (copy / package / path.name).symlink_to(path)
    shutil.copy(ROOT / "pyproject.toml", copy)
    return copy


def patched(tree: Path, name: str) -> list[str]:
    """Apply a stored patch, and return the files that it touches."""
    patch = PATCHES / f"{name}.patch"
    subprocess.run(["git", "apply", patch], cwd=tree, check=True)
    shown = subprocess.run(["git", "apply", "--numstat", patch], cwd=tree, check=True, capture_output=True, text=True)
    return [line.split("\t")[2] for line in shown.stdout.splitlines()]


def run(tree: Path, *words: str, home: Path) -> subprocess.CompletedProcess[str]:
    """Run Python with the packages of a copied source tree only."""
    environment = {**os.environ, "PYTHONPATH": str(tree), "DPCA_HOME": str(home), "DPCA_CLUSTER": "none"}
    return subprocess.run([sys.executable, *words], cwd=tree, env=environment, capture_output=True, text=True)


def dpca(tree: Path, words: str, *, home: Path) -> str:
    done = run(tree, "-m", "flows.cli", *words.split(), home=home)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.audit_only
def test_a_mechanism_is_two_files_and_every_fit_still_runs(tree: Path, tmp_path: Path) -> None:
    assert len(patched(tree, "mechanism")) == 2
    home, rows = tmp_path / "home", tmp_path / "rows.npy"
    np.save(rows, np.random.default_rng(1).normal(size=(300, 8)))
    dpca(tree, f"dataset ingest {rows} --name rows --direct", home=home)
    dpca(tree, "budget open rows --epsilon 10 --delta 1e-6", home=home)
    for mechanism in ("careful", "analyze_gauss"):
        dpca(tree, f"{FIT} --mechanism {mechanism} --run-key {mechanism}", home=home)
    assert "careful" in dpca(tree, "mechanism list", home=home)
    contracts = [
        "tests/dpca_tasks/mechanisms/test_stated_epsilons.py",
        "tests/dpca_tasks/mechanisms/test_registered.py",
    ]
    done = run(tree, "-m", "pytest", "-q", "-p", "no:cacheprovider", *contracts, "-k", "careful or setting", home=home)
    assert done.returncode == 0, done.stdout


def test_a_forgotten_row_is_an_error_that_names_the_file(tree: Path, tmp_path: Path) -> None:
    patched(tree, "mechanism")
    shutil.copy(ROOT / "tests" / "mechanism_table.py", tree / "tests")
    rows = "tests/audits/test_mechanisms.py::test_every_registered_mechanism_has_a_row"
    done = run(tree, "-m", "pytest", "-q", "-p", "no:cacheprovider", rows, home=tmp_path)
    assert done.returncode == 1
    assert "dpca_tasks/mechanisms/subspace/careful.py: add a row to tests/mechanism_table.py" in done.stdout


@pytest.mark.audit_only
def test_a_format_is_its_reader_and_one_entry(tree: Path, tmp_path: Path) -> None:
    assert len(patched(tree, "format")) == 2
    home, rows = tmp_path / "home", tmp_path / "rows.semi"
    rows.write_text("1;0;2.5\n0;0;1\n")
    dpca(tree, f"dataset ingest {rows} --name rows --features 3 --direct", home=home)
    assert "semicolons" in dpca(tree, "dataset ingest --help", home=home)
    rows.write_text("1;0;2.5\n0;secret;1\n")
    bad = f"dataset ingest {rows} --name bad --features 3 --direct".split()
    done = run(tree, "-m", "flows.cli", *bad, home=home)
    assert done.returncode == 1
    assert "line 2 is not one number a column" in done.stderr
    assert "Traceback" not in done.stderr
