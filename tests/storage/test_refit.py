"""Directions kept beyond k, a released mean, and shares of a released total."""

import numpy as np
import pytest

from storage.artifacts.subspace import PrivateSubspace
from storage.errors import Invalid

BASIS = np.linalg.qr(np.random.default_rng(0).standard_normal((5, 5)))[0]
MEAN = np.arange(5.0)


def subspace(**changes):
    fields = {
        "components": BASIS[:2],
        "eigenvalues": np.array([4.0, 2.0]),
        "spectrum": np.array([4.0, 2.0, 1.0, -1.0]),
        "further": BASIS[2:4],
        "manifest": {"total_variance": 8.0},
    }
    return PrivateSubspace(**{**fields, **changes})


def test_a_refit_keeps_every_direction():
    three = subspace().refit(3, parent="p")
    np.testing.assert_array_equal(three.components, BASIS[:3])
    np.testing.assert_array_equal(three.further, BASIS[3:4])
    np.testing.assert_array_equal(three.refit(2, parent="p").spectrum, subspace().spectrum)
    assert three.refit(4, parent="p").further is None
    assert three.manifest["n_components"] == 3


def test_a_subspace_without_further_directions_can_be_made_smaller_only():
    plain = subspace(further=None, spectrum=None)
    np.testing.assert_array_equal(plain.refit(1, parent="p").components, BASIS[:1])
    with pytest.raises(Invalid, match="kept 2"):
        plain.refit(3, parent="p")


def test_directions_without_eigenvalues_have_no_other_number():
    alone = subspace(eigenvalues=None, spectrum=None, further=None)
    assert alone.explained_variance_ratio is None
    with pytest.raises(Invalid, match="none leads"):
        alone.refit(1, parent="p")


def test_ratios_are_those_that_the_release_assessed():
    assessed = subspace(manifest={"outcome": {"explained_variance_ratio": [0.5, 0.25]}})
    np.testing.assert_array_equal(assessed.explained_variance_ratio, [0.5, 0.25])
    assert subspace().explained_variance_ratio is None


def test_a_mean_is_taken_off_and_put_back():
    centred = subspace(mean=MEAN)
    rows = np.random.default_rng(1).standard_normal((3, 5))
    scores = centred.transform(rows)
    np.testing.assert_allclose(scores, (rows - MEAN) @ BASIS[:2].T)
    np.testing.assert_allclose(centred.inverse_transform(scores), scores @ BASIS[:2] + MEAN)


@pytest.mark.parametrize(
    "changes",
    [
        {"further": BASIS[1:3]},
        {"further": BASIS[2:4, :4]},
        {"spectrum": None},
        {"spectrum": np.array([4.0, 2.0, 1.0])},
        {"mean": np.zeros(4)},
    ],
)
def test_parts_that_do_not_fit_are_refused(changes):
    with pytest.raises(Invalid):
        subspace(**changes)
