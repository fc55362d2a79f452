"""Complete and incremental checks that the database rows of a ledger agree with the journal.

The hash chain of the journal does not detect changes in other tables. `compare` therefore replays all journal entries,
and compares the resulting rows with the stored rows. `check_changes` does this incrementally, based on the result of an
earlier check.

`check_ticks` checks that every tick (version) of a stream is paid for. Ticks are the only releases with a charge of
zero. Therefore, before tick t began, the journal must show that its stream was charged for at least t ticks. The stream
must not have been closed before, and its earlier ticks must have been committed or closed.

Examples
--------
::

    with reading(ledger.engine) as connection:
        compare(connection)

An incremental check reads everything that is new since an earlier check, and a part of the older entries. It trusts the
result of the earlier check, which is stored next to the secret keys. The new part consists of the journal entries since
then, and of all releases that had not ended then. Of the older entries, the next `PART` entries are verified and
replayed, together with all entries of the releases among them. After enough checks, all older entries have been read
again. In addition, every check detects a missing or surplus row of any age, an edited budget or alias, and an edited
charge or state that changes what a population has spent.
"""

import json
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import batched, chain

import sqlalchemy as sa

from dpca.errors import Corrupt
from dpca_tasks.accounting import prices
from dpca_tasks.accounting.events import is_tick
from dpca_tasks.accounting.prices import Charge
from storage.database import tables
from storage.database.engine import raw_rows
from storage.ledger import journal
from storage.ledger.journal import NAMES, NEXT, Entry, Key, Replay, Row, compare_reported
from storage.trail.checkpoints import START

_SETTLED = ("release_committed", "release_closed")
_NEXT = "restore the database from a copy, and accept it with `dpca budget accept-restored`."


@dataclass(kw_only=True)
class _Replayed:
    """The facts about streams and their ticks (versions) in the journal entries that were replayed so far."""

    events: dict[str, dict[str, object]] = field(default_factory=dict)
    charged: dict[str, bool] = field(default_factory=dict)
    ended: set[str] = field(default_factory=set)
    payers: dict[str, dict[int, str]] = field(default_factory=dict)
    ticks: dict[str, list[str]] = field(default_factory=dict)
    bound: set[str] = field(default_factory=set)


def check_ticks(connection: sa.Connection) -> None:
    """Replay the journal, and check that each tick (version) of a stream was paid for before it began.

    Raises
    ------
    Corrupt
        At the first tick for which no open stream was charged, or which began before the previous tick ended. Also if
        the event and the journal entries of a release disagree on whether it is a tick of a stream.
    """
    seen, table = _Replayed(), tables.event
    of_ticks = table.c.name.in_(("stream_charged", "tick_begun"))
    needed = set(connection.execute(sa.select(table.c.release_id).where(of_ticks)).scalars())
    shown = ("release_reserved", "stream_charged", "tick_begun", *_SETTLED)
    columns = (table.c.name, table.c.release_id, table.c.detail)
    query = sa.select(*columns).where(table.c.name.in_(shown)).order_by(table.c.seq)
    for name, release, text in chain.from_iterable(raw_rows(connection, query)):
        match name:
            case "release_reserved" if release not in needed and "stream_tick" not in text and "\\" not in text:
                pass  # a release that is neither a tick of a stream nor pays for ticks needs no check here
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
            raise Corrupt(
                f"the event of release {release} is a tick (a version of a stream), but the journal assigns it to no "
                f"stream; {_NEXT}"
            )


def _check_payer(seen: _Replayed, release: str, stream: str) -> None:
    event = seen.events.get(release, {})
    if event.get("name") != "gaussian" or not seen.charged[release]:
        raise Corrupt(
            f"release {release} is recorded as the payment for ticks of stream {stream}, but was not charged; {_NEXT}"
        )


def _check_tick(seen: _Replayed, release: str, *, stream: str, tick: int) -> None:
    event, payers = seen.events.get(release, {}), seen.payers.get(stream, {})
    earlier = seen.ticks.get(stream, [])
    declared = (event.get("name"), event.get("stream"), event.get("tick"))
    name = f"tick {tick} of stream {stream}"
    if declared != ("stream_tick", stream, tick):
        raise Corrupt(f"the event of {name} states another tick, stream or kind of release; {_NEXT}")
    if tick > max(payers, default=0) or seen.ended.intersection(payers.values()):
        raise Corrupt(f"{name} began although no live stream was charged for it; {_NEXT}")
    if tick != len(earlier) + 1 or not seen.ended.issuperset(earlier):
        raise Corrupt(f"{name} began before the previous tick was committed or closed; {_NEXT}")


type Totals = Mapping[str, tuple[int, Charge]]
"""For each population, the number of releases, and the sum of charges without abandoned releases."""

_CHARGED = tuple(tables.release.c[name] for name in ("population", "state", "charge", "id"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """The state of a ledger after a check without errors, on which the next incremental check is based.

    Attributes
    ----------
    entries : int, number of journal entries
    head : str, hash of the last entry
    read_to : int, the number of the last older entry that was read again; the next check continues after this entry
    open : frozenset of str, the ids of the releases that had not ended
    counts : mapping of table to int, the number of rows in each table
    aliases : mapping of (name, alias) to int, the version to which each alias pointed
    totals : Totals, the charges of the releases that had ended
    """

    entries: int
    head: str
    read_to: int
    open: frozenset[str]
    counts: Mapping[str, int]
    aliases: Mapping[Key, int]
    totals: Totals


def compare(connection: sa.Connection) -> Compared:
    """Check the journal's hash chain and compare every row with the journal, in the caller's transaction.

    Raises
    ------
    Corrupt
        At the first entry or row that was changed, removed or inserted by hand. Also at a tick for which no stream was
        charged. The message names columns but contains no values.
    """
    replay, count, head = Replay(), 0, START
    for entries in journal.entries(connection):
        count, head = journal.follow(entries, count=count, previous=head)
        replay.take(entries)
    for name, shown in replay.reported.items():
        compare_reported(name, shown, stored_rows(connection, name), every=True)
    if replay.has_ticks:
        check_ticks(connection)
    open_now = replay.open_releases()
    return Compared(
        entries=count,
        head=head,
        read_to=count,
        open=open_now,
        counts={name: len(shown) for name, shown in replay.reported.items()},
        aliases={key: facts["version"] for key, facts in replay.reported["alias"].items()},
        totals=check_totals(connection, fresh=open_now),
    )


def stored_rows(connection: sa.Connection, name: str, keys: Collection[Key] | None = None) -> Iterable[Row]:
    """Return the rows of a table that the journal covers: all rows, or only rows with the given primary keys."""
    table = tables.metadata.tables[name]
    query = sa.select(table)
    if table is tables.arrival_segment:
        # a segment (new ids of an ingest) gets its journal entry together with its number
        query = query.where(table.c.number.is_not(None))
    if keys is not None:
        query = query.where(sa.tuple_(*table.primary_key).in_(keys))
    return chain.from_iterable(raw_rows(connection, query))


def check_totals(connection: sa.Connection, *, fresh: Collection[str]) -> Totals:
    """Check each cached total against the sum of the charges; return the sums without the releases in ``fresh``.

    Raises
    ------
    Corrupt
        When a cached total differs from the sum of the charges.
    """
    rows = list(chain.from_iterable(raw_rows(connection, sa.select(*_CHARGED))))
    new = [row for row in rows if row[-1] in fresh] if fresh else []
    settled = totals_of(row for row in rows if row[-1] not in fresh) if new else totals_of(rows)
    summed = merged(settled, totals_of(new))
    for total in connection.execute(sa.select(tables.charged_total)):
        noted = tuple(json.loads(total.charge))
        if (total.releases, noted) != summed.get(total.population, (0, (0,) * len(noted))):
            raise Corrupt(
                f"the stored total of budget {total.population!r} differs from the sum of the charges; {NEXT}"
            )
    return settled


def totals_of(releases: Iterable[Row]) -> Totals:
    """Add up the charges per population; each row begins with population, state and charge of a release."""
    charged: defaultdict[str, list[bytes]] = defaultdict(list)
    for population, state, charge, *_ in releases:
        charged[population].append(bytes(len(charge)) if state == "abandoned" else charge)
    return {
        population: (len(found), prices.total_of(found, zero=(0,) * len(prices.decode(found[0]))))
        for population, found in charged.items()
    }


def merged(left: Totals, right: Totals) -> Totals:
    """Add the totals of two disjoint sets of releases."""
    found = dict(left)
    for population, (count, charge) in right.items():
        before, total = found.get(population, (0, (0,) * len(charge)))
        found[population] = (before + count, prices.add(total, charge))
    return found


def row_counts(connection: sa.Connection, names: Iterable[str]) -> dict[str, int]:
    """Return the number of rows of each table that the journal covers."""
    found = {}
    for name in names:
        table = tables.metadata.tables[name]
        query = sa.select(sa.func.count()).select_from(table)
        if table is tables.arrival_segment:
            query = query.where(table.c.number.is_not(None))
        found[name] = connection.execute(query).scalar_one()
    return found


PART = 4096
"""Number of older entries that an incremental check reads. If more entries are new, the check reads everything."""

_WHOLE = ("budget", "arrival_epoch", "alias")
"""The tables of which even an incremental check compares every row."""
_OF_WHOLE = ("budget_opened", "snapshot_removed", "arrivals_begun", "arrivals_lost", "ledger_accepted")
_AT_ONCE = 500
_EVENT = tables.event.c


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedChanges:
    """The result of a complete or incremental check.

    Attributes
    ----------
    known : Compared, the state on which the next check can be based
    part : tuple of int or None, the numbers of the first and the last older entry that were read; None if all were read
    versions : mapping of table to collection of key, the published versions that were read; None if all were read
    """

    known: Compared
    part: tuple[int, int] | None = None
    versions: Mapping[str, Collection[Key]] | None = None


def check_changes(connection: sa.Connection, before: Compared | None) -> CheckedChanges:
    """Check the ledger incrementally, or completely if there was no earlier check or the incremental one fails.

    Raises
    ------
    Corrupt
        When the journal or a row was changed by hand; see `compare`.
    """
    if before is not None:
        # if the incremental check fails, the complete check below reports the cause
        with suppress(Corrupt, LookupError, ValueError, TypeError):
            known, replay = compare_part(connection, before)
            versions = {name: replay.reported[name].keys() for name in ("version", "joint_version")}
            first, last = part_after(before)
            part = (first + 1, last) if last - first < before.entries else None
            return CheckedChanges(known=known, part=part, versions=versions)
    return CheckedChanges(known=compare(connection))


def part_after(before: Compared) -> tuple[int, int]:
    """Return (first, last) such that the check after ``before`` reads the older entries first + 1, ..., last again."""
    first = before.read_to if before.read_to < before.entries else 0
    return first, min(first + PART, before.entries)


def compare_part(connection: sa.Connection, before: Compared) -> tuple[Compared, Replay]:
    """Check the new journal entries, and a part of the older ones, against the rows, in the caller's transaction.

    Parameters
    ----------
    connection : sqlalchemy.Connection
    before : Compared
        The result of an earlier check, from storage that an attacker cannot change.

    Returns
    -------
    tuple of Compared and Replay
        The state on which the next check can be based, and the replay of the entries that were read.

    Raises
    ------
    Corrupt
        When an entry and a row disagree, or more than `PART` entries are new. The cause is found by `compare`.
    """
    new = _between(connection, before.entries, before.entries + PART + 1)
    if max(len(new), len(before.open)) > PART:
        raise Corrupt(
            f"more than {PART} journal entries are new, or more than {PART} releases are open; run a complete check."
        )
    if _hash_of(connection, before.entries) != before.head:
        raise Corrupt(f"entry {before.entries} of the journal changed since the last check; {NEXT}")
    entries, head = journal.follow(new, count=before.entries, previous=before.head)
    first, last = part_after(before)
    # one entry more than the part, so that the hash link to the next part is checked
    part = _between(connection, first, min(last + 1, before.entries))
    journal.follow(part, count=first, previous=_hash_of(connection, first))
    releases = before.open.union(entry[2] for entry in chain(part[: last - first], new) if entry[2] is not None)
    replay = Replay()
    replay.reported["alias"] = {key: {"version": version} for key, version in before.aliases.items()}
    replay.take(_replayed_before(connection, before, part[: last - first], releases))
    made = {name: -len(shown) for name, shown in replay.reported.items()}
    replay.take(new)
    counts = {name: before.counts[name] + made[name] + len(shown) for name, shown in replay.reported.items()}
    for name, shown in replay.reported.items():
        if name in _WHOLE:
            compare_reported(name, shown, stored_rows(connection, name), every=True)
        for keys in batched(shown, _AT_ONCE) if name not in _WHOLE else ():
            compare_reported(name, {key: shown[key] for key in keys}, stored_rows(connection, name, keys), every=False)
    if row_counts(connection, NAMES) != counts:
        raise Corrupt(f"rows were removed or inserted by hand; {NEXT}")
    if replay.has_ticks:
        check_ticks(connection)
    open_now, reserved = replay.open_releases(), replay.reported["release"]
    fresh = before.open.union(key[0] for key, facts in reserved.items() if facts["seq"] > before.entries)
    if not open_now <= fresh or check_totals(connection, fresh=fresh) != before.totals:
        raise Corrupt(f"the sum of charges from before the last check has changed; {NEXT}")
    ended = (reserved[release,] for release in fresh - open_now)
    settled = totals_of((facts["population"], facts["state"], facts["charge"]) for facts in ended)
    now = Compared(
        entries=entries,
        head=head,
        read_to=last,
        open=open_now,
        counts=counts,
        aliases={key: facts["version"] for key, facts in replay.reported["alias"].items()},
        totals=merged(before.totals, settled),
    )
    return now, replay


def _between(connection: sa.Connection, first: int, last: int) -> list[Entry]:
    """Return the journal entries with the numbers first + 1, ..., last."""
    return list(chain.from_iterable(journal.entries(connection, (_EVENT.seq > first) & (_EVENT.seq <= last))))


def _hash_of(connection: sa.Connection, entry: int) -> str:
    """Return the hash of the journal entry with a number; `START` for number 0, and "None" for a missing entry."""
    found = connection.execute(sa.select(_EVENT.hash).where(_EVENT.seq == entry)).scalar_one_or_none()
    return START if entry == 0 else str(found)


def _replayed_before(
    connection: sa.Connection, before: Compared, part: Sequence[Entry], releases: Collection[str]
) -> list[Entry]:
    """Return the older journal entries that an incremental check replays, in order.

    These are the entries in ``part``, all about ``releases``, and all about tables of which every row is compared.
    """
    wanted = _EVENT.name.in_(_OF_WHOLE) | _EVENT.release_id.in_(releases)
    found = {entry[0]: entry for entry in part if entry[3] != "alias_moved"}
    for entries in journal.entries(connection, (_EVENT.seq <= before.entries) & wanted):
        found |= {entry[0]: entry for entry in entries}
    return [found[seq] for seq in sorted(found)]
