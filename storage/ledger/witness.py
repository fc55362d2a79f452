"""The witnesses of a ledger: copies of its last event and of each release, outside the database.

The file of a witness: two copies of a journal's head, of which the older is written over.

Each copy fills a page of the file and ends with its checksum, and one sync of a file that exists already makes it
durable. A write that a crash cut short leaves the other copy, which is the event before: the journal is then one event
ahead of its witness, as it is between any commit and the write that follows it.

>>> first, second = (Head(ledger="a", seq=seq, hash=str(seq)) for seq in (1, 2))
>>> payload = encode(first)
>>> decode(payload) == first
True
>>> decode(payload[:_PAGE] + _copy_of(second)) == second
True

The witnesses of a ledger: copies of its last event, and of each release that began, outside its database.

One lies beside the keys, where all machines that release share it. One lies apart, in this machine's state folder, so
that it is not restored with the home or copied along; it also notes each release that began, with the budget that paid,
and each version that was published. A database that does not contain what a witness saw was restored from a copy, or
another copy of it went on meanwhile. It is refused: it has un-spent.

The notes for the witness: everything needed to enter a release or a version that a restored copy lacks.
"""

import errno
import fcntl
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import lru_cache, partial
from hashlib import sha256
from pathlib import Path
from typing import Any, BinaryIO

import sqlalchemy as sa

from dpca.backends.atomic_files import make_folder, reached, read_file, write_atomically, writing
from dpca.errors import Corrupt, Refused, Unavailable
from storage.database import tables
from storage.database.engine import reading
from storage.ledger import journal
from storage.ledger.budgets import read_budget
from storage.ledger.journal import Head

_PAGE = 4096
"""Bytes that a disk writes whole, or leaves damaged, without harm to the next ones."""


def encode(head: Head) -> bytes:
    """Write a new file, both of whose copies are of one head."""
    return 2 * _copy_of(head)


def decode(payload: bytes) -> Head:
    """Return the newer sound copy.

    Raises
    ------
    TypeError, ValueError
        When none is sound.
    """
    if len(payload) != 2 * _PAGE:
        raise ValueError("the file has not the length of two copies")
    sound = [head for head in _copies(payload) if head is not None]
    if not sound:
        raise ValueError("both copies are damaged")
    return max(sound, key=lambda head: head.seq)


def write_next(path: Path, head: Head, *, over: bytes) -> None:
    """Write a newer head durably, over the older or damaged copy of a file that holds ``over``.

    The caller holds the writers' lock.
    """
    first, second = _copies(over)
    is_first = first is None or (second is not None and first.seq <= second.seq)
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        if os.pwrite(descriptor, _copy_of(head), 0 if is_first else _PAGE) != _PAGE:
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    reached("witness.synced")


def _copy_of(head: Head) -> bytes:
    text = json.dumps(asdict(head)).encode()
    return b"%s %s" % (text, sha256(text).hexdigest().encode()) + b"\n".rjust(_PAGE - len(text) - 65)


def _copies(payload: bytes) -> tuple[Head | None, Head | None]:
    return _sound(payload[:_PAGE]), _sound(payload[_PAGE:])


@lru_cache(maxsize=16)  # a release reads both witnesses some thirty times, mostly as they were
def _sound(copy: bytes) -> Head | None:
    text, _, checksum = copy.rstrip().rpartition(b" ")
    return Head(**json.loads(text)) if sha256(text).hexdigest().encode() == checksum else None


_NAME = "witness.json"
_MOST_BYTES = 1 << 16
_HASH = sa.select(tables.event.c.hash).where(tables.event.c.seq == sa.bindparam("seq"))

Note = Mapping[str, Any]
"""A release that begins, with its budget's terms, or a version that is published."""


@dataclass(frozen=True, slots=True)
class Witness:
    """A folder with a copy of the journal's head. It moves forward only; see `storage.ledger.witness`."""

    folder: Path

    def read(self) -> Head | None:
        """Return the copy, or None where no ledger has written one."""
        found = self._read()
        return None if found is None else found[0]

    def _read(self) -> tuple[Head, bytes] | None:
        """Return the copy, and all that its file holds."""
        path = f"{self.folder}/{_NAME}"  # no path object: a release reads some thirty times
        try:
            payload = read_file(path, most=_MOST_BYTES)
            return decode(payload), payload
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (Corrupt, ValueError, TypeError):
            raise Corrupt(f"{path} is damaged; restore it from a copy.") from None
        except OSError as error:
            raise Unavailable(
                f"{path} cannot be read ({error.strerror}); fix it, or set DPCA_KEY_FOLDER or DPCA_STATE_FOLDER."
            ) from None

    @property
    def _path(self) -> Path:
        return self.folder / _NAME

    def advance(self, reached: Head, *, confirm: Callable[[Head], None] | None = None, back: bool = False) -> None:
        """Copy an event that is committed.

        Parameters
        ----------
        reached : Head
        confirm : callable, optional
            Called with the head that was copied before, and raises when the journal does not hold it.
        back : bool
            Let an operator's act move the copy anywhere.
        """
        with writing(self.folder):
            make_folder(self.folder)
            with (self.folder / ".witness.lock").open("ab", buffering=0) as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                found = self._read()
                if back or found is None:
                    write_atomically(self._path, encode(reached))
                    return
                seen, payload = found
                if confirm is not None and seen != reached:
                    confirm(seen)
                if seen.seq < reached.seq:
                    write_next(self._path, reached, over=payload)

    def check(self, connection: sa.Connection, current: Head, *, restored: bool = False) -> None:
        """Compare a database, of which the head was read before, with the copy.

        ``restored`` admits an older state, but no other ledger. The head comes first, since whoever writes event 2 has
        put down event 1 here before. The copy may be newer than the head for the same reason; then the database is read
        once more.

        Raises
        ------
        Refused
            When the database is another ledger, or an older state of this one.
        """
        seen = self.read()
        if seen is None:
            if current.seq > 1 and not restored:
                raise Refused(
                    f"{self.folder} has no witness of this ledger; set DPCA_KEY_FOLDER to the folder it was used with, "
                    "or accept it with `dpca budget accept-restored`."
                )
            return
        if seen.ledger != current.ledger:
            raise Refused(
                f"the database is ledger {current.ledger[:8]}, but {self.folder} belongs to ledger {seen.ledger[:8]}; "
                "use the database and key folder of one ledger together."
            )
        if not restored and seen != current:
            _require(connection, seen)


class Witnesses:
    """Both witnesses of a ledger: ``beside`` its keys, and ``apart`` in a folder of this ledger alone."""

    def __init__(self, *, beside: Path, apart: Path) -> None:
        self._beside, self._apart = Witness(beside), Witness(apart)
        self._notes = apart / "notes.jsonl"
        self._ours: Head | None = None
        self.is_new = False
        """Whether a check found none apart: the ledger is new, or comes from another machine."""

    def check(self, connection: sa.Connection, *, restored: bool = False) -> Head:
        """Compare a database with both, as `Witness.check`, and return its head; there may be none apart."""
        current = journal.head(connection)
        self._beside.check(connection, current, restored=restored)
        self.is_new = self._apart.read() is None
        if not self.is_new:
            self._apart.check(connection, current, restored=restored)
        self._ours = current
        return current

    def follow(self, connection: sa.Connection) -> None:
        """Check, before anything is written, that the database still has what this process saw last.

        Raises
        ------
        Refused
            When it does not: it was restored meanwhile, or a replica took over that lacks what was committed.
        """
        if self._ours is not None:
            _require(connection, self._ours)

    def advance(self, reached: Head, *, engine: sa.Engine, back: bool = False) -> None:
        """Copy an event that is committed to both.

        Raises
        ------
        Refused
            When another copy of this ledger has moved a witness; what was just committed must not be acted on then.
        """
        both = self._beside, self._apart
        if not back and reached == self._ours and all(witness.read() == reached for witness in both):
            return
        for witness in both:
            witness.advance(reached, confirm=partial(self._confirm, engine), back=back)
        self._ours = reached

    def note(self, notes: Iterable[Note]) -> None:
        """Add notes, durably; to be called before the transaction that they tell of is committed."""
        lines = [json.dumps(dict(note), sort_keys=True).encode() for note in notes]
        with writing(self._notes.parent.parent), self._appending() as (file, is_torn):
            file.write(b"\n" * is_torn + b"".join(line + b"\n" for line in lines))
            file.flush()
            os.fsync(file.fileno())

    def noted(self) -> list[Note]:
        """Return all notes, oldest first."""
        try:
            lines = self._notes.read_bytes().splitlines()
        except FileNotFoundError:
            return []
        except OSError as error:
            raise Unavailable(f"{self._notes} cannot be read ({error.strerror}); fix it and try again.") from None
        notes = []
        for line in lines:
            with suppress(ValueError):  # whoever was killed while writing a line committed nothing
                notes.append(json.loads(line))
        return notes

    @contextmanager
    def _appending(self) -> Iterator[tuple[BinaryIO, bool]]:
        make_folder(self._notes.parent)
        with os.fdopen(os.open(self._notes, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600), "ab+") as file:
            fcntl.flock(file, fcntl.LOCK_EX)  # not the witness's: this one is taken while the database is locked
            end = file.seek(0, os.SEEK_END)
            if end:
                file.seek(end - 1)
            yield file, end > 0 and file.read(1) != b"\n"

    def _confirm(self, engine: sa.Engine, seen: Head) -> None:
        if seen != self._ours:  # another process of this ledger was here, or another copy of it
            with reading(engine) as connection:
                _require(connection, seen)


def _require(connection: sa.Connection, seen: Head) -> None:
    stored = connection.execute(_HASH, {"seq": seen.seq}).scalar_one_or_none()
    if stored is None:  # it may have been committed after the state that this connection sees
        with reading(connection.engine) as newer:
            stored = newer.execute(_HASH, {"seq": seen.seq}).scalar_one_or_none()
    if stored != seen.hash:
        raise Refused(
            f"the ledger lacks event {seen.seq} that was committed: it was restored from a copy, or another copy of it "
            "is in use, and has un-spent; restore the newest copy, or accept this one with `dpca budget "
            "accept-restored`."
        )


_NOT_NOTED = ("state", "artifact_digest", "updated_at", "seq")
_ROW = sa.select(tables.release).order_by(tables.release.c.seq.nulls_first())
_OF_RELEASE = _ROW.where(tables.release.c.id == sa.bindparam("id"))
_VERSIONS = (
    sa.select(tables.version, tables.release.c.artifact_digest)
    .join(tables.release)
    .where(tables.release.c.id == sa.bindparam("id"))
)
_STREAM_FACTS = {
    column.table.name: sa.select(column.table).where(column == sa.bindparam("id"))
    for column in (tables.stream.c.id, tables.stream_charge.c.release_id, tables.tick.c.release_id)
}


def note_release(connection: sa.Connection, release_id: str) -> list[Note]:
    """Describe a release for the witness: its row, and the terms of its budget."""
    rows = connection.execute(_OF_RELEASE, {"id": release_id}).mappings().all()
    return [_release_note(connection, row) for row in rows]


def note_answer(*, stream: str, tick: int, digest: str) -> list[Note]:
    """Describe the answer of a tick for the witness."""
    return [{"answer": {"stream": stream, "tick": tick, "digest": digest}}]


def note_versions(connection: sa.Connection, release_id: str) -> list[Note]:
    """Describe the versions of a release for the witness."""
    return [
        {"version": {name: row[name] for name in ("name", "version", "digest", "release_id", "artifact_digest")}}
        for row in connection.execute(_VERSIONS, {"id": release_id}).mappings()
    ]


def note_joint_versions(connection: sa.Connection, joint_id: str | None = None) -> list[Note]:
    """Describe the versions of a joint release, or of all of them, for the witness."""
    table = tables.joint_version
    query = sa.select(table) if joint_id is None else sa.select(table).where(table.c.joint_id == joint_id)
    return [
        {
            "version": {
                **{name: row[name] for name in ("name", "version", "digest")},
                **{"release_id": row["joint_id"], "artifact_digest": row["digest"], "sites": json.loads(row["sites"])},
            }
        }
        for row in connection.execute(query).mappings()
    ]


def note_everything(connection: sa.Connection) -> list[Note]:
    """Describe every release that began, its versions, and those of joint releases, for a new witness."""
    has_begun = tables.release.c.state.in_(("noising", "committed", "closed"))
    begun = connection.execute(_ROW.where(has_begun)).mappings().all()
    releases = [_release_note(connection, row) for row in begun]
    versions = [note for row in begun for note in note_versions(connection, row["id"])]
    table = tables.tick_answer
    answers = [note for row in connection.execute(sa.select(table)).mappings() for note in note_answer(**row)]
    return [*releases, *versions, *note_joint_versions(connection), *answers]


def _release_note(connection: sa.Connection, row: sa.RowMapping) -> Note:
    facts = {name: value for name, value in row.items() if name not in _NOT_NOTED}
    budget = read_budget(connection, row["population"])
    note = {"release": {**facts, "charge": bytes(row["charge"]).hex()}, "budget": asdict(budget)}
    return {**note, **_stream_facts(connection, row["id"])}


def _stream_facts(connection: sa.Connection, release_id: str) -> dict[str, Any]:
    """Return the rows by which a release opens a stream, pays for its ticks, or is one of them."""
    found = {
        name: connection.execute(query, {"id": release_id}).mappings().first() for name, query in _STREAM_FACTS.items()
    }
    return {
        name: {column: value for column, value in row.items() if column != "seq"}
        for name, row in found.items()
        if row is not None
    }
