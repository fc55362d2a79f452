"""Budgets: their terms, fixed when they are opened, and what is said when one is used up."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

import sqlalchemy as sa

from storage import database, filters, journal
from storage.errors import BudgetExhausted, Conflict, Invalid, NotFound

Relation = Literal["add_remove", "zero_out", "replace_one"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """The terms of a population's budget. They never change.

    Attributes
    ----------
    population : str, the people behind the data
    epsilon, delta : float, what all releases together may cost
    failure_delta : float, the part of delta set aside for events that are known only as (epsilon, delta)
    relation : str, of neighbouring datasets; queries state their sensitivities in it
    filter : str, ``gdp`` or ``renyi``
    unit : str, whose privacy is counted
    """

    population: str
    epsilon: float
    delta: float
    failure_delta: float
    relation: Relation
    filter: str
    unit: str

    def __post_init__(self) -> None:
        """Check every term."""
        check_name("population", self.population)
        if not 0 < self.epsilon <= 100:
            raise Invalid(f"epsilon={self.epsilon!r} must be positive and at most 100; 1 to 10 in all is usual.")
        if not 0 < self.delta < 1:
            raise Invalid(f"delta={self.delta!r} must lie strictly between 0 and 1; 1e-6 is usual.")
        if not 0 <= self.failure_delta < self.delta:
            raise Invalid(f"failure_delta={self.failure_delta!r} must be a part of delta={self.delta!r}; 0 is usual.")
        if self.relation not in get_args(Relation):
            raise Invalid(f"relation={self.relation!r} must be one of {', '.join(get_args(Relation))}.")
        self.build_filter()

    def build_filter(self) -> filters.PrivacyFilter:
        """Return the filter that decides what is admitted."""
        return filters.build_filter(
            self.filter,
            epsilon=self.epsilon,
            delta=self.delta,
            failure_delta=self.failure_delta,
            replaced=self.relation == "replace_one",
        )


def open_budget(connection: sa.Connection, budget: Budget) -> None:
    """Write a budget's terms, unless the same ones stand.

    Raises
    ------
    Conflict
        When the budget is open with other terms.
    """
    connection.execute(sa.select(database.ledger.c.id).with_for_update())
    standing = find_budget(connection, budget.population)
    if standing is None:
        terms = asdict(budget)
        connection.execute(database.budget.insert().values(created_at=journal.now(), **terms))
        del terms["population"]
        journal.append(connection, "budget_opened", population=budget.population, detail=terms)
    elif standing != budget:
        raise Conflict(
            f"budget {budget.population!r} is open with epsilon={standing.epsilon:g}, delta={standing.delta:g}, "
            f"failure_delta={standing.failure_delta:g}, relation={standing.relation}, filter={standing.filter}; "
            "its terms never change: use those."
        )


def find_budget(connection: sa.Connection, population: str) -> Budget | None:
    """Return a population's terms, if it has any."""
    columns = [column for column in database.budget.c if column.name != "created_at"]
    query = sa.select(*columns).where(database.budget.c.population == population)
    row = connection.execute(query).mappings().first()
    return Budget(**row) if row else None


def read_budget(connection: sa.Connection, population: str) -> Budget:
    """Return a population's terms, or raise `NotFound`."""
    found = find_budget(connection, population)
    if found is None:
        raise NotFound(
            f"population {population!r} has no budget; open one with "
            f"`dpca budget open {population} --epsilon E --delta D`."
        )
    return found


def lock_budget(connection: sa.Connection, budget: Budget) -> None:
    """Let no one else charge this budget, nor use a run key or a key, until the transaction ends."""
    table = database.budget
    connection.execute(sa.select(table.c.population).where(table.c.population == budget.population).with_for_update())
    connection.execute(sa.select(database.ledger.c.id).with_for_update())


def refusal(
    budget: Budget, charged: filters.Charge, charge: filters.Charge, asked: Mapping[str, Any]
) -> BudgetExhausted:
    """Say why a charge is not admitted after what was charged."""
    rules = budget.build_filter()
    if math.isinf(rules.spent(charge)):
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
    if rules.failures(filters.add(charged, charge)) > budget.failure_delta:
        return BudgetExhausted(
            f"budget {budget.population!r} set failure_delta={budget.failure_delta:g} aside for events known only as "
            f"(epsilon, delta), of which {rules.failures(charged):.6g} is taken and {rules.failures(charge):.6g} was "
            "asked; nothing was charged: ask for less, or plan for such events when a budget is opened (before the "
            "first Gaussian release they need no part of it: each is charged by itself)."
        )
    return exhausted(budget.population, left=rules.remaining(charged), **asked)


def exhausted(population: str, *, epsilon: float, delta: float, left: float) -> BudgetExhausted:
    """Say what was asked and what is left; both are public."""
    return BudgetExhausted(
        f"budget {population!r} has epsilon {left:.6g} left for one release, {epsilon:g} at delta {delta:g} was asked; "
        "nothing was charged: ask for less, or stop here."
    )


def check_name(what: str, name: str) -> None:
    """Check a population or run key, which people read and both databases store."""
    if not name.strip() or len(name) > 500 or not name.isprintable():
        raise Invalid(f"{what} {name!r} must be printable, and at most 500 characters; choose another.")
