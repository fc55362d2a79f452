"""The messages of refused charges: the reason, and what the budget still admits, from public numbers."""

import math
from collections.abc import Callable, Mapping
from typing import Any

from dpca_tasks.accounting import charges, filters
from dpca_tasks.accounting.charges import Charge
from dpca_tasks.accounting.events import Event, is_private
from dpca_tasks.accounting.parts import parts_of
from storage.errors import BudgetExhausted
from storage.ledger.budgets import Budget

BOUNDS: Mapping[str, str] = {"gdp": "the Gaussian that dominates it", "renyi": "randomised response of its epsilon"}
"""The mechanism that a filter charges for an event that is known only by its (epsilon, delta)."""


def knows_samples(budget: Budget) -> bool:
    """Tell whether sampled events enter the composition of a budget by their own kind, and take no delta."""
    return budget.filter == "renyi" and budget.relation != "replace_one"


def refusal(budget: Budget, charged: Charge, charge: Charge, event: Event, asked: Mapping[str, Any]) -> BudgetExhausted:
    """Return the error that explains why a charge is not admitted after an earlier total."""
    rules = budget.build_filter()
    if not is_private(event):
        return BudgetExhausted(
            f"budget {budget.population!r} cannot hold a release without privacy, whose epsilon is infinite; nothing "
            "was charged: insist with --i-know-this-is-not-private, which voids the budget for good."
        )
    if math.isinf(rules.spent(charged)):
        return BudgetExhausted(
            f"budget {budget.population!r} was voided by a release without privacy, so no guarantee is left to keep; "
            "nothing was charged: no private release of these people is admitted any more."
        )
    if any(charge[:2]) and (left := rules.own_left(charged)) is not None:
        return BudgetExhausted(
            f"budget {budget.population!r} has epsilon {left[0]:.6g} and delta {left[1]:.6g} left for one release "
            f"charged by itself, {rules.spent(charge):.6g} at delta {charge[1] / filters.DELTA_UNITS:.6g} was asked; "
            "nothing was charged: ask for less, or stop here."
        )
    if rules.failures(charges.add(charged, charge)) > budget.failure_delta:
        return BudgetExhausted(
            f"{_no_failures(budget, charged, charge)}; nothing was charged: {_remedy(budget, charged)}"
        )
    if _is_bounded(budget, event):
        return BudgetExhausted(
            f"budget {budget.population!r} has epsilon {rules.remaining(charged):.6g} left for one Gaussian release; "
            f"since its first one, what is not Gaussian is charged as {BOUNDS[budget.filter]}: {asked['epsilon']:g} at "
            f"delta {asked['delta']:g} would take {rules.spent(charge):.6g}; nothing was charged: "
            f"{_remedy(budget, charged)}"
        )
    return _exhausted(budget.population, left=rules.remaining(charged), **asked)


def _no_failures(budget: Budget, charged: Charge, charge: Charge) -> str:
    """Say which term of the budget keeps out an event known only as (epsilon, delta), after a Gaussian release."""
    rules = budget.build_filter()
    asked = f"{rules.failures(charge):.6g}"
    if not budget.failure_delta:
        return (
            f"budget {budget.population!r} was opened with failure_delta=0, so since its first Gaussian release it "
            f"admits no event known only as (epsilon, delta), for ever; one of delta {asked} was asked"
        )
    return (
        f"budget {budget.population!r} set failure_delta={budget.failure_delta:g} aside for events known only as "
        f"(epsilon, delta), of which {rules.failures(charged):.6g} is taken and {asked} was asked, after its first "
        "Gaussian release"
    )


def _exhausted(population: str, *, epsilon: float, delta: float, left: float) -> BudgetExhausted:
    """Return the error that states the request and the rest of the budget; both are public."""
    return BudgetExhausted(
        f"budget {population!r} has epsilon {left:.6g} left for one release, {epsilon:g} at delta {delta:g} was asked; "
        "nothing was charged: ask for less, or stop here."
    )


def _remedy(budget: Budget, charged: Charge) -> str:
    """Return the advice after the refusal of an event that is not Gaussian."""
    rules = budget.build_filter()
    if not rules.remaining(charged) > 0:
        return "stop here."
    gaussian = "use a Gaussian mechanism such as analyze_gauss"
    left = budget.failure_delta - rules.failures(charged)
    delta = _written(left, lambda delta: _admits(rules, charged, epsilon=0.0, delta=delta))
    largest = _bounded_left(rules, charged, delta=float(delta))
    epsilon = _written(largest, lambda epsilon: _admits(rules, charged, epsilon=epsilon, delta=float(delta)))
    if not float(epsilon) > 0:
        return f"{gaussian}."
    pure = "" if float(delta) else " of a pure one"
    return f"{gaussian}, or ask for at most --epsilon {epsilon} and --delta {delta}{pure}."


def _written(value: float, fits: Callable[[float], bool]) -> str:
    """Format a number with six digits such that the formatted value fits; "0" if none does."""
    written = (f"{value * (1 - shaved):.6g}" for shaved in (0.0, 1e-5))
    return next((text for text in written if float(text) > 0 and fits(float(text))), "0")


def _is_bounded(budget: Budget, event: Event) -> bool:
    """Tell whether the composition charges a part of an event by a bound instead of its own kind."""
    parts = parts_of(event)
    return bool(parts.approximate or (parts.sampled and not knows_samples(budget)))


def _bounded_left(rules: filters.PrivacyFilter, total: Charge, *, delta: float) -> float:
    """Return the largest epsilon of one more release known only as (epsilon, delta), after a composition began."""
    low, high = 0.0, rules.epsilon
    for _ in range(24):
        middle = (low + high) / 2
        low, high = (middle, high) if _admits(rules, total, epsilon=middle, delta=delta) else (low, middle)
    return low


def _admits(rules: filters.PrivacyFilter, total: Charge, *, epsilon: float, delta: float) -> bool:
    event = {"name": "approximate", "epsilon": epsilon, "delta": delta}
    return rules.admits(charges.add(total, rules.charge(event, delta=delta)))
