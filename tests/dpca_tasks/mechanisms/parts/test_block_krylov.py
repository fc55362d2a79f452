"""A few products find what stands above the noise, in either precision; what they cannot find is decomposed."""

import numpy as np
import pytest

from dpca_tasks.mechanisms.parts import block_krylov
from dpca_tasks.mechanisms.parts.block_krylov import SHORT, depth, nearly_leading_eigenpairs, shortened
from dpca_tasks.mechanisms.parts.eigenpairs import leading_eigenpairs
from dpca_tasks.threads import one_thread
from tests.dpca_tasks.mechanisms.parts.noisy import held, isometric_noise

ORDER, COUNT = 400, 12
SIGNAL = np.diag(np.r_[np.linspace(200.0, 60.0, 6), np.linspace(38.0, 0.0, ORDER - 6)])
RELEASED = SIGNAL + isometric_noise(ORDER, seed=1)


@pytest.fixture(autouse=True)
def _one_thread():
    with one_thread():
        yield


@pytest.mark.parametrize("matrix", [RELEASED, shortened(RELEASED, COUNT)], ids=["double", "single"])
def test_pairs_above_the_noise_are_found_and_the_others_hold_as_much(matrix):
    assert depth(ORDER, COUNT)
    values, rows = nearly_leading_eigenpairs(matrix, COUNT)
    expected, exact = leading_eigenpairs(RELEASED, COUNT)
    np.testing.assert_allclose(values[:4], expected[:4], rtol=1e-6)
    np.testing.assert_allclose(values[:6], expected[:6], rtol=1e-3)
    np.testing.assert_allclose(rows[:4], exact[:4], atol=1e-3)
    assert (values <= expected * (1 + 1e-6)).all()
    np.testing.assert_allclose(rows @ rows.T, np.eye(COUNT), atol=1e-12)
    assert held(SIGNAL, rows) > 0.98 * held(SIGNAL, exact)
    assert rows.dtype == values.dtype == np.float64


def test_too_few_products_would_be_caught(monkeypatch):
    monkeypatch.setattr(block_krylov, "DEEPER", 0.5)
    assert held(SIGNAL, nearly_leading_eigenpairs(RELEASED, COUNT)[1]) < 0.97 * held(
        SIGNAL, leading_eigenpairs(RELEASED, COUNT)[1]
    )


@pytest.mark.parametrize(
    "matrix",
    [np.zeros((ORDER, ORDER)), np.eye(ORDER), 1e15 * SIGNAL, -RELEASED],
    ids=["zeros", "tied", "huge", "below"],
)
def test_any_matrix_gives_orthonormal_pairs(matrix):
    values, rows = nearly_leading_eigenpairs(shortened(matrix, COUNT), COUNT)
    np.testing.assert_allclose(rows @ rows.T, np.eye(COUNT), atol=1e-12)
    assert (np.diff(values) <= 0).all()
    assert np.abs(values).max() <= np.abs(np.linalg.eigvalsh(matrix)).max() * (1 + 1e-5)


def test_a_small_matrix_is_decomposed():
    small = RELEASED[:100, :100]
    assert depth(100, COUNT) == 0
    for found, expected in zip(nearly_leading_eigenpairs(small, COUNT), leading_eigenpairs(small, COUNT), strict=True):
        np.testing.assert_array_equal(found, expected)


def test_single_precision_is_for_entries_whose_rounding_the_noise_hides():
    assert shortened(RELEASED, COUNT).dtype == np.float32
    assert shortened(RELEASED[:100, :100], COUNT).dtype == np.float64
    assert shortened(RELEASED * SHORT, COUNT).dtype == np.float64


def test_the_same_bits_twice():
    first, second = (nearly_leading_eigenpairs(shortened(RELEASED, COUNT), COUNT) for _ in range(2))
    assert first[1].tobytes() == second[1].tobytes()
