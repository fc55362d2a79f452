"""Releases as the ledger's rows say, and what they cost, read inside a transaction of the caller."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import sqlalchemy as sa

from storage import database, filters
from storage.budgets import Budget
from storage.errors import NotFound
from storage.events import Event


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """One row of the ledger."""

    id: str
    population: str
    snapshot_id: str
    run_key: str
    fingerprint: str
    request: Mapping[str, Any]
    event: Event
    epsilon: float
    delta: float
    charge: bytes = field(repr=False)
    accounting: str
    state: str
    artifact_digest: str | None
    created_at: str
    updated_at: str


def find_release(connection: sa.Connection, where: sa.ColumnElement[bool]) -> Release | None:
    """Return the release of which something holds, if there is one."""
    row = connection.execute(sa.select(database.release).where(where)).first()
    return _release(row) if row else None


def read_release(connection: sa.Connection, release_id: str, *, lock: bool = False) -> Release:
    """Return a release, or raise `NotFound`; ``lock`` keeps others from moving it."""
    query = sa.select(database.release).where(database.release.c.id == release_id)
    row = connection.execute(query.with_for_update() if lock else query).first()
    if row is None:
        raise NotFound(f"release {release_id!r} is not in this ledger; see `dpca budget show`.")
    return _release(row)


def releases_of(connection: sa.Connection, population: str) -> tuple[Release, ...]:
    """Return a population's releases, oldest first."""
    table = database.release
    query = sa.select(table).where(table.c.population == population).order_by(table.c.created_at, table.c.id)
    return tuple(_release(row) for row in connection.execute(query))


def charge_of(budget: Budget, release: Release) -> filters.Charge:
    """Return what a release costs.

    Stored charges are a cache: a charge by another version of the accounting is computed again from its event.
    """
    rules = budget.build_filter()
    if release.accounting == rules.accounting:
        return filters.total_of([release.charge], zero=rules.zero)
    return _priced(budget, json.dumps(release.event, sort_keys=True), release.delta)


def charged_to(connection: sa.Connection, budget: Budget) -> filters.Charge:
    """Add up what a population's releases cost, abandoned ones apart; cached charges are not read one by one."""
    rules, table = budget.build_filter(), database.release
    charged = (table.c.population == budget.population) & (table.c.state != "abandoned")
    current = table.c.accounting == rules.accounting
    cached = connection.execute(sa.select(table.c.charge).where(charged & current)).scalars()
    total = filters.total_of([bytes(charge) for charge in cached], zero=rules.zero)
    for row in connection.execute(sa.select(table.c.event, table.c.delta).where(charged & ~current)):
        total = filters.add(total, _priced(budget, row.event, row.delta))
    return total


@lru_cache(maxsize=4096)
def _priced(budget: Budget, event: str, delta: float) -> filters.Charge:
    return budget.charge(json.loads(event), delta=delta)


def _release(row: sa.Row[Any]) -> Release:
    values = dict(row._mapping)
    values |= {name: json.loads(values[name]) for name in ("request", "event")}
    return Release(**values)
