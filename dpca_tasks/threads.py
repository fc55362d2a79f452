"""Thread limits of linear algebra, the number of processors, and a test for loopback addresses.

With a fixed number of threads, linear algebra on the same matrix gives the same bits, whatever else the machine runs.
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
    """Return whether a host is a loopback address or ``localhost``; no other name is resolved."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def one_thread() -> AbstractContextManager[None]:
    """Limit linear algebra to one thread within a ``with`` statement.

    The limit applies to the whole process. Several threads may be inside such a statement at once, such as the tasks of
    a threaded Dask worker. The limit then lasts until the last of these threads leaves the statement.
    """
    return _limit.held(1)


def two_threads() -> AbstractContextManager[None]:
    """Limit linear algebra to two threads within a ``with`` statement, or to one if only one processor is available.

    The statement is entered once no other thread holds a different limit. If the calling thread is already within
    `one_thread`, the limit stays at one.
    """
    return _limit.held(min(2, processors()))


def two_at_once[Item, Result](function: Callable[[Item], Result], items: Iterable[Item]) -> list[Result]:
    """Apply a function to items, two at a time, each with one BLAS thread; return the results in order.

    The results have the same bits as those computed one after another within `one_thread`. Two matrix reductions at a
    time keep two processors busy. Two BLAS threads of a single reduction would instead wait for each other at every
    column. Do not call this function within `two_threads`.
    """

    def alone(item: Item) -> Result:
        with one_thread():
            return function(item)

    with one_thread(), ThreadPoolExecutor(min(2, processors())) as pool:
        return list(pool.map(alone, items))


@cache
def processors() -> int:
    """Return the number of processors that the affinity of this process and the quota of its container allow."""
    allowed = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    return min([allowed, *_quotas()])


def _quotas() -> Iterator[int]:
    """Yield the CPU quota of this process, in processors rounded up, from Linux control groups (version 1 and 2)."""
    groups = Path("/sys/fs/cgroup")
    with suppress(OSError, ValueError):
        quota, period = (int((groups / "cpu" / f"cpu.cfs_{name}_us").read_text()) for name in ("quota", "period"))
        if quota > 0:
            yield math.ceil(quota / period)
    with suppress(OSError, ValueError):  # without a quota the file contains "max", which is no integer
        here = Path("/proc/self/cgroup").read_text().strip().rpartition(":")[2]
        quota, period = map(int, (groups / here.strip("/") / "cpu.max").read_text().split())
        yield math.ceil(quota / period)


class _Limit:
    """A limit on the BLAS threads of the process, which lasts while any thread holds it.

    OpenBLAS accepts a new limit only from the thread that set the first limit, as long as that thread lives. So this
    class clears OpenBLAS's record of that thread before each change.
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
    return ThreadpoolController()  # cached, because the search for BLAS libraries is slow
