"""The seconds of a call, and the memory of a process; workers import this, so it imports nothing of size."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any


def seconds_of(work: Callable[[], Any]) -> float:
    """Return how long a call takes by the clock."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def peak_bytes() -> int:
    """Return the most that this process ever held; what rusage tells begins with what its parent held."""
    return 1024 * int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0])
