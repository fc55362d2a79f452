"""Totals of Gaussian releases amount to exactly the epsilon that a closed form says, and never to less."""

import math
from fractions import Fraction

import mpmath
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from scipy import optimize, stats

from dpca_tasks.accounting.calibration import gaussian_epsilon, gaussian_noise_multiplier
from dpca_tasks.accounting.gaussian import UNITS, is_private, largest_units, multiplier_of, smallest_epsilon, units_of

epsilons = st.floats(1e-3, 50)
deltas = st.sampled_from([1e-12, 1e-9, 1e-6, 1e-5, 1e-3, 0.1])


def exact_epsilon(mu: float, delta: float) -> float:
    """Return epsilon of mu-GDP by scipy's normal law and root finder."""

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
    """Evaluate the condition to as many digits as no rounding can touch, whatever the program does."""
    with mpmath.workdps(120):
        mu, loss = mpmath.sqrt(mpmath.mpf(units) / UNITS), mpmath.mpf(epsilon)
        right = mpmath.exp(loss) * mpmath.ncdf(-mu / 2 - loss / mu)
        return bool(mpmath.ncdf(mu / 2 - loss / mu) - right <= mpmath.mpf(delta))


@given(st.floats(1e-6, 2000), st.floats(1e-300, 0.5), st.integers(-2, 2))
@example(epsilon=1e-6, delta=0.5, beside=1)
@example(epsilon=2000.0, delta=1e-300, beside=1)
def test_beside_the_largest_total_every_answer_is_that_of_many_digits(
    epsilon: float, delta: float, beside: int
) -> None:
    units = largest_units(epsilon, delta) + beside
    if units > 0:
        expected = is_private_by_many_digits(units, epsilon=epsilon, delta=delta)
        assert is_private(units, epsilon=epsilon, delta=delta) == expected == (beside <= 0)


@given(st.integers(1, 2**70), st.floats(1e-30, 0.5), st.integers(-2, 2))
def test_beside_the_smallest_epsilon_every_answer_is_that_of_many_digits(units: int, delta: float, beside: int) -> None:
    least = smallest_epsilon(units, delta)
    epsilon = least + beside * math.ulp(least)
    if epsilon > 0:
        expected = is_private_by_many_digits(units, epsilon=epsilon, delta=delta)
        assert is_private(units, epsilon=epsilon, delta=delta) == expected == (beside >= 0)


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
"""Epsilon, delta, the largest total of units; multipliers of one release, and of seven with 3/5 of mu squared."""

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
"""A multiplier, delta, releases, and the least epsilon of what they are charged."""


@pytest.mark.parametrize(("epsilon", "delta", "units", "one", "seven"), BUDGETS)
def test_a_budget_and_its_noise_never_change(
    epsilon: float, delta: float, units: int, one: float, seven: float
) -> None:
    assert largest_units(epsilon, delta) == units
    assert gaussian_noise_multiplier(epsilon=epsilon, delta=delta) == one == multiplier_of(units)
    share = Fraction(3, 5)
    assert gaussian_noise_multiplier(epsilon=epsilon, delta=delta, releases=7, share=share) == seven


@pytest.mark.parametrize(("multiplier", "delta", "releases", "least"), EPSILONS)
def test_what_releases_amount_to_never_changes(multiplier: float, delta: float, releases: int, least: float) -> None:
    assert smallest_epsilon(units_of(multiplier, releases), delta) == least
    stated = gaussian_epsilon(noise_multiplier=multiplier, delta=delta, releases=releases)
    assert least * (1 - 1e-12) <= stated <= least * (1 + 1e-11)


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


def test_privacy_is_the_integral_that_defines_it() -> None:
    mu, epsilon = 0.7, 1.1
    with mpmath.workdps(30):
        lost = mpmath.quad(
            lambda x: mpmath.npdf(x, mu) - mpmath.exp(epsilon) * mpmath.npdf(x), [epsilon / mu + mu / 2, 10, 40]
        )
    units = math.ceil(Fraction(mu) ** 2 * UNITS)
    assert is_private(units, epsilon=epsilon, delta=float(lost) * (1 + 1e-12))
    assert not is_private(units, epsilon=epsilon, delta=float(lost) * (1 - 1e-12))


def test_the_edges() -> None:
    assert largest_units(1.0, 0.0) == 0
    assert smallest_epsilon(0, 1e-6) == 0
    assert smallest_epsilon(0, 0.0) == 0
    assert smallest_epsilon(1, 0.0) == math.inf
    assert smallest_epsilon(1, 1e-6) == 0, "so little that delta alone covers it"
