"""Prefect servers that outlived the command that started them; found in ``/proc``."""

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

_MARK = b"PREFECT__SERVER_EPHEMERAL=1"
_SERVED = b"prefect.server.api.server:create_app"


def left_servers() -> Iterator[tuple[int, int]]:
    """Yield the process id and the resident bytes of each server of this user that nobody waits for any more."""
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError, ValueError):
            ours = folder.stat().st_uid == os.geteuid()
            if ours and _SERVED in (folder / "cmdline").read_bytes() and _is_left(folder):
                pages = int((folder / "statm").read_text().split()[1])
                yield int(folder.name), pages * os.sysconf("SC_PAGE_SIZE")


def _is_left(folder: Path) -> bool:
    """Return whether the parent is another program: a server starts under the interpreter that it runs on."""
    if _MARK not in (folder / "environ").read_bytes().split(b"\0"):
        return False
    parent = (folder / "stat").read_text().rpartition(")")[2].split()[1]
    try:
        return (folder / "exe").readlink() != Path(f"/proc/{parent}/exe").readlink()
    except PermissionError:  # the parent is somebody else's
        return True
