"""Exact arithmetic of Gaussian releases: mu squared in whole units, and what (epsilon, delta) it amounts to.

A release of noise multiplier z has ``mu = 1/z``; squares of mu add up, also when each release depends on the answers
before it. A total of u units is (epsilon, delta)-DP exactly when
``Phi(mu/2 - epsilon/mu) - e^epsilon Phi(-mu/2 - epsilon/mu) <= delta`` (Balle and Wang 2018, Theorem 8), evaluated
here to 50 digits, so that neither side of a comparison rests on rounding.

>>> units_of(4.0) == 2**52
True
"""

import math
from fractions import Fraction
from functools import lru_cache
from typing import Any

import numpy as np

UNITS = 2**56
"""Units in a mu squared of 1."""

_DIGITS = 50


def units_of(noise_multiplier: float, count: int = 1) -> int:
    """Return what ``count`` releases of a multiplier are charged, rounded up."""
    return math.ceil(count * UNITS / Fraction(noise_multiplier) ** 2)


def is_private(units: int, *, epsilon: float, delta: float) -> bool:
    """Tell whether a total of units is (epsilon, delta)-DP."""
    import mpmath

    if units <= 0:
        return True
    with mpmath.workdps(_DIGITS):
        return bool(_excess(_mu(units), epsilon=mpmath.mpf(epsilon), delta=delta) <= 0)


@lru_cache(maxsize=256)
def largest_units(epsilon: float, delta: float) -> int:
    """Return the largest total of units that is (epsilon, delta)-DP; 0 when delta is not positive."""
    if not delta > 0:
        return 0
    from dp_accounting import get_sigma_gaussian

    with np.errstate(all="ignore"):  # its search passes through overflow
        guess = _nearer_units(1 / float(get_sigma_gaussian(epsilon, delta)), epsilon=epsilon, delta=delta)
    low, high = guess, guess + 1
    while low > 0 and not is_private(low, epsilon=epsilon, delta=delta):
        low, high = max(0, low - 2 * (high - low)), low
    while is_private(high, epsilon=epsilon, delta=delta):
        low, high = high, high + 2 * (high - low)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if is_private(middle, epsilon=epsilon, delta=delta) else (low, middle)
    return low


@lru_cache(maxsize=256)
def smallest_epsilon(units: int, delta: float) -> float:
    """Return the epsilon of a total of units at delta, rounded up; infinity when delta is not positive."""
    if units <= 0:
        return 0.0
    if not delta > 0:
        return math.inf
    if is_private(units, epsilon=0.0, delta=delta):
        return 0.0
    from dp_accounting import get_epsilon_gaussian

    with np.errstate(all="ignore"):
        guess = _nearer_epsilon(float(get_epsilon_gaussian(math.sqrt(UNITS / units), delta)), units=units, delta=delta)
    low, high = max(0.0, guess - math.ulp(guess)), guess + math.ulp(guess)
    while is_private(units, epsilon=low, delta=delta):
        low, high = max(0.0, low - 2 * (high - low)), low
    while not is_private(units, epsilon=high, delta=delta):
        low, high = high, high + 2 * (high - low)
    while (middle := (low + high) / 2) not in (low, high):
        low, high = (low, middle) if is_private(units, epsilon=middle, delta=delta) else (middle, high)
    return high


def _mu(units: int) -> Any:
    import mpmath

    return mpmath.sqrt(mpmath.mpf(units) / UNITS)


def _excess(mu: Any, *, epsilon: Any, delta: float) -> Any:
    """Return how far the delta of a mu at an epsilon passes another."""
    import mpmath

    left = mpmath.ncdf(mu / 2 - epsilon / mu)
    right = mpmath.exp(epsilon) * mpmath.ncdf(-mu / 2 - epsilon / mu)
    return left - right - mpmath.mpf(delta)


def _nearer_units(mu: float, *, epsilon: float, delta: float) -> int:
    """Take one step of Newton from a mu that is right to a few digits; the slope is ``phi(mu/2 - epsilon/mu)``."""
    import mpmath

    with mpmath.workdps(_DIGITS):
        start, loss = mpmath.mpf(mu), mpmath.mpf(epsilon)
        slope = mpmath.npdf(start / 2 - loss / start)
        nearer = start - _excess(start, epsilon=loss, delta=delta) / slope
        return max(0, int(mpmath.floor(nearer**2 * UNITS)))


def _nearer_epsilon(epsilon: float, *, units: int, delta: float) -> float:
    """Take the same step from an epsilon; the slope is ``-e^epsilon Phi(-mu/2 - epsilon/mu)``."""
    import mpmath

    with mpmath.workdps(_DIGITS):
        mu, start = _mu(units), mpmath.mpf(epsilon)
        slope = -mpmath.exp(start) * mpmath.ncdf(-mu / 2 - start / mu)
        return float(start - _excess(mu, epsilon=start, delta=delta) / slope)
