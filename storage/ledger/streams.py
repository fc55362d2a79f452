"""Streams: releases at every tick of a schedule, which are paid for by one Gaussian charge in advance.

``open`` charges the event of a stream and marks the charge as begun, in one transaction, so that the charge cannot be
refunded. ``extend`` charges further ticks in the same way. ``begin_tick`` assigns the next tick to a slot of the
schedule and to the newest snapshot, in one transaction. A repeated call for the same slot returns the same tick,
whatever was ingested since. Each tick is a release with a separate key. It is computed and committed like any other
release, at no further charge. ``answered`` records that the noised answer of a tick is stored, for the estimates of
later ticks.

Examples
--------
::

    stream = ledger.streams.open("people", name="nightly", ticks=365, event=gaussian(4.2), epsilon=1.0, delta=1e-6,
                                 terms={"dataset": "visits"})
    tick = ledger.streams.begin_tick("nightly", slot="2026-11-23", fingerprint=stream.fingerprint)
    reservation = ledger.begin(tick.release_id)
"""

import hashlib
import json
import secrets
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

import sqlalchemy as sa

from dpca.backends.atomic_files import reached
from dpca.errors import Conflict, Invalid, NotFound, Refused
from dpca_tasks.accounting.events import Event
from storage.database import tables
from storage.ledger import budgets, journal, releases
from storage.ledger.balance import admitted_charge
from storage.ledger.budgets import Budget, check_name, lock_budget, read_budget
from storage.ledger.releases import KeyFolder
from storage.ledger.stream_rows import (
    MECHANISM,
    Stream,
    Tick,
    as_bound,
    bind_tick,
    check_next,
    check_snapshot,
    enter_answer,
    enter_stream,
    enter_stream_charge,
    find_stream,
    newest_snapshot,
    read_stream,
    stream_of,
    streams_in,
    ticks_of,
)
from storage.ledger.witness import Witnesses, note_answer, note_release


class Transactions(Protocol):
    """Interface of a ledger's transactions; see `storage.ledger.ledger.Ledger`."""

    def transaction(self) -> AbstractContextManager[sa.Connection]: ...  # noqa: D102

    def reading(self) -> AbstractContextManager[sa.Connection]: ...  # noqa: D102

    def drawing(self) -> AbstractContextManager[None]: ...  # noqa: D102


def fingerprint_of(terms: Mapping[str, Any]) -> str:
    """Return the digest of a stream's terms, the settings that are fixed for its life."""
    return hashlib.sha256(json.dumps(dict(terms), sort_keys=True, allow_nan=False).encode()).hexdigest()


def check_standing(standing: Stream, *, population: str, fingerprint: str, ticks: int) -> None:
    """Check that the live stream of a name is the requested stream.

    Raises
    ------
    Conflict
        When the live stream has another population or other terms, or fewer paid ticks than requested.
    """
    if (standing.population, standing.fingerprint) != (population, fingerprint) or standing.ticks < ticks:
        raise Conflict(
            f"stream {standing.name!r} is live with other terms, which never change; close it, choose another name, "
            "or pay for more ticks with `dpca stream extend`."
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Streams:
    """Operations on the streams (scheduled releases) of a ledger; `storage.ledger.ledger.Ledger.streams` returns it."""

    ledger: Transactions
    keys: KeyFolder
    witness: Witnesses
    forget: Callable[[str], None]

    def open(
        self,
        population: str,
        *,
        name: str,
        ticks: int,
        event: Event,
        epsilon: float,
        delta: float,
        terms: Mapping[str, Any],
    ) -> Stream:
        """Charge and begin a stream, or return the live stream of this name if it has the same terms.

        Parameters
        ----------
        population : str
            The population whose budget is charged.
        name : str
            The name under which the ticks are published.
        ticks : int
            The number of ticks to charge now.
        event : mapping
            The Gaussian DP event of all these ticks together.
        epsilon, delta : float
            The nominal guarantee of the event.
        terms : mapping
            The settings that are fixed for the life of the stream, as plain JSON values. They include ``dataset``, the
            ``noise_multiplier`` of a tick, and ``unit``. The unit is ``ids`` if individuals have ids, or ``rows`` if
            one row of one night is the privacy unit.

        Raises
        ------
        Conflict
            When the live stream of this name has other terms, or fewer paid ticks.
        BudgetExhausted
            When the budget does not admit the event. Nothing is charged or written.
        """
        check_name("name of a stream", name)
        _check_ticks(ticks)
        fingerprint = fingerprint_of(terms)
        with self.ledger.transaction() as connection:
            budget = read_budget(connection, population)
            lock_budget(connection, budget)
            standing = find_stream(connection, name)
            if standing is not None and standing.is_live:
                check_standing(standing, population=population, fingerprint=fingerprint, ticks=ticks)
                return standing
            stream_id = secrets.token_hex(16)
            run_key = f"stream {name} {stream_id}"
            guarantee = {"epsilon": epsilon, "delta": delta}
            self._charge(connection, budget, stream_id, run_key, fingerprint, name, ticks, event, **guarantee)
            row = {"id": stream_id, "name": name, "population": population, "fingerprint": fingerprint, "terms": terms}
            enter_stream(connection, row)
            enter_stream_charge(connection, stream=stream_id, ticks=ticks, release_id=stream_id)
            self.witness.note(note_release(connection, stream_id))
            found = stream_of(connection, stream_id)
            reached("stream.row_written")
        reached("stream.row_committed")
        return found

    def extend(self, name: str, *, ticks: int, event: Event, epsilon: float, after: int) -> Stream:
        """Charge a stream for further ticks (versions), so that ``ticks`` ticks in total are paid for.

        If ``ticks`` ticks are already paid for, the stream is returned unchanged. ``after`` is the number of paid ticks
        that the caller assumes. ``event`` is the Gaussian DP event that ``ticks`` ticks cost in addition to ``after``
        ticks. ``epsilon`` is the nominal guarantee of this event at the delta of the stream.

        Raises
        ------
        Refused
            When the stream is closed.
        Conflict
            When the number of paid ticks is no longer ``after``.
        BudgetExhausted
            When the budget does not admit the event. Nothing is charged or written.
        """
        _check_ticks(ticks)
        with self.ledger.transaction() as connection:
            stream = self._locked(connection, name)
            if ticks <= stream.ticks:
                return stream
            if stream.ticks != after:
                raise Conflict(
                    f"stream {name!r} is now charged for {stream.ticks} ticks, not {after}; run the command again."
                )
            budget = read_budget(connection, stream.population)
            opened = releases.read_release(connection, stream.id)
            release_id = secrets.token_hex(16)
            run_key, guarantee = f"stream {stream.id} to {ticks}", {"epsilon": epsilon, "delta": opened.delta}
            self._charge(connection, budget, release_id, run_key, stream.fingerprint, name, ticks, event, **guarantee)
            enter_stream_charge(connection, stream=stream.id, ticks=ticks, release_id=release_id)
            self.witness.note(note_release(connection, release_id))
            found = stream_of(connection, stream.id)
            reached("stream.row_written")
        reached("stream.row_committed")
        return found

    def begin_tick(
        self,
        name: str,
        *,
        slot: str,
        fingerprint: str,
        snapshot_id: str | None = None,
    ) -> Tick:
        """Begin the next tick (version) of a live stream for a slot of the schedule, or return the slot's tick.

        Parameters
        ----------
        name : str
            The name of the stream.
        slot : str
            The slot of the schedule, such as a date; a slot has at most one tick.
        fingerprint : str
            The digest of the terms that the caller expects.
        snapshot_id : str, optional
            The id of the snapshot that the tick must use; by default, the newest snapshot.

        Raises
        ------
        Conflict
            When the stream has other terms. Also when ``snapshot_id`` differs from the snapshot of the slot's tick or,
            for a new tick, from the newest snapshot.
        Refused
            When the stream is closed, when all paid ticks are used, or when the previous tick is neither committed nor
            closed. Also when the newest snapshot is older than the snapshot of the previous tick, or has another
            privacy unit than the budget.
        """
        check_name("slot", slot)
        with self.ledger.drawing(), self.ledger.transaction() as connection:
            stream = read_stream(connection, name)
            lock_budget(connection, read_budget(connection, stream.population))
            stream = stream_of(connection, stream.id)
            if stream.fingerprint != fingerprint:
                raise Conflict(
                    f"stream {name!r} was opened with other terms, which never change; use the terms from `dpca "
                    "stream show`."
                )
            ticks = ticks_of(connection, stream.id)
            standing = next((tick for tick in ticks if tick.slot == slot), None)
            if standing is not None:
                return as_bound(standing, snapshot_id)
            check_next(stream, ticks)
            snapshot = newest_snapshot(connection, stream)
            check_snapshot(connection, stream, ticks, snapshot, insisted=snapshot_id)
            tick = bind_tick(connection, stream, ticks, slot=slot, snapshot=snapshot, keys=self.keys)
            self.witness.note(note_release(connection, tick.release_id))
            reached("tick.row_written")
        reached("tick.row_committed")
        return tick

    def answered(self, tick: Tick, *, digest: str) -> str:
        """Record the digest of a tick's noised answer, which is in the answer store; return the recorded digest.

        Raises
        ------
        Conflict
            When another digest is recorded for the tick, so one of the two answers is damaged.
        """
        with self.ledger.transaction() as connection:
            releases.read_release(connection, tick.release_id, lock=True)
            table = tables.tick_answer
            same = sa.select(table.c.digest).where(table.c.stream == tick.stream, table.c.tick == tick.tick)
            standing = connection.execute(same).scalar_one_or_none()
            if standing is None:
                shown: dict[str, Any] = {"stream": tick.stream, "tick": tick.tick, "digest": digest}
                enter_answer(connection, release_id=tick.release_id, **shown)
                self.witness.note(note_answer(**shown))
            elif standing != digest:
                raise Conflict(f"another answer is recorded for tick {tick.tick} of the stream; close the tick.")
            reached("answer.row_written")
        reached("answer.row_committed")
        return digest

    def close_tick(self, name: str, tick: int) -> Tick:
        """Close a tick (version) that has begun but is not committed, and erase its key and stored answers.

        The tick counts as used, and the next tick may begin.

        Raises
        ------
        NotFound
            When the stream has no such tick.
        Refused
            When the tick is committed.
        """
        with self.ledger.transaction() as connection:
            stream = read_stream(connection, name)
            ticks = ticks_of(connection, stream.id)
            if not 1 <= tick <= len(ticks):
                raise NotFound(f"stream {name!r} has ticks 1 to {len(ticks)}, not {tick}; see `dpca stream show`.")
            row = releases.read_release(connection, ticks[tick - 1].release_id, lock=True)
            if row.state == "committed":
                raise Refused(
                    f"tick {tick} of stream {name!r} is published and cannot be closed; close the stream instead."
                )
            if row.state == "noising":
                releases.move_release(connection, row, "closed", "release_closed")
            closed = ticks_of(connection, stream.id)[tick - 1]
        self.forget(closed.release_id)
        return closed

    def close(self, name: str) -> Stream:
        """Close a stream permanently, with any tick (version) that is not committed; the stream remains charged."""
        with self.ledger.transaction() as connection:
            stream = read_stream(connection, name)
            lock_budget(connection, read_budget(connection, stream.population))
            ended = close_stream(connection, stream_of(connection, stream.id))
            closed = stream_of(connection, stream.id)
        for release_id in ended:
            self.forget(release_id)
        return closed

    def show(self, name: str) -> tuple[Stream, tuple[Tick, ...]]:
        """Return the newest stream with this name, and its ticks (versions), oldest first."""
        with self.ledger.reading() as connection:
            stream = read_stream(connection, name)
            return stream, ticks_of(connection, stream.id)

    def ticks(self, stream_id: str) -> tuple[Tick, ...]:
        """Return the ticks (versions) of the stream with this id, oldest first."""
        with self.ledger.reading() as connection:
            return ticks_of(connection, stream_id)

    def of_tick(self, release_id: str) -> tuple[Stream, tuple[Tick, ...]]:
        """Return the stream of the tick (version) with this release id, and the stream's ticks up to this tick."""
        with self.ledger.reading() as connection:
            table = tables.tick
            row = connection.execute(sa.select(table).where(table.c.release_id == release_id)).first()
            if row is None:
                raise NotFound(f"release {release_id!r} is not a tick of a stream; see `dpca stream list`.")
            return stream_of(connection, row.stream), ticks_of(connection, row.stream)[: row.tick]

    def all(self) -> tuple[Stream, ...]:
        """Return all streams of the ledger, oldest first."""
        with self.ledger.reading() as connection:
            return streams_in(connection)

    def _charge(
        self,
        connection: sa.Connection,
        budget: Budget,
        release_id: str,
        run_key: str,
        fingerprint: str,
        name: str,
        ticks: int,
        event: Event,
        *,
        epsilon: float,
        delta: float,
    ) -> None:
        """Charge and insert a release that pays for ticks (versions) of a stream, in the state ``noising`` (begun)."""
        if event.get("name") != "gaussian":
            raise Invalid(
                f"a stream must be charged for a Gaussian event, and {event.get('name')!r} is another event; use a "
                "Gaussian event."
            )
        charge, total = admitted_charge(connection, budget, event, epsilon=epsilon, delta=delta)
        row = {
            **{"id": release_id, "population": budget.population, "run_key": run_key, "fingerprint": fingerprint},
            **{"snapshot_id": "stream", "request": {"mechanism": MECHANISM, "stream": name, "ticks": ticks}},
            **{"event": event, "epsilon": epsilon, "delta": delta, "accounting": budget.build_filter().accounting},
        }
        releases.enter_release(connection, row, charge=charge, state="noising")
        budgets.note_levels(connection, budget, total, release_id=release_id)
        journal.append(connection, "release_begun", population=budget.population, release_id=release_id)

    def _locked(self, connection: sa.Connection, name: str) -> Stream:
        """Return the stream with this name after locking its budget; raise `Refused` if the stream is closed."""
        stream = read_stream(connection, name)
        lock_budget(connection, read_budget(connection, stream.population))
        stream = stream_of(connection, stream.id)
        if not stream.is_live:
            raise Refused(f"stream {name!r} is closed permanently; open a new stream, which is charged separately.")
        return stream


def close_stream(connection: sa.Connection, stream: Stream) -> list[str]:
    """Close a stream's paying releases and its unfinished tick (version).

    Return the ids of the closed releases, whose keys are no longer needed.
    """
    ended = [tick.release_id for tick in ticks_of(connection, stream.id) if tick.state == "noising"]
    ended += [charge.release_id for charge in stream.charges if charge.state == "noising"]
    for release_id in ended:
        row = releases.read_release(connection, release_id, lock=True)
        releases.move_release(connection, row, "closed", "release_closed")
    return ended


def _check_ticks(ticks: int) -> None:
    if ticks < 1:
        raise Invalid(f"ticks={ticks} must be at least 1; give the number of ticks to pay for.")
