"""Linear algebra on a fixed number of threads, and the addresses of this machine.

Network addresses of this machine.

Linear algebra on a fixed number of threads: the same matrix then gives the same bits, whatever else runs.
"""

import ipaddress
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from threading import Condition, local
from typing import Any

import scipy.linalg  # noqa: F401 - has a BLAS of its own, to be loaded before libraries are looked up
from threadpoolctl import OpenBLASController, ThreadpoolController


def is_loopback(host: str) -> bool:
    """Tell whether a host is this machine alone; no name but ``localhost`` is looked up."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def one_thread() -> AbstractContextManager[None]:
    """Hold linear algebra to one thread within a ``with`` statement.

    The limit is the process's. When several threads hold it at once, as the tasks of a threaded worker do, the last
    one to leave lifts it.
    """
    return _limit.held(1)


def two_threads() -> AbstractContextManager[None]:
    """Hold linear algebra to two threads; to one where this process may use one processor, on which two get in the way.

    Whoever holds another number is waited for. Inside `one_thread` of the same thread it is one.
    """
    return _limit.held(min(2, processors()))


def two_at_once[Item, Result](function: Callable[[Item], Result], items: Iterable[Item]) -> list[Result]:
    """Return a function's results for some items, in order: two at a time, with one thread of linear algebra each.

    The bits are those of one after another in `one_thread`. Two of them keep two processors busy, and two threads of
    one reduction wait for each other at every column of it. It may not be called inside `two_threads`.
    """

    def alone(item: Item) -> Result:
        with one_thread():
            return function(item)

    with one_thread(), ThreadPoolExecutor(min(2, processors())) as pool:
        return list(pool.map(alone, items))


def processors() -> int:
    """Return how many processors this process may use, by its affinity and its container's quota."""
    from dask.system import CPU_COUNT  # whoever plans a release alone needs no Dask

    return CPU_COUNT


class _Limit:
    """A number of threads for as long as anybody holds it.

    The library obeys the thread that set a limit first, and no other while that one lives; hence the clearing.
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
    return ThreadpoolController()  # finding the libraries takes longer than most of what is done on one thread
