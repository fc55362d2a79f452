"""The time of a call and the memory of a process; workers import this module, so it imports nothing large."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any


def seconds_of(work: Callable[[], Any]) -> float:
    """Return the wall time of a call in seconds."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def peak_bytes() -> int:
    """Return the peak memory of this process; the value of rusage would include the parent's memory."""
    return 1024 * int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0])
