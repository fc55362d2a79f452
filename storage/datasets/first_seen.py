"""The table of first-seen ids of a population: which ingest brought each individual first, whatever became of it since.

An id is kept as a keyed hash, in a *segment* of the ingest that saw it first, for ever: a removed snapshot, an erased
individual or another dataset of the same people changes nothing. Segments lie in the place of datasets, below
``arrivals/POPULATION``, so that all machines of a ledger read the same ones; the database knows the number and the
digest of each, and the key is a file beside the keys of releases. A backup holds all three, or streams count every
record as here from their first tick on: see `storage.ledger.arrivals`.

Examples
--------
::

    table = FirstSeenTable(engine=engine, place=place, home=home, keys=keys, population="patients")
    found = table.record(grouping)             # its batches then come by (first seen, id)
    found.number, found.epoch

Notes
-----
**A crash.** Ids are recorded before the first block is written. An ingest that is killed or refused after that leaves
ids with an earlier number than that of their first snapshot. This is safe: a record that counts as here since earlier
has a greater age at every tick, ages never repeat, and the bound over the life of a stream is a sum over all of them.
Run again, resumed or not, it finds the same numbers. One killed before that leaves nothing that is ever read.

**Two at once.** Each compares its ids with the segments that it has read, and is given its number only if there are no
others by then; else it reads those first. So each id has one number, which is at most that of any snapshot it is in.

**Equal ids** have equal text by `storage.schemas.unit_ids`, so an integer is the same id as its decimal text, whatever
file each night holds.
"""

import hashlib
import hmac
import json
import os
import secrets
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import batched
from pathlib import Path

from sqlalchemy import Engine

from storage.backends.atomic_files import make_folder, write_atomically, writing
from storage.backends.base import Place
from storage.backends.crash_points import reached
from storage.database.engine import reading, transaction
from storage.datasets.grouping import Grouping
from storage.datasets.keyed_hash import KEY_BYTES
from storage.datasets.staging import scratch_folder
from storage.errors import Corrupt
from storage.ledger import arrivals
from storage.ledger.arrivals import Segment

PART_IDS = 1 << 18
"""Hashes in one file of a segment."""

_MARKER = "segment.json"  # lists the parts with their digests; comes last when a segment is published
_MOST_BYTES = 1 << 23  # of a file of a segment: a part has 16 bytes an id, a marker 70 a part
_AT_ONCE = 8  # files read at a time


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstSeen:
    """What an ingest knows about when its individuals came.

    Attributes
    ----------
    epoch : str or None, the table that the numbers come from; None where they are not known
    number : int or None, of the individuals that came with this ingest
    lost : bool, whether the population had a table that is lost
    """

    epoch: str | None = None
    number: int | None = None
    lost: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstSeenTable:
    """The ids of a population by the ingest that saw each first; only ever added to.

    Attributes
    ----------
    engine : Engine, the database of the ledger
    place : Place, where datasets lie
    home : Path, which holds the scratch folder
    keys : Path, the folder of secret keys
    population : str
    """

    engine: Engine
    place: Place
    home: Path
    keys: Path
    population: str

    def record(self, grouping: Grouping) -> FirstSeen:
        """Add the ids that are new, and tell `grouping` the number of each; say so if the table is lost.

        Raises
        ------
        Unavailable
            If files, key or database cannot be reached. What is missing or damaged is lost instead.
        """
        epoch = self._epoch()
        try:
            return self._record(grouping, epoch)
        except _Lost:
            folders = self._folders()
            with transaction(self.engine) as connection:
                arrivals.lose_epoch(connection, epoch)
                for unknown in sorted(folders - arrivals.folders_of(connection, self.population)):
                    arrivals.plan_segment(connection, epoch=epoch, segment=unknown)  # which is then ignored
            return FirstSeen(lost=True)

    def _epoch(self) -> str:
        """Return the population's epoch; begin one where it has none."""
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

    def _record(self, grouping: Grouping, epoch: str) -> FirstSeen:
        grouping.hash_ids(self._key(epoch))
        known: list[Segment] = []
        while True:
            folders = self._folders()  # before the rows are read: a folder's row is older than the folder
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

    def _add(self, grouping: Grouping, epoch: str, known: Sequence[Segment]) -> int | None:
        """Write and record a segment of the ids that no known one holds; return its number, None where it came late."""
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
        """Read segments, checked against their digests, as (number, hashes) of each part."""
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
    """A part of an epoch is missing or damaged."""


def _epoch_of(key: bytes) -> str:
    """Name an epoch after its key, one way: 128 bits of HMAC-SHA256."""
    return hmac.new(key, b"dpca arrivals", hashlib.sha256).digest()[:16].hex()


def _parts(marker: bytes, epoch: str) -> list[str]:
    """Return the digests of a segment's parts; its marker is known to be the one that was recorded."""
    found = json.loads(marker)
    if (found["format"], found["version"], found["epoch"]) != ("dpca-arrivals", 1, epoch):
        raise _Lost
    return list(found["parts"])
