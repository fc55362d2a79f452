"""File systems and networks of one test, in namespaces of a child process: nothing of them outlives it.

Root, or a user who may make user namespaces, is needed; elsewhere the tests that need one are skipped with the reason.
"""

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.crash.processes import forked

_NO_NAMESPACES = 76
"""Exit status of a child that may make no namespaces."""


def isolated(body: Callable[[], None], *, network: bool = False) -> None:
    """Run a function in a child that sees mounts, and if asked a network, of its own; it must end well."""

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
    """Run a program of the system, which must end well."""
    subprocess.run([str(word) for word in words], check=True, capture_output=True)


def small_disk(folder: Path, *, kib: int) -> None:
    """Mount an empty disk of a size at a folder."""
    folder.mkdir(mode=0o700, exist_ok=True)
    run("mount", "-t", "tmpfs", "-o", f"size={kib}k,mode=700", "tmpfs", folder)
