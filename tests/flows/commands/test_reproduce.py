"""The table of expected numbers, through the command and the flow."""

import json
from pathlib import Path

import numpy as np
import pytest

from flows.reproductions import denoise, second_moments, smooth
from flows.reproductions.checks import run_reproduction
from flows.reproductions.expected_variance import CASES, check_mechanisms, reproduce_mechanisms
from flows.reproductions.synthetic import FEATURES, RECORDS, a9a_like
from tests.flows.conftest import Command

SHEET = (0.308, 0.069, 0.051, 0.042, 0.022, 0.020, 0.017, 0.0166, 0.0161, 0.0147, 0.0147)


def test_the_synthetic_matrix_is_like_that_of_the_sheet() -> None:
    rows = a9a_like()
    assert rows.shape == (RECORDS, FEATURES)
    np.testing.assert_allclose(rows.multiply(rows).sum(axis=1), 1.0)
    spectrum = np.linalg.eigvalsh((rows.T @ rows).toarray())[::-1][: len(SHEET)] / RECORDS
    np.testing.assert_allclose(spectrum, SHEET, rtol=0.1)


def test_the_command_prints_checks_that_hold(dpca: Command) -> None:
    ending = dpca("reproduce", "mechanisms", "--mechanism", "wishart", "--mechanism", "mod_sulq", "--direct", "--json")
    checks = json.loads(ending.out)["checks"]
    assert ending.status == 0, checks
    assert len(checks) == 6
    assert all(set(check) == {"name", "expected", "tolerance", "got", "holds"} for check in checks)
    assert all(abs(check["got"] - check["expected"]) <= check["tolerance"] for check in checks)
    assert checks[-2]["tolerance"] == pytest.approx(0.25 * (1 - 0.793))


def test_a_check_that_fails_is_told_by_the_exit_code(dpca: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flows.reproductions.expected_variance.TOLERANCE", 1e-9)
    ending = dpca("reproduce", "mechanisms", "--mechanism", "laplace", "--runs", "1", "--direct")
    assert ending.status == 1
    assert "False" in ending.out


@pytest.mark.usefixtures("prefect")
def test_it_is_an_ordinary_flow() -> None:
    report = run_reproduction(reproduce_mechanisms, check_mechanisms, direct=False, runs=1, mechanisms=["laplace"])
    assert len(report["checks"]) == 2


def test_every_case_has_a_name_of_its_own() -> None:
    assert len({case.name for case in CASES}) == len(CASES)


def test_denoise_checks_what_is_there_and_names_the_rest(
    dpca: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One cell of the table; the whole takes minutes."""
    a9a = second_moments.a9a()
    monkeypatch.setattr(
        denoise, "_checks", lambda runs, _covered, _fetched: denoise._check_cell(denoise.SHIPPED[0], a9a, runs)
    )
    ending = dpca("reproduce", "denoise", "--direct", "--runs", "2", "--data", str(tmp_path), "--json")
    report = json.loads(ending.out)
    assert ending.status == 0, report
    names = [check["name"].removeprefix("a9a k=10 epsilon=0.1 ") for check in report["checks"]]
    assert names == ["none", "eb", "spikes", "all", "auto", "auto, at least", "best less auto, at most"]
    assert [each.split(":")[0] for each in report["left_out"]] == ["mnist", "reuters"]


def test_smooth_reports_checks_and_tables(dpca: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """The constants; slopes and crossings take minutes."""
    for part in ("slopes", "needed", "crossings", "statements"):
        monkeypatch.setattr(smooth, f"_check_{part}", lambda *_: iter(()))
    ending = dpca("reproduce", "smooth", "--direct", "--json")
    report = json.loads(ending.out)
    assert ending.status == 0, report
    assert len(report["checks"]) >= 10
    assert report["needed"] == report["crossings"] == []


def test_board_says_what_it_leaves_out(dpca: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    ending = dpca("reproduce", "board", "--direct", "--dataset", "mnist", "--data", "none", "--page", "board.md")
    assert ending.status == 0
    assert "left out: mnist: " in ending.err
    assert "- diffprivlib and OpenDP: " in Path("board.md").read_text(encoding="utf-8")
