"""The next tick of a stream: what must hold before it begins, and the rows that bind it to a slot and a snapshot."""

from typing import Any

import sqlalchemy as sa

from dpca_tasks.accounting.events import stream_tick
from dpca_tasks.accounting.gaussian import smallest_epsilon, units_of
from storage.backends.crash_points import reached
from storage.database import tables
from storage.errors import Conflict, NotFound, Refused
from storage.ledger import journal, releases, secret_keys
from storage.ledger.budgets import check_snapshot_unit, current_snapshot, read_budget
from storage.ledger.secret_keys import KeyFolder
from storage.ledger.stream_rows import Stream, Tick, enter_tick, ticks_of

MECHANISM = "stream"
"""The mechanism that is stated of streams and their ticks."""


def newest_snapshot(connection: sa.Connection, stream: Stream) -> sa.Row[Any]:
    """Return the newest snapshot of a stream's dataset that is not removed, by the journal, or raise `NotFound`."""
    found = current_snapshot(connection, stream.terms["dataset"])
    if found is None:
        raise NotFound(f"no dataset is named {stream.terms['dataset']!r}; ingest one.")
    return found


def as_bound(tick: Tick, snapshot_id: str | None) -> Tick:
    """Return the tick that a slot has.

    Raises
    ------
    Conflict
        When it is bound to another snapshot than the one insisted on.
    """
    if snapshot_id not in (None, tick.snapshot_id):
        raise Conflict(
            f"slot {tick.slot!r} is tick {tick.tick}, which is bound to another snapshot for good; corrected data "
            "enter with the next tick by themselves."
        )
    return tick


def check_next(stream: Stream, ticks: tuple[Tick, ...]) -> None:
    """Check that a stream may have another tick.

    Raises
    ------
    Refused
        When it is closed, all its ticks are used, or one is under way.
    """
    if not stream.is_live:
        raise Refused(f"stream {stream.name!r} is closed for good; open a new one, which is charged anew.")
    if ticks and not ticks[-1].is_settled:
        raise Refused(
            f"tick {ticks[-1].tick} of stream {stream.name!r} is under way for slot {ticks[-1].slot!r}; run that slot "
            f"again, or give it up with `dpca stream close {stream.name} --tick {ticks[-1].tick}`."
        )
    if len(ticks) >= stream.ticks:
        raise Refused(
            f"stream {stream.name!r} is charged for {stream.ticks} ticks, and all are used; pay for more with "
            f"`dpca stream extend {stream.name} --ticks N`, or open a new stream where this one has no more."
        )


def check_snapshot(
    connection: sa.Connection, stream: Stream, ticks: tuple[Tick, ...], newest: sa.Row[Any], *, insisted: str | None
) -> None:
    """Check that the next tick may be bound to a snapshot.

    Raises
    ------
    Conflict
        When it is not the one insisted on.
    Refused
        When it is older than that of the tick before, which was removed: arrivals never fall; or has another unit of
        privacy than the budget.
    """
    if insisted not in (None, newest.id):
        raise Conflict(f"the newest snapshot is {newest.id}, to which the next tick is bound; leave --snapshot out.")
    table = tables.snapshot
    check_snapshot_unit(connection, read_budget(connection, stream.population), newest.id)
    before = connection.scalar(sa.select(table.c.seq).where(table.c.id == ticks[-1].snapshot_id)) if ticks else None
    if before is not None and (newest.seq or 0) < before:
        raise Refused(
            f"the newest snapshot of {stream.terms['dataset']!r} is older than the one of tick {ticks[-1].tick}, and "
            "arrivals never fall; ingest the data again."
        )


def number_of(snapshot: sa.Row[Any]) -> int:
    """Return the number of a snapshot's ingest."""
    return int(snapshot.number)


def epoch_of(snapshot: sa.Row[Any]) -> str | None:
    """Return the id of the table of ids that the numbers in a snapshot's blocks are from; None where they have none."""
    epoch: str | None = snapshot.epoch
    return epoch


def arrivals_of(stream: Stream, ticks: tuple[Tick, ...], *, epoch: str | None) -> str:
    """Return what is known of arrivals at the next tick: ``rows``, the table that tells those of ids, or ``unknown``.

    A stream keeps to the table of its first tick. From the first tick on that has none, or another one, all arrivals
    are unknown for good: an id could come later by it than it came before.
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
    """Enter the tick after ``ticks`` as a release of charge zero that began, bound to a slot and a snapshot."""
    at, key = len(ticks) + 1, secret_keys.new_key()
    release_id = secret_keys.release_id_of(key)
    if releases.find_release(connection, release_id) is not None:
        raise Conflict(f"release {release_id} exists already; a key serves one release: draw another.")
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
    number = max([number_of(snapshot), *(tick.number for tick in ticks[-1:])])  # a restored ledger may count anew
    enter_tick(connection, {**bound, "number": number, "arrivals": known})
    return ticks_of(connection, stream.id)[-1]


def guarantee_of(connection: sa.Connection, stream: Stream) -> tuple[float, float]:
    """Return the epsilon and delta that all ticks charged so far have together."""
    rows = [releases.read_release(connection, charge.release_id) for charge in stream.charges]
    delta = rows[0].delta
    if len(rows) == 1:
        return rows[0].epsilon, delta
    return smallest_epsilon(sum(units_of(float(row.event["noise_multiplier"])) for row in rows), delta), delta
