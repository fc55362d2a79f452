"""The published covariance methods: noise of the stated size, an epsilon that is kept, directions that are found."""

import math

import numpy as np
import pytest
from scipy import sparse

from dpca_tasks.accounting import events
from dpca_tasks.accounting.epsilon_bracket import epsilon_bracket
from flows.reproductions.peers import amin, coinpress, dong

ROWS = sparse.csr_array(np.repeat(np.eye(8), [4000, 2000, *[50] * 6], axis=0))
"""Two directions of many rows."""


@pytest.mark.parametrize(
    "directions",
    [
        amin.amin_covariance(ROWS, n_components=2, epsilon=50.0),
        coinpress.coinpress_covariance(ROWS, n_components=2, epsilon=50.0, delta=1e-6, largest=1.0),
        dong.separate_covariance(ROWS, n_components=2, epsilon=50.0, delta=1e-6),
        dong.adaptive_covariance(ROWS, n_components=2, epsilon=50.0, delta=1e-6),
    ],
    ids=["amin", "coinpress", "separate", "adaptive"],
)
def test_a_method_finds_strong_directions(directions: np.ndarray) -> None:
    np.testing.assert_allclose(directions @ directions.T, np.eye(2), atol=1e-6)
    assert np.square(directions[:, :2]).sum() == pytest.approx(2.0, abs=0.05)


def test_noise_has_the_std_that_its_zcdp_needs() -> None:
    """A replaced row moves by sqrt 2 squared norms over n; 20,100 normals: 5 standard errors are 2.5 %."""
    n, d, rho = 100, 200, 0.5
    empty = sparse.csr_array((n, d))
    least = math.sqrt(2) / math.sqrt(2 * rho) / n
    upper = np.triu_indices(d)
    noise = dong._noisy(empty, rho=rho, cut=0.5, rng=np.random.default_rng(1))[upper]
    assert np.std(noise) == pytest.approx(least / 4, rel=0.025)
    found, _ = coinpress._step(np.zeros((n, d)), rho=rho, rng=np.random.default_rng(2))
    tail = math.log(10)
    gamma = math.sqrt(d + 2 * math.sqrt(d * tail) + 2 * tail)
    assert np.std(found[upper]) == pytest.approx(gamma**2 * least, rel=0.025)


def test_rows_are_cut_off_where_the_noise_is_scaled_to() -> None:
    """Without noise to speak of, what is left are rows of the norm that the noise was scaled to."""
    long = sparse.csr_array(np.repeat([[1.0, 0.0]], 10, axis=0))
    found = dong._noisy(long, rho=1e12, cut=0.5, rng=np.random.default_rng(3))
    assert found[0, 0] == pytest.approx(0.25, rel=1e-3)
    far = np.repeat([[100.0, 0.0]], 10, axis=0)
    gamma = math.sqrt(2 + 2 * math.sqrt(2 * math.log(10)) + 2 * math.log(10))
    assert coinpress._step(far, rho=1e12, rng=np.random.default_rng(4))[0][0, 0] == pytest.approx(gamma**2, rel=1e-3)


def test_adaptive_cov_spends_what_is_asked_for() -> None:
    rho = dong.adaptive_rho(epsilon=1.0, delta=1e-6)
    both = events.composed(events.gaussian(1 / math.sqrt(2 * 0.875 * rho)), events.approximate(math.sqrt(rho) / 2, 0.0))
    found = epsilon_bracket(both, delta=1e-6, within=0.01)
    assert 0.95 < found.lower <= found.upper <= 1.0


def test_amin_et_al_book_twice_what_a_vector_costs() -> None:
    assert amin.true_epsilon(n_components=1, epsilon=1.0) == pytest.approx(0.75)
    assert amin.true_epsilon(n_components=9, epsilon=1.0) == pytest.approx(0.55)
