"""Privacy filters: which release may still be admitted, whatever was asked before and why.

A filter turns an event into a *charge*, a vector of whole numbers, rounded up. Charges add up. Whether a total still
fits the budget is decided on integers, so the order of releases, their number and the machine do not matter.

- `GdpFilter`: the sum of mu squared, at the budget's delta less the deltas that were spent. Exact for Gaussians whose
  noise is chosen adaptively (Smith and Thakurta 2022, Theorem 4). An (epsilon, delta) event enters as
  ``mu = 2 Phi^-1(1 / (1 + e^-epsilon))``, which dominates it, and its delta.
- `RenyiFilter`: curves add at fixed public orders, each with its share ``delta / m`` of the m orders (Feldman and
  Zrnic 2021; Lecuyer 2021). "Some order still fits" would not be valid at one delta.
"""

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar, Protocol

import numpy as np

from storage.errors import Invalid
from storage.events import Event, Parts, parts_of, sampled_event
from storage.gaussian import UNITS, largest_units, smallest_epsilon, units_of

DELTA_UNITS = 2**62
RENYI_UNITS = 2**40
MOST = 2**62

ORDERS = (1.25, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0, 24.0, 32.0, 48.0, 64.0, 128.0, 256.0)

Charge = tuple[int, ...]


class PrivacyFilter(Protocol):
    """Turn events into charges, and totals of charges into what was spent and what is left."""

    accounting: ClassVar[str]

    def charge(self, event: Event, *, delta: float) -> Charge:
        """Price an event; ``delta`` is the release's own, at which sampled parts are priced."""

    def admits(self, total: Charge) -> bool:
        """Tell whether a total is within the budget."""

    def spent(self, total: Charge) -> float:
        """Return the composed epsilon of a total at the budget's delta, rounded up."""

    def remaining(self, total: Charge) -> float:
        """Return the largest epsilon, at the budget's delta, of one more Gaussian release that is admitted."""

    @property
    def zero(self) -> Charge:
        """The charge of nothing."""


def build_filter(kind: str, *, epsilon: float, delta: float) -> PrivacyFilter:
    """Return the filter of a budget's terms."""
    kinds: dict[str, type[GdpFilter | RenyiFilter]] = {"gdp": GdpFilter, "renyi": RenyiFilter}
    if kind not in kinds:
        raise Invalid(f"filter {kind!r} is unknown; choose one of {', '.join(kinds)}.")
    return kinds[kind](epsilon=epsilon, delta=delta)


def add(total: Charge, charge: Charge) -> Charge:
    """Add two charges."""
    return tuple(left + right for left, right in zip(total, charge, strict=True))


def encode(charge: Charge) -> bytes:
    """Store a charge as little-endian 64-bit integers."""
    return np.array(charge, "<i8").tobytes()


def total_of(charges: list[bytes], *, zero: Charge) -> Charge:
    """Add up stored charges; high and low halves apart, so that no sum overflows."""
    table = np.frombuffer(b"".join(charges), "<i8").reshape(-1, len(zero))
    high, low = (table >> 32).sum(axis=0).tolist(), (table & 0xFFFFFFFF).sum(axis=0).tolist()
    return tuple((above << 32) + below for above, below in zip(high, low, strict=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class GdpFilter:
    """Total mu squared, and total delta of the events that are not Gaussian."""

    epsilon: float
    delta: float

    accounting: ClassVar[str] = "gdp-1"

    @property
    def zero(self) -> Charge:
        """Nothing spent."""
        return (0, 0)

    def charge(self, event: Event, *, delta: float) -> Charge:
        """Return (mu squared, delta) in units."""
        parts = parts_of(event)
        squares = sum(units_of(z, count) for z, count in parts.gaussians.items())
        failures = 0
        for (epsilon, failure), count in _approximate_parts(parts, delta=delta).items():
            squares += count * _dominating_units(epsilon)
            failures += count * _delta_units(failure)
        return _checked((squares, failures))

    def admits(self, total: Charge) -> bool:
        """Compare the total with the budget's units at the delta that is left."""
        return total[0] <= largest_units(self.epsilon, self._delta_left(total))

    def spent(self, total: Charge) -> float:
        """Return the exact epsilon of the total."""
        return smallest_epsilon(total[0], self._delta_left(total)) if any(total) else 0.0

    def remaining(self, total: Charge) -> float:
        """Return the largest epsilon that one more Gaussian release may have."""
        left = largest_units(self.epsilon, self._delta_left(total)) - total[0]
        return _largest_request(self, total, left)

    def _delta_left(self, total: Charge) -> float:
        left = Fraction(self.delta) - Fraction(total[1], DELTA_UNITS)
        return _float_down(left) if left > 0 else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RenyiFilter:
    """Renyi divergences at the public `ORDERS`, and total delta of events that are only (epsilon, delta)."""

    epsilon: float
    delta: float

    accounting: ClassVar[str] = "renyi-1"

    @property
    def zero(self) -> Charge:
        """Nothing spent."""
        return (0,) * (len(ORDERS) + 1)

    def charge(self, event: Event, *, delta: float) -> Charge:
        """Return the divergence at every order, and the delta, in units."""
        parts = parts_of(event)
        curve = [Fraction(0)] * len(ORDERS)
        for z, count in parts.gaussians.items():
            for at, order in enumerate(ORDERS):
                curve[at] += count * Fraction(order) / (2 * Fraction(z) ** 2)
        if parts.sampled:
            from dp_accounting import rdp

            sampled = rdp.RdpAccountant(list(ORDERS)).compose(sampled_event(parts))._rdp  # noqa: SLF001
            for at, value in enumerate(sampled):
                curve[at] += _fraction_up(float(value))
        failures = 0
        for (epsilon, failure), count in parts.approximate.items():
            failures += count * _delta_units(failure)
            for at, order in enumerate(ORDERS):
                curve[at] += count * _fraction_up(_randomised_response_divergence(epsilon, order))
        return _checked((*(math.ceil(value * RENYI_UNITS) for value in curve), failures))

    def admits(self, total: Charge) -> bool:
        """Tell whether some order is within its own bound; each has its share of delta."""
        return any(spent <= bound for spent, bound in zip(total, self._bounds(total), strict=False))

    def spent(self, total: Charge) -> float:
        """Return the smallest epsilon that an order gives at its share of delta."""
        if not any(total):
            return 0.0
        share = self._share(total)
        if not share > 0:
            return math.inf
        found = (spent / RENYI_UNITS + _conversion(order, share) for spent, order in zip(total, ORDERS, strict=False))
        return max(0.0, math.nextafter(min(found), math.inf))

    def remaining(self, total: Charge) -> float:
        """Return the largest epsilon that one more Gaussian release may have."""
        slack = (
            Fraction(2 * (bound - spent), RENYI_UNITS) / Fraction(order)
            for spent, bound, order in zip(total, self._bounds(total), ORDERS, strict=False)
        )
        return _largest_request(self, total, math.floor(max(slack) * UNITS))

    def _share(self, total: Charge) -> float:
        left = Fraction(self.delta) - Fraction(total[-1], DELTA_UNITS)
        return _float_down(left / len(ORDERS)) if left > 0 else 0.0

    def _bounds(self, total: Charge) -> list[int]:
        share = self._share(total)
        if not share > 0:
            return [-1] * len(ORDERS)
        bounds = (self.epsilon - _conversion(order, share) for order in ORDERS)
        return [math.floor(Fraction(bound) * RENYI_UNITS) - 1 if bound > 0 else -1 for bound in bounds]


def _largest_request(terms: GdpFilter | RenyiFilter, total: Charge, left: int) -> float:
    """Find the largest round-tripping epsilon whose Gaussian, calibrated exactly, is admitted after ``total``."""
    if left <= 0:
        return 0.0
    epsilon = smallest_epsilon(left, terms.delta)
    shaved = (epsilon * (1 - 10.0**-digits) for digits in range(15, 5, -1))
    for asked in (float(f"{epsilon:.12g}"), epsilon, *shaved):
        units = largest_units(asked, terms.delta) if asked > 0 else 0
        if units > 0:
            multiplier = _multiplier_of(units)
            event = {"name": "gaussian", "noise_multiplier": multiplier}
            if terms.admits(add(total, terms.charge(event, delta=terms.delta))):
                return asked
    return 0.0


def _multiplier_of(units: int) -> float:
    """Return the smallest float multiplier that is charged at most ``units``."""
    multiplier = math.sqrt(UNITS / units)
    while units_of(multiplier) > units:
        multiplier = math.nextafter(multiplier, math.inf)
    return multiplier


def _approximate_parts(parts: Parts, *, delta: float) -> dict[tuple[float, float], int]:
    """Return the (epsilon, delta) parts, with the sampled ones priced together by their loss distribution."""
    found = dict(parts.approximate)
    if parts.sampled:
        priced = (sampled_epsilon(parts, delta=delta), delta)
        found[priced] = found.get(priced, 0) + 1
    return found


def sampled_epsilon(parts: Parts, *, delta: float) -> float:
    """Return a pessimistic epsilon at delta of an event's Poisson-sampled parts, composed as loss distributions."""
    from dp_accounting import NeighboringRelation
    from dp_accounting.pld import PLDAccountant

    accountant = PLDAccountant(NeighboringRelation.ADD_OR_REMOVE_ONE, 1e-4)
    accountant.compose(sampled_event(parts))
    return math.nextafter(float(accountant.get_epsilon(delta)), math.inf)


def _dominating_units(epsilon: float) -> int:
    """Return mu squared of the Gaussian that dominates every pure epsilon-DP mechanism, in units, rounded up."""
    import mpmath

    with mpmath.workdps(40):
        target = 1 / (1 + mpmath.exp(-mpmath.mpf(epsilon)))
        mu = 2 * mpmath.sqrt(2) * mpmath.erfinv(2 * target - 1)
        return int(mpmath.ceil(mu**2 * UNITS * (1 + mpmath.mpf(10) ** -30)))


def _randomised_response_divergence(epsilon: float, order: float) -> float:
    """Return the Renyi divergence of randomised response, which dominates every pure epsilon-DP mechanism."""
    keep = -math.log1p(math.exp(-epsilon))
    flip = keep - epsilon
    terms = (order * keep + (1 - order) * flip, order * flip + (1 - order) * keep)
    largest = max(terms)
    return (largest + math.log(sum(math.exp(term - largest) for term in terms))) / (order - 1)


def _conversion(order: float, delta: float) -> float:
    """Return what a divergence at an order costs on top in epsilon at delta (Canonne, Kamath, Steinke 2020, 12)."""
    return math.log1p(-1 / order) - (math.log(delta) + math.log(order)) / (order - 1)


def _delta_units(delta: float) -> int:
    return math.ceil(Fraction(delta) * DELTA_UNITS)


def _fraction_up(value: float) -> Fraction:
    if not math.isfinite(value):
        return Fraction(MOST)
    return Fraction(value) * (1 + Fraction(1, 2**40)) + Fraction(1, 2**50)


def _float_down(value: Fraction) -> float:
    nearest = float(value)
    return nearest if Fraction(nearest) <= value else math.nextafter(nearest, 0.0)


def _checked(charge: Charge) -> Charge:
    if max(charge) > MOST:
        raise Invalid("the event costs more than any budget holds; ask for more noise.")
    return charge
