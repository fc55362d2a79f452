"""Database rows of ingest numbers, and of the tables that record when each individual first appeared.

Each ledger numbers its ingests in one sequence. For each population, a table records the number of the ingest in which
the id of each individual first appeared. Such a table is called an *epoch*. An epoch consists of a secret key, and of
segments with ids hashed under this key. A segment contains the ids that first appeared in one ingest.
`storage.datasets.whole_records` stores the files of the segments. If a part of an epoch is missing, the epoch is lost
permanently, and the next ingest begins a new epoch.

Notes
-----
The row of a segment is inserted, without a number, before its files are written. The number is added afterwards.
Therefore, files without a row show that the database is an older copy than the files. Files of a killed ingest have a
row without a number.
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
    """The ids that first appeared in one ingest.

    ``id`` is the name of the folder with the hashed ids, ``number`` is the number of the ingest, and ``digest`` is the
    SHA-256 of the folder's marker file.
    """

    id: str
    number: int
    digest: str


def next_number(connection: sa.Connection) -> int:
    """Return the next free ingest number, and lock the sequence of these numbers until the transaction ends.

    An ingest takes its number when it records its new ids or registers its snapshot.
    """
    journal.lock(connection)
    taken = (connection.scalar(sa.select(sa.func.max(table.c.number))) for table in (tables.snapshot, _SEGMENT))
    return 1 + max(number or 0 for number in taken)


def number_of_snapshot(connection: sa.Connection, recorded: int | None) -> int:
    """Return the number of a snapshot that is being registered.

    ``recorded`` is the number under which the snapshot's new ids were recorded. It is also the snapshot's number,
    unless a snapshot with this or a later number is already registered; then the snapshot gets the next number. So
    numbers rise in the order of registration, and no id in a snapshot first appeared in an ingest with a higher number
    than the snapshot's.
    """
    following = next_number(connection)
    registered = connection.scalar(sa.select(sa.func.max(tables.snapshot.c.number))) or 0
    return recorded if recorded is not None and recorded > registered else following


def epoch_of(connection: sa.Connection, population: str) -> str | None:
    """Return the id of a population's current epoch (table of first-seen ids); None if there is none, or it is lost.

    Raises
    ------
    Corrupt
        When a row of the population's epochs was edited, inserted or removed by hand.
    """
    rows = connection.execute(sa.select(_EPOCH).where(_EPOCH.c.population == population)).all()
    shown = _ENTRY.name.in_(("arrivals_begun", "arrivals_lost")) & (_ENTRY.population == population)
    check_rows(connection, "arrival_epoch", rows, shown, every=True)
    return next((str(row.id) for row in rows if row.lost_at is None), None)


def begin_epoch(connection: sa.Connection, *, population: str, epoch: str) -> str:
    """Begin a new epoch (table of first-seen ids), unless another ingest has just begun one; return the current one."""
    journal.lock(connection)
    if (present := epoch_of(connection, population)) is not None:
        return present
    connection.execute(_EPOCH.insert().values(id=epoch, population=population, created_at=journal.now()))
    journal.append(connection, "arrivals_begun", population=population, detail={"epoch": epoch})
    return epoch


def lose_epoch(connection: sa.Connection, epoch: str) -> None:
    """Record that an epoch (table of first-seen ids) is lost; a repeated call changes nothing."""
    journal.lock(connection)
    here = sa.and_(_EPOCH.c.id == epoch, _EPOCH.c.lost_at.is_(None))
    row = connection.execute(sa.select(_EPOCH).where(here)).first()
    if row is not None:
        connection.execute(sa.update(_EPOCH).where(here).values(lost_at=journal.now()))
        journal.append(connection, "arrivals_lost", population=row.population, detail={"epoch": epoch})


def lose_every_epoch(connection: sa.Connection) -> None:
    """Record that all epochs (tables of first-seen ids) are lost, since a restored database may lack newer ids."""
    for epoch in connection.execute(sa.select(_EPOCH.c.id).where(_EPOCH.c.lost_at.is_(None))).scalars().all():
        lose_epoch(connection, epoch)


def segments_of(connection: sa.Connection, epoch: str) -> list[Segment]:
    """Return the segments (new ids of one ingest each) of an epoch, ordered by ingest number.

    Raises
    ------
    Corrupt
        When a row of the population's segments was edited, inserted or removed by hand.
    """
    people = sa.select(_EPOCH.c.population).where(_EPOCH.c.id == epoch).scalar_subquery()
    every = sa.select(_SEGMENT).join(_EPOCH).where(_EPOCH.c.population == people, _SEGMENT.c.number.is_not(None))
    rows = connection.execute(every.order_by(_SEGMENT.c.number)).all()
    shown = (_ENTRY.name == "arrivals_recorded") & (_ENTRY.population == people)
    check_rows(connection, "arrival_segment", rows, shown, every=True)
    return [Segment(id=row.id, number=row.number, digest=row.digest) for row in rows if row.epoch == epoch]


def folders_of(connection: sa.Connection, population: str) -> set[str]:
    """Return the folder names of a population's segments (new ids of one ingest each), including incomplete ones."""
    query = sa.select(_SEGMENT.c.id).join(_EPOCH).where(_EPOCH.c.population == population)
    return set(connection.execute(query).scalars())


def plan_segment(connection: sa.Connection, *, epoch: str, segment: str) -> None:
    """Insert the row of a segment (new ids of one ingest) before its files are written; it gets a number later."""
    connection.execute(_SEGMENT.insert().values(id=segment, epoch=epoch))


def record_segment(
    connection: sa.Connection, *, epoch: str, segment: str, digest: str, known: Collection[Segment]
) -> int | None:
    """Give a segment (new ids of one ingest) its number, unless the epoch got segments that were not compared with it.

    Parameters
    ----------
    connection : Connection
    epoch, segment : str
    digest : str
        SHA-256 of the marker file in the segment's folder.
    known : collection of Segment
        The segments that the ingest compared; none of them contains an id of the new segment.

    Returns
    -------
    int or None
        The ingest number; None if the epoch was lost or got another segment in the meantime.
    """
    number = next_number(connection)
    row = connection.execute(sa.select(_EPOCH).where(_EPOCH.c.id == epoch)).one()
    if epoch_of(connection, row.population) != epoch or segments_of(connection, epoch) != list(known):
        return None
    connection.execute(sa.update(_SEGMENT).where(_SEGMENT.c.id == segment).values(number=number, digest=digest))
    detail = {"epoch": epoch, "segment": segment, "number": number, "digest": digest}
    journal.append(connection, "arrivals_recorded", population=row.population, detail=detail)
    return number
