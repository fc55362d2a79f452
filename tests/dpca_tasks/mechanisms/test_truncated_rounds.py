"""Truncation keeps the longest rows, whatever a library would choose."""

import numpy as np
import pytest

from dpca_tasks.mechanisms.truncated_rounds import completed, truncated, truncated_step

RNG = np.random.default_rng(2)


def is_orthonormal(columns):
    return np.allclose(columns.T @ columns, np.eye(columns.shape[1]), atol=1e-12)


def test_the_longest_rows_are_kept_and_their_span_with_them():
    matrix = RNG.standard_normal((30, 3))
    matrix[[4, 7, 9, 20]] *= 50
    basis = truncated(matrix, rows_kept=4)
    assert np.flatnonzero(basis.any(axis=1)).tolist() == [4, 7, 9, 20]
    assert is_orthonormal(basis)
    kept = np.where(basis.any(axis=1)[:, None], matrix, 0.0)
    np.testing.assert_allclose(basis @ (basis.T @ kept), kept, atol=1e-10)


def test_ties_go_to_the_smaller_index():
    matrix = np.tile([[1.0, 0.0], [0.0, 1.0]], (5, 1))
    assert np.flatnonzero(truncated(matrix, rows_kept=3).any(axis=1)).tolist() == [0, 1, 2]


@pytest.mark.parametrize("missing", [(), (0,), (1,), (2,), (0, 2), (0, 1, 2)])
def test_missing_directions_are_completed_and_the_others_kept(missing):
    matrix = RNG.standard_normal((12, 3))
    matrix[:, missing] = 0.0
    basis = completed(matrix)
    assert is_orthonormal(basis)
    np.testing.assert_allclose(basis @ (basis.T @ matrix), matrix, atol=1e-10)
    np.testing.assert_array_equal(basis, completed(matrix))


def test_a_repeated_direction_is_replaced_by_a_public_one_within_the_rows_kept():
    matrix = np.zeros((10, 3))
    matrix[[1, 2, 3, 4], :] = np.outer([1.0, 2.0, 3.0, 4.0], [1.0, 1.0, 2.0])
    basis = truncated(matrix, rows_kept=5)
    assert is_orthonormal(basis)
    assert set(np.flatnonzero(basis.any(axis=1))) <= {0, 1, 2, 3, 4}
    np.testing.assert_allclose(basis @ (basis.T @ matrix), matrix, atol=1e-10)


def test_steps_on_a_matrix_converge_to_its_sparse_directions():
    truth = np.zeros((60, 2))
    truth[[3, 30, 31, 59]] = np.linalg.qr(RNG.standard_normal((4, 2)))[0]
    moment = np.eye(60) + 9.0 * truth @ truth.T
    directions = np.linalg.qr(RNG.standard_normal((60, 2)))[0]
    for _ in range(30):
        directions = truncated_step(moment, directions, rows_kept=8)
    assert is_orthonormal(directions)
    assert np.sum((directions.T @ truth) ** 2) == pytest.approx(2.0, abs=1e-9)
