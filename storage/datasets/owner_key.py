"""The key of the hashes of ids that a snapshot stores with its records, in place of the ids.

It is one file a population, in the key folder: without it, no guess of an id can be tested on a copy of the
rows. No backup holds it; where it is lost, `storage.datasets.erase` finds no id in the snapshots made with it.
"""

import hashlib
import hmac
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from storage.backends.atomic_files import make_folder, writing
from storage.backends.claims import claim_file
from storage.datasets.keyed_hash import KEY_BYTES
from storage.errors import Conflict, NotFound, StorageError, Unavailable


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
        self._key, self._is_ours = b"", False
        self.name: str | None = None

    def drawn(self) -> bytes:
        """Return the key, drawn and written now if there is none.

        Raises
        ------
        Unavailable
            If the key folder cannot be written.
        """
        if self.name is None:
            with writing(self._path.parent):
                make_folder(self._path.parent)
                self._is_ours = claim_file(self._path, os.urandom(KEY_BYTES))
                self._key = self._path.read_bytes()
            self.name = _name_of(self._key)
        return self._key

    def keep(self) -> None:
        """See that the key is there, if an id was hashed with it.

        Raises
        ------
        Conflict
            If another one is there by now.
        Unavailable
            If the key folder cannot be written.
        """
        if self.name is not None:
            with writing(self._path.parent):  # whoever drew it may have given it back since
                if not claim_file(self._path, self._key) and self._path.read_bytes() != self._key:
                    raise Conflict("another ingest of the same people drew the key of their ids anew; ingest again")

    @contextmanager
    def given_back(self) -> Iterator[None]:
        """Remove the key after an ingest that drew it and leaves nothing behind."""
        try:
            yield
        except Unavailable:  # its blocks may be resumed
            raise
        except StorageError:
            if self._is_ours:
                self._path.unlink(missing_ok=True)
            raise

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
