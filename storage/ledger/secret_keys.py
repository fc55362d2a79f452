"""The secret keys of releases: one file each, outside the database and its backups.

An old key and the artifact give the exact sums, so a key lives from the reservation to the commit and not longer.
"""

import hashlib
import hmac
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from storage.backends.atomic_files import make_folder, sync_folder, write_atomically, writing
from storage.errors import Corrupt, Unavailable
from storage.ledger.orphans import names_in

KEY_BYTES = 32


def new_key() -> bytes:
    """Draw a key from the operating system. Tests replace this function; nothing else may."""
    return os.urandom(KEY_BYTES)


def release_id_of(key: bytes) -> str:
    """Name a release after its key, one way: 128 bits of HMAC-SHA256."""
    return hmac.new(key, b"dpca release id", hashlib.sha256).digest()[:16].hex()


class Keys(Protocol):
    """The keys of releases under way, wherever they are."""

    def read(self, release_id: str) -> bytes:
        """Return the key of a release under way."""


@dataclass(frozen=True, slots=True)
class KeyFolder:
    """A folder of mode 0700 with one file of mode 0600 for each release under way."""

    folder: Path

    def create(self, release_id: str, key: bytes) -> None:
        """Write a key durably, before the row that needs it."""
        with writing(self.folder):
            make_folder(self.folder)
            write_atomically(self.folder / release_id, key)

    def read(self, release_id: str) -> bytes:
        """Read the key of a release under way.

        Raises
        ------
        Corrupt
            When the file is not the key that the release is named after.
        """
        try:
            key = (self.folder / release_id).read_bytes()
        except OSError:
            raise Unavailable(
                f"the key of release {release_id} is not in {self.folder}; set DPCA_KEY_FOLDER to the folder where it "
                "was reserved, or close the release."
            ) from None
        if len(key) != KEY_BYTES or release_id_of(key) != release_id:
            raise Corrupt(f"{self.folder / release_id} is not the key of its release; close the release.")
        return key

    def erase(self, release_id: str) -> None:
        """Remove a key; a missing one is fine."""
        path = self.folder / release_id
        with writing(self.folder):
            if path.exists():
                path.unlink(missing_ok=True)
                sync_folder(self.folder)

    def release_ids(self) -> list[str]:
        """Return the releases that have a key here."""
        return [name for name in names_in(self.folder) if re.fullmatch("[0-9a-f]{32}", name)]
