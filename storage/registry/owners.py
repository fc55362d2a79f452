"""Whose a published name is: of populations here, of joint releases, or of another ledger."""

import json

import sqlalchemy as sa

from storage.database import tables


def others_of(connection: sa.Connection) -> set[str]:
    """Return the names that belong to another ledger, as the operator stated when accepting this one."""
    table = tables.event
    accepted = sa.select(table.c.detail).where(table.c.name == "ledger_accepted")
    return {name for detail in connection.execute(accepted).scalars() for name in json.loads(detail).get("others", ())}


def owners_of(connection: sa.Connection, name: str) -> frozenset[str | None]:
    """Return the populations that versions of a name are of; None stands for a joint release."""
    table, release = tables.published, tables.release
    rows = sa.select(release.c.population).select_from(table.outerjoin(release, table.c.origin == release.c.id))
    return frozenset(connection.execute(rows.where(table.c.name == name)).scalars())
