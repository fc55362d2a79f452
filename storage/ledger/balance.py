"""The balance of a budget, now and over time: allowed, spent and left, read inside the caller's snapshot."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import sqlalchemy as sa

from dpca_tasks.accounting import charges, pacing
from dpca_tasks.accounting.burn_down import burn_down
from dpca_tasks.accounting.charges import Charge
from dpca_tasks.accounting.events import Event, is_private
from storage.errors import BudgetExhausted
from storage.ledger.budgets import Budget, read_budget
from storage.ledger.charged_totals import charged_to, ensure_total, read_total
from storage.ledger.refusals import refusal
from storage.ledger.releases import Release, charges_of, releases_of, versions_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """The allowed, spent and remaining budget, release by release.

    ``spent`` is the composed epsilon at the budget's delta, rounded up; ``remaining`` the largest epsilon of one more
    Gaussian release at that delta, rounded down so that asking for it fits. They do not add up: composition is not a
    sum. ``releases`` are all of them or the newest, oldest first, and ``earlier`` tells how many came before these;
    ``published`` gives the versions of each of their artifacts, such as ``news@3``, by its digest. ``left`` gives what
    remained after each release that is charged, by its id, where that was asked.
    """

    budget: Budget
    spent: float
    remaining: float
    releases: tuple[Release, ...]
    earlier: int = 0
    published: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    left: Mapping[str, float] = field(default_factory=dict)

    def after(self, quote: "Quote") -> float:
        """Return what would remain after a quoted release, or does now where it is refused."""
        return self.remaining if quote.refusal is not None else self.budget.build_filter().remaining(quote.total)


@dataclass(frozen=True, slots=True, kw_only=True)
class Quote:
    """The total spent after one more release, as epsilon and as a charge, and the reason if it is not admitted."""

    spent: float
    total: Charge
    refusal: BudgetExhausted | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """The equal shares of what a budget has left for so many more Gaussian releases.

    ``epsilon_each`` is the largest float at ``delta_each`` of which every one is admitted, 0 when none is; ``after`` is
    what then remains, and ``remaining`` what does now, as in a `Statement`. ``state`` tells a budget that is
    ``exhausted`` (not one more release fits) or ``voided`` (by a release without privacy) from an ``open`` one.
    """

    runs: int
    remaining: float
    epsilon_each: float
    delta_each: float
    after: float
    state: Literal["open", "exhausted", "voided"]


def read_charged(connection: sa.Connection, population: str) -> tuple[Budget, Charge]:
    """Return a population's budget and what it was charged, so that prices are computed after the snapshot."""
    budget = read_budget(connection, population)
    return budget, charged_to(connection, budget)


def quote_of(budget: Budget, charged: Charge, event: Event, *, epsilon: float, delta: float, void: bool) -> Quote:
    """Quote an event; a refusal states ``epsilon``; ``void`` admits one without privacy, over any budget."""
    rules = budget.build_filter()
    charge = rules.charge_after(charged, event, delta=delta)
    asked = {"epsilon": epsilon, "delta": delta}
    refused = _refused(budget, charged, charge, event, asked, void=void)
    total = charges.add(charged, charge)
    return Quote(spent=rules.spent(total), total=total, refusal=refused)


def _refused(
    budget: Budget, charged: Charge, charge: Charge, event: Event, asked: dict[str, float], *, void: bool
) -> BudgetExhausted | None:
    if budget.build_filter().admits(charges.add(charged, charge)) or (void and not is_private(event)):
        return None
    return refusal(budget, charged, charge, event, asked)


def admitted_charge(
    connection: sa.Connection, budget: Budget, event: Event, *, epsilon: float, delta: float, void: bool = False
) -> tuple[Charge, Charge]:
    """Return what an event is charged now, under the budget's lock, and the total then; ``void`` as for `quote_of`.

    Raises
    ------
    BudgetExhausted
        When the budget does not admit it.
    """
    charged = ensure_total(connection, budget)
    charge = budget.build_filter().charge_after(charged, event, delta=delta)
    refused = _refused(budget, charged, charge, event, {"epsilon": epsilon, "delta": delta}, void=void)
    if refused is not None:
        raise refused
    return charge, charges.add(charged, charge)


def statement_of(
    connection: sa.Connection, population: str, *, newest: int | None = None, burn_down: bool = False
) -> Statement:
    """State a population's budget now, with all its releases or as many of the newest, and what each left of it."""
    budget = read_budget(connection, population)
    rules, total = budget.build_filter(), read_total(connection, budget)
    releases = releases_of(connection, population, newest=newest)
    after = history_of(connection, population, newest=newest) if burn_down else ()
    return Statement(
        budget=budget,
        spent=rules.spent(total.charge),
        remaining=rules.remaining(total.charge),
        releases=releases,
        earlier=total.releases - len(releases),
        published=versions_of(connection, releases),
        left={row["release"]: row["remaining"] for row in after},
    )


def pace_of(budget: Budget, charged: Charge, *, runs: int, delta: float | None = None) -> Pace:
    """Share what is left now among so many Gaussian releases, at the budget's delta if no other is given."""
    rules = budget.build_filter()
    delta = budget.delta if delta is None else delta
    each = pacing.largest_epsilon(rules, charged, runs=runs, delta=delta)
    total = pacing.total_after_runs(rules, charged, runs=runs, epsilon=each, delta=delta) if each else None
    state: Literal["open", "exhausted", "voided"] = "open"
    if math.isinf(rules.spent(charged)):
        state = "voided"
    elif not (each or pacing.largest_epsilon(rules, charged, runs=1, delta=delta)):
        state = "exhausted"
    remaining, after = (rules.remaining(at) for at in (charged, total or charged))
    return Pace(runs=runs, remaining=remaining, epsilon_each=each, delta_each=delta, after=after, state=state)


def runs_that_fit(budget: Budget, charged: Charge, *, epsilon: float, delta: float) -> int:
    """Return how many Gaussian releases of (epsilon, delta) a budget still admits, one after another."""
    return pacing.admitted_runs(budget.build_filter(), charged, epsilon=epsilon, delta=delta)


def history_of(connection: sa.Connection, population: str, *, newest: int | None = None) -> list[dict[str, Any]]:
    """Tell what was spent and left after each release that is charged, oldest first; ticks of a stream are not.

    With ``newest``, of as many of the newest.
    """
    budget = read_budget(connection, population)
    rules, charged = budget.build_filter(), charges_of(connection, budget, newest=newest)
    stored = [charge for _, _, charge in charged]
    before = charges.subtract(charged_to(connection, budget), charges.total_of(stored, zero=rules.zero))
    totals = [charges.add(before, total) for total in charges.totals_after(stored, zero=rules.zero)]
    return [
        {"time": time, "release": release, "spent": spent, "remaining": remaining}
        for (time, release, _), (spent, remaining) in zip(charged, burn_down(rules, totals), strict=True)
    ]
