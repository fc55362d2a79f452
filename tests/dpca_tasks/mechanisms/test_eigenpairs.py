"""Eigenpairs of a released matrix, which is either formed or available only through products.

Formed matrices include tied eigenvalues. Leading eigenpairs computed from products alone are accurate to 1e-3, for
spectra with and without a gap.
"""

from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.linalg import block_diag, lapack

from dpca_tasks.mechanisms import eigenpairs
from dpca_tasks.mechanisms.eigenpairs import (
    block_width,
    leading_eigenpairs,
    leading_eigenpairs_of,
    most_passes,
    spectrum_and_leading,
)
from dpca_tasks.mechanisms.noisy_products import start_directions


@given(seed=st.integers(0, 2**32 - 1), order=st.integers(2, 24), levels=st.integers(1, 3), data=st.data())
def test_tied_eigenvalues_lose_no_pair(seed: int, order: int, levels: int, data: st.DataObject) -> None:
    rng = np.random.default_rng(seed)
    basis = np.linalg.qr(rng.standard_normal((order, order)))[0]
    spectrum = rng.integers(1, levels + 1, order).astype(float)
    matrix = (basis * spectrum) @ basis.T
    count = data.draw(st.integers(1, order))
    values, rows = leading_eigenpairs((matrix + matrix.T) / 2, count)
    np.testing.assert_allclose(values, np.sort(spectrum)[::-1][:count], atol=1e-12)
    np.testing.assert_allclose(rows @ rows.T, np.eye(count), atol=1e-12)
    every, rows = spectrum_and_leading((matrix + matrix.T) / 2, count)
    np.testing.assert_allclose(every, np.sort(spectrum)[::-1], atol=1e-12)
    np.testing.assert_allclose(rows @ rows.T, np.eye(count), atol=1e-12)
    np.testing.assert_allclose(rows @ matrix, every[:count, None] * rows, atol=1e-11)


@pytest.mark.parametrize("size", [1e-200, 1.0, 1e150])
def test_one_reduction_gives_all_eigenvalues_and_the_leading_vectors(size: float) -> None:
    square = np.random.default_rng(1).standard_normal((90, 90))
    matrix = size * (square + square.T)
    values, rows = spectrum_and_leading(matrix, 20)
    expected, vectors = leading_eigenpairs(matrix, 20)
    np.testing.assert_allclose(values, np.linalg.eigvalsh(matrix)[::-1], atol=1e-12 * values[0])
    np.testing.assert_allclose(values[:20], expected, rtol=1e-12)
    np.testing.assert_allclose(rows, vectors, atol=1e-9)
    assert (rows.tobytes(), values.tobytes()) == tuple(each.tobytes() for each in spectrum_and_leading(matrix, 20))[
        ::-1
    ]


def inexact(*given: object) -> object:
    vectors, missing = lapack.dstein(*given)
    return vectors + 1e-9, missing


@pytest.mark.parametrize(
    ("name", "broken"),
    [
        ("dstein", inexact),
        ("dstein", lambda *given: (lapack.dstein(*given)[0], 1)),
        ("dsterf", lambda *given: (lapack.dsterf(*given)[0], 1)),
    ],
    ids=["inexact", "missing", "failed"],
)
def test_uncertain_eigenpairs_are_recomputed_by_full_decomposition(
    name: str, broken: Callable[..., object], monkeypatch: pytest.MonkeyPatch
) -> None:
    matrix = np.diag(np.arange(1.0, 13.0)) + 0.1
    expected = leading_eigenpairs(matrix, 3)
    monkeypatch.setattr(eigenpairs, "lapack", SimpleNamespace(**{**vars(lapack), name: broken}))
    values, rows = spectrum_and_leading(matrix, 3)
    np.testing.assert_allclose(values[:3], expected[0], rtol=1e-12)
    np.testing.assert_allclose(rows, expected[1], atol=1e-12)


def noisy(order: int, *, strength: float) -> NDArray[np.float64]:
    """Return a symmetric noise matrix with std 1 on its diagonal, plus three components of decreasing strength."""
    rng = np.random.default_rng(order)
    noise = rng.standard_normal((order, order))
    columns = np.linalg.qr(rng.standard_normal((order, 3)))[0]
    return (noise + noise.T) / 2.0 + strength * (columns * [1.0, 0.5, 0.25]) @ columns.T


@pytest.mark.parametrize("strength", [0.0, 40.0, 400.0])
def test_single_precision_is_within_its_bound(strength: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(eigenpairs, "LARGE", 200)
    matrix, within = noisy(300, strength=strength), 2.0**-8
    every, _ = leading_eigenpairs(matrix, 300)
    monkeypatch.setattr(eigenpairs, "lapack", SimpleNamespace(**vars(lapack) | {"dsytrd": None}))
    values, rows = spectrum_and_leading(matrix, 20, within=within)
    assert np.abs(values - every).max() <= within
    assert np.linalg.norm(rows @ matrix - values[:20, None] * rows, axis=1).max() <= within
    assert (np.diff(values) <= 0.0).all()
    # the error of an eigenvalue is the square of the eigenvector's error
    np.testing.assert_allclose(values[:20], every[:20], atol=1e-7)
    np.testing.assert_allclose(rows @ rows.T, np.eye(20), atol=1e-12)
    again = spectrum_and_leading(matrix, 20, within=within)
    assert (values.tobytes(), rows.tobytes()) == tuple(each.tobytes() for each in again)


@pytest.mark.parametrize("name", ["ssterf", "sstein", "sormqr", "a strong matrix"])
def test_pairs_beyond_single_precision_are_computed_in_double(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(eigenpairs, "LARGE", 200)
    matrix = noisy(300, strength=1e5 if name == "a strong matrix" else 40.0)
    expected = spectrum_and_leading(matrix, 20)
    if name != "a strong matrix":

        def inexactly(*given: object, **named: object) -> tuple[object, ...]:
            result, *others = getattr(lapack, name)(*given, **named)
            return result + np.float32(0.01), *others

        monkeypatch.setattr(eigenpairs, "lapack", SimpleNamespace(**vars(lapack) | {name: inexactly}))
    found = spectrum_and_leading(matrix, 20, within=2.0**-8)
    assert [each.tobytes() for each in found] == [each.tobytes() for each in expected]


@given(seed=st.integers(0, 2**32 - 1), sizes=st.lists(st.integers(1, 6), min_size=2, max_size=4))
def test_a_block_diagonal_matrix_has_the_eigenpairs_of_its_blocks(seed: int, sizes: list[int]) -> None:
    squares = [np.random.default_rng((seed, size)).standard_normal((size, size)) for size in sizes]
    matrix = block_diag(*(square + square.T for square in squares))
    values, rows = spectrum_and_leading(matrix, len(matrix))
    np.testing.assert_allclose(values, np.linalg.eigvalsh(matrix)[::-1], atol=1e-12 * np.abs(matrix).sum())
    np.testing.assert_allclose(rows @ rows.T, np.eye(len(matrix)), atol=1e-11)
    np.testing.assert_allclose(rows @ matrix, values[:, None] * rows, atol=1e-11 * np.abs(matrix).sum())


@pytest.mark.parametrize("matrix", [np.zeros((5, 5)), np.eye(2), np.array([[3.0]])], ids=["zero", "two", "one"])
def test_a_matrix_that_needs_no_reduction_is_decomposed(matrix: NDArray[np.float64]) -> None:
    values, rows = spectrum_and_leading(matrix, 1)
    np.testing.assert_allclose(values, np.diag(matrix))
    np.testing.assert_allclose(rows @ rows.T, np.eye(1))


def test_a_matrix_of_which_the_partial_solver_finds_no_pair() -> None:
    """Compute two eigenpairs of matrices close to the identity, for which LAPACK's dsyevr returns none.

    A search found these matrices.
    """
    lost = 0
    rng = np.random.default_rng(0)
    for _ in range(400):
        basis = np.linalg.qr(rng.standard_normal((17, 17)))[0]
        values, rows = leading_eigenpairs(basis @ basis.T, 2)
        lost += (values.size, len(rows)) != (2, 2)
    assert lost == 0


def edge_noise(order, seed=0):
    """Return a symmetric noise matrix whose spectrum is a semicircle of radius 1, without any outlier."""
    square = np.random.default_rng(seed).standard_normal((order, order))
    return (square + square.T) / np.sqrt(8 * order)


def spiked(order, *heights):
    axes = np.linalg.qr(np.random.default_rng(1).standard_normal((order, len(heights))))[0]
    return edge_noise(order) + (axes * heights) @ axes.T


def found(matrix, count):
    """Compute leading eigenpairs of a matrix through products; return values, vectors, and the products' widths."""
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
    monkeypatch.setattr(eigenpairs, "SETTLED", 0.0)
    values, _, widths = found(MATRICES["noise"], 2)
    assert len(widths) == most_passes(400, 2) > eigenpairs.BASIS_BLOCKS
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
def test_a_matrix_within_the_search_basis_is_decomposed(rank):
    axes = np.linalg.qr(np.random.default_rng(1).standard_normal((80, 3)))[0][:, :rank]
    values, rows, _ = found((axes * [4.0, 2.0][:rank]) @ axes.T, 3)
    np.testing.assert_allclose(values, [4.0, 2.0, 0.0] if rank else np.zeros(3), atol=1e-9)
    np.testing.assert_allclose(rows @ rows.T, np.eye(3), atol=1e-10)


def test_the_same_products_give_the_same_bits():
    one, two = (found(MATRICES["gap"], 3) for _ in range(2))
    np.testing.assert_array_equal(one[0], two[0])
    np.testing.assert_array_equal(one[1], two[1])


@pytest.mark.parametrize("name", MATRICES)
def test_further_pairs_are_computed_without_changing_the_first(name):
    matrix = MATRICES[name]

    def product(directions):
        return matrix @ (directions / 2.0**15)

    start = start_directions(len(matrix), block_width(len(matrix), 3))
    values, rows = leading_eigenpairs_of(product, start, 3)
    exact = np.linalg.eigvalsh(matrix)[::-1][: len(values)]
    assert (values <= exact + 1e-9 * np.abs(exact)).all()
    np.testing.assert_allclose(values, exact, rtol=0.1)
    np.testing.assert_allclose(rows @ rows.T, np.eye(len(rows)), atol=1e-9)
