"""An aligned subspace is the same subspace, in coordinates as near as they can be."""

import numpy as np
import pytest

from dpca_tasks.errors import InvalidInput
from dpca_tasks.mechanisms.streams.stream_estimate import align

K, D = 4, 12


def orthonormal(seed, *, near=None, apart=0.2):
    rows = np.random.default_rng(seed).normal(size=(K, D))
    return np.linalg.qr((rows if near is None else near + apart * rows / np.sqrt(D)).T)[0].T


BEFORE = orthonormal(0)
TONIGHT = orthonormal(1, near=BEFORE)[[2, 0, 3, 1]] * np.array([[-1.0], [1.0], [1.0], [-1.0]])


@pytest.mark.parametrize("method", ["procrustes", "signs", "none"])
def test_the_subspace_stays_the_same(method):
    found = align(TONIGHT, BEFORE, method=method)
    assert np.abs(found.components.T @ found.components - TONIGHT.T @ TONIGHT).max() < 1e-12
    assert np.abs(found.components @ found.components.T - np.eye(K)).max() < 1e-12
    assert found.rotation @ TONIGHT == pytest.approx(found.components, abs=1e-15)
    assert found.cosines == pytest.approx(np.linalg.svd(TONIGHT @ BEFORE.T)[1], abs=1e-12)
    assert not found.broke


def test_procrustes_is_nearer_than_signs_and_signs_than_nothing():
    turned, flipped, as_it_is = (
        align(TONIGHT, BEFORE, method="procrustes"),
        align(TONIGHT, BEFORE, method="signs"),
        align(TONIGHT, BEFORE, method="none"),
    )
    nearest, near, far = (np.linalg.norm(found.components - BEFORE) for found in (turned, flipped, as_it_is))
    assert nearest < 0.6 < near <= far
    rng = np.random.default_rng(5)
    for _ in range(50):
        turn = np.linalg.qr(rng.normal(size=(K, K)))[0]
        assert np.linalg.norm(turn @ TONIGHT - BEFORE) >= nearest


def test_signs_follow_the_version_before_and_components_stay():
    found = align(-BEFORE, BEFORE, method="signs")
    assert found.components.tolist() == BEFORE.tolist()
    assert np.array_equal(np.abs(align(TONIGHT, BEFORE, method="signs").components), np.abs(TONIGHT))
    assert np.array_equal(align(TONIGHT, BEFORE, method="none").components, TONIGHT)


def test_a_direction_without_counterpart_is_said():
    other = np.eye(K, D)
    other[-1] = np.eye(D)[-1]
    found = align(other, np.eye(K, D), method="procrustes")
    assert found.broke
    assert found.cosines == pytest.approx([1.0, 1.0, 1.0, 0.0])


def test_other_shapes_and_methods_are_refused():
    with pytest.raises(InvalidInput, match="shape"):
        align(TONIGHT, BEFORE[:2], method="procrustes")
    with pytest.raises(InvalidInput, match="must be one of"):
        align(TONIGHT, BEFORE, method="axes")  # type: ignore[arg-type]
