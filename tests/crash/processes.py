"""Child processes with deadlines: fork, wait and stop. No child outlives its parent."""

import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress

from dpca.errors import Refused, Unavailable

DEADLINE = 120.0
UNAVAILABLE = 75
"""Exit status of a child that met the one error that an unavailable resource may raise."""

REFUSED = 77
"""Exit status of a child whose request the ledger refused."""

TIMED_OUT = 124


def forked(body: Callable[[], None], *, meanwhile: Callable[[], None] | None = None) -> int:
    """Run a function in a child forked from this warm process.

    Return its exit status, or minus the signal that ended it. A child that exceeds its deadline is killed, and has the
    status of ``timeout(1)``.
    """
    pid = start(body)
    try:
        if meanwhile is not None:
            meanwhile()
        return wait_for(pid, seconds=DEADLINE)
    except TimeoutError:
        return TIMED_OUT
    finally:
        stop(pid)


def wait_for(pid: int, *, seconds: float) -> int:
    """Wait for a child; return its exit status, or minus the signal that ended it."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.002)
    raise TimeoutError(f"a child did not end within {seconds:g} s")


def start(body: Callable[[], None], *, group: bool = False) -> int:
    """Start a child, optionally in a new session; return its id, which is then also its group's id."""
    ready, begun = os.pipe()
    pid = os.fork()
    if pid == 0:
        if group:
            os.setsid()
        os.close(ready)
        os.close(begun)
        _run_and_exit(body)
    os.close(begun)
    os.read(ready, 1)  # wait until the child closes its end; before that its group does not exist and cannot be killed
    os.close(ready)
    return pid


def stop(pid: int, *, group: bool = False) -> None:
    """Kill a child, or its whole group, and reap it; a child that has already ended is no error."""
    with suppress(ProcessLookupError, ChildProcessError):
        if group:
            os.killpg(pid, signal.SIGKILL)
        elif os.waitpid(pid, os.WNOHANG)[0] == 0:
            os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def _run_and_exit(body: Callable[[], None]) -> None:
    status = 1
    try:
        body()
        status = 0
    except Unavailable:
        status = UNAVAILABLE
    except Refused:
        status = REFUSED
    except BaseException:  # noqa: BLE001 - the child ends here, and the parent counts it
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
