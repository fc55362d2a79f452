"""Database rows of streams and their ticks (versions), and the stored noised answers of ticks.

All functions that take a connection run in the caller's transaction.

A stream publishes a release at every *tick* of a schedule, such as every night. The ticks are paid for in advance, by a
release that is charged for the whole stream, and that is never computed. Further ticks may be paid for later, by
further such releases. A stream is live while all these paying releases have begun and are not closed. A tick itself is
a release of charge zero. Its row assigns the tick permanently to a slot of the schedule (such as a date) and to one
snapshot.

The answer store contains a copy of each tick's noised answer, which the estimates of all later ticks use. The answer of
a tick cannot be computed again, because the tick's key is erased. Therefore the answer is stored before the tick is
committed, as the noised integers, with 8 bytes per coordinate. An answer is already noised and may be published.
Copying the folder of the store is a sufficient backup. If the answer of a tick is lost, estimates treat the tick as
closed.

`check_next` and `check_snapshot` check that the next tick may begin; `bind_tick` inserts the tick.
"""

import hashlib
import io
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import sqlalchemy as sa
from numpy.typing import NDArray

from dpca.backends.atomic_files import reached
from dpca.backends.base import Place, write_and_check
from dpca.errors import Conflict, Corrupt, NotFound, Refused
from dpca_tasks.accounting.calibration import smallest_epsilon, units_of
from dpca_tasks.accounting.events import stream_tick
from storage.database import tables
from storage.ledger import journal, releases
from storage.ledger.budgets import check_snapshot_unit, current_snapshot, read_budget
from storage.ledger.journal import check_rows
from storage.ledger.releases import KeyFolder, check_states

_ENTRY = tables.event.c


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamCharge:
    """A release that pays for ticks (versions) of a stream; it and earlier ones pay for ``ticks`` ticks together."""

    release_id: str
    ticks: int
    state: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """A stream (a release repeated on a schedule), with the releases that pay for its ticks (versions).

    Attributes
    ----------
    id : str, the id of the first paying release, which opened the stream
    name : str, the name under which ticks are published; two live streams never have the same name
    population : str, the population whose budget is charged
    fingerprint : str, digest of the terms
    terms : mapping, the settings that are fixed for the stream's life, as plain JSON values
    created_at : str
    charges : tuple of StreamCharge, the paying releases, oldest first
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
        """True if the stream is charged and not closed, so that ticks (versions) may begin."""
        return bool(self.charges) and all(charge.state == "noising" for charge in self.charges)

    @property
    def ticks(self) -> int:
        """The number of ticks (versions) that are paid for."""
        return max((charge.ticks for charge in self.charges), default=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """One tick of a stream: the release of one version.

    Attributes
    ----------
    stream : str, the id of the stream
    tick : int, the number of the tick, from 1
    slot : str, the slot of the schedule, such as a date
    release_id : str, the id of the tick's release
    snapshot_id : str, the snapshot from which the tick is computed, even if a newer one is ingested
    number : int, the number of the snapshot's ingest; 0 for a snapshot from before ingests were numbered
    arrivals : str, how the arrival times of records are known: ``rows`` (a row arrives with its snapshot), the id of a
        table of first-seen ids, or ``unknown``
    state : str, the state of the tick's release
    artifact_digest : str or None
    answer : str or None, digest of the tick's answer in the answer store
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
        """True if the tick is committed or closed, so that the next tick may begin."""
        return self.state in ("committed", "closed")


def find_stream(connection: sa.Connection, name: str) -> Stream | None:
    """Return the newest stream with this name, or None if there is none."""
    table = tables.stream
    query = sa.select(table).where(table.c.name == name).order_by(table.c.seq.desc()).limit(1)
    row = connection.execute(query).first()
    return None if row is None else _stream(connection, row)


def read_stream(connection: sa.Connection, name: str) -> Stream:
    """Return the newest stream with this name; raise `NotFound` if there is none."""
    found = find_stream(connection, name)
    if found is None:
        raise NotFound(f"stream {name!r} does not exist; see `dpca stream list`, or open it with `dpca stream open`.")
    return found


def stream_of(connection: sa.Connection, stream_id: str) -> Stream:
    """Return the stream with this id; raise `NotFound` if there is none."""
    row = connection.execute(sa.select(tables.stream).where(tables.stream.c.id == stream_id)).first()
    if row is None:
        raise NotFound(f"stream {stream_id!r} is not in this ledger; see `dpca stream list`.")
    return _stream(connection, row)


def streams_in(connection: sa.Connection) -> tuple[Stream, ...]:
    """Return all streams of the ledger, oldest first."""
    rows = connection.execute(sa.select(tables.stream).order_by(tables.stream.c.seq)).all()
    return tuple(_stream(connection, row) for row in rows)


def ticks_of(connection: sa.Connection, stream_id: str) -> tuple[Tick, ...]:
    """Return the ticks (versions) of a stream, oldest first.

    Raises
    ------
    Corrupt
        When a row of the ticks, of their answers, or of the newest tick's release was edited or inserted by hand.
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
    """Insert the row of a stream and append the journal entry; the caller inserts the paying release.

    ``row`` contains the columns, with ``terms`` as a mapping.
    """
    terms = json.dumps(dict(row["terms"]), sort_keys=True)
    then = {"created_at": journal.now(), **row, "terms": terms, "seq": journal.head(connection).seq + 1}
    connection.execute(tables.stream.insert().values(**then))
    shown = {name: row[name] for name in ("name", "fingerprint", "terms")}
    journal.append(connection, "stream_opened", population=row["population"], release_id=row["id"], detail=shown)


def enter_stream_charge(connection: sa.Connection, *, stream: str, ticks: int, release_id: str) -> None:
    """Record that a release pays for a stream's ticks (versions) up to number ``ticks``; append the journal entry."""
    connection.execute(tables.stream_charge.insert().values(stream=stream, ticks=ticks, release_id=release_id))
    journal.append(connection, "stream_charged", release_id=release_id, detail={"stream": stream, "ticks": ticks})


def enter_tick(connection: sa.Connection, row: Mapping[str, Any]) -> None:
    """Insert the row of a tick (version of a stream), whose release is already inserted; append the journal entry."""
    connection.execute(tables.tick.insert().values(**row))
    shown = {name: value for name, value in row.items() if name != "release_id"}
    journal.append(connection, "tick_begun", release_id=row["release_id"], detail=shown)


def enter_answer(connection: sa.Connection, *, stream: str, tick: int, release_id: str, digest: str) -> None:
    """Insert the digest of the stored answer of a tick (version of a stream), and append the journal entry."""
    shown = {"stream": stream, "tick": tick, "digest": digest}
    connection.execute(tables.tick_answer.insert().values(**shown))
    journal.append(connection, "tick_answered", release_id=release_id, detail=shown)


def _check(connection: sa.Connection, table: sa.Table, where: sa.ColumnElement[bool], entry: str) -> None:
    """Check that the rows of a table that meet a condition agree with their journal entries."""
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


FOLDER = "streams"

_NAME = re.compile(r"([0-9]{6})-([0-9a-f]{64})\.npy")


def keep_answer(
    place: Place, tick: Tick, answer: NDArray[np.int64], *, inputs: Mapping[str, NDArray[Any]] | None = None
) -> str:
    """Write the noised answer of a tick (version) durably to the answer store, and return the digest of the file.

    The file contains the answer. If its query has public inputs, an array of their names follows, and then the inputs.
    """
    buffer = io.BytesIO()
    np.save(buffer, answer, allow_pickle=False)
    if inputs:
        names = sorted(inputs)
        np.save(buffer, np.array(names), allow_pickle=False)
        for name in names:
            np.save(buffer, inputs[name], allow_pickle=False)
    payload = buffer.getvalue()
    digest = hashlib.sha256(payload).hexdigest()
    write_and_check(place, answer_path(tick.stream, tick.tick, digest), payload)
    reached("answer.file_written")
    return digest


def kept_answers(place: Place, stream_id: str) -> dict[int, set[str]]:
    """Return the digests of the stored answers of a stream, by tick, from the file names alone."""
    found: dict[int, set[str]] = {}
    for name in place.names(f"{FOLDER}/{stream_id}"):
        if matched := _NAME.fullmatch(name):
            found.setdefault(int(matched[1]), set()).add(matched[2])
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers(Mapping[int, NDArray[np.int64]]):
    """The stored answers of a stream's ticks (versions), as a mapping by tick; each is read from its file on access.

    Parameters
    ----------
    place : Place
    ticks : sequence of Tick
        The ticks of the stream. A tick without a recorded digest, or whose file is missing, has no answer.
    """

    place: Place
    ticks: tuple[Tick, ...]
    _digests: dict[int, str] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        """List the files of the answer store once."""
        held = kept_answers(self.place, self.ticks[0].stream) if self.ticks else {}
        found = {
            tick.tick: tick.answer
            for tick in self.ticks
            if tick.answer is not None and tick.answer in held.get(tick.tick, ())
        }
        object.__setattr__(self, "_digests", found)

    def __iter__(self) -> Iterator[int]:
        """Iterate over the ticks that have an answer, oldest first."""
        return iter(sorted(self._digests))

    def __len__(self) -> int:
        """Return the number of ticks that have an answer."""
        return len(self._digests)

    def __getitem__(self, tick: int) -> NDArray[np.int64]:
        """Read the answer of a tick; raises the errors of `read`."""
        return self.read(tick)[0]

    def read(self, tick: int) -> tuple[NDArray[np.int64], dict[str, NDArray[Any]]]:
        """Read the answer of a tick, and the public inputs of its query by name.

        Raises
        ------
        Corrupt
            When the file differs from the answer that was stored.
        """
        path = answer_path(self.ticks[0].stream, tick, self._digests[tick])
        payload = self.place.read(path).payload
        if hashlib.sha256(payload).hexdigest() != self._digests[tick]:
            raise Corrupt(
                f"{self.place.at(path)} is not the stored answer of tick {tick}; restore it from a copy, or remove it "
                "to estimate without this tick."
            )
        file = io.BytesIO(payload)
        answer: NDArray[np.int64] = np.load(file, allow_pickle=False)
        names = np.load(file, allow_pickle=False).tolist() if file.tell() < len(payload) else []
        return answer, {name: np.load(file, allow_pickle=False) for name in names}


def answer_path(stream_id: str, tick: int, digest: str) -> str:
    """Return the path of the noised answer of a tick (version of a stream) in the artifact store."""
    return f"{FOLDER}/{stream_id}/{tick:06d}-{digest}.npy"


MECHANISM = "stream"
"""The name of the mechanism in the stored requests of streams and ticks."""


def newest_snapshot(connection: sa.Connection, stream: Stream) -> sa.Row[Any]:
    """Return the row of the current snapshot of a stream's dataset; raise `NotFound` if there is none."""
    found = current_snapshot(connection, stream.terms["dataset"])
    if found is None:
        raise NotFound(f"dataset {stream.terms['dataset']!r} does not exist; ingest it.")
    return found


def as_bound(tick: Tick, snapshot_id: str | None) -> Tick:
    """Return the existing tick of a slot (such as a date), after checking that it uses the expected snapshot.

    Raises
    ------
    Conflict
        When ``snapshot_id`` is given, and the tick is assigned to another snapshot.
    """
    if snapshot_id not in (None, tick.snapshot_id):
        raise Conflict(
            f"slot {tick.slot!r} is tick {tick.tick}, which is permanently assigned to another snapshot; the next tick "
            "includes corrected data automatically."
        )
    return tick


def check_next(stream: Stream, ticks: tuple[Tick, ...]) -> None:
    """Check that the next tick (version) of a stream may begin.

    Raises
    ------
    Refused
        When the stream is closed, when all paid ticks are used, or when the newest tick is neither committed nor
        closed.
    """
    if not stream.is_live:
        raise Refused(f"stream {stream.name!r} is closed permanently; open a new stream, which is charged separately.")
    if ticks and not ticks[-1].is_settled:
        raise Refused(
            f"tick {ticks[-1].tick} of stream {stream.name!r} is under way for slot {ticks[-1].slot!r}; run this slot "
            f"again, or close the tick with `dpca stream close {stream.name} --tick {ticks[-1].tick}`."
        )
    if len(ticks) >= stream.ticks:
        raise Refused(
            f"stream {stream.name!r} is charged for {stream.ticks} ticks, and all are used; pay for more with `dpca "
            f"stream extend {stream.name} --ticks N`, or open a new stream."
        )


def check_snapshot(
    connection: sa.Connection, stream: Stream, ticks: tuple[Tick, ...], newest: sa.Row[Any], *, insisted: str | None
) -> None:
    """Check that the next tick (version) of a stream may be computed from the newest snapshot.

    Raises
    ------
    Conflict
        When the caller requires another snapshot, by its id in ``insisted``.
    Refused
        When the newest snapshot is older than the snapshot of the previous tick, because the latter was removed. The
        number of arrived records must not decrease from tick to tick. Also when the snapshot has another privacy unit
        than the budget.
    """
    if insisted not in (None, newest.id):
        raise Conflict(f"the next tick must use the newest snapshot, {newest.id}, not {insisted}; omit --snapshot.")
    table = tables.snapshot
    check_snapshot_unit(connection, read_budget(connection, stream.population), newest.id)
    before = connection.scalar(sa.select(table.c.seq).where(table.c.id == ticks[-1].snapshot_id)) if ticks else None
    if before is not None and (newest.seq or 0) < before:
        raise Refused(
            f"the newest snapshot of {stream.terms['dataset']!r} is older than the snapshot of tick {ticks[-1].tick}, "
            "and the number of arrived records must not decrease; ingest the data again."
        )


def number_of(snapshot: sa.Row[Any]) -> int:
    """Return the number of the ingest that made a snapshot, from the snapshot's row."""
    return int(snapshot.number)


def epoch_of(snapshot: sa.Row[Any]) -> str | None:
    """Return the id of the table from which a snapshot's first-seen numbers come, or None without such numbers."""
    epoch: str | None = snapshot.epoch
    return epoch


def arrivals_of(stream: Stream, ticks: tuple[Tick, ...], *, epoch: str | None) -> str:
    """Return the source of the arrival times of records at the next tick (version) of a stream.

    The source is "rows", "unknown", or the id of a table (arrival epoch). With "rows", each row arrives with its
    snapshot. A table has the number of the ingest in which each individual's id first appeared. A stream uses the table
    of its first tick. From the first tick whose snapshot has no table or another table, all arrivals are unknown
    permanently. Otherwise an id could arrive later according to the new table than according to the old one.
    """
    if stream.terms.get("unit") == "rows":
        return "rows"
    known = {epoch or "unknown", *(tick.arrivals for tick in ticks)}
    return known.pop() if len(known) == 1 else "unknown"


def bind_tick(
    connection: sa.Connection,
    stream: Stream,
    ticks: tuple[Tick, ...],
    *,
    slot: str,
    snapshot: sa.Row[Any],
    keys: KeyFolder,
) -> Tick:
    """Insert the tick that follows ``ticks``, a release of charge zero, for a slot (such as a date) and a snapshot."""
    at, key = len(ticks) + 1, releases.new_key()
    release_id = releases.release_id_of(key)
    if releases.find_release(connection, release_id) is not None:
        raise Conflict(f"release {release_id} already exists; a key serves only one release: draw another key.")
    keys.create(release_id, key)
    reached("tick.key_written")
    rules = read_budget(connection, stream.population).build_filter()
    epsilon, delta = guarantee_of(connection, stream)
    row = {
        **{"id": release_id, "population": stream.population, "run_key": f"stream {stream.id} tick {at}"},
        **{"fingerprint": stream.fingerprint, "snapshot_id": snapshot.id},
        **{"request": {"mechanism": MECHANISM, "stream": stream.name, "tick": at, "slot": slot}},
        **{"event": stream_tick(stream.id, at, stream.terms["noise_multiplier"])},
        **{"epsilon": epsilon, "delta": delta, "accounting": rules.accounting},
    }
    releases.enter_release(connection, row, charge=rules.zero, state="noising")
    journal.append(connection, "release_begun", population=stream.population, release_id=release_id)
    bound = {"stream": stream.id, "tick": at, "slot": slot, "release_id": release_id, "snapshot_id": snapshot.id}
    known = arrivals_of(stream, ticks, epoch=epoch_of(snapshot))
    # ingest numbers may restart at 1 after a restore, but must not decrease from tick to tick
    number = max([number_of(snapshot), *(tick.number for tick in ticks[-1:])])
    enter_tick(connection, {**bound, "number": number, "arrivals": known})
    return ticks_of(connection, stream.id)[-1]


def guarantee_of(connection: sa.Connection, stream: Stream) -> tuple[float, float]:
    """Return the epsilon and delta of all paid ticks (versions) of a stream together."""
    rows = [releases.read_release(connection, charge.release_id) for charge in stream.charges]
    delta = rows[0].delta
    if len(rows) == 1:
        return rows[0].epsilon, delta
    return smallest_epsilon(sum(units_of(float(row.event["noise_multiplier"])) for row in rows), delta), delta
