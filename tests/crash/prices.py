"""Privacy cost of Gaussian releases, recomputed in exact fractions and 60 digits without the product's accounting."""

from collections.abc import Mapping
from fractions import Fraction
from typing import Any

import mpmath


def mu_squared(event: Mapping[str, Any]) -> Fraction:
    """Return mu squared of an event in the form stored by the ledger; only events of Gaussian noise are supported."""
    match event["name"]:
        case "gaussian":
            return 1 / Fraction(event["noise_multiplier"]) ** 2
        case "self_composed":
            return int(event["count"]) * mu_squared(event["event"])
        case "composed":
            return sum((mu_squared(part) for part in event["events"]), Fraction(0))
        case name:
            raise ValueError(f"the event {name!r} is not Gaussian and has no price here")


def is_private(total: Fraction, *, epsilon: float, delta: float) -> bool:
    """Return whether a total of mu squared is (epsilon, delta)-DP (Dong, Roth and Su 2022, Corollary 2.13)."""
    with mpmath.workdps(60):
        mu = mpmath.sqrt(mpmath.mpf(total.numerator) / total.denominator)
        if not mu:
            return True
        above, below = mpmath.ncdf(mu / 2 - epsilon / mu), mpmath.ncdf(-mu / 2 - epsilon / mu)
        return bool(above - mpmath.exp(epsilon) * below <= delta)


def least_epsilon(total: Fraction, *, delta: float) -> float:
    """Return the smallest epsilon at delta for a total of mu squared, rounded up by 1e-12 of epsilon at most."""
    low, high = 0.0, 1.0
    while not is_private(total, epsilon=high, delta=delta):
        low, high = high, 2 * high
    while high - low > 1e-12 * high:
        middle = (low + high) / 2
        low, high = (low, middle) if is_private(total, epsilon=middle, delta=delta) else (middle, high)
    return high
