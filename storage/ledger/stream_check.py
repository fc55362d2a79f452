"""The check that every tick is paid for: replayed from the journal, where the order of entries counts.

A tick is the one release that is charged nothing. So each must be a tick of a stream that was charged, for at least
that many ticks, before it began, that was not closed then, and whose earlier ticks were settled.
"""

import json
from dataclasses import dataclass, field
from itertools import chain

import sqlalchemy as sa

from dpca_tasks.accounting.events import is_tick
from storage.database import tables
from storage.database.raw_rows import raw_rows
from storage.errors import Corrupt

_SETTLED = ("release_committed", "release_closed")
_NEXT = "restore the database from a copy, and accept it with `dpca budget accept-restored`."


@dataclass(kw_only=True)
class _Replayed:
    """What the journal has said so far: events and charges of releases, ends, streams and their ticks."""

    events: dict[str, dict[str, object]] = field(default_factory=dict)
    charged: dict[str, bool] = field(default_factory=dict)
    ended: set[str] = field(default_factory=set)
    payers: dict[str, dict[int, str]] = field(default_factory=dict)
    ticks: dict[str, list[str]] = field(default_factory=dict)
    bound: set[str] = field(default_factory=set)


def check_ticks(connection: sa.Connection) -> None:
    """Replay the journal and check each tick when it begins.

    Raises
    ------
    Corrupt
        At the first tick that no live stream paid for, or that is out of order; and at a release that states to be a
        tick of a stream and is none, or that states not to be one and is.
    """
    seen, table = _Replayed(), tables.event
    of_ticks = table.c.name.in_(("stream_charged", "tick_begun"))
    needed = set(connection.execute(sa.select(table.c.release_id).where(of_ticks)).scalars())
    told = ("release_reserved", "stream_charged", "tick_begun", *_SETTLED)
    columns = (table.c.name, table.c.release_id, table.c.detail)
    query = sa.select(*columns).where(table.c.name.in_(told)).order_by(table.c.seq)
    for name, release, text in chain.from_iterable(raw_rows(connection, query)):
        match name:
            case "release_reserved" if release not in needed and "stream_tick" not in text and "\\" not in text:
                pass  # neither a tick, nor what pays for one
            case "release_reserved":
                detail = json.loads(text)
                seen.events[release] = detail["event"]
                seen.charged[release] = any(detail["charge"])
            case "stream_charged":
                detail = json.loads(text)
                _check_payer(seen, release, detail["stream"])
                seen.payers.setdefault(detail["stream"], {})[detail["ticks"]] = release
            case "tick_begun":
                detail = json.loads(text)
                _check_tick(seen, release, stream=detail["stream"], tick=detail["tick"])
                seen.ticks.setdefault(detail["stream"], []).append(release)
                seen.bound.add(release)
            case _:
                seen.ended.add(release)
    for release, event in seen.events.items():
        if is_tick(event) and release not in seen.bound:
            raise Corrupt(f"release {release} states to be a tick, and no stream has it; {_NEXT}")


def _check_payer(seen: _Replayed, release: str, stream: str) -> None:
    event = seen.events.get(release, {})
    if event.get("name") != "gaussian" or not seen.charged[release]:
        raise Corrupt(f"release {release} is said to pay for ticks of stream {stream} and was not charged; {_NEXT}")


def _check_tick(seen: _Replayed, release: str, *, stream: str, tick: int) -> None:
    event, payers = seen.events.get(release, {}), seen.payers.get(stream, {})
    earlier = seen.ticks.get(stream, [])
    stated = (event.get("name"), event.get("stream"), event.get("tick"))
    name = f"tick {tick} of stream {stream}"
    if stated != ("stream_tick", stream, tick):
        raise Corrupt(f"{name} is a release that states another event; {_NEXT}")
    if tick > max(payers, default=0) or seen.ended.intersection(payers.values()):
        raise Corrupt(f"{name} began without a live stream that was charged for it; {_NEXT}")
    if tick != len(earlier) + 1 or not seen.ended.issuperset(earlier):
        raise Corrupt(f"{name} began before the one before it was settled; {_NEXT}")
