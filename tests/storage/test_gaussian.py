"""Totals of Gaussian releases amount to exactly the epsilon that a closed form says, and never to less."""

import math
from fractions import Fraction

import mpmath
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import optimize, stats

from dpca_tasks.accounting.calibration import CHARGE_UNIT, largest_charge
from dpca_tasks.accounting.gaussian import UNITS, is_private, largest_units, smallest_epsilon, units_of

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


@given(epsilons, deltas)
def test_ledger_and_core_agree_on_the_whole_budget(epsilon: float, delta: float) -> None:
    assert UNITS * CHARGE_UNIT == 1
    assert largest_units(epsilon, delta) == largest_charge(epsilon=epsilon, delta=delta)


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
