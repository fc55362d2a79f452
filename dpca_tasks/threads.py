"""Linear algebra on one thread: the same matrix then gives the same bits on any number of cores."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from threading import Lock
from typing import Any

import scipy.linalg  # noqa: F401 - has a BLAS of its own, to be loaded before libraries are looked up
from threadpoolctl import OpenBLASController, ThreadpoolController


@contextmanager
def one_thread() -> Iterator[None]:
    """Hold linear algebra to one thread within a ``with`` statement.

    The limit is the process's. When several threads hold it at once, as the tasks of a threaded worker do, the last
    one to leave lifts it.
    """
    _limit.hold()
    try:
        yield
    finally:
        _limit.let_go()


class _Limit:
    """One thread for as long as anybody holds it.

    The library obeys the thread that set a limit first, and no other while that one lives; hence the clearing.
    """

    def __init__(self) -> None:
        self._lock, self._holders = Lock(), 0
        self._limits: Any = None

    def hold(self) -> None:
        with self._lock:
            if not self._holders:
                OpenBLASController.clear_controlling_thread(force=True)
                self._limits = _linear_algebra().limit(limits=1)
            self._holders += 1

    def let_go(self) -> None:
        with self._lock:
            self._holders -= 1
            if not self._holders:
                OpenBLASController.clear_controlling_thread(force=True)
                self._limits.restore_original_limits()
                OpenBLASController.clear_controlling_thread(force=True)


_limit = _Limit()


@cache
def _linear_algebra() -> ThreadpoolController:
    return ThreadpoolController()  # finding the libraries takes longer than most of what is done on one thread
