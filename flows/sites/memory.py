"""What a site remembers of secure sums: on disk before anything leaves, and apart from the home that can be restored.

One file for each key, linked into place whole: of two processes that remember under one key, one is first. A home
that is restored from a copy goes on with what was remembered since, as with the witness of its ledger.
"""

import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

from storage.backends.atomic_files import make_folder, sync_file, sync_folder, writing
from storage.backends.private import create_file


@dataclass(frozen=True, slots=True)
class FileMemory:
    """A memory in a folder; see `dpca_tasks.sites.secure_sum.participants.Memory`."""

    folder: Path

    def recall(self, key: bytes) -> bytes | None:
        """Return what was remembered first under a key, if anything."""
        with suppress(FileNotFoundError):
            return (self.folder / key.hex()).read_bytes()
        return None

    def remember(self, key: bytes, value: bytes) -> bytes:
        """Remember a value under a key unless one is there, atomically; return the value that is there now."""
        path = self.folder / key.hex()
        with writing(self.folder):
            make_folder(self.folder)
            draft = self.folder / f".{uuid4().hex}"
            create_file(draft)
            try:
                draft.write_bytes(value)
                sync_file(draft)
                with suppress(FileExistsError):
                    os.link(draft, path)
            finally:
                draft.unlink()
            sync_folder(self.folder)
            return path.read_bytes()
