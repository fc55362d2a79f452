"""Tensor power method, population moments, the noise floor, and the distribution of a core's noise.

The power method is compared with joint diagonalization, an independent method.
"""

import itertools
import math

import numpy as np
import pytest

from dpca_tasks.mechanisms.tensors.tensor_releases import (
    components_of,
    eigenspace,
    mixture_eigenspace,
    moment_floor,
    robust_power_method,
)
from dpca_tasks.noise.distributions import cube_weights, symmetric_weights


def orthogonal_tensor(*, order, values, seed):
    """Return a symmetric tensor with given eigenvalues on orthonormal vectors, and these vectors as rows."""
    rows = np.linalg.qr(np.random.default_rng(seed).standard_normal((order, order)))[0].T[: len(values)]
    return np.einsum("k,ki,kj,kl->ijl", values, rows, rows, rows), rows


def by_jennrich(tensor, *, seed):
    """Return eigenvalues and vectors of a tensor by Jennrich's algorithm.

    The algorithm computes the eigenvectors of one random contraction times the inverse of a second one.
    """
    one, other = np.random.default_rng(seed).standard_normal((2, len(tensor)))
    ratio = np.linalg.solve((tensor @ other).T, (tensor @ one).T).T
    rows = np.real(np.linalg.eig(ratio)[1]).T
    values = np.einsum("ijk,ri,rj,rk->r", tensor, rows, rows, rows)
    order = np.argsort(-np.abs(values))
    return np.abs(values)[order], (rows * np.sign(values)[:, None])[order]


@pytest.mark.parametrize("seed", range(10))
def test_a_whitened_tensor_is_decomposed_as_by_joint_diagonalisation(seed):
    values = np.random.default_rng([1, seed]).uniform(1.0, 10.0, 6)
    tensor, _ = orthogonal_tensor(order=6, values=values, seed=seed)
    found, vectors = robust_power_method(tensor, n_components=6)
    expected, rows = by_jennrich(tensor, seed=seed)
    order = np.argsort(-found)
    np.testing.assert_allclose(found[order], expected, rtol=1e-9)
    np.testing.assert_allclose(vectors[order], rows, atol=1e-8)


def test_noise_changes_values_and_vectors_by_at_most_its_size():
    tensor, rows = orthogonal_tensor(order=5, values=np.array([5.0, 4.0, 3.0, 2.0, 1.0]), seed=3)
    noise = np.random.default_rng(4).standard_normal((5, 5, 5))
    symmetric = sum(noise.transpose(axes) for axes in np.indices((3, 3, 3)).reshape(3, -1).T if len(set(axes)) == 3)
    found, vectors = robust_power_method(tensor + 1e-4 / 6 * symmetric, n_components=5)
    np.testing.assert_allclose(found, [5.0, 4.0, 3.0, 2.0, 1.0], atol=1e-3)
    np.testing.assert_allclose(vectors, rows, atol=1e-3)


def test_the_power_method_stops_when_no_component_is_left():
    tensor, rows = orthogonal_tensor(order=4, values=np.array([2.0]), seed=5)
    values, vectors = robust_power_method(tensor, n_components=1)
    np.testing.assert_allclose(vectors, rows, atol=1e-12)
    assert values == pytest.approx([2.0])
    none, nothing = robust_power_method(np.zeros((4, 4, 4)), n_components=4)
    assert none.shape == (0,)
    assert nothing.shape == (0, 4)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_the_power_method_stops_at_numbers_that_are_not_finite(bad):
    tensor, _ = orthogonal_tensor(order=3, values=np.array([3.0, 2.0, 1.0]), seed=6)
    tensor[0, 1, 2] = bad
    assert robust_power_method(tensor, n_components=3)[0].size == 0


def test_starts_are_public_so_the_same_tensor_gives_the_same_bits():
    tensor = np.random.default_rng(8).standard_normal((6, 6, 6))
    once, again = robust_power_method(tensor, n_components=6), robust_power_method(tensor.copy(), n_components=6)
    for one, other in zip(once, again, strict=True):
        np.testing.assert_array_equal(one, other)


SIZES = [(10, 5), (50, 10)]
RECORDS, VARIANCE = 1e5, 0.05


def model(*, order, count, topics):
    """Return component vectors and weights drawn as in the paper, in descending order of weight."""
    columns = np.linalg.qr(np.random.default_rng(order).standard_normal((order, order)))[0][:, :count]
    rows, weights = columns.T[::-1], np.linspace(10 * count, 1, count)
    if topics:
        rows = np.maximum(rows, 0.0)
        rows /= rows.sum(axis=1, keepdims=True)
    return rows, weights / weights.sum()


def moment_of(components, weights):
    return RECORDS * (components.T * weights) @ components


def core_of(components, weights, directions):
    scores = components @ directions
    return RECORDS * np.einsum("n,ni,nj,nk->ijk", weights, scores, scores, scores)


@pytest.mark.parametrize(("order", "count"), SIZES)
def test_population_moments_of_topics_give_back_topics_and_weights(order, count):
    components, weights = model(order=order, count=count, topics=True)
    space = eigenspace(moment_of(components, weights), n_components=count, floor=1.0)
    found = components_of(core_of(components, weights, space.directions), space, model="topics")
    np.testing.assert_allclose(found.components, components, atol=1e-10)
    np.testing.assert_allclose(found.weights, weights, atol=1e-10)
    assert found.noise_variance is None
    assert found.outcome == {"requested": count, "above": count, "found": count, "floor": 1.0, "failed": False}


@pytest.mark.parametrize("declared", [None, VARIANCE])
@pytest.mark.parametrize(("order", "count"), SIZES)
def test_population_moments_of_a_mixture_give_back_means_weights_and_variance(order, count, declared):
    components, weights = model(order=order, count=count, topics=False)
    moment = moment_of(components, weights) + RECORDS * VARIANCE * np.eye(order)
    space = mixture_eigenspace(moment, n_components=count, floor=1.0, n_records=RECORDS, noise_variance=declared)
    found = components_of(core_of(components, weights, space.directions), space, model="mixture")
    np.testing.assert_allclose(found.components, components, atol=1e-10)
    np.testing.assert_allclose(found.weights, weights, atol=1e-10)
    assert found.noise_variance == pytest.approx(VARIANCE, abs=1e-12)


def test_a_variance_below_zero_is_zero():
    space = mixture_eigenspace(np.diag([5.0, 4.0, -1.0, -2.0]), n_components=2, floor=1.0, n_records=10)
    assert space.noise_variance == 0.0
    np.testing.assert_allclose(space.values, [5.0, 4.0])


def test_components_hidden_by_noise_are_left_out_and_counted():
    components, weights = model(order=10, count=5, topics=True)
    moment = moment_of(components, weights)
    values = np.linalg.eigvalsh(moment)[::-1]
    space = eigenspace(moment, n_components=5, floor=(values[2] + values[3]) / 2)
    assert (space.directions.shape, space.above) == ((10, 3), 3)
    found = components_of(core_of(components, weights, space.directions), space, model="topics")
    assert {name: found.outcome[name] for name in ("requested", "above", "found")} == {
        "requested": 5,
        "above": 3,
        "found": 3,
    }
    assert found.weights.sum() == pytest.approx(1.0)
    np.testing.assert_allclose(found.components.sum(axis=1), 1.0)


@pytest.mark.parametrize("floor", [0.0, 1.0])
def test_one_direction_is_kept_even_if_noise_hides_all_and_nothing_is_divided_by_zero(floor):
    space = eigenspace(-np.eye(4), n_components=2, floor=floor)
    assert (space.directions.shape, space.above) == ((4, 1), 0)
    found = components_of(np.full((1, 1, 1), 2.0), space, model="mixture")
    assert found.outcome["failed"]
    assert np.isfinite(found.components).all()
    assert len(found.components) == (1 if floor else 0)


def test_a_topic_without_a_positive_entry_is_not_found():
    space = eigenspace(np.diag([4.0, 1.0, 0.0]), n_components=1, floor=0.5)
    space.directions[:] = -np.abs(space.directions)
    assert components_of(np.ones((1, 1, 1)), space, model="topics").components.shape == (0, 3)


def test_the_floor_is_the_norm_of_isometric_noise():
    order, rng = 400, np.random.default_rng(2)
    square = rng.standard_normal((order, order)) * 3.0
    norm = np.abs(np.linalg.eigvalsh((square + square.T) / 2)).max()
    assert norm == pytest.approx(moment_floor(order, noise_std=3.0), rel=0.05)


def test_noise_on_a_core_has_the_law_of_noise_on_the_whole_tensor_projected():
    order, rank = 6, 3
    directions = np.linalg.qr(np.random.default_rng(7).standard_normal((order, order)))[0][:, :rank]
    places = list(itertools.combinations_with_replacement(range(order), 3))
    stds = cube_weights(order, start=0, stop=len(places))
    images = []
    for place, std in zip(places, stds, strict=True):
        whole = np.zeros((order, order, order))
        for entry in itertools.permutations(place):
            whole[entry] = std
        core = np.einsum("abc,ai,bj,ck->ijk", whole, directions, directions, directions)
        images.append([core[at] for at in itertools.combinations_with_replacement(range(rank), 3)])
    covariance = np.array(images).T @ np.array(images)
    expected = cube_weights(rank, start=0, stop=rank * (rank + 1) * (rank + 2) // 6) ** 2
    np.testing.assert_allclose(covariance, np.diag(expected), atol=1e-14)


def test_noise_on_a_matrix_has_the_law_of_projected_noise():
    order, rank = 6, 3
    directions = np.linalg.qr(np.random.default_rng(8).standard_normal((order, order)))[0][:, :rank]
    rows, columns = np.triu_indices(order)
    images = []
    for row, column, std in zip(rows, columns, symmetric_weights(order, start=0, stop=rows.size), strict=True):
        whole = np.zeros((order, order))
        whole[row, column] = whole[column, row] = std
        images.append((directions.T @ whole @ directions)[np.triu_indices(rank)])
    covariance = np.array(images).T @ np.array(images)
    np.testing.assert_allclose(covariance, np.diag(symmetric_weights(rank, start=0, stop=6) ** 2), atol=1e-14)
    assert math.isclose(covariance[0, 0], 1.0)
