"""Whole records of a source, and the table of ids that earlier ingests of a population have seen.

If the entries of a row, or the rows of an individual, are scattered over a source, they are first grouped on disk. The
result is batches of whole records.

The first-seen table of a population stores, for each id, the number of the ingest in which the id first appeared. This
number is the id's first-seen number. The table consists of one *segment* per ingest, which contains keyed hashes of the
ids that are new in this ingest. Ids stay in the table permanently, even if their snapshot is removed, the individual is
erased, or another dataset of the population contains them. Segments are stored in the store of datasets, below
``arrivals/POPULATION``, so that all machines that use the ledger read the same segments. The database has the number
and the digest of each segment. The key of the hashes is a file next to the keys of releases. If segments, database rows
or key are lost, streams count every record as present from their first tick on: see `storage.ledger.arrivals`.

Examples
--------
::

    table = FirstSeenTable(engine=engine, place=place, home=home, keys=keys, population="patients")
    found = table.record(grouping)             # grouping.batches() is then sorted by first-seen number
    found.number, found.epoch

::

    with whole_records(source, home=home, options=options, rejects=rejects) as records:
        for batch in records.batches:
            ...

Notes
-----
**Crash.** Ids are recorded before the first block is written. If the ingest is then killed or refused, its ids keep a
lower number than the number of the first snapshot that contains them. This is safe: such a record only has a greater
age at every tick of a stream, its ages never repeat, and the stream's privacy bound is a sum over all ages. A repeated
ingest, resumed or not, finds the same numbers. If an ingest is killed before its ids are recorded, none of its files is
ever read.

**Concurrent ingests.** Each ingest compares its ids with all segments of the table. The ingest gets a number only if no
other segment was added since the comparison; otherwise it first reads the new segments. Therefore each id has exactly
one first-seen number, which is at most the number of any snapshot that contains the id.

**Equal ids** are ids with the same text according to `dpca.schemas.canonical`. An integer is therefore the same id as
its decimal text, even in files of different formats.
"""

import hashlib
import hmac
import json
import os
import secrets
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import batched, chain
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from sqlalchemy import Engine

from dpca.backends.atomic_files import make_folder, reached, write_atomically, writing
from dpca.backends.base import Place
from dpca.errors import Corrupt
from dpca.installed import needing
from storage.database.engine import reading, transaction
from storage.datasets.ingest_options import IngestOptions
from storage.datasets.keyed_hash import KEY_BYTES, OwnerKey, keyed_hashes
from storage.datasets.open_source import OpenSource, declared_rows
from storage.datasets.staging import scratch_folder
from storage.formats.batch import Rejects, RowBatch, make_canonical
from storage.formats.csr import BATCH_ROWS
from storage.ledger import arrivals
from storage.ledger.arrivals import Segment

if TYPE_CHECKING:
    from storage.datasets.grouping import Grouping

PART_IDS = 1 << 18
"""Number of hashed ids in one file of a segment (the new ids of one ingest)."""

_MARKER = "segment.json"  # this file lists the digests of a segment's other files, and is written last
_MOST_BYTES = 1 << 23  # size limit of a segment's files: 16 bytes per hashed id, and 70 bytes per file for the marker
_AT_ONCE = 8  # number of files that are read concurrently


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstSeen:
    """Result of recording the ids of an ingest in the first-seen table of its population.

    Attributes
    ----------
    epoch : str or None, the id of the table from which the first-seen numbers come; None if there are no numbers
    number : int or None, the first-seen number of the ids that are new in this ingest
    lost : bool, whether a part of the population's table was found to be missing or damaged
    """

    epoch: str | None = None
    number: int | None = None
    lost: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstSeenTable:
    """Append-only table of the ids of a population, with the number of the ingest in which each first appeared.

    Attributes
    ----------
    engine : Engine, the connection to the ledger's database
    place : Place, the store of datasets
    home : Path, the home folder, for temporary files
    keys : Path, the folder of secret keys
    population : str, the name of the population
    """

    engine: Engine
    place: Place
    home: Path
    keys: Path
    population: str

    def record(self, grouping: "Grouping") -> FirstSeen:
        """Record the new ids of an ingest in the table, and give `grouping` the first-seen number of each id.

        If the table turns out to be damaged, the population's epoch is ended and the result has ``lost`` set. The next
        ingest begins a new table.

        Raises
        ------
        Unavailable
            If the store of datasets, the key folder or the database cannot be reached. Missing or damaged files do not
            raise: the table then counts as lost.
        """
        epoch = self._epoch()
        try:
            return self._record(grouping, epoch)
        except _Lost:
            folders = self._folders()
            with transaction(self.engine) as connection:
                arrivals.lose_epoch(connection, epoch)
                for unknown in sorted(folders - arrivals.folders_of(connection, self.population)):
                    # the inserted row has no number, so later reads ignore this folder
                    arrivals.plan_segment(connection, epoch=epoch, segment=unknown)
            return FirstSeen(lost=True)

    def _epoch(self) -> str:
        """Return the id of the population's current table; if there is none, draw a key and begin a table."""
        with reading(self.engine) as connection:
            epoch = arrivals.epoch_of(connection, self.population)
        if epoch is not None:
            return epoch
        key = os.urandom(KEY_BYTES)
        drawn = _epoch_of(key)
        with writing(self.keys):
            make_folder(self.keys)
            write_atomically(self._key_file(drawn), key)
        reached("arrivals.key_written")
        with transaction(self.engine) as connection:
            epoch = arrivals.begin_epoch(connection, population=self.population, epoch=drawn)
        if epoch != drawn:
            self._key_file(drawn).unlink(missing_ok=True)
        return epoch

    def _record(self, grouping: "Grouping", epoch: str) -> FirstSeen:
        grouping.hash_ids(self._key(epoch))
        known: list[Segment] = []
        while True:
            # folders are listed before rows, because the row of a folder is always written before the folder
            folders = self._folders()
            with reading(self.engine) as connection:
                segments = arrivals.segments_of(connection, epoch)
                planned = arrivals.folders_of(connection, self.population)
            if not folders <= planned:
                raise _Lost
            for numbers, hashes in self._hashes(epoch, [segment for segment in segments if segment not in known]):
                grouping.add_seen(hashes, numbers)
            known = segments
            number = self._add(grouping, epoch, known)
            if number is not None:
                grouping.number_ids(number)
                return FirstSeen(epoch=epoch, number=number)
            with reading(self.engine) as connection:
                if arrivals.epoch_of(connection, self.population) != epoch:
                    raise _Lost

    def _add(self, grouping: "Grouping", epoch: str, known: Sequence[Segment]) -> int | None:
        """Write a segment (hashes of this ingest's new ids), record it in the database, and return its number.

        Return None if another ingest has recorded a segment meanwhile, so that the comparison must be repeated.
        """
        name = secrets.token_hex(16)
        with scratch_folder(self.home) as scratch:
            staged = scratch / name
            make_folder(staged)
            parts: list[str] = []
            for hashes in grouping.unseen(PART_IDS):
                (staged / f"{len(parts):06}").write_bytes(hashes)
                parts.append(hashlib.sha256(hashes).hexdigest())
            marker = json.dumps({"format": "dpca-arrivals", "version": 1, "epoch": epoch, "parts": parts}).encode()
            (staged / _MARKER).write_bytes(marker)
            with transaction(self.engine) as connection:
                arrivals.plan_segment(connection, epoch=epoch, segment=name)
            reached("arrivals.planned")
            self.place.publish(staged, self._folder(name), marker=_MARKER)
        reached("arrivals.published")
        with transaction(self.engine) as connection:
            digest = hashlib.sha256(marker).hexdigest()
            number = arrivals.record_segment(connection, epoch=epoch, segment=name, digest=digest, known=known)
        if number is None:
            self.place.remove(self._folder(name), marker=_MARKER)
        reached("arrivals.recorded")
        return number

    def _hashes(self, epoch: str, segments: Sequence[Segment]) -> Iterator[tuple[int, bytes]]:
        """Read and check segments (the hashed new ids of one ingest each); yield (number of the ingest, hashes)."""
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            markers = pool.map(lambda segment: self._read(segment.id, _MARKER, segment.digest), segments)
            parts = [
                (segment, f"{part:06}", digest)
                for segment, marker in zip(segments, markers, strict=True)
                for part, digest in enumerate(_parts(marker, epoch))
            ]
            for some in batched(parts, _AT_ONCE):
                read = pool.map(lambda part: self._read(part[0].id, part[1], part[2]), some)
                yield from zip((segment.number for segment, _, _ in some), read, strict=True)

    def _read(self, segment: str, file: str, digest: str) -> bytes:
        try:
            found = self.place.read(f"{self._folder(segment)}/{file}", most=_MOST_BYTES).payload
        except (FileNotFoundError, Corrupt):
            raise _Lost from None
        if hashlib.sha256(found).hexdigest() != digest:
            raise _Lost
        return found

    def _key(self, epoch: str) -> bytes:
        try:
            key = self._key_file(epoch).read_bytes()
        except FileNotFoundError:
            raise _Lost from None
        if _epoch_of(key) != epoch:
            raise _Lost
        return key

    def _key_file(self, epoch: str) -> Path:
        return self.keys / f"arrivals-{epoch}"

    def _folder(self, segment: str) -> str:
        return f"arrivals/{self.population}/{segment}"

    def _folders(self) -> set[str]:
        return {name for name in self.place.names(f"arrivals/{self.population}") if not name.startswith(".")}


class _Lost(Exception):
    """Error for a first-seen table of which a segment, database row or key is missing or damaged."""


def _epoch_of(key: bytes) -> str:
    """Derive the id of a table of ids from its key, irreversibly: the first 128 bits of an HMAC-SHA256."""
    return hmac.new(key, b"dpca arrivals", hashlib.sha256).digest()[:16].hex()


def _parts(marker: bytes, epoch: str) -> list[str]:
    """Return the digests of the files with a segment's hashed ids, which the segment's marker file lists.

    The caller has checked the digest of the marker.
    """
    found = json.loads(marker)
    if (found["format"], found["version"], found["epoch"]) != ("dpca-arrivals", 1, epoch):
        raise _Lost
    return list(found["parts"])


type Progress = Callable[[str, int, int, int], None]
"""Receives (phase, bytes done, bytes in total, rows done); the phases are "reading" and "grouping"."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class WholeRecords:
    """The records of a source, each complete with all rows of its individual.

    Attributes
    ----------
    batches : iterator of RowBatch
    lookalikes : int, the number of ids that differ from another id only in a leading + or leading zeros; private
    first_seen : FirstSeen, with epoch and number None if the source has no ids of individuals
    """

    batches: Iterator[RowBatch]
    lookalikes: int = 0
    first_seen: FirstSeen = FirstSeen()


@contextmanager
def whole_records(
    source: OpenSource,
    *,
    home: Path,
    options: IngestOptions,
    rejects: Rejects,
    table: FirstSeenTable,
    owner_key: OwnerKey,
    progress: Progress | None = None,
) -> Iterator[WholeRecords]:
    """Read the complete records of a source, which are grouped in a temporary folder while the context is open.

    Parameters
    ----------
    source : OpenSource
    home : Path
        The home folder, in which the temporary folder is created.
    options : IngestOptions
    rejects : Rejects
        Receives each bad row.
    table : FirstSeenTable
        The table of ids that earlier ingests of the population have seen. New ids are recorded in it before the first
        record is yielded.
    owner_key : OwnerKey
        The key with which ids or names of rows are hashed for the `owners` of the batches.
    progress : callable or None
        Called after each batch.

    Guarantees
    ----------
    Memory is bounded by a constant plus the size of the largest record. A row changes only the record of the row's
    individual. A row with an unreadable id counts as a separate individual, like an id that occurs only once. Its
    record is empty and follows all other records. If a source declares its number of rows, there are exactly these
    rows: an entry with an unreadable row number is left out.
    """
    reader = source.reader
    batches = _watched(reader.batches(rejects), "reading", lambda: reader.position, reader.size, progress)
    nameless = 0
    if source.owners is not None:
        nameless = source.owners.reject_missing(rejects)
        batches = source.owners.attach(batches)
    has_ids = source.owners is not None or options.unit_column is not None
    if not (reader.scattered or has_ids):
        yield WholeRecords(batches=_named(batches, owner_key))
        return
    # imported here, because sources whose rows need no grouping need no DuckDB
    with needing("a source with rows in pieces, or with ids,"):
        from storage.datasets.grouping import Grouping
    limit = options.max_rows_per_unit
    with scratch_folder(home) as scratch, Grouping(scratch, rejects=rejects, max_rows_per_unit=limit) as grouping:
        _gather(batches, grouping, source, rejects=rejects, keep_zeros=options.keep_zeros)
        grouped = _watched(
            grouping.batches(), "grouping", lambda: int(grouping.done * reader.size), reader.size, progress
        )
        first_seen = table.record(grouping) if has_ids else FirstSeen()
        if has_ids or reader.n_rows is None:  # a source that declares its number of rows has row numbers instead of ids
            grouping.name_owners(owner_key.drawn())
        # every declared row is a record, even if its entries are unreadable, so only rows without an individual are
        # added
        unknown = grouping.unknown if reader.n_rows is None else nameless
        grouped = chain(grouped, _unknown_records(unknown, first_seen.number))
        yield WholeRecords(batches=grouped, lookalikes=grouping.lookalikes(), first_seen=first_seen)


def _gather(
    batches: Iterator[RowBatch], grouping: "Grouping", source: OpenSource, *, rejects: Rejects, keep_zeros: bool
) -> None:
    """Check the entries of each batch and add them to the grouping; messages about bad rows can name their lines."""
    reader, origins, end = source.reader, list[tuple[int, str]](), 0
    checked = np.dtype(np.float64 if source.dtype.kind == "f" else np.int64)
    for batch in batches:
        if not origins or origins[-1][1] != rejects.file:
            origins.append((end, rejects.file))
        rows = make_canonical(
            batch,
            n_features=reader.n_features,
            dtype=checked,
            rejects=rejects,
            # each batch row of a scattered source is one entry, so there are no duplicates yet
            duplicates="sum" if reader.scattered else source.merges,
            keep_zeros=keep_zeros,
        )
        grouping.add(replace(rows, places=rows.places + origins[-1][0]))
        end = max(end, int(rows.places.max(initial=-1)) + origins[-1][0] + 1)
    rejects.origins = origins
    if reader.scattered and reader.n_rows is not None:
        every = declared_rows(reader.n_rows)
        for batch in every if source.owners is None else source.owners.attach(every):
            grouping.add(batch)


def _unknown_records(count: int, first_seen: int | None) -> Iterator[RowBatch]:
    """Yield one empty, rejected record for each row whose individual is unknown."""
    for first in range(0, count, BATCH_ROWS):
        rows = min(BATCH_ROWS, count - first)
        yield RowBatch(
            values=np.empty(0),
            indices=np.empty(0, dtype=np.int64),
            row_ptr=np.zeros(rows + 1, dtype=np.int64),
            record_ptr=np.arange(rows + 1),
            places=np.zeros(rows, dtype=np.int64),
            place="row",
            rejected=np.ones(rows, dtype=np.bool_),
            first_seen=first_seen,
            owners=np.zeros((rows, 2), dtype=np.uint64),
        )


def _named(batches: Iterator[RowBatch], key: OwnerKey) -> Iterator[RowBatch]:
    """If the source has names of rows, add the keyed hash of each row's name to the batches."""
    for batch in batches:
        yield (
            batch if batch.row_names is None else replace(batch, owners=keyed_hashes(batch.row_names, key=key.drawn()))
        )


def _watched(
    batches: Iterator[RowBatch], phase: str, position: Callable[[], int], size: int, progress: Progress | None
) -> Iterator[RowBatch]:
    """Yield the batches unchanged, and call `progress` after each batch."""
    rows = 0
    for batch in batches:
        rows += batch.row_ptr.size - 1
        yield batch
        if progress is not None:
            progress(phase, position(), size, rows)
