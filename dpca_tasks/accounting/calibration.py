"""Calibration of noise to (epsilon, delta); rounding never gives less noise than the guarantee requires.

*Gaussian noise.* A Gaussian release with the noise multiplier z (std over sensitivity) is mu-GDP for ``mu = 1/z``. In
composition the ``mu^2`` add up, even when each release depends on earlier answers. Budgets and charges are therefore
whole numbers of *units* of ``mu^2``; `UNITS` units are a ``mu^2`` of 1. A total with this mu is (epsilon, delta)-DP
exactly when ``Phi(mu/2 - epsilon/mu) - e^epsilon Phi(-mu/2 - epsilon/mu) <= delta`` (Balle and Wang 2018, Theorem 8).
Both sides are computed to 30 digits, or to 60 digits if 30 do not decide the comparison. So no comparison depends on
rounding. The calibrated multiplier is the least multiplier whose charge is at most the requested number of units. So a
request for the whole budget succeeds, and spends the whole budget.

>>> units_of(4.0) == 2**52
True
>>> multiplier_of(2**52)
4.0
>>> round(gaussian_noise_multiplier(epsilon=1.0, delta=1e-6), 6)
4.224679

*Shares of noise.* Several sites may each add discrete Gaussian noise on the integers, a share of the total noise. The
sum of these shares has the guarantee of continuous Gaussian noise of slightly smaller variance.

>>> round(shares_mu(sensitivity=5.0, shares=1, squared_scale=36), 4)
1.118
>>> shares_squared_scale(sensitivity=1000.0, shares=7, mu=0.25) * 7 >= (1000.0 / 0.25) ** 2
True

*Pure mechanisms.* The noise multipliers of Laplace and Wishart noise are proportional to ``1 / epsilon``, rounded up.

*Exponential mechanisms.* The mechanism draws an output with density proportional to ``exp(score / scale)``. Suppose
that a change of one record changes the scores of all outputs by amounts within one interval of length ``r scale``. Then
the privacy loss lies in an interval of length r that contains 0. Such a draw has the *bounded range* r. It is
epsilon-DP for ``r <= epsilon``. More precisely:

- *One draw.* By convexity, the worst distribution of a loss in ``[t - r, t]`` is supported on both ends of the
  interval. The mean likelihood ratio is 1, which fixes the two probabilities. The worst t is ``(epsilon + r) / 2``. So
  a draw is (epsilon, delta)-DP exactly when ``r <= epsilon`` or
  ``(1 - e^((epsilon - r) / 2))^2 <= delta (1 - e^-r)``.
- *Renyi divergence.* Let L be the loss under the output distribution of the other neighbor. Then
  ``K(a) = log E e^(a L)`` is 0 at ``a = 0`` and at ``a = 1``. The second derivative ``K''`` is the variance of a
  distribution on an interval of length r, so it is at most ``r^2 / 4``. Hence ``K(a) <= a (a - 1) r^2 / 8`` for
  ``a > 1``: a draw is ``r^2 / 8``-zCDP. The divergences of adaptively chosen draws add up.

>>> round(largest_range(epsilon=1.0, delta=1e-3), 4)
1.0517
>>> largest_range(epsilon=1.0, delta=0.0, draws=4)
0.25

References
----------
Balle and Wang (2018), Improving the Gaussian mechanism for differential privacy. McSherry and Talwar (2007), Mechanism
design via differential privacy. Dong, Durfee and Rogers (2020), Optimal differential privacy composition for
exponential mechanisms. Cesar and Rogers (2021), Bounding, concentrating, and truncating (the bound on the divergence).
Canonne, Kamath and Steinke (2020), Proposition 12 (the conversion of a divergence to delta).
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
"""Number of units (the integers in which mu squared is counted) in a mu squared of 1."""

_DIGITS, _MORE_DIGITS = 30, 60
_ROUNDING = 1e-26  # bound on the relative error of a 30-digit term, divided by its condition number
_LARGEST_FLOAT_EPSILON, _LEAST_FLOAT_MU = 300.0, 1e-6  # limits within which float64 can evaluate the DP condition
_HALF_ROOT = math.sqrt(0.5)
_MOST_STEPS, _SETTLED = 60, 1e-13


def units_of(noise_multiplier: float, count: int = 1) -> int:
    """Return the sum of mu squared (GDP) over ``count`` Gaussian releases, in units of ``1 / UNITS``, rounded up."""
    return math.ceil(count * UNITS / Fraction(noise_multiplier) ** 2)


def multiplier_of(units: int, *, releases: int = 1) -> float:
    """Return the least noise multiplier with which ``releases`` Gaussian releases cost at most ``units`` together."""
    square = Fraction(releases * UNITS, units)
    multiplier = math.nextafter(math.sqrt(square), 0.0)
    while Fraction(multiplier) ** 2 < square:
        multiplier = math.nextafter(multiplier, math.inf)
    return multiplier


def is_private(units: int | Fraction, *, epsilon: float, delta: float) -> bool:
    """Return whether Gaussian releases are (epsilon, delta)-DP, given the sum of their mu squared (GDP) in `UNITS`."""
    import mpmath

    if units <= 0:
        return True
    with mpmath.workdps(_DIGITS):
        mu, loss = _mu(units), mpmath.mpf(epsilon)
        left, right = _terms(mu, epsilon=loss)
        excess = left - right - delta
        condition = 1 + loss + (mu / 2 + loss / mu) ** 2  # condition number: x^2 for a tail at x, epsilon for e^epsilon
        if abs(excess) > _ROUNDING * condition * (left + right + delta):
            return bool(excess <= 0)
    with mpmath.workdps(_MORE_DIGITS):
        return bool(_excess(_mu(units), epsilon=mpmath.mpf(epsilon), delta=delta) <= 0)


@lru_cache(maxsize=256)
def largest_units(epsilon: float, delta: float) -> int:
    """Return the largest mu squared, in `UNITS`, with which mu-GDP is (epsilon, delta)-DP; 0 if delta is 0 or less."""
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
    """Return the epsilon at delta of mu-GDP, rounded up, for a mu squared of ``units`` (in `UNITS`).

    The result is infinity if delta is not positive.
    """
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
    """Return an epsilon at delta that ``releases`` Gaussian releases with the same noise multiplier satisfy together.

    A float estimate is increased until the exact condition holds, so the result may exceed the least such epsilon by a
    few ulps.
    """
    from dp_accounting import get_epsilon_gaussian  # slow to import

    units = releases * UNITS / Fraction(noise_multiplier) ** 2
    with np.errstate(all="ignore"):  # the search for epsilon evaluates numbers that overflow
        epsilon = float(get_epsilon_gaussian(noise_multiplier / math.sqrt(releases), delta))
    step = math.ulp(epsilon)
    while not is_private(units, epsilon=epsilon, delta=delta):
        epsilon += step
        step *= 2
    return epsilon


def float_epsilons(squares: NDArray[np.float64], deltas: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return, for each pair of a mu squared and a delta, the epsilon of mu-GDP at this delta, computed in float64.

    The error is a few ulps of ``1 + epsilon``. The result is NaN where float64 cannot resolve the condition.

    Notes
    -----
    Newton's method is applied to the logarithm of delta, which is concave in epsilon. It starts at
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
    """Return the epsilon at delta for a mu squared of ``units``, to a few digits; used where `float_epsilons` fails."""
    from dp_accounting import get_epsilon_gaussian

    with np.errstate(all="ignore"):  # the search for epsilon evaluates numbers that overflow
        return float(get_epsilon_gaussian(math.sqrt(UNITS / units), delta))


def _rough_mu(epsilon: float, delta: float) -> float:
    """Return the mu for which mu-GDP is (epsilon, delta)-DP, to a few digits."""
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
    """Return by how much the delta of mu-GDP at an epsilon exceeds the argument ``delta``."""
    left, right = _terms(mu, epsilon=epsilon)
    return left - right - delta


def _terms(mu: Any, *, epsilon: Any) -> tuple[Any, Any]:
    """Return ``Phi(mu/2 - epsilon/mu)`` and ``e^epsilon Phi(-mu/2 - epsilon/mu)``.

    Their difference is the delta of mu-GDP at epsilon.
    """
    import mpmath

    likely, other = (mpmath.erfc((epsilon / mu + half) / mpmath.sqrt(2)) / 2 for half in (-mu / 2, mu / 2))
    return likely, mpmath.exp(epsilon) * other


def _nearer_units(mu: float, *, epsilon: float, delta: float) -> int:
    """Improve an approximate mu by one Newton step, and return its square in `UNITS`.

    The derivative of delta with respect to mu is ``phi(mu/2 - epsilon/mu)``.
    """
    import mpmath

    with mpmath.workdps(_DIGITS):
        start, loss = mpmath.mpf(mu), mpmath.mpf(epsilon)
        slope = mpmath.npdf(start / 2 - loss / start)
        nearer = start - _excess(start, epsilon=loss, delta=delta) / slope
        return max(0, int(mpmath.floor(nearer**2 * UNITS)))


def _nearer_epsilon(epsilon: float, *, units: int, delta: float) -> float:
    """Improve an approximate epsilon by one Newton step, and round it up.

    The derivative of delta with respect to epsilon is ``-e^epsilon Phi(-mu/2 - epsilon/mu)``. The result usually
    satisfies the exact condition; the caller checks this.
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
        The part of the guarantee's total mu squared that these releases take. Other releases under the same guarantee
        may take the remaining parts, up to a sum of 1.

    Returns
    -------
    float
        The least float ``z`` for which ``releases / z**2 <= floor(share * largest_units(epsilon, delta)) / UNITS`` in
        exact arithmetic.

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
            f"epsilon={epsilon} at delta={delta} would require a noise multiplier above 2**28, the limit; use a larger "
            "epsilon"
        )
    units = math.floor(share * largest)
    if not (0 < share <= 1 and units > 0):
        raise InvalidInput(
            f"share={share} must be in (0, 1] and large enough for a charge of at least one unit; use a larger epsilon "
            "or share"
        )
    return multiplier_of(units, releases=releases)


def gaussian_epsilon(*, noise_multiplier: float, delta: float, releases: int = 1) -> float:
    """Return the epsilon at delta of ``releases`` Gaussian releases with the same noise multiplier, rounded up."""
    if not (math.isfinite(noise_multiplier) and noise_multiplier >= _SMALLEST):
        raise InvalidInput(
            f"noise_multiplier={noise_multiplier} must be finite and at least {_SMALLEST}; "
            "pass std divided by sensitivity"
        )
    check_guarantee(delta=delta)
    check_count("releases", releases)
    return epsilon_at_most(noise_multiplier, delta=delta, releases=releases)


def check_guarantee(*, epsilon: float = 1.0, delta: float = 0.5) -> None:
    """Raise `InvalidInput` unless epsilon is positive and not too large, and delta is between 0 and 1."""
    if not 0 < epsilon <= _LARGEST_EPSILON:
        raise InvalidInput(
            f"epsilon={epsilon} must be positive and at most {_LARGEST_EPSILON:g}; choose how much privacy to spend"
        )
    if not 0 < delta < 1:
        raise InvalidInput(f"delta={delta} must be in (0, 1); choose a delta below 1 / (number of records)")


def check_count(name: str, value: int) -> None:
    """Raise `InvalidInput` unless a value is a positive int; ``name`` names the argument in the message."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise InvalidInput(f"{name}={value!r} must be a positive int; pass the planned number")


ROUNDING = 16.0
"""Squared parameter of the randomised rounding that a discrete Gaussian contains."""
_UP = 1.0 + 2.0**-48


def shares_mu(*, sensitivity: float, shares: int, squared_scale: float, least_weight: float = 1.0) -> float:
    r"""Return the mu, rounded up, for which an integer sum plus H discrete Gaussian noise shares is mu-GDP.

    Parameters
    ----------
    sensitivity : float, steps
        Delta: how far one record moves the vector of integers, in the L2 norm after each coordinate is divided by its
        weight.
    shares : int
        H: the number of noise shares from honest sites, which are secret to all other parties.
    squared_scale : float
        ``s^2``: the parameter of the discrete Gaussian of one share in a coordinate of weight 1. In a coordinate of
        weight w the parameter is ``w^2 s^2``.
    least_weight : float
        ``w_min``: the least weight of a coordinate, at most 1.

    Notes
    -----
    Proof.

    1. For any shift c, ``sum over integers k of exp(-(k - c)^2 / (2 r^2))`` is the same up to a factor
       ``1 + 4 exp(-2 pi^2 r^2)``, by Poisson summation. For r = 4 this factor is below ``1 + 1e-136``.
    2. Round a real y at random to the integer x with probability proportional to ``exp(-(x - y)^2 / (2 r^2))``. Let m
       be an integer. Up to the factor of step 1, this rounding turns ``N(m, V - r^2)`` into the discrete Gaussian of
       parameter V around m. To see this, integrate the product of both densities over y.
    3. The sum of H discrete Gaussians of parameter ``w^2 s^2`` is a discrete Gaussian of parameter ``H w^2 s^2``, up to
       a factor ``1 +- tau`` with ``tau = 10 sum_{k < H} exp(-2 pi^2 w^2 s^2 k / (k + 1))``. For ``s w >= 4``, tau is
       below ``1e-67 H`` (Kairouz, Liu and Steinke, 2021).
    4. Hence the noisy sum is post-processing (the rounding of step 2 with r = 4) of Gaussians with variance
       ``H w^2 s^2 - 16`` around the same integers. After division by the weight, each coordinate has a variance of at
       least ``H s^2 - 16 / w_min^2``, and one record moves the vector by at most Delta. This is a Gaussian release with
       ``mu = Delta / sqrt(H s^2 - 16 / w_min^2)``.

    The factors of steps 1 and 3 change the probability of any event of p coordinates by less than ``1e-66 p H``. For
    every delta above 1e-40, the rounding of mu covers far more than this.
    """
    _check(shares, least_weight)
    own = squared_scale * least_weight**2
    if own < ROUNDING or shares * own <= ROUNDING:
        raise InvalidInput(
            f"squared_scale={squared_scale} must be at least 16 / least_weight^2 (for one share, larger than that), "
            "because a sum of smaller shares is not discrete Gaussian; use a finer grid or more noise."
        )
    return sensitivity / math.sqrt(shares * squared_scale - ROUNDING / least_weight**2) * _UP


def shares_squared_scale(*, sensitivity: float, shares: int, mu: float, least_weight: float = 1.0) -> int:
    """Return the least even parameter ``s^2`` of discrete Gaussian noise shares whose sum makes an integer sum mu-GDP.

    ``s^2`` is even so that ``s^2 / 2`` is an integer too.

    Parameters
    ----------
    sensitivity, shares, least_weight
        As for `shares_mu`.
    mu : float
        The mu-GDP guarantee of the noisy sum.
    """
    _check(shares, least_weight)
    if not (mu > 0 and math.isfinite(mu)):
        raise InvalidInput(
            f"mu={mu!r} must be positive and finite; choose it by the guarantee (0.27 is epsilon 1 at delta 1e-5)."
        )
    rounding = ROUNDING / least_weight**2
    needed = ((sensitivity / mu) ** 2 * _UP + rounding) / shares
    scale = 2 * math.ceil(max(needed, rounding) / 2)
    terms = {"sensitivity": sensitivity, "shares": shares, "least_weight": least_weight}
    while shares * scale <= rounding or shares_mu(**terms, squared_scale=scale) > mu:  # type: ignore[arg-type]
        scale += 2 * max(1, scale >> 49)  # above 2^50, increase s^2 by so much that its float changes
    return scale


def _check(shares: int, least_weight: float) -> None:
    if shares < 1:
        raise InvalidInput(
            f"shares={shares} must be at least 1, because the noise of at least one honest site must remain unknown; "
            "add a site, or tolerate fewer colluders."
        )
    if not 0 < least_weight <= 1:
        raise InvalidInput(
            f"least_weight={least_weight!r} must be above 0 and at most 1; pass the least weight over the largest."
        )


_LARGEST_MULTIPLIER = 2**28  # a release with a larger multiplier would cost less than one unit of mu squared


def laplace_noise_multiplier(*, epsilon: float) -> float:
    """Return the noise multiplier of epsilon-DP Laplace noise (scale over L1 sensitivity): 1 / epsilon, rounded up."""
    check_guarantee(epsilon=epsilon)
    return _reciprocal_up(epsilon, 1)


def wishart_noise_multiplier(*, epsilon: float) -> float:
    """Return the noise multiplier of epsilon-DP symmetrized Wishart noise: ``1 / (2 epsilon)``, rounded up.

    The multiplier is the scale c of the Wishart distribution over the sensitivity. The sensitivity is in the nuclear
    norm: 1 for a record added, removed or emptied, and 2 for a replaced record.
    """
    check_guarantee(epsilon=epsilon)
    return _reciprocal_up(epsilon, 2)


def _reciprocal_up(epsilon: float, factor: int) -> float:
    value = factor * Fraction(epsilon)
    if value * _LARGEST_MULTIPLIER < 1:
        raise InvalidInput(
            f"epsilon={epsilon} would require a noise multiplier above 2**28, the limit; use a larger epsilon"
        )
    return float_up(1 / value)


_LEAST_RANGE = 2.0**-28
_RANGE_DIGITS = 60
_ORDERS = tuple(1.0 + 2.0 ** (step / 8) for step in range(-80, 321))


@cache
def largest_range(*, epsilon: float, delta: float, draws: int = 1) -> float:
    """Return the largest bounded range r of each draw of an exponential mechanism for a guarantee of all draws.

    The module docstring defines the bounded range of a draw.

    Parameters
    ----------
    epsilon, delta : float
        The guarantee of all draws together; delta 0 means pure epsilon-DP.
    draws : int
        The number of draws; each may depend on earlier draws.

    Returns
    -------
    float
        The larger of two values of r, rounded down. For the first, every draw is (epsilon / draws, delta / draws)-DP by
        the exact condition. For the second, all draws together are ``draws r^2 / 8``-zCDP, converted to (epsilon,
        delta) at the best of many Renyi orders. The condition was checked with 60 digits for the returned number.

    Raises
    ------
    InvalidInput
        If an argument is not allowed, or if r would be below 2**-28.
    """
    if not (0 < epsilon <= _LARGEST_EPSILON and 0 <= delta < 1 and draws >= 1):
        raise InvalidInput(
            f"epsilon={epsilon} must be positive and at most {_LARGEST_EPSILON:g}, delta={delta} must be in [0, 1) and "
            f"draws={draws} must be at least 1; correct the argument that breaks its rule."
        )
    found = _one_by_one(epsilon, delta, draws)
    if delta > 0 and draws > 1:
        found = max(found, _together(epsilon, delta, draws))
    if found < _LEAST_RANGE:
        raise InvalidInput(
            f"epsilon={epsilon} must allow a bounded range of at least 2**-28 per draw; use a larger epsilon."
        )
    return found


def _one_by_one(epsilon: float, delta: float, draws: int) -> float:
    """Return the largest range r for which each draw alone is (epsilon / draws, delta / draws)-DP, rounded down.

    The exact condition of one draw is a quadratic equation in ``e^(r / 2)``.
    """
    from mpmath import mp

    with mp.workdps(_RANGE_DIGITS):
        loss, failure = mp.mpf(epsilon) / draws, mp.mpf(delta) / draws
        half = mp.exp(loss / 2)
        root = 2 * mp.log((half + mp.sqrt(failure * (half**2 - 1 + failure))) / (1 - failure))

        def holds(found: "mpf") -> bool:
            return bool(found <= loss or (1 - mp.exp((loss - found) / 2)) ** 2 <= failure * (1 - mp.exp(-found)))

        return _down(root, holds)


def _together(epsilon: float, delta: float, draws: int) -> float:
    """Return the largest range r for which the zCDP bound of all draws together implies the guarantee, rounded down.

    The conversion from zCDP to (epsilon, delta) uses the Renyi order that allows the largest r.
    """
    from mpmath import mp

    with mp.workdps(_RANGE_DIGITS):

        def allowed(order: float) -> "mpf":
            above = mp.mpf(order) - 1
            slack = mp.log(mp.mpf(delta)) + mp.log(above) - order * mp.log1p(-1 / mp.mpf(order))
            return (slack / above + mp.mpf(epsilon)) / order

        rho = max(map(allowed, _ORDERS))
        return _down(mp.sqrt(8 * rho / draws), lambda found: draws * found**2 <= 8 * rho) if rho > 0 else 0.0


def _down(root: "mpf", holds: "Callable[[mpf], bool]") -> float:
    """Return the largest float that is at most an approximate root and satisfies a condition."""
    from mpmath import mp

    found = float(root)
    while found > 0 and not holds(mp.mpf(found)):
        found = math.nextafter(found, 0.0)
    return found
