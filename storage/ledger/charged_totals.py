"""The total that a population's releases were charged, noted so that no request adds up all of them.

Charges are vectors of integers, so a total that follows each of them is exactly what adding all of them up gives. The
note is written in the transaction of the charge, under the budget's lock, and the journal's entry of the charge states
the same. A trigger of the database removes it when a release is entered, given up or edited; without one the charges
are added up. A note or a sum that differs from that entry was edited, and nothing is admitted by it.
`storage.ledger.journal_check` compares it with all of the journal.
"""

import json
from dataclasses import dataclass, replace
from typing import Any

import sqlalchemy as sa

from dpca_tasks.accounting import charges
from dpca_tasks.accounting.charges import Charge
from storage.database import tables
from storage.errors import Corrupt, Refused
from storage.ledger import journal
from storage.ledger.budgets import Budget

CHANGES = ("release_reserved", "release_abandoned")
"""The entries of the journal that change a total, and state it."""

_TABLE = tables.charged_total
_NOTE = sa.select(_TABLE).where(_TABLE.c.population == sa.bindparam("population"))
_REMOVE = _TABLE.delete().where(_TABLE.c.population == sa.bindparam("population"))
_INSERT = _TABLE.insert()


def _newest_of(name: str) -> sa.Select[tuple[int, str]]:
    table = tables.event
    newest = (
        sa.select(table.c.seq, table.c.detail)
        .where(table.c.name == name, table.c.population == sa.bindparam("population"))
        .order_by(table.c.seq.desc())
        .limit(1)
    )
    return sa.select(*newest.subquery().c)


_NEWEST = sa.union_all(*map(_newest_of, CHANGES))
"""Statements that are built once: a release runs each several times, and building one takes longer than running it."""


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
    """Return the noted total of a budget, else the sum of its charges.

    Raises
    ------
    Corrupt
        When the journal states another.
    """
    total = _found_note(connection, budget.population) or _added_up(connection, budget)
    check_units(budget, {(total.accounting, len(charges.encode((0,) * len(total.charge))))})
    if facts_of(total) != _told(connection, budget):
        raise Corrupt(
            f"what the releases of budget {budget.population!r} were charged is not the total that the journal states; "
            "look with `dpca doctor`, and restore the database from a copy."
        )
    return total


def ensure_total(connection: sa.Connection, budget: Budget) -> Charge:
    """Return the total of a budget, and note it if it is not yet, under the budget's lock; raise as `read_total`."""
    total = read_total(connection, budget)
    if _found_note(connection, budget.population) is None:
        _note(connection, total)
    return total.charge


def with_release(before: ChargedTotal, charge: Charge) -> ChargedTotal:
    """Return the total with one more release."""
    return replace(before, charge=charges.add(before.charge, charge), releases=before.releases + 1)


def without_charge(before: ChargedTotal, charge: Charge) -> ChargedTotal:
    """Return the total without the charge of a release, which stays."""
    return replace(before, charge=charges.subtract(before.charge, charge))


def note_total(connection: sa.Connection, total: ChargedTotal) -> dict[str, Any]:
    """Note a total, and return what the journal's entry states of it."""
    _note(connection, total)
    return facts_of(total)


def facts_of(total: ChargedTotal) -> dict[str, Any]:
    """Return what the journal states of a total."""
    return {"total": list(total.charge), "releases": total.releases}


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


def _found_note(connection: sa.Connection, population: str) -> ChargedTotal | None:
    row = connection.execute(_NOTE, {"population": population}).mappings().first()
    return None if row is None else ChargedTotal(**{**row, "charge": tuple(json.loads(row["charge"]))})


def _told(connection: sa.Connection, budget: Budget) -> dict[str, Any]:
    """Return the total in the newest entry that changes a population's; before the first one it is zero."""
    newest = [tuple(row) for row in connection.execute(_NEWEST, {"population": budget.population})]
    if not newest:
        return {"total": list(budget.build_filter().zero), "releases": 0}
    detail = json.loads(max(newest)[1])
    return {name: detail.get(name) for name in journal.TOTAL}


def _note(connection: sa.Connection, total: ChargedTotal) -> None:
    facts = {"charge": json.dumps(total.charge), "accounting": total.accounting, "releases": total.releases}
    connection.execute(_REMOVE, {"population": total.population})
    connection.execute(_INSERT, {"population": total.population, **facts})
