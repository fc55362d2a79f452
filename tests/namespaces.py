"""Mount and network namespaces for a single test, in a child process.

The namespaces end with the child. Creating them requires root, or a user who may create user namespaces. Elsewhere the
tests that use them are skipped, with the reason.
"""

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.crash.processes import forked

_NO_NAMESPACES = 76
"""Exit status of a child that cannot create namespaces."""


def isolated(body: Callable[[], None], *, network: bool = False) -> None:
    """Run a function in a child with separate mounts, and optionally a separate network; the child must succeed."""

    def inside() -> None:
        flags = os.CLONE_NEWNS | (os.CLONE_NEWNET if network else 0) | (os.CLONE_NEWUSER if os.getuid() else 0)
        try:
            os.unshare(flags)
            run("mount", "--make-rprivate", "/")
        except (OSError, subprocess.CalledProcessError):
            os._exit(_NO_NAMESPACES)
        body()

    status = forked(inside)
    if status == _NO_NAMESPACES:
        pytest.skip("this system lets the tests make no namespaces")
    assert status == 0


def run(*words: object) -> None:
    """Run a system program, which must succeed."""
    subprocess.run([str(word) for word in words], check=True, capture_output=True)


def small_disk(folder: Path, *, kib: int) -> None:
    """Mount an empty file system of ``kib`` KiB at a folder."""
    folder.mkdir(mode=0o700, exist_ok=True)
    run("mount", "-t", "tmpfs", "-o", f"size={kib}k,mode=700", "tmpfs", folder)
