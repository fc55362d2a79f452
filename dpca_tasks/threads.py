"""Thread limits of linear algebra, the number of processors, and a test for loopback addresses.

With a fixed number of threads the same matrix gives the same bits, whatever else runs on the machine.
"""

import ipaddress
import math
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import cache
from pathlib import Path
from threading import Condition, local
from typing import Any

import scipy.linalg  # noqa: F401 - bundles its own BLAS, which must be loaded before the libraries are looked up
from threadpoolctl import OpenBLASController, ThreadpoolController


def is_loopback(host: str) -> bool:
    """Return whether a host is this machine, without resolving any name except ``localhost``."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def one_thread() -> AbstractContextManager[None]:
    """Limit linear algebra to one thread within a ``with`` statement.

    The limit applies to the whole process. When several threads hold it at once, as the tasks of a threaded worker do,
    the last one to leave lifts it.
    """
    return _limit.held(1)


def two_threads() -> AbstractContextManager[None]:
    """Limit linear algebra to two threads, or to one where this process may use only one processor.

    On one processor two threads obstruct each other. The call waits until no other thread holds a different limit.
    Within `one_thread` of the same thread the limit stays at one.
    """
    return _limit.held(min(2, processors()))


def two_at_once[Item, Result](function: Callable[[Item], Result], items: Iterable[Item]) -> list[Result]:
    """Return the results of a function for some items in order, computed two at a time with one BLAS thread each.

    The bits are the same as for one item after another within `one_thread`. Two concurrent reductions keep two
    processors busy, whereas two threads of one reduction wait for each other at every column. Do not call it within
    `two_threads`.
    """

    def alone(item: Item) -> Result:
        with one_thread():
            return function(item)

    with one_thread(), ThreadPoolExecutor(min(2, processors())) as pool:
        return list(pool.map(alone, items))


@cache
def processors() -> int:
    """Return how many processors this process may use, by its affinity and the quota of its container."""
    allowed = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    return min([allowed, *_quotas()])


def _quotas() -> Iterator[int]:
    """Yield the number of processors, rounded up, that a control group of version 1 or 2 grants to this process."""
    groups = Path("/sys/fs/cgroup")
    with suppress(OSError, ValueError):
        quota, period = (int((groups / "cpu" / f"cpu.cfs_{name}_us").read_text()) for name in ("quota", "period"))
        if quota > 0:
            yield math.ceil(quota / period)
    with suppress(OSError, ValueError):  # "max" is no number
        here = Path("/proc/self/cgroup").read_text().strip().rpartition(":")[2]
        quota, period = map(int, (groups / here.strip("/") / "cpu.max").read_text().split())
        yield math.ceil(quota / period)


class _Limit:
    """A process-wide thread limit that lasts while any thread holds it.

    The BLAS library obeys the thread that set a limit first, and no other thread while that one lives. Therefore the
    controlling thread is cleared before each change.
    """

    def __init__(self) -> None:
        self._changed, self._holders, self._count = Condition(), 0, 0
        self._here = local()
        self._limits: Any = None

    @contextmanager
    def held(self, count: int) -> Iterator[None]:
        self._hold(count)
        try:
            yield
        finally:
            self._let_go()

    def _hold(self, count: int) -> None:
        with self._changed:
            depth = getattr(self._here, "depth", 0)
            self._changed.wait_for(lambda: depth or not self._holders or self._count == count)
            if not self._holders:
                OpenBLASController.clear_controlling_thread(force=True)
                self._limits, self._count = _linear_algebra().limit(limits=count), count
            self._holders += 1
            self._here.depth = depth + 1

    def _let_go(self) -> None:
        with self._changed:
            self._here.depth -= 1
            self._holders -= 1
            if not self._holders:
                OpenBLASController.clear_controlling_thread(force=True)
                self._limits.restore_original_limits()
                OpenBLASController.clear_controlling_thread(force=True)
                self._changed.notify_all()


_limit = _Limit()


@cache
def _linear_algebra() -> ThreadpoolController:
    return ThreadpoolController()  # finding the libraries takes longer than most single-threaded work
