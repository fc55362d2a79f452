"""The key of the hashes of ids that a snapshot stores with its records, in place of the ids.

It is one file a population, in the key folder: without it, no guess of an id can be tested on a copy of the
rows. No backup holds it; where it is lost, `storage.datasets.erase` finds no id in the snapshots made with it.
"""

import hashlib
import hmac
import os
from pathlib import Path

from storage.backends.atomic_files import make_folder, writing
from storage.backends.claims import claim_file
from storage.datasets.keyed_hash import KEY_BYTES
from storage.errors import NotFound


class OwnerKey:
    """The key of a population, drawn when an ingest first needs it.

    Parameters
    ----------
    keys : Path
        The folder of secret keys.
    population : str

    Attributes
    ----------
    name : str or None
        The name of the key, which follows from it and not the reverse; None until it was used.
    """

    def __init__(self, keys: Path, population: str) -> None:
        self._path = keys / f"owners-{population}"
        self.name: str | None = None

    def drawn(self) -> bytes:
        """Return the key, drawn now if there is none.

        Raises
        ------
        Unavailable
            If the key folder cannot be written.
        """
        if not self._path.exists():
            with writing(self._path.parent):
                make_folder(self._path.parent)
                claim_file(self._path, os.urandom(KEY_BYTES))
        key = self._path.read_bytes()
        self.name = _name_of(key)
        return key

    def named(self, name: str) -> bytes:
        """Return the key of this name.

        Raises
        ------
        NotFound
            If it is not there any more.
        """
        try:
            key = self._path.read_bytes()
        except FileNotFoundError:
            key = b""
        if _name_of(key) != name:
            raise NotFound(
                f"the key of the snapshot's ids, {self._path}, was lost, so no id can be found in it; remove their "
                "rows from the source and ingest it again; then remove the older snapshots"
            )
        return key


def _name_of(key: bytes) -> str:
    return hmac.new(key, b"dpca owners", hashlib.sha256).hexdigest()[:32]
