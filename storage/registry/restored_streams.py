"""Streams of a restored ledger: enter the ticks that it lacks, and let only those streams go on that lack nothing.

A tick that was answered and is forgotten would be answered again under another key, and be paid for once. The witness
noted every tick that began, with its whole row; the manifest of a published one states it too; and the store of a
stream's answers shows which ticks had one. A stream of which one of these knows more than could be entered is closed.
"""

import json
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa

from dpca_tasks.accounting.events import Event, gaussian, stream_tick
from storage.backends.base import Place
from storage.database import tables
from storage.ledger import journal
from storage.ledger.budgets import read_budget
from storage.ledger.charged_totals import charged_to
from storage.ledger.releases import enter_release, move_release, read_release
from storage.ledger.stream_answers import kept_answers
from storage.ledger.stream_rows import (
    Tick,
    enter_answer,
    enter_stream,
    enter_stream_charge,
    enter_tick,
    stream_of,
    streams_in,
    ticks_of,
)
from storage.ledger.streams import close_stream, fingerprint_of
from storage.ledger.witness import Note

_LOST = "lost with the ledger"


def enter_stream_facts(connection: sa.Connection, note: Note) -> None:
    """Enter the rows by which a noted release, which is entered, opens a stream or pays for one."""
    if "stream" in note:
        enter_stream(connection, {**note["stream"], "terms": json.loads(note["stream"]["terms"])})
    if "stream_charge" in note:
        enter_stream_charge(connection, **note["stream_charge"])


def make_room(
    connection: sa.Connection,
    event: Event,
    *,
    population: str,
    digests: Mapping[str, str],
    name: str,
    facts: Mapping[str, Any],
) -> None:
    """Settle and enter whatever must come before a lost tick: its stream, who pays for it, and the ticks before.

    Parameters
    ----------
    connection : Connection
    event : Event
        Of the tick.
    population : str
    digests : mapping of str to str
        Of the artifacts of releases whose versions the ledger lacks.
    name : str
        Under which the stream publishes, where no row tells.
    facts : mapping
        What is stated of the tick; ``ticks`` is how many were paid for when it began.
    """
    stream_id, at, multiplier = str(event["stream"]), int(event["tick"]), float(event["noise_multiplier"])
    known = connection.execute(sa.select(tables.stream.c.id).where(tables.stream.c.id == stream_id)).first()
    if known is None or stream_of(connection, stream_id).ticks < at:
        payer = stream_id if known is None else secrets.token_hex(16)
        paid = max(at, int(facts.get("ticks") or at))
        _pay(connection, stream_id, paid, multiplier, population=population, name=name, release_id=payer)
    ticks = ticks_of(connection, stream_id)
    if ticks:
        _settle(connection, ticks[-1], digests)
    for missing in range(len(ticks) + 1, at):
        _fill(connection, stream_id, missing, multiplier, population=population)


def enter_lost_tick(connection: sa.Connection, release_id: str, event: Event, facts: Mapping[str, Any]) -> None:
    """Enter the row of a lost tick, whose release is entered, from a note or from what its manifest states."""
    enter_tick(
        connection,
        {
            "stream": event["stream"],
            "tick": event["tick"],
            "slot": str(facts.get("slot") or f"tick {event['tick']}, {_LOST}"),
            "release_id": release_id,
            "snapshot_id": str(facts.get("snapshot_id") or "unknown"),
            "number": int(facts.get("number") or 0),
            "arrivals": str(facts.get("arrivals") or "unknown"),
        },
    )


def finish_streams(connection: sa.Connection, place: Place, noted: Sequence[Note]) -> None:
    """Enter the answers that the ledger lacks, and close every live stream that cannot go on.

    A stream goes on if the number of each of its ticks is known, and each answer in its store is that of one of them.
    """
    told = {
        (note["answer"]["stream"], note["answer"]["tick"]): note["answer"]["digest"]
        for note in noted
        if "answer" in note
    }
    for stream in streams_in(connection):
        ticks = ticks_of(connection, stream.id)
        kept = kept_answers(place, stream.id)
        for tick in ticks:
            digest = told.get((stream.id, tick.tick)) or _only(kept.get(tick.tick, set()))
            if tick.answer is None and digest is not None:
                at, release_id = tick.tick, tick.release_id
                enter_answer(connection, stream=stream.id, tick=at, release_id=release_id, digest=digest)
        known = {tick.tick: tick.answer for tick in ticks_of(connection, stream.id)}
        strange = any(known.get(at) is None or digests - {known[at]} for at, digests in kept.items())
        lost = any(_LOST in tick.slot for tick in ticks) or not stream.terms
        if stream.is_live and (strange or lost):
            close_stream(connection, stream)


def _only(digests: set[str]) -> str | None:
    return next(iter(digests)) if len(digests) == 1 else None


def _settle(connection: sa.Connection, tick: Tick, digests: Mapping[str, str]) -> None:
    """Settle the tick before a lost one: as it is published, else as closed."""
    if tick.is_settled:
        return
    row = read_release(connection, tick.release_id, lock=True)
    digest = digests.get(tick.release_id)
    if digest is None:
        move_release(connection, row, "closed", "release_closed")
    else:
        move_release(connection, row, "committed", "release_committed", artifact_digest=digest)


def _fill(connection: sa.Connection, stream_id: str, tick: int, multiplier: float, *, population: str) -> None:
    """Enter a tick of which nothing is left but that later ones began."""
    release_id, event = secrets.token_hex(16), stream_tick(stream_id, tick, multiplier)
    _enter(connection, release_id, event, population=population, run_key=f"stream {stream_id} tick {tick}", charge=None)
    enter_lost_tick(connection, release_id, event, {})
    move_release(connection, read_release(connection, release_id, lock=True), "closed", "release_closed")


def _pay(
    connection: sa.Connection,
    stream_id: str,
    ticks: int,
    multiplier: float,
    *,
    population: str,
    name: str,
    release_id: str,
) -> None:
    """Charge a stream that the ledger lacks, or ticks of one: the whole event once more, of which more is never left.

    An extension is at most to ten times the ticks, which costs less than the stream itself did.
    """
    budget, event = read_budget(connection, population), gaussian(multiplier)
    charge = budget.build_filter().charge_after(charged_to(connection, budget), event, delta=budget.delta)
    _enter(connection, release_id, event, population=population, run_key=f"stream restored {release_id}", charge=charge)
    if release_id == stream_id:
        row = {"id": stream_id, "name": name, "population": population, "terms": {}, "fingerprint": fingerprint_of({})}
        enter_stream(connection, row)
    enter_stream_charge(connection, stream=stream_id, ticks=ticks, release_id=release_id)


def _enter(
    connection: sa.Connection,
    release_id: str,
    event: Event,
    *,
    population: str,
    run_key: str,
    charge: tuple[int, ...] | None,
) -> None:
    budget = read_budget(connection, population)
    rules = budget.build_filter()
    row = {
        **{"id": release_id, "population": population, "run_key": run_key, "fingerprint": "unknown"},
        **{"snapshot_id": "unknown", "request": {"mechanism": "stream"}, "event": event},
        **{"epsilon": budget.epsilon, "delta": budget.delta, "accounting": rules.accounting},
    }
    enter_release(connection, row, charge=rules.zero if charge is None else charge, state="noising")
    subject = {"population": population, "release_id": release_id}
    journal.append(connection, "release_begun", **subject, detail={"found_in": "stream"})
