"""The guarantee of discrete Gaussian shares is compared with exact deltas of their sums."""

import numpy as np
import pytest
from scipy import stats

from dpca_tasks.accounting.discrete_gaussian import shares_mu, shares_squared_scale
from dpca_tasks.errors import InvalidInput

EPSILONS = (0.0, 0.25, 0.5, 1.0, 2.0, 4.0)


def gaussian_delta(mu, epsilon):
    return stats.norm.cdf(mu / 2 - epsilon / mu) - np.exp(epsilon) * stats.norm.cdf(-mu / 2 - epsilon / mu)


def mass(squared_scale, shares, reach=600):
    points = np.arange(-reach, reach + 1)
    one = np.exp(-(points**2) / (2 * squared_scale))
    one /= one.sum()
    whole = one
    for _ in range(shares - 1):
        whole = np.convolve(whole, one)
    return whole


def exact_delta(masses, shifts, epsilon):
    """Sum ``max(0, P - e^epsilon Q)`` over all outcomes of one to three coordinates, each moved by a whole number."""
    here, there = np.ones(1), np.ones(1)
    for one, shift in zip(masses, shifts, strict=True):
        padded = np.concatenate([one, np.zeros(shift)])
        here, there = np.outer(here, padded).ravel(), np.outer(there, np.roll(padded, shift)).ravel()
    return float(np.maximum(here - np.exp(epsilon) * there, 0.0).sum())


@pytest.mark.parametrize(("squared_scale", "shares"), [(17, 1), (36, 1), (16, 2), (16, 5), (20, 3), (100, 2)])
@pytest.mark.parametrize("shift", [1, 5, 12])
def test_no_exact_delta_is_above_that_of_the_gaussian(squared_scale, shares, shift):
    mu = shares_mu(sensitivity=shift, shares=shares, squared_scale=squared_scale)
    whole = mass(squared_scale, shares)
    for epsilon in EPSILONS:
        assert exact_delta([whole], [shift], epsilon) <= gaussian_delta(mu, epsilon) + 1e-12


@pytest.mark.parametrize(("shares", "moved"), [(2, (3, 4)), (3, (0, 5)), (3, (6, 1))])
def test_coordinates_of_less_weight_are_covered(shares, moved):
    """Weights 1 and sqrt(1/2): the second coordinate has half the squared scale, and its moves count sqrt 2 times."""
    squared_scale, least = 32, np.sqrt(0.5)
    masses = [mass(squared_scale, shares, reach=60), mass(squared_scale // 2, shares, reach=60)]
    mu = shares_mu(
        sensitivity=float(np.hypot(moved[0], moved[1] / least)),
        shares=shares,
        squared_scale=squared_scale,
        least_weight=least,
    )
    for epsilon in EPSILONS:
        assert exact_delta(masses, moved, epsilon) <= gaussian_delta(mu, epsilon) + 1e-9


@pytest.mark.parametrize(("shares", "moved"), [(2, (3, 2, 1)), (2, (0, 0, 4)), (1, (2, 1, 3))])
def test_coordinates_of_a_cube_are_covered(shares, moved):
    """Weights 1, sqrt(1/3) and sqrt(1/6), of which equal entries are moved three and six times."""
    squared_scale, least = 102, np.sqrt(1 / 6)
    masses = [mass(squared_scale // part, shares, reach=int(75 / part**0.5)) for part in (1, 3, 6)]
    sensitivity = float(np.sqrt(moved[0] ** 2 + 3 * moved[1] ** 2 + 6 * moved[2] ** 2))
    mu = shares_mu(sensitivity=sensitivity, shares=shares, squared_scale=squared_scale, least_weight=least)
    for epsilon in EPSILONS:
        assert exact_delta(masses, moved, epsilon) <= gaussian_delta(mu, epsilon) + 1e-9


def test_what_is_taken_off_is_needed():
    """Without it a share of scale 6 would be claimed to hide a shift of 5 better than it does."""
    assert exact_delta([mass(36, 1)], [5], 1.0) == pytest.approx(0.07288, abs=1e-5)
    assert gaussian_delta(5 / 6, 1.0) == pytest.approx(0.07271, abs=1e-5)
    assert gaussian_delta(shares_mu(sensitivity=5.0, shares=1, squared_scale=36), 1.0) > 0.07288


@pytest.mark.parametrize("shares", [1, 2, 7, 30])
@pytest.mark.parametrize("mu", [0.01, 0.27, 1.0, 5.0])
@pytest.mark.parametrize("least_weight", [1.0, 0.5**0.5, 6**-0.5])
def test_the_scale_is_the_least_even_one_that_suffices(shares, mu, least_weight):
    terms = {"sensitivity": 37.5, "shares": shares, "least_weight": least_weight}
    scale = shares_squared_scale(**terms, mu=mu)
    assert scale % 2 == 0
    assert shares_mu(**terms, squared_scale=scale) <= mu
    if (scale - 2) * least_weight**2 >= 16 * (1 + 1e-9):
        assert shares_mu(**terms, squared_scale=scale - 2) > mu * (1 - 1e-9)


@pytest.mark.parametrize(
    "changes", [{"shares": 0}, {"squared_scale": 15.9}, {"squared_scale": 16.0, "shares": 1}, {"least_weight": 0.0}]
)
def test_shares_for_which_the_proof_does_not_hold_are_refused(changes):
    with pytest.raises(InvalidInput):
        shares_mu(**{"sensitivity": 1.0, "shares": 2, "squared_scale": 16.0} | changes)


@pytest.mark.timeout(20)  # steps of 2 are lost in the rounding of such a float
def test_an_enormous_scale_is_found_too():
    scale = shares_squared_scale(sensitivity=1e6, shares=1, mu=1e-9)
    assert 1e30 <= scale <= 1e30 * (1 + 1e-12)
