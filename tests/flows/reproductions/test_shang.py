"""The reproduction of Shang et al. on tiny data: its protocol, tables, files and artifacts; the whole takes minutes."""

import csv
import json
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from prefect.client.orchestration import get_client
from scipy import sparse

from flows.reproductions import labelled_rows, shang, shang_distances, shang_losses, shang_statements
from flows.reproductions.checks import run_reproduction
from flows.reproductions.labelled_rows import LabelledRows, made_text
from flows.reproductions.shang_losses import MAJORITY, RANDOM
from flows.reproductions.subspace_arms import ANALYZE_GAUSS, COMPARED, Arm
from flows.reproductions.svm_protocol import Reference, Split, less_lost, random_subspace
from tests.docs.reader import DOCS, shell_blocks
from tests.flows.conftest import Command

REFUSING = Arm(mechanism="dp_spca", calibration="paper", settings={"form": "one_row"})


@pytest.fixture(scope="module")
def text() -> LabelledRows:
    return made_text(60, n_records=400)


@pytest.fixture
def tiny(text: LabelledRows, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the reproduction run a few arms on text of 400 records alone."""
    for module in (shang_losses, shang_distances):
        monkeypatch.setattr(module, "ARMS", (*COMPARED, REFUSING))
    monkeypatch.setattr(shang, "_loaders", lambda *_: ({"text": lambda: text}, ["MNIST: not here"]))


def test_a_split_reserves_half_and_trains_on_a_tenth_of_the_rest(text: LabelledRows) -> None:
    split = Split.of(text, seed=(0,))
    assert (split.reserved.shape[0], split.train.shape[0], split.test.shape[0]) == (200, 20, 180)
    again, other = Split.of(text, seed=(0,)), Split.of(text, seed=(1,))
    assert (split.reserved != again.reserved).nnz == 0
    assert (split.reserved != other.reserved).nnz > 0


def test_accuracy_is_that_of_standardised_scores() -> None:
    """Two classes that one direction separates and another does not, however differently the two are scaled."""
    rng = np.random.default_rng(0)
    labels = np.where(rng.random(400) < 0.5, -1.0, 1.0)
    rows = sparse.csr_array(np.stack([1e-6 * labels, rng.standard_normal(400)], axis=1))
    split = Split.of(LabelledRows(name="two", rows=rows, labels=labels, n_components=1), seed=(0,))
    assert split.accuracy(np.array([[1.0, 0.0]])) == 100.0
    assert 35.0 < split.accuracy(np.array([[0.0, 1.0]])) < 65.0
    assert 40.0 <= split.majority() <= 60.0


def test_the_best_directions_measure_as_the_best(text: LabelledRows) -> None:
    reference = Reference.of(text.rows, n_components=3)
    measured = reference.measured(reference.best)
    assert measured == pytest.approx({"distance": 0.0, "captured": 1.0, "beyond": 1.0}, abs=1e-9)
    guess = reference.measured(random_subspace(60, 3, seed=(0,)))
    assert guess["distance"] > 2.0
    assert guess["captured"] < 0.5
    only_first = np.vstack([reference.best[:1], random_subspace(60, 2, seed=(1,))])
    assert reference.measured(np.linalg.qr(only_first.T)[0].T)["beyond"] < 0.6


def test_wide_rows_are_decomposed_without_a_matrix(text: LabelledRows, monkeypatch: pytest.MonkeyPatch) -> None:
    formed = Reference.of(text.rows, n_components=3)
    monkeypatch.setattr("flows.reproductions.svm_protocol.FORMED", 10)
    unformed = Reference.of(text.rows, n_components=3)
    np.testing.assert_allclose(unformed.values, formed.values, rtol=1e-8)
    assert unformed.measured(formed.best)["distance"] == pytest.approx(0.0, abs=1e-8)


def test_a_smaller_loss_is_told_by_a_paired_test() -> None:
    rng = np.random.default_rng(0)
    of_split = 10 * rng.standard_normal(8)  # which pairing takes off
    less = of_split + 0.1 * rng.standard_normal(8)
    assert less_lost(less.tolist(), (of_split + 1.0).tolist()) < 1e-4
    assert less_lost((of_split + 1.0).tolist(), less.tolist()) > 0.99


def test_printed_bounds_are_computed_with_what_is_true_of_them() -> None:
    values = [0.3, 0.07, 0.05, 0.01, *([0.001] * 100)]
    found = {row["algorithm"]: row for row in shang_statements.bounds(500, 104, 3, values)}
    assert list(found) == ["analyze_gauss", "wishart", "local_gaussian", "dp_spca", "dp_vrpca"]
    assert found["analyze_gauss"]["true epsilon"] == pytest.approx(0.0369, abs=1e-4)
    assert found["dp_spca"]["printed bound, constants 1"] == pytest.approx((3 * 104 / 0.1) ** 0.5 / 500)
    assert found["dp_spca"]["noise of the formula"] == pytest.approx(1.3075 * (32_561 / 500) ** 0.5, rel=1e-4)
    assert found["wishart"]["true epsilon"] == np.inf


def test_shapes_are_compared_with_those_printed(text: LabelledRows) -> None:
    assert not list(shang_statements.check_shapes(text))
    checks = list(shang_statements.check_shapes(labelled_rows.a9a()))
    assert len(checks) == 3
    assert all(check["holds"] for check in checks)


@pytest.mark.usefixtures("tiny")
def test_the_command_writes_tables_and_figures(dpca: Command, tmp_path: Path) -> None:
    out = tmp_path / "made" / "here"
    ending = dpca(
        *("reproduce", "shang", "--dataset", "text", "--splits", "2", "--draws", "2", "--out", out),
        *("--data", tmp_path, "--direct", "--json"),
    )
    found = json.loads(ending.out)
    assert ending.status in (0, 1)
    assert found["left_out"] == ["MNIST: not here"]
    assert found["charged"].startswith("nothing")
    assert [check["name"].split(":")[0] for check in found["checks"]] == ["made text"] * 2
    names = {Path(path).name for path in found["files"]}
    assert names == {path.name for path in out.iterdir()}
    assert {f"table3-made-text-delta-{delta}.{kind}" for delta in ("0.001", "1e-05") for kind in ("svg", "png")} < names
    assert (out / "figure1-made-text-delta-0.001.svg").read_text().startswith("<?xml")
    with (out / "table3.csv").open() as file:
        rows = list(csv.DictReader(file))
    by_arm = {(row["arm"], row["delta"]): row for row in rows}
    assert {MAJORITY, RANDOM, REFUSING.name} | {arm.name for arm in COMPARED} == {arm for arm, _ in by_arm}
    assert float(by_arm[ANALYZE_GAUSS.name, "1e-05"]["error"]) > 0
    assert "calibration=paper" in by_arm[REFUSING.name, "0.001"]["refused"]
    assert float(by_arm["analyze_gauss paper", "0.001"]["true epsilon"]) == pytest.approx(0.0369, abs=1e-4)
    assert "Charged: nothing" in (out / "table3.md").read_text()


@pytest.mark.usefixtures("tiny")
def test_the_commands_of_the_page_shang_md_run(dpca: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each with two splits and one draw, on tiny text in place of the data sets, which others fetch by `make data`."""
    monkeypatch.chdir(tmp_path)
    (block,) = shell_blocks(DOCS / "explanation" / "shang.md")
    fetch, *lines = [shlex.split(line, comments=True) for line in block.splitlines()]
    assert fetch == ["make", "data"]
    smaller = ("--splits", "2", "--draws", "1", "--direct", "--data", tmp_path)
    for _, *words in lines:
        names = ["text" if last == "--dataset" else word for last, word in zip([None, *words], words, strict=False)]
        assert dpca(*names, *smaller).status in (0, 1)
    assert (tmp_path / "shang" / "table3.csv").is_file()


@pytest.mark.usefixtures("tiny", "prefect")
def test_under_prefect_checks_tables_and_figures_are_artifacts() -> None:
    found = run_reproduction(
        shang.reproduce_shang, shang.check_shang, direct=False, splits=2, draws=1, datasets=["text"]
    )
    assert found["files"] == []
    with get_client(sync_client=True) as client:
        stored: list[Any] = client.read_artifacts()
    by_key = {artifact.key: artifact for artifact in stored}
    checks = json.loads(by_key["reproduction-shang-checks"].data)
    assert [check["name"] for check in checks] == [check["name"] for check in found["checks"]]
    assert "## Table 3: points of accuracy" in by_key["reproduction-shang-tables"].data
    assert "data:image/png;base64," in by_key["reproduction-shang-figures"].data


def test_a_data_set_that_is_not_here_is_refused(dpca: Command, tmp_path: Path) -> None:
    ending = dpca("reproduce", "shang", "--dataset", "MNIST", "--data", tmp_path, "--direct")
    assert ending.complaint(1) == "dpca: dataset=MNIST is no data set that is here; they are a9a, text."


def test_what_is_left_out_says_how_to_add_it(tmp_path: Path) -> None:
    found, left_out = shang._loaders(tmp_path, None, None, 100)
    assert list(found) == ["a9a", "text"]
    assert [each.split()[0].rstrip(":") for each in left_out] == ["MNIST", "CIFAR-10", "real-sim"]
    assert list(shang._loaders(tmp_path, "x", "y", 100)[0]) == ["a9a", "CIFAR-10", "real-sim", "text"]
