"""The history of aliases: which version each one meant, and since when, as the journal's entries say.

The rows of aliases and the pointer files say what an alias means now; only the journal keeps what it meant before.

Examples
--------
::

    with reading(engine) as connection:
        for move in alias_history(connection, "news"):
            print(move.time, move.actor, move.alias, move.before, "->", move.version, move.why)
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import sqlalchemy as sa

from storage.database import tables


@dataclass(frozen=True, slots=True, kw_only=True)
class AliasMove:
    """One move of an alias.

    Attributes
    ----------
    time : str, ISO 8601 in UTC
    name, alias : str
    before : int or None, the version it meant until then; None where the alias was new
    version : int, the version it has meant since
    actor : str, who moved it, as the operating system names its user
    why : mapping, public facts that moved it, such as a verdict; empty where somebody moved it by hand
    """

    time: str
    name: str
    alias: str
    before: int | None
    version: int
    actor: str
    why: Mapping[str, Any] = field(default_factory=dict)


def alias_history(
    connection: sa.Connection, name: str | None = None, *, newest: int | None = None
) -> tuple[AliasMove, ...]:
    """Return the moves of aliases, of one name or of all, oldest first; with ``newest``, as many of the newest."""
    table = tables.event
    columns = (table.c.at, table.c.actor, table.c.detail)
    moved = (table.c.name == "alias_moved") & table.c.population.is_(None)  # as the index has them, in order
    query = sa.select(*columns).where(moved).order_by(table.c.seq.desc()).limit(newest)
    if name is not None:  # the detail is JSON with sorted keys, and a name needs no escape in it
        query = query.where(table.c.detail.contains(f'"name": "{name}"', autoescape=True))
    moves = ((row, json.loads(row.detail)) for row in reversed(connection.execute(query).all()))
    return tuple(
        AliasMove(
            time=row.at,
            name=told["name"],
            alias=told["alias"],
            before=told["from"],
            version=told["to"],
            actor=row.actor,
            why=told.get("why", {}),
        )
        for row, told in moves
        if name is None or told["name"] == name
    )
