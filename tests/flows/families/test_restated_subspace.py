"""Moments of subspaces that were released with a warm start."""

from dataclasses import replace

import numpy as np
from scipy.linalg import block_diag

from dpca_tasks.refinement.public_map import PublicMap
from dpca_tasks.refinement.rounds import Answer, begun
from flows.families.restated_subspace import _extended_by_map, _extended_by_mean


def test_the_moment_of_a_warm_start_around_a_mean_is_that_of_its_rows():
    """Without noise and clipping, the answer to mapped rows gives the moment of the rows with their constants."""
    rng = np.random.default_rng(8)
    rows, constant = rng.standard_normal((50, 4)), 0.25
    public = PublicMap.on_grid(np.linalg.qr(rng.standard_normal((4, 2)))[0], np.array([0.25, 0.5]))
    shift = np.array([0.5, -0.25, 0.0, 1.0])
    images = np.column_stack([public.forward((rows - shift).T).T, np.full(50, constant)])
    answer = Answer(released=images.T @ images, noise_std=1.0, map=public, constant=constant)
    estimate = begun(answer, centred=True)
    assert estimate.mean is not None
    residual = (rows - shift).mean(axis=0)
    estimate = replace(estimate, mean=residual)  # not limited to norm 1
    moment, weights = _extended_by_map(estimate, answer, residual + shift, np.eye(4))
    extended = np.column_stack([rows, np.full(50, constant)])
    np.testing.assert_allclose(moment, extended.T @ extended, atol=1e-9)
    np.testing.assert_allclose(weights[:4, :4], public.inverse_around(np.eye(4)) + np.outer(shift, shift) / constant**2)


def test_the_moment_around_a_private_mean_is_that_of_rows_with_their_constant():
    """The rows around the mean and a separate row of constants give the rows with their constants by a linear map."""
    rng = np.random.default_rng(3)
    matrix, weights = np.cov(rng.standard_normal((4, 50))), np.diag([1.0, 2.0, 3.0, 4.0])
    mean, constant = np.array([0.5, -0.25, 0.0, 1.0]), 0.25
    first = Answer(
        released=np.eye(5), noise_std=0.6, map=PublicMap.on_grid(np.empty((4, 0)), np.empty(0)), constant=constant
    )
    estimate = replace(begun(first, centred=True), matrix=matrix, n_records=40.0, noise_std=0.2)
    function = np.eye(5)
    function[:4, 4] = mean / constant
    moment, shape = _extended_by_mean(estimate, first, mean, weights)
    np.testing.assert_allclose(moment, function @ block_diag(matrix, 40.0 * constant**2) @ function.T, atol=1e-12)
    np.testing.assert_allclose(shape, function @ block_diag(weights, (0.6 / 0.2) ** 2) @ function.T, atol=1e-12)
