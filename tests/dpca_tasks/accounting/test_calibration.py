"""Totals, calibrations and the calibration cache of Gaussian releases: never too small, and close to exact.

Totals must equal the epsilon of a closed form and never fall below it. Calibration must invert the totals, fit the
budget's units, and never give less noise than the exact amount. The guarantee of discrete Gaussian shares is compared
with exact deltas of their sums. The cache must run one search per calibration, check every cached value, and remain
optional.
"""

import json
import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import dp_accounting
import mpmath
import numpy as np
import pytest
from dp_accounting import pld
from hypothesis import example, given, settings
from hypothesis import strategies as st
from mpmath import mp
from scipy import optimize, stats

from dpca_tasks.accounting import subsampled
from dpca_tasks.accounting.calibration import (
    UNITS,
    gaussian_epsilon,
    gaussian_noise_multiplier,
    is_private,
    laplace_noise_multiplier,
    largest_units,
    multiplier_of,
    shares_mu,
    shares_squared_scale,
    smallest_epsilon,
    units_of,
    wishart_noise_multiplier,
)
from dpca_tasks.accounting.subsampled import (
    FOLDER_VARIABLE,
    cached_sampled_multiplier,
    sampled_gaussian_is_private,
    sampled_gaussian_noise_multiplier,
)
from dpca_tasks.errors import InvalidInput

epsilons = st.floats(1e-3, 50)
deltas = st.sampled_from([1e-12, 1e-9, 1e-6, 1e-5, 1e-3, 0.1])


def exact_epsilon(mu: float, delta: float) -> float:
    """Return the exact epsilon of mu-GDP at delta, computed with scipy's normal distribution and root finder."""

    def excess(epsilon: float) -> float:
        gain = stats.norm.sf(epsilon / mu - mu / 2)
        return float(gain - math.exp(epsilon + stats.norm.logsf(epsilon / mu + mu / 2)) - delta)

    return float(optimize.brentq(excess, 0.0, 200.0, xtol=1e-13, rtol=1e-13))


@pytest.mark.parametrize("releases", [1, 10, 100])
@pytest.mark.parametrize(("multiplier", "delta"), [(4.2, 1e-6), (30.0, 1e-6), (60.0, 1e-3), (1.3, 1e-9)])
def test_composed_epsilon_is_that_of_the_closed_form(releases: int, multiplier: float, delta: float) -> None:
    spent = smallest_epsilon(units_of(multiplier, releases), delta)
    assert spent == pytest.approx(exact_epsilon(math.sqrt(releases) / multiplier, delta), abs=1e-6)


@given(st.floats(1e-3, 2**30), st.integers(1, 10**6))
def test_a_charge_is_the_exact_square_rounded_up(multiplier: float, count: int) -> None:
    exact = count * UNITS / Fraction(multiplier) ** 2
    assert 0 <= units_of(multiplier, count) - exact < 1


@given(epsilons, deltas)
def test_the_largest_total_is_private_and_the_next_is_not(epsilon: float, delta: float) -> None:
    units = largest_units(epsilon, delta)
    assert is_private(units, epsilon=epsilon, delta=delta)
    assert not is_private(units + 1, epsilon=epsilon, delta=delta)


def is_private_by_many_digits(units: int, *, epsilon: float, delta: float) -> bool:
    """Return whether units of mu^2 are (epsilon, delta)-DP, computed with 120 digits to exclude rounding errors."""
    with mpmath.workdps(120):
        mu, loss = mpmath.sqrt(mpmath.mpf(units) / UNITS), mpmath.mpf(epsilon)
        right = mpmath.exp(loss) * mpmath.ncdf(-mu / 2 - loss / mu)
        return bool(mpmath.ncdf(mu / 2 - loss / mu) - right <= mpmath.mpf(delta))


@given(st.floats(1e-6, 2000), st.floats(1e-300, 0.5), st.integers(-2, 2))
@example(epsilon=1e-6, delta=0.5, nearby=1)
@example(epsilon=2000.0, delta=1e-300, nearby=1)
def test_next_to_the_largest_total_every_answer_is_that_of_many_digits(
    epsilon: float, delta: float, nearby: int
) -> None:
    units = largest_units(epsilon, delta) + nearby
    if units > 0:
        expected = is_private_by_many_digits(units, epsilon=epsilon, delta=delta)
        assert is_private(units, epsilon=epsilon, delta=delta) == expected == (nearby <= 0)


@given(st.integers(1, 2**70), st.floats(1e-30, 0.5), st.integers(-2, 2))
def test_next_to_the_smallest_epsilon_every_answer_is_that_of_many_digits(
    units: int, delta: float, nearby: int
) -> None:
    least = smallest_epsilon(units, delta)
    epsilon = least + nearby * math.ulp(least)
    if epsilon > 0:
        expected = is_private_by_many_digits(units, epsilon=epsilon, delta=delta)
        assert is_private(units, epsilon=epsilon, delta=delta) == expected == (nearby >= 0)


BUDGETS = [
    (0.0001, 1e-12, 28684803, 50120.33242308728, 171193.5302163624),
    (0.0001, 1e-06, 242409366, 17241.108333977587, 58889.59620441526),
    (0.0001, 0.001, 498390216565, 380.23765624653976, 1298.7588476407211),
    (0.01, 1e-12, 214944248874, 578.9978670622139, 1977.6542124637758),
    (0.01, 1e-06, 767790830825, 306.35037615386904, 1046.3857405272997),
    (0.01, 0.001, 8171088997247, 93.90741983985257, 320.7549025524288),
    (0.1, 1e-12, 19027340865794, 61.539055918895265, 210.19589206152182),
    (0.1, 1e-06, 54670655551281, 36.30469042619583, 124.00412512354562),
    (0.1, 0.001, 237882138855246, 17.404396203031176, 59.447330334571674),
    (1, 1e-12, 1675561988635349, 6.557822067458852, 22.399226619058084),
    (1, 1e-06, 4037312329686383, 4.224678889326836, 14.430025526973658),
    (1, 0.001, 10870286516498523, 2.574657018637206, 8.79412790306926),
    (8, 1e-12, 86586485045785600, 0.9122519988399579, 3.11593377275376),
    (8, 1e-06, 169020486523067748, 0.652935384358216, 2.2301989122905153),
    (8, 0.001, 312732053693950994, 0.48001375248011047, 1.6395590962157365),
    (50, 1e-12, 1981211362010685332, 0.19071044240637716, 0.6514001712975067),
    (50, 1e-06, 2938568286653846456, 0.15659287039176195, 0.5348664777348925),
    (50, 0.001, 4005574086631160398, 0.13412430797038183, 0.45812172676363505),
    (100000.0, 1e-12, 13965360449868515040749, 0.0022715055583684605, 0.007758668540401726),
    (100000.0, 1e-06, 14108540127312438839339, 0.002259950046706949, 0.007719198954044733),
    (100000.0, 0.001, 14213866598553087078040, 0.002251561225626168, 0.007690545675178331),
]
"""Epsilon, delta, largest total in units, multiplier of one release, and of seven releases with 3/5 of mu squared."""

EPSILONS = [
    (1.0112029823988322, 0.00023204474864185772, 2, 5.376915665908628),
    (0.42061872849780124, 4.567511201371928e-11, 500, 1756.6421268042757),
    (0.26265410323050226, 4.666531251026416e-08, 2, 42.55060272260439),
    (0.1155321985895676, 2.7654616669277887e-05, 2, 123.41086613996532),
    (0.10349670161423617, 5.430544877903475e-11, 1, 108.27733449822614),
    (0.9664227887136458, 1.0963033911346801e-07, 10, 21.71316271894396),
    (0.15778186819692336, 1.7458924744885116e-09, 10, 318.3477629510333),
    (0.13557161376806331, 0.009453264993489714, 500, 13988.164194062918),
    (181.296301317755, 1.8033316522628292e-12, 1, 0.032458821446249765),
    (14.589694931332236, 1.790406569746906e-11, 2, 0.5834962435479918),
    (10.275001319674125, 2.486245438210299e-08, 500, 13.734476474655926),
    (38.7842447249653, 3.7141340819857584e-14, 1, 0.1732011270615671),
    (0.12724935198599238, 1.3494676270412305e-12, 1, 85.1160461497362),
    (0.6345031179209972, 1.935322536414238e-12, 2, 17.5030091461163),
    (36.86228755733166, 1.1393348526501666e-05, 10, 0.2853289011083548),
    (28.87576267331357, 5.93082261986286e-13, 10, 0.719003336643361),
]
"""A multiplier, delta, releases, and the smallest epsilon of their charge."""


@pytest.mark.parametrize(("epsilon", "delta", "units", "one", "seven"), BUDGETS)
def test_a_budget_and_its_noise_never_change(
    epsilon: float, delta: float, units: int, one: float, seven: float
) -> None:
    assert largest_units(epsilon, delta) == units
    assert gaussian_noise_multiplier(epsilon=epsilon, delta=delta) == one == multiplier_of(units)
    share = Fraction(3, 5)
    assert gaussian_noise_multiplier(epsilon=epsilon, delta=delta, releases=7, share=share) == seven


@pytest.mark.parametrize(("multiplier", "delta", "releases", "least"), EPSILONS)
def test_totals_of_releases_never_change(multiplier: float, delta: float, releases: int, least: float) -> None:
    assert smallest_epsilon(units_of(multiplier, releases), delta) == least
    declared = gaussian_epsilon(noise_multiplier=multiplier, delta=delta, releases=releases)
    assert least * (1 - 1e-12) <= declared <= least * (1 + 1e-11)


@given(st.integers(1, 2**80), st.integers(1, 10**6))
def test_a_multiplier_is_the_least_that_is_charged_so_much(units: int, releases: int) -> None:
    multiplier = multiplier_of(units, releases=releases)
    assert units_of(multiplier, releases) <= units
    assert units_of(math.nextafter(multiplier, 0.0), releases) > units


@given(st.floats(1e-4, 8), deltas)
def test_the_smallest_epsilon_is_private_and_the_float_below_is_not(mu: float, delta: float) -> None:
    units = math.ceil(Fraction(mu) ** 2 * UNITS)
    epsilon = smallest_epsilon(units, delta)
    assert is_private(units, epsilon=epsilon, delta=delta)
    if epsilon > 0:
        assert not is_private(units, epsilon=math.nextafter(epsilon, 0.0), delta=delta)


def test_the_privacy_test_agrees_with_the_defining_integral() -> None:
    mu, epsilon = 0.7, 1.1
    with mpmath.workdps(30):
        lost = mpmath.quad(
            lambda x: mpmath.npdf(x, mu) - mpmath.exp(epsilon) * mpmath.npdf(x), [epsilon / mu + mu / 2, 10, 40]
        )
    units = math.ceil(Fraction(mu) ** 2 * UNITS)
    assert is_private(units, epsilon=epsilon, delta=float(lost) * (1 + 1e-12))
    assert not is_private(units, epsilon=epsilon, delta=float(lost) * (1 - 1e-12))


def test_boundary_cases_of_a_guarantee_are_exact() -> None:
    assert largest_units(1.0, 0.0) == 0
    assert smallest_epsilon(0, 1e-6) == 0
    assert smallest_epsilon(0, 0.0) == 0
    assert smallest_epsilon(1, 0.0) == math.inf
    assert smallest_epsilon(1, 1e-6) == 0, "so little that delta alone covers it"


epsilons_of_calibration = st.floats(min_value=-3, max_value=2).map(lambda exponent: 10.0**exponent)
deltas_of_calibration = st.floats(min_value=-15, max_value=-1).map(lambda exponent: 10.0**exponent)
counts = st.integers(min_value=1, max_value=10_000)


def exact_delta(noise_multiplier: float | mp.mpf, epsilon: float, releases: int) -> mp.mpf:
    """Return delta at epsilon of repeated Gaussian releases: a hockey-stick divergence, with 80 digits."""
    with mp.workdps(80):
        mu = mp.sqrt(releases) / mp.mpf(noise_multiplier)
        upper = (mp.mpf(epsilon) / mu - mu / 2) / mp.sqrt(2)
        lower = (mp.mpf(epsilon) / mu + mu / 2) / mp.sqrt(2)
        return (mp.erfc(upper) - mp.exp(mp.mpf(epsilon)) * mp.erfc(lower)) / 2


def charge(noise_multiplier: float, releases: int) -> int:
    """Return ``releases / noise_multiplier^2`` in units of 2^-56, rounded up, in integer arithmetic."""
    above, below = noise_multiplier.as_integer_ratio()
    return -(-releases * below**2 * 2**56 // above**2)


def fits(units: int, epsilon: float, delta: float) -> bool:
    """Return whether a number of 2^-56 units of mu^2 fits a budget."""
    with mp.workdps(80):
        return bool(exact_delta(2**28 / mp.sqrt(units), epsilon, 1) <= delta)


@pytest.mark.parametrize(
    ("epsilon", "delta", "expected"),
    [(0.1, 1e-3, 17.404), (1, 1e-3, 2.575), (0.1, 1e-6, 36.305), (1, 1e-6, 4.2247), (10, 1e-6, 0.5411)],
)
def test_known_multipliers(epsilon: float, delta: float, expected: float) -> None:
    assert gaussian_noise_multiplier(epsilon=epsilon, delta=delta) == pytest.approx(expected, rel=2e-4)


@given(epsilons_of_calibration, deltas_of_calibration, counts)
@settings(deadline=None)
def test_noise_is_never_below_the_exact_amount_and_hardly_above(epsilon: float, delta: float, releases: int) -> None:
    multiplier = gaussian_noise_multiplier(epsilon=epsilon, delta=delta, releases=releases)
    assert exact_delta(multiplier, epsilon, releases) <= delta
    assert exact_delta(multiplier * (1 - 1e-9), epsilon, releases) > delta


@given(epsilons_of_calibration, deltas_of_calibration, counts)
@settings(deadline=None)
def test_a_request_for_the_whole_budget_fits_and_uses_it_up(epsilon: float, delta: float, releases: int) -> None:
    limit = largest_units(epsilon, delta)
    assert fits(limit, epsilon, delta)
    assert not fits(limit + 1, epsilon, delta)
    charged = charge(gaussian_noise_multiplier(epsilon=epsilon, delta=delta, releases=releases), releases)
    assert charged <= limit
    assert limit - charged <= 1 + limit * 2.0**-51


@given(epsilons_of_calibration, deltas_of_calibration, counts)
@settings(deadline=None)
def test_epsilon_is_the_inverse_rounded_up(epsilon: float, delta: float, releases: int) -> None:
    multiplier = gaussian_noise_multiplier(epsilon=epsilon, delta=delta, releases=releases)
    found = gaussian_epsilon(noise_multiplier=multiplier, delta=delta, releases=releases)
    assert found == pytest.approx(epsilon, rel=1e-8)
    assert exact_delta(multiplier, found, releases) <= delta


@given(epsilons_of_calibration, deltas_of_calibration, counts, st.floats(min_value=1.01, max_value=10))
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
    with pytest.raises(InvalidInput, match="use a larger epsilon"):
        gaussian_noise_multiplier(epsilon=1e-9, delta=1e-15)
    for pure in (laplace_noise_multiplier, wishart_noise_multiplier):
        with pytest.raises(InvalidInput, match="use a larger epsilon"):
            pure(epsilon=1e-9)


@pytest.mark.parametrize(("rate", "steps"), [(0.1, 20), pytest.param(0.01, 100, marks=pytest.mark.audit_only)])
def test_sampled_steps_take_the_least_noise_that_their_loss_distribution_allows(rate: float, steps: int) -> None:
    multiplier = sampled_gaussian_noise_multiplier(epsilon=1.0, delta=1e-5, rate=rate, steps=steps)

    def epsilon(noise_multiplier: float) -> float:
        accountant = pld.PLDAccountant(dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE, 1e-4)
        sampled = dp_accounting.PoissonSampledDpEvent(rate, dp_accounting.GaussianDpEvent(noise_multiplier))
        return float(accountant.compose(sampled, steps).get_epsilon(1e-5))

    assert epsilon(multiplier) <= 1.0 < epsilon(multiplier * 0.997)


def test_noise_for_a_sample_of_all_records_is_the_unsampled_noise() -> None:
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


DISCRETE_GAUSSIAN_EPSILONS = (0.0, 0.25, 0.5, 1.0, 2.0, 4.0)


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


def exact_delta_of_discrete_gaussian(masses, shifts, epsilon):
    """Return the exact delta at epsilon of one to three integer coordinates, each shifted by an integer.

    Delta is the sum of ``max(0, P - e^epsilon Q)`` over all outcomes, where P and Q are their probabilities without and
    with the shifts.
    """
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
    for epsilon in DISCRETE_GAUSSIAN_EPSILONS:
        assert exact_delta_of_discrete_gaussian([whole], [shift], epsilon) <= gaussian_delta(mu, epsilon) + 1e-12


@pytest.mark.parametrize(("shares", "moved"), [(2, (3, 4)), (3, (0, 5)), (3, (6, 1))])
def test_coordinates_of_less_weight_are_covered(shares, moved):
    """Check two coordinates with weights 1 and sqrt(1/2).

    The second coordinate has half the squared scale, and a shift of it counts sqrt 2 times.
    """
    squared_scale, least = 32, np.sqrt(0.5)
    masses = [mass(squared_scale, shares, reach=60), mass(squared_scale // 2, shares, reach=60)]
    mu = shares_mu(
        sensitivity=float(np.hypot(moved[0], moved[1] / least)),
        shares=shares,
        squared_scale=squared_scale,
        least_weight=least,
    )
    for epsilon in DISCRETE_GAUSSIAN_EPSILONS:
        assert exact_delta_of_discrete_gaussian(masses, moved, epsilon) <= gaussian_delta(mu, epsilon) + 1e-9


@pytest.mark.parametrize(("shares", "moved"), [(2, (3, 2, 1)), (2, (0, 0, 4)), (1, (2, 1, 3))])
def test_coordinates_of_a_cube_are_covered(shares, moved):
    """Check three coordinates with weights 1, sqrt(1/3) and sqrt(1/6), as in a symmetric cube.

    Entries of the second kind occur three times in the cube, and entries of the third kind six times.
    """
    squared_scale, least = 102, np.sqrt(1 / 6)
    masses = [mass(squared_scale // part, shares, reach=int(75 / part**0.5)) for part in (1, 3, 6)]
    sensitivity = float(np.sqrt(moved[0] ** 2 + 3 * moved[1] ** 2 + 6 * moved[2] ** 2))
    mu = shares_mu(sensitivity=sensitivity, shares=shares, squared_scale=squared_scale, least_weight=least)
    for epsilon in DISCRETE_GAUSSIAN_EPSILONS:
        assert exact_delta_of_discrete_gaussian(masses, moved, epsilon) <= gaussian_delta(mu, epsilon) + 1e-9


def test_the_term_that_is_subtracted_is_necessary():
    """Without the term that `shares_mu` subtracts, mu of a share of scale 6 and a shift of 5 would be too small."""
    assert exact_delta_of_discrete_gaussian([mass(36, 1)], [5], 1.0) == pytest.approx(0.07288, abs=1e-5)
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


@pytest.mark.timeout(20)  # a search in steps of 2 would not end here, because floats near 1e30 do not change by 2
def test_an_enormous_scale_is_found_too():
    scale = shares_squared_scale(sensitivity=1e6, shares=1, mu=1e-9)
    assert 1e30 <= scale <= 1e30 * (1 + 1e-12)


TERMS: dict[str, Any] = {"epsilon": 1.0, "delta": 1e-4, "rate": 0.1, "steps": 10}
FORGED = [b"no json", b"{}", b'{"noise_multiplier": 0.3}', b'{"noise_multiplier": -1}', b"[]"]


@pytest.fixture(scope="module")
def found():
    """Return the sampled noise multiplier that the search finds."""
    return sampled_gaussian_noise_multiplier(**TERMS)


@pytest.fixture
def searches(found, monkeypatch):
    """Replace the search by its known result, and return the list of its calls; cached values are still checked."""
    made: list[dict[str, Any]] = []

    def search(**requested: Any) -> Any:
        made.append(requested)
        return found

    monkeypatch.setattr(subsampled, "sampled_gaussian_noise_multiplier", search)
    return made


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    cached_sampled_multiplier.cache_clear()
    yield tmp_path / "calibrations"
    cached_sampled_multiplier.cache_clear()


def test_a_second_call_uses_the_cache(folder, searches, found):
    for _ in range(2):
        assert cached_sampled_multiplier(**TERMS) == found
        cached_sampled_multiplier.cache_clear()
    assert searches == [{**TERMS, "besides": 0}]
    assert len(list(folder.iterdir())) == 1


@pytest.mark.parametrize("forged", FORGED)
def test_an_invalid_cached_value_is_recomputed(folder, searches, found, forged):
    cached_sampled_multiplier(**TERMS)
    (path,) = folder.iterdir()
    path.write_bytes(forged)
    cached_sampled_multiplier.cache_clear()
    assert cached_sampled_multiplier(**TERMS) == found
    assert len(searches) == 2
    assert json.loads(path.read_text())["noise_multiplier"] == found


@pytest.mark.usefixtures("searches")
def test_a_folder_that_cannot_be_written_is_done_without(folder):
    folder.write_text("a file in its place")
    assert sampled_gaussian_is_private(cached_sampled_multiplier(**TERMS), **TERMS)
