"""A Dask cluster of many simulated workers on one machine.

The scheduler and the messages are real; the workers sleep instead of adding rows. The scheduler runs in a separate
process, so that its processor time, memory and traffic can be measured. Each simulated worker is a Dask worker with one
thread, and a process contains up to 125 workers. One extra process contains the workers to be lost, and is killed.
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
AT_ONCE = 10  # number of workers that a process starts at the same time
SETTINGS: Mapping[str, Any] = {
    **WORKER_SETTINGS,
    "distributed.admin.system-monitor.interval": "60 s",
    "distributed.worker.use-file-locking": False,  # otherwise each new worker searches for leftover files of all others
    "distributed.scheduler.worker-ttl": None,  # keep workers with late heartbeats: hundreds of workers share a core
    "distributed.comm.timeouts.connect": "120 s",
    "distributed.comm.timeouts.tcp": "300 s",
}

_traffic: Counter[str] = Counter()
"""Counts in the scheduler's process: messages, bytes, and tasks assigned to a worker."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gauge:
    """The resources that the scheduler has used since its start."""

    seconds: float
    messages: int
    sent_and_received: int
    assigned: int
    peak: int
    clock: float

    @classmethod
    def read(cls) -> "Gauge":
        """Read the resource counters; call this in the scheduler's process."""
        return cls(
            seconds=time.process_time(),
            messages=_traffic["messages"],
            sent_and_received=_traffic["bytes"],
            assigned=_traffic["assigned"],
            peak=peak_bytes(),
            clock=time.monotonic(),
        )


class CountingAssignments(SchedulerPlugin):
    """A scheduler plugin that counts how often a task is assigned to a worker.

    A task is assigned again if it, or its result, is lost with its worker.
    """

    def transition(self, key: Any, start: str, finish: str, *args: Any, **kwargs: Any) -> None:
        """Count the state transition of a task if the task is now assigned to a worker."""
        _traffic["assigned"] += finish == "processing"


@dataclass(frozen=True, slots=True, kw_only=True)
class SleepingBlocks:
    """A block source for simulation: reading a block sleeps, and block i contains one record with the value i."""

    n_blocks: int
    sleep: float
    n_features: int = 1
    content: str = ""

    @property
    def n_records(self) -> int:
        """The number of records, which is one per block."""
        return self.n_blocks

    @property
    def extents(self) -> NDArray[np.int64]:
        """The numbers of records, rows and stored values of each block, which are all 1."""
        return np.ones((self.n_blocks, 3), np.int64)

    def read(self, block: int) -> Any:
        """Sleep for the reading time of a block, and return the block."""
        time.sleep(self.sleep)
        return SimpleNamespace(number=block, row_ptr=(0, 1), n_records=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class NumberSum:
    """A query for simulation, which adds i to coordinate ``i % size`` of the sum for each block i."""

    size: int
    inputs: bytes = b""
    n_features: int = 1

    @property
    def layout(self) -> Any:
        """The layout of the sum, which has ``size`` coordinates."""
        return SimpleNamespace(size=self.size)

    def grid(self, block: Any) -> Any:
        """Return the block unchanged, since simulated blocks need no rounding to the grid."""
        return block

    def add(self, block: Any, total: NDArray[np.int64]) -> None:
        """Add the block's number to the total."""
        total[block.number % self.size] += block.number

    def expected(self, blocks: int) -> NDArray[np.int64]:
        """Return the correct sum over this number of blocks, computed without the cluster."""
        numbers = np.arange(blocks)
        total = np.zeros(self.size, np.int64)
        np.add.at(total, numbers % self.size, numbers)
        return total


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulated:
    """A running simulated cluster: its client, and the function ``lose`` that kills some of its workers."""

    client: Client
    lose: Callable[[], None]

    def read(self) -> Gauge:
        """Return the resources that the scheduler has used so far."""
        gauge: Any = self.client.run_on_scheduler(Gauge.read)
        assert isinstance(gauge, Gauge), "the scheduler did not return its gauge"
        return gauge


@contextmanager
def simulated_cluster(workers: int, *, to_lose: int) -> Iterator[Simulated]:
    """Start a scheduler and ``workers`` simulated workers, ``to_lose`` of which can be killed together."""
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
    assert process is not None, "no worker process was started that can be killed"
    assert process.pid is not None, "the worker process has not started"
    os.kill(process.pid, signal.SIGKILL)


def _schedule(answer: Connection) -> None:
    """Run a Dask scheduler in this process, count its messages and bytes, and send its address."""
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
    """Run ``count`` Dask workers in this process until the scheduler closes them."""
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
