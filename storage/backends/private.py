"""Folders and files closed to other users: how they are made, and the refusal of those that others can enter.

Everything in a home is rows, noised steps, keys and the ledger, so one rule holds for all of it: folders have mode
0700 and files 0600, whatever the umask. A home or key folder that was made otherwise is refused, until its owner closes
it or insists.
"""

import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from storage.errors import Refused

FOLDER, FILE = 0o700, 0o600
OTHERS = 0o077
"""The permission bits of the group and of others."""

_YES = {"1", "true", "yes", "on"}


def create_file(path: Path) -> None:
    """Create an empty file of mode 0600, which must not exist."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, FILE)
    try:
        os.fchmod(descriptor, FILE)
    finally:
        os.close(descriptor)


def close_tree(root: Path) -> None:
    """Withdraw all permissions of others from a folder and everything in it."""
    root.chmod(FOLDER)
    for folder, folders, files in os.walk(root):
        for name in folders:
            os.chmod(f"{folder}/{name}", FOLDER)  # noqa: PTH101 - a path object takes longer than this
        for name in files:
            os.chmod(f"{folder}/{name}", FILE)  # noqa: PTH101


def require_private(folder: Path, *, name: str) -> None:
    """Refuse a folder that other users can enter, by itself or by where a link in it leads.

    Parameters
    ----------
    folder : Path
        An existing folder; a link is followed.
    name : str
        The setting that names it.

    Raises
    ------
    Refused
        When others can, unless ``DPCA_ALLOW_SHARED_HOME`` says that they may.
    """
    if is_insisted():
        return
    for found, remedy in openings(folder):
        raise Refused(
            f"{name}={folder} holds what no other user may see, and {found}; run `{remedy}`, "
            "or set DPCA_ALLOW_SHARED_HOME=true if you trust all of them."
        )


def is_insisted() -> bool:
    """Tell whether the operator admits folders that other users can enter."""
    return is_yes("DPCA_ALLOW_SHARED_HOME")


def is_yes(variable: str) -> bool:
    """Tell whether a variable of the environment says yes."""
    return os.environ.get(variable, "").strip().lower() in _YES


def openings(folder: Path) -> Iterator[tuple[str, str]]:
    """Yield each way in which others can enter a folder, and the command that closes it."""
    for path in (folder, *_links(folder)):
        with suppress(FileNotFoundError):
            yield from _openings(path)


def _links(folder: Path) -> list[Path]:
    if not os.access(folder, os.R_OK):
        return []
    with os.scandir(folder) as entries:
        return sorted(Path(entry.path) for entry in entries if entry.is_symlink())


def _openings(path: Path) -> Iterator[tuple[str, str]]:
    status = path.stat()
    if status.st_uid in (os.geteuid(), 0) and not stat.S_IMODE(status.st_mode) & OTHERS:
        return
    target = path.resolve()
    closed = FOLDER if stat.S_ISDIR(status.st_mode) else FILE
    leads = f"{path} leads to {target}, which" if path.is_symlink() else f"{target}"
    if status.st_uid not in (os.geteuid(), 0):
        yield f"{leads} belongs to user {status.st_uid}", f"chown {os.geteuid()} {target}"
    if stat.S_IMODE(status.st_mode) & OTHERS:
        yield f"{leads} is open to other users (mode {stat.S_IMODE(status.st_mode):o})", f"chmod {closed:o} {target}"
