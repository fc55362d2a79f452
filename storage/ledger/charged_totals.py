"""The total that a population's releases were charged, noted so that no request adds up all of them.

Charges are vectors of integers, so a total that follows each of them is exactly what adding all of them up gives. The
note is written in the transaction of the charge, under the budget's lock. The database itself removes it when a release
is entered, given up or edited (migration 0008), so code that does not know of it leaves none that is stale; without
one, the charges are added up. `storage.ledger.journal_check` compares it with the journal.
"""

import json
from dataclasses import dataclass, replace

import sqlalchemy as sa

from dpca_tasks.accounting import charges
from dpca_tasks.accounting.charges import Charge
from storage.database import tables
from storage.errors import Refused
from storage.ledger.budgets import Budget

_TABLE = tables.charged_total


@dataclass(frozen=True, slots=True, kw_only=True)
class ChargedTotal:
    """What a population's releases were charged, abandoned ones apart.

    Attributes
    ----------
    population : str
    charge : Charge
    accounting : str, of a release among them: its family is that of all
    releases : int, how many there are, abandoned ones among them
    """

    population: str
    charge: Charge
    accounting: str
    releases: int


def charged_to(connection: sa.Connection, budget: Budget) -> Charge:
    """Return what a population's releases were charged, abandoned ones apart."""
    return read_total(connection, budget).charge


def read_total(connection: sa.Connection, budget: Budget) -> ChargedTotal:
    """Return the noted total of a budget, else the sum of its charges."""
    return _noted_in_units(connection, budget) or _added_up(connection, budget)


def ensure_total(connection: sa.Connection, budget: Budget) -> Charge:
    """Return the total of a budget, and note it if it is not yet, under the budget's lock."""
    total = _noted_in_units(connection, budget)
    if total is None:
        total = _added_up(connection, budget)
        _note(connection, total)
    return total.charge


def noted_total(connection: sa.Connection, population: str) -> ChargedTotal | None:
    """Return the noted total of a population, if there is one."""
    query = sa.select(_TABLE).where(_TABLE.c.population == population)
    row = connection.execute(query).mappings().first()
    return None if row is None else ChargedTotal(**{**row, "charge": tuple(json.loads(row["charge"]))})


def note_entered(connection: sa.Connection, before: ChargedTotal | None, charge: Charge) -> None:
    """Note the total with one more release, from the one noted before; where there was none, there is none."""
    if before is not None:
        after = replace(before, charge=charges.add(before.charge, charge), releases=before.releases + 1)
        _note(connection, after)


def note_given_up(connection: sa.Connection, before: ChargedTotal | None, charge: Charge) -> None:
    """Note the total without the charge of a release, which stays; where there was none, there is none."""
    if before is not None:
        _note(connection, replace(before, charge=charges.subtract(before.charge, charge)))


def is_charged(budget: Budget) -> sa.ColumnElement[bool]:
    """Tell which releases a budget is charged for."""
    table = tables.release
    return (table.c.population == budget.population) & (table.c.state != "abandoned")


def check_units(budget: Budget, found: set[tuple[str, int]]) -> None:
    """Refuse stored charges (accounting and length) that are not in the units of a budget's filter.

    A charge is fixed with its admission (`dpca_tasks.accounting.filters`), so none is priced anew: an accounting names
    a family, whose units and order of numbers never change, and the version of its prices.
    """
    rules = budget.build_filter()
    family, length = rules.accounting.partition("-")[0], len(charges.encode(rules.zero))
    for accounting, size in found:
        if (accounting.partition("-")[0], size) != (family, length):
            raise Refused(
                f"a release was charged in units of accounting {accounting!r}, and this version of dpca knows those of "
                f"{family!r}; a charge is never priced anew: use the version that admitted it."
            )


def _noted_in_units(connection: sa.Connection, budget: Budget) -> ChargedTotal | None:
    noted = noted_total(connection, budget.population)
    if noted is not None:
        check_units(budget, {(noted.accounting, len(charges.encode((0,) * len(noted.charge))))})
    return noted


def _added_up(connection: sa.Connection, budget: Budget) -> ChargedTotal:
    table, rules = tables.release, budget.build_filter()
    rows = connection.execute(sa.select(table.c.charge, table.c.accounting).where(is_charged(budget))).all()
    check_units(budget, {(row.accounting, len(row.charge)) for row in rows})
    count = sa.select(sa.func.count()).where(table.c.population == budget.population)
    return ChargedTotal(
        population=budget.population,
        charge=charges.total_of([bytes(row.charge) for row in rows], zero=rules.zero),
        accounting=rows[-1].accounting if rows else rules.accounting,
        releases=connection.execute(count).scalar_one(),
    )


def _note(connection: sa.Connection, total: ChargedTotal) -> None:
    facts = {"charge": json.dumps(total.charge), "accounting": total.accounting, "releases": total.releases}
    connection.execute(_TABLE.delete().where(_TABLE.c.population == total.population))
    connection.execute(_TABLE.insert().values(population=total.population, **facts))
