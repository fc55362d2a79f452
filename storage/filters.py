"""Privacy filters: which release may still be admitted, whatever was asked before and why.

A filter turns an event into a *charge*, a vector of whole numbers, rounded up. Charges add up. Whether a total still
fits the budget is decided on integers, so the order of releases, their number and the machine do not matter.

Requests depend on earlier answers. A bound that is chosen along the way is then no bound: whoever may take, after
seeing an answer, *either* the delta of one event *or* the rest of mu squared, reaches 1.9 delta, although each alone
stays within it. So everything that totals are compared with is fixed when the budget is opened, the division of delta
too: `failure_delta` is set aside for events that are known only as (epsilon, delta), the rest is for the composition.

Charges are made at reservation, before the first step, so releases that run at the same time are one interactive
mechanism each, and compose as if they had run in turn (Vadhan and Zhang 2023; Haney, Shoemate, Tian, Vadhan, Vyrros,
Xu and Zhang 2023).

>>> rules = build_filter("gdp", epsilon=1.0, delta=1e-6)
>>> charge = rules.charge({"name": "gaussian", "noise_multiplier": 6.0}, delta=1e-6)
>>> rules.admits(charge), rules.admits(add(add(charge, charge), charge))
(True, False)
"""

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import ClassVar, Protocol

import numpy as np

from storage.errors import Invalid
from storage.events import Event, Parts, parts_of, sampled_event
from storage.gaussian import UNITS, largest_units, smallest_epsilon, units_of

DELTA_UNITS = 2**110
RENYI_UNITS = 2**40
MOST = 2**127  # a charge that no budget holds; dearer ones are charged this

ORDERS = (1.25, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0, 24.0, 32.0, 48.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 4096.0)

_LIMBS = 4  # of 32 bits, in which a number of a charge is stored
_DIGITS = 40

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

    def failures(self, total: Charge) -> float:
        """Return the delta taken by events that are known only as (epsilon, delta), rounded up."""

    @property
    def zero(self) -> Charge:
        """The charge of nothing."""


def build_filter(kind: str, *, epsilon: float, delta: float, failure_delta: float = 0.0) -> PrivacyFilter:
    """Return the filter of a budget's terms."""
    kinds: dict[str, type[GdpFilter | RenyiFilter]] = {"gdp": GdpFilter, "renyi": RenyiFilter}
    if kind not in kinds:
        raise Invalid(f"filter {kind!r} is unknown; choose one of {', '.join(kinds)}.")
    return kinds[kind](epsilon=epsilon, delta=delta, failure_delta=failure_delta)


def add(total: Charge, charge: Charge) -> Charge:
    """Add two charges."""
    return tuple(left + right for left, right in zip(total, charge, strict=True))


def encode(charge: Charge) -> bytes:
    """Store a charge as little-endian 128-bit integers."""
    return b"".join(number.to_bytes(4 * _LIMBS, "little") for number in charge)


def total_of(charges: list[bytes], *, zero: Charge) -> Charge:
    """Add up stored charges, limb by limb, so that no sum overflows."""
    table = np.frombuffer(b"".join(charges), "<u4").reshape(-1, len(zero), _LIMBS)
    sums = table.sum(axis=0, dtype=np.uint64).tolist()
    return tuple(sum(limb << 32 * place for place, limb in enumerate(limbs)) for limbs in sums)


@dataclass(frozen=True, slots=True, kw_only=True)
class GdpFilter:
    """Total mu squared, and total delta of the events that are not Gaussian.

    Notes
    -----
    *Validity.* A composition of mu_i-GDP mechanisms, each chosen with its mu_i from the answers before it, is mu-GDP
    when the sum of mu_i^2 never passes a mu^2 fixed beforehand (Smith and Thakurta 2022, "Fully adaptive composition
    for Gaussian differential privacy"; Koskela, Tobaben and Honkela 2023). Mu-GDP is (epsilon, delta)-DP exactly as
    `storage.gaussian` says (Dong, Roth and Su 2022, Corollary 1), here at ``delta - failure_delta``.

    *Pure events.* Epsilon-DP has the trade-off function f of randomised response: straight from (0, 1) to (a, a) and
    on to (1, 0), with ``a = 1 / (1 + e^epsilon)`` (Wasserman and Zhou 2010; Dong, Roth and Su 2022). That of mu-GDP is
    convex and, at ``mu = 2 Phi^-1(1 / (1 + e^-epsilon))``, passes through the same three points, so it lies below f:
    the event is mu-GDP, and with no smaller mu.

    *(epsilon, delta) events.* With probability at most delta such an event fails, otherwise it is epsilon-DP (Kairouz,
    Oh and Viswanath 2015). On every path the probabilities of failure add to at most ``failure_delta``, and paths
    without failure weigh the same in both neighbouring worlds, so the whole has the delta of its Gaussian part plus
    ``failure_delta``. Poisson-sampled Gaussians enter so, with an epsilon priced at the release's delta.
    """

    epsilon: float
    delta: float
    failure_delta: float = 0.0

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
            squares += count * dominating_units(epsilon)
            failures += count * _delta_units(failure)
        return _bounded((squares, failures))

    def admits(self, total: Charge) -> bool:
        """Compare both totals with what was fixed when the budget was opened."""
        return total[0] <= self._limit and total[1] <= _delta_units(self.failure_delta)

    def spent(self, total: Charge) -> float:
        """Return the exact epsilon of the total, at the delta that failures left."""
        return smallest_epsilon(total[0], _delta_left(self.delta, total[1]))

    def remaining(self, total: Charge) -> float:
        """Return the largest epsilon that one more Gaussian release may have."""
        return _largest_request(self, total, self._limit - total[0])

    def failures(self, total: Charge) -> float:
        """Return the delta that failures took."""
        return _delta_up(total[1])

    @property
    def _limit(self) -> int:
        return largest_units(self.epsilon, _delta_left(self.delta, _delta_units(self.failure_delta)))


@dataclass(frozen=True, slots=True, kw_only=True)
class RenyiFilter:
    """Renyi divergences at the public `ORDERS`, and total delta of events that are only (epsilon, delta).

    Notes
    -----
    *Validity.* At one order, divergences of adaptively chosen mechanisms add up as long as the sum never passes a
    bound fixed beforehand (Feldman and Zrnic 2021; Lecuyer 2021). A divergence r at order a is (epsilon, delta)-DP for
    ``epsilon = r + log(1 - 1/a) - (log delta + log a) / (a - 1)`` (Canonne, Kamath and Steinke 2020, Proposition 12).
    "Some order still fits" needs a share ``delta / m`` for each of the m orders: paths are divided by an order that
    fits, and the deltas of the parts add up. Failures are as for `GdpFilter`.

    *Pure events* enter with the divergence of randomised response, which dominates every epsilon-DP mechanism
    (Kairouz, Oh and Viswanath 2015); Poisson-sampled Gaussians with theirs by dp-accounting (Mironov, Talwar and Zhang
    2019), which takes no delta.
    """

    epsilon: float
    delta: float
    failure_delta: float = 0.0

    accounting: ClassVar[str] = "renyi-1"

    @property
    def zero(self) -> Charge:
        """Nothing spent."""
        return (0,) * (len(ORDERS) + 1)

    def charge(self, event: Event, *, delta: float) -> Charge:
        """Return the divergence at every order, and the delta, in units; the release's ``delta`` has no part in it."""
        parts = parts_of(event)
        squares = sum((count / Fraction(z) ** 2 for z, count in parts.gaussians.items()), Fraction(0))
        curve = [math.ceil(squares * Fraction(order) / 2 * RENYI_UNITS) for order in ORDERS]
        if parts.sampled:
            from dp_accounting import rdp

            sampled = rdp.RdpAccountant(list(ORDERS)).compose(sampled_event(parts))._rdp
            curve = [known + _renyi_units(float(value)) for known, value in zip(curve, sampled, strict=True)]
        failures = 0
        for (epsilon, failure), count in parts.approximate.items():
            failures += count * _delta_units(failure)
            for at, order in enumerate(ORDERS):
                curve[at] += count * _randomised_response_units(epsilon, order)
        return _bounded((*curve, failures))

    def admits(self, total: Charge) -> bool:
        """Tell whether some order is within its own bound; each has its share of delta."""
        *curve, failures = total
        fits = any(spent <= bound for spent, bound in zip(curve, self._bounds, strict=True))
        return fits and failures <= _delta_units(self.failure_delta)

    def spent(self, total: Charge) -> float:
        """Return the smallest epsilon that an order gives at its share of the delta that failures left."""
        *curve, failures = total
        share = _delta_left(self.delta, failures, among=len(ORDERS))
        if not any(curve):
            return 0.0
        if not share > 0:
            return math.inf
        found = (
            (spent + 1) / RENYI_UNITS + _conversion(order, share) for spent, order in zip(curve, ORDERS, strict=True)
        )
        return max(0.0, min(found))

    def remaining(self, total: Charge) -> float:
        """Return the largest epsilon that one more Gaussian release may have."""
        slack = (
            Fraction(2 * (bound - spent), RENYI_UNITS) / Fraction(order)
            for spent, bound, order in zip(total[:-1], self._bounds, ORDERS, strict=True)
        )
        return _largest_request(self, total, math.floor(max(slack) * UNITS))

    def failures(self, total: Charge) -> float:
        """Return the delta that failures took."""
        return _delta_up(total[-1])

    @property
    def _bounds(self) -> tuple[int, ...]:
        share = _delta_left(self.delta, _delta_units(self.failure_delta), among=len(ORDERS))
        return tuple(
            max(-1, math.floor((self.epsilon - _conversion(order, share)) * RENYI_UNITS) - 2) for order in ORDERS
        )


@lru_cache(maxsize=1024)
def dominating_units(epsilon: float) -> int:
    """Return mu squared of the least Gaussian that dominates every epsilon-DP mechanism, in units, rounded up."""
    import mpmath

    if epsilon > _DIGITS:  # mu squared is at most 8 epsilon, as Phi(-x) < exp(-x^2 / 2) / 2, and close to it here
        return MOST if math.isinf(epsilon) else math.ceil(8 * Fraction(epsilon) * UNITS)
    with mpmath.workdps(2 * _DIGITS):
        mu = 2 * mpmath.sqrt(2) * mpmath.erfinv(mpmath.tanh(mpmath.mpf(epsilon) / 2))
        return int(mpmath.ceil(mu**2 * UNITS * (1 + mpmath.mpf(10) ** -_DIGITS)))


@lru_cache(maxsize=64)
def _largest_request(terms: GdpFilter | RenyiFilter, total: Charge, left: int) -> float:
    """Find the largest round-tripping epsilon whose Gaussian, calibrated exactly, is admitted after ``total``."""
    if left <= 0:
        return 0.0
    epsilon = smallest_epsilon(left, terms.delta)
    shaved = (epsilon * (1 - 10.0**-digits) for digits in range(15, 5, -1))
    for asked in (float(f"{epsilon:.9g}"), float(f"{epsilon:.12g}"), epsilon, *shaved):
        units = largest_units(asked, terms.delta) if asked > 0 else 0
        if units > 0:
            event = {"name": "gaussian", "noise_multiplier": _multiplier_of(units)}
            if terms.admits(add(total, terms.charge(event, delta=terms.delta))):
                return asked
    return 0.0


def _multiplier_of(units: int) -> float:
    """Return the smallest float multiplier that is charged at most ``units``."""
    multiplier = math.nextafter(math.sqrt(Fraction(UNITS, units)), 0.0)
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

    def priced(interval: float) -> float:
        accountant = PLDAccountant(NeighboringRelation.ADD_OR_REMOVE_ONE, interval)
        return float(accountant.compose(sampled_event(parts)).get_epsilon(delta))

    epsilon = priced(1e-4)
    if 0 < epsilon < 0.1:  # the grid of losses is then a part of the answer
        epsilon = min(epsilon, priced(epsilon / 1000))
    return math.nextafter(epsilon, math.inf)


@lru_cache(maxsize=4096)
def _randomised_response_units(epsilon: float, order: float) -> int:
    """Return the Renyi divergence of randomised response in units, rounded up."""
    import mpmath

    with mpmath.workdps(2 * _DIGITS):
        keep = 1 / (1 + mpmath.exp(-mpmath.mpf(epsilon)))
        flip = 1 / (1 + mpmath.exp(mpmath.mpf(epsilon)))
        moment = keep**order * flip ** (1 - order) + flip**order * keep ** (1 - order)
        return int(mpmath.ceil(mpmath.log(moment) / (order - 1) * RENYI_UNITS + mpmath.mpf(10) ** -_DIGITS))


def _renyi_units(value: float) -> int:
    """Return a divergence that was computed in floats in units, rounded up by more than its error."""
    if not math.isfinite(value):
        return MOST
    return math.ceil(Fraction(max(value, 0.0)) * (1 + Fraction(1, 2**32)) * RENYI_UNITS) + 1


def _conversion(order: float, delta: float) -> float:
    """Return what a divergence at an order costs on top in epsilon at delta."""
    return math.log1p(-1 / order) - (math.log(delta) + math.log(order)) / (order - 1)


def _delta_units(delta: float) -> int:
    return math.ceil(Fraction(delta) * DELTA_UNITS)


def _delta_left(delta: float, failures: int, *, among: int = 1) -> float:
    left = (Fraction(delta) - Fraction(failures, DELTA_UNITS)) / among
    nearest = float(left)
    return max(0.0, nearest if Fraction(nearest) <= left else math.nextafter(nearest, -math.inf))


def _delta_up(failures: int) -> float:
    exact = Fraction(failures, DELTA_UNITS)
    nearest = float(exact)
    return nearest if Fraction(nearest) >= exact else math.nextafter(nearest, math.inf)


def _bounded(charge: Charge) -> Charge:
    return tuple(min(number, MOST) for number in charge)
