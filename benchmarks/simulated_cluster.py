"""A Dask cluster of many simulated workers on one machine, with the real scheduler and messages; sums only sleep.

The scheduler runs in a separate process, so its processor time, memory and traffic can be measured alone. Workers are
real Dask workers with one thread, hundreds per process. Those to be lost share one further process, which is killed.
"""

import asyncio
import logging
import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from types import SimpleNamespace
from typing import Any

import dask
import numpy as np
from distributed import Client, Scheduler, Worker
from distributed.comm.tcp import TCP
from distributed.diagnostics.plugin import SchedulerPlugin
from numpy.typing import NDArray
from tornado.iostream import IOStream

from benchmarks.gauges import peak_bytes
from flows.clusters.dask_clusters import WORKER_SETTINGS

IN_A_PROCESS = 125
AT_ONCE = 10  # workers of a process that start together
SETTINGS: Mapping[str, Any] = {
    **WORKER_SETTINGS,
    "distributed.admin.system-monitor.interval": "60 s",
    "distributed.worker.use-file-locking": False,  # else each new worker searches for remains of all others
    "distributed.scheduler.worker-ttl": None,  # hundreds of workers share a processor, so heartbeats are late
    "distributed.comm.timeouts.connect": "120 s",
    "distributed.comm.timeouts.tcp": "300 s",
}

_traffic: Counter[str] = Counter()
"""Counts in the scheduler's process: messages, bytes, and tasks assigned to a worker."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gauge:
    """The scheduler's consumption since its start."""

    seconds: float
    messages: int
    sent_and_received: int
    assigned: int
    peak: int
    clock: float

    @classmethod
    def read(cls) -> "Gauge":
        """Read the counters in the scheduler's process."""
        return cls(
            seconds=time.process_time(),
            messages=_traffic["messages"],
            sent_and_received=_traffic["bytes"],
            assigned=_traffic["assigned"],
            peak=peak_bytes(),
            clock=time.monotonic(),
        )


class CountingAssignments(SchedulerPlugin):
    """A counter of assigned tasks; a task is assigned again if it or its result is lost with its worker."""

    def transition(self, key: Any, start: str, finish: str, *args: Any, **kwargs: Any) -> None:
        """Count a task's transition if the task is now assigned to a worker."""
        _traffic["assigned"] += finish == "processing"


@dataclass(frozen=True, slots=True, kw_only=True)
class SleepingBlocks:
    """A source whose blocks take a stated time to read and hold one record, with one value: the block's number."""

    n_blocks: int
    sleep: float
    n_features: int = 1
    content: str = ""

    @property
    def n_records(self) -> int:
        """One record per block."""
        return self.n_blocks

    @property
    def extents(self) -> NDArray[np.int64]:
        """One record, one row and one value per block."""
        return np.ones((self.n_blocks, 3), np.int64)

    def read(self, block: int) -> Any:
        """Sleep, and return the block."""
        time.sleep(self.sleep)
        return SimpleNamespace(number=block, row_ptr=(0, 1), n_records=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class NumberSum:
    """A query that adds the number of block i to coordinate i modulo the number of coordinates."""

    size: int
    inputs: bytes = b""
    n_features: int = 1

    @property
    def layout(self) -> Any:
        """The number of coordinates."""
        return SimpleNamespace(size=self.size)

    def grid(self, block: Any) -> Any:
        """Return the block."""
        return block

    def add(self, block: Any, total: NDArray[np.int64]) -> None:
        """Add the block's number to the total."""
        total[block.number % self.size] += block.number

    def expected(self, blocks: int) -> NDArray[np.int64]:
        """Return the sum over that many blocks by arithmetic."""
        numbers = np.arange(blocks)
        total = np.zeros(self.size, np.int64)
        np.add.at(total, numbers % self.size, numbers)
        return total


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulated:
    """A running cluster: its client, and the function that kills the workers to be lost."""

    client: Client
    lose: Callable[[], None]

    def read(self) -> Gauge:
        """Return the scheduler's consumption so far."""
        gauge: Any = self.client.run_on_scheduler(Gauge.read)
        assert isinstance(gauge, Gauge), "the scheduler answers with its gauge"
        return gauge


@contextmanager
def simulated_cluster(workers: int, *, to_lose: int) -> Iterator[Simulated]:
    """Start a scheduler and workers, some of which can be killed together."""
    spawn = get_context("spawn")
    ours, theirs = spawn.Pipe()
    processes: list[BaseProcess] = []

    def started(work: Callable[..., None], *given: Any) -> BaseProcess:
        process = spawn.Process(target=work, args=given, daemon=True)
        process.start()
        processes.append(process)
        return process

    try:
        started(_schedule, theirs)
        address = ours.recv()
        staying = workers - to_lose
        for first in range(0, staying, IN_A_PROCESS):
            started(_work, address, min(IN_A_PROCESS, staying - first))
        doomed = started(_work, address, to_lose) if to_lose else None
        with (
            dask.config.set(SETTINGS),
            Client(address, set_as_default=False, timeout=120) as client,
        ):
            client.wait_for_workers(workers, timeout=1_800)
            yield Simulated(client=client, lose=lambda: _kill(doomed))
    finally:
        for process in reversed(processes):
            process.kill()
            process.join()


def _kill(process: BaseProcess | None) -> None:
    assert process is not None, "no worker was started to be lost"
    assert process.pid is not None, "it is started"
    os.kill(process.pid, signal.SIGKILL)


def _schedule(answer: Connection) -> None:
    """Run a scheduler, and count the traffic of its process."""
    _silence()
    for method in ("read", "write"):
        setattr(TCP, method, _counting_messages(getattr(TCP, method)))
    for method in ("read_from_fd", "write_to_fd"):
        setattr(IOStream, method, _counting_bytes(getattr(IOStream, method)))

    async def run() -> None:
        async with Scheduler(host="127.0.0.1", port=0, dashboard=False) as scheduler:
            scheduler.add_plugin(CountingAssignments())
            answer.send(scheduler.address)
            await scheduler.finished()

    with dask.config.set(SETTINGS):
        asyncio.run(run())


def _work(address: str, count: int) -> None:
    """Run a number of workers."""
    _silence()

    async def run() -> None:
        workers: list[Worker] = []
        for first in range(0, count, AT_ONCE):
            some = [
                Worker(address, nthreads=1, host="127.0.0.1", memory_limit=0, dashboard=False)
                for _ in range(min(AT_ONCE, count - first))
            ]
            await asyncio.gather(*some)
            workers += some
        await asyncio.gather(*(worker.finished() for worker in workers))

    with dask.config.set(SETTINGS):
        asyncio.run(run())


def _silence() -> None:
    logging.getLogger("distributed").setLevel(logging.CRITICAL)


def _counting_messages(method: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(method)
    async def counted(*args: Any, **kwargs: Any) -> Any:
        result = await method(*args, **kwargs)
        _traffic["messages"] += 1
        return result

    return counted


def _counting_bytes(method: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(method)
    def counted(*args: Any, **kwargs: Any) -> Any:
        size = method(*args, **kwargs)
        _traffic["bytes"] += size or 0
        return size

    return counted
