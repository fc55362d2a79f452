"""Smooth sensitivity on the shipped data set a9a; the command also runs on MNIST, Reuters and wide text."""

import json
from pathlib import Path

import pytest

from papers import smooth_data
from papers.lib.kept_rows import KeptRows, along_axes
from tests.papers.conftest import Papers


def test_the_epsilon_of_a_useful_eigengap_is_found() -> None:
    epsilon = smooth_data.epsilon_at(5_247.0, 123)
    assert epsilon == pytest.approx(0.1, rel=0.01)
    assert smooth_data.epsilon_at(1_000.0, 123) > epsilon


def test_the_foreseen_ratio_is_that_of_a_flat_spectrum() -> None:
    """Compare the forecast error ratio with Analyze Gauss for a flat spectrum: 0.74.

    Smooth noise has a std of half the sensitivity bound over shift, and Analyze Gauss its multiplier over sqrt 2.
    """
    data = smooth_data.Data(name="flat", rows=KeptRows(source=along_axes([40_000, *[10] * 99])))
    assert smooth_data._foreseen(data) == pytest.approx(0.74, abs=0.05)


@pytest.mark.audit_only
def test_the_command_draws_the_cliff_of_a9a(papers: Papers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(smooth_data, "SHARES", (0.35, 4.0))
    ending = papers("smooth-data", "--runs", "2", "--no-wide", "--data", tmp_path, "--out", tmp_path / "out", "--json")
    found = json.loads(ending.out)
    assert ending.status == 0, found
    errors = {(row["arm"], row["over useful"]): row["squared sine"] for row in found["tables"]["cliff"]}
    assert errors["smooth Gaussian", 0.35] > 0.9 > 0.1 > errors["Analyze Gauss", 0.35]
    assert errors["smooth Gaussian", 4.0] < 2 * errors["Analyze Gauss", 4.0] < 0.01
    assert [each.partition(":")[0] for each in found["left_out"]] == ["mnist", "reuters"]
    assert {Path(file).name for file in found["files"]} == {"cliff.csv", "cliff.svg", "cliff.png", "sparse.csv"}
    assert {check["holds"] for check in found["checks"]} == {None}
