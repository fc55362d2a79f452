"""Two disturbances during a run: a home that becomes read-only, and a clock that jumps."""

import ctypes
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from storage.ledger import journal
from storage.workspace import Workspace
from tests.crash.processes import forked
from tests.crash.world import Hook, World

_OVERRIDE, _READ_SEARCH, _VERSION_3 = 1, 2, 0x20080522
UNLOCKED = ("reserve.row_committed", "keep.file_written", "artifact.staged")
"""Crash points with no open transaction, where a second process need not wait and files may be incomplete."""
LONGEST = timedelta(hours=400)
JUMPS = tuple(timedelta(hours=hours) for hours in (-72, 3, -1, 30, -400, 399, 0))


def obey_modes() -> None:
    """Drop the capabilities by which root bypasses the modes of files and folders."""
    header, sets = (ctypes.c_uint32 * 2)(_VERSION_3, 0), (ctypes.c_uint32 * 6)()
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.capget(header, sets) == 0
    for place in range(3):  # clears capabilities 0 to 31 of the process: effective, permitted and inheritable ones
        sets[place] &= ~(1 << _OVERRIDE | 1 << _READ_SEARCH)
    assert libc.capset(header, sets) == 0


def lock_folders(root: Path) -> None:
    """Remove the write permission from a folder and from all folders below it."""
    for folder in (*(path for path in root.rglob("*") if path.is_dir()), root):
        folder.chmod(0o500)


def unlock_folders(root: Path) -> None:
    """Restore the write permission."""
    for folder in (root, *(path for path in root.rglob("*") if path.is_dir())):
        folder.chmod(0o700)


def jumping(world: World, jumps: Sequence[timedelta] = JUMPS) -> Hook:
    """Return a crash hook that moves the clock by the next offset, and may let a second process open the home.

    At crash points without an open transaction, the second process opens the home with its clock far ahead. On opening,
    the second process finishes or removes files that look like leftovers of an old crash. It must not touch a file that
    the running process is still writing, although the file looks old to it.
    """
    reached = 0

    def hook(point: str) -> None:
        nonlocal reached
        offset, reached = jumps[reached % len(jumps)], reached + 1
        real: Callable[[], float] = time.time

        def check_changes() -> None:
            vars(journal)["now"] = lambda: stamp(LONGEST)
            vars(time)["time"] = lambda: real() + LONGEST.total_seconds()
            world.enter()
            Workspace.open()

        vars(journal)["now"] = lambda: stamp(offset)
        if point in UNLOCKED:
            assert forked(check_changes) == 0

    return hook


def stamp(offset: timedelta) -> str:
    """Return the time of a clock with an offset, in the format of the journal."""
    return (datetime.now(UTC) + offset).isoformat(timespec="microseconds")
