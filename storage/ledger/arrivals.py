"""Numbers of ingests, and tables that record in which ingest an individual first appeared.

Ingests are numbered in one sequence per ledger. A population has one *epoch* at a time. An epoch consists of a key, and
of segments of ids that are hashed with the key. Each segment has the number of the ingest in which its ids first
appeared. `storage.datasets.whole_records` stores the files of the segments. An epoch with a missing part is lost for
good, and the next ingest begins another epoch.

Notes
-----
A segment is planned before its files are written, and recorded afterwards. So a file without a row shows that the
database is older than the files. The files of a killed ingest have a row without a number.
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

    ``id`` is the name of the segment's folder, ``number`` that of the ingest, and ``digest`` the digest of the marker
    file.
    """

    id: str
    number: int
    digest: str


def next_number(connection: sa.Connection) -> int:
    """Return the number of the ingest that ends or records its ids now, and lock the sequence until the commit."""
    journal.lock(connection)
    taken = (connection.scalar(sa.select(sa.func.max(table.c.number))) for table in (tables.snapshot, _SEGMENT))
    return 1 + max(number or 0 for number in taken)


def number_of_snapshot(connection: sa.Connection, recorded: int | None) -> int:
    """Return the number of a snapshot that is registered now.

    The number is ``recorded``, the number of the snapshot's own segment, if no snapshot with this or a later number is
    registered. Otherwise it is the next number. So numbers rise in the order of registration, and no id of a snapshot
    first appeared after the snapshot's number.
    """
    following = next_number(connection)
    registered = connection.scalar(sa.select(sa.func.max(tables.snapshot.c.number))) or 0
    return recorded if recorded is not None and recorded > registered else following


def epoch_of(connection: sa.Connection, population: str) -> str | None:
    """Return the current epoch of a population; None where it has none, or has lost it.

    Raises
    ------
    Corrupt
        When a row of its epochs was edited, inserted or removed by hand.
    """
    rows = connection.execute(sa.select(_EPOCH).where(_EPOCH.c.population == population)).all()
    shown = _ENTRY.name.in_(("arrivals_begun", "arrivals_lost")) & (_ENTRY.population == population)
    check_rows(connection, "arrival_epoch", rows, shown, every=True)
    return next((str(row.id) for row in rows if row.lost_at is None), None)


def begin_epoch(connection: sa.Connection, *, population: str, epoch: str) -> str:
    """Begin an epoch, unless another ingest has just begun one; return the population's epoch."""
    journal.lock(connection)
    if (present := epoch_of(connection, population)) is not None:
        return present
    connection.execute(_EPOCH.insert().values(id=epoch, population=population, created_at=journal.now()))
    journal.append(connection, "arrivals_begun", population=population, detail={"epoch": epoch})
    return epoch


def lose_epoch(connection: sa.Connection, epoch: str) -> None:
    """Record that an epoch is lost; repeating the call changes nothing."""
    journal.lock(connection)
    here = sa.and_(_EPOCH.c.id == epoch, _EPOCH.c.lost_at.is_(None))
    row = connection.execute(sa.select(_EPOCH).where(here)).first()
    if row is not None:
        connection.execute(sa.update(_EPOCH).where(here).values(lost_at=journal.now()))
        journal.append(connection, "arrivals_lost", population=row.population, detail={"epoch": epoch})


def lose_every_epoch(connection: sa.Connection) -> None:
    """Record that every epoch is lost, because the database is an older copy and may lack ids of later ingests."""
    for epoch in connection.execute(sa.select(_EPOCH.c.id).where(_EPOCH.c.lost_at.is_(None))).scalars().all():
        lose_epoch(connection, epoch)


def segments_of(connection: sa.Connection, epoch: str) -> list[Segment]:
    """Return the recorded segments of an epoch, ordered by number.

    Raises
    ------
    Corrupt
        When a row of the segments of the epoch's population was edited, inserted or removed by hand.
    """
    people = sa.select(_EPOCH.c.population).where(_EPOCH.c.id == epoch).scalar_subquery()
    every = sa.select(_SEGMENT).join(_EPOCH).where(_EPOCH.c.population == people, _SEGMENT.c.number.is_not(None))
    rows = connection.execute(every.order_by(_SEGMENT.c.number)).all()
    shown = (_ENTRY.name == "arrivals_recorded") & (_ENTRY.population == people)
    check_rows(connection, "arrival_segment", rows, shown, every=True)
    return [Segment(id=row.id, number=row.number, digest=row.digest) for row in rows if row.epoch == epoch]


def folders_of(connection: sa.Connection, population: str) -> set[str]:
    """Return the folder names of all segments of a population, including planned ones."""
    query = sa.select(_SEGMENT.c.id).join(_EPOCH).where(_EPOCH.c.population == population)
    return set(connection.execute(query).scalars())


def plan_segment(connection: sa.Connection, *, epoch: str, segment: str) -> None:
    """Insert the row of a segment whose files are about to be written."""
    connection.execute(_SEGMENT.insert().values(id=segment, epoch=epoch))


def record_segment(
    connection: sa.Connection, *, epoch: str, segment: str, digest: str, known: Collection[Segment]
) -> int | None:
    """Give a segment its number, if the epoch still has exactly the segments that its ids were compared with.

    Parameters
    ----------
    connection : Connection
    epoch, segment : str
    digest : str
        SHA-256 of the marker file.
    known : collection of Segment
        The segments that were compared, and contain none of these ids.

    Returns
    -------
    int or None
        The number; None when the epoch was lost or got another segment in the meantime.
    """
    number = next_number(connection)
    row = connection.execute(sa.select(_EPOCH).where(_EPOCH.c.id == epoch)).one()
    if epoch_of(connection, row.population) != epoch or segments_of(connection, epoch) != list(known):
        return None
    connection.execute(sa.update(_SEGMENT).where(_SEGMENT.c.id == segment).values(number=number, digest=digest))
    detail = {"epoch": epoch, "segment": segment, "number": number, "digest": digest}
    journal.append(connection, "arrivals_recorded", population=row.population, detail=detail)
    return number
