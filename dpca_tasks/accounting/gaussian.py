"""Exact arithmetic of Gaussian releases: mu squared in whole units, and what (epsilon, delta) it amounts to.

A release of noise multiplier z has ``mu = 1/z``; squares of mu add up, also when each release depends on the answers
before it. A total of u units is (epsilon, delta)-DP exactly when
``Phi(mu/2 - epsilon/mu) - e^epsilon Phi(-mu/2 - epsilon/mu) <= delta`` (Balle and Wang 2018, Theorem 8), evaluated
here to 30 digits, and to 60 where the two sides are too close for these to tell, so that no comparison rests on
rounding. Mechanisms are calibrated and budgets are
charged by the same search.

>>> units_of(4.0) == 2**52
True
>>> multiplier_of(2**52)
4.0
"""

import math
from fractions import Fraction
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

UNITS = 2**56
"""Units in a mu squared of 1."""

_DIGITS, _MORE_DIGITS = 30, 60
_ROUNDING = 1e-26  # of a term to 30 digits, for each unit of its condition: ten thousand times what is lost
_LARGEST_FLOAT_EPSILON, _LEAST_FLOAT_MU = 300.0, 1e-6  # between them floats tell the two sides of the condition apart
_HALF_ROOT = math.sqrt(0.5)
_MOST_STEPS, _SETTLED = 60, 1e-13


def units_of(noise_multiplier: float, count: int = 1) -> int:
    """Return what ``count`` releases of a multiplier are charged, rounded up."""
    return math.ceil(count * UNITS / Fraction(noise_multiplier) ** 2)


def multiplier_of(units: int, *, releases: int = 1) -> float:
    """Return the smallest float multiplier of which so many releases are charged at most ``units``."""
    square = Fraction(releases * UNITS, units)
    multiplier = math.nextafter(math.sqrt(square), 0.0)
    while Fraction(multiplier) ** 2 < square:
        multiplier = math.nextafter(multiplier, math.inf)
    return multiplier


def is_private(units: int | Fraction, *, epsilon: float, delta: float) -> bool:
    """Tell whether a total of units, perhaps no whole number, is (epsilon, delta)-DP."""
    import mpmath

    if units <= 0:
        return True
    with mpmath.workdps(_DIGITS):
        mu, loss = _mu(units), mpmath.mpf(epsilon)
        left, right = _terms(mu, epsilon=loss)
        excess = left - right - delta
        condition = 1 + loss + (mu / 2 + loss / mu) ** 2  # a tail at x has x^2, e^epsilon has epsilon
        if abs(excess) > _ROUNDING * condition * (left + right + delta):
            return bool(excess <= 0)
    with mpmath.workdps(_MORE_DIGITS):
        return bool(_excess(_mu(units), epsilon=mpmath.mpf(epsilon), delta=delta) <= 0)


@lru_cache(maxsize=256)
def largest_units(epsilon: float, delta: float) -> int:
    """Return the largest total of units that is (epsilon, delta)-DP; 0 when delta is not positive."""
    if not delta > 0:
        return 0
    guess = _nearer_units(_rough_mu(epsilon, delta), epsilon=epsilon, delta=delta)
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
    rough = float(float_epsilons(np.array([units / UNITS]), np.array([delta]))[0])
    if not math.isfinite(rough):
        if is_private(units, epsilon=0.0, delta=delta):
            return 0.0
        rough = _rough_epsilon(units, delta)
    guess = max(math.ulp(0.0), _nearer_epsilon(rough, units=units, delta=delta))
    low, high = math.nextafter(guess, 0.0), guess
    while is_private(units, epsilon=low, delta=delta):
        if low == 0.0:
            return 0.0
        low, high = max(0.0, low - 2 * (high - low)), low
    while not is_private(units, epsilon=high, delta=delta):
        low, high = high, high + 2 * (high - low)
    while (middle := (low + high) / 2) not in (low, high):
        low, high = (low, middle) if is_private(units, epsilon=middle, delta=delta) else (middle, high)
    return high


def epsilon_at_most(noise_multiplier: float, *, delta: float, releases: int) -> float:
    """Return an epsilon that releases of a multiplier keep at delta: the float found for it, moved up until it does."""
    from dp_accounting import get_epsilon_gaussian  # slow to import

    units = releases * UNITS / Fraction(noise_multiplier) ** 2
    with np.errstate(all="ignore"):  # its search passes through overflow
        epsilon = float(get_epsilon_gaussian(noise_multiplier / math.sqrt(releases), delta))
    step = math.ulp(epsilon)
    while not is_private(units, epsilon=epsilon, delta=delta):
        epsilon += step
        step *= 2
    return epsilon


def float_epsilons(squares: NDArray[np.float64], deltas: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the epsilons of many mu squared at their deltas, to a few ulps of 1 + epsilon; NaN where floats fail.

    Notes
    -----
    Newton's method on the logarithm of delta, which is concave in epsilon, from above: ``mu^2 / 2 + mu sqrt(2 ln
    (1 / delta))`` is never less than the root, and so is no iterate.
    """
    with np.errstate(all="ignore"):
        mu = np.sqrt(squares)
        epsilons = squares / 2.0 + mu * np.sqrt(-2.0 * np.log(deltas))
        for _ in range(_MOST_STEPS):
            likely = _normal_tails(epsilons / mu - mu / 2.0)
            other = np.exp(epsilons) * _normal_tails(epsilons / mu + mu / 2.0)
            steps = np.log((likely - other) / deltas) * (likely - other) / other
            epsilons = epsilons + steps
            if not (np.abs(steps) > _SETTLED * (1.0 + epsilons)).any():
                break
        return np.where(
            (epsilons > 0.0) & (epsilons < _LARGEST_FLOAT_EPSILON) & (mu > _LEAST_FLOAT_MU), epsilons, np.nan
        )


def _normal_tails(bounds: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.fromiter(map(_normal_tail, bounds.tolist()), np.float64, bounds.size)


def _normal_tail(bound: float) -> float:
    return 0.5 * math.erfc(bound * _HALF_ROOT)


def _rough_epsilon(units: int, delta: float) -> float:
    """Return an epsilon that is right to a few digits, where floats fail."""
    from dp_accounting import get_epsilon_gaussian

    with np.errstate(all="ignore"):  # its search passes through overflow
        return float(get_epsilon_gaussian(math.sqrt(UNITS / units), delta))


def _rough_mu(epsilon: float, delta: float) -> float:
    """Return a mu that is right to a few digits."""
    low, high = _LEAST_FLOAT_MU, 2.0 * math.sqrt(_LARGEST_FLOAT_EPSILON)
    while epsilon < _LARGEST_FLOAT_EPSILON and high - low > 1e-12 * high:
        middle = math.sqrt(low * high)
        likely, other = (_normal_tail(epsilon / middle + half) for half in (-middle / 2.0, middle / 2.0))
        low, high = (low, middle) if likely - math.exp(epsilon) * other > delta else (middle, high)
    if low > 2.0 * _LEAST_FLOAT_MU:
        return low
    from dp_accounting import get_sigma_gaussian

    with np.errstate(all="ignore"):
        return 1.0 / float(get_sigma_gaussian(epsilon, delta))


def _mu(units: int | Fraction) -> Any:
    import mpmath

    return mpmath.sqrt(mpmath.mpf(units.numerator) / (units.denominator * UNITS))


def _excess(mu: Any, *, epsilon: Any, delta: float) -> Any:
    """Return how far the delta of a mu at an epsilon passes another."""
    left, right = _terms(mu, epsilon=epsilon)
    return left - right - delta


def _terms(mu: Any, *, epsilon: Any) -> tuple[Any, Any]:
    """Return the two terms whose difference is the delta of a mu at an epsilon."""
    import mpmath

    likely, other = (mpmath.erfc((epsilon / mu + half) / mpmath.sqrt(2)) / 2 for half in (-mu / 2, mu / 2))
    return likely, mpmath.exp(epsilon) * other


def _nearer_units(mu: float, *, epsilon: float, delta: float) -> int:
    """Take one step of Newton from a mu that is right to a few digits; the slope is ``phi(mu/2 - epsilon/mu)``."""
    import mpmath

    with mpmath.workdps(_DIGITS):
        start, loss = mpmath.mpf(mu), mpmath.mpf(epsilon)
        slope = mpmath.npdf(start / 2 - loss / start)
        nearer = start - _excess(start, epsilon=loss, delta=delta) / slope
        return max(0, int(mpmath.floor(nearer**2 * UNITS)))


def _nearer_epsilon(epsilon: float, *, units: int, delta: float) -> float:
    """Take the same step from an epsilon; the slope is ``-e^epsilon Phi(-mu/2 - epsilon/mu)``.

    Rounded up it is most often large enough at once; the search decides.
    """
    import mpmath

    with mpmath.workdps(_DIGITS):
        start = mpmath.mpf(epsilon)
        left, right = _terms(_mu(units), epsilon=start)
        exact = start + (left - right - delta) / right
        nearer = float(exact)
        return nearer if nearer >= exact else math.nextafter(nearer, math.inf)
