"""The comparison of the journal with the database rows.

An intact journal does not detect changes of other tables. This check replays the entries and compares the result with
the rows. `storage.ledger.partial_check` goes on from what it found.

Examples
--------
::

    with reading(ledger.engine) as connection:
        compare(connection)
"""

import json
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from itertools import chain

import sqlalchemy as sa

from dpca_tasks.accounting import charges
from dpca_tasks.accounting.charges import Charge
from storage.database import tables
from storage.database.raw_rows import raw_rows
from storage.errors import Corrupt
from storage.ledger import journal
from storage.ledger.replay import NEXT, Key, Replay, Row, compare_told
from storage.ledger.stream_check import check_ticks
from storage.trail.entries import START

type Totals = Mapping[str, tuple[int, Charge]]
"""How many releases each population has, and what all of them but the abandoned ones were charged."""

_CHARGED = tuple(tables.release.c[name] for name in ("population", "state", "charge", "id"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """What a ledger held when it was found whole.

    Attributes
    ----------
    entries : int, of the journal
    head : str, the hash of the last of them
    read_to : int, the entry up to which old ones were read again, after which the next look goes on
    open : frozenset of str, the releases that had not ended
    counts : mapping of table to int, its rows
    aliases : mapping of (name, alias) to the version that it meant
    totals : of the releases that had ended, by population
    """

    entries: int
    head: str
    read_to: int
    open: frozenset[str]
    counts: Mapping[str, int]
    aliases: Mapping[Key, int]
    totals: Totals


def compare(connection: sa.Connection) -> Compared:
    """Check the journal's chain and compare every row with it, in one snapshot or transaction.

    Raises
    ------
    Corrupt
        At the first entry or row that was changed, removed or inserted by hand, and at a tick that no charged stream
        pays for. The message names columns but no values.
    """
    replay, count, head = Replay(), 0, START
    for entries in journal.entries(connection):
        count, head = journal.follow(entries, count=count, previous=head)
        replay.take(entries)
    for name, told in replay.told.items():
        compare_told(name, told, stored_rows(connection, name), every=True)
    if replay.tells_of_ticks:
        check_ticks(connection)
    open_now = replay.open_releases()
    return Compared(
        entries=count,
        head=head,
        read_to=count,
        open=open_now,
        counts={name: len(told) for name, told in replay.told.items()},
        aliases={key: facts["version"] for key, facts in replay.told["alias"].items()},
        totals=check_totals(connection, fresh=open_now),
    )


def stored_rows(connection: sa.Connection, name: str, keys: Collection[Key] | None = None) -> Iterable[Row]:
    """Return the rows of a table that the journal tells of, or those with some keys."""
    table = tables.metadata.tables[name]
    query = sa.select(table)
    if table is tables.arrival_segment:
        query = query.where(table.c.number.is_not(None))  # else it was planned
    if keys is not None:
        query = query.where(sa.tuple_(*table.primary_key).in_(keys))
    return chain.from_iterable(raw_rows(connection, query))


def check_totals(connection: sa.Connection, *, fresh: Collection[str]) -> Totals:
    """Add up what all releases but the ``fresh`` ones were charged, and check the noted totals of all of them.

    Raises
    ------
    Corrupt
        When a noted total is another one.
    """
    rows = list(chain.from_iterable(raw_rows(connection, sa.select(*_CHARGED))))
    new = [row for row in rows if row[-1] in fresh] if fresh else []
    settled = totals_of(row for row in rows if row[-1] not in fresh) if new else totals_of(rows)
    summed = merged(settled, totals_of(new))
    for total in connection.execute(sa.select(tables.charged_total)):
        noted = tuple(json.loads(total.charge))
        if (total.releases, noted) != summed.get(total.population, (0, (0,) * len(noted))):
            raise Corrupt(f"the noted total of budget {total.population!r} is not what the journal adds up to; {NEXT}")
    return settled


def totals_of(releases: Iterable[Row]) -> Totals:
    """Add up releases, whose rows begin with population, state and charge."""
    charged: defaultdict[str, list[bytes]] = defaultdict(list)
    for population, state, charge, *_ in releases:
        charged[population].append(bytes(len(charge)) if state == "abandoned" else charge)
    return {
        population: (len(found), charges.total_of(found, zero=(0,) * len(charges.decode(found[0]))))
        for population, found in charged.items()
    }


def merged(left: Totals, right: Totals) -> Totals:
    """Add up two parts of the releases."""
    found = dict(left)
    for population, (count, charge) in right.items():
        before, total = found.get(population, (0, (0,) * len(charge)))
        found[population] = (before + count, charges.add(total, charge))
    return found


def row_counts(connection: sa.Connection, names: Iterable[str]) -> dict[str, int]:
    """Return how many rows some tables have."""
    found = {}
    for name in names:
        table = tables.metadata.tables[name]
        query = sa.select(sa.func.count()).select_from(table)
        if table is tables.arrival_segment:
            query = query.where(table.c.number.is_not(None))
        found[name] = connection.execute(query).scalar_one()
    return found
