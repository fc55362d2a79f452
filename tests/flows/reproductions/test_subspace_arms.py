"""Arms of a comparison: what passes the curator, what is printed alone, and the true epsilon of either."""

import dataclasses

import numpy as np
import pytest
from scipy import sparse

from dpca_tasks.accounting.published import FORMULAS, Settings
from dpca_tasks.errors import Refused
from dpca_tasks.mechanisms.subspace import MECHANISMS
from flows.reproductions import printed_algorithms
from flows.reproductions.subspace_arms import ANALYZE_GAUSS, ARMS, GAUSSIAN, MOD_SULQ, REFINED, Arm, Rows


@pytest.fixture(scope="module")
def rows() -> Rows:
    """Rows of norm 1 that lie on three of eight axes, with frequencies of 5, 3 and 1."""
    axes = np.repeat([0, 1, 2], [500, 300, 100])
    return Rows.of(sparse.csr_array(np.eye(8)[np.random.default_rng(0).permutation(axes)]))


def test_every_mechanism_has_an_arm_and_names_are_unique() -> None:
    assert {arm.mechanism for arm in ARMS} == set(MECHANISMS)
    assert len({arm.name for arm in ARMS}) == len(ARMS)


def test_what_the_product_refuses_alone_is_printed(rows: Rows) -> None:
    for arm in ARMS:
        if arm.calibration == "printed":
            product = dataclasses.replace(arm, calibration="paper")
            with pytest.raises(Refused):
                product.true_epsilon(rows, n_components=2, epsilon=0.1, delta=1e-3)


@pytest.mark.parametrize("arm", [ANALYZE_GAUSS, REFINED, GAUSSIAN, MOD_SULQ], ids=lambda arm: arm.name)
def test_an_arm_of_a_seed_is_the_same_each_time_and_another_of_another(arm: Arm, rows: Rows) -> None:
    first, again, other = (arm.run(rows, n_components=2, epsilon=0.9, delta=1e-4, seed=(seed,)) for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert np.abs(first - other).max() > 1e-6
    np.testing.assert_allclose(first @ first.T, np.eye(2), atol=1e-9)


def test_tight_noise_is_what_was_asked_for_and_printed_noise_is_what_it_is(rows: Rows) -> None:
    wishart = Arm(mechanism="wishart", calibration="printed")
    tight, gaussian, none = (
        arm.true_epsilon(rows, n_components=2, epsilon=0.1, delta=1e-3) for arm in (ANALYZE_GAUSS, GAUSSIAN, wishart)
    )
    assert tight == 0.1
    assert gaussian == pytest.approx(0.0369, abs=1e-4)
    assert none == np.inf


def test_losses_too_large_for_the_accountant_have_no_stated_epsilon() -> None:
    asked = Settings(epsilon=1.0, delta=1e-3, n_records=30_000, steps=30_000)
    assert FORMULAS["dp_vrpca"].noise(asked) < 0.02
    assert printed_algorithms.true_epsilon("dp_vrpca", asked) == np.inf


def test_a_calibration_that_a_mechanism_lacks_is_refused(rows: Rows) -> None:
    with pytest.raises(Refused, match="laplace has no calibration=paper"):
        Arm(mechanism="laplace", calibration="paper").true_epsilon(rows, n_components=2, epsilon=1.0, delta=1e-4)


@pytest.mark.parametrize("mechanism", ["wishart", "noisy_power"])
def test_printed_algorithms_find_strong_directions(mechanism: str, rows: Rows) -> None:
    """At epsilon 400 and 900 rows the printed noise is far below the eigenvalues 500 and 300."""
    found = Arm(mechanism=mechanism, calibration="printed").run(
        rows, n_components=2, epsilon=400.0, delta=1e-3, seed=(0,)
    )
    assert np.linalg.norm(found[:, :2]) ** 2 == pytest.approx(2.0, abs=0.1)


@pytest.mark.parametrize("reduced", [False, True])
def test_printed_steps_climb_but_not_far(reduced: bool, rows: Rows) -> None:  # noqa: FBT001
    """Each step is ``x x^T`` over 2n or n: growth e^(share of the variance) at most, twice for the first."""
    gains = []
    for seed in range(5):
        start = np.linalg.qr(np.random.default_rng(seed).standard_normal((8, 2)))[0]
        rng = np.random.default_rng(seed)
        found = printed_algorithms.ascend(rows.matrix, 2, noise_std=0.0, rng=rng, reduced=reduced)
        before, after = (np.linalg.norm(rows.matrix @ columns) ** 2 for columns in (start, found.T))
        gains.append(after / before)
    assert all(1.0 < gain < np.exp(2 * 500 / 900) + 0.1 for gain in gains)


def test_noise_that_was_printed_enters_the_steps(rows: Rows) -> None:
    still = printed_algorithms.ascend(rows.matrix, 2, noise_std=0.0, rng=np.random.default_rng(0))
    shaken = printed_algorithms.ascend(rows.matrix, 2, noise_std=50.0, rng=np.random.default_rng(0))
    assert np.linalg.norm(still @ shaken.T) ** 2 < 1.9
