"""Streams and their ticks as the ledger's rows say, read and entered inside a transaction of the caller.

A stream is a release that is charged beforehand and never computed: it is live while that release, and each one that
pays for more ticks, has begun and is not closed. A tick is a release of charge zero, and a row that binds it to a slot
of the schedule and to one snapshot.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from storage.database import tables
from storage.errors import NotFound
from storage.ledger import journal
from storage.ledger.releases import check_states
from storage.ledger.replay import check_rows

_ENTRY = tables.event.c


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamCharge:
    """A release that pays for ticks of a stream: all up to ``ticks``, together with those before it."""

    release_id: str
    ticks: int
    state: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """One stream.

    Attributes
    ----------
    id : str, of the release that opened it
    name : str, under which its ticks are published; no two live streams have one
    population : str
    fingerprint : str, digest of the terms
    terms : mapping, everything that is fixed for the stream's life, as plain JSON values
    created_at : str
    charges : tuple of StreamCharge, oldest first
    """

    id: str
    name: str
    population: str
    fingerprint: str
    terms: Mapping[str, Any]
    created_at: str
    charges: tuple[StreamCharge, ...]

    @property
    def is_live(self) -> bool:
        """Whether it was charged and is not closed: only then may ticks begin."""
        return bool(self.charges) and all(charge.state == "noising" for charge in self.charges)

    @property
    def ticks(self) -> int:
        """The number of ticks that it is charged for."""
        return max((charge.ticks for charge in self.charges), default=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """One tick of a stream.

    Attributes
    ----------
    stream : str
    tick : int, from 1
    slot : str, of the schedule
    release_id : str
    snapshot_id : str, to which it is bound, whatever is ingested later
    number : int, of that snapshot's ingest; 0 for one that is older than the numbering
    arrivals : str, what is known of when its records arrived: ``rows``, the id of the table that tells it of ids, or
        ``unknown``
    state : str, of its release
    artifact_digest : str or None
    answer : str or None, digest of the copy in the stream's store
    """

    stream: str
    tick: int
    slot: str
    release_id: str
    snapshot_id: str
    number: int
    arrivals: str
    state: str
    artifact_digest: str | None
    answer: str | None

    @property
    def is_settled(self) -> bool:
        """Whether it is committed or closed, so that the next one may begin."""
        return self.state in ("committed", "closed")


def find_stream(connection: sa.Connection, name: str) -> Stream | None:
    """Return the newest stream of a name, if there is one."""
    table = tables.stream
    query = sa.select(table).where(table.c.name == name).order_by(table.c.seq.desc()).limit(1)
    row = connection.execute(query).first()
    return None if row is None else _stream(connection, row)


def read_stream(connection: sa.Connection, name: str) -> Stream:
    """Return the newest stream of a name, or raise `NotFound`."""
    found = find_stream(connection, name)
    if found is None:
        raise NotFound(f"no stream is named {name!r}; see `dpca stream list`, or open one with `dpca stream open`.")
    return found


def stream_of(connection: sa.Connection, stream_id: str) -> Stream:
    """Return a stream by its id, or raise `NotFound`."""
    row = connection.execute(sa.select(tables.stream).where(tables.stream.c.id == stream_id)).first()
    if row is None:
        raise NotFound(f"stream {stream_id!r} is not in this ledger; see `dpca stream list`.")
    return _stream(connection, row)


def streams_in(connection: sa.Connection) -> tuple[Stream, ...]:
    """Return every stream, oldest first."""
    rows = connection.execute(sa.select(tables.stream).order_by(tables.stream.c.seq)).all()
    return tuple(_stream(connection, row) for row in rows)


def ticks_of(connection: sa.Connection, stream_id: str) -> tuple[Tick, ...]:
    """Return the ticks of a stream, oldest first.

    Raises
    ------
    Corrupt
        When a row of them, of their answers or of the last one's release was edited or inserted by hand.
    """
    table, release, answer = tables.tick, tables.release, tables.tick_answer
    _check(connection, table, table.c.stream == stream_id, "tick_begun")
    of_stream = sa.select(table.c.release_id).where(table.c.stream == stream_id)
    answered = (_ENTRY.name == "tick_answered") & _ENTRY.release_id.in_(of_stream)
    rows = connection.execute(sa.select(answer).where(answer.c.stream == stream_id)).all()
    check_rows(connection, "tick_answer", rows, answered)
    last = of_stream.order_by(table.c.tick.desc()).limit(1)
    check_states(connection, connection.execute(sa.select(release).where(release.c.id.in_(last))).all())
    of_answer = (answer.c.stream == table.c.stream) & (answer.c.tick == table.c.tick)
    query = (
        sa.select(table, release.c.state, release.c.artifact_digest, answer.c.digest.label("answer"))
        .join(release, release.c.id == table.c.release_id)
        .outerjoin(answer, of_answer)
        .where(table.c.stream == stream_id)
        .order_by(table.c.tick)
    )
    return tuple(Tick(**row._mapping) for row in connection.execute(query))


def enter_stream(connection: sa.Connection, row: Mapping[str, Any]) -> None:
    """Write the row of a stream, whose terms are a mapping, and its journal entry; the caller enters its charge."""
    terms = json.dumps(dict(row["terms"]), sort_keys=True)
    then = {"created_at": journal.now(), **row, "terms": terms, "seq": journal.head(connection).seq + 1}
    connection.execute(tables.stream.insert().values(**then))
    told = {name: row[name] for name in ("name", "fingerprint", "terms")}
    journal.append(connection, "stream_opened", population=row["population"], release_id=row["id"], detail=told)


def enter_stream_charge(connection: sa.Connection, *, stream: str, ticks: int, release_id: str) -> None:
    """Write that a release pays for the ticks of a stream up to a number, and the journal entry."""
    connection.execute(tables.stream_charge.insert().values(stream=stream, ticks=ticks, release_id=release_id))
    journal.append(connection, "stream_charged", release_id=release_id, detail={"stream": stream, "ticks": ticks})


def enter_tick(connection: sa.Connection, row: Mapping[str, Any]) -> None:
    """Write the row of a tick, whose release is entered, and its journal entry."""
    connection.execute(tables.tick.insert().values(**row))
    told = {name: value for name, value in row.items() if name != "release_id"}
    journal.append(connection, "tick_begun", release_id=row["release_id"], detail=told)


def enter_answer(connection: sa.Connection, *, stream: str, tick: int, release_id: str, digest: str) -> None:
    """Write the digest of the copy of a tick's answer, and the journal entry."""
    told = {"stream": stream, "tick": tick, "digest": digest}
    connection.execute(tables.tick_answer.insert().values(**told))
    journal.append(connection, "tick_answered", release_id=release_id, detail=told)


def _check(connection: sa.Connection, table: sa.Table, where: sa.ColumnElement[bool], entry: str) -> None:
    """Check that the rows of some releases in a table say what the journal says."""
    rows = connection.execute(sa.select(table).where(where)).all()
    of_these = _ENTRY.release_id.in_(sa.select(table.c.release_id).where(where))
    check_rows(connection, table.name, rows, (_ENTRY.name == entry) & of_these)


def _stream(connection: sa.Connection, row: sa.Row[Any]) -> Stream:
    table, release = tables.stream_charge, tables.release
    check_rows(connection, "stream", [row], (_ENTRY.release_id == row.id) & (_ENTRY.name == "stream_opened"))
    _check(connection, table, table.c.stream == row.id, "stream_charged")
    paying = sa.select(table.c.release_id).where(table.c.stream == row.id)
    check_states(connection, connection.execute(sa.select(release).where(release.c.id.in_(paying))).all())
    query = (
        sa.select(table.c.release_id, table.c.ticks, release.c.state)
        .join(release, release.c.id == table.c.release_id)
        .where(table.c.stream == row.id)
        .order_by(table.c.ticks)
    )
    charges = tuple(StreamCharge(**found._mapping) for found in connection.execute(query))
    values = dict(row._mapping)
    del values["seq"]
    return Stream(**{**values, "terms": json.loads(values["terms"])}, charges=charges)
