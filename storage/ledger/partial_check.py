"""The check of a part of a ledger: all that is new since an earlier look, and the next part of what is old.

What an earlier look found is trusted, because it lies where the keys do. New is what the journal told since, and every
release that had not ended. Of older entries, the next `PART` are followed and replayed, each release among them with
all its entries, so as many looks as there are parts read everything again. Whatever its age, every look finds a row
that is missing or too many, an edited budget or alias, and a charge or state that changes what a population has spent.
"""

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import batched, chain

import sqlalchemy as sa

from storage.database import tables
from storage.errors import Corrupt
from storage.ledger import journal
from storage.ledger.journal import Entry
from storage.ledger.journal_check import (
    Compared,
    check_totals,
    compare,
    merged,
    row_counts,
    stored_rows,
    totals_of,
)
from storage.ledger.replay import NAMES, NEXT, Key, Replay, compare_told
from storage.ledger.stream_check import check_ticks
from storage.trail.entries import START

PART = 4096
"""Old entries that a look reads; with more new ones than that, it reads everything."""

_WHOLE = ("budget", "arrival_epoch", "alias")
"""The tables of which every row is compared."""
_OF_WHOLE = ("budget_opened", "snapshot_removed", "arrivals_begun", "arrivals_lost", "ledger_accepted")
_AT_ONCE = 500
_EVENT = tables.event.c


@dataclass(frozen=True, slots=True, kw_only=True)
class LookedOver:
    """What a look found.

    Attributes
    ----------
    known : Compared, for the next look
    part : tuple of int or None, the first and the last of the old entries that were read; None if all were
    versions : mapping of table to collection of key, the published versions that were read; None if all were
    """

    known: Compared
    part: tuple[int, int] | None = None
    versions: Mapping[str, Collection[Key]] | None = None


def look_over(connection: sa.Connection, before: Compared | None) -> LookedOver:
    """Compare a part of the journal with the rows after an earlier look; where that fails, and without one, all of it.

    Raises
    ------
    Corrupt
        As `storage.ledger.journal_check.compare`.
    """
    if before is not None:
        with suppress(Corrupt, LookupError, ValueError, TypeError):  # comparing everything says what it is
            known, replay = compare_part(connection, before)
            versions = {name: replay.told[name].keys() for name in ("version", "joint_version")}
            first, last = part_after(before)
            part = (first + 1, last) if last - first < before.entries else None
            return LookedOver(known=known, part=part, versions=versions)
    return LookedOver(known=compare(connection))


def part_after(before: Compared) -> tuple[int, int]:
    """Return the entries that the next look reads of the old ones: after the first number, up to the second."""
    first = before.read_to if before.read_to < before.entries else 0
    return first, min(first + PART, before.entries)


def compare_part(connection: sa.Connection, before: Compared) -> tuple[Compared, Replay]:
    """Compare a part of the journal with the rows, in one snapshot or transaction.

    Parameters
    ----------
    connection : sqlalchemy.Connection
    before : Compared
        What an earlier look found, which nobody else can have made up.

    Returns
    -------
    tuple of Compared and Replay
        What is to be known by the next look, and what was read.

    Raises
    ------
    Corrupt
        When anything that is read does not agree, or more is new than a look reads. `compare` says what it is.
    """
    new = _between(connection, before.entries, before.entries + PART + 1)
    if max(len(new), len(before.open)) > PART:
        raise Corrupt(f"more than {PART} entries are new, or releases open; read everything.")
    if _hash_of(connection, before.entries) != before.head:
        raise Corrupt(f"entry {before.entries} of the journal is another one than before; {NEXT}")
    entries, head = journal.follow(new, count=before.entries, previous=before.head)
    first, last = part_after(before)
    part = _between(connection, first, min(last + 1, before.entries))  # with the link to the next part
    journal.follow(part, count=first, previous=_hash_of(connection, first))
    releases = before.open.union(entry[2] for entry in chain(part[: last - first], new) if entry[2] is not None)
    replay = Replay()
    replay.told["alias"] = {key: {"version": version} for key, version in before.aliases.items()}
    replay.take(_replayed_before(connection, before, part[: last - first], releases))
    made = {name: -len(told) for name, told in replay.told.items()}
    replay.take(new)
    counts = {name: before.counts[name] + made[name] + len(told) for name, told in replay.told.items()}
    for name, told in replay.told.items():
        if name in _WHOLE:
            compare_told(name, told, stored_rows(connection, name), every=True)
        for keys in batched(told, _AT_ONCE) if name not in _WHOLE else ():
            compare_told(name, {key: told[key] for key in keys}, stored_rows(connection, name, keys), every=False)
    if row_counts(connection, NAMES) != counts:
        raise Corrupt(f"rows were removed or put in by hand; {NEXT}")
    if replay.tells_of_ticks:
        check_ticks(connection)
    open_now, reserved = replay.open_releases(), replay.told["release"]
    fresh = before.open.union(key[0] for key, facts in reserved.items() if facts["seq"] > before.entries)
    if not open_now <= fresh or check_totals(connection, fresh=fresh) != before.totals:
        raise Corrupt(f"what was spent before is another sum than it was; {NEXT}")
    ended = (reserved[release,] for release in fresh - open_now)
    settled = totals_of((facts["population"], facts["state"], facts["charge"]) for facts in ended)
    now = Compared(
        entries=entries,
        head=head,
        read_to=last,
        open=open_now,
        counts=counts,
        aliases={key: facts["version"] for key, facts in replay.told["alias"].items()},
        totals=merged(before.totals, settled),
    )
    return now, replay


def _between(connection: sa.Connection, first: int, last: int) -> list[Entry]:
    """Return the entries after a number, up to another."""
    return list(chain.from_iterable(journal.entries(connection, (_EVENT.seq > first) & (_EVENT.seq <= last))))


def _hash_of(connection: sa.Connection, entry: int) -> str:
    """Return the hash of an entry; before the first one is the start, and one that is gone has none."""
    found = connection.execute(sa.select(_EVENT.hash).where(_EVENT.seq == entry)).scalar_one_or_none()
    return START if entry == 0 else str(found)


def _replayed_before(
    connection: sa.Connection, before: Compared, part: Sequence[Entry], releases: Collection[str]
) -> list[Entry]:
    """Return the old entries to be replayed: of the tables that are compared whole, of some releases, and of a part."""
    wanted = _EVENT.name.in_(_OF_WHOLE) | _EVENT.release_id.in_(releases)
    found = {entry[0]: entry for entry in part if entry[3] != "alias_moved"}
    for entries in journal.entries(connection, (_EVENT.seq <= before.entries) & wanted):
        found |= {entry[0]: entry for entry in entries}
    return [found[seq] for seq in sorted(found)]
