"""The inbox of a dataset: a folder or prefix into which others put whole files, each of which is taken once.

A file is known by its address, size and tag; a changed one is another arrival. What became of an arrival is written
down in the home folder, in files that are written once, so that several processes, and one that goes on after a crash,
agree on it. An arrival's token is random: it says nothing of the file, and may be shown.
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
from storage.formats.held_files import holding, look_at

End = Literal["released", "set_aside", "refused"]
"""How an arrival ended: a release was made of it, no snapshot could be, or the budget did not admit its release."""

RETRIED: tuple[End, ...] = ("set_aside", "refused")
"""Ends after which a file may be taken again."""
_FOLDER = "inbox"
_UNFINISHED = (".part", ".partial", ".tmp", ".crdownload", "~")


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """A file that arrived, and what became of it so far.

    Attributes
    ----------
    token : str, random
    address : str, private
    snapshot : str or None, made of it
    end : str or None, of `End`
    """

    token: str
    address: str
    snapshot: str | None
    end: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """What waits in an inbox.

    Attributes
    ----------
    tokens : tuple of str
        Of whole files that did not end yet, oldest first.
    left : int
        Files that are not taken as they are: ones that change still or are named as unfinished, and links.
    """

    tokens: tuple[str, ...]
    left: int


class Inbox:
    """The arrivals of one dataset."""

    def __init__(self, home: Path, dataset: str) -> None:
        self._folder = home / _FOLDER / dataset
        self._paths: dict[str, Path] = {}  # by token; an arrival's file never changes

    def waiting(self, address: str, *, settled: float) -> Waiting:
        """Return what waits, and give each new file a token.

        Parameters
        ----------
        address : str
            A folder, a pattern in one, or a prefix of an object store.
        settled : float
            Seconds since the last change of a file on a disk after which it counts as whole. Hidden names, and ones
            that end as those of unfinished copies do, are left out. An object is whole as soon as it is there. A link
            below the folder is never followed: who may put files here must not choose what else is read. Links in the
            path of the folder are resolved once, so that a file has one address however the inbox is named.

        Raises
        ------
        Unavailable
            When the folder cannot be read, or the home folder cannot be written.
        """
        whole, left = self._whole(address, settled)
        found = [self._claimed(seen) for seen in whole]
        return Waiting(tokens=tuple(arrival.token for arrival in found if arrival.end is None), left=left)

    def arrival(self, token: str) -> Arrival:
        """Return an arrival.

        Raises
        ------
        NotFound
            When there is none of this token.
        """
        return self._read(self._path(token))

    @contextmanager
    def taking(self, token: str) -> Iterator[Arrival]:
        """Keep other processes from taking an arrival; yield it as those before have left it."""
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
        """Open the file of an arrival; yield what reads no other file than the one that was opened and checked.

        Raises
        ------
        FileNotFoundError
            When the file is not the one that arrived, or a link leads to it.
        PermissionError
            When it may not be read.
        OSError
            When it cannot be read for now.
        """
        with holding(arrival.address) as file:
            if not self._is_of(arrival, file):
                raise FileNotFoundError(arrival.address)
            yield file

    def stands(self, arrival: Arrival, held: SourceFile | None = None) -> bool:
        """Return whether the file of an arrival is still the one that arrived, and so is the one that was opened."""
        try:
            with self.holding(arrival):
                return held is None or self._is_of(arrival, held)
        except FileNotFoundError:
            return False

    def _is_of(self, arrival: Arrival, file: SourceFile) -> bool:
        path = self._folder / f"{_identity(file.address, file.version())}.arrival"
        return path.exists() and self._read(path).token == arrival.token

    def note_snapshot(self, token: str, snapshot: str) -> str:
        """Write down the snapshot that was made of an arrival; return it, or the one that another process noted."""
        with writing(self._folder):
            claim_file(self._folder / f"{token}.snapshot", snapshot.encode())
        return (self._folder / f"{token}.snapshot").read_text()

    def note_reason(self, token: str, reason: str) -> None:
        """Write down why no snapshot could be made of an arrival; a later attempt may tell another reason."""
        with writing(self._folder):
            write_atomically(self._folder / f"{token}.reason", reason.encode())

    def reason(self, token: str) -> str:
        """Return the reason that was written down last."""
        return self._noted(token, "reason") or "no reason was written down"

    def arrivals(self) -> list[Arrival]:
        """Return all arrivals, by the names of their files."""
        found = [self._read(path) for path in self._folder.glob("*.arrival")]
        return sorted(found, key=lambda arrival: (arrival.address, arrival.token))

    def forget(self, token: str) -> None:
        """Forget an arrival that no release was made of: its file, where it is there still, arrives anew.

        Raises
        ------
        NotFound
            When there is none of this token.
        Conflict
            When it did not end yet, or a release was made of it.
        """
        with self.taking(token) as arrival:
            if arrival.end not in RETRIED:
                state = "waits already" if arrival.end is None else "was released, and is charged once"
                raise Conflict(f"the file that arrived as {token!r} {state}; retry one that was set aside or refused.")
            with writing(self._folder):
                self._path(token).unlink(missing_ok=True)

    def end(self, token: str, how: End) -> None:
        """Write down that nothing more is done about an arrival."""
        with writing(self._folder):
            claim_file(self._folder / f"{token}.end", how.encode())

    def _whole(self, address: str, settled: float) -> tuple[list[Sighting], int]:
        """Return the whole files at an address, oldest first, and how many others are left."""
        place = locate(address)
        if isinstance(place, LocalFile) and not place.path.parent.is_dir():
            raise Unavailable(f"{address}: no such folder; make it, or correct the inbox.")
        try:
            seen = look_at(address)
        except StorageError:
            raise
        except OSError as error:
            raise Unavailable(
                f"{address} cannot be read ({error.strerror or error}); correct its permissions, or the inbox."
            ) from None
        whole = [each for each in seen if _is_whole(each, settled=settled)]
        return sorted(whole, key=lambda each: (each.changed, each.file.name)), len(seen) - len(whole)

    def _claimed(self, seen: Sighting) -> Arrival:
        """Return the arrival of a file, claimed now if it is new."""
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
            raise NotFound(f"no file arrived as {token!r} in this home; look into the inbox again.")
        return self._paths[token]

    def _facts(self, path: Path) -> tuple[str, str]:
        """Return token and address of an arrival."""
        try:
            facts = json.loads(path.read_bytes())
            return str(facts["token"]), str(facts["address"])
        except (KeyError, RecursionError, TypeError, ValueError):
            raise Corrupt(f"{path} is not what was written; remove it, and its file arrives anew.") from None
        except FileNotFoundError:
            raise NotFound("the arrival was forgotten meanwhile; look into the inbox again.") from None

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
    """Return what changes with a file's address, size and tag."""
    return hashlib.sha256(json.dumps([address, *version]).encode()).hexdigest()[:32]
