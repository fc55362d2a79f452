"""The calibration of Gaussian noise: multipliers from (epsilon, delta), never rounded down.

Budgets are kept in whole units of mu squared (`dpca_tasks.accounting.gaussian`), so a multiplier is the least whose
charge fits the units of the budget that it was asked for: all of a budget can be asked for, and is then used up.

>>> round(gaussian_noise_multiplier(epsilon=1.0, delta=1e-6), 6)
4.224679
"""

import math
from fractions import Fraction

from dpca_tasks.accounting.gaussian import epsilon_at_most, largest_units, multiplier_of
from dpca_tasks.errors import InvalidInput

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
        How many there are; each may depend on the answers before it.
    share : Fraction
        The part of mu^2 that they take. Shares of other releases beside them may add up to 1.

    Returns
    -------
    float
        The ``z``, least to the last place, with ``releases / z**2 <= floor(share * largest_units(...)) / UNITS`` in
        exact arithmetic.

    Raises
    ------
    InvalidInput
        If an argument is out of its domain, or epsilon so small that the multiplier would pass 2**28.
    """
    check_guarantee(epsilon=epsilon, delta=delta)
    check_count("releases", releases)
    largest = largest_units(epsilon, delta)
    if largest == 0:
        raise InvalidInput(
            f"epsilon={epsilon} at delta={delta} must allow a noise multiplier of at most 2**28; ask for more epsilon"
        )
    units = math.floor(share * largest)
    if not (0 < share <= 1 and units > 0):
        raise InvalidInput(
            f"share={share} must be in (0, 1] and leave a charge; ask for more epsilon or a larger share"
        )
    return multiplier_of(units, releases=releases)


def gaussian_epsilon(*, noise_multiplier: float, delta: float, releases: int = 1) -> float:
    """Return the epsilon, at delta, of Gaussian releases of one multiplier; rounded up, never down."""
    if not (math.isfinite(noise_multiplier) and noise_multiplier >= _SMALLEST):
        raise InvalidInput(
            f"noise_multiplier={noise_multiplier} must be finite and at least {_SMALLEST}; "
            "pass std divided by sensitivity"
        )
    check_guarantee(delta=delta)
    check_count("releases", releases)
    return epsilon_at_most(noise_multiplier, delta=delta, releases=releases)


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
