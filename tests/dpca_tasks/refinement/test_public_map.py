"""Public maps: they are applied as their integers define, and inverted up to rounding."""

import numpy as np
import pytest

from dpca_tasks.refinement.public_map import MAP_BITS, PublicMap

SHAPES = [(1, 0), (1, 1), (2, 1), (2, 2), (30, 5), (60, 60), (500, 60)]


def drawn(order, width, *, least=2.0**-6, seed=0):
    """Return a random map with factors from 1 down to the smallest that a design uses."""
    rng = np.random.default_rng(seed)
    directions = np.linalg.qr(rng.standard_normal((order, max(width, 1))))[0][:, :width]
    return PublicMap.on_grid(directions, np.geomspace(1.0, least, width) if width > 1 else np.full(width, least))


def whole(public_map):
    return np.eye(len(public_map.directions)) - public_map.reductions @ public_map.directions.T * 4.0**-MAP_BITS


@pytest.mark.parametrize(("order", "width"), SHAPES)
def test_products_equal_those_with_the_explicit_matrix(order, width):
    public_map = drawn(order, width)
    matrix = whole(public_map)
    rng = np.random.default_rng(1)
    columns, square = rng.standard_normal((order, 3)), rng.standard_normal((order, order))
    square += square.T
    for found, expected in (
        (public_map.forward(columns), matrix @ columns),
        (public_map.around(square), matrix @ square @ matrix.T),
        (public_map.transposed_around(square), matrix.T @ square @ matrix),
        (public_map.gram(columns), columns.T @ matrix.T @ matrix @ columns),
    ):
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-11)
    assert (public_map.around(square) == public_map.around(square).T).all()


@pytest.mark.parametrize(("order", "width"), SHAPES)
def test_the_inverse_is_that_of_the_map_on_its_grid(order, width):
    """The inverse must be that of the rounded map T, which rounding makes asymmetric by about ``2^-12``.

    An inverse of the symmetric map before rounding would have an error of that size.
    """
    public_map = drawn(order, width)
    unit = np.eye(order)
    if 1 < width < order:
        assert np.abs(whole(public_map) - whole(public_map).T).max() > 1e-6
    np.testing.assert_allclose(public_map.inverse(public_map.forward(unit)), unit, rtol=0, atol=1e-12)
    np.testing.assert_allclose(public_map.forward(public_map.inverse(unit)), unit, rtol=0, atol=1e-12)
    np.testing.assert_allclose(public_map.inverse_transposed(unit), public_map.inverse(unit).T, rtol=0, atol=1e-12)
    square = np.diag(np.arange(1.0, order + 1)) / order
    np.testing.assert_allclose(public_map.inverse_around(public_map.around(square)), square, rtol=0, atol=1e-11)


@pytest.mark.parametrize(("order", "width"), [(2, 2), (60, 60), (2_000, 60)])
def test_norms_on_the_grid_exceed_one_by_less_than_a_query_accepts(order, width):
    public_map = drawn(order, width)
    for steps in (public_map.directions, public_map.reductions):
        assert steps.dtype == np.int64
        for axis in (0, 1):
            assert np.linalg.norm(steps, axis=axis).max() <= 2.0**MAP_BITS * (1.0 + 2.0**-6)


def test_the_identity_changes_no_bit():
    square = np.random.default_rng(0).standard_normal((7, 7))
    square += square.T
    nothing = PublicMap.identity(7)
    assert nothing.width == 0
    for found in (nothing.around(square), nothing.inverse_around(square), nothing.forward(square)):
        np.testing.assert_array_equal(found, square)
