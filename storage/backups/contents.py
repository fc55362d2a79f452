"""The folder of a backup: a manifest that lists every file with its digest, and says of what the backup is.

::

    backup.json          this manifest
    backup.sig           its signature, and its MAC where there is a passphrase
    database/TABLE.jsonl the rows of a table, one a line
    store/...            what lies in the store of artifacts, by its path there
    keys.sealed          keys that sign, under a passphrase; only where one was given

No noise key, staged step or witness is ever in it; see ``docs/how-to/backup.md``.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from storage.backends.atomic_files import open_regular
from storage.backends.digests import relative_paths
from storage.errors import Corrupt, NotFound, Refused

FORMAT, VERSION = "dpca-backup", 1
MANIFEST, SIGNATURE, ROWS, STORE, SEALED = "backup.json", "backup.sig", "database", "store", "keys.sealed"
_PIECE = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """What a backup is of, and what is in it.

    Attributes
    ----------
    at : str, UTC
    code_version : str, of the program that made it
    ledger : str
    entries, head : int and str, of the journal: their number, and the hash of the last one
    migration : str, the schema that the rows have
    database : str, ``sqlite`` or ``postgresql``; it is restored into either
    datasets : bool, whether raw rows are in it
    keys : tuple of str, the sealed ones
    spent : mapping of population to what it has spent
    missing : tuple of str, paths of the store that the ledger tells of and that were not there, or damaged
    files : mapping of path to its size and SHA-256
    signed_by : str, the public key of the audit trail, in hex
    """

    at: str
    code_version: str
    ledger: str
    entries: int
    head: str
    migration: str
    database: str
    datasets: bool
    keys: tuple[str, ...]
    spent: Mapping[str, float]
    missing: tuple[str, ...]
    files: Mapping[str, tuple[int, str]]
    signed_by: str

    def encode(self) -> bytes:
        """Write the manifest."""
        return json.dumps({"format": FORMAT, "version": VERSION, **asdict(self)}, indent=1).encode()

    @staticmethod
    def read_bytes(folder: Path) -> bytes:
        """Read the bytes of a backup's manifest.

        Raises
        ------
        NotFound
            If the folder is no backup.
        """
        try:
            return (folder / MANIFEST).read_bytes()
        except OSError as error:
            raise NotFound(
                f"{folder} is no backup ({MANIFEST}: {error.strerror}); name a folder that dpca backup create wrote."
            ) from None

    @classmethod
    def decode(cls, manifest: bytes, folder: Path) -> Self:
        """Read a manifest of a folder; neither its signature nor the files are looked at.

        Raises
        ------
        Refused
            If a newer version of the program wrote it.
        Corrupt
            If it is damaged.
        """
        try:
            found = json.loads(manifest)
        except (ValueError, RecursionError):
            raise damaged(folder, f"{MANIFEST} is no JSON") from None
        if isinstance(found, dict) and found.get("format") == FORMAT and found.get("version") != VERSION:
            raise Refused(f"{folder} is a backup of version {found.get('version')}; restore it with a newer dpca.")
        try:
            told = {name: found[name] for name in cls.__slots__}
            told |= {name: tuple(told[name]) for name in ("keys", "missing")}
            told["files"] = {path: (int(size), str(digest)) for path, (size, digest) in told["files"].items()}
            told["signed_by"] = str(told["signed_by"])
            told["spent"] = {str(name): float(spent) for name, spent in told["spent"].items()}
            return cls(**told)
        except (AttributeError, KeyError, TypeError, ValueError):
            raise damaged(folder, f"{MANIFEST} has not the fields of one") from None

    def check_files(self, folder: Path) -> None:
        """Check that each file is the one that was written, and that there is no other.

        Raises
        ------
        Corrupt
            At the first that is not.
        """
        try:
            here = set(relative_paths(folder)) - {MANIFEST, SIGNATURE}
            if here != self.files.keys():
                strange = sorted(here ^ self.files.keys())[0]
                raise damaged(folder, f"{strange} is {'not listed' if strange in here else 'missing'}")
            if self.keys and SEALED not in here:
                raise damaged(folder, f"{SEALED} is missing")
            for path in self.files:
                for _ in self.pieces(folder, path):
                    pass
        except OSError as error:
            raise damaged(folder, str(error)) from None

    def pieces(self, folder: Path, path: str) -> Iterator[bytes]:
        """Yield the bytes of a file, which are used once all have come: the check is of these bytes.

        Raises
        ------
        Corrupt
            At the end, if they are not what was written; at once, if it is a pipe or a device.
        """
        size, digest = 0, hashlib.sha256()
        with open_regular(folder / path) as file:
            while piece := file.read(_PIECE):
                size += len(piece)
                digest.update(piece)
                yield piece
        if (size, digest.hexdigest()) != self.files[path]:
            raise damaged(folder, f"{path} is not the file that was written")

    def copy(self, folder: Path, path: str, to: Path) -> None:
        """Copy a file to a place of the caller, who uses the copy; raise as `pieces`."""
        to.parent.mkdir(parents=True, exist_ok=True)
        with to.open("wb") as file:
            file.writelines(self.pieces(folder, path))

    def holds(self, path: str, payload: bytes) -> bool:
        """Return whether a file of the backup has this path and content."""
        return self.files.get(path) == (len(payload), hashlib.sha256(payload).hexdigest())


def fingerprint(path: Path) -> tuple[int, str]:
    """Return the size and the SHA-256 of a file."""
    size, digest = 0, hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(_PIECE):
            size += len(piece)
            digest.update(piece)
    return size, digest.hexdigest()


def list_files(folder: Path) -> dict[str, tuple[int, str]]:
    """Return size and SHA-256 of every file of a folder, by its path."""
    return {path: fingerprint(folder / path) for path in relative_paths(folder)}


def facts_of(contents: Contents) -> dict[str, Any]:
    """Return what a person wants to know of a backup."""
    return {
        "ledger": contents.ledger,
        "entries": contents.entries,
        "made": contents.at,
        "database": contents.database,
        "files": len(contents.files),
        "bytes": sum(size for size, _ in contents.files.values()),
        "datasets": contents.datasets,
        "signed by": contents.signed_by,
        "sealed keys": ", ".join(contents.keys) or "none",
        "missing": len(contents.missing),
    }


def damaged(folder: Path, found: str) -> Corrupt:
    """Return the error of a backup that is not as it was written."""
    return Corrupt(f"the backup {folder} is damaged ({found}); it must be as it was written: use another one.")
