"""Rows stored in memory between releases: each release is equal to one that reads the rows again."""

import numpy as np
import pytest

from dpca_tasks.mechanisms.base import PrivacyTarget
from dpca_tasks.mechanisms.subspace.analyze_gauss import AnalyzeGauss
from dpca_tasks.mechanisms.subspace.smooth_sensitivity import SmoothSensitivity
from dpca_tasks.noise.keystream import subkey
from dpca_tasks.privacy.eigensolver import Eigensolver
from papers.lib.kept_rows import KeptRows, along_axes, release

TARGET = PrivacyTarget(epsilon=1.0, delta=1e-3, allow_large_delta=True)


def test_records_along_the_axes_are_counted() -> None:
    assert KeptRows(source=along_axes([3, 0, 2])).form_moment().diagonal().tolist() == [3.0, 0.0, 2.0]


def test_eigenpairs_are_computed_once_for_each_solver(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = KeptRows(source=along_axes([900, 5, 5]))
    solvers = [Eigensolver(n_features=3, clip_norm=1.0, relation="add_remove", n_components=count) for count in (1, 2)]
    start = subkey(bytes(32), label="start", info=b"")
    first = [rows.solve(solver, start) for solver in solvers]
    monkeypatch.setattr(Eigensolver, "solve", lambda *_: pytest.fail("it was computed again"))
    assert [rows.solve(solver, start) for solver in solvers] == first
    assert first[0].gap == pytest.approx(895, abs=0.1)


@pytest.mark.parametrize("mechanism", [SmoothSensitivity(n_components=1), AnalyzeGauss(n_components=1)])
def test_a_seed_determines_a_release(mechanism: SmoothSensitivity | AnalyzeGauss) -> None:
    rows = KeptRows(source=along_axes([9_000, 5, 5]))
    one, same, other = (release(mechanism, TARGET, rows, seed=seed).components for seed in ((1,), (1,), (2,)))
    np.testing.assert_array_equal(one, same)
    assert not np.array_equal(one, other)
