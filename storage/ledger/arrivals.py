"""The numbers of ingests, and the rows of the tables that tell which ingest saw an individual first.

Ingests are numbered in one sequence of the ledger. A population has one *epoch* at a time: a key, and the segments of
ids hashed with it, each with the number of the ingest that saw these ids first. `storage.datasets.whole_records` keeps
the segments' files. An epoch of which anything is missing is lost for good; the next ingest begins another.

Notes
-----
A segment is planned before its files are written, and recorded after. So a file without a row shows that the database
is older than the files; what a killed ingest left has a row without a number.
"""

from collections.abc import Collection
from dataclasses import dataclass

import sqlalchemy as sa

from storage.database import tables
from storage.ledger import journal
from storage.ledger.journal import check_rows

_EPOCH, _SEGMENT, _ENTRY = tables.arrival_epoch, tables.arrival_segment, tables.event.c


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """The ids that one ingest saw first: the name of its folder, its number, and the digest of its marker file."""

    id: str
    number: int
    digest: str


def next_number(connection: sa.Connection) -> int:
    """Return the number of an ingest that ends or records its ids now, and keep others from it until the commit."""
    journal.lock(connection)
    taken = (connection.scalar(sa.select(sa.func.max(table.c.number))) for table in (tables.snapshot, _SEGMENT))
    return 1 + max(number or 0 for number in taken)


def number_of_snapshot(connection: sa.Connection, recorded: int | None) -> int:
    """Return the number of a snapshot that is registered now: that of its own segment, unless a later one came first.

    So numbers rise in the order of registration, and no id of a snapshot was first seen after the snapshot's number.
    """
    following = next_number(connection)
    registered = connection.scalar(sa.select(sa.func.max(tables.snapshot.c.number))) or 0
    return recorded if recorded is not None and recorded > registered else following


def epoch_of(connection: sa.Connection, population: str) -> str | None:
    """Return the epoch of a population; None where it has none, or lost it.

    Raises
    ------
    Corrupt
        When a row of its epochs was edited, inserted or removed by hand.
    """
    rows = connection.execute(sa.select(_EPOCH).where(_EPOCH.c.population == population)).all()
    told = _ENTRY.name.in_(("arrivals_begun", "arrivals_lost")) & (_ENTRY.population == population)
    check_rows(connection, "arrival_epoch", rows, told, every=True)
    return next((str(row.id) for row in rows if row.lost_at is None), None)


def begin_epoch(connection: sa.Connection, *, population: str, epoch: str) -> str:
    """Begin an epoch, unless another ingest just did; return the population's epoch."""
    journal.lock(connection)
    if (present := epoch_of(connection, population)) is not None:
        return present
    connection.execute(_EPOCH.insert().values(id=epoch, population=population, created_at=journal.now()))
    journal.append(connection, "arrivals_begun", population=population, detail={"epoch": epoch})
    return epoch


def lose_epoch(connection: sa.Connection, epoch: str) -> None:
    """Record that an epoch is lost; repeating it changes nothing."""
    journal.lock(connection)
    here = sa.and_(_EPOCH.c.id == epoch, _EPOCH.c.lost_at.is_(None))
    row = connection.execute(sa.select(_EPOCH).where(here)).first()
    if row is not None:
        connection.execute(sa.update(_EPOCH).where(here).values(lost_at=journal.now()))
        journal.append(connection, "arrivals_lost", population=row.population, detail={"epoch": epoch})


def lose_every_epoch(connection: sa.Connection) -> None:
    """Record that every epoch is lost: the database is a copy from before, and ids may have come since."""
    for epoch in connection.execute(sa.select(_EPOCH.c.id).where(_EPOCH.c.lost_at.is_(None))).scalars().all():
        lose_epoch(connection, epoch)


def segments_of(connection: sa.Connection, epoch: str) -> list[Segment]:
    """Return the recorded segments of an epoch, by number.

    Raises
    ------
    Corrupt
        When a row of the segments of these people was edited, inserted or removed by hand.
    """
    people = sa.select(_EPOCH.c.population).where(_EPOCH.c.id == epoch).scalar_subquery()
    every = sa.select(_SEGMENT).join(_EPOCH).where(_EPOCH.c.population == people, _SEGMENT.c.number.is_not(None))
    rows = connection.execute(every.order_by(_SEGMENT.c.number)).all()
    told = (_ENTRY.name == "arrivals_recorded") & (_ENTRY.population == people)
    check_rows(connection, "arrival_segment", rows, told, every=True)
    return [Segment(id=row.id, number=row.number, digest=row.digest) for row in rows if row.epoch == epoch]


def folders_of(connection: sa.Connection, population: str) -> set[str]:
    """Return the names of all folders that segments of a population may have, planned ones too."""
    query = sa.select(_SEGMENT.c.id).join(_EPOCH).where(_EPOCH.c.population == population)
    return set(connection.execute(query).scalars())


def plan_segment(connection: sa.Connection, *, epoch: str, segment: str) -> None:
    """Insert the row of a segment whose files are about to be written."""
    connection.execute(_SEGMENT.insert().values(id=segment, epoch=epoch))


def record_segment(
    connection: sa.Connection, *, epoch: str, segment: str, digest: str, known: Collection[Segment]
) -> int | None:
    """Give a segment its number, if the epoch still has the segments that its ids were compared with.

    Parameters
    ----------
    connection : Connection
    epoch, segment : str
    digest : str
        SHA-256 of its marker file.
    known : collection of Segment
        The segments that hold none of its ids.

    Returns
    -------
    int or None
        The number; None when the epoch was lost or got another segment since.
    """
    number = next_number(connection)
    row = connection.execute(sa.select(_EPOCH).where(_EPOCH.c.id == epoch)).one()
    if epoch_of(connection, row.population) != epoch or segments_of(connection, epoch) != list(known):
        return None
    connection.execute(sa.update(_SEGMENT).where(_SEGMENT.c.id == segment).values(number=number, digest=digest))
    detail = {"epoch": epoch, "segment": segment, "number": number, "digest": digest}
    journal.append(connection, "arrivals_recorded", population=row.population, detail=detail)
    return number
