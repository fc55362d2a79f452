"""Reproductions of smooth sensitivity, refinement, streams and the advisor.

For smooth sensitivity, the functions that its checks use are tested; the slopes and crossings take minutes and are run
manually. For refinement, the data and the construction of the checks are tested; the command makes the table, which
takes minutes. For streams, the fast checks and short streams are run. The table of expected numbers is made through the
command. The advisor is compared with runs on shipped data: a9a, and rows in random directions.

The command also runs on MNIST, Reuters and wide text; here it runs on the shipped a9a. The lemmas of the paper are
checked on small inputs.
"""

import dataclasses
import json
import math
from pathlib import Path

import numpy as np
import pytest

from dpca_tasks.accounting.factorisation import divided
from dpca_tasks.accounting.smooth_sensitivity import gaussian_shift, local_sensitivity, smooth_bound
from papers import advice, continual, denoise, smooth, smooth_data, smooth_lemmas
from papers.continual import THREE, Nights, captured, exact_multipliers
from papers.lib.claims import Claim, Slope
from papers.lib.kept_rows import KeptRows, along_axes
from papers.lib.public_data import a9a_entries, a9a_rows, second_moment
from papers.mechanisms import CASES, FEATURES, RECORDS, a9a_like
from tests.papers.conftest import Papers


def test_a_planted_spectrum_has_the_eigengap_that_it_states() -> None:
    rows = smooth.planted(6, 40, n_components=2, others=3)
    assert np.linalg.eigvalsh(rows.form_moment())[::-1].tolist() == [43, 43, 3, 3, 3, 3]


def test_a_seed_has_the_same_noise_at_every_eigengap() -> None:
    """The noise of a seed must be the same at every eigengap, so that a search for the needed eigengap repeats."""
    near, far = (
        smooth.squared_distances("smooth Gaussian", 20, gap, epsilon=1.0, seeds=(1, 2, 3)) for gap in (20_000, 40_000)
    )
    np.testing.assert_allclose(near / far, 4.0, rtol=0.02)
    assert len(set(near.tolist())) == 3
    assert smooth.needed_gap("smooth Gaussian", 20, epsilon=1.0, seed=1) == smooth.needed_gap(
        "smooth Gaussian", 20, epsilon=1.0, seed=1
    )


def test_a_claim_holds_if_its_exponent_is_close_to_the_band() -> None:
    slopes = {f"{name}: eigengap needed in d": Slope(mean=0.5, low=0.45, high=0.55) for name in smooth.CONTENDERS}
    verdicts = [each.verdict for each in smooth._claims(slopes, full=True)]
    assert verdicts == ["holds", "holds", "does not hold", "holds", "does not hold"]
    assert {each.verdict for each in smooth._claims(slopes, full=False)} == {"not judged"}


def test_printed_and_exact_constants_are_as_expected() -> None:
    checks = list(smooth._check_constants())
    assert len(checks) == 14
    assert [check["name"] for check in checks if not check["holds"]] == []


def test_the_error_is_that_of_the_calibrated_noise() -> None:
    """Compare the error with that of the calibrated noise: the median of 9 sums of 49 squares.

    A tolerance of a half is over five standard errors.
    """
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
    """Run the command with checks of constants only, because slopes and crossings take minutes."""
    for part in ("slopes", "needed", "crossings", "statements"):
        monkeypatch.setattr(smooth, f"_check_{part}", lambda *_: iter(()))
    ending = papers("smooth", "--json")
    report = json.loads(ending.out)
    assert ending.status == 0, report
    assert len(report["checks"]) >= 10
    assert report["needed"] == report["crossings"] == report["claims"] == []
    assert report["seeds"] == list(range(1, smooth.RUNS + 1))


A9A = second_moment(a9a_rows())


@pytest.mark.parametrize(
    ("name", "n_components"), [("flat", 3), ("giant", 3), ("low rank", 4), ("sparse", 5), ("anti", 4)]
)
def test_signals_have_the_components_that_they_state(name: str, n_components: int) -> None:
    spectrum = np.linalg.eigvalsh(denoise.SIGNALS[name]())[::-1]
    assert spectrum[n_components - 1] >= 699.9
    assert abs(spectrum[n_components]) < 1e-8


def test_the_command_checks_available_data_and_names_missing_data(
    papers: Papers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Run the command on one cell of the table, because the whole table takes minutes."""
    monkeypatch.setattr(denoise, "_checks", lambda runs, _fetched: denoise._check_cell(denoise.CELLS[0], A9A, runs))
    ending = papers("denoise", "--runs", "2", "--data", tmp_path, "--json")
    report = json.loads(ending.out)
    assert ending.status == 0, report
    names = [check["name"].removeprefix("a9a k=10 epsilon=0.1 ") for check in report["checks"]]
    assert names == ["none", "eb", "spikes", "all", "auto", "auto, at least", "best minus auto, at most"]
    assert [each.split(":")[0] for each in report["left_out"]] == ["mnist", "reuters"]


def test_noise_is_isometric_of_the_stated_size() -> None:
    """Compare the noise with equal variance in all coordinates, by a chi-square of 20,100 degrees of freedom.

    Divided by its mean, 5 standard deviations are 0.05.
    """
    (draw,) = denoise._draws(np.zeros((200, 200)), 2, 1)
    weighed = draw.moment.matrix**2 / (2 * draw.moment.noise_std**2)
    assert weighed.sum() / (200 * 201 / 2) == pytest.approx(1.0, abs=0.05)
    assert draw.moment.noise_std == pytest.approx(36.305 / math.sqrt(2), abs=1e-3)


def test_a_cell_is_checked_method_by_method() -> None:
    cell = denoise.CELLS[0]
    checks = list(denoise._check_cell(cell, A9A, 1))
    names = [check["name"].removeprefix("a9a k=10 epsilon=0.1 ") for check in checks]
    assert names == ["none", "eb", "spikes", "all", "auto", "auto, at least", "best minus auto, at most"]
    assert checks[4]["got"] > checks[0]["got"] + 0.01
    assert checks[5] | {"name": "", "holds": True} == checks[4] | {
        "name": "",
        "expected": 0.977,
        "tolerance": 0.0,
        "holds": True,
    }


def test_auto_is_compared_with_the_best_where_two_components_stand_above_the_noise() -> None:
    cell = dataclasses.replace(denoise.CELLS[0], epsilon=0.003)
    names = [check["name"] for check in denoise._check_cell(cell, A9A, 1)]
    assert not [name for name in names if "best" in name]


CHEAP = (
    continual._check_strategies,
    continual._check_tree_and_buffers,
    continual._check_events,
)


@pytest.mark.parametrize("checks", CHEAP, ids=lambda checks: checks.__name__.removeprefix("_check_"))
def test_all_checks_hold(checks) -> None:
    found = list(checks())
    assert found
    assert [check["name"] for check in found if not check["holds"]] == []


def test_the_command_prints_the_checks(papers: Papers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(continual, "_checks", lambda runs: list(continual._check_events()) * runs)
    ending = papers("continual", "--runs", "2", "--json")
    checks = json.loads(ending.out)["checks"]
    assert ending.status == 0, checks
    assert len(checks) == 2 * 3


def test_a_stream_captures_more_than_separate_releases() -> None:
    """Compare a stream with separate releases on every ninth row of a9a over eight nights.

    There are enough records to exceed the noise.
    """
    nights = Nights(rows=a9a_entries()[0][::9], clip_norm=14.0**0.5, ticks=8, run=0)
    means = captured(nights)
    assert means["stream"] > means["tree"] > means["independent releases"] - 0.05
    assert means["stream"] > means["independent releases"] + 0.05


def test_buffers_are_those_of_their_weights() -> None:
    exact = exact_multipliers(THREE)
    noise = np.random.default_rng(0).standard_normal((50, 2, 3))
    prefix = divided(np.ones(50), THREE.weights(50))
    direct = np.einsum("ts,sij->tij", [[prefix[t - s] if t >= s else 0.0 for s in range(50)] for t in range(50)], noise)
    assert exact.prefix(noise) == pytest.approx(direct, abs=1e-12)


SHEET = (0.308, 0.069, 0.051, 0.042, 0.022, 0.020, 0.017, 0.0166, 0.0161, 0.0147, 0.0147)


def test_the_synthetic_matrix_has_the_published_properties() -> None:
    rows = a9a_like()
    assert rows.shape == (RECORDS, FEATURES)
    np.testing.assert_allclose(rows.multiply(rows).sum(axis=1), 1.0)
    spectrum = np.linalg.eigvalsh((rows.T @ rows).toarray())[::-1][: len(SHEET)] / RECORDS
    np.testing.assert_allclose(spectrum, SHEET, rtol=0.1)


def test_the_command_prints_checks_that_hold(papers: Papers) -> None:
    ending = papers("mechanisms", "--mechanism", "wishart", "--mechanism", "mod_sulq", "--json")
    checks = json.loads(ending.out)["checks"]
    assert ending.status == 0, checks
    assert len(checks) == 6
    assert all(set(check) == {"name", "expected", "tolerance", "got", "holds"} for check in checks)
    assert all(abs(check["got"] - check["expected"]) <= check["tolerance"] for check in checks)
    assert checks[-2]["tolerance"] == pytest.approx(0.25 * (1 - 0.793))


def test_every_case_has_a_distinct_name() -> None:
    assert len({case.name for case in CASES}) == len(CASES)


@pytest.mark.audit_only
def test_warnings_choices_and_expectations_hold_and_missing_data_are_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Run the advisor's quick form at its smallest epsilon: missing data sets are listed, and all checks hold.

    On rows without large directions, it must warn about every mechanism.
    """
    monkeypatch.setattr(advice, "EPSILONS", (0.1,))
    found = advice.reproduce(data=tmp_path)
    assert [check for check in found["checks"] if not check["holds"]] == []
    assert len(found["grid"]) == 6 * 2 * len(advice.PRIVATE)
    assert [each.partition(":")[0] for each in found["left_out"]] == ["mnist, reuters", "text of 20,958 columns"]
    assert all(row["expects_noise"] for row in found["grid"] if row["data"] == "flat")
    first = [row for row in found["grid"] if row["mechanism"] == "analyze_gauss" and row["data"] != "flat"]
    assert not any(row["expects_noise"] for row in first)


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


def test_a_search_finds_the_rotation_that_the_bound_allows() -> None:
    bound = float(local_sensitivity(3.0, relation="add_remove", n_components=1, n_features=5))
    assert smooth_lemmas.turned_most(3.0) == pytest.approx(bound, rel=1e-4)


def test_two_perpendicular_directions_are_far_separate_in_l1() -> None:
    assert smooth_lemmas.largest_l1(2) == pytest.approx(2.0)
    assert smooth_lemmas.largest_l1(200) == pytest.approx(20.0)


def test_the_printed_bound_has_no_cap_below_one_record() -> None:
    assert smooth_lemmas.printed_bound(5.0, smoothness=0.1) == pytest.approx(
        max(*(math.exp(-0.1 * k) * math.sqrt(2) / (5 - k) for k in range(5)), math.exp(-0.5) * math.sqrt(2))
    )
    assert smooth_lemmas.printed_bound(4.001, smoothness=0.1) > 900


@pytest.mark.parametrize(
    "part",
    [smooth_lemmas.sensitivity, smooth_lemmas.smoothness, smooth_lemmas.eigengap],
    ids=lambda part: part.__name__,
)
def test_checks_hold_and_make_claims(part) -> None:
    claims: list[Claim] = []
    checks = list(part(claims, []))
    assert checks
    assert claims
    assert [check["name"] for check in checks if not check["holds"]] == []


def test_wrong_bounds_fail_their_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(smooth_lemmas, "local_sensitivity", lambda gap, **_: np.array(1.0 / gap))
    monkeypatch.setattr(smooth_lemmas, "smooth_bound", lambda gap, **_: 1.0 / math.sqrt(1.0 + gap))
    assert any(not check["holds"] for check in smooth_lemmas.sensitivity([], []))
    assert any(not check["holds"] for check in smooth_lemmas.smoothness([], []))
    assert any(not check["holds"] for check in smooth_lemmas.records([], []))


def test_more_records_are_enough_for_a_smaller_eigengap() -> None:
    assert smooth_lemmas.enough_records(0.59, 2, seed=1) < 64
    assert smooth_lemmas.enough_records(0.1, 2, seed=1) > 2.5 * smooth_lemmas.enough_records(0.2, 2, seed=1)


def test_the_example_has_no_accuracy_at_any_size() -> None:
    assert smooth_lemmas._smooth_error(10_001, 10_000, seed=(1,)) > 0.9
    assert smooth_lemmas._smooth_error(50_000, 30_000, seed=(1,)) < 0.01
    assert smooth_lemmas._global_error(np.random.default_rng(1)) > 0.9


def test_the_command_prints_claims(papers: Papers, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("example", "gap_of_a_sample", "records", "tails", "risk"):
        monkeypatch.setattr(smooth_lemmas, name, lambda *_: iter(()))
    ending = papers("smooth-lemmas", "--json")
    found = json.loads(ending.out)
    assert ending.status == 0, found
    verdicts = {each["item"]: each["verdict"] for each in found["claims"]}
    assert verdicts["Theorem 5, l2"] == verdicts["Lemma 11"] == "holds"
    assert verdicts["Theorem 5, l1"] == verdicts["Corollary 12, the bound as printed"] == "does not hold"
    assert found["seeds"] == [1, 2, 3, 4, 5]
