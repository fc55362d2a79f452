"""Eigenpairs of a released matrix, also where eigenvalues tie."""

from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.linalg import block_diag, lapack

from dpca_tasks.mechanisms.parts import eigenpairs
from dpca_tasks.mechanisms.parts.eigenpairs import leading_eigenpairs, spectrum_and_leading


@given(seed=st.integers(0, 2**32 - 1), order=st.integers(2, 24), levels=st.integers(1, 3), data=st.data())
def test_ties_lose_no_pair(seed: int, order: int, levels: int, data: st.DataObject) -> None:
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
def test_pairs_that_are_not_certain_are_computed_in_full(
    name: str, broken: Callable[..., object], monkeypatch: pytest.MonkeyPatch
) -> None:
    matrix = np.diag(np.arange(1.0, 13.0)) + 0.1
    expected = leading_eigenpairs(matrix, 3)
    monkeypatch.setattr(eigenpairs, "lapack", SimpleNamespace(**{**vars(lapack), name: broken}))
    values, rows = spectrum_and_leading(matrix, 3)
    np.testing.assert_allclose(values[:3], expected[0], rtol=1e-12)
    np.testing.assert_allclose(rows, expected[1], atol=1e-12)


def noisy(order: int, *, strength: float) -> NDArray[np.float64]:
    """Noise of std 1 on the diagonal, and three components beside it."""
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
    np.testing.assert_allclose(values[:20], every[:20], atol=1e-7)  # the square of their vectors' error
    np.testing.assert_allclose(rows @ rows.T, np.eye(20), atol=1e-12)
    again = spectrum_and_leading(matrix, 20, within=within)
    assert (values.tobytes(), rows.tobytes()) == tuple(each.tobytes() for each in again)


@pytest.mark.parametrize("name", ["ssterf", "sstein", "sormqr", "a strong matrix"])
def test_what_single_precision_does_not_hold_is_computed_in_double(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
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
def test_a_matrix_of_several_parts_has_the_pairs_of_each(seed: int, sizes: list[int]) -> None:
    squares = [np.random.default_rng((seed, size)).standard_normal((size, size)) for size in sizes]
    matrix = block_diag(*(square + square.T for square in squares))
    values, rows = spectrum_and_leading(matrix, len(matrix))
    np.testing.assert_allclose(values, np.linalg.eigvalsh(matrix)[::-1], atol=1e-12 * np.abs(matrix).sum())
    np.testing.assert_allclose(rows @ rows.T, np.eye(len(matrix)), atol=1e-11)
    np.testing.assert_allclose(rows @ matrix, values[:, None] * rows, atol=1e-11 * np.abs(matrix).sum())


@pytest.mark.parametrize("matrix", [np.zeros((5, 5)), np.eye(2), np.array([[3.0]])], ids=["zero", "two", "one"])
def test_nothing_to_reduce_is_no_failure(matrix: NDArray[np.float64]) -> None:
    values, rows = spectrum_and_leading(matrix, 1)
    np.testing.assert_allclose(values, np.diag(matrix))
    np.testing.assert_allclose(rows @ rows.T, np.eye(1))


def test_a_matrix_of_which_the_partial_solver_finds_no_pair() -> None:
    """Close to the identity, and found by search: LAPACK's dsyevr returns 0 of 2 pairs here."""
    lost = 0
    rng = np.random.default_rng(0)
    for _ in range(400):
        basis = np.linalg.qr(rng.standard_normal((17, 17)))[0]
        values, rows = leading_eigenpairs(basis @ basis.T, 2)
        lost += (values.size, len(rows)) != (2, 2)
    assert lost == 0
