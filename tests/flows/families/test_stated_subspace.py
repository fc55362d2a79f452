"""The upper triangle of a released matrix: kept up to a size, and read back to the bit."""

import numpy as np

from dpca_tasks.layouts import unpack_symmetric
from flows.families.stated_subspace import packed


def test_a_matrix_comes_back_to_the_bit_and_a_large_one_is_not_kept():
    square = np.random.default_rng(1).normal(size=(7, 7))
    matrix = square + square.T
    kept = packed(matrix, keep_matrix=1.0)
    assert kept is not None
    np.testing.assert_array_equal(unpack_symmetric(kept, 7), matrix)
    assert packed(matrix, keep_matrix=8 * 28 / 1e6) is not None
    assert packed(matrix, keep_matrix=8 * 27 / 1e6) is None
