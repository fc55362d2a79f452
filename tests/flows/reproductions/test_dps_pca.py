"""The model of the DPS-PCA paper at a small size; the settings of the paper take minutes: the command checks them."""

import json

import numpy as np
import pytest

from dpca_tasks.metrics import subspace_distance
from flows.reproductions import dps_pca
from flows.reproductions.dps_pca import CASES, Case, Model, check_dps_pca
from tests.flows.conftest import Command

SMALL = Model(n_features=60, n_records=3_000, n_components=2, n_relevant=4)


def test_rows_have_norm_one_and_the_stated_directions() -> None:
    rows, truth = SMALL.draw(1)
    np.testing.assert_allclose(np.linalg.norm(rows, axis=1), 1.0, atol=1e-5)
    assert not truth[4:].any()
    np.testing.assert_allclose(truth.T @ truth, np.eye(2), atol=1e-12)
    leading = np.linalg.eigh(rows.T.astype(np.float64) @ rows)[1][:, -2:].T
    assert subspace_distance(leading, truth.T) < 0.3
    assert subspace_distance(np.eye(60)[-2:], truth.T) == pytest.approx(np.sqrt(2))


def test_every_case_has_a_name_of_its_own_and_there_are_at_least_eight_checks() -> None:
    names = {case.name(Model()) for case in CASES}
    assert len(names) == len(CASES) >= 8
    assert "n=50000 epsilon=0.5 delta=1e-06" in names


def test_a_case_is_compared_with_its_bound_from_above_or_both_ways() -> None:
    one_sided, both = Case(epsilon=1.0, delta=0.1, distance=0.5), Case(epsilon=1, delta=0.1, distance=1, tolerance=0.1)
    assert one_sided.check([0.1, 0.3], SMALL)["holds"]
    assert not one_sided.check([0.5, 0.6], SMALL)["holds"]
    assert [both.check([got], SMALL)["holds"] for got in (0.85, 0.95, 1.05, 1.15)] == [False, True, True, False]


def test_the_command_prints_its_checks(dpca: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """Distances at the seeds of the small model; 0.5 is far from them and from those of the printed formula."""
    cases = (
        Case(epsilon=2.0, delta=1e-5, distance=0.5, settings={"rows_kept": 10}),
        Case(epsilon=2.0, delta=1e-5, distance=1.4, tolerance=0.5, settings={**dps_pca._AS_PRINTED, "rows_kept": 10}),
    )
    monkeypatch.setattr(dps_pca, "CASES", cases)
    monkeypatch.setattr(dps_pca, "STEP_MILLISECONDS", 1e4)
    monkeypatch.setattr(dps_pca, "check_dps_pca", lambda runs: check_dps_pca(runs=runs, model=SMALL))
    ending = dpca("reproduce", "dps-pca", "--direct", "--runs", "1", "--json")
    checks = json.loads(ending.out)["checks"]
    assert ending.status == 0, checks
    assert len(checks) == 3
    assert checks[1]["name"].startswith("n=3000 epsilon=2.0 delta=1e-05 rows_kept=10")
