"""Catalog of the snapshots of each dataset name, with their populations.

A dataset name belongs to one population permanently. The current snapshot of a name is the newest snapshot that is not
removed. The order of journal entries decides which snapshot is newest, since a clock may be set back. The database
decides which snapshots exist: a snapshot's folder without a database row is ignored.

Examples
--------
::

    catalog = Catalog(engine, home)
    entry = catalog.current("news")
    block = catalog.open(entry).read(0)
"""

import re
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, Self

from sqlalchemy import Connection, Engine, Row, bindparam, exists, func, insert, select, update

from dpca.backends.base import Place
from dpca.backends.local import LocalPlace
from dpca.errors import Conflict, Corrupt, Invalid, NotFound, Refused
from dpca.privacy_unit import ROW, PrivacyUnit
from storage.database import tables
from storage.database.engine import reading, transaction
from storage.datasets.content_digest import MARKER, Manifest
from storage.datasets.snapshot_reader import Dataset, read_manifest
from storage.datasets.staging import quarantine_notes, remove_if_empty
from storage.ledger import journal
from storage.ledger.arrivals import number_of_snapshot
from storage.ledger.budgets import check_snapshots, current_snapshot

_SNAPSHOT = tables.snapshot.c
_PRESENT = (
    select(tables.snapshot)
    .where(_SNAPSHOT.removed_at.is_(None))
    .order_by(_SNAPSHOT.name, _SNAPSHOT.seq.nulls_first(), _SNAPSHOT.created_at, _SNAPSHOT.id)
)
_BY_ID = select(tables.snapshot).where(_SNAPSHOT.id == bindparam("id"))
_NAME = "[A-Za-z0-9][A-Za-z0-9._-]{0,99}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """Catalog entry of one snapshot.

    Attributes
    ----------
    snapshot : str, the id of the snapshot
    name, population : str, the names of the dataset and of its population
    n_features : int
    records_at_most : int or None, the declared public bound on the number of records
    path : str, the snapshot's folder, relative to the store of datasets
    content_digest : str, the digest of the stored rows; private, because it could confirm a guess of all rows
    rows_digest : str or None, the digest of the rows in any order and without ids of individuals; also private
    unit, rows_per_unit : str and int or None, the privacy unit, see `privacy_unit`
    created_at : str, ISO 8601 in UTC
    number : int or None, the number of the snapshot's ingest, counted by the ledger; None before registration
    epoch : str or None, the id of the table with the number of the ingest in which each id first appeared, or None
    """

    snapshot: str
    name: str
    population: str
    n_features: int
    records_at_most: int | None
    path: str
    content_digest: str = field(repr=False)
    created_at: str
    number: int | None = None
    epoch: str | None = None
    rows_digest: str | None = field(default=None, repr=False)
    unit: str = ROW
    rows_per_unit: int | None = 1

    @property
    def privacy_unit(self) -> PrivacyUnit:
        """Privacy unit of the snapshot, as an object."""
        return PrivacyUnit(name=self.unit, rows=self.rows_per_unit)

    @classmethod
    def from_row(cls, row: Row[tuple[str, ...]]) -> Self:
        """Make an entry from a row of table `snapshot`."""
        values = dict(row._mapping)
        values["snapshot"] = values.pop("id")
        del values["removed_at"], values["seq"]
        return cls(**values)


class Catalog:
    """Catalog of the snapshots of all datasets in one home.

    Parameters
    ----------
    engine : sqlalchemy.Engine
        The database of an opened ledger.
    home : Path
        The local home folder.
    place : Place, optional
        The store of datasets, to which `Entry.path` is relative; the home folder by default.
    ledger : str, optional
        The id of the ledger; read from the database if it is not given.
    """

    def __init__(self, engine: Engine, home: Path, place: Place | None = None, *, ledger: str | None = None) -> None:
        self.engine = engine
        self._ledger = ledger
        self.home = home
        self.place = LocalPlace(home) if place is None else place

    def admit(self, *, name: str, population: str, unit: PrivacyUnit | None = None) -> str:
        """Check that a new snapshot may be registered under this dataset name and population; return the ledger's id.

        Raises
        ------
        Conflict
            If the name belongs to another population, or its snapshots have another privacy unit.
        """
        with reading(self.engine) as connection:
            _admit(connection, name=name, population=population, unit=unit)
            return journal.head(connection).ledger

    def holder(self, *, population: str, rows_digest: str) -> str | None:
        """Return the name of a dataset of another population that has the same rows, or None."""
        with reading(self.engine) as connection:
            found = _holder(connection, population=population, rows_digest=rows_digest)
        return None if found is None else str(found.name)

    def register(
        self,
        manifest: Manifest,
        *,
        path: str,
        number: int | None = None,
        allow_shared_rows: bool = False,
        over: str | None = None,
    ) -> Entry:
        """Register a finished snapshot as the current snapshot of its dataset, in one transaction.

        Parameters
        ----------
        manifest : Manifest
        path : str
            The snapshot's folder, relative to the store of datasets.
        number : int, optional
            The number of the ingest under which the snapshot's new ids were recorded. If it is None, or if a snapshot
            with a higher number was registered in the meantime, the next free number is used.
        allow_shared_rows : bool
            Whether to accept the snapshot if a dataset of another population has the same rows.
        over : str, optional
            The id of the snapshot that the new one replaces; it must still be current.

        Raises
        ------
        Conflict
            If the name belongs to another population, or ``over`` is no longer current. Also if another population has
            a dataset with the same rows and ``allow_shared_rows`` is false.
        """
        (population,) = manifest.populations
        found = Entry(
            snapshot=manifest.snapshot,
            name=manifest.dataset,
            population=population,
            n_features=manifest.n_features,
            records_at_most=manifest.records_at_most,
            path=path,
            content_digest=manifest.content_digest,
            rows_digest=manifest.rows_digest,
            **manifest.unit.facts,
            created_at=journal.now(),
            epoch=manifest.epoch,
        )
        with transaction(self.engine) as connection:
            _admit(connection, name=found.name, population=population, unit=found.privacy_unit)
            entry = replace(found, number=number_of_snapshot(connection, number))
            present = [row.id for row in connection.execute(_PRESENT) if row.name == found.name]
            if over is not None and present[-1:] != [over]:
                raise Conflict(f"another snapshot of dataset {found.name!r} is now current; run the command again")
            holder = _holder(connection, population=population, rows_digest=entry.rows_digest)
            if holder is not None and not allow_shared_rows:
                raise Conflict(
                    f"the rows of {entry.name!r} equal the rows of dataset {holder.name!r} of population "
                    f"{holder.population!r}, and the privacy losses of two populations with the same people add up; "
                    f"ingest with --population {holder.population}, or allow it with --allow-shared-rows"
                )
            connection.execute(
                insert(tables.snapshot).values(
                    id=entry.snapshot,
                    name=entry.name,
                    population=entry.population,
                    n_features=entry.n_features,
                    records_at_most=entry.records_at_most,
                    path=entry.path,
                    content_digest=entry.content_digest,
                    rows_digest=entry.rows_digest,
                    **entry.privacy_unit.facts,
                    created_at=entry.created_at,
                    seq=journal.head(connection).seq + 1,
                    number=entry.number,
                    epoch=entry.epoch,
                )
            )
            journal.append(
                connection,
                "snapshot_registered",
                population=population,
                detail={"dataset": entry.name, "snapshot": entry.snapshot, "number": entry.number, "epoch": entry.epoch}
                | entry.privacy_unit.facts
                # whether another population has the same rows is private, so only the permission is recorded
                | ({"shared_rows": "allowed"} if allow_shared_rows else {}),
            )
        return entry

    def entries(self) -> list[Entry]:
        """Return the current snapshot of every dataset, sorted by name.

        Raises the errors of `storage.ledger.budgets.check_snapshots`.
        """
        # rows are sorted so that the newest snapshot of each dataset comes last, and replaces earlier ones in the dict
        with reading(self.engine) as connection:
            newest = {row.name: row for row in connection.execute(_PRESENT)}
            check_snapshots(connection, list(newest.values()))
        return [Entry.from_row(row) for row in newest.values()]

    def current(self, name: str) -> Entry:
        """Return the current snapshot of a dataset.

        Raises
        ------
        NotFound
            If no dataset has this name.
        Corrupt
            If the newest snapshot's database row was edited, removed or restored by hand.
        """
        with reading(self.engine) as connection:
            row = current_snapshot(connection, name)
        if row is None:
            raise NotFound(f"dataset {name!r} does not exist; see `dpca dataset list`, or ingest it")
        return Entry.from_row(row)

    def older(self, name: str) -> list[Entry]:
        """Return the snapshots of a dataset that are not current, oldest first."""
        with reading(self.engine) as connection:
            found = [Entry.from_row(row) for row in connection.execute(_PRESENT) if row.name == name]
        return found[:-1]

    def entry(self, snapshot: str) -> Entry:
        """Return a snapshot by its id, whether it is current or not.

        Raises
        ------
        NotFound
            If the snapshot was never registered, or was removed.
        Corrupt
            If the snapshot's database row was edited, removed or restored by hand.
        """
        with reading(self.engine) as connection:
            row = connection.execute(_BY_ID, {"id": snapshot}).first()
            check_snapshots(connection, [] if row is None else [row])
        if row is None or row.removed_at is not None:
            raise NotFound(f"snapshot {snapshot} is no longer in the catalog; ingest the data again")
        return Entry.from_row(row)

    def number(self, snapshot: str) -> int | None:
        """Return the number of the ingest that made a snapshot; a snapshot registered later has a higher number.

        Raises
        ------
        NotFound
            If the snapshot was never registered, or was removed.
        """
        return self.entry(snapshot).number

    def epoch(self, snapshot: str) -> str | None:
        """Return the epoch (id of the table of ids) of a snapshot's first-seen numbers, or None without such numbers.

        A first-seen number is the number of the ingest in which the id of an individual first appeared. An epoch is one
        table of these ids. Numbers of different epochs cannot be compared, because each epoch numbers the same id anew.

        Raises
        ------
        NotFound
            If the snapshot was never registered, or was removed.
        """
        return self.entry(snapshot).epoch

    def arrivals_of(self, snapshot: str) -> Literal["ids", "rows"]:
        """Return "ids" if it is known when each individual arrived, or "rows" if only when each row arrived.

        With "ids", each individual has a first-seen number: the number of the ingest in which its id first appeared.
        With "rows", the rows have no ids, and each row counts as arrived with its snapshot.

        Raises
        ------
        NotFound
            If the snapshot was never registered, or was removed.
        """
        return "rows" if self.entry(snapshot).unit == ROW else "ids"

    def has(self, snapshot: str) -> bool:
        """Return whether a snapshot is registered and not removed."""
        try:
            self.entry(snapshot)
        except NotFound:
            return False
        return True

    def address(self, entry: Entry) -> str:
        """Return the address (path or URL) of a snapshot's Zarr group."""
        return self.place.at(entry.path)

    def open(self, entry: Entry) -> Dataset:
        """Open the rows of a snapshot.

        Raises
        ------
        Refused
            If the files belong to another ledger, population or snapshot.
        Corrupt
            If the files cannot be read.
        """
        return open_snapshot(self.place, entry, ledger=self._ledger_id())

    def manifest(self, entry: Entry) -> Manifest:
        """Return the manifest of a snapshot without opening the arrays; raises the errors of `open`."""
        return _checked(read_manifest(self.place.at(entry.path)), entry, ledger=self._ledger_id())

    def _ledger_id(self) -> str:
        if self._ledger is None:
            with reading(self.engine) as connection:
                self._ledger = journal.head(connection).ledger
        return self._ledger

    def verify(self, name: str) -> str:
        """Check a dataset's current snapshot: recompute the content digest from the files, and return it.

        Raises
        ------
        Corrupt
            If the files differ from the ingested rows.
        """
        entry = self.current(name)
        digest = self.open(entry).verify()
        if digest != entry.content_digest:
            raise Corrupt(
                f"the files of dataset {name!r} differ from the ingested rows; restore them or ingest the data again"
            )
        return digest

    def remove(self, name: str, *, snapshot: str | None = None, force: bool = False) -> list[str]:
        """Remove one snapshot or all snapshots of a dataset, and return the removed ids.

        The catalog rows are marked as removed first, then the files are deleted. If the store of datasets fails in
        between, the next call deletes the remaining files.

        Raises
        ------
        NotFound
            If no dataset has this name, or it has no such snapshot.
        Refused
            If a release was made from one of the snapshots, and `force` is false.
        """
        table, release = tables.snapshot, tables.release
        with transaction(self.engine) as connection:
            journal.lock(connection)
            chosen = table.c.name == name if snapshot is None else (table.c.name == name) & (table.c.id == snapshot)
            rows = connection.execute(select(table).where(chosen)).all()
            present = [row.id for row in rows if row.removed_at is None]
            named = connection.scalar(select(exists().where(release.c.snapshot_id.in_(present))))
            if named and not force:
                raise Refused(
                    f"a release was made from dataset {name!r}, so its removal must be forced; keep the dataset, or "
                    "force its removal"
                )
            if present:
                connection.execute(update(table).where(table.c.id.in_(present)).values(removed_at=journal.now()))
                journal.append(
                    connection,
                    "snapshot_removed",
                    population=rows[0].population,
                    detail={"dataset": name, "snapshots": present, "forced": bool(named)},
                )
        removed = present or [row.id for row in rows if self.place.names(row.path)]
        if not removed:
            raise NotFound(f"dataset {name!r} does not exist; see `dpca dataset list`")
        for row in rows:
            quarantine_notes(self.home / row.path).unlink(missing_ok=True)
            self.place.remove(row.path, marker=MARKER)
        remove_if_empty(self.home / "datasets" / name)
        return removed


def open_snapshot(place: Place, entry: Entry, *, ledger: str) -> Dataset:
    """Open the files of a snapshot in the store of datasets; raises the errors of `Catalog.open`."""
    dataset = Dataset.open(place.at(entry.path))
    _checked(dataset.manifest, entry, ledger=ledger)
    return dataset


def _checked(manifest: Manifest, entry: Entry, *, ledger: str) -> Manifest:
    """Check that a manifest belongs to the registered snapshot `entry` and to this ledger, and return the manifest."""
    found = (manifest.ledger, manifest.populations, manifest.snapshot)
    if found != (ledger, [entry.population], entry.snapshot):
        raise Refused(
            f"the files of dataset {entry.name!r} belong to another ledger or population; ingest the data in this home"
        )
    if manifest.content_digest != entry.content_digest:
        raise Corrupt(
            f"the files of dataset {entry.name!r} differ from the registered snapshot; restore them or ingest the data "
            "again"
        )
    return manifest


def check_name(name: str) -> str:
    """Check the name of a dataset, and return it.

    Raises
    ------
    Invalid
        If the name does not match the pattern of names.
    """
    if not re.fullmatch(_NAME, name):
        raise Invalid(
            f"name {name!r} must start with a letter or digit, followed by up to 99 of A-Z a-z 0-9 . _ -; choose "
            "another"
        )
    return name


def _admit(connection: Connection, *, name: str, population: str, unit: PrivacyUnit | None) -> None:
    table = tables.snapshot
    for column, noun, wanted in ((table.c.name, "dataset", name), (table.c.population, "population", population)):
        is_alike = (func.lower(column) == wanted.lower()) & (column != wanted) & table.c.removed_at.is_(None)
        if (found := connection.scalar(select(column).where(is_alike).limit(1))) is not None:
            raise Conflict(
                f"{noun} {wanted!r} differs from {found!r} only by case, and on some disks both share one folder; use "
                f"{found!r}, or choose another name"
            )
    owner = connection.scalar(select(table.c.population).where(table.c.name == name).limit(1))
    if owner not in (None, population):
        raise Conflict(
            f"dataset {name!r} belongs to population {owner!r} permanently, not {population!r}; use that population "
            "or choose another name"
        )
    units = select(table.c.unit).where(table.c.name == name, table.c.removed_at.is_(None))
    before = connection.scalar(units.limit(1))
    if unit is not None and before not in (None, unit.name):
        shown = PrivacyUnit(name=before, rows=1 if before == ROW else None)
        raise Conflict(
            f"the snapshots of dataset {name!r} have {shown} as the unit of privacy, and the new snapshot would have "
            f"{unit}; use the same column of ids, or another name of a dataset in the same population"
        )


def _holder(connection: Connection, *, population: str, rows_digest: str | None) -> Row[tuple[str, str]] | None:
    """Return the name and population of a dataset in another population that has the same rows, or None.

    Rows are compared without ids and order, because adding ids does not turn the same rows into other people. A removed
    snapshot counts if a release was made from it, because the privacy loss of its people remains spent.
    """
    table, release = tables.snapshot, tables.release
    charged = exists().where(release.c.snapshot_id == table.c.id, release.c.state != "abandoned")
    query = select(table.c.name, table.c.population).where(
        table.c.rows_digest == rows_digest,
        table.c.population != population,
        table.c.removed_at.is_(None) | charged,
    )
    return connection.execute(query.order_by(table.c.seq, table.c.id).limit(1)).first()
