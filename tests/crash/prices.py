"""Independent prices of Gaussian releases, in exact fractions and 60 digits, without the product's accounting."""

from collections.abc import Mapping
from fractions import Fraction
from typing import Any

import mpmath


def mu_squared(event: Mapping[str, Any]) -> Fraction:
    """Return mu squared of an event as the ledger stores it; all runs of these tests have this kind of event."""
    match event["name"]:
        case "gaussian":
            return 1 / Fraction(event["noise_multiplier"]) ** 2
        case "self_composed":
            return int(event["count"]) * mu_squared(event["event"])
        case "composed":
            return sum((mu_squared(part) for part in event["events"]), Fraction(0))
        case name:
            raise ValueError(f"no run here makes the event {name!r}")


def is_private(total: Fraction, *, epsilon: float, delta: float) -> bool:
    """Return whether a total of mu squared is (epsilon, delta)-DP (Dong, Roth and Su 2022, Corollary 2.13)."""
    with mpmath.workdps(60):
        mu = mpmath.sqrt(mpmath.mpf(total.numerator) / total.denominator)
        if not mu:
            return True
        above, below = mpmath.ncdf(mu / 2 - epsilon / mu), mpmath.ncdf(-mu / 2 - epsilon / mu)
        return bool(above - mpmath.exp(epsilon) * below <= delta)


def least_epsilon(total: Fraction, *, delta: float) -> float:
    """Return the least epsilon of a total, up to a part in 10^12 and not below it."""
    low, high = 0.0, 1.0
    while not is_private(total, epsilon=high, delta=delta):
        low, high = high, 2 * high
    while high - low > 1e-12 * high:
        middle = (low + high) / 2
        low, high = (low, middle) if is_private(total, epsilon=middle, delta=delta) else (middle, high)
    return high
