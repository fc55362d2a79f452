"""The power method against joint diagonalisation, which shares nothing with it."""

import numpy as np
import pytest

from dpca_tasks.mechanisms.parts.power_method import robust_power_method


def orthogonal_tensor(*, order, values, seed):
    """Return a whitened tensor: orthonormal vectors with given values, and the vectors as rows."""
    rows = np.linalg.qr(np.random.default_rng(seed).standard_normal((order, order)))[0].T[: len(values)]
    return np.einsum("k,ki,kj,kl->ijl", values, rows, rows, rows), rows


def by_jennrich(tensor, *, seed):
    """Return values and vectors by Jennrich's algorithm: eigenvectors of one random contraction over another."""
    one, other = np.random.default_rng(seed).standard_normal((2, len(tensor)))
    ratio = np.linalg.solve((tensor @ other).T, (tensor @ one).T).T
    rows = np.real(np.linalg.eig(ratio)[1]).T
    values = np.einsum("ijk,ri,rj,rk->r", tensor, rows, rows, rows)
    order = np.argsort(-np.abs(values))
    return np.abs(values)[order], (rows * np.sign(values)[:, None])[order]


@pytest.mark.parametrize("seed", range(10))
def test_a_whitened_tensor_is_decomposed_as_by_joint_diagonalisation(seed):
    values = np.random.default_rng([1, seed]).uniform(1.0, 10.0, 6)
    tensor, _ = orthogonal_tensor(order=6, values=values, seed=seed)
    found, vectors = robust_power_method(tensor, n_components=6)
    expected, rows = by_jennrich(tensor, seed=seed)
    order = np.argsort(-found)
    np.testing.assert_allclose(found[order], expected, rtol=1e-9)
    np.testing.assert_allclose(vectors[order], rows, atol=1e-8)


def test_noise_moves_values_and_vectors_by_its_own_size():
    tensor, rows = orthogonal_tensor(order=5, values=np.array([5.0, 4.0, 3.0, 2.0, 1.0]), seed=3)
    noise = np.random.default_rng(4).standard_normal((5, 5, 5))
    symmetric = sum(noise.transpose(axes) for axes in np.indices((3, 3, 3)).reshape(3, -1).T if len(set(axes)) == 3)
    found, vectors = robust_power_method(tensor + 1e-4 / 6 * symmetric, n_components=5)
    np.testing.assert_allclose(found, [5.0, 4.0, 3.0, 2.0, 1.0], atol=1e-3)
    np.testing.assert_allclose(vectors, rows, atol=1e-3)


def test_it_stops_where_nothing_is_left():
    tensor, rows = orthogonal_tensor(order=4, values=np.array([2.0]), seed=5)
    values, vectors = robust_power_method(tensor, n_components=1)
    np.testing.assert_allclose(vectors, rows, atol=1e-12)
    assert values == pytest.approx([2.0])
    none, nothing = robust_power_method(np.zeros((4, 4, 4)), n_components=4)
    assert none.shape == (0,)
    assert nothing.shape == (0, 4)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_it_stops_at_numbers_that_are_not_finite(bad):
    tensor, _ = orthogonal_tensor(order=3, values=np.array([3.0, 2.0, 1.0]), seed=6)
    tensor[0, 1, 2] = bad
    assert robust_power_method(tensor, n_components=3)[0].size == 0


def test_starts_are_public_so_the_same_tensor_gives_the_same_bits():
    tensor = np.random.default_rng(8).standard_normal((6, 6, 6))
    once, again = robust_power_method(tensor, n_components=6), robust_power_method(tensor.copy(), n_components=6)
    for one, other in zip(once, again, strict=True):
        np.testing.assert_array_equal(one, other)
