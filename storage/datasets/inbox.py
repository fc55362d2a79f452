"""Inbox of a dataset: a folder, or a prefix of an object store, into which new files are put.

Each file is processed once. A file is identified by its address, size and tag (time of the last change, or ETag), so a
changed file counts as a new arrival. The state of an arrival is recorded in write-once files in the home folder.
Concurrent processes, and a process that resumes after a crash, therefore see the same state. An arrival is named by a
random token, which reveals nothing about the file and may be shown.
"""

import fcntl
import hashlib
import json
import os
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from dpca.backends.atomic_files import claim_file, make_folder, write_atomically, writing
from dpca.errors import Conflict, Corrupt, NotFound, StorageError, Unavailable
from storage.formats.files import LocalFile, Sighting, SourceFile, locate
from storage.formats.held_files import holding, open_matches

End = Literal["released", "set_aside", "refused"]
"""Final state of an arrived file: a release was made from it, it could not be ingested, or its release was refused."""

RETRIED: tuple[End, ...] = ("set_aside", "refused")
"""Final states after which a file may be processed again."""
_FOLDER = "inbox"
_UNFINISHED = (".part", ".partial", ".tmp", ".crdownload", "~")


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """A file that arrived in the inbox, and the recorded state of its processing.

    Attributes
    ----------
    token : str, the random name of the arrival
    address : str, the path or URL of the file; private
    snapshot : str or None, the id of the snapshot that was made of the file
    end : str or None, the final state: "released", "set_aside" or "refused"; None if it is not reached yet
    """

    token: str
    address: str
    snapshot: str | None
    end: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """The files in an inbox that are waiting to be processed.

    Attributes
    ----------
    tokens : tuple of str
        Tokens of the completely written files that have not reached a final state, oldest first.
    left : int
        Number of files that are ignored for now: files that changed recently, files named like unfinished copies, and
        symbolic links.
    """

    tokens: tuple[str, ...]
    left: int


class Inbox:
    """The inbox of one dataset, with the arrivals recorded in the home folder."""

    def __init__(self, home: Path, dataset: str) -> None:
        self._folder = home / _FOLDER / dataset
        self._paths: dict[str, Path] = {}  # the record file of each arrival, by token; record files never change

    def waiting(self, address: str, *, settled: float) -> Waiting:
        """Return the files that wait to be processed, after giving each new file a token.

        Parameters
        ----------
        address : str
            A folder, a pattern in a folder, or a prefix of an object store.
        settled : float
            Seconds without a change after which a file on a disk counts as completely written. An object in an object
            store is complete as soon as it exists. Hidden files, and files named like unfinished copies, are left out.
            Symbolic links inside the folder are never followed, because users who may put files here must not choose
            which other files are read. Links in the path of the folder itself are resolved, so that a file has the same
            address under every path of the inbox.

        Raises
        ------
        Unavailable
            When the folder cannot be read, or the home folder cannot be written.
        """
        whole, left = self._whole(address, settled)
        found = [self._claimed(seen) for seen in whole]
        return Waiting(tokens=tuple(arrival.token for arrival in found if arrival.end is None), left=left)

    def arrival(self, token: str) -> Arrival:
        """Return the recorded arrival of a file, by its token.

        Raises
        ------
        NotFound
            When no arrival has this token.
        """
        return self._read(self._path(token))

    @contextmanager
    def taking(self, token: str) -> Iterator[Arrival]:
        """Lock an arrived file against other processes while the context is open; yield its recorded state."""
        path = self._path(token)
        with writing(self._folder):
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield self._read(path)
        finally:
            os.close(descriptor)

    @contextmanager
    def holding(self, arrival: Arrival) -> Iterator[SourceFile]:
        """Open the file of an arrival, after checking that it is the file that arrived.

        The yielded object reads only this checked file, even if the path is replaced meanwhile.

        Raises
        ------
        FileNotFoundError
            When the file has changed since it arrived, or its path contains a symbolic link.
        PermissionError
            When the file may not be read.
        OSError
            When the file temporarily cannot be read.
        """
        with holding(arrival.address) as file:
            if not self._is_of(arrival, file):
                raise FileNotFoundError(arrival.address)
            yield file

    def stands(self, arrival: Arrival, held: SourceFile | None = None) -> bool:
        """Return whether the file of an arrival still exists unchanged.

        If `held` is given, also require that this open file is the file of the arrival.
        """
        try:
            with self.holding(arrival):
                return held is None or self._is_of(arrival, held)
        except FileNotFoundError:
            return False

    def _is_of(self, arrival: Arrival, file: SourceFile) -> bool:
        path = self._folder / f"{_identity(file.address, file.version())}.arrival"
        return path.exists() and self._read(path).token == arrival.token

    def note_snapshot(self, token: str, snapshot: str) -> str:
        """Record the id of the snapshot that was made of an arrived file, unless another process recorded one first.

        Return the id that is recorded.
        """
        with writing(self._folder):
            claim_file(self._folder / f"{token}.snapshot", snapshot.encode())
        return (self._folder / f"{token}.snapshot").read_text()

    def note_reason(self, token: str, reason: str) -> None:
        """Record why no snapshot could be made of an arrived file; a later attempt may overwrite the reason."""
        with writing(self._folder):
            write_atomically(self._folder / f"{token}.reason", reason.encode())

    def reason(self, token: str) -> str:
        """Return the last recorded reason why no snapshot could be made of an arrived file."""
        return self._noted(token, "reason") or "no reason was recorded"

    def arrivals(self) -> list[Arrival]:
        """Return all arrived files with their recorded states, sorted by the addresses of the files."""
        found = [self._read(path) for path in self._folder.glob("*.arrival")]
        return sorted(found, key=lambda arrival: (arrival.address, arrival.token))

    def forget(self, token: str) -> None:
        """Delete the record of an arrived file from which no release was made, so that it can be processed again.

        Raises
        ------
        NotFound
            When no arrival has this token.
        Conflict
            When the arrival has no final state yet, or a release was made from it.
        """
        with self.taking(token) as arrival:
            if arrival.end not in RETRIED:
                state = "is still waiting" if arrival.end is None else "was released, and a file is released only once"
                raise Conflict(
                    f"the file that arrived as {token!r} {state}; only a file that was set aside or refused can be "
                    "retried."
                )
            with writing(self._folder):
                self._path(token).unlink(missing_ok=True)

    def end(self, token: str, how: End) -> None:
        """Record the final state of an arrived file, unless another process recorded one first."""
        with writing(self._folder):
            claim_file(self._folder / f"{token}.end", how.encode())

    def _whole(self, address: str, settled: float) -> tuple[list[Sighting], int]:
        """Return the completely written files at an address, oldest first, and the number of other files there."""
        place = locate(address)
        if isinstance(place, LocalFile) and not place.path.parent.is_dir():
            raise Unavailable(f"{address}: the folder does not exist; create it, or correct the address of the inbox.")
        try:
            seen = open_matches(address)
        except StorageError:
            raise
        except OSError as error:
            raise Unavailable(
                f"{address} cannot be read ({error.strerror or error}); correct the permissions or the inbox's address."
            ) from None
        whole = [each for each in seen if _is_whole(each, settled=settled)]
        return sorted(whole, key=lambda each: (each.changed, each.file.name)), len(seen) - len(whole)

    def _claimed(self, seen: Sighting) -> Arrival:
        """Return the recorded arrival of a file; for a new file, first record an arrival with a new random token."""
        path = self._folder / f"{_identity(seen.file.address, seen.version)}.arrival"
        if not path.exists():
            with writing(self._folder):
                make_folder(self._folder)
                facts = {"token": secrets.token_hex(16), "address": seen.file.address}
                claim_file(path, json.dumps(facts).encode())
        return self._read(path)

    def _path(self, token: str) -> Path:
        if token not in self._paths:
            for path in self._folder.glob("*.arrival"):
                with suppress(Corrupt):
                    self._paths[self._facts(path)[0]] = path
        if token not in self._paths:
            raise NotFound(f"no file in the inboxes of this home has the token {token!r}; list the inbox again.")
        return self._paths[token]

    def _facts(self, path: Path) -> tuple[str, str]:
        """Return the token and the address that are recorded for an arrived file."""
        try:
            facts = json.loads(path.read_bytes())
            return str(facts["token"]), str(facts["address"])
        except (KeyError, RecursionError, TypeError, ValueError):
            raise Corrupt(
                f"{path}, the record of an arrived file, is damaged; remove the record, and the file counts as new."
            ) from None
        except FileNotFoundError:
            raise NotFound(
                "the record of the arrived file was removed in the meantime; list the inbox again."
            ) from None

    def _read(self, path: Path) -> Arrival:
        token, address = self._facts(path)
        snapshot, end = (self._noted(token, what) for what in ("snapshot", "end"))
        return Arrival(token=token, address=address, snapshot=snapshot, end=end)

    def _noted(self, token: str, what: str) -> str | None:
        try:
            return (self._folder / f"{token}.{what}").read_text()
        except FileNotFoundError:
            return None


def _is_whole(seen: Sighting, *, settled: float) -> bool:
    if seen.is_link or (isinstance(seen.file, LocalFile) and time.time() - seen.changed < settled):
        return False
    return not seen.file.name.endswith(_UNFINISHED)


def _identity(address: str, version: tuple[int, str]) -> str:
    """Return a hash of a file's address and version (its size and tag)."""
    return hashlib.sha256(json.dumps([address, *version]).encode()).hexdigest()[:32]
