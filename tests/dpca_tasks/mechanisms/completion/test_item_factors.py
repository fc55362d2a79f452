"""The solution for items: the projection where it is needed, the ridge after it, and the frame that stays."""

import numpy as np
import pytest

from dpca_tasks.mechanisms.completion.item_factors import orthonormal, pool, solve_items


def test_the_projection_leaves_a_definite_matrix_as_it_is_and_cuts_what_is_negative():
    definite, indefinite = np.diag([2.0, 1.0]), np.diag([2.0, -5.0])
    solved = solve_items(np.stack([definite, indefinite]), np.ones((2, 2)), ridge=0.5)
    assert solved[0] == pytest.approx([1 / 2.5, 1 / 1.5])
    assert solved[1] == pytest.approx([1 / 2.5, 1 / 0.5])


def test_an_orthonormal_frame_keeps_directions_and_rows_of_zeros():
    rng = np.random.default_rng(1)
    factors = rng.standard_normal((20, 3)) @ np.diag([5.0, 1.0, 0.2])
    factors[4] = 0.0
    made = orthonormal(factors)
    assert made.T @ made == pytest.approx(np.eye(3), abs=1e-12)
    assert not made[4].any()
    symmetric = made.T @ factors
    assert symmetric == pytest.approx(symmetric.T)
    assert not orthonormal(np.zeros((4, 2))).any()


def test_pooling_is_a_weighted_mean():
    one, other = (1.0, np.ones((2, 1, 1)), np.zeros((2, 1))), (3.0, np.zeros((2, 1, 1)), np.ones((2, 1)))
    outer, weighted = pool([one, other])
    assert (outer == 0.25).all()
    assert (weighted == 0.75).all()
