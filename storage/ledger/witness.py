"""Witnesses of a ledger: files outside the database with a copy of the journal's head and notes of releases.

The head of a journal is the number and hash of its last entry. A witness file contains the last two heads; the next
write replaces the older one. Each head fills a page of the file and ends with a checksum, and one sync of the existing
file makes it durable. If a write is interrupted, the other page with the previous head is still intact. The journal is
then one commit ahead of the witness, as it also is between a commit and the following write.

>>> first, second = (Head(ledger="a", seq=seq, hash=str(seq)) for seq in (1, 2))
>>> payload = encode(first)
>>> decode(payload) == first
True
>>> decode(payload[:_PAGE] + _copy_of(second)) == second
True

A ledger has two witnesses. The first is in the key folder, which all machines that make releases share. The second is
in this machine's state folder, so that it is not restored or copied together with the home. If the database lacks an
entry that a witness has recorded, the database was restored from an older copy, or another copy of it was used in the
meantime. Such a database is refused, because it lacks charges.

The second witness also has notes: one for each release that began, with the terms of the charged budget, and one for
each published version. With the notes, releases and versions that a restored database lacks can be inserted again.
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
"""Size of one page in bytes; each page holds one head, and an interrupted write may damage only its own page."""


def encode(head: Head) -> bytes:
    """Return the content of a new witness file, which records the number and hash of the last journal entry twice."""
    return 2 * _copy_of(head)


def decode(payload: bytes) -> Head:
    """Return the newer intact head (number and hash of the journal's last entry) in a witness file.

    Raises
    ------
    TypeError, ValueError
        When the file contains no intact head.
    """
    if len(payload) != 2 * _PAGE:
        raise ValueError(f"the witness file has {len(payload)} bytes instead of {2 * _PAGE}")
    sound = [head for head in _copies(payload) if head is not None]
    if not sound:
        raise ValueError("both copies of the journal's head in the witness file are damaged")
    return max(sound, key=lambda head: head.seq)


def write_next(path: Path, head: Head, *, over: bytes) -> None:
    """Write a new head of the journal durably into a witness file, in place of its older or damaged head.

    A head is the number and hash of the journal's last entry. ``over`` is the current content of the file. The caller
    must hold the lock of the witness folder.
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


@lru_cache(maxsize=16)  # results are cached, because a release reads both witness files about thirty times
def _sound(copy: bytes) -> Head | None:
    text, _, checksum = copy.rstrip().rpartition(b" ")
    return Head(**json.loads(text)) if sha256(text).hexdigest().encode() == checksum else None


_NAME = "witness.json"
_MOST_BYTES = 1 << 16
_HASH = sa.select(tables.event.c.hash).where(tables.event.c.seq == sa.bindparam("seq"))

Note = Mapping[str, Any]
"""A note about a begun release (with the terms of its budget), a published version, or the answer of a tick."""


@dataclass(frozen=True, slots=True)
class Witness:
    """A folder with a copy of the journal's head (number and hash of the last entry), which only moves forward."""

    folder: Path

    def read(self) -> Head | None:
        """Return the recorded head (number and hash of the last journal entry), or None if none is recorded here."""
        found = self._read()
        return None if found is None else found[0]

    def _read(self) -> tuple[Head, bytes] | None:
        """Return the journal's recorded head (last entry) and the content of the file, or None if there is no file."""
        # text instead of a path object, because a release reads this file about thirty times
        path = f"{self.folder}/{_NAME}"
        try:
            payload = read_file(path, most=_MOST_BYTES)
            return decode(payload), payload
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (Corrupt, ValueError, TypeError):
            raise Corrupt(f"{path} is damaged; restore it from a copy.") from None
        except OSError as error:
            raise Unavailable(
                f"{path} cannot be read ({error.strerror}); make it readable, or correct DPCA_KEY_FOLDER or "
                "DPCA_STATE_FOLDER."
            ) from None

    @property
    def _path(self) -> Path:
        return self.folder / _NAME

    def advance(self, reached: Head, *, confirm: Callable[[Head], None] | None = None, back: bool = False) -> None:
        """Record the new head of the journal (number and hash of the last entry) in this folder, after a commit.

        Parameters
        ----------
        reached : Head
        confirm : callable, optional
            Called with the previously copied head; it raises an error if the journal does not contain that head.
        back : bool
            Whether to replace the copied head even by an older one, for an operator who accepts a restored ledger.
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
        """Check that the database contains the last journal entry that was recorded in this folder.

        ``current`` is the journal's head, which the caller has read from the database before. ``restored`` admits an
        older state of the same ledger. The order of reads matters: entry 2 is written only after the head of entry 1
        was recorded here. So if the database has entry 2 and the witness is missing, that is an error. The recorded
        head may be newer than ``current``; the database is then read again.

        Raises
        ------
        Refused
            When the database is another ledger, or an older state of this ledger.
        """
        seen = self.read()
        if seen is None:
            if current.seq > 1 and not restored:
                raise Refused(
                    f"{self.folder} has no witness of this ledger, which would show whether charges were lost; set "
                    "DPCA_KEY_FOLDER to the key folder of this ledger. If the ledger was restored without it, run "
                    "`dpca budget accept-restored`."
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
    """The two folders that record the journal's last entry outside the database, to detect a restored database.

    ``local`` is the key folder, and ``separate`` is the folder for this ledger in the state folder.
    """

    def __init__(self, *, local: Path, separate: Path) -> None:
        self._local, self._separate = Witness(local), Witness(separate)
        self._notes = separate / "notes.jsonl"
        self._ours: Head | None = None
        self.is_new = False
        """True if a check found no witness in the state folder: the ledger is new, or new on this machine."""

    def check(self, connection: sa.Connection, *, restored: bool = False) -> Head:
        """Check that the database contains the last journal entries recorded in the key and state folders.

        Return the number and hash of the journal's last entry. The record in the state folder may be missing.
        """
        current = journal.head(connection)
        self._local.check(connection, current, restored=restored)
        self.is_new = self._separate.read() is None
        if not self.is_new:
            self._separate.check(connection, current, restored=restored)
        self._ours = current
        return current

    def follow(self, connection: sa.Connection) -> None:
        """Check, before writing, that the database still contains the journal entry that this process read last.

        Raises
        ------
        Refused
            When the entry is missing. Then an older copy of the database was restored, or a replica without the newest
            commits took over.
        """
        if self._ours is not None:
            _require(connection, self._ours)

    def advance(self, reached: Head, *, engine: sa.Engine, back: bool = False) -> None:
        """Record the number and hash of the journal's last entry in the key and state folders, after a commit.

        Raises
        ------
        Refused
            When a folder has the record of an entry that this database lacks, so another copy of the ledger is in use.
            The caller must then not act on the committed rows.
        """
        both = self._local, self._separate
        if not back and reached == self._ours and all(witness.read() == reached for witness in both):
            return
        for witness in both:
            witness.advance(reached, confirm=partial(self._confirm, engine), back=back)
        self._ours = reached

    def note(self, notes: Iterable[Note]) -> None:
        """Append notes (copies of rows) durably; call this before the transaction that writes these rows commits."""
        lines = [json.dumps(dict(note), sort_keys=True).encode() for note in notes]
        with writing(self._notes.parent.parent), self._appending() as (file, is_torn):
            file.write(b"\n" * is_torn + b"".join(line + b"\n" for line in lines))
            file.flush()
            os.fsync(file.fileno())

    def noted(self) -> list[Note]:
        """Return all notes (copies of rows) of releases, versions and answers in the state folder, oldest first."""
        try:
            lines = self._notes.read_bytes().splitlines()
        except FileNotFoundError:
            return []
        except OSError as error:
            raise Unavailable(
                f"{self._notes} cannot be read ({error.strerror}); make it readable and try again."
            ) from None
        notes = []
        for line in lines:
            # a line that a crash cut short belongs to no committed transaction, so it is skipped
            with suppress(ValueError):
                notes.append(json.loads(line))
        return notes

    @contextmanager
    def _appending(self) -> Iterator[tuple[BinaryIO, bool]]:
        make_folder(self._notes.parent)
        with os.fdopen(os.open(self._notes, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600), "ab+") as file:
            # The file of notes has a separate lock. Waiting for the lock of the witness file while the database is
            # locked could cause a deadlock.
            fcntl.flock(file, fcntl.LOCK_EX)
            end = file.seek(0, os.SEEK_END)
            if end:
                file.seek(end - 1)
            yield file, end > 0 and file.read(1) != b"\n"

    def _confirm(self, engine: sa.Engine, seen: Head) -> None:
        if seen != self._ours:  # the recorded head is from another process, which may use another copy of the ledger
            with reading(engine) as connection:
                _require(connection, seen)


def _require(connection: sa.Connection, seen: Head) -> None:
    stored = connection.execute(_HASH, {"seq": seen.seq}).scalar_one_or_none()
    if stored is None:  # the entry may have been committed after the snapshot that this connection reads
        with reading(connection.engine) as newer:
            stored = newer.execute(_HASH, {"seq": seen.seq}).scalar_one_or_none()
    if stored != seen.hash:
        raise Refused(
            f"the ledger lacks the committed entry {seen.seq}: it was restored from an older copy, or another copy is "
            "in use, so it counts less than was spent; restore the newest copy, or accept this copy with `dpca budget "
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
    """Return the note of a release for the state folder, in a list: its row, and the terms of its budget.

    With notes, releases that a restored database lacks can be inserted again.
    """
    rows = connection.execute(_OF_RELEASE, {"id": release_id}).mappings().all()
    return [_release_note(connection, row) for row in rows]


def note_answer(*, stream: str, tick: int, digest: str) -> list[Note]:
    """Return the note of a tick's (version's) noised answer for the state folder, in a list.

    With notes, answers of ticks that a restored database lacks can be recorded again.
    """
    return [{"answer": {"stream": stream, "tick": tick, "digest": digest}}]


def note_versions(connection: sa.Connection, release_id: str) -> list[Note]:
    """Return one note for the state folder for each published version of a release.

    With notes, versions that a restored database lacks can be inserted again.
    """
    return [
        {"version": {name: row[name] for name in ("name", "version", "digest", "release_id", "artifact_digest")}}
        for row in connection.execute(_VERSIONS, {"id": release_id}).mappings()
    ]


def note_joint_versions(connection: sa.Connection, joint_id: str | None = None) -> list[Note]:
    """Return one note for the state folder for each published version of a joint release, or of all joint releases.

    With notes, versions that a restored database lacks can be inserted again.
    """
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
    """Return the notes of all begun releases, all versions and all answers of ticks.

    They are written to the state folder of a machine that has no notes of this ledger yet.
    """
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
    """Return the rows that state whether a release opens a stream, pays for ticks, or is a tick, by table."""
    found = {
        name: connection.execute(query, {"id": release_id}).mappings().first() for name, query in _STREAM_FACTS.items()
    }
    return {
        name: {column: value for column, value in row.items() if column != "seq"}
        for name, row in found.items()
        if row is not None
    }
