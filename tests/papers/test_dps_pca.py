"""Reproduction of DPS-PCA with a small model; the commands check the paper's settings, which takes minutes."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

from dpca_tasks.mechanisms.base import PrivacyTarget
from dpca_tasks.metrics import subspace_distance
from dpca_tasks.privacy.curator import Curator
from dpca_tasks.privacy.gate import InMemoryReservation
from dpca_tasks.queries.second_moment import SecondMoment
from dpca_tasks.records.blocks import ArrayBlocks
from dpca_tasks.sums.exact_sum import exact_sum
from papers import dps_pca, dps_rates, dps_times
from papers.dps_pca import (
    CASES,
    CHARTS,
    PRIVACY,
    UNSCALED,
    Case,
    error_checks,
    figure_2,
    figure_3a,
    figure_3b,
    figure_4a,
    figure_4b,
    scaling_checks,
)
from papers.dps_times import ALL_STEPS, milliseconds, table_1, time_checks, time_claims
from papers.lib.claims import Claim, Slope
from papers.lib.kept_rows import KeptCurator, KeptRows
from papers.lib.sparse_model import (
    ARMS,
    GIBBS,
    NON_PRIVATE,
    OURS,
    PAPER,
    PRINTED,
    SPARSE,
    TRUNCATED,
    Arm,
    Bound,
    Draw,
    Model,
    noisy_step,
    printed_std,
)
from tests.papers.conftest import Papers

SMALL = Model(n_features=60, n_records=3_000, n_components=2, n_relevant=4, rows_kept=10)


THREE = {"figure3a": figure_3a, "figure3b": figure_3b, "figure4a": figure_4a}
WIDE = [
    {"data": "", "arm": arm.name, "d": d, "distance": 0.1 * at + d / 200}
    for at, arm in enumerate(ARMS)
    for d in (40, 160)
]
"""Distances of all arms at both ends of figure 4b."""


@pytest.fixture(scope="module")
def draw() -> Draw:
    """Return one data set drawn from the small model."""
    return Draw.of(SMALL, run=1)


def test_rows_have_norm_one_and_the_stated_directions() -> None:
    rows, truth = SMALL.draw(1)
    np.testing.assert_allclose(np.linalg.norm(rows, axis=1), 1.0, atol=1e-5)
    assert not truth[4:].any()
    np.testing.assert_allclose(truth.T @ truth, np.eye(2), atol=1e-12)
    leading = np.linalg.eigh(rows.T.astype(np.float64) @ rows)[1][:, -2:].T
    assert subspace_distance(leading, truth.T) < 0.3
    assert subspace_distance(np.eye(60)[-2:], truth.T) == pytest.approx(np.sqrt(2))


def test_every_case_has_a_distinct_name_and_there_are_at_least_eight_checks() -> None:
    names = {case.name(PAPER) for case in CASES}
    assert len(names) == len(CASES) >= 8
    assert "n=50000 epsilon=0.5 delta=1e-06" in names


def test_a_case_is_compared_with_its_bound_from_above_or_both_ways() -> None:
    one_sided, both = Case(epsilon=1.0, delta=0.1, distance=0.5), Case(epsilon=1, delta=0.1, distance=1, tolerance=0.1)
    assert one_sided.check([0.1, 0.3], SMALL)["holds"]
    assert not one_sided.check([0.5, 0.6], SMALL)["holds"]
    assert [both.check([got], SMALL)["holds"] for got in (0.85, 0.95, 1.05, 1.15)] == [False, True, True, False]


@pytest.mark.parametrize("arm", ARMS, ids=lambda arm: arm.name)
def test_kept_rows_give_every_method_the_same_components(draw: Draw, arm: Arm) -> None:
    mechanism, rows = arm.build(SMALL), draw.rows
    plan = mechanism.plan(draw.problem, PrivacyTarget(epsilon=2.0, delta=0.1, allow_large_delta=True))
    keys = {"event": plan.event, "relation": "replace_one", "key": bytes(32)}
    kept = mechanism.run(KeptCurator(rows, InMemoryReservation(**keys)), plan)
    read = mechanism.run(Curator(rows.source, InMemoryReservation(**keys)), plan)
    np.testing.assert_array_equal(kept.components, read.components)


def test_a_kept_moment_stays_exact_after_noise_is_added_to_its_copies() -> None:
    rows = KeptRows(source=ArrayBlocks(np.eye(3)))
    query = SecondMoment(n_features=3, clip_norm=1.0, relation="replace_one", bits=5)
    rows.sum(query, keep=False)[:] += 7
    np.testing.assert_array_equal(rows.sum(query, keep=False), exact_sum(rows.source, query))
    np.testing.assert_array_equal(rows.form_moment(), np.eye(3))


def test_a_trajectory_starts_at_random_and_ends_at_the_answer_of_a_last_round(draw: Draw) -> None:
    rounds = draw.trajectory(PRINTED, epsilon=9.0, delta=0.3)
    assert len(rounds) == 11
    assert rounds[0] > 1.0
    assert rounds[-1] == pytest.approx(draw.distance(PRINTED, epsilon=9.0, delta=0.3))
    assert len(draw.trajectory(OURS, epsilon=9.0, delta=0.3)) == 9
    assert draw.distance(SPARSE, epsilon=9.0, delta=0.3) < draw.to_truth(draw.non_private[NON_PRIVATE])


def test_errors_by_privacy_are_compared_with_the_truncated_answer_without_noise(draw: Draw) -> None:
    rows = list(figure_2(draw))
    usual = {row["distance"] for row in rows if "epsilon" not in row}
    assert usual == {draw.to_truth(draw.non_private[TRUNCATED])}
    checks = list(error_checks(rows))
    assert checks[0]["name"].startswith("Figure 2: error by privacy divided by that of sampling, sparse Analyze Gauss")
    tables = {"figure2": rows, **{name: list(of(draw)) for name, of in THREE.items()}, "figure4b": WIDE}
    verdicts = {each.item: each.verdict for each in dps_pca.claims_of(tables)}
    assert verdicts[f"Figure 2, {OURS.name}"] == "does not hold"
    small = [row | {"distance": 0.5 * row["distance"]} if row["arm"] == PRIVACY else row for row in rows]
    quiet = [row | {"distance": 1e-9} if row["arm"] == PRIVACY else row for row in small]
    verdicts = {each.item: each.verdict for each in dps_pca.claims_of(tables | {"figure2": quiet})}
    assert verdicts[f"Figure 2, {OURS.name}"] == verdicts[f"Figure 2, {UNSCALED}"] == "holds"
    assert verdicts["Figure 4b, MOD-SULQ, printed noise"] == "holds"


def test_rows_that_are_not_scaled_need_less_noise(draw: Draw) -> None:
    found = draw.unscaled(epsilon=2.0, delta=0.3)
    assert len(found) == 10
    assert draw.to_truth(found[-1]) < draw.distance(PRINTED, epsilon=2.0, delta=0.3)
    np.testing.assert_array_equal(found[-1], draw.unscaled(epsilon=2.0, delta=0.3)[-1])


def test_the_theorem_has_a_bound_only_where_the_signal_exceeds_the_noise() -> None:
    quiet = Bound(model=PAPER, noise_std=printed_std(epsilon=2.0, delta=0.01))
    assert quiet.exists
    assert quiet.gamma == pytest.approx(13 / 31, rel=0.01)
    assert quiet.privacy < quiet.sampling
    halved = Bound(model=PAPER, noise_std=2.0 * quiet.noise_std)
    assert halved.privacy == pytest.approx(2.0 * quiet.privacy, rel=0.05)
    assert not Bound(model=PAPER, noise_std=PAPER.squared_norm * quiet.noise_std).exists


def test_rounds_are_compared_for_every_epsilon_and_arm(draw: Draw) -> None:
    rows = list(figure_3a(draw))
    assert {row["round"] for row in rows} == set(range(11))
    flat = [{**row, "distance": {0: 2.0, 1: 2.0}.get(row["round"], 0.05)} for row in rows]
    held = {check["name"]: check["holds"] for check in dps_pca.round_checks(flat)}
    assert held["Figure 3a, epsilon=0.5: distance after round 8 divided by that after round 4"]
    assert not held["Figure 3a: last distance with printed noise divided by ours, smallest over all epsilons, at least"]


def test_distances_are_listed_with_those_without_privacy_for_each_number_of_features(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(dps_pca, "FIGURE_4B_FEATURES", (40,))
    monkeypatch.setattr(dps_pca, "FIGURE_4B_EXPECTED", {PRINTED.name: {40: 0.03}})
    rows = list(figure_4b(2_000, 0))
    names = [*(arm.name for arm in (*ARMS, GIBBS)), UNSCALED, NON_PRIVATE, TRUNCATED]
    assert [row["arm"] for row in rows] == names
    assert {row["d"] for row in rows} == {40}
    assert len(list(scaling_checks([{**row, "distance": 0.03} for row in rows]))) == 5


def test_a_noisy_step_finds_the_directions_that_a_covariance_has() -> None:
    moment, rng = np.diag([9.0, 8.0, 1.0, 1.0, 1.0]), np.random.default_rng(0)
    directions = np.linalg.qr(rng.standard_normal((5, 2)))[0]
    for _ in range(20):
        directions = noisy_step(moment, directions, std=1e-3, rows_kept=2, rng=rng)
    assert subspace_distance(directions.T, np.eye(5)[:2]) < 1e-6


def test_times_of_every_method_and_of_forming_the_covariance_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dps_times, "FEATURES", (20, 30))
    rows = list(table_1(500))
    assert len(rows) == 2 * 9
    assert all(row["milliseconds"] > 0 for row in rows)
    usual = [{**row, "milliseconds": 0.9 if row["arm"] == ALL_STEPS else 20.0} for row in rows]
    assert [check["holds"] for check in time_checks(usual)] == [True, True]
    assert [each.verdict for each in time_claims(usual)] == ["holds", "holds"]
    slow = [{**row, "milliseconds": 30.0 if row["arm"] == ALL_STEPS else 20.0} for row in rows]
    assert [check["holds"] for check in time_checks(slow)] == [False, False]
    assert [each.verdict for each in time_claims(slow)] == ["does not hold", "does not hold"]
    assert milliseconds(lambda: sum(range(1000)), repeats=3)[0] > 0


def test_the_command_prints_its_checks_and_writes_every_figure(
    papers: Papers, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Run the command on the small model: distances must be below their bounds, which have a margin.

    Random directions are far above the bounds.
    """
    cases = (
        Case(epsilon=2.0, delta=1e-5, distance=0.5),
        Case(epsilon=2.0, delta=1e-5, distance=1.0, tolerance=0.5, arm=PRINTED),
        Case(epsilon=2.0, delta=1e-5, distance=0.7, share=0.5),
    )
    monkeypatch.setattr(dps_pca, "CASES", cases)
    monkeypatch.setattr(dps_pca, "FIGURE_4B_FEATURES", (40, 50))
    monkeypatch.setattr(dps_pca, "FIGURE_4B_EXPECTED", {})
    monkeypatch.setattr(dps_pca, "FIGURE_4A_EPSILONS", (1.0, 2.0))
    monkeypatch.setattr(dps_pca, "FIGURE_3B_DELTAS", (0.01, 0.5))
    # one figure only, because drawing all takes seconds
    monkeypatch.setattr(dps_pca, "CHARTS", {"figure4a": CHARTS["figure4a"]})
    monkeypatch.setattr(dps_pca, "MODEL", SMALL)
    ending = papers("dps-pca", "--runs", "1", "--json", "--out", tmp_path / "out")
    assert ending.out, ending.err
    found = json.loads(ending.out)
    checks = {check["name"]: check["holds"] for check in found["checks"]}
    assert ending.status == 0
    assert len(checks) == len(found["checks"]) >= 20
    assert set(checks.values()) == {None}
    assert {each["verdict"] for each in found["claims"]} == {"not judged"}
    assert sum(name.startswith("n=") for name in checks) == 3
    assert found["charged"].startswith("nothing")
    assert found["seeds"] == [0]
    assert any("caption" in note for note in found["notes"])
    assert set(found["tables"]) == set(CHARTS)
    written = {"figure4a.svg", "figure4a.png", *(f"{name}.csv" for name in CHARTS)}
    assert {Path(file).name for file in found["files"]} == written
    assert all(Path(file).stat().st_size > 0 for file in found["files"])


def test_rates_are_measured_on_every_axis(papers: Papers, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Measure the error rates on the small model, with one seed and two sizes on each axis."""
    monkeypatch.setattr(dps_rates, "SMALL", SMALL)
    axes = {
        "n": ((1_000, 3_000), lambda n: dataclasses.replace(SMALL, n_records=n)),
        "d": ((40, 60), lambda d: dataclasses.replace(SMALL, n_features=d)),
    }
    monkeypatch.setattr(dps_rates, "AXES", axes)
    monkeypatch.setattr(dps_rates, "RECORDS", (1_000, 3_000))
    monkeypatch.setattr(dps_rates, "CHARTS", {})
    ending = papers("dps-rates", "--runs", "1", "--json", "--out", tmp_path / "out")
    found = json.loads(ending.out)
    assert ending.status == 0
    assert {row["axis"] for row in found["tables"]["rates"]} == {"n", "d"}
    assert {check["holds"] for check in found["checks"]} == {None}
    items = [each["item"] for each in found["claims"]]
    assert "minimax rate" in items
    assert sum(item.startswith("Figure 2") for item in items) == 2
    assert {"figure1.svg", "figure2.csv", "rates.csv"} <= {Path(file).name for file in found["files"]}


def test_a_stated_exponent_holds_within_the_tolerance_and_a_refuted_one_must_differ() -> None:
    slope = Slope(mean=-0.5, low=-0.55, high=-0.45)
    cases = [
        (dps_rates.SAMPLING, "n", slope, True, True),
        (dps_rates.PRIVACY, "n", slope, False, False),
        # the paper's claim is refuted here, as the check requires
        (dps_rates.PRIVACY, "d", Slope(mean=1.0, low=0.9, high=1.1), False, True),
        (dps_rates.PRIVACY, "d", Slope(mean=0.0, low=-0.1, high=0.1), True, False),
    ]
    for measure, axis, found, claim_holds, check_holds in cases:
        claims: list[Claim] = []
        (check,) = dps_rates._check_rate(measure, axis, found, [], claims)
        assert (claims[0].holds, check["holds"]) == (claim_holds, check_holds)
