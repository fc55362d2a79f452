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
    pass


CHARGE_UNIT = Fraction(1, 1 << 56)
"""The unit in which ``mu**2 = 1 / noise_multiplier**2`` is charged."""
_SMALLEST = 1e-6
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
    check_guarantee(epsilon=epsilon, delta=delta)
    check_count("releases", releases)
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
    check_guarantee(epsilon=epsilon, delta=delta)
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
    check_guarantee(delta=delta)
    check_count("releases", releases)
    from dp_accounting import get_epsilon_gaussian

    square = releases / Fraction(noise_multiplier) ** 2
    with np.errstate(all="ignore"):
        epsilon = float(get_epsilon_gaussian(noise_multiplier / math.sqrt(releases), delta))
    step = math.ulp(epsilon)
    while not _gaussian_is_private(square, epsilon, delta):
        epsilon += step
        step *= 2
    return epsilon


def _gaussian_is_private(square: Fraction, epsilon: float, delta: float) -> bool:
    """Tell whether releases of a total mu^2 are (epsilon, delta)-DP, beyond the reach of any rounding."""
    from mpmath import mp

    with mp.workdps(_DIGITS):
        mu, loss = mp.sqrt(mp.mpf(square.numerator) / square.denominator), mp.mpf(epsilon)
        likely = mp.ncdf(mu / 2 - loss / mu)
        return bool(likely - mp.exp(loss) * mp.ncdf(-mu / 2 - loss / mu) <= mp.mpf(delta))


def check_guarantee(*, epsilon: float = 1.0, delta: float = 0.5) -> None:
    """Refuse an epsilon or delta outside its domain."""
    if not 0 < epsilon <= _LARGEST_EPSILON:
        raise InvalidInput(
            f"epsilon={epsilon} must be positive and at most {_LARGEST_EPSILON:g}; choose how much privacy to spend"
        )
    if not 0 < delta < 1:
        raise InvalidInput(f"delta={delta} must be in (0, 1); choose one below 1 over the number of records")


def check_count(name: str, value: int) -> None:
    """Refuse what is no positive whole number."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise InvalidInput(f"{name}={value!r} must be a positive int; pass how many are planned")
