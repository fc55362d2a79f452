"""Project files of rows onto a published subspace: every format, and every way to get it wrong."""

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from scipy import sparse

from storage.formats.registry import FORMATS
from storage.registry.reader import Registry
from tests.flows.conftest import Command

DENSE = np.array([[1.0, 0, 0.5, 0, 0, 0.25], [0, 0, 0, 0, 0, 0], [-2, 3, 0, 0, 1e-3, 0]])


def _write(kind: str, folder: Path) -> Path:
    path = folder / f"rows.{kind}"
    if kind == "npy":
        np.save(path, DENSE)
    elif kind == "npz":
        sparse.save_npz(path, sparse.csr_array(DENSE))
    else:
        lines = (" ".join(f"{at + 1}:{value!r}" for at, value in enumerate(row.tolist()) if value) for row in DENSE)
        path.write_text("".join(f"1 {line}\n" for line in lines))
    return path


@pytest.mark.parametrize("kind", ["npy", "npz", "svm"])
@pytest.mark.parametrize("reference", ["sub", "sub@1"])
def test_scores_are_rows_times_components(
    released: Path, dpca: Command, tmp_path: Path, kind: str, reference: str
) -> None:
    output = tmp_path / "scores.npy"
    ending = dpca("subspace", "transform", reference, _write(kind, tmp_path), "--output", output, "--json")
    assert (ending.status, ending.err) == (0, "")
    assert json.loads(ending.out) == {"artifact": "sub@1", "rows": 3, "components": 2, "output": str(output)}
    scores = np.load(output, allow_pickle=False)
    assert scores.dtype == np.float64
    np.testing.assert_allclose(scores, DENSE @ Registry.open().load("sub").components.T, rtol=0, atol=1e-12)


def test_a_consumer_needs_the_registry_alone(
    released: Path, dpca: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = tmp_path / "elsewhere"
    shutil.copytree(released / "registry", elsewhere / "registry")
    monkeypatch.setenv("DPCA_HOME", str(elsewhere))
    monkeypatch.setenv("DPCA_DATABASE_URL", "sqlite:////proc/nothing")
    assert dpca("subspace", "transform", "sub", _write("npy", tmp_path), "--output", tmp_path / "o.npy").status == 0
    assert dpca("registry", "verify", "sub").status == 0
    assert [path.name for path in elsewhere.iterdir()] == ["registry"]


def test_bad_rows_are_refused_and_an_older_output_stays(released: Path, dpca: Command, tmp_path: Path) -> None:
    output = tmp_path / "scores.npy"
    output.write_bytes(b"older")
    files = {
        "gone.npy": (None, "no such file"),
        "text.npy": (b"not numpy", "not a .npy matrix"),
        "gone.svm": (None, "no such file"),
        "empty.svm": (b"", "is empty"),
        "word.svm": (b"1 1:1\n1 2:two\n", "line 2: the value of '2:two' is not a number"),
        "wide.svm": (b"1 7:1\n", "lies beyond the 6 declared features"),
        "zip.npz": (b"PK\x03\x04", "no readable .npz archive"),
    }
    arrays = {
        "narrow.npy": (np.ones((2, 5)), "has 5 columns"),
        "flat.npy": (np.ones(6), "is 1-D"),
        "nan.npy": (np.full((1, 6), np.nan), "NaN or infinity"),
        "words.npy": (np.full((1, 6), "a"), "must hold real numbers"),
    }
    cases = []
    for name, (content, complaint) in files.items():
        if content is not None:
            (tmp_path / name).write_bytes(content)
        cases.append((name, complaint))
    for name, (array, complaint) in arrays.items():
        np.save(tmp_path / name, array)
        cases.append((name, complaint))
    for name, complaint in cases:
        ending = dpca("subspace", "transform", "sub", tmp_path / name, "--output", output, "--json")
        assert complaint in ending.complaint(1)
    assert output.read_bytes() == b"older"


def test_a_bad_output_or_reference_is_refused(released: Path, dpca: Command, tmp_path: Path) -> None:
    rows = _write("npy", tmp_path)
    for reference, output, complaint in (
        ("sub", tmp_path / "scores.txt", "must be a .npy file"),
        ("sub", tmp_path / "no" / "scores.npy", "in an existing folder"),
        ("sub", "/proc/scores.npy", "cannot be written"),
        ("sub@2", tmp_path / "scores.npy", "sub has no version 2"),
        ("sub@champion", tmp_path / "scores.npy", "sub has no alias 'champion'"),
        ("other", tmp_path / "scores.npy", "nothing named 'other'"),
    ):
        assert complaint in dpca("subspace", "transform", reference, rows, "--output", output, "--json").complaint(1)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["home", "rows.npy"]


def test_rows_of_any_name_are_projected_when_their_format_is_said(
    released: Path, dpca: Command, tmp_path: Path
) -> None:
    scores = {}
    lines = [",".join(map(repr, row)) for row in DENSE.tolist()]
    _write("svm", tmp_path).rename(tmp_path / "rows")
    (tmp_path / "rows.csv").write_text("\n".join([*lines, ""]))
    (tmp_path / "named.csv").write_text("\n".join(["a,b,c,d,e,f", *lines, ""]))
    words = ("--output", tmp_path / "scores.npy", "--json")
    for name, option in (("rows", ("--format", "svmlight")), ("rows.csv", ("--no-header",)), ("named.csv", ())):
        if option:
            refused = dpca("subspace", "transform", "sub", tmp_path / name, *words).complaint(1)
            assert option[0] in refused
        assert dpca("subspace", "transform", "sub", tmp_path / name, *option, *words).status == 0
        scores[name] = np.load(tmp_path / "scores.npy")
    for found in scores.values():
        np.testing.assert_allclose(found, DENSE @ Registry.open().load("sub").components.T, rtol=0, atol=1e-12)


def test_help_names_the_formats(dpca: Command) -> None:
    shown = dpca("subspace", "transform", "--help").out
    assert all(name in shown for name in (*FORMATS, ".svm", "--format"))


def test_a_pipe_is_no_matrix(released: Path, dpca: Command, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "rows.npy")
    words = ("--output", tmp_path / "scores.npy")
    assert "not a .npy matrix" in dpca("subspace", "transform", "sub", tmp_path / "rows.npy", *words).complaint(1)
