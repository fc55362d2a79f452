"""Child processes with deadlines: fork, wait for and stop them. No child outlives its parent."""

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
    """Run a function in a forked child, so that imports and compiled kernels of this process are reused.

    Return the child's exit status, or minus the number of the signal that ended it. A child that exceeds its deadline
    is killed, and counts as ended with the status of ``timeout(1)``.
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
    """Wait for a child; return the child's exit status, or minus the number of the signal that ended it."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.002)
    raise TimeoutError(f"a child did not end within {seconds:g} s")


def start(body: Callable[[], None], *, group: bool = False) -> int:
    """Fork a child that runs a function; return the child's process id.

    With ``group``, the child leads a new session, and its id is also the id of its process group.
    """
    ready, begun = os.pipe()
    pid = os.fork()
    if pid == 0:
        if group:
            os.setsid()
        os.close(ready)
        os.close(begun)
        _run_and_exit(body)
    os.close(begun)
    # Wait until the child closes its end of the pipe. Before that, its process group may not exist yet.
    os.read(ready, 1)
    os.close(ready)
    return pid


def stop(pid: int, *, group: bool = False) -> None:
    """Kill a child, or its whole process group, and reap it; a child that has already ended is no error."""
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
