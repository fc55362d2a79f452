"""Calibration of noise multipliers and score ranges to (epsilon, delta), never rounded down.

*Gaussian noise.* A release of noise multiplier z has ``mu = 1/z``. Squares of mu add up, even when each release depends
on earlier answers. Budgets are kept in whole units of mu squared. A total of u units is (epsilon, delta)-DP exactly
when ``Phi(mu/2 - epsilon/mu) - e^epsilon Phi(-mu/2 - epsilon/mu) <= delta`` (Balle and Wang 2018, Theorem 8). Both
sides are computed to 30 digits, and to 60 where 30 do not decide, so no comparison depends on rounding. A multiplier is
the least one whose charge fits the requested units of the budget. So a request for the whole budget succeeds and uses
it up.

>>> units_of(4.0) == 2**52
True
>>> multiplier_of(2**52)
4.0
>>> round(gaussian_noise_multiplier(epsilon=1.0, delta=1e-6), 6)
4.224679

*Shares of noise.* The sum of several discrete Gaussian shares on the integers has the guarantee of a Gaussian of
slightly smaller variance.

>>> round(shares_mu(sensitivity=5.0, shares=1, squared_scale=36), 4)
1.118
>>> shares_squared_scale(sensitivity=1000.0, shares=7, mu=0.25) * 7 >= (1000.0 / 0.25) ** 2
True

*Pure mechanisms.* The multipliers of Laplace and Wishart noise are reciprocals of epsilon, rounded up.

*Exponential mechanisms.* A draw has density proportional to ``exp(score / scale)``. Suppose that one record moves all
scores at once, by amounts within an interval of length ``r scale``. Then the privacy loss lies in an interval of length
r that contains 0. Such a *bounded range* r is epsilon-DP for ``r <= epsilon``, and more precisely:

- *One draw.* By convexity the worst law of a loss in ``[t - r, t]`` is supported on the two ends of the interval. Its
  likelihood ratio has mean 1. The worst t is ``(epsilon + r) / 2``. So a draw is (epsilon, delta)-DP exactly when
  ``r <= epsilon`` or ``(1 - e^((epsilon - r) / 2))^2 <= delta (1 - e^-r)``.
- *Renyi divergence.* For the loss L under the law of the other neighbour, ``K(a) = log E e^(a L)`` vanishes at 0 and 1.
  ``K''`` is the variance of a law on an interval of length r, at most ``r^2 / 4``. So ``K(a) <= a (a - 1) r^2 / 8``
  for ``a > 1``: a draw is ``r^2 / 8``-zCDP. Divergences of adaptively chosen draws add up.

>>> round(largest_range(epsilon=1.0, delta=1e-3), 4)
1.0517
>>> largest_range(epsilon=1.0, delta=0.0, draws=4)
0.25

References
----------
Balle and Wang (2018), Improving the Gaussian mechanism for differential privacy. McSherry and Talwar (2007), Mechanism
design via differential privacy. Dong, Durfee and Rogers (2020), Optimal differential privacy composition for
exponential mechanisms. Cesar and Rogers (2021), Bounding, concentrating, and truncating: the bound on the divergence.
Canonne, Kamath and Steinke (2020), Proposition 12: from divergence to delta.
"""

import math
from collections.abc import Callable
from fractions import Fraction
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dpca_tasks.accounting.events import float_up
from dpca_tasks.errors import InvalidInput

if TYPE_CHECKING:
    from mpmath import mpf

UNITS = 2**56
"""Units that represent a mu squared of 1."""

_DIGITS, _MORE_DIGITS = 30, 60
_ROUNDING = 1e-26  # of a term to 30 digits, per unit of its condition number: ten thousand times the actual loss
_LARGEST_FLOAT_EPSILON, _LEAST_FLOAT_MU = 300.0, 1e-6  # within these limits floats resolve both sides of the condition
_HALF_ROOT = math.sqrt(0.5)
_MOST_STEPS, _SETTLED = 60, 1e-13


def units_of(noise_multiplier: float, count: int = 1) -> int:
    """Return the charge in units, rounded up, of ``count`` releases with a noise multiplier."""
    return math.ceil(count * UNITS / Fraction(noise_multiplier) ** 2)


def multiplier_of(units: int, *, releases: int = 1) -> float:
    """Return the smallest float multiplier for which ``releases`` releases are charged at most ``units``."""
    square = Fraction(releases * UNITS, units)
    multiplier = math.nextafter(math.sqrt(square), 0.0)
    while Fraction(multiplier) ** 2 < square:
        multiplier = math.nextafter(multiplier, math.inf)
    return multiplier


def is_private(units: int | Fraction, *, epsilon: float, delta: float) -> bool:
    """Return whether a total of units, possibly fractional, is (epsilon, delta)-DP."""
    import mpmath

    if units <= 0:
        return True
    with mpmath.workdps(_DIGITS):
        mu, loss = _mu(units), mpmath.mpf(epsilon)
        left, right = _terms(mu, epsilon=loss)
        excess = left - right - delta
        condition = 1 + loss + (mu / 2 + loss / mu) ** 2  # a tail at x contributes x^2, e^epsilon contributes epsilon
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
    """Return the epsilon of a total of units at delta, rounded up; infinity if delta is not positive."""
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
    """Return an epsilon that releases of a multiplier satisfy at delta: a float estimate, increased until it holds."""
    from dp_accounting import get_epsilon_gaussian  # slow to import

    units = releases * UNITS / Fraction(noise_multiplier) ** 2
    with np.errstate(all="ignore"):  # the search passes through overflow
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
    Newton's method is applied to the logarithm of delta, which is concave in epsilon. It starts from above at
    ``mu^2 / 2 + mu sqrt(2 ln (1 / delta))``, which is never less than the root. Hence no iterate is less than the root.
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
    """Return an epsilon that is accurate to a few digits, for arguments where floats fail."""
    from dp_accounting import get_epsilon_gaussian

    with np.errstate(all="ignore"):  # the search passes through overflow
        return float(get_epsilon_gaussian(math.sqrt(UNITS / units), delta))


def _rough_mu(epsilon: float, delta: float) -> float:
    """Return a mu that is accurate to a few digits."""
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
    """Return by how much the delta of a mu at an epsilon exceeds ``delta``."""
    left, right = _terms(mu, epsilon=epsilon)
    return left - right - delta


def _terms(mu: Any, *, epsilon: Any) -> tuple[Any, Any]:
    """Return the two terms whose difference is the delta of a mu at an epsilon."""
    import mpmath

    likely, other = (mpmath.erfc((epsilon / mu + half) / mpmath.sqrt(2)) / 2 for half in (-mu / 2, mu / 2))
    return likely, mpmath.exp(epsilon) * other


def _nearer_units(mu: float, *, epsilon: float, delta: float) -> int:
    """Take one Newton step from a mu accurate to a few digits; the slope is ``phi(mu/2 - epsilon/mu)``."""
    import mpmath

    with mpmath.workdps(_DIGITS):
        start, loss = mpmath.mpf(mu), mpmath.mpf(epsilon)
        slope = mpmath.npdf(start / 2 - loss / start)
        nearer = start - _excess(start, epsilon=loss, delta=delta) / slope
        return max(0, int(mpmath.floor(nearer**2 * UNITS)))


def _nearer_epsilon(epsilon: float, *, units: int, delta: float) -> float:
    """Take one Newton step from an epsilon; the slope is ``-e^epsilon Phi(-mu/2 - epsilon/mu)``.

    The result, rounded up, is usually large enough already; the search that follows decides.
    """
    import mpmath

    with mpmath.workdps(_DIGITS):
        start = mpmath.mpf(epsilon)
        left, right = _terms(_mu(units), epsilon=start)
        exact = start + (left - right - delta) / right
        nearer = float(exact)
        return nearer if nearer >= exact else math.nextafter(nearer, math.inf)


_SMALLEST = 1e-6
_LARGEST_EPSILON = 1e9


def gaussian_noise_multiplier(
    *, epsilon: float, delta: float, releases: int = 1, share: Fraction = Fraction(1)
) -> float:
    """Return the noise multiplier of each of several Gaussian releases that together are (epsilon, delta)-DP.

    Parameters
    ----------
    epsilon, delta : float
        The guarantee of all releases together.
    releases : int
        The number of releases; each may depend on earlier answers.
    share : Fraction
        The part of mu^2 that these releases take. The shares of all releases under one guarantee may add up to 1.

    Returns
    -------
    float
        The least float ``z`` with ``releases / z**2 <= floor(share * largest_units(...)) / UNITS`` in exact arithmetic.

    Raises
    ------
    InvalidInput
        If an argument is outside its domain, or epsilon is so small that the multiplier would exceed 2**28.
    """
    check_guarantee(epsilon=epsilon, delta=delta)
    check_count("releases", releases)
    largest = largest_units(epsilon, delta)
    if largest == 0:
        raise InvalidInput(
            f"epsilon={epsilon} at delta={delta} must allow a noise multiplier of at most 2**28; use a larger epsilon"
        )
    units = math.floor(share * largest)
    if not (0 < share <= 1 and units > 0):
        raise InvalidInput(f"share={share} must be in (0, 1] and leave a charge; use a larger epsilon or share")
    return multiplier_of(units, releases=releases)


def gaussian_epsilon(*, noise_multiplier: float, delta: float, releases: int = 1) -> float:
    """Return the epsilon at delta of Gaussian releases of one multiplier, rounded up."""
    if not (math.isfinite(noise_multiplier) and noise_multiplier >= _SMALLEST):
        raise InvalidInput(
            f"noise_multiplier={noise_multiplier} must be finite and at least {_SMALLEST}; "
            "pass std divided by sensitivity"
        )
    check_guarantee(delta=delta)
    check_count("releases", releases)
    return epsilon_at_most(noise_multiplier, delta=delta, releases=releases)


def check_guarantee(*, epsilon: float = 1.0, delta: float = 0.5) -> None:
    """Check that epsilon and delta are in their domains."""
    if not 0 < epsilon <= _LARGEST_EPSILON:
        raise InvalidInput(
            f"epsilon={epsilon} must be positive and at most {_LARGEST_EPSILON:g}; choose how much privacy to spend"
        )
    if not 0 < delta < 1:
        raise InvalidInput(f"delta={delta} must be in (0, 1); choose one below 1 over the number of records")


def check_count(name: str, value: int) -> None:
    """Check that a value is a positive whole number."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise InvalidInput(f"{name}={value!r} must be a positive int; pass how many are planned")


ROUNDING = 16.0
"""Squared parameter of the randomised rounding that a discrete Gaussian contains."""
_UP = 1.0 + 2.0**-48


def shares_mu(*, sensitivity: float, shares: int, squared_scale: float, least_weight: float = 1.0) -> float:
    r"""Return mu, rounded up, such that the sum of integers and of H discrete Gaussian shares is mu-GDP.

    Parameters
    ----------
    sensitivity : float, steps
        How far one record moves the integers, in the l2 norm of isometric coordinates: the norm after each coordinate
        is divided by its weight.
    shares : int
        The number H of honest shares, unknown to every other party.
    squared_scale : float
        The parameter ``s^2`` of a share where the weight is 1; a coordinate of weight w has ``w^2 s^2``.
    least_weight : float
        The least weight of a coordinate, at most 1.

    Notes
    -----
    Proof. (1) For a shift c, ``sum over integers k of exp(-(k - c)^2 / (2 r^2))`` is the same for all c up to a factor
    ``1 + 4 exp(-2 pi^2 r^2)`` by Poisson summation. For r = 4 this factor is below ``1 + 1e-136``. (2) Round a real y
    at random to the integer x with probability proportional to ``exp(-(x - y)^2 / (2 r^2))``. Up to the factor of (1),
    this turns ``N(m, V - r^2)``, m an integer, into the discrete Gaussian of parameter V around m: integrate the
    product of both densities over y. (3) H discrete Gaussians of parameter ``w^2 s^2`` add up to one of ``H w^2 s^2``,
    up to a factor ``1 +- tau`` with ``tau = 10 sum_{k < H} exp(-2 pi^2 w^2 s^2 k / (k + 1))``. It is below ``1e-67 H``
    where ``s w >= 4`` (Kairouz, Liu and Steinke, 2021). (4) Hence the sum is post-processing of Gaussians of variance
    ``H w^2 s^2 - 16`` around the same integers. After division by its weight each coordinate has variance at least
    ``H s^2 - 16 / w_min^2``, and the shift has norm at most Delta. This is a Gaussian release of
    ``mu = Delta / sqrt(H s^2 - 16 / w_min^2)``. The factors change the probability of any event of p coordinates by
    less than ``1e-66 p H``; for every delta above 1e-40, mu is rounded up by far more.
    """
    _check(shares, least_weight)
    own = squared_scale * least_weight**2
    if own < ROUNDING or shares * own <= ROUNDING:
        raise InvalidInput(
            f"squared_scale={squared_scale} must be at least 16 / least_weight^2, and above it for one share: a sum of "
            "smaller shares is not discrete Gaussian; use a finer grid or more noise."
        )
    return sensitivity / math.sqrt(shares * squared_scale - ROUNDING / least_weight**2) * _UP


def shares_squared_scale(*, sensitivity: float, shares: int, mu: float, least_weight: float = 1.0) -> int:
    """Return the least even ``s^2`` for which H shares are mu-GDP; it is even so that half of it is an integer too.

    Parameters
    ----------
    sensitivity, shares, least_weight
        As for `shares_mu`.
    mu : float
        The guarantee of the sum.
    """
    _check(shares, least_weight)
    if not (mu > 0 and math.isfinite(mu)):
        raise InvalidInput(f"mu={mu!r} must be positive and finite; 0.27 is about epsilon 1 at delta 1e-5.")
    rounding = ROUNDING / least_weight**2
    needed = ((sensitivity / mu) ** 2 * _UP + rounding) / shares
    scale = 2 * math.ceil(max(needed, rounding) / 2)
    terms = {"sensitivity": sensitivity, "shares": shares, "least_weight": least_weight}
    while shares * scale <= rounding or shares_mu(**terms, squared_scale=scale) > mu:  # type: ignore[arg-type]
        scale += 2 * max(1, scale >> 49)  # beyond 2^50, a step large enough to change a float
    return scale


def _check(shares: int, least_weight: float) -> None:
    if shares < 1:
        raise InvalidInput(f"shares={shares} must be at least 1: the noise of one honest site must remain unknown.")
    if not 0 < least_weight <= 1:
        raise InvalidInput(f"least_weight={least_weight!r} must be above 0 and at most 1; it is a share of a norm.")


_LARGEST_MULTIPLIER = 2**28  # beyond it a release costs less than one unit


def laplace_noise_multiplier(*, epsilon: float) -> float:
    """Return the epsilon-DP Laplace scale over L1 sensitivity: ``1 / epsilon``, rounded up."""
    check_guarantee(epsilon=epsilon)
    return _reciprocal_up(epsilon, 1)


def wishart_noise_multiplier(*, epsilon: float) -> float:
    """Return the scale c of symmetrised Wishart noise over sensitivity: ``1 / (2 epsilon)``, rounded up.

    The sensitivity is in the nuclear norm: 1 for a record added, removed or emptied, 2 for a replaced record.
    """
    check_guarantee(epsilon=epsilon)
    return _reciprocal_up(epsilon, 2)


def _reciprocal_up(epsilon: float, factor: int) -> float:
    value = factor * Fraction(epsilon)
    if value * _LARGEST_MULTIPLIER < 1:
        raise InvalidInput(f"epsilon={epsilon} must allow a noise multiplier of at most 2**28; use a larger epsilon")
    return float_up(1 / value)


_LEAST_RANGE = 2.0**-28
_RANGE_DIGITS = 60
_ORDERS = tuple(1.0 + 2.0 ** (step / 8) for step in range(-80, 321))


@cache
def largest_range(*, epsilon: float, delta: float, draws: int = 1) -> float:
    """Return the largest range of each of several draws that together satisfy a guarantee.

    Parameters
    ----------
    epsilon, delta : float
        The guarantee of all draws together; delta 0 is pure.
    draws : int
        The number of draws; each may depend on earlier ones.

    Returns
    -------
    float
        The better of two bounds. In the first, every draw is (epsilon, delta) / draws-DP by the exact condition. In the
        second, the draws together are ``draws r^2 / 8``-zCDP, converted at the best of many orders. Rounded down: the
        condition was checked with 60 digits for the returned number.

    Raises
    ------
    InvalidInput
        If an argument is outside its domain, or the range would be below 2**-28.
    """
    if not (0 < epsilon <= _LARGEST_EPSILON and 0 <= delta < 1 and draws >= 1):
        raise InvalidInput(
            f"epsilon={epsilon} must be positive and at most {_LARGEST_EPSILON:g}, delta={delta} in [0, 1) and "
            f"draws={draws} at least 1; choose how much privacy to spend."
        )
    found = _one_by_one(epsilon, delta, draws)
    if delta > 0 and draws > 1:
        found = max(found, _together(epsilon, delta, draws))
    if found < _LEAST_RANGE:
        raise InvalidInput(f"epsilon={epsilon} must allow a range of at least 2**-28 per draw; use a larger epsilon.")
    return found


def _one_by_one(epsilon: float, delta: float, draws: int) -> float:
    """Solve the exact condition of one draw, a quadratic equation in ``e^(r / 2)``, for its share of the guarantee."""
    from mpmath import mp

    with mp.workdps(_RANGE_DIGITS):
        loss, failure = mp.mpf(epsilon) / draws, mp.mpf(delta) / draws
        half = mp.exp(loss / 2)
        root = 2 * mp.log((half + mp.sqrt(failure * (half**2 - 1 + failure))) / (1 - failure))

        def holds(found: "mpf") -> bool:
            return bool(found <= loss or (1 - mp.exp((loss - found) / 2)) ** 2 <= failure * (1 - mp.exp(-found)))

        return _down(root, holds)


def _together(epsilon: float, delta: float, draws: int) -> float:
    """Solve the conversion of the draws' total divergence at the order that allows the largest range."""
    from mpmath import mp

    with mp.workdps(_RANGE_DIGITS):

        def allowed(order: float) -> "mpf":
            above = mp.mpf(order) - 1
            slack = mp.log(mp.mpf(delta)) + mp.log(above) - order * mp.log1p(-1 / mp.mpf(order))
            return (slack / above + mp.mpf(epsilon)) / order

        rho = max(map(allowed, _ORDERS))
        return _down(mp.sqrt(8 * rho / draws), lambda found: draws * found**2 <= 8 * rho) if rho > 0 else 0.0


def _down(root: "mpf", holds: "Callable[[mpf], bool]") -> float:
    """Return the largest float at or below a root for which a condition holds."""
    from mpmath import mp

    found = float(root)
    while found > 0 and not holds(mp.mpf(found)):
        found = math.nextafter(found, 0.0)
    return found
