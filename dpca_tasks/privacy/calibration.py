"""How much noise a guarantee takes: multipliers from (epsilon, delta), never too small by a rounding.

Gaussian releases of multipliers ``z_t``, adaptively chosen, are one with ``mu^2 = sum 1/z_t^2``, and that
is (epsilon, delta)-DP exactly when ``Phi(mu/2 - epsilon/mu) - e^epsilon Phi(-mu/2 - epsilon/mu) <= delta``
(Balle and Wang 2018, Theorem 8). Budgets are kept in whole units of ``2^-56`` of mu^2, so a multiplier is the
least whose charge fits the units of the budget that it was asked for: all of a budget can be asked for, and
is then used up.

>>> round(gaussian_noise_multiplier(epsilon=1.0, delta=1e-6), 6)
4.224679
"""

import math
from fractions import Fraction
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from dpca_tasks.errors import InvalidInput

if TYPE_CHECKING:
    from dp_accounting import DpEvent

CHARGE_UNIT = Fraction(1, 1 << 56)
"""The unit in which ``mu**2 = 1 / noise_multiplier**2`` is charged."""

MANY_STEPS = 5000
"""Sampled steps beyond which a calibration stops at 1 %."""

_LARGEST = 2**28  # beyond it a release costs less than one unit
_SMALLEST = 1e-6
_LARGEST_EXPONENT = 700.0
_LARGEST_EPSILON = 1e9
_DIGITS = 60


def gaussian_noise_multiplier(
    *, epsilon: float, delta: float, releases: int = 1, share: Fraction = Fraction(1)
) -> float:
    """Return the noise multiplier of each of several Gaussian releases that together are (epsilon, delta)-DP.

    Parameters
    ----------
    epsilon, delta : float
        The guarantee of all releases together.
    releases : int
        How many there are; each may depend on the answers before it.
    share : Fraction
        The part of mu^2 that they take. Shares of other releases beside them may add up to 1.

    Returns
    -------
    float
        The ``z``, least to the last place, with ``releases / z**2 <= floor(share * largest_charge(...)) *
        CHARGE_UNIT`` in exact arithmetic.

    Raises
    ------
    InvalidInput
        If an argument is out of its domain, or epsilon so small that the multiplier would pass 2**28.
    """
    _check(epsilon=epsilon, delta=delta)
    _check_count("releases", releases)
    units = math.floor(share * largest_charge(epsilon=epsilon, delta=delta))
    if not (0 < share <= 1 and units > 0):
        raise InvalidInput(
            f"share={share} must be in (0, 1] and leave a charge; ask for more epsilon or a larger share"
        )
    square = Fraction(releases) / (units * CHARGE_UNIT)
    multiplier = math.nextafter(math.sqrt(square), 0.0)
    while Fraction(multiplier) ** 2 < square:
        multiplier = math.nextafter(multiplier, math.inf)
    return multiplier


@lru_cache(maxsize=256)
def largest_charge(*, epsilon: float, delta: float) -> int:
    """Return the largest whole number of units of mu^2 that is (epsilon, delta)-DP; the ledger's limit.

    Raises
    ------
    InvalidInput
        If an argument is out of its domain, or not one unit is (epsilon, delta)-DP.
    """
    _check(epsilon=epsilon, delta=delta)
    from dp_accounting import get_sigma_gaussian  # slow to import

    def is_private(units: int) -> bool:
        return _gaussian_is_private(units * CHARGE_UNIT, epsilon, delta)

    with np.errstate(all="ignore"):
        guess = math.floor(1 / Fraction(get_sigma_gaussian(epsilon, delta)) ** 2 / CHARGE_UNIT)
    private, step = guess, 1
    while private > 0 and not is_private(private):
        private, step = max(private - step, 0), 2 * step
    beyond, step = private + 1, 1
    while is_private(beyond):
        private, beyond, step = beyond, beyond + step, 2 * step
    while beyond - private > 1:
        middle = (private + beyond) // 2
        private, beyond = (middle, beyond) if is_private(middle) else (private, middle)
    if private == 0:
        raise InvalidInput(
            f"epsilon={epsilon} at delta={delta} must allow a noise multiplier of at most 2**28; ask for more epsilon"
        )
    return private


def gaussian_epsilon(*, noise_multiplier: float, delta: float, releases: int = 1) -> float:
    """Return the epsilon, at delta, of Gaussian releases of one multiplier; rounded up, never down."""
    if not (math.isfinite(noise_multiplier) and noise_multiplier >= _SMALLEST):
        raise InvalidInput(
            f"noise_multiplier={noise_multiplier} must be finite and at least {_SMALLEST}; "
            "pass std divided by sensitivity"
        )
    _check(delta=delta)
    _check_count("releases", releases)
    from dp_accounting import get_epsilon_gaussian

    square = releases / Fraction(noise_multiplier) ** 2
    with np.errstate(all="ignore"):
        epsilon = float(get_epsilon_gaussian(noise_multiplier / math.sqrt(releases), delta))
    step = math.ulp(epsilon)
    while not _gaussian_is_private(square, epsilon, delta):
        epsilon += step
        step *= 2
    return epsilon


def sampled_gaussian_noise_multiplier(
    *, epsilon: float, delta: float, rate: float, steps: int, besides: Fraction = Fraction(0)
) -> float:
    """Return the noise multiplier of Gaussian steps, each on a fresh Poisson sample of the records.

    Parameters
    ----------
    epsilon, delta : float
        The guarantee of all steps together, for one record more or less.
    rate : float
        The probability with which a step sees a record, in (0, 1].
    steps : int
    besides : Fraction
        The share of mu^2 of (epsilon, delta) that Gaussian releases of all records take in the same release; for
        rates below 1.

    Returns
    -------
    float
        A multiplier whose epsilon was computed, as bounded by the privacy loss distribution of dp-accounting,
        and is at most `epsilon`. At rate 1 it is the exact one; else at most 0.2 % above the least with such
        a bound, or 1 % for more than `MANY_STEPS`, where one bound takes seconds.
    """
    _check(epsilon=epsilon, delta=delta)
    _check_count("steps", steps)
    if not 0 < rate <= 1:
        raise InvalidInput(f"rate={rate} must be in (0, 1]; pass the sampling probability of a record")
    if rate == 1:
        return gaussian_noise_multiplier(epsilon=epsilon, delta=delta, releases=steps, share=1 - besides)
    import dp_accounting
    from dp_accounting import rdp

    def event(multiplier: float) -> "DpEvent":
        return _sampled_event(multiplier, epsilon=epsilon, delta=delta, rate=rate, steps=steps, besides=besides)

    def renyi() -> rdp.RdpAccountant:
        return rdp.RdpAccountant([*range(2, 64), 128, 256, 512, 1024, 4096])

    def is_private(multiplier: float, coarser: float) -> bool:
        return sampled_gaussian_is_private(
            multiplier, epsilon=epsilon, delta=delta, rate=rate, steps=steps, besides=besides, coarser=coarser
        )

    # Small multipliers are slow to account for: come down from the looser answer of Renyi accounting, on a coarser
    # grid of losses first. Every bound is pessimistic, so a multiplier that is safe on one grid is safe.
    fine = 1.01 if steps > MANY_STEPS else 1.002
    safe = float(dp_accounting.calibrate_dp_mechanism(renyi, event, epsilon, delta))
    while not is_private(safe, 1.0):
        safe *= 1.25
    for coarser, reach, within in ((5.0, 1.25, 1.02), (1.0, 1.03, fine)):
        unsafe = safe / reach
        while is_private(unsafe, coarser):
            safe, unsafe = unsafe, unsafe / reach
        while safe > within * unsafe:
            middle = math.sqrt(safe * unsafe)
            if is_private(middle, coarser):
                safe = middle
            else:
                unsafe = middle
    return safe


def sampled_gaussian_is_private(
    multiplier: float,
    *,
    epsilon: float,
    delta: float,
    rate: float,
    steps: int,
    besides: Fraction = Fraction(0),
    coarser: float = 1.0,
) -> bool:
    """Tell whether sampled Gaussian steps keep a guarantee, as bounded by their privacy loss distribution.

    The losses are discretised to a thousandth of epsilon (at most 0.001), times ``coarser``; rounded up.
    """
    import dp_accounting
    from dp_accounting import pld

    interval = coarser * min(1e-3, epsilon / 1000)
    accountant = pld.PLDAccountant(dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE, interval)
    event = _sampled_event(multiplier, epsilon=epsilon, delta=delta, rate=rate, steps=steps, besides=besides)
    return bool(accountant.compose(event).get_epsilon(delta) <= epsilon)


def through_empty_record(*, epsilon: float, delta: float) -> tuple[float, float]:
    """Return an (epsilon, delta) for one record emptied that gives a guarantee for one record replaced.

    Notes
    -----
    A record is replaced by emptying it and filling it anew. With ``(e, d)`` for either half, ``P <= e^e P' + d <= e^e
    (e^e P'' + d) + d``: together ``(2 e, (1 + e^e) d)``. So ``e = epsilon / 2`` and ``d = delta / (1 + e^e)``, rounded
    down.
    """
    half = epsilon / 2
    share = delta / (1 + math.exp(half)) * (1 - 2.0**-50) if half < _LARGEST_EXPONENT else 0.0
    return half, share


def _sampled_event(
    multiplier: float, *, epsilon: float, delta: float, rate: float, steps: int, besides: Fraction
) -> "DpEvent":
    import dp_accounting

    step = dp_accounting.PoissonSampledDpEvent(rate, dp_accounting.GaussianDpEvent(multiplier))
    sampled = dp_accounting.SelfComposedDpEvent(step, steps)
    if not besides:
        return sampled
    full = gaussian_noise_multiplier(epsilon=epsilon, delta=delta, share=besides)
    return dp_accounting.ComposedDpEvent([dp_accounting.GaussianDpEvent(full), sampled])


def laplace_noise_multiplier(*, epsilon: float) -> float:
    """Return the Laplace scale over L1 sensitivity that is epsilon-DP: ``1 / epsilon``, rounded up."""
    _check(epsilon=epsilon)
    return _reciprocal_up(epsilon, 1)


def wishart_noise_multiplier(*, epsilon: float) -> float:
    """Return the scale c of the symmetrised Wishart law over sensitivity: ``1 / (2 epsilon)``, rounded up.

    The sensitivity is in the nuclear norm: 1 for a record more, less or emptied, 2 for a record replaced.
    """
    _check(epsilon=epsilon)
    return _reciprocal_up(epsilon, 2)


def _reciprocal_up(epsilon: float, factor: int) -> float:
    value = factor * Fraction(epsilon)
    if value * _LARGEST < 1:
        raise InvalidInput(f"epsilon={epsilon} must allow a noise multiplier of at most 2**28; ask for more epsilon")
    quotient = float(1 / value)
    return quotient if Fraction(quotient) * value >= 1 else math.nextafter(quotient, math.inf)


def _gaussian_is_private(square: Fraction, epsilon: float, delta: float) -> bool:
    """Tell whether releases of a total mu^2 are (epsilon, delta)-DP, beyond the reach of any rounding."""
    from mpmath import mp

    with mp.workdps(_DIGITS):
        mu, loss = mp.sqrt(mp.mpf(square.numerator) / square.denominator), mp.mpf(epsilon)
        likely = mp.ncdf(mu / 2 - loss / mu)
        return bool(likely - mp.exp(loss) * mp.ncdf(-mu / 2 - loss / mu) <= mp.mpf(delta))


def _check(*, epsilon: float = 1.0, delta: float = 0.5) -> None:
    if not 0 < epsilon <= _LARGEST_EPSILON:
        raise InvalidInput(
            f"epsilon={epsilon} must be positive and at most {_LARGEST_EPSILON:g}; choose how much privacy to spend"
        )
    if not 0 < delta < 1:
        raise InvalidInput(f"delta={delta} must be in (0, 1); choose one below 1 over the number of records")


def _check_count(name: str, value: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise InvalidInput(f"{name}={value!r} must be a positive int; pass how many are planned")
