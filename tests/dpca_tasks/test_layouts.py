"""Packed triangles and cubes, and the matrices and tensors that they stand for."""

import itertools

import numpy as np
import pytest

from dpca_tasks.layouts import Layout, pack_symmetric, unpack_cube, unpack_symmetric


@pytest.mark.parametrize("order", [1, 2, 127, 128, 129, 300])
def test_a_packed_triangle_is_the_matrix_of_its_entries(order):
    packed = np.random.default_rng(0).standard_normal(Layout(kind="symmetric", order=order).size)
    matrix = unpack_symmetric(packed, order)
    np.testing.assert_array_equal(matrix[np.triu_indices(order)], packed)
    np.testing.assert_array_equal(matrix, matrix.T)
    np.testing.assert_array_equal(pack_symmetric(matrix), packed)


@pytest.mark.parametrize("order", [1, 2, 5])
def test_a_packed_cube_is_the_tensor_of_its_entries(order):
    packed = np.random.default_rng(0).standard_normal(Layout(kind="cube", order=order).size)
    cube = unpack_cube(packed, order)
    places = [place for place in np.ndindex(cube.shape) if list(place) == sorted(place)]
    assert [cube[place] for place in places] == packed.tolist()
    assert all((cube == cube.transpose(axes)).all() for axes in itertools.permutations(range(3)))
