"""The inbox of a dataset: a folder or prefix into which others put whole files, each of which is taken once.

A file is known by its address, size and tag; a changed one is another arrival. What became of an arrival is written
down in the home folder, in files that are written once, so that several processes, and one that goes on after a crash,
agree on it. An arrival's token is random: it says nothing of the file, and may be shown.
"""

import hashlib
import json
import secrets
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from storage.backends.atomic_files import make_folder, writing
from storage.backends.claims import claim_file
from storage.errors import BadSource, Corrupt, NotFound, Unavailable
from storage.formats.files import LocalFile, SourceFile, find_files, locate

End = Literal["released", "set_aside", "refused"]
"""How an arrival ended: a release was made of it, no snapshot could be, or the budget did not admit its release."""

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


class Inbox:
    """The arrivals of one dataset."""

    def __init__(self, home: Path, dataset: str) -> None:
        self._folder = home / _FOLDER / dataset

    def waiting(self, address: str, *, settled: float) -> list[str]:
        """Return the tokens of whole files that did not end yet, oldest first; new ones are given one.

        Parameters
        ----------
        address : str
            A folder, a pattern in one, or a prefix of an object store.
        settled : float
            Seconds since the last change of a file on a disk after which it counts as whole. Hidden names, and ones
            that end as those of unfinished copies do, are left out. An object is whole as soon as it is there.

        Raises
        ------
        Unavailable
            When the folder is not there, or the home folder cannot be written.
        """
        found = [arrival for file in self._whole(address, settled) if (arrival := self._claimed(file)) is not None]
        return [arrival.token for arrival in found if arrival.end is None]

    def arrival(self, token: str) -> Arrival:
        """Return an arrival.

        Raises
        ------
        NotFound
            When there is none of this token.
        """
        for path in self._folder.glob("*.arrival"):
            if (found := self._read(path)).token == token:
                return found
        raise NotFound(f"no file arrived as {token!r} in this home; look into the inbox again.")

    def stands(self, arrival: Arrival) -> bool:
        """Return whether the file of an arrival is still the one that arrived."""
        known = _identity(locate(arrival.address))
        path = self._folder / f"{known}.arrival"
        return known is not None and path.exists() and self._read(path).token == arrival.token

    def note_snapshot(self, token: str, snapshot: str) -> str:
        """Write down the snapshot that was made of an arrival; return it, or the one that another process noted."""
        claim_file(self._folder / f"{token}.snapshot", snapshot.encode())
        return (self._folder / f"{token}.snapshot").read_text()

    def end(self, token: str, how: End) -> None:
        """Write down that nothing more is done about an arrival."""
        claim_file(self._folder / f"{token}.end", how.encode())

    def _whole(self, address: str, settled: float) -> list[SourceFile]:
        place = locate(address)
        if isinstance(place, LocalFile) and not place.path.parent.is_dir():
            raise Unavailable(f"{address}: no such folder; make it, or correct the inbox.")
        try:
            files = find_files([address])
        except BadSource:  # nothing is there
            return []
        now, aged = time.time(), []
        for file in files:
            if file.name.endswith(_UNFINISHED) or not file.is_file():
                continue
            try:
                changed = file.path.stat().st_mtime if isinstance(file, LocalFile) else 0.0
            except FileNotFoundError:
                continue
            if now - changed >= settled:
                aged.append((changed, file.name, file))
        return [file for *_, file in sorted(aged, key=lambda item: item[:2])]

    def _claimed(self, file: SourceFile) -> Arrival | None:
        """Return the arrival of a file; None when it is gone meanwhile."""
        known = _identity(file)
        if known is None:
            return None
        path, address = self._folder / f"{known}.arrival", _address(file)
        if not path.exists():
            with writing(self._folder):
                make_folder(self._folder)
                claim_file(path, json.dumps({"token": secrets.token_hex(16), "address": address}).encode())
        return self._read(path)

    def _read(self, path: Path) -> Arrival:
        try:
            facts = json.loads(path.read_bytes())
            token, address = str(facts["token"]), str(facts["address"])
        except (ValueError, KeyError):
            raise Corrupt(f"{path} is not what was written; remove it, and its file arrives anew.") from None
        snapshot, end = (self._noted(token, what) for what in ("snapshot", "end"))
        return Arrival(token=token, address=address, snapshot=snapshot, end=end)

    def _noted(self, token: str, what: str) -> str | None:
        try:
            return (self._folder / f"{token}.{what}").read_text()
        except FileNotFoundError:
            return None


def _address(file: SourceFile) -> str:
    return str(file.path.absolute()) if isinstance(file, LocalFile) else file.address


def _identity(file: SourceFile) -> str | None:
    """Return what changes with a file's address, size and tag; None where there is no file."""
    try:
        return hashlib.sha256(json.dumps([_address(file), *file.version()]).encode()).hexdigest()[:32]
    except FileNotFoundError:
        return None
