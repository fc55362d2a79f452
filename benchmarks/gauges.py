"""Measurement of the time of a call and of the memory of a process.

Dask workers import this module, so it imports no large package.
"""

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any


def seconds_of(work: Callable[[], Any]) -> float:
    """Return the wall time of a call in seconds."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def seconds_in_turn(works: Mapping[str, Callable[[], Any]], *, rounds: int) -> dict[str, list[float]]:
    """Run several works in turn, and return the wall times of each in seconds, by name.

    Load on the machine then affects all of them alike.
    """
    taken: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(rounds):
        for name, work in works.items():
            taken[name].append(seconds_of(work))
    return taken


def peak_bytes() -> int:
    """Return the peak memory of this process in bytes.

    The value from ``getrusage`` is not used, because it can include memory of the parent process.
    """
    return 1024 * int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0])
