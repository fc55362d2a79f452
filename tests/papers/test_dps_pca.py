"""The model of the DPS-PCA paper at a small size; the command checks the paper's settings, which takes minutes."""

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
from papers import dps_pca
from papers.dps_pca import (
    CASES,
    CHARTS,
    STEP,
    Case,
    error_checks,
    error_note,
    figure_2,
    figure_3a,
    figure_4b,
    milliseconds,
    noisy_step,
    scaling_checks,
    table_1,
    time_checks,
)
from papers.lib.sparse_model import (
    ARMS,
    NON_PRIVATE,
    OURS,
    PAPER,
    PRINTED,
    SPARSE,
    TRUNCATED,
    Arm,
    Draw,
    KeptCurator,
    KeptRows,
    Model,
)
from tests.papers.conftest import Papers

SMALL = Model(n_features=60, n_records=3_000, n_components=2, n_relevant=4, rows_kept=10)


@pytest.fixture(scope="module")
def draw() -> Draw:
    """Return one draw of the small model."""
    return Draw.of(SMALL, run=1)


def test_rows_have_norm_one_and_the_stated_directions() -> None:
    rows, truth = SMALL.draw(1)
    np.testing.assert_allclose(np.linalg.norm(rows, axis=1), 1.0, atol=1e-5)
    assert not truth[4:].any()
    np.testing.assert_allclose(truth.T @ truth, np.eye(2), atol=1e-12)
    leading = np.linalg.eigh(rows.T.astype(np.float64) @ rows)[1][:, -2:].T
    assert subspace_distance(leading, truth.T) < 0.3
    assert subspace_distance(np.eye(60)[-2:], truth.T) == pytest.approx(np.sqrt(2))


def test_every_case_has_a_name_of_its_own_and_there_are_at_least_eight_checks() -> None:
    names = {case.name(PAPER) for case in CASES}
    assert len(names) == len(CASES) >= 8
    assert "n=50000 epsilon=0.5 delta=1e-06" in names


def test_a_case_is_compared_with_its_bound_from_above_or_both_ways() -> None:
    one_sided, both = Case(epsilon=1.0, delta=0.1, distance=0.5), Case(epsilon=1, delta=0.1, distance=1, tolerance=0.1)
    assert one_sided.check([0.1, 0.3], SMALL)["holds"]
    assert not one_sided.check([0.5, 0.6], SMALL)["holds"]
    assert [both.check([got], SMALL)["holds"] for got in (0.85, 0.95, 1.05, 1.15)] == [False, True, True, False]


@pytest.mark.parametrize("arm", ARMS, ids=lambda arm: arm.name)
def test_kept_rows_give_every_arm_the_components_that_other_rows_give(draw: Draw, arm: Arm) -> None:
    mechanism, rows = arm.build(SMALL), draw.rows
    plan = mechanism.plan(draw.problem, PrivacyTarget(epsilon=2.0, delta=0.1, allow_large_delta=True))
    keys = {"event": plan.event, "relation": "replace_one", "key": bytes(32)}
    kept = mechanism.run(KeptCurator(rows, InMemoryReservation(**keys)), plan)
    read = mechanism.run(Curator(rows.source, InMemoryReservation(**keys)), plan)
    np.testing.assert_array_equal(kept.components, read.components)


def test_a_kept_moment_stays_exact_after_noise_was_added_to_what_it_gave() -> None:
    rows = KeptRows(source=ArrayBlocks(np.eye(3)))
    query = SecondMoment(n_features=3, clip_norm=1.0, relation="replace_one", bits=5)
    rows.sum(query, stay=False)[:] += 7
    np.testing.assert_array_equal(rows.sum(query, stay=False), exact_sum(rows.source, query))
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
    (usual,) = {row["distance"] for row in rows if "epsilon" not in row}
    assert usual == draw.to_truth(draw.non_private[TRUNCATED])
    checks = list(error_checks(rows))
    assert checks[0]["name"].startswith("Figure 2: error by privacy over that of sampling, sparse Analyze Gauss")
    note = error_note([{**row, "distance": 0.5 * usual} if "epsilon" in row else row for row in rows])
    assert note.count("from epsilon 0.2") == 3
    assert "at none of these epsilons" in error_note([{**row, "distance": 1.0 + ("epsilon" in row)} for row in rows])


def test_rounds_are_compared_for_every_epsilon_and_arm(draw: Draw) -> None:
    rows = list(figure_3a(draw))
    assert {row["round"] for row in rows} == set(range(11))
    flat = [{**row, "distance": {0: 2.0, 1: 2.0}.get(row["round"], 0.05)} for row in rows]
    held = {check["name"]: check["holds"] for check in dps_pca.round_checks(flat)}
    assert held["Figure 3a, epsilon=0.5: distance after round 8 over that after round 4"]
    assert not held["Figure 3a: last distance under printed noise over ours, least over epsilon, at least"]


def test_distances_at_each_number_of_features_stand_beside_those_without_privacy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(dps_pca, "FIGURE_4B_FEATURES", (40,))
    monkeypatch.setattr(dps_pca, "FIGURE_4B_EXPECTED", {PRINTED.name: {40: 0.03}})
    rows = list(figure_4b(2_000))
    assert [row["arm"] for row in rows] == [*(arm.name for arm in ARMS), NON_PRIVATE, TRUNCATED]
    assert {(row["d"], row["draws"]) for row in rows} == {(40, 1)}
    assert len(list(scaling_checks([{**row, "distance": 0.03} for row in rows]))) == 5


def test_a_noisy_step_finds_the_directions_that_a_covariance_has() -> None:
    moment, rng = np.diag([9.0, 8.0, 1.0, 1.0, 1.0]), np.random.default_rng(0)
    directions = np.linalg.qr(rng.standard_normal((5, 2)))[0]
    for _ in range(20):
        directions = noisy_step(moment, directions, std=1e-3, rows_kept=2, rng=rng)
    assert subspace_distance(directions.T, np.eye(5)[:2]) < 1e-6


def test_times_are_taken_of_every_method_and_of_forming_the_covariance(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dps_pca, "FEATURES", (20, 30))
    rows = list(table_1(500))
    assert len(rows) == 2 * 9
    assert all(row["milliseconds"] > 0 for row in rows)
    usual = [{**row, "milliseconds": 0.9 if row["arm"] == STEP else 20.0} for row in rows]
    assert [check["holds"] for check in time_checks(usual)] == [True, True, False]
    assert next(time_checks(usual))["got"] == 0.9
    assert milliseconds(lambda: sum(range(1000)), repeats=3)[0] > 0


def test_the_command_prints_its_checks_and_writes_every_figure(
    papers: Papers, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Distances at the seeds of the small model; the bounds have a margin, and random directions are far above them."""
    cases = (
        Case(epsilon=2.0, delta=1e-5, distance=0.5),
        Case(epsilon=2.0, delta=1e-5, distance=1.0, tolerance=0.5, arm=PRINTED),
        Case(epsilon=2.0, delta=1e-5, distance=0.7, share=0.5),
    )
    monkeypatch.setattr(dps_pca, "CASES", cases)
    monkeypatch.setattr(dps_pca, "FEATURES", (20,))
    monkeypatch.setattr(dps_pca, "FIGURE_4B_FEATURES", (40, 50))
    monkeypatch.setattr(dps_pca, "FIGURE_4B_EXPECTED", {})
    monkeypatch.setattr(dps_pca, "FIGURE_4A_EPSILONS", (1.0, 2.0))
    monkeypatch.setattr(dps_pca, "FIGURE_3B_DELTAS", (0.01, 0.5))
    monkeypatch.setattr(dps_pca, "FIGURE_3B_AT_MOST", {"caption": {0.01: 0.067}})
    monkeypatch.setattr(dps_pca, "CHARTS", {"figure4a": CHARTS["figure4a"]})  # drawing all takes seconds
    monkeypatch.setattr(dps_pca, "MODEL", SMALL)
    ending = papers("dps-pca", "--runs", "1", "--json", "--out", tmp_path / "out")
    assert ending.out, ending.err
    found = json.loads(ending.out)
    checks = {check["name"]: check["holds"] for check in found["checks"]}
    assert ending.status == (0 if all(checks.values()) else 1)
    assert len(checks) == len(found["checks"]) >= 25
    assert all(checks[name] for name in checks if name.startswith("n=")), checks
    assert sum(name.startswith("n=") for name in checks) == 3
    assert found["charged"].startswith("nothing")
    assert "Gibbs" in found["left_out"][0]
    assert any("caption" in note for note in found["notes"])
    assert set(found["tables"]) == set(CHARTS)
    written = {"figure4a.svg", "figure4a.png", *(f"{name}.csv" for name in CHARTS)}
    assert {Path(file).name for file in found["files"]} == written
    assert all(Path(file).stat().st_size > 0 for file in found["files"])
