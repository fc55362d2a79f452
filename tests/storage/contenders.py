"""Eight processes that run one function at the same time.

The processes are forked from a server process that has imported everything they need, which takes seconds, but has
opened nothing.
"""

import multiprocessing
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.synchronize import Barrier

from dpca.errors import BudgetExhausted
from storage.database.engine import connect
from storage.workspace import Workspace

PROCESSES = 8
_barrier: Barrier | None = None


@dataclass(frozen=True, slots=True)
class Contenders:
    """A pool of new processes that share nothing but the database."""

    pool: ProcessPoolExecutor

    def race[T](self, body: Callable[..., T], *arguments: object) -> list[T]:
        """Run a function in all processes at once; its first argument is the process number."""
        runs = [self.pool.submit(_together, body, number, *arguments) for number in range(PROCESSES)]
        return [run.result() for run in runs]


_SLOW_TO_IMPORT = ("alembic.command", "dp_accounting", "duckdb", "mpmath", "pandas", "storage.datasets.ingest")


@contextmanager
def contenders() -> Iterator[Contenders]:
    """Yield a pool of eight processes, which end with the test."""
    server = multiprocessing.get_context("forkserver")
    server.set_forkserver_preload([__name__, *_SLOW_TO_IMPORT])
    barrier = server.Barrier(PROCESSES)
    with ProcessPoolExecutor(PROCESSES, mp_context=server, initializer=_meet_at, initargs=(barrier,)) as pool:
        yield Contenders(pool)


def open_database(_number: int, url: str) -> str | None:
    """Open a database, possibly for the first time; return the number of its newest migration."""
    with connect(url).begin() as connection:
        return str(connection.exec_driver_sql("SELECT version_num FROM alembic_version").scalar_one())


def open_ledger(_number: int, environment: Mapping[str, str]) -> str:
    """Open a ledger, possibly for the first time; return its id."""
    os.environ.update(environment)
    return Workspace.open().ledger.id


def reserve(number: int, environment: Mapping[str, str], noise_multiplier: float, *, one_key: bool) -> Counter[str]:
    """Reserve eight releases, all with one run key or each with a separate one.

    Return counts of the outcomes and of the new releases.
    """
    os.environ.update(environment)
    ledger, outcomes = Workspace.open().ledger, Counter[str]()
    for attempt in range(8):
        try:
            grant = ledger.reserve(
                "people",
                run_key="one" if one_key else f"{number}-{attempt}",
                fingerprint="f",
                event={"name": "gaussian", "noise_multiplier": noise_multiplier},
                epsilon=0.1,
                delta=1e-6,
                snapshot_id="s",
                request={},
            )
            outcomes[f"new {grant.release_id}" if grant.is_new else f"old {grant.release_id}"] += 1
        except BudgetExhausted:
            outcomes["refused"] += 1
    return outcomes


def _meet_at(barrier: Barrier) -> None:
    global _barrier
    _barrier = barrier


def _together[T](body: Callable[..., T], number: int, *arguments: object) -> T:
    assert _barrier is not None
    _barrier.wait(timeout=120)
    return body(number, *arguments)
