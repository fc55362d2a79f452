"""The cleanup of files and folders that killed processes left without a database row."""

import os
import re
import shutil
import time
from collections.abc import Container
from contextlib import suppress
from pathlib import Path

ORPHAN_AFTER = 3600.0
"""Seconds after which a file without a row is an orphan; its writer would add the row within moments."""

_STAGED = re.compile(r"[0-9a-f]{32}")  # a release, a staged artifact
_HALF_WRITTEN = re.compile(r"\.[0-9a-f]{32}\.tmp")


def remove_orphans(folder: Path, *, among: Container[str] = ()) -> None:
    """Remove what is older than `ORPHAN_AFTER` in a folder: files half written, and the folders and files ``among``."""
    for name in names_in(folder):
        orphan = name in among and _STAGED.fullmatch(name)
        if orphan or (name[0] == "." and _HALF_WRITTEN.fullmatch(name)):
            path = folder / name
            with suppress(FileNotFoundError):  # another process may remove it at the same time
                if time.time() - path.stat().st_mtime > ORPHAN_AFTER:
                    if path.is_dir():
                        shutil.rmtree(path, ignore_errors=True)  # its writer may live, where a clock jumped: next time
                    else:
                        path.unlink()


def names_in(folder: Path) -> list[str]:
    """List the names in a folder, which need not exist."""
    try:
        return os.listdir(folder)  # noqa: PTH208 - a path a name takes ten times as long
    except (FileNotFoundError, NotADirectoryError):
        return []
