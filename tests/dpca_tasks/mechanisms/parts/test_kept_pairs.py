"""Refining from the pairs that an artifact kept."""

import numpy as np
import pytest

from dpca_tasks.errors import InvalidInput
from dpca_tasks.mechanisms.parts.eigenpairs import leading_eigenpairs
from dpca_tasks.mechanisms.parts.kept_pairs import refine_kept_pairs
from dpca_tasks.mechanisms.parts.refinement import refine
from tests.dpca_tasks.mechanisms.parts.noisy import captured, noisy, signal


def few_features(order=300):
    rng, columns = np.random.default_rng(5), np.zeros((order, 4))
    for column in columns.T:
        column[rng.choice(order, 10, replace=False)] = rng.standard_normal(10)
    return signal(columns, *(order**0.5 * np.array([3.5, 2.5, 1.8, 1.2])))


def test_kept_pairs_capture_more_than_they_did_and_no_more_than_with_the_matrix():
    second_moment = few_features()
    gains, costs = [], []
    for seed in range(3):
        moment = noisy(second_moment, seed=seed)
        values, rows = leading_eigenpairs(moment.matrix, 64)
        found = refine_kept_pairs(values, rows, noise_std=1.0, n_components=4)
        assert found.refined_by == "eb"
        np.testing.assert_allclose(found.components @ found.components.T, np.eye(4), atol=1e-10)
        got = captured(second_moment, found.components)
        gains.append(got - captured(second_moment, rows[:4]))
        costs.append(captured(second_moment, refine(moment, n_components=4, method="eb").components) - got)
    assert np.mean(gains) > 0.02
    assert np.mean(costs) > -0.02


@pytest.mark.parametrize("noise_std", [0.0, 1e-300, 1e-3, 1.0, 1e6])
@pytest.mark.parametrize(("d", "kept", "k"), [(1, 1, 1), (2, 2, 1), (12, 12, 3), (30, 5, 5), (30, 20, 3)])
def test_any_pairs_give_orthonormal_rows(d, kept, k, noise_std):
    values, rows = leading_eigenpairs(noisy(np.zeros((d, d)), seed=d).matrix, kept)
    found = refine_kept_pairs(values, rows, noise_std=noise_std, n_components=k)
    np.testing.assert_allclose(found.components @ found.components.T, np.eye(k), atol=1e-8)
    assert np.isfinite(found.values).all()


def test_more_pairs_than_were_kept_are_refused():
    with pytest.raises(InvalidInput, match="the pairs that were kept"):
        refine_kept_pairs(np.ones(3), np.eye(40)[:3], noise_std=1.0, n_components=4)
