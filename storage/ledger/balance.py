"""The balance of a budget, now and over time: allowed, spent and left, read inside the caller's transaction."""

from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from dpca_tasks.accounting import charges
from dpca_tasks.accounting.burn_down import burn_down
from dpca_tasks.accounting.charges import Charge
from dpca_tasks.accounting.events import Event, is_private
from storage.database import tables
from storage.errors import BudgetExhausted
from storage.ledger.budgets import Budget, read_budget
from storage.ledger.refusals import refusal
from storage.ledger.releases import Release, charged_to, charges_of, releases_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """The allowed, spent and remaining budget, release by release.

    ``spent`` is the composed epsilon at the budget's delta, rounded up; ``remaining`` the largest epsilon of one more
    Gaussian release at that delta, rounded down so that asking for it fits. They do not add up: composition is not a
    sum.
    """

    budget: Budget
    spent: float
    remaining: float
    releases: tuple[Release, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Quote:
    """The total spent after one more release, and the reason if the budget does not admit it."""

    spent: float
    refusal: BudgetExhausted | None


def quote_of(
    connection: sa.Connection, population: str, event: Event, *, epsilon: float, delta: float, void: bool
) -> Quote:
    """Quote an event; a refusal states ``epsilon``; ``void`` admits one without privacy, over any budget."""
    budget = read_budget(connection, population)
    rules, charged = budget.build_filter(), charged_to(connection, budget)
    charge = rules.charge_after(charged, event, delta=delta)
    total = charges.add(charged, charge)
    admitted = rules.admits(total) or (void and not is_private(event))
    asked = {"epsilon": epsilon, "delta": delta}
    return Quote(spent=rules.spent(total), refusal=None if admitted else refusal(budget, charged, charge, event, asked))


def admitted_charge(
    connection: sa.Connection, budget: Budget, event: Event, *, epsilon: float, delta: float, void: bool = False
) -> Charge:
    """Return what an event is charged now, under the budget's lock; ``void`` as for `quote_of`.

    Raises
    ------
    BudgetExhausted
        When the budget does not admit it.
    """
    quote = quote_of(connection, budget.population, event, epsilon=epsilon, delta=delta, void=void)
    if quote.refusal is not None:
        raise quote.refusal
    return budget.build_filter().charge_after(charged_to(connection, budget), event, delta=delta)


def statement_of(connection: sa.Connection, population: str) -> Statement:
    """State a population's budget now."""
    budget = read_budget(connection, population)
    rules, charged = budget.build_filter(), charged_to(connection, budget)
    spent, remaining = rules.spent(charged), rules.remaining(charged)
    return Statement(budget=budget, spent=spent, remaining=remaining, releases=releases_of(connection, population))


def history_of(connection: sa.Connection, population: str) -> list[dict[str, Any]]:
    """Tell what was spent and left after each release that is charged, oldest first; ticks of a stream are not."""
    budget = read_budget(connection, population)
    rules = budget.build_filter()
    ticks = set(connection.execute(sa.select(tables.tick.c.release_id)).scalars())
    charged = [row for row in charges_of(connection, budget) if row[1] not in ticks]
    totals = charges.totals_after([charge for _, _, charge in charged], zero=rules.zero)
    return [
        {"time": time, "release": release, "spent": spent, "remaining": remaining}
        for (time, release, _), (spent, remaining) in zip(charged, burn_down(rules, totals), strict=True)
    ]
