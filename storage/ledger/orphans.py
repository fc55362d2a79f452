"""The cleanup of files and folders that killed processes left without a database row."""

import re
import shutil
import time
from collections.abc import Container
from contextlib import suppress
from pathlib import Path

ORPHAN_AFTER = 3600.0
"""Seconds after which a file without a row is an orphan; its writer would add the row within moments."""

_RANDOM = re.compile(r"[0-9a-f]{32}|\.[0-9a-f]{32}\.tmp")  # a release, a staged artifact, a file half written


def remove_orphans(folder: Path, *, kept: Container[str] = ()) -> None:
    """Remove entries of a folder with a random name that are not in ``kept`` and are older than `ORPHAN_AFTER`."""
    for path in folder.iterdir() if folder.is_dir() else ():
        with suppress(FileNotFoundError):  # another process may remove it at the same time
            known = path.name in kept or not _RANDOM.fullmatch(path.name)
            if not known and time.time() - path.stat().st_mtime > ORPHAN_AFTER:
                shutil.rmtree(path) if path.is_dir() else path.unlink()
