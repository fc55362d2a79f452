"""What the checks of smooth sensitivity stand on; the slopes and crossings take minutes and are run by hand."""

import json
import math

import numpy as np
import pytest

from dpca_tasks.accounting.smooth_sensitivity import gaussian_shift, smooth_bound
from papers import smooth
from tests.papers.conftest import Papers


def test_a_planted_spectrum_has_the_eigengap_that_it_states() -> None:
    source = smooth.planted(6, 40, n_components=2, others=3)
    rows = np.zeros((source.n_records, 6))
    block = source.read(0)
    rows[np.arange(source.n_records), block.indices] = block.values
    assert np.linalg.eigvalsh(rows.T @ rows)[::-1].tolist() == [43, 43, 3, 3, 3, 3]


def test_the_slope_of_a_power_is_its_exponent() -> None:
    assert smooth.slope((1, 2, 8), (3, 3 * 2**1.5, 3 * 8**1.5)) == pytest.approx(1.5)


def test_printed_and_exact_constants_are_as_expected() -> None:
    checks = list(smooth._check_constants())
    assert len(checks) >= 14
    assert [check["name"] for check in checks if not check["holds"]] == []


def test_the_error_is_that_of_the_calibrated_noise() -> None:
    """The median of 9 sums of 49 squares: a tolerance of a half is over five standard errors."""
    d, gap = 50, 5_000
    shift, smoothness = gaussian_shift(epsilon=1.0, delta=smooth.DELTA, size=d)
    bound = smooth_bound(gap, smoothness=smoothness, relation="add_remove", n_components=1, n_features=d)
    expected = (d - 1) * (bound / shift) ** 2
    got = smooth.squared_distance("smooth Gaussian", d, gap, epsilon=1.0, runs=9)
    assert got == pytest.approx(expected, rel=0.5)


def test_the_foreseen_crossing_makes_both_errors_equal() -> None:
    found = smooth._foreseen("Analyze Gauss", 123, 1, 1.0)
    shift, smoothness = gaussian_shift(epsilon=1.0, delta=smooth.DELTA, size=123)
    bound = smooth_bound(found, smoothness=smoothness, relation="add_remove", n_components=1, n_features=123)
    assert bound / shift == pytest.approx(2.575 / (math.sqrt(2) * found), rel=0.01)


def test_the_command_reports_checks_and_tables(papers: Papers, monkeypatch: pytest.MonkeyPatch) -> None:
    """The constants; slopes and crossings take minutes."""
    for part in ("slopes", "needed", "crossings", "statements"):
        monkeypatch.setattr(smooth, f"_check_{part}", lambda *_: iter(()))
    ending = papers("smooth", "--json")
    report = json.loads(ending.out)
    assert ending.status == 0, report
    assert len(report["checks"]) >= 10
    assert report["needed"] == report["crossings"] == []
