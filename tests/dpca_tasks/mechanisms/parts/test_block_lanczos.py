"""Leading eigenpairs from products alone: right to 1e-3, for spectra with and without a gap."""

import numpy as np
import pytest

from dpca_tasks.mechanisms.parts import block_lanczos
from dpca_tasks.mechanisms.parts.block_lanczos import block_width, leading_eigenpairs_of, most_passes
from dpca_tasks.mechanisms.parts.noisy_products import start_directions


def edge_noise(order, seed=0):
    """A symmetric matrix whose spectrum is a semicircle of radius 1: nothing stands out."""
    square = np.random.default_rng(seed).standard_normal((order, order))
    return (square + square.T) / np.sqrt(8 * order)


def spiked(order, *heights):
    axes = np.linalg.qr(np.random.default_rng(1).standard_normal((order, len(heights))))[0]
    return edge_noise(order) + (axes * heights) @ axes.T


def found(matrix, count):
    """Run on a matrix; return values, vectors, and the widths of the products."""
    widths = []

    def product(directions):
        assert directions.dtype == np.int64
        assert np.square(directions.astype(np.float64)).sum(axis=0).max() <= 2.0**31
        widths.append(directions.shape[1])
        return matrix @ (directions / 2.0**15)

    start = start_directions(len(matrix), block_width(len(matrix), count))
    values, rows = leading_eigenpairs_of(product, start, count)
    assert len(values) == len(rows) == start.shape[1]
    return values[:count], rows[:count], widths


MATRICES = {
    "noise": edge_noise(400),
    "gap": spiked(400, 50.0, 3.0, 2.0),
    "huge": spiked(400, 1e4, 1e2, 1.0),
    "indefinite": edge_noise(400) - 5.0 * np.diag(np.arange(400) < 200),
}


@pytest.mark.parametrize("count", [1, 3, 12])
@pytest.mark.parametrize("name", MATRICES)
def test_the_largest_eigenvalues_are_right_to_a_thousandth(name, count):
    matrix = MATRICES[name]
    values, rows, widths = found(matrix, count)
    exact = np.linalg.eigvalsh(matrix)[::-1][:count]
    np.testing.assert_allclose(values, exact, rtol=1e-3)
    assert (values <= exact * (1 + 1e-12)).all()
    np.testing.assert_allclose(rows @ rows.T, np.eye(count), atol=1e-12)
    np.testing.assert_allclose(np.einsum("ij,ij->i", rows @ matrix, rows), values, rtol=1e-8)
    assert len(widths) <= most_passes(400, count)


def test_few_passes_are_enough_where_the_spectrum_has_a_gap():
    assert len(found(MATRICES["gap"], 3)[2]) <= 12


def test_the_basis_is_compressed_and_stays_small(monkeypatch):
    monkeypatch.setattr(block_lanczos, "SETTLED", 0.0)
    values, _, widths = found(MATRICES["noise"], 2)
    assert len(widths) == most_passes(400, 2) > block_lanczos.BASIS_BLOCKS
    np.testing.assert_allclose(values, np.linalg.eigvalsh(MATRICES["noise"])[::-1][:2], rtol=1e-3)


@pytest.mark.parametrize("order", [2, 3, 9, 10, 25, 60])
def test_small_matrices_are_decomposed_in_full(order):
    matrix = edge_noise(order)
    for count in (1, order - 1):
        values, rows, widths = found(matrix, count)
        np.testing.assert_allclose(values, np.linalg.eigvalsh(matrix)[::-1][:count], rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(rows @ rows.T, np.eye(count), atol=1e-12)
        assert sum(widths) <= order


@pytest.mark.parametrize("rank", [0, 2], ids=["zero", "low rank"])
def test_a_matrix_that_leaves_nothing_outside_the_basis_is_no_failure(rank):
    axes = np.linalg.qr(np.random.default_rng(1).standard_normal((80, 3)))[0][:, :rank]
    values, rows, _ = found((axes * [4.0, 2.0][:rank]) @ axes.T, 3)
    np.testing.assert_allclose(values, [4.0, 2.0, 0.0] if rank else np.zeros(3), atol=1e-9)
    np.testing.assert_allclose(rows @ rows.T, np.eye(3), atol=1e-10)


def test_the_same_products_give_the_same_bits():
    one, two = (found(MATRICES["gap"], 3) for _ in range(2))
    np.testing.assert_array_equal(one[0], two[0])
    np.testing.assert_array_equal(one[1], two[1])


@pytest.mark.parametrize("name", MATRICES)
def test_the_pairs_of_the_other_columns_follow_and_leave_the_first_as_they_are(name):
    matrix = MATRICES[name]

    def product(directions):
        return matrix @ (directions / 2.0**15)

    start = start_directions(len(matrix), block_width(len(matrix), 3))
    values, rows = leading_eigenpairs_of(product, start, 3)
    exact = np.linalg.eigvalsh(matrix)[::-1][: len(values)]
    assert (values <= exact + 1e-9 * np.abs(exact)).all()
    np.testing.assert_allclose(values, exact, rtol=0.1)
    np.testing.assert_allclose(rows @ rows.T, np.eye(len(rows)), atol=1e-9)
