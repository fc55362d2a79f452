"""The curator's diagnostics against dense arithmetic on a small data set."""

import numpy as np
import pytest

from dpca_tasks.accounting import events
from dpca_tasks.mechanisms.base import Problem
from dpca_tasks.mechanisms.evaluation.subspace_diagnostics import diagnose
from dpca_tasks.privacy.curator import DisclosingCurator
from dpca_tasks.privacy.gate import InMemoryReservation
from dpca_tasks.records.sources import ArrayBlocks

RNG = np.random.default_rng(5)
ROWS = (RNG.standard_normal((400, 7)) * np.arange(7, 0, -1) + 1.0) * 0.05
ROWS /= np.maximum(np.linalg.norm(ROWS, axis=1, keepdims=True), 1.0)
COMPONENTS = np.linalg.qr(np.eye(7)[:, :3] + 0.2 * RNG.standard_normal((7, 3)))[0].T


def diagnosed(*, center="none", mean=None, components=COMPONENTS):
    reservation = InMemoryReservation(event=events.non_private())
    curator = DisclosingCurator(ArrayBlocks(ROWS), reservation, i_know_this_is_not_private=True)
    return diagnose(curator, Problem(n_features=7, clip_norm=1.0, center=center), components, mean=mean)


@pytest.mark.parametrize("centred", [False, True], ids=["origin", "mean"])
def test_every_number_is_that_of_dense_arithmetic(centred):
    released = ROWS.mean(axis=0) + 0.02
    found = diagnosed(center="private" if centred else "none", mean=released if centred else None)
    rows = ROWS - ROWS.mean(axis=0) if centred else ROWS
    singular, right = np.linalg.svd(rows, full_matrices=False)[1:]
    values, best = singular**2, right[:3]
    off = rows - np.outer(rows @ best[0], best[0])
    beyond = np.linalg.svd(off @ COMPONENTS.T, compute_uv=False)[:2] ** 2
    scores = rows @ COMPONENTS.T
    held, total, along = (scores**2).sum(), (rows**2).sum(), (scores[:, 0] ** 2).sum()
    cosines = np.linalg.svd(COMPONENTS @ best.T, compute_uv=False)
    away = ROWS - released if centred else ROWS
    expected = {
        "captured_variance": held / values[:3].sum(),
        "captured_beyond_first": beyond.sum() / values[1:3].sum(),
        "share": held / total,
        "share_beyond_first": (held - along) / (total - along),
        "principal_angles": np.degrees(np.arccos(cosines)),
        "subspace_distance": np.sqrt(3 - (cosines**2).sum()),
        "reconstruction_error": ((away - away @ COMPONENTS.T @ COMPONENTS) ** 2).sum(),
    }
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-3, err_msg=name)


def test_the_best_directions_are_at_angle_zero_and_one_has_nothing_beyond():
    best = np.linalg.svd(ROWS, full_matrices=False)[2][:1]
    found = diagnosed(components=best)
    assert found["captured_variance"] == pytest.approx(1.0, abs=1e-6)
    assert found["principal_angles"] == pytest.approx([0.0], abs=0.1)
    assert found["captured_beyond_first"] is found["share_beyond_first"] is None
