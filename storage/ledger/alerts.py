"""Alerts of a budget that runs low: each level is noted once a population, with the charge that reached it.

The note is a journal entry, written in the transaction of the charge under the budget's lock: of several processes
that charge at once, one reaches a level. Who charged then tells whoever has to know.
"""

import json
from collections.abc import Sequence

import sqlalchemy as sa

from dpca_tasks.accounting.charges import Charge
from dpca_tasks.accounting.pacing import share_left
from storage.database import tables
from storage.ledger import journal
from storage.ledger.budgets import Budget

LEVELS = (50, 20, 5)
"""Percent of a budget that are left when an alert is due."""

_ROUNDING = 1e-6  # a charge that is meant to take half may take a unit less
_NAME = "budget_alerted"
_EVENT = tables.event.c
_LEVELS = sa.select(_EVENT.detail).where(_EVENT.name == _NAME).order_by(_EVENT.seq)
_OF_POPULATION = _LEVELS.where(_EVENT.population == sa.bindparam("population"))
_RESERVED = sa.select(tables.release.c.seq).where(tables.release.c.id == sa.bindparam("release_id")).scalar_subquery()
_OF_RELEASE = _LEVELS.where(  # the first entries after that of the charge are read, not all
    _EVENT.seq > _RESERVED,
    _EVENT.seq <= _RESERVED + len(LEVELS) + 1,
    _EVENT.release_id == sa.bindparam("release_id"),
)


def note_levels(connection: sa.Connection, budget: Budget, total: Charge, *, release_id: str) -> None:
    """Note the levels that a total reaches and no earlier one did, under the budget's lock."""
    percent = 100 * share_left(budget.build_filter(), total)
    reached = [level for level in LEVELS if percent <= level + _ROUNDING]
    if not reached:
        return
    noted = _levels(connection.execute(_OF_POPULATION, {"population": budget.population}))
    for level in reached:
        if level not in noted:
            subject = {"population": budget.population, "release_id": release_id}
            journal.append(connection, _NAME, **subject, detail={"level": level})


def levels_reached(connection: sa.Connection, release_id: str) -> tuple[int, ...]:
    """Return the levels that a release was the first to reach, the highest first."""
    return tuple(_levels(connection.execute(_OF_RELEASE, {"release_id": release_id})))


def _levels(details: sa.CursorResult[tuple[str]]) -> Sequence[int]:
    return [int(json.loads(detail)["level"]) for detail in details.scalars()]
