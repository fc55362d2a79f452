"""Privacy filters, which decide whether a budget admits one more release of an adaptive sequence.

A filter converts the event of a release into a *charge*: a vector of integers, rounded up. The *total* of a budget is
the sum of its charges. Totals are compared with the budget in integers. So the decision does not depend on the order or
the number of releases, or on the machine.

*Fixed bounds.* Requests may depend on earlier answers, but the bounds must not. Suppose an analyst could choose, after
an answer, to use *either* the delta of one event *or* the rest of mu squared. The total could then reach 1.9 delta,
although each choice alone stays within delta. So every bound is fixed before the first answer that it limits. Two rules
follow. When a budget is opened, `failure_delta` is set aside for events that are known only by their (epsilon, delta).
And once a budget has begun to compose its releases, it never stops.

*Composition and standalone charges.* Composed releases are charged by mu squared or by Renyi divergences. This is
efficient for many releases, but expensive for a single release that is not Gaussian: the charge is the cost of the
smallest Gaussian that dominates the release. So a release before the composition begins may get a standalone charge
instead. A standalone charge is the (epsilon, delta) of the release, which is subtracted from the budget. The
composition later begins with the rest of the budget. All releases together are (epsilon, delta)-DP.

*Proof.* Let F(e, d) be a filter that is valid for every e and d, and let F+ be the rule above. By induction, suppose
that F+ is valid for fewer requests, and consider the first request. If it begins the composition, F+ equals F from then
on. Otherwise it gets a standalone charge (e1, d1). Given the answer y to this request, the rest is
F+(e - e1, d - d1), which is valid for any prior knowledge, including y. By basic composition, which holds for adaptive
choices, an (e1, d1)-DP answer y followed by (e - e1, d - d1)-DP answers, for every y, is (e, d)-DP. The kind of charge
is decided before the request is answered, and e1 and d1 depend on the event alone, not on the answer.

No standalone charge is allowed after the composition began. Otherwise an analyst who has seen an answer of the
composition could choose the kind of charge that leaves more of the budget. Stored charges are never priced again by
later versions, because the total would change after it was compared with its bound.

*Concurrent releases.* A release is charged when it is reserved, before its first step. So each of several concurrent
releases is one interactive mechanism. Such mechanisms compose as if they had run one after another (Vadhan and Zhang
2023; Haney, Shoemate, Tian, Vadhan, Vyrros, Xu and Zhang 2023).

>>> from dpca_tasks.accounting.prices import add
>>> rules = build_filter("gdp", epsilon=1.0, delta=1e-6)
>>> charge = rules.charge({"name": "gaussian", "noise_multiplier": 6.0}, delta=1e-6)
>>> rules.admits(charge), rules.admits(add(add(charge, charge), charge))
(True, False)
>>> pure = rules.charge_after(rules.zero, {"name": "approximate", "epsilon": 0.75, "delta": 0.0}, delta=1e-6)
>>> rules.spent(pure), rules.remaining(pure)
(0.75, 0.25)

*Pacing.* `admitted_runs` computes how many Gaussian releases with the same epsilon still fit into a budget.
`largest_epsilon` computes the largest epsilon with which a given number of releases fits. Both use the filter itself to
charge the releases one after another, as the ledger does. The largest epsilon is exact: it is the largest float for
which every release is admitted.

>>> rules = build_filter("gdp", epsilon=4.0, delta=1e-6)
>>> each = largest_epsilon(rules, rules.zero, runs=52, delta=1e-6)
>>> f"{each:.6f}", admitted_runs(rules, rules.zero, epsilon=each, delta=1e-6)
('0.465948', 52)
>>> admitted_runs(rules, rules.zero, epsilon=math.nextafter(each, 1.0), delta=1e-6)
51

*History.* `burn_down` computes the spent and the remaining epsilon after each of many releases. For the current state
of a budget, these numbers are computed with many digits (`dpca_tasks.accounting.calibration`), which takes
milliseconds. For a history they are computed for all releases at once in float64. The results are moved to the safe
side by more than their error: the spent epsilon is never too low, and the remaining epsilon never too high.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import ClassVar

import numpy as np

from dpca_tasks.accounting.calibration import (
    UNITS,
    check_count,
    check_guarantee,
    float_epsilons,
    gaussian_noise_multiplier,
    largest_units,
    multiplier_of,
    smallest_epsilon,
    units_of,
)
from dpca_tasks.accounting.events import Event, Parts, float_down, float_up, gaussian, loss_event, parts_of
from dpca_tasks.accounting.prices import (
    MOST,
    RENYI_UNITS,
    Charge,
    add,
    dominating_units,
    expensive,
    loss_epsilon,
    own_price,
    randomised_response_units,
    renyi_units,
)
from dpca_tasks.errors import InvalidInput

EPSILON_UNITS = 2**90
DELTA_UNITS = 2**110

ORDERS = (1.25, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0, 24.0, 32.0, 48.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 4096.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class PrivacyFilter(ABC):
    """Base class of filters: converts events into charges, and totals of charges into the spent and remaining budget.

    Parameters
    ----------
    epsilon, delta : float
        The budget.
    failure_delta : float
        The part of delta that is reserved for events known only by their (epsilon, delta). The delta of standalone
        charges is also taken from this part first.
    replaced : bool
        Whether neighbors differ by a replaced record. Sampled events are then priced as a record that is emptied and
        filled again.
    """

    epsilon: float
    delta: float
    failure_delta: float = 0.0
    replaced: bool = False

    accounting: ClassVar[str]
    width: ClassVar[int]
    """Number of coordinates of the composition in a charge."""

    @property
    def zero(self) -> Charge:
        """The total of a budget without charges."""
        return (0,) * (2 + self.width)

    def charge(self, event: Event, *, delta: float) -> Charge:
        """Return the charge of an event in the composition.

        ``delta`` is the delta of the release, at which sampled parts of the event are priced.
        """
        return _bounded((0, 0, *self._composed(parts_of(event, replaced=self.replaced), delta=delta)))

    def charge_after(self, total: Charge, event: Event, *, delta: float) -> Charge:
        """Return the charge of an event, given the total of earlier charges.

        Once the composition has begun, the event is charged in the composition. Before that, an event that the
        composition prices exactly (Gaussian noise) is charged in the composition, and any other event standalone. If
        only the other kind of charge is within the budget, that kind is used.
        """
        parts = parts_of(event, replaced=self.replaced)
        composed = self.charge(event, delta=delta)
        if any(total[2:]):
            return composed
        epsilon, failure = own_price(parts, delta=delta, replaced=self.replaced)
        units = MOST if isinstance(epsilon, float) else math.ceil(epsilon * EPSILON_UNITS)
        own = _bounded((units, _delta_units(failure), *(0,) * self.width))
        first, second = (composed, own) if self._is_exact(parts, composed) else (own, composed)
        return second if self.admits(add(total, second)) and not self.admits(add(total, first)) else first

    def admits(self, total: Charge) -> bool:
        """Return whether a total of charges is within the budget."""
        own_epsilon, own_delta, *composed = total
        if own_epsilon > Fraction(self.epsilon) * EPSILON_UNITS or own_delta > Fraction(self.delta) * DELTA_UNITS:
            return False
        left = max(Fraction(self.failure_delta) * DELTA_UNITS - own_delta, Fraction(0))
        return not any(composed) or (composed[-1] <= math.ceil(left) and self._fits(total))

    def spent(self, total: Charge) -> float:
        """Return the epsilon that a total of charges has spent at the budget's delta, rounded up.

        The result is infinity if the charged releases have no guarantee.
        """
        if max(total) >= MOST:
            return math.inf
        own = Fraction(total[0], EPSILON_UNITS)
        if not any(total[2:]):
            return float_up(own)
        return float_up(own + Fraction(rest)) if math.isfinite(rest := self._spent(total)) else math.inf

    def remaining(self, total: Charge) -> float:
        """Return the largest epsilon, at the budget's delta, with which one more Gaussian release is admitted."""
        if max(total) >= MOST:
            return 0.0
        alone = 0.0 if total[1] or any(total[2:]) else self._epsilon_left(total)
        return max(alone, _largest_request(self, total, self.units_left(total)))

    def failures(self, total: Charge) -> float:
        """Return the delta, rounded up, that composed events known only by their (epsilon, delta) have spent."""
        return float_up(Fraction(total[-1], DELTA_UNITS))

    def own_left(self, total: Charge) -> tuple[float, float] | None:
        """Return the largest (epsilon, delta) of one more standalone charge; None if the composition has begun."""
        if any(total[2:]):
            return None
        return self._epsilon_left(total), float_down(Fraction(self.delta) - Fraction(total[1], DELTA_UNITS))

    def own_spent(self, total: Charge) -> float:
        """Return the sum of the epsilons of all standalone charges, rounded up."""
        return float_up(Fraction(total[0], EPSILON_UNITS))

    def _epsilon_left(self, total: Charge) -> float:
        return float_down(Fraction(self.epsilon) - Fraction(total[0], EPSILON_UNITS))

    def _delta_left(self, total: Charge, *, among: int = 1) -> float:
        """Return the delta that is left to the Gaussian part of the composition, divided by ``among``.

        It does not change after the composition began, because the delta for failures is set aside.
        """
        aside = max(Fraction(self.failure_delta), Fraction(total[1], DELTA_UNITS))
        return float_down((Fraction(self.delta) - aside) / among)

    def delta_unspent(self, total: Charge, *, among: int = 1) -> float:
        """Return the delta that neither standalone charges nor failures have spent, divided by ``among``."""
        return float_down((Fraction(self.delta) - Fraction(total[1] + total[-1], DELTA_UNITS)) / among)

    @abstractmethod
    def _composed(self, parts: Parts, *, delta: float) -> Charge: ...

    @abstractmethod
    def _is_exact(self, parts: Parts, composed: Charge) -> bool:
        """Return whether the charge in the composition is the exact cost of an event, instead of an upper bound."""

    @abstractmethod
    def _fits(self, total: Charge) -> bool: ...

    @abstractmethod
    def _spent(self, total: Charge) -> float: ...

    @abstractmethod
    def units_left(self, total: Charge) -> int:
        """Return the largest mu squared, in `UNITS`, of one more Gaussian release that the composition admits."""


def build_filter(
    kind: str, *, epsilon: float, delta: float, failure_delta: float = 0.0, replaced: bool = False
) -> PrivacyFilter:
    """Return the filter of a kind in `KINDS` (such as ``gdp``) for the terms of a budget."""
    if kind not in KINDS:
        raise InvalidInput(f"filter {kind!r} is unknown; choose one of {', '.join(KINDS)}.")
    return KINDS[kind](epsilon=epsilon, delta=delta, failure_delta=failure_delta, replaced=replaced)


@dataclass(frozen=True, slots=True, kw_only=True)
class GdpFilter(PrivacyFilter):
    """Filter that limits the total mu squared, and the total delta of the events that are not Gaussian.

    Notes
    -----
    *Validity.* Consider a sequence of mu_i-GDP mechanisms, where each mechanism and its mu_i may depend on earlier
    answers. The composition is mu-GDP if the sum of the mu_i^2 never exceeds a mu^2 that was fixed beforehand (Smith
    and Thakurta 2022, "Fully adaptive composition for Gaussian differential privacy"; Koskela, Tobaben and Honkela
    2023). Mu-GDP is (epsilon, delta)-DP exactly under the condition in `dpca_tasks.accounting.calibration` (Dong, Roth
    and Su 2022, Corollary 1). Here the condition is applied with ``delta - failure_delta``.

    *Pure events.* Epsilon-DP has the same trade-off function f as randomized response: a straight line from (0, 1) to
    (a, a) and another one to (1, 0), with ``a = 1 / (1 + e^epsilon)`` (Wasserman and Zhou 2010; Dong, Roth and Su
    2022). For ``mu = 2 Phi^-1(1 / (1 + e^-epsilon))``, the trade-off function of mu-GDP is convex and passes through
    the same three points. So it lies below f. Hence the event is mu-GDP, and no smaller mu suffices.

    *(epsilon, delta) events.* Such an event fails with probability at most delta; otherwise it is epsilon-DP (Kairouz,
    Oh and Viswanath 2015). In every sequence of answers, the probabilities of failure add up to at most
    ``failure_delta``. Sequences without failure have the same probability for both neighbors. So all releases together
    have the delta of their Gaussian part plus ``failure_delta``. Poisson-sampled Gaussians are charged in the same way,
    with an epsilon priced at the delta of the release.
    """

    accounting: ClassVar[str] = "gdp-2"
    width: ClassVar[int] = 2

    def _composed(self, parts: Parts, *, delta: float) -> Charge:
        """Return the total mu squared in `UNITS` and the total delta in `DELTA_UNITS` of an event's parts."""
        squares = sum(units_of(z, count) for z, count in parts.gaussians.items())
        failures = 0
        for (epsilon, failure), count in _approximate_parts(parts, delta=delta, replaced=self.replaced).items():
            squares += count * dominating_units(epsilon)
            failures += count * _delta_units(failure)
        return squares, failures

    def _is_exact(self, parts: Parts, composed: Charge) -> bool:
        return bool(parts.gaussians) and not composed[-1]

    def _fits(self, total: Charge) -> bool:
        return total[2] <= self._limit(total)

    def _spent(self, total: Charge) -> float:
        return smallest_epsilon(total[2], self.delta_unspent(total))

    def units_left(self, total: Charge) -> int:
        """Return the mu squared, in `UNITS`, that the budget has left after a total."""
        return self._limit(total) - total[2]

    def _limit(self, total: Charge) -> int:
        return _limit_after(self, total[0], total[1])


@dataclass(frozen=True, slots=True, kw_only=True)
class RenyiFilter(PrivacyFilter):
    """Filter that limits the Renyi divergences at the public `ORDERS`, and the total delta of (epsilon, delta) events.

    Notes
    -----
    *Validity.* At one order, the divergences of adaptively chosen mechanisms add up if their sum never exceeds a bound
    that was fixed beforehand (Feldman and Zrnic 2021; Lecuyer 2021). A divergence r at order a implies
    (epsilon, delta)-DP with ``epsilon = r + log(1 - 1/a) - (log delta + log a) / (a - 1)`` (Canonne, Kamath and Steinke
    2020, Proposition 12). A total is admitted if the divergence at any one of the m orders is within its bound. So each
    order may use only the share ``delta / m``: each sequence of answers is assigned to an order whose bound holds, and
    the deltas of the m sets of sequences add up. Failures are treated as in `GdpFilter`.

    *Pure events* are charged with the divergence of randomized response, which dominates every epsilon-DP mechanism
    (Kairouz, Oh and Viswanath 2015).

    *Poisson-sampled Gaussians* are charged with their divergence as computed by dp-accounting (Mironov, Talwar and
    Zhang 2019), which needs no delta. This divergence holds for one record added or removed. If neighbors differ by a
    replaced record, a sampled event is charged by its (epsilon, delta).
    """

    accounting: ClassVar[str] = "renyi-2"
    width: ClassVar[int] = len(ORDERS) + 1

    def _composed(self, parts: Parts, *, delta: float) -> Charge:
        """Return the divergence of an event's parts at each order in `RENYI_UNITS`, and then delta in `DELTA_UNITS`."""
        squares = sum((count / Fraction(z) ** 2 for z, count in parts.gaussians.items()), Fraction(0))
        curve = [math.ceil(squares * Fraction(order) / 2 * RENYI_UNITS) for order in ORDERS]
        approximate = parts.approximate
        if parts.sampled and self.replaced:
            approximate = _approximate_parts(parts, delta=delta, replaced=True)
        elif parts.sampled:
            sampled = _sampled_divergences(tuple(sorted(parts.sampled.items())))
            curve = [known + renyi_units(value) for known, value in zip(curve, sampled, strict=True)]
        failures = 0
        for (epsilon, failure), count in approximate.items():
            failures += count * _delta_units(failure)
            for at, order in enumerate(ORDERS):
                curve[at] += count * randomised_response_units(epsilon, order)
        return (*curve, failures)

    def _is_exact(self, parts: Parts, composed: Charge) -> bool:
        return not composed[-1]

    def _fits(self, total: Charge) -> bool:
        """Return whether the divergence at any order is within the bound for this order's share of delta."""
        return any(spent <= bound for spent, bound in zip(total[2:-1], self._bounds(total), strict=True))

    def _spent(self, total: Charge) -> float:
        """Return the smallest epsilon to which the divergence at any order converts, at its share of unspent delta."""
        share = self.delta_unspent(total, among=len(ORDERS))
        if not any(total[2:-1]):
            return 0.0
        if not share > 0:
            return math.inf
        found = (
            (spent + 1) / RENYI_UNITS + _conversion(order, share)
            for spent, order in zip(total[2:-1], ORDERS, strict=True)
        )
        return max(0.0, min(found))

    def units_left(self, total: Charge) -> int:
        """Return the largest mu squared, in `UNITS`, that any order admits for one more Gaussian release."""
        slack = (
            Fraction(2 * (bound - spent), RENYI_UNITS) / Fraction(order)
            for spent, bound, order in zip(total[2:-1], self._bounds(total), ORDERS, strict=True)
        )
        return math.floor(max(slack) * UNITS)

    def _bounds(self, total: Charge) -> tuple[int, ...]:
        left, share = self._epsilon_left(total), self._delta_left(total, among=len(ORDERS))
        if not (left > 0 and share > 0):
            return (-1,) * len(ORDERS)
        return tuple(max(-1, math.floor((left - _conversion(order, share)) * RENYI_UNITS) - 2) for order in ORDERS)


KINDS: dict[str, type[GdpFilter | RenyiFilter]] = {"gdp": GdpFilter, "renyi": RenyiFilter}


@lru_cache(maxsize=256)
def _limit_after(terms: GdpFilter, own_epsilon: int, own_delta: int) -> int:
    """Return the largest total mu squared of the composition, given the totals of the standalone charges."""
    opened = (own_epsilon, own_delta, 0, 0)
    left = terms._epsilon_left(opened)
    return largest_units(left, terms._delta_left(opened)) if left > 0 else 0


@lru_cache(maxsize=64)
def _largest_request(terms: GdpFilter | RenyiFilter, total: Charge, left: int) -> float:
    """Return the largest epsilon of a Gaussian release that is still admitted after ``total``.

    Several slightly rounded values are tried, until the release calibrated to the value is admitted.
    """
    if left <= 0:
        return 0.0
    epsilon = smallest_epsilon(left, terms.delta)
    shaved = (epsilon * (1 - 10.0**-digits) for digits in range(15, 5, -1))
    for requested in (float(f"{epsilon:.9g}"), float(f"{epsilon:.12g}"), epsilon, *shaved):
        units = largest_units(requested, terms.delta) if requested > 0 else 0
        if units > 0:
            event = {"name": "gaussian", "noise_multiplier": multiplier_of(units)}
            if terms.admits(add(total, terms.charge(event, delta=terms.delta))):
                return requested
    return 0.0


@expensive
def _sampled_divergences(sampled: tuple[tuple[tuple[float, float], int], ...]) -> tuple[float, ...]:
    """Return the Renyi divergence of Poisson-sampled Gaussian steps at each of `ORDERS`."""
    from dp_accounting import rdp

    accountant = rdp.RdpAccountant(list(ORDERS)).compose(loss_event(Parts(sampled=dict(sampled))))
    return tuple(float(value) for value in accountant._rdp)


def _approximate_parts(parts: Parts, *, delta: float, replaced: bool) -> dict[tuple[float, float], int]:
    """Return the parts of an event that are charged by (epsilon, delta), with counts.

    All sampled parts together count as one such part, priced by their composed privacy loss distribution.
    """
    found = dict(parts.approximate)
    if parts.sampled:
        priced = (loss_epsilon(Parts(sampled=parts.sampled), delta=delta, replaced=replaced), delta)
        found[priced] = found.get(priced, 0) + 1
    return found


def _conversion(order: float, delta: float) -> float:
    """Return the term that is added to a Renyi divergence at an order to obtain the epsilon at delta."""
    return math.log1p(-1 / order) - (math.log(delta) + math.log(order)) / (order - 1)


def _delta_units(delta: float | Fraction) -> int:
    return math.ceil(Fraction(delta) * DELTA_UNITS)


def _bounded(charge: Charge) -> Charge:
    return tuple(min(number, MOST) for number in charge)


def total_after_runs(rules: PrivacyFilter, total: Charge, *, runs: int, epsilon: float, delta: float) -> Charge | None:
    """Return the total after ``runs`` more Gaussian releases of (epsilon, delta); None if any is not admitted."""
    event = gaussian(gaussian_noise_multiplier(epsilon=epsilon, delta=delta))
    return _after(rules, total, event, runs=runs, delta=delta)


def admitted_runs(rules: PrivacyFilter, total: Charge, *, epsilon: float, delta: float) -> int:
    """Return how many more Gaussian releases, each of (epsilon, delta), are admitted after the charges in ``total``."""
    event = gaussian(gaussian_noise_multiplier(epsilon=epsilon, delta=delta))

    def admitted(runs: int) -> bool:
        return _after(rules, total, event, runs=runs, delta=delta) is not None

    most = 1
    while admitted(most):
        most *= 2
    least = most // 2
    while most - least > 1:
        middle = (least + most) // 2
        least, most = (middle, most) if admitted(middle) else (least, middle)
    return least


def largest_epsilon(rules: PrivacyFilter, total: Charge, *, runs: int, delta: float) -> float:
    """Return the largest epsilon with which a budget admits ``runs`` more Gaussian releases; 0 if there is none.

    Parameters
    ----------
    rules : PrivacyFilter
        The filter of the budget.
    total : Charge
        The total of all earlier charges.
    runs : int
        The number of releases that share the remaining budget equally.
    delta : float
        The delta of each release, whose noise is calibrated to (epsilon, delta).
    """
    check_count("runs", runs)
    check_guarantee(delta=delta)

    def holds(epsilon: float) -> bool:
        if not (epsilon > 0 and largest_units(epsilon, delta) > 0):
            return False
        return total_after_runs(rules, total, runs=runs, epsilon=epsilon, delta=delta) is not None

    if not rules.admits(total):
        return 0.0
    shares = [smallest_epsilon(units, delta)] if (units := rules.units_left(total) // runs) > 0 else []
    if (alone := rules.own_left(total)) is not None:
        shares.append(alone[0] / runs)
    return max((_last(holds, share) for share in shares if share > 0), default=0.0)


def share_left(rules: PrivacyFilter, total: Charge) -> float:
    """Return the fraction of a budget that is left, measured in mu squared.

    So after 26 of 52 equal Gaussian releases the fraction is one half.
    """
    if not rules.admits(total):
        return 0.0
    whole = rules.units_left(rules.zero)
    if whole <= 0:  # the budget never admits a Gaussian release, so measure the fraction in epsilon instead
        return max(0.0, 1.0 - rules.spent(total) / rules.epsilon)
    return max(rules.units_left(total), 0) / whole


def _after(rules: PrivacyFilter, total: Charge, event: Event, *, runs: int, delta: float) -> Charge | None:
    """Return the total after charging an event ``runs`` times, or None if a charge is not admitted.

    Only charges before the composition begins can differ. From then on all charges of the event are equal, so they are
    added in one step.
    """
    for left in range(runs, 0, -1):
        charge = rules.charge_after(total, event, delta=delta)
        if any(charge[2:]):
            whole = add(total, tuple(left * number for number in charge))
            return whole if rules.admits(whole) else None
        total = add(total, charge)
        if not rules.admits(total):
            return None
    return total


def _last(holds: Callable[[float], bool], guess: float) -> float:
    """Return the largest float at which a condition holds, or 0 if there is none; the search starts at a guess.

    The condition must hold for all smaller positive floats, and fail for all larger floats.
    """
    step = math.ulp(guess)
    if holds(guess):
        low = guess
        while holds(high := low + step):
            low, step = high, 2 * step
    else:
        high = guess
        while not holds(low := high - step):
            if low <= 0:
                return 0.0
            high, step = low, 2 * step
    while (middle := (low + high) / 2) not in (low, high):
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


_MARGIN = 1e-11
"""Tolerance relative to 1 + epsilon; the error of `float_epsilons` is at most a fifth of it, at the smallest mu."""


def burn_down(rules: PrivacyFilter, totals: Sequence[Charge]) -> list[tuple[float, float]]:
    """Return the spent and the remaining epsilon after each total of a growing sequence of totals.

    Guarantees
    ----------
    The last pair is exactly (`PrivacyFilter.spent`, `PrivacyFilter.remaining`). For earlier totals, the spent epsilon
    is larger than the exact value by at most ``2e-11 (1 + epsilon)``. The remaining epsilon is smaller than the exact
    value by at most a factor of ``1 - 1e-8``.
    """
    sure = {len(totals) - 1}
    sure |= {at for at, total in enumerate(totals) if not any(total[2:]) or max(total) >= MOST}
    others = [at for at in range(len(totals)) if at not in sure]
    spent, remaining = _spent(rules, [totals[at] for at in others]), _remaining(rules, [totals[at] for at in others])
    found = dict(zip(others, zip(spent, remaining, strict=True), strict=True))
    return [
        found[at] if at in found else (rules.spent(total), rules.remaining(total)) for at, total in enumerate(totals)
    ]


def _spent(rules: PrivacyFilter, totals: Sequence[Charge]) -> list[float]:
    if not isinstance(rules, GdpFilter):
        return [rules.spent(total) for total in totals]  # fast: it only adds a few floats per total
    deltas = {failed: 0.0 for failed in {total[1] + total[-1] for total in totals}}
    for failed in deltas:
        deltas[failed] = rules.delta_unspent((0, failed, 0, 0))
    rough = float_epsilons(
        np.array([total[2] / UNITS for total in totals]), np.array([deltas[total[1] + total[-1]] for total in totals])
    )
    safe = (rough + _MARGIN * (1.0 + rough)).tolist()
    return [
        rules.spent(total) if math.isnan(composed) else composed + rules.own_spent(total) if total[0] else composed
        for total, composed in zip(totals, safe, strict=True)
    ]


def _remaining(rules: PrivacyFilter, totals: Sequence[Charge]) -> list[float]:
    unspent = {
        (total[0], total[1], *(0,) * (len(total) - 3), total[-1]) for total in totals
    }  # the totals without their Gaussian charges (mu squared is 0)
    within = {(total[0], total[1], total[-1]): rules.admits(total) for total in unspent}
    if isinstance(rules, GdpFilter):  # what remains is the largest allowed mu squared minus the charged mu squared
        limits = {(total[0], total[1], total[-1]): rules.units_left(total) for total in unspent}
        lefts = [limits[total[0], total[1], total[-1]] - total[2] for total in totals]
    else:
        lefts = [rules.units_left(total) for total in totals]
    units = [
        max(left, 0) if within[total[0], total[1], total[-1]] else 0 for total, left in zip(totals, lefts, strict=True)
    ]
    rough = float_epsilons(np.array([left / UNITS for left in units]), np.full(len(units), rules.delta))
    safe = (rough - _MARGIN * (1.0 + rough)).tolist()
    return [
        0.0 if not left else _shortened(requested) if requested > 0 else rules.remaining(total)
        for total, left, requested in zip(totals, units, safe, strict=True)
    ]


def _shortened(requested: float) -> float:
    """Return a number with at most nine (or else twelve) significant digits that is at most ``requested``."""
    short = float(f"{requested:.9g}")
    return short if short <= requested else float(f"{requested * (1.0 - 1e-11):.12g}")
