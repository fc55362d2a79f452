"""Requests to a distant place, several at once."""

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor

_AT_ONCE = 8  # requests


def each[Result](function: Callable[[str], Result], paths: Iterable[str]) -> list[Result]:
    """Call a function for each path, several at once; the first failure ends it."""
    pool = ThreadPoolExecutor(_AT_ONCE)
    try:
        return list(pool.map(function, paths))
    finally:
        pool.shutdown(cancel_futures=True)
