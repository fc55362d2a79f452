"""Journal of a ledger: an append-only, hash-chained list of all changes of the ledger's database rows.

The hash of an entry covers the entry and the hash of the previous entry, so the last hash covers the whole journal.
`storage.ledger.witness` stores copies of the last hash outside the database.

The journal has entries about every budget, snapshot, release, step, stream, tick, version and alias. It also has
entries about the tables of first-seen ids (epochs) and their segments. `Replay` computes from the entries what each
database row must contain.
"""

import getpass
import json
import secrets
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sa

from dpca.errors import Corrupt, Invalid
from dpca_tasks.accounting import prices
from dpca_tasks.accounting.events import is_tick
from storage.database import tables
from storage.database.engine import raw_rows
from storage.trail.checkpoints import FIELDS, START, hash_entry, hash_values

TOTAL = ("total", "releases")
"""The facts in a journal entry that state a population's total charge and its number of releases."""
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
"""The names of all journal entries, each with the facts that the entry may contain. No other fact is allowed, because
the journal may be exported. ``docs/explanation/threat-model.md`` states where each fact comes from, and why it does not
depend on private rows."""

type Entry = tuple[Any, ...]
"""A stored journal entry: the values of `storage.trail.checkpoints.FIELDS`, followed by the entry's hash."""


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
    """Id of a ledger, with the number and the hash of the journal's last entry."""

    ledger: str
    seq: int
    hash: str


def now() -> str:
    """Return the current UTC time as ISO 8601 text, as it is stored."""
    return datetime.now(UTC).isoformat(timespec="microseconds")


def append(
    connection: sa.Connection,
    name: str,
    *,
    population: str | None = None,
    release_id: str | None = None,
    detail: Mapping[str, Any] | None = None,
) -> None:
    """Append one entry to the journal, inside the caller's transaction.

    Raises
    ------
    Invalid
        When `DETAILS` does not list the name of the entry, or one of the facts in ``detail``.
    """
    facts = dict(detail or {})
    if name not in DETAILS:
        raise Invalid(f"journal entry {name!r} is not one of {', '.join(DETAILS)}; add it to `journal.DETAILS`.")
    if strangers := facts.keys() - set(DETAILS[name]):
        raise Invalid(
            f"journal entry {name!r} may not contain the fact {min(strangers)!r}; if it is public, add it to "
            "`journal.DETAILS`."
        )
    lock(connection)  # the lock lets only one process at a time append to the hash chain
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
    """Return the ledger's random id; in a new database, draw the id and write it as the first journal entry."""
    if connection.dialect.name == "postgresql":
        connection.exec_driver_sql("LOCK TABLE ledger IN SHARE ROW EXCLUSIVE MODE")
    found = find_id(connection)
    if found is None:
        found = secrets.token_hex(16)
        connection.execute(tables.ledger.insert().values(id=found, created_at=now()))
        append(connection, "ledger_created", detail={"ledger": found})
    return found


def find_id(connection: sa.Connection) -> str | None:
    """Return the ledger's random id; None if the database has no ledger yet."""
    return connection.execute(_ID).scalar_one_or_none()


def lock(connection: sa.Connection) -> None:
    """Prevent other processes from appending to the journal until the transaction ends.

    Since every charge and publication appends an entry, other processes can do neither. With SQLite, this function does
    nothing, because a writing transaction already holds the database's only write lock.
    """
    if connection.dialect.name != "sqlite":
        connection.execute(_LOCK)


def head(connection: sa.Connection) -> Head:
    """Return the id of the ledger, and the number and hash of the journal's last entry."""
    ledger, seq, last = connection.execute(_HEAD).one()
    return Head(ledger=ledger, seq=seq or 0, hash=last or START)


def entries(connection: sa.Connection, *where: sa.ColumnElement[bool]) -> Iterator[list[Entry]]:
    """Yield batches of journal entries in order: all entries, or only entries that meet the conditions."""
    columns = (tables.event.c[name] for name in (*FIELDS, "hash"))
    return raw_rows(connection, sa.select(*columns).where(*where).order_by(tables.event.c.seq))


def verify(connection: sa.Connection) -> int:
    """Check every hash of the journal's chain, and return the number of entries.

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
    """Check the hashes of the entries that follow entry number ``count``, whose hash is ``previous``.

    Returns
    -------
    tuple of int and str
        The number of the last checked entry, and its hash.

    Raises
    ------
    Corrupt
        At the first entry that was changed, removed or inserted.
    """
    for *values, stored in rows:
        count += 1
        if (values[0], values[-1], hash_values(values)) != (count, previous, stored):
            raise Corrupt(
                f"entry {count} of the journal was changed; restore the database from a copy, and accept it with "
                "`dpca budget accept-restored`."
            )
        previous = stored
    return count, previous


def _actor() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "unknown"


type Row = tuple[Any, ...]
"""A stored database row; its first values are the primary key."""
type Key = tuple[Any, ...]
"""The primary key of a stored database row."""

NAMES: Mapping[str, str] = {
    "budget": "budget {0!r}",
    "snapshot": "snapshot {0}",
    "arrival_epoch": "table of first-seen ids {0}",
    "arrival_segment": "segment {0} of first-seen ids",
    "release": "release {0}",
    "stream": "stream {0}",
    "stream_charge": "charge of stream {0} for {1} ticks",
    "tick": "tick {1} of stream {0}",
    "tick_answer": "answer of tick {1} of stream {0}",
    "step": "step {1} of release {0}",
    "version": "{0}@{1}",
    "joint_version": "{0}@{1}",
    "alias": "{0}@{1}",
}
"""The tables that the journal covers, each with a template that names a row in messages by its primary key."""
NEXT = "restore the database from a copy, and accept it with `dpca budget accept-restored`."

GIVEN_UP = ("abandoned", "closed")
"""The states of a release that an operator gave up: before it began (abandoned) or after (closed)."""
ENDED = ("committed", *GIVEN_UP)
"""The final states of a release, in which its key and stored steps are removed."""

_MOVED = {
    "release_begun": "noising",
    "release_committed": "committed",
    "release_abandoned": "abandoned",
    "release_closed": "closed",
}
"""The state to which each journal entry moves a release."""
OF_RELEASES = ("release_reserved", *_MOVED)
"""The journal entries that determine the row of a release, besides ``ledger_accepted``."""
_JSON = ("event", "request", "terms", "sites")


class Replay:
    """The database rows that must exist according to replayed journal entries.

    A part of the journal may be replayed, if it has all entries about the rows that are then compared.

    Attributes
    ----------
    reported : mapping of table name to mapping of primary key to the columns that the journal determines
    """

    def __init__(self) -> None:
        self.reported: dict[str, dict[Key, dict[str, Any]]] = {name: {} for name in NAMES}

    def take(self, entries: Iterable[Entry]) -> None:
        """Replay journal entries, in the order of their numbers.

        Raises
        ------
        Corrupt
            When an entry contradicts earlier entries.
        """
        for seq, population, release, name, text, *_ in entries:
            detail, shown = json.loads(text), self.reported
            match name:
                case "budget_opened":
                    if (population,) in shown["budget"]:
                        raise Corrupt(f"the journal opens budget {population!r} twice, and terms never change; {NEXT}")
                    shown["budget"][(population,)] = {
                        name: fact for name, fact in detail.items() if name != "statement"
                    }
                case "snapshot_registered":
                    facts = {"name": detail["dataset"], "population": population, "seq": seq, "removed": False}
                    facts |= {"unit": detail["unit"], "rows_per_unit": detail["rows_per_unit"]}
                    arrivals = {"number": detail.get("number"), "epoch": detail.get("epoch")}
                    shown["snapshot"][(detail["snapshot"],)] = facts | arrivals
                case "snapshot_removed":
                    for snapshot in detail["snapshots"]:
                        shown["snapshot"].get((snapshot,), {})["removed"] = True
                case "arrivals_begun":
                    shown["arrival_epoch"][(detail["epoch"],)] = {"population": population, "lost": False}
                case "arrivals_lost":
                    shown["arrival_epoch"][(detail["epoch"],)]["lost"] = True
                case "arrivals_recorded":
                    shown["arrival_segment"][(detail.pop("segment"),)] = detail
                case "release_reserved":
                    charge = prices.encode(tuple(detail.pop("charge")))
                    facts = {"population": population, "state": "reserved", "artifact_digest": None}
                    row = {name: fact for name, fact in detail.items() if name not in TOTAL}
                    shown["release"][(release,)] = {**facts, "seq": seq, "charge": charge, **row}
                case "stream_opened":
                    shown["stream"][(release,)] = {"population": population, "seq": seq, **detail}
                case "stream_charged":
                    shown["stream_charge"][(detail["stream"], detail["ticks"])] = {"release_id": release}
                case "tick_begun":
                    shown["tick"][(detail["stream"], detail["tick"])] = {"release_id": release, **detail}
                case "tick_answered":
                    key = (detail["stream"], detail["tick"])
                    shown["tick_answer"][key] = {"digest": detail["digest"]}
                case "step_kept":
                    shown["step"][(release, detail["step"])] = {"digest": detail["digest"]}
                case "version_published":
                    facts = {"digest": detail["digest"], "release_id": release}
                    shown["version"][(detail["name"], detail["version"])] = facts
                case "joint_version_published":
                    facts = {"digest": detail["digest"], "joint_id": detail["joint"], "sites": detail["sites"]}
                    shown["joint_version"][(detail["name"], detail["version"])] = facts
                case "alias_moved":
                    shown["alias"][(detail["name"], detail["alias"])] = {"version": detail["to"]}
                case "ledger_accepted":
                    for begun in detail["begun"]:
                        if standing := shown["release"].get((begun,)):
                            standing["state"] = "noising"
                case moved if moved in _MOVED:
                    changed = {"state": _MOVED[moved], "artifact_digest": detail.get("artifact")}
                    shown["release"][(release,)] |= changed

    @property
    def has_ticks(self) -> bool:
        """True if the replayed entries contain a tick (version) of a stream, or a charge for ticks.

        A release whose event states that it is a tick counts too.
        """
        shown = self.reported
        declared = any(is_tick(facts["event"]) for facts in shown["release"].values())
        return bool(declared or shown["tick"] or shown["stream_charge"])

    def open_releases(self) -> frozenset[str]:
        """Return the ids of the releases that have not reached a final state."""
        return frozenset(key[0] for key, facts in self.reported["release"].items() if facts["state"] not in ENDED)


def called(name: str, key: Key) -> str:
    """Return the name of a row for messages, such as "budget 'people'"."""
    return NAMES[name].format(*key)


def key_of(table: sa.Table, row: Row) -> Key:
    """Return the primary key of a row."""
    return row[: len(table.primary_key)]


def facts_of(table: sa.Table, row: Row) -> dict[str, Any]:
    """Return the columns of a stored row by name, decoded so that they can be compared with a replay."""
    facts = dict(zip(table.columns.keys(), row, strict=True))
    for name in _JSON:
        if name in facts:
            # text that is not JSON stays as it is, and then differs from every replayed value
            with suppress(ValueError, TypeError):
                facts[name] = json.loads(facts[name])
    if table is tables.release:
        facts["charge"] = bytes(facts["charge"])
    if table is tables.snapshot:
        facts["removed"] = facts["removed_at"] is not None
    if table is tables.arrival_epoch:
        facts["lost"] = facts["lost_at"] is not None
    return facts


def compare_reported(name: str, shown: Mapping[Key, Mapping[str, Any]], rows: Iterable[Row], *, every: bool) -> None:
    """Compare the stored ``rows`` of a table with the rows ``shown`` that the journal requires.

    With ``every``, there must be no further stored rows.

    Raises
    ------
    Corrupt
        At the first row that was changed, removed or inserted by hand. The message names columns but contains no
        values.
    """
    table = tables.metadata.tables[name]
    stored = {key_of(table, row): row for row in rows}
    for key, facts in shown.items():
        if key not in stored:
            raise Corrupt(f"the journal records {called(name, key)}, but its row is missing; {NEXT}")
        found = facts_of(table, stored[key])
        if changed := [column for column, value in facts.items() if found[column] != value]:
            raise Corrupt(f"the row of {called(name, key)} differs from the journal ({', '.join(changed)}); {NEXT}")
    if every and len(stored) > len(shown):
        strange = next(key for key in stored if key not in shown)
        raise Corrupt(f"{called(name, strange)} has a row, but no entry in the journal; {NEXT}")


def check_rows(
    connection: sa.Connection,
    name: str,
    rows: Iterable[Sequence[Any]],
    *where: sa.ColumnElement[bool],
    every: bool = False,
    first: Collection[str] | None = None,
) -> None:
    """Check that rows that are about to be used agree with the journal entries about them.

    Parameters
    ----------
    connection : sqlalchemy.Connection
    name : str
        The name of the table.
    rows : iterable of Row
        The rows, with all columns in the order of the table.
    *where : condition
        Conditions that select the journal entries about these rows; entries that meet any condition are read. An index
        must support each condition.
    every : bool
        Whether every row that these entries require must be among ``rows``.
    first : collection of str, optional
        Restricts the comparison to rows with these values in the first column of the primary key, if the entries are
        also about other rows.

    Raises
    ------
    Corrupt
        When a row was changed or inserted by hand or, with ``every``, removed. Triggers prevent this, but can be
        bypassed.
    """
    table, replay = tables.metadata.tables[name], Replay()
    found = [tuple(row) for row in rows]
    try:
        for batch in entries(connection, sa.or_(*where)):
            replay.take(batch)
    except (LookupError, ValueError, TypeError):
        raise Corrupt(f"the journal lacks entries that inserted rows of the {name} table; {NEXT}") from None
    keys = None if every else {key_of(table, row) for row in found}
    shown = {
        key: facts
        for key, facts in replay.reported[name].items()
        if (keys is None or key in keys) and (first is None or key[0] in first)
    }
    compare_reported(name, shown, found, every=True)
