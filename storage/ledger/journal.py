"""The journal: an append-only, hash-chained list of all changes in storage.

The hash of an entry covers the entry and the hash before it, so the last hash covers the whole journal;
`storage.ledger.witness` keeps copies of it.
"""

import getpass
import json
import secrets
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sa

from storage.database import tables
from storage.database.raw_rows import raw_rows
from storage.errors import Corrupt, Invalid
from storage.trail.entries import FIELDS, START, hash_entry, hash_values

TOTAL = ("total", "releases")
"""The facts of an entry that states what a population was charged in all."""
DETAILS: Mapping[str, tuple[str, ...]] = {
    "ledger_created": ("ledger",),
    "ledger_accepted": ("reason", "begun", "others"),
    "budget_opened": ("epsilon", "delta", "failure_delta", "relation", "filter", "unit", "rows_per_unit", "statement"),
    "budget_voided": (),
    "budget_alerted": ("level",),
    "snapshot_registered": ("dataset", "snapshot", "number", "epoch", "unit", "rows_per_unit", "shared_rows"),
    "snapshot_removed": ("dataset", "snapshots", "forced"),
    "arrivals_begun": ("epoch",),
    "arrivals_recorded": ("epoch", "segment", "number", "digest"),
    "arrivals_lost": ("epoch",),
    "release_reserved": (
        *("run_key", "fingerprint", "snapshot_id", "request", "event", "epsilon", "delta", "charge"),
        *TOTAL,
    ),
    "release_begun": ("found_in",),
    "release_resumed": (),
    "step_kept": ("step", "digest"),
    "step_conflict": ("step",),
    "release_committed": ("artifact",),
    "release_abandoned": TOTAL,
    "release_closed": (),
    "stream_opened": ("name", "fingerprint", "terms"),
    "stream_charged": ("stream", "ticks"),
    "tick_begun": ("stream", "tick", "slot", "snapshot_id", "number", "arrivals"),
    "tick_answered": ("stream", "tick", "digest"),
    "version_published": ("name", "version", "digest"),
    "joint_version_published": ("name", "version", "digest", "joint", "sites"),
    "alias_moved": ("name", "alias", "from", "to", "why"),
}
"""The entries of the journal, with all facts that one may hold: a closed list, because they are exported in hashes, or
whole. ``docs/explanation/threat-model.md`` states where each comes from, and why it is no function of rows."""

type Entry = tuple[Any, ...]
"""An entry as it is stored: the values of `storage.trail.entries.FIELDS`, then its hash."""


_LAST = sa.select(tables.event.c.seq, tables.event.c.hash).order_by(tables.event.c.seq.desc()).limit(1)
_HEAD = sa.select(
    tables.ledger.c.id.label("ledger"),
    *(_LAST.with_only_columns(column).scalar_subquery() for column in _LAST.selected_columns),
)
_ID = sa.select(tables.ledger.c.id)
_LOCK = _ID.with_for_update()
_INSERT = tables.event.insert()


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """The last entry of a journal."""

    ledger: str
    seq: int
    hash: str


def now() -> str:
    """Return the time in UTC, as it is stored."""
    return datetime.now(UTC).isoformat(timespec="microseconds")


def append(
    connection: sa.Connection,
    name: str,
    *,
    population: str | None = None,
    release_id: str | None = None,
    detail: Mapping[str, Any] | None = None,
) -> None:
    """Append one entry inside the caller's transaction.

    Raises
    ------
    Invalid
        When the name, or a fact of the detail, is not in `DETAILS`.
    """
    facts = dict(detail or {})
    if name not in DETAILS:
        raise Invalid(f"journal event {name!r} is not one of {', '.join(DETAILS)}; add it to the table.")
    if strangers := facts.keys() - set(DETAILS[name]):
        raise Invalid(f"journal event {name!r} has no fact {min(strangers)!r}; add public facts to the table.")
    lock(connection)  # one writer of the chain at a time
    last = connection.execute(_LAST).first()
    row = {
        "seq": last.seq + 1 if last else 1,
        "population": population,
        "release_id": release_id,
        "name": name,
        "detail": json.dumps(facts, sort_keys=True),
        "at": now(),
        "actor": _actor(),
        "prev_hash": last.hash if last else START,
    }
    connection.execute(_INSERT, {**row, "hash": hash_entry(row)})


def identify(connection: sa.Connection) -> str:
    """Return the ledger's random id; a new ledger draws one, and the journal begins with it."""
    if connection.dialect.name == "postgresql":
        connection.exec_driver_sql("LOCK TABLE ledger IN SHARE ROW EXCLUSIVE MODE")
    found = find_id(connection)
    if found is None:
        found = secrets.token_hex(16)
        connection.execute(tables.ledger.insert().values(id=found, created_at=now()))
        append(connection, "ledger_created", detail={"ledger": found})
    return found


def find_id(connection: sa.Connection) -> str | None:
    """Return the ledger's random id; None where the journal did not begin."""
    return connection.execute(_ID).scalar_one_or_none()


def lock(connection: sa.Connection) -> None:
    """Let nobody else append, hence charge or publish, until the transaction ends.

    Whoever writes to SQLite holds the one lock that it has from the first statement on.
    """
    if connection.dialect.name != "sqlite":
        connection.execute(_LOCK)


def head(connection: sa.Connection) -> Head:
    """Return the head of the journal."""
    ledger, seq, last = connection.execute(_HEAD).one()
    return Head(ledger=ledger, seq=seq or 0, hash=last or START)


def entries(connection: sa.Connection, *where: sa.ColumnElement[bool]) -> Iterator[list[Entry]]:
    """Yield entries in their order, as the driver returns them: all, or those that meet conditions."""
    columns = (tables.event.c[name] for name in (*FIELDS, "hash"))
    return raw_rows(connection, sa.select(*columns).where(*where).order_by(tables.event.c.seq))


def verify(connection: sa.Connection) -> int:
    """Check every hash of the chain; return the number of entries.

    Raises
    ------
    Corrupt
        At the first entry that was changed, removed or inserted.
    """
    count, previous = 0, START
    for rows in entries(connection):
        count, previous = follow(rows, count=count, previous=previous)
    return count


def follow(rows: Iterable[Entry], *, count: int, previous: str) -> tuple[int, str]:
    """Check the hashes of entries that come after ``count`` others, the last of which has the hash ``previous``.

    Returns
    -------
    tuple of int and str
        The number of entries by now, and the hash of the last.

    Raises
    ------
    Corrupt
        As `verify`.
    """
    for *values, stored in rows:
        count += 1
        if (values[0], values[-1], hash_values(values)) != (count, previous, stored):
            raise Corrupt(f"event {count} of the journal was changed; restore the database and accept it by name.")
        previous = stored
    return count, previous


def _actor() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "unknown"
