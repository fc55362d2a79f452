"""Moments of subspaces that were released with a warm start."""

from dataclasses import replace

import numpy as np

from dpca_tasks.refinement.public_map import PublicMap
from dpca_tasks.refinement.rounds import Answer, begun
from flows.families.restated_subspace import _extended_by_map


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
