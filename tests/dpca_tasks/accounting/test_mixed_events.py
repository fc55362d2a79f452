"""Privacy filters on histories of mixed events: no admitted history exceeds the budget when composed exactly."""

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any

import mpmath
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpca_tasks.accounting import events
from dpca_tasks.accounting.calibration import UNITS, gaussian_noise_multiplier, units_of
from dpca_tasks.accounting.events import parts_of
from dpca_tasks.accounting.filters import DELTA_UNITS, EPSILON_UNITS, ORDERS, PrivacyFilter, RenyiFilter, build_filter
from dpca_tasks.accounting.prices import RENYI_UNITS, Charge, add, own_price

type Event = Mapping[str, Any]

EPSILON, DELTA = 1.0, 1e-6
KINDS = ("gdp", "renyi")

approximates = st.builds(
    events.approximate, st.sampled_from([1e-9, 0.05, 0.2]), st.sampled_from([0.0, 1e-8, 2e-7, 6e-7])
)
gaussians = st.builds(events.gaussian, st.sampled_from([12.0, 25.0, 60.0]))
repeated = st.builds(events.self_composed, st.one_of(approximates, gaussians), st.integers(2, 3))
composed = st.lists(st.one_of(approximates, gaussians), min_size=2, max_size=3).map(lambda some: events.composed(*some))
mixed = st.one_of(approximates, gaussians, repeated, composed)
laplaces = st.builds(events.laplace, st.sampled_from([8.0, 30.0]))
sampled = st.just(events.poisson_sampled(events.gaussian(2.0), 0.01))
"""One event, so that its loss distribution is computed once."""
nested = st.builds(
    lambda first, second, count: events.self_composed(events.composed(first, events.self_composed(second, 2)), count),
    st.one_of(approximates, laplaces),
    st.one_of(gaussians, laplaces),
    st.integers(1, 2),
)


def steps_of(event: Event, count: int = 1) -> Iterator[tuple[Event, int]]:
    """Yield the elementary steps of an event, each with the number of its repetitions."""
    if event["name"] == "self_composed":
        yield from steps_of(event["event"], count * event["count"])
    elif event["name"] == "composed":
        for part in event["events"]:
            yield from steps_of(part, count)
    else:
        yield event, count


def exact_delta(history: Sequence[Event], epsilon: float) -> Any:
    """Compose the worst-case mechanisms of a history exactly, to 60 digits; return the delta at epsilon.

    The worst (e, d) mechanism fails with probability d and otherwise answers by randomized response: its loss is e with
    probability 1 / (1 + exp(-e)), and -e otherwise. Its privacy is worse than that of Laplace noise of scale 1 / e.
    Given the answers of these mechanisms, the rest of the history is one Gaussian. The answer of a sampled step is
    integrated over as well.
    """
    with mpmath.workdps(60):
        square, works, losses = mpmath.mpf(0), mpmath.mpf(1), {mpmath.mpf(0): mpmath.mpf(1)}
        samples: list[Event] = []
        for event, count in itertools.chain.from_iterable(map(steps_of, history)):
            if event["name"] == "gaussian":
                square += count / mpmath.mpf(event["noise_multiplier"]) ** 2
                continue
            if event["name"] == "poisson_sampled":
                samples += [event] * count
                continue
            is_laplace = event["name"] == "laplace"
            works *= (1 - mpmath.mpf(0 if is_laplace else event["delta"])) ** count
            once = 1 / mpmath.mpf(event["noise_multiplier"]) if is_laplace else mpmath.mpf(event["epsilon"])
            for _ in range(count):
                grown: dict[Any, Any] = {}
                for loss, weight in losses.items():
                    for sign in (1, -1):
                        part = weight / (1 + mpmath.exp(-sign * once))
                        grown[loss + sign * once] = grown.get(loss + sign * once, 0) + part
                losses = grown
        mu = mpmath.sqrt(square)

        def missed(gained: Any) -> Any:
            return sum(weight * _gaussian_delta(epsilon - gained - loss, mu) for loss, weight in losses.items())

        assert len(samples) < 2, "one integral"
        worst = (
            missed(mpmath.mpf(0)) if not samples else max(_over_sample(samples[0], missed, sign) for sign in (1, -1))
        )
        return 1 - works * (1 - worst)


def _over_sample(event: Event, missed: Callable[[Any], Any], sign: int) -> Any:
    """Integrate ``missed`` of the privacy loss over the answer of a sampled Gaussian.

    The record is added (``sign`` 1) or removed (-1). The answer is N(0, z^2) without the record, and a mixture of N(0,
    z^2) and N(1, z^2) with it. The integrand is smooth, so 15 digits are reliable.
    """
    z, rate = mpmath.mpf(event["event"]["noise_multiplier"]), mpmath.mpf(event["rate"])

    def weighed(x: Any) -> Any:
        ratio = 1 - rate + rate * mpmath.exp((2 * x - 1) / (2 * z**2))
        density = mpmath.npdf(x, 0, z)
        return (density * ratio if sign > 0 else density) * missed(sign * mpmath.log(ratio))

    with mpmath.workdps(20):
        return mpmath.quad(weighed, [-14 * z, 0, 14 * z])


def _gaussian_delta(epsilon: Any, mu: Any) -> Any:
    if not mu:
        return max(1 - mpmath.exp(epsilon), mpmath.mpf(0))
    return mpmath.ncdf(mu / 2 - epsilon / mu) - mpmath.exp(epsilon) * mpmath.ncdf(-mu / 2 - epsilon / mu)


def admitted(rules: PrivacyFilter, requested: Sequence[Event]) -> tuple[list[Event], Charge]:
    """Request events in turn, then small failures and the Gaussian that use up the budget.

    Return the admitted events and their total charge.
    """
    total, history = rules.zero, []

    def call(event: Event, *, delta: float = DELTA / 4) -> None:
        nonlocal total
        charge = rules.charge_after(total, event, delta=delta)
        if rules.admits(add(total, charge)):
            total = add(total, charge)
            history.append(event)

    for event in requested:
        call(event)
    for delta in (rules.failure_delta, rules.failure_delta / 2, rules.failure_delta / 8):
        if delta:
            call(events.approximate(1e-9, delta))
    if (left := rules.remaining(total)) > 0:
        call(events.gaussian(gaussian_noise_multiplier(epsilon=left, delta=rules.delta)), delta=rules.delta)
    return history, total


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=25)
@given(requested=st.lists(mixed, max_size=4), aside=st.sampled_from([0.0, DELTA / 4, DELTA / 2, 0.9 * DELTA]))
def test_a_filled_budget_is_not_exceeded_by_exact_composition(kind: str, requested: list[Event], aside: float) -> None:
    rules = build_filter(kind, epsilon=EPSILON, delta=DELTA, failure_delta=aside)
    history, total = admitted(rules, requested)
    assert history
    assert exact_delta(history, EPSILON) <= DELTA
    if math.isfinite(spent := rules.spent(total)):
        assert spent <= EPSILON
        assert exact_delta(history, spent) <= DELTA


wide = st.one_of(mixed, laplaces, nested)
openings = st.sampled_from([[], [events.gaussian(60.0)]])
"""After a Gaussian every charge is composed; without one, most are standalone."""
histories = st.tuples(openings, st.lists(wide, max_size=3), st.lists(sampled, max_size=1), st.lists(wide)).map(
    lambda parts: list(itertools.chain(*parts))[:6]
)


def epsilon_of_event(rules: PrivacyFilter, history: Sequence[Event], own: Charge) -> Any:
    """Return the epsilon that a filter states for composed and standalone charges, by an independent computation.

    The computation follows the definitions in `dpca_tasks.accounting.filters`. An (epsilon, delta) event is represented
    by its dominating Gaussian, or at each order by its dominating randomized response, and its delta is set aside.
    Sampled events are represented by their divergence.
    """
    steps = list(itertools.chain.from_iterable(map(steps_of, history)))
    with mpmath.workdps(60):
        aside = max(mpmath.mpf(rules.failure_delta), mpmath.mpf(own[1]) / DELTA_UNITS)
        left = mpmath.mpf(rules.delta) - aside
        spent = mpmath.mpf(own[0]) / EPSILON_UNITS
        if isinstance(rules, RenyiFilter):
            share = left / len(ORDERS)
            orders = [mpmath.mpf(order) for order in ORDERS]
            curve = [sum(count * _divergence(step, order) for step, count in steps) for order in orders]
            return spent + min(
                total + conversion(float(order), share) for total, order in zip(curve, orders, strict=True)
            )
        square = sum(count * _mu(step) ** 2 for step, count in steps)
        mu = mpmath.sqrt(square)
        low, high = mpmath.mpf(0), mpmath.mpf(64)
        for _ in range(120):
            middle = (low + high) / 2
            low, high = (middle, high) if _gaussian_delta(middle, mu) > left else (low, middle)
        return spent + high


def _pure(event: Event) -> Any:
    """Return the epsilon of a step that is pure epsilon-DP up to its delta."""
    return 1 / mpmath.mpf(event["noise_multiplier"]) if event["name"] == "laplace" else mpmath.mpf(event["epsilon"])


def _mu(event: Event) -> Any:
    if event["name"] == "gaussian":
        return 1 / mpmath.mpf(event["noise_multiplier"])
    true = 1 / (1 + mpmath.exp(-_pure(event)))
    return 2 * mpmath.sqrt(2) * mpmath.erfinv(2 * true - 1)


def _divergence(event: Event, order: Any) -> Any:
    if event["name"] == "gaussian":
        return order / (2 * mpmath.mpf(event["noise_multiplier"]) ** 2)
    true = 1 / (1 + mpmath.exp(-_pure(event)))
    false = 1 - true
    return mpmath.log(true**order * false ** (1 - order) + false**order * true ** (1 - order)) / (order - 1)


def fill(rules: PrivacyFilter, requested: Sequence[Event]) -> tuple[list[Event], list[Event], Charge]:
    """Request events in turn, then the largest Gaussian that the budget still admits.

    Return the admitted events, the admitted events charged by composition, and the total charge.
    """
    total, history, composed = rules.zero, [], []
    left_over = None
    for event in [*requested, None]:
        if event is None:
            if not (left_over := rules.remaining(total)) > 0:
                break
            event = events.gaussian(gaussian_noise_multiplier(epsilon=left_over, delta=rules.delta))
        charge = rules.charge_after(total, event, delta=DELTA / 4 if left_over is None else rules.delta)
        if rules.admits(add(total, charge)):
            total = add(total, charge)
            history.append(event)
            composed += [event] if any(charge[2:]) else []
    return history, composed, total


def check_the_brim(kind: str, requested: list[Event], aside: float) -> None:
    """Fill a budget, check that its exact delta is within bounds, and that one more small release is refused."""
    rules = build_filter(kind, epsilon=EPSILON, delta=DELTA, failure_delta=aside)
    history, composed, total = fill(rules, requested)
    assert exact_delta(history, EPSILON) <= DELTA
    if not composed or any(step["name"] == "poisson_sampled" for event in composed for step, _ in steps_of(event)):
        return
    assert epsilon_of_event(rules, composed, total) <= EPSILON
    units = rules.units_left(total)
    for more, fits in ((units * (1 - 1e-6) - 2, True), (units * (1 + 1e-6) + UNITS * 1e-9, False)):
        if more <= 0:
            continue
        event = events.gaussian(math.sqrt(UNITS / more))
        assert rules.admits(add(total, rules.charge(event, delta=DELTA))) == fits
        assert (epsilon_of_event(rules, [*composed, event], total) <= EPSILON) == fits


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=8)
@given(requested=histories, aside=st.sampled_from([0.0, DELTA / 2]))
def test_a_filled_budget_admits_no_further_release(kind: str, requested: list[Event], aside: float) -> None:
    check_the_brim(kind, requested, aside)


@pytest.mark.audit_only
@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=150)
@given(requested=histories, aside=st.sampled_from([0.0, DELTA / 4, DELTA / 2, 0.9 * DELTA]))
def test_many_filled_budgets_admit_no_further_release(kind: str, requested: list[Event], aside: float) -> None:
    check_the_brim(kind, requested, aside)


@pytest.mark.parametrize("count", [1, 2, 5])
def test_gaussians_fill_a_budget_to_the_last_digit(count: int) -> None:
    rules = build_filter("gdp", epsilon=EPSILON, delta=DELTA)
    history, _ = admitted(rules, [events.gaussian(4.0 * math.sqrt(count))] * count)
    assert DELTA * (1 - 1e-6) < exact_delta(history, EPSILON) <= DELTA


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("aside", [0.0, DELTA / 2])
@pytest.mark.parametrize("alone", [DELTA / 4, DELTA / 2, 0.99 * DELTA])
def test_the_delta_of_a_standalone_charge_is_unavailable_to_later_charges(
    kind: str, aside: float, alone: float
) -> None:
    rules = build_filter(kind, epsilon=EPSILON, delta=DELTA, failure_delta=aside)
    first = events.approximate(1e-9, alone)
    total = rules.charge_after(rules.zero, first, delta=DELTA)
    assert rules.admits(total)
    assert total[2:] == rules.zero[2:]
    history, total = admitted(rules, [first])
    assert exact_delta(history, EPSILON) <= DELTA
    assert total[1] + total[-1] <= DELTA * DELTA_UNITS


@pytest.mark.parametrize("kind", KINDS)
@given(first=gaussians, later=mixed)
def test_no_charge_is_standalone_after_the_composition_began(kind: str, first: Event, later: Event) -> None:
    rules = build_filter(kind, epsilon=EPSILON, delta=DELTA, failure_delta=DELTA / 2)
    total = rules.charge(first, delta=DELTA)
    assert rules.charge_after(total, later, delta=DELTA) == rules.charge(later, delta=DELTA)
    assert rules.charge_after(total, later, delta=DELTA)[:2] == (0, 0)


@given(st.lists(approximates, min_size=1, max_size=4), st.integers(1, 5))
def test_approximate_events_alone_cost_the_sum_of_their_terms(some: list[Event], count: int) -> None:
    event = events.self_composed(events.composed(*some), count)
    price = own_price(parts_of(event), delta=DELTA, replaced=False)
    epsilon, failure = (count * sum(Fraction(each[name]) for each in some) for name in ("epsilon", "delta"))
    assert price == (epsilon, failure)
    for kind in KINDS:
        rules = build_filter(kind, epsilon=50.0, delta=0.9)
        charge = rules.charge_after(rules.zero, event, delta=DELTA)
        if not any(charge[2:]):
            assert charge[0] >= epsilon * EPSILON_UNITS > charge[0] - 1
            assert charge[1] >= failure * DELTA_UNITS > charge[1] - 1


@settings(max_examples=50)
@given(st.lists(mixed, min_size=1, max_size=3))
def test_a_standalone_charge_covers_the_exact_composition_of_all_parts(some: list[Event]) -> None:
    event = events.composed(*some) if len(some) > 1 else some[0]
    epsilon, delta = own_price(parts_of(event), delta=DELTA, replaced=False)
    if math.isfinite(epsilon):
        with mpmath.workdps(60):
            covered = mpmath.mpf(Fraction(epsilon).numerator) / Fraction(epsilon).denominator
            assert exact_delta([event], covered) <= mpmath.mpf(Fraction(delta).numerator) / Fraction(delta).denominator


@pytest.mark.parametrize("kind", KINDS)
@given(first=mixed, second=mixed, count=st.integers(1, 4))
def test_composing_events_adds_their_charges(kind: str, first: Event, second: Event, count: int) -> None:
    rules = build_filter(kind, epsilon=EPSILON, delta=DELTA, failure_delta=DELTA / 2)

    def charge(event: Event) -> list[int]:
        return list(rules.charge(event, delta=DELTA)[2:])

    together = charge(events.self_composed(events.composed(first, second), count))
    separate = [count * (one + other) for one, other in zip(charge(first), charge(second), strict=True)]
    for whole, parts in zip(together, separate, strict=True):
        assert parts - 100 <= whole <= parts + 100  # the charge of each part is rounded up by less than one unit
        assert (whole == 0) == (parts == 0)


def test_a_gaussian_charges_its_mu_squared_next_to_an_approximate_event() -> None:
    rough = events.approximate(0.1, 1e-7)
    event = events.composed(events.gaussian(5.0), events.self_composed(rough, 3))
    alone, together = (build_filter("gdp", epsilon=9.0, delta=1e-5).charge(each, delta=1e-6) for each in (rough, event))
    assert together[2] == units_of(5.0, 1) + 3 * alone[2] > UNITS // 25
    assert together[3] == 3 * alone[3] == 3 * math.ceil(Fraction(1e-7) * DELTA_UNITS)


def conversion(order: float, delta: Any) -> Any:
    """Return the term that converts Renyi divergence to epsilon (Canonne, Kamath and Steinke 2020, Proposition 12)."""
    return mpmath.log(1 - 1 / mpmath.mpf(order)) - (mpmath.log(delta) + mpmath.log(order)) / (order - 1)


@pytest.mark.parametrize(("alone", "failures"), [(0.0, 0.0), (3e-7, 0.0), (0.0, 3e-7), (2e-7, 1e-7)])
def test_renyi_orders_share_the_delta_that_is_left(alone: float, failures: float) -> None:
    rules = build_filter("renyi", epsilon=EPSILON, delta=DELTA, failure_delta=DELTA / 2)
    assert isinstance(rules, RenyiFilter)
    own = (math.ceil(Fraction(alone) * DELTA_UNITS), math.ceil(Fraction(failures) * DELTA_UNITS))
    with mpmath.workdps(40):
        unspent = (mpmath.mpf(DELTA) - alone - failures) / len(ORDERS)
        fixed = (mpmath.mpf(DELTA) - max(alone, DELTA / 2)) / len(ORDERS)
        curve = [int(order / 400 * RENYI_UNITS) for order in ORDERS]
        total = (0, own[0], *curve, own[1])
        least = min(
            spent / mpmath.mpf(RENYI_UNITS) + conversion(order, unspent)
            for spent, order in zip(curve, ORDERS, strict=True)
        )
        assert float(least) <= rules.spent(total) <= float(least) * (1 + 1e-9)
        for at, order in enumerate(ORDERS):
            room = int((EPSILON - conversion(order, fixed)) * RENYI_UNITS)
            for spent, fits in ((room - 4096, True), (room + 1, False)):
                if spent > 0:
                    others = [10**20] * len(ORDERS)
                    others[at] = spent
                    assert rules.admits((0, own[0], *others, own[1])) == fits
