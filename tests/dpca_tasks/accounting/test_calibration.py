"""Calibration inverts, fits the units of the budget, and never gives less noise than the exact amount."""

import math
from collections.abc import Callable
from fractions import Fraction

import dp_accounting
import pytest
from dp_accounting import pld
from hypothesis import given, settings
from hypothesis import strategies as st
from mpmath import mp

from dpca_tasks.accounting.calibration import gaussian_epsilon, gaussian_noise_multiplier
from dpca_tasks.accounting.gaussian import largest_units
from dpca_tasks.accounting.pure import laplace_noise_multiplier, wishart_noise_multiplier
from dpca_tasks.accounting.subsampled import sampled_gaussian_noise_multiplier
from dpca_tasks.errors import InvalidInput

epsilons = st.floats(min_value=-3, max_value=2).map(lambda exponent: 10.0**exponent)
deltas = st.floats(min_value=-15, max_value=-1).map(lambda exponent: 10.0**exponent)
counts = st.integers(min_value=1, max_value=10_000)


def exact_delta(noise_multiplier: float | mp.mpf, epsilon: float, releases: int) -> mp.mpf:
    """The hockey-stick divergence of two normals at distance 1, by erfc and with 80 digits."""
    with mp.workdps(80):
        mu = mp.sqrt(releases) / mp.mpf(noise_multiplier)
        upper = (mp.mpf(epsilon) / mu - mu / 2) / mp.sqrt(2)
        lower = (mp.mpf(epsilon) / mu + mu / 2) / mp.sqrt(2)
        return (mp.erfc(upper) - mp.exp(mp.mpf(epsilon)) * mp.erfc(lower)) / 2


def charge(noise_multiplier: float, releases: int) -> int:
    """Units of 2^-56 of ``releases / noise_multiplier^2``, rounded up, in integers."""
    above, below = noise_multiplier.as_integer_ratio()
    return -(-releases * below**2 * 2**56 // above**2)


def fits(units: int, epsilon: float, delta: float) -> bool:
    """Whether units of 2^-56 of mu^2 are within a budget."""
    with mp.workdps(80):
        return bool(exact_delta(2**28 / mp.sqrt(units), epsilon, 1) <= delta)


@pytest.mark.parametrize(
    ("epsilon", "delta", "expected"),
    [(0.1, 1e-3, 17.404), (1, 1e-3, 2.575), (0.1, 1e-6, 36.305), (1, 1e-6, 4.2247), (10, 1e-6, 0.5411)],
)
def test_known_multipliers(epsilon: float, delta: float, expected: float) -> None:
    assert gaussian_noise_multiplier(epsilon=epsilon, delta=delta) == pytest.approx(expected, rel=2e-4)


@given(epsilons, deltas, counts)
@settings(deadline=None)
def test_noise_is_never_below_the_exact_amount_and_hardly_above(epsilon: float, delta: float, releases: int) -> None:
    multiplier = gaussian_noise_multiplier(epsilon=epsilon, delta=delta, releases=releases)
    assert exact_delta(multiplier, epsilon, releases) <= delta
    assert exact_delta(multiplier * (1 - 1e-9), epsilon, releases) > delta


@given(epsilons, deltas, counts)
@settings(deadline=None)
def test_a_request_for_the_whole_budget_fits_and_uses_it_up(epsilon: float, delta: float, releases: int) -> None:
    limit = largest_units(epsilon, delta)
    assert fits(limit, epsilon, delta)
    assert not fits(limit + 1, epsilon, delta)
    charged = charge(gaussian_noise_multiplier(epsilon=epsilon, delta=delta, releases=releases), releases)
    assert charged <= limit
    assert limit - charged <= 1 + limit * 2.0**-51


@given(epsilons, deltas, counts)
@settings(deadline=None)
def test_epsilon_is_the_inverse_rounded_up(epsilon: float, delta: float, releases: int) -> None:
    multiplier = gaussian_noise_multiplier(epsilon=epsilon, delta=delta, releases=releases)
    found = gaussian_epsilon(noise_multiplier=multiplier, delta=delta, releases=releases)
    assert found == pytest.approx(epsilon, rel=1e-8)
    assert exact_delta(multiplier, found, releases) <= delta


@given(epsilons, deltas, counts, st.floats(min_value=1.01, max_value=10))
@settings(deadline=None)
def test_more_budget_takes_less_noise_and_more_releases_take_more(
    epsilon: float, delta: float, releases: int, factor: float
) -> None:
    base = gaussian_noise_multiplier(epsilon=epsilon, delta=delta, releases=releases)
    assert gaussian_noise_multiplier(epsilon=epsilon * factor, delta=delta, releases=releases) < base
    assert gaussian_noise_multiplier(epsilon=epsilon, delta=min(0.5, delta * factor), releases=releases) < base
    assert gaussian_noise_multiplier(epsilon=epsilon, delta=delta, releases=releases + 1) > base


def test_epsilon_is_zero_where_delta_alone_covers_the_release() -> None:
    assert gaussian_epsilon(noise_multiplier=1e6, delta=1e-3) == 0.0


@pytest.mark.parametrize("epsilon", [1e-4, 1e3, 1e9])
def test_extreme_guarantees_are_calibrated_safely(epsilon: float) -> None:
    multiplier = gaussian_noise_multiplier(epsilon=epsilon, delta=1e-12)
    assert exact_delta(multiplier, epsilon, 1) <= 1e-12


def test_a_budget_below_one_unit_is_refused() -> None:
    with pytest.raises(InvalidInput, match="ask for more epsilon"):
        gaussian_noise_multiplier(epsilon=1e-9, delta=1e-15)
    for pure in (laplace_noise_multiplier, wishart_noise_multiplier):
        with pytest.raises(InvalidInput, match="ask for more epsilon"):
            pure(epsilon=1e-9)


@pytest.mark.parametrize(("rate", "steps"), [(0.1, 20), pytest.param(0.01, 100, marks=pytest.mark.audit_only)])
def test_sampled_steps_take_the_least_noise_that_their_loss_distribution_allows(rate: float, steps: int) -> None:
    multiplier = sampled_gaussian_noise_multiplier(epsilon=1.0, delta=1e-5, rate=rate, steps=steps)

    def epsilon(noise_multiplier: float) -> float:
        accountant = pld.PLDAccountant(dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE, 1e-4)
        sampled = dp_accounting.PoissonSampledDpEvent(rate, dp_accounting.GaussianDpEvent(noise_multiplier))
        return float(accountant.compose(sampled, steps).get_epsilon(1e-5))

    assert epsilon(multiplier) <= 1.0 < epsilon(multiplier * 0.997)


def test_sampling_everybody_is_no_sampling() -> None:
    sampled = sampled_gaussian_noise_multiplier(epsilon=1.0, delta=1e-6, rate=1, steps=9)
    assert sampled == gaussian_noise_multiplier(epsilon=1.0, delta=1e-6, releases=9)


@given(st.floats(min_value=1e-6, max_value=1e6))
def test_pure_multipliers_are_the_reciprocal_rounded_up(epsilon: float) -> None:
    for multiplier, factor in (
        (laplace_noise_multiplier(epsilon=epsilon), 1),
        (wishart_noise_multiplier(epsilon=epsilon), 2),
    ):
        assert factor * Fraction(multiplier) * Fraction(epsilon) >= 1
        assert factor * Fraction(math.nextafter(multiplier, 0)) * Fraction(epsilon) < 1


@pytest.mark.parametrize("epsilon", [0.0, -1.0, math.nan, math.inf, 1e10])
def test_epsilon_outside_its_domain_is_refused(epsilon: float) -> None:
    requests: list[Callable[[], float]] = [
        lambda: gaussian_noise_multiplier(epsilon=epsilon, delta=1e-6),
        lambda: sampled_gaussian_noise_multiplier(epsilon=epsilon, delta=1e-6, rate=0.1, steps=1),
        lambda: laplace_noise_multiplier(epsilon=epsilon),
        lambda: wishart_noise_multiplier(epsilon=epsilon),
    ]
    for request in requests:
        with pytest.raises(InvalidInput, match="epsilon="):
            request()


@pytest.mark.parametrize("delta", [0.0, 1.0, -1e-6, math.nan, math.inf])
def test_delta_outside_its_domain_is_refused(delta: float) -> None:
    requests: list[Callable[[], float]] = [
        lambda: gaussian_noise_multiplier(epsilon=1.0, delta=delta),
        lambda: gaussian_epsilon(noise_multiplier=1.0, delta=delta),
        lambda: sampled_gaussian_noise_multiplier(epsilon=1.0, delta=delta, rate=0.1, steps=1),
    ]
    for request in requests:
        with pytest.raises(InvalidInput, match="delta="):
            request()


@pytest.mark.parametrize("count", [0, -3, True, 1.5])
def test_counts_are_positive_integers(count: int) -> None:
    with pytest.raises(InvalidInput, match="releases="):
        gaussian_noise_multiplier(epsilon=1.0, delta=1e-6, releases=count)
    with pytest.raises(InvalidInput, match="steps="):
        sampled_gaussian_noise_multiplier(epsilon=1.0, delta=1e-6, rate=0.1, steps=count)


@pytest.mark.parametrize("value", [0.0, -1.0, 1e-7, math.nan, math.inf])
def test_a_multiplier_outside_its_domain_is_refused(value: float) -> None:
    with pytest.raises(InvalidInput, match="noise_multiplier="):
        gaussian_epsilon(noise_multiplier=value, delta=1e-6)


@pytest.mark.parametrize("rate", [0.0, 1.5, math.nan])
def test_a_sampling_rate_is_a_probability(rate: float) -> None:
    with pytest.raises(InvalidInput, match="rate="):
        sampled_gaussian_noise_multiplier(epsilon=1.0, delta=1e-6, rate=rate, steps=1)
