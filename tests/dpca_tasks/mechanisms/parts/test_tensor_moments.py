"""Components of population moments, the floor of the noise, and the law of a core's noise."""

import itertools
import math

import numpy as np
import pytest

from dpca_tasks.mechanisms.parts.tensor_moments import (
    components_of,
    eigenspace,
    mixture_eigenspace,
    moment_floor,
)
from dpca_tasks.noise.symmetric_weights import cube_weights, symmetric_weights

SIZES = [(10, 5), (50, 10)]
RECORDS, VARIANCE = 1e5, 0.05


def model(*, order, count, topics):
    """Return components and weights as the paper draws them, by falling weight."""
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
    assert found.outcome == {"asked": count, "above": count, "found": count, "floor": 1.0, "failed": False}


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
    assert {name: found.outcome[name] for name in ("asked", "above", "found")} == {"asked": 5, "above": 3, "found": 3}
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


def test_noise_on_a_matrix_has_that_law_too():
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
