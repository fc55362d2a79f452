"""Measurement of the time of a call and of the memory of a process.

Dask workers import this module, so it imports no large package.
"""

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
    """Return the peak memory of this process in bytes.

    The value from ``getrusage`` is not used, because it can include memory of the parent process.
    """
    return 1024 * int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0])
