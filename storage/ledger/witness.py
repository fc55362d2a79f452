"""The witnesses of a ledger: copies of its last event, and of each release that began, outside its database.

One lies beside the keys, where all machines that release share it. One lies apart, in this machine's state folder, so
that it is not restored with the home or copied along; it also notes each release that began, with the budget that paid,
and each version that was published. A database that does not contain what a witness saw was restored from a copy, or
another copy of it went on meanwhile. It is refused: it has un-spent.
"""

import fcntl
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import sqlalchemy as sa

from storage.backends.atomic_files import make_folder, read_file, write_atomically, writing
from storage.database import tables
from storage.database.engine import reading
from storage.errors import Corrupt, Refused, Unavailable
from storage.ledger import journal
from storage.ledger.journal import Head
from storage.ledger.witness_file import decode, encode, write_next

_NAME = "witness.json"
_MOST_BYTES = 1 << 16
_HASH = sa.select(tables.event.c.hash).where(tables.event.c.seq == sa.bindparam("seq"))

Note = Mapping[str, Any]
"""A release that begins, with its budget's terms, or a version that is published."""


@dataclass(frozen=True, slots=True)
class Witness:
    """A folder with a copy of the journal's head. It moves forward only; see `storage.ledger.witness_file`."""

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
