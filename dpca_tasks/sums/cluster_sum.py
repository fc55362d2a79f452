"""The tasks of an exact sum on a Dask cluster, and the rules for waiting and giving up.

A sum is sent to the scheduler in one message, as one graph of tasks. Each task names the worker where it should run,
but may run on any other. Source and query are sent pickled, so that the scheduler opens no dataset. Small ones are sent
inside the tasks, large ones once for each worker. Small totals are sent to the client directly; others are merged on
the workers first. Neighbouring partitions share a worker, their home, so the first merges transfer nothing.
"""

import asyncio
import concurrent.futures
import itertools
import pickle
import sys
import time
import uuid
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pickle import PickleBuffer
from typing import Any, Self

import numpy as np
from dask.base import annotate
from distributed import Client, Future
from distributed.comm.addressing import get_address_host
from distributed.protocol.pickle import dumps
from distributed.scheduler import KilledWorker
from numpy.typing import NDArray

from dpca_tasks.errors import WorkerFailed
from dpca_tasks.queries.base import RowSum
from dpca_tasks.queries.joint_sum import Tile, TiledSum
from dpca_tasks.records.blocks import BlockSource
from dpca_tasks.sums.partial_sums import (
    Gridded,
    Partial,
    PreparedBlocks,
    Residency,
    cut,
    first_homes,
    fold,
    fold_gridded,
    fold_tile,
    grid,
    merge,
    prepare,
    prepare_gridded,
    without_cause,
)
from dpca_tasks.threads import is_loopback, one_thread

FAN_IN = 4
RETRIES = 2
SMALL_INPUT = 1 << 18  # largest pickled input in bytes that is sent inside every task
SMALL_TOTALS = 1 << 22  # largest number of bytes of all partial sums that the client merges itself
NEAR_TOTALS = 1 << 26  # the same limit after the first merge, if all workers are on this machine
PATIENCE = 120.0  # seconds without a worker after which a sum is abandoned
HEARTBEAT = 2.0  # seconds between checks of the workers
RESUBMISSIONS = 10  # resubmissions of stranded tasks; equal to the worker losses that our clusters allow a task


class Stranded(WorkerFailed):
    """Tasks wait for workers that are gone, and Dask assigns them to no other worker; they must be submitted again.

    Dask moves a task to another worker if its home (the worker where it should run) is gone. But if no worker is left
    at that moment, Dask later assigns the task only to its home. A restarted worker has a new address, so it is not
    the home.
    """


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Packed:
    """A pickled source or query. The repr hides the content, because workers log the arguments of a failed task."""

    content: bytes = field(repr=False)
    arrays: tuple[NDArray[np.uint8], ...] = field(repr=False)
    name: str = field(repr=False)

    @classmethod
    def of(cls, value: Any) -> Self:
        """Pickle a value with its arrays in separate buffers, so that they are not copied in transit."""
        buffers: list[PickleBuffer] = []
        content = dumps(value, buffer_callback=buffers.append)
        arrays = tuple(np.frombuffer(buffer.raw(), np.uint8) for buffer in buffers)
        return cls(content=content, arrays=arrays, name=uuid.uuid4().hex)

    def open(self) -> Any:
        """Return the value, whose arrays are views of the buffers."""
        return without_cause(lambda: pickle.loads(self.content, buffers=self.arrays))

    def __sizeof__(self) -> int:
        """Return the number of bytes of the content."""
        return len(self.content) + sum(array.nbytes for array in self.arrays)

    def __dask_tokenize__(self) -> str:
        """Return a unique name; the hash of the content, Dask's default, would take longer than a sum of few rows."""
        return self.name


def sum_on_cluster(
    source: BlockSource,
    query: RowSum,
    *,
    client: Client,
    progress: Callable[[int, int], None] | None = None,
    residency: Residency | None = None,
) -> Partial:
    """Sum every partition on the cluster, and merge the partial sums; see `dpca_tasks.sums.exact_sum.exact_sum`.

    Raises
    ------
    IncompleteSum
    WorkerFailed
        When a block cannot be summed, or no worker takes work for `PATIENCE` seconds.
    """
    return resubmitted(lambda: _sum(source, query, client=client, progress=progress, residency=residency))


def resubmitted[T](attempt: Callable[[], T]) -> T:
    """Call ``attempt``, which submits tasks and waits for their result; call it again if the tasks are stranded."""
    for _ in range(RESUBMISSIONS):
        with suppress(Stranded):
            return attempt()
    return attempt()


def _sum(
    source: BlockSource,
    query: RowSum,
    *,
    client: Client,
    progress: Callable[[int, int], None] | None,
    residency: Residency | None,
) -> Partial:
    memory = await_workers(client)
    keep = residency is not None and residency.settle(source, query, memory)
    graph = Graph(first_homes([*memory]) if residency is None else residency.homes)
    bounds = list(itertools.pairwise(cut(source.extents, len(graph.homes))))
    queries = graph.ship("query", query)
    kept: dict[int, str] = {}
    if residency is not None and keep:
        missing = [at for at in range(len(bounds)) if at not in residency.rows]
        sources = graph.ship("source", source) if missing else []
        kept = {at: graph.add("rows", at, grid_packed, sources[at], queries[at], *bounds[at]) for at in missing}
        rows = [residency.rows.get(at, kept.get(at)) for at in range(len(bounds))]
        folds = [graph.add("fold", at, _fold_gridded, rows[at], queries[at]) for at in range(len(bounds))]
    else:
        sources = graph.ship("source", source)
        folds = [graph.add("fold", at, _fold, sources[at], queries[at], *cut_at) for at, cut_at in enumerate(bounds)]
    return collect(
        client,
        graph,
        folds,
        size=query.layout.size,
        workers=[*memory],
        progress=progress,
        residency=residency,
        rows=kept,
    )


def collect(
    client: Client,
    graph: "Graph",
    folds: list[str],
    *,
    size: int,
    workers: Sequence[str],
    residency: Residency | None,
    rows: Mapping[int, str],
    prepared: Mapping[int, str] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Partial:
    """Submit the tasks of a sum, merge its partials, and keep the requested data on the workers.

    Parameters
    ----------
    client : distributed.Client
    graph : Graph
    folds : list of str
        The keys of the partitions' partial sums, in order.
    size : int
        The number of coordinates of a partial.
    workers : sequence of str
        The addresses of the workers.
    residency : Residency, optional
        Receives the futures of the data that stays on the workers.
    rows, prepared : mapping of int to str
        The keys of the rows and of the prepared blocks that stay on the workers, by partition.
    progress : callable, optional
        As for `dpca_tasks.sums.exact_sum.exact_sum`.
    """
    near = all(is_loopback(get_address_host(worker)) for worker in workers)
    totals, most = folds, SMALL_TOTALS
    while len(totals) > 1 and 8 * size * len(totals) > most:
        totals, most = graph.add_merges(totals), NEAR_TOTALS if near else SMALL_TOTALS
    watched, prepared = folds if progress is not None else [], prepared or {}
    futures = graph.submit(client, {*totals, *watched, *rows.values(), *prepared.values()})
    if residency is not None:
        residency.rows |= {at: futures.pop(key) for at, key in rows.items()}
        residency.prepared |= {at: futures.pop(key) for at, key in prepared.items()}
    if progress is not None:
        _report(progress, [futures[key] for key in watched], release=totals is not folds)
    try:
        partials = gather(client, [futures[key] for key in totals], home_of=graph.home_of, direct=near)
    except BaseException:
        if residency is not None:
            residency.clear()
        raise
    finally:
        for future in futures.values():
            future.release()
    return merge(partials)


class Graph:
    """The tasks of one sum by key, and the worker (home) where each task should run."""

    def __init__(self, homes: Sequence[str]) -> None:
        self.homes = homes
        self._run = uuid.uuid4().hex
        self._tasks: dict[str, Any] = {}
        self._partition_of: dict[str, int] = {}

    @property
    def home_of(self) -> dict[str, str]:
        """The worker where each task should run, by key."""
        return {key: self.homes[at] for key, at in self._partition_of.items()}

    def add(self, name: str, at: int, *task: Any) -> str:
        """Add a task (a function and its arguments) for the worker of partition ``at``, and return the task's key."""
        key = f"{name}-{self._run}-{at}"
        self._tasks[key] = task
        self._partition_of[key] = at
        return key

    def add_merges(self, keys: Sequence[str]) -> list[str]:
        """Add tasks that merge neighbouring partial sums, each on the worker of the first, and return their keys."""
        depth = len(self._tasks)
        groups = [keys[start : start + FAN_IN] for start in range(0, len(keys), FAN_IN)]
        return [self.add(f"merge-{depth}", self._partition_of[group[0]], merge, [*group]) for group in groups]

    def ship(self, name: str, value: Any) -> list[Any]:
        """Return, for each partition, the pickled value if it is small, or else the key of a copy on the worker."""
        packed = Packed.of(value)
        if sys.getsizeof(packed) <= SMALL_INPUT:
            return [packed] * len(self.homes)
        copies = {home: self.add(name, at, _itself, packed) for at, home in reversed([*enumerate(self.homes)])}
        return [copies[home] for home in self.homes]

    def submit(self, client: Client, keys: Iterable[str]) -> dict[str, "Future[Any]"]:
        """Send all tasks to the scheduler at once, and return the futures of the given keys."""
        wanted = [*keys]
        home_of = self.home_of  # Dask keeps this mapping, so it must not reference rows
        with annotate(workers=home_of.__getitem__, allow_other_workers=True, retries=RETRIES):
            return dict(zip(wanted, client.get(self._tasks, wanted, sync=False), strict=True))


def _itself(packed: Packed) -> Packed:
    return packed


def grid_packed(source: Packed, query: Packed, first: int, last: int) -> Gridded:
    """Read blocks and convert them to the grid, in a task."""
    return grid(source.open(), query.open(), first, last)


def _fold(source: Packed, query: Packed, first: int, last: int) -> Partial:
    with one_thread():
        return fold(source.open(), query.open(), first, last)


def _fold_gridded(rows: Gridded, query: Packed) -> Partial:
    with one_thread():
        return fold_gridded(rows, query.open())


def _report(progress: Callable[[int, int], None], futures: Sequence["Future[Partial]"], *, release: bool) -> None:
    done = itertools.count(1)

    def report(future: "Future[Partial]") -> None:
        if future.status != "finished":  # the task was abandoned, and may be submitted again
            return
        if release:  # the client does not need this result; merges on the cluster do
            future.release()
        progress(next(done), len(futures))

    for future in futures:
        future.add_done_callback(report)


def gather[T](
    client: Client, futures: Sequence["Future[T]"], *, home_of: Mapping[str, str], direct: bool = False
) -> list[T]:
    """Wait for results as long as the cluster has workers for them.

    Parameters
    ----------
    client : distributed.Client
    futures : sequence of Future
    home_of : mapping of str to str
        The home of each task behind the futures, by key.
    direct : bool
        Whether workers send results to the client without the scheduler.

    Raises
    ------
    Stranded
        When a home is gone, and no worker is assigned any of the tasks.
    WorkerFailed
        When a task failed, lost too many workers, or no worker takes work for `PATIENCE` seconds.
    """
    loop: Any = client.loop
    results: concurrent.futures.Future[list[T]] = asyncio.run_coroutine_threadsafe(
        client.gather(list(futures), direct=direct or None, asynchronous=True), loop.asyncio_loop
    )
    alone_since: float | None = None
    was_stranded = False
    try:
        while True:
            try:
                return results.result(timeout=HEARTBEAT)
            except TimeoutError:
                if results.done():
                    raise
            workers = _known_workers(client)
            if _take_work(workers):
                alone_since = None
            else:
                alone_since = alone_since or time.monotonic()
                _give_up_after(alone_since)
            is_stranded = not workers.keys() >= {*home_of.values()} and _running(workers) and _rests(client, home_of)
            if is_stranded and was_stranded:  # seen twice, because a finished task may be reported late
                raise Stranded(
                    "workers of the cluster were lost repeatedly, perhaps for lack of memory; start other "
                    "workers or give them more memory, and run the same request again."
                )
            was_stranded = bool(is_stranded)
    except Stranded:  # the wait ends when the futures are released
        raise
    except KilledWorker:  # hide its message, which contains keys and addresses
        raise WorkerFailed(
            "each worker that summed the same rows was lost, perhaps for lack of memory; give workers more memory, or "
            "ingest again with a smaller --block-nnz, and run the same request again."
        ) from None
    except BaseException:
        results.cancel()
        raise


def await_workers(client: Client) -> dict[str, int]:
    """Wait until a worker accepts tasks; return the memory limits of all such workers, by address."""
    start = time.monotonic()
    while True:
        memory = {at: info["memory_limit"] or 0 for at, info in _running(_known_workers(client)).items()}
        if memory:
            return dict(sorted(memory.items()))
        _give_up_after(start)
        time.sleep(0.1)


def _take_work(workers: Mapping[str, Any]) -> bool:
    """Return whether any worker accepts tasks, or still executes tasks while it is paused for lack of memory."""
    return bool(_running(workers)) or any(worker["metrics"].get("executing") for worker in workers.values())


def _running(workers: Mapping[str, Any]) -> dict[str, Any]:
    return {at: worker for at, worker in workers.items() if worker["status"] == "running"}


def _rests(client: Client, tasks: Container[str]) -> bool:
    """Return whether none of the tasks is assigned to a worker."""
    given: dict[str, Sequence[str]] = client.processing()
    return not any(key in tasks for keys in given.values() for key in keys)


def _known_workers(client: Client) -> dict[str, Any]:
    """Return the workers that are registered with the scheduler."""
    # Tasks are lost with the connection; a client that fails to reconnect never gets the status "closed".
    if client.status != "running":
        raise WorkerFailed("the cluster's scheduler is lost; start it again, and run the same request again.")
    workers: dict[str, Any] = client.scheduler_info(n_workers=-1).get("workers", {})
    return workers


def _give_up_after(start: float) -> None:
    if time.monotonic() - start > PATIENCE:
        raise WorkerFailed(
            f"the cluster has had no worker that accepts tasks for {PATIENCE:.0f} seconds; start workers, and "
            "run the same request again: it resumes after the last stored step."
        )


def sum_tile_on_cluster(
    source: BlockSource, query: TiledSum, tile: Tile, *, of: bytes, client: Client, residency: Residency
) -> Partial:
    """Sum a tile over every partition on the cluster, and merge the sums; see `dpca_tasks.sums.exact_sum.tile_sum`.

    Raises
    ------
    IncompleteSum
    WorkerFailed
        When a block cannot be summed, or no worker takes work for `PATIENCE` seconds.
    """
    return resubmitted(lambda: _sum_tile(source, query, tile, of=of, client=client, residency=residency))


def _sum_tile(
    source: BlockSource, query: TiledSum, tile: Tile, *, of: bytes, client: Client, residency: Residency
) -> Partial:
    memory = await_workers(client)
    keeps_rows = residency.settle(source, query, memory)
    keeps_prepared = residency.settle_prepared(source, query, memory, of=of)
    graph = Graph(residency.homes)
    bounds = list(itertools.pairwise(cut(source.extents, len(graph.homes))))
    missing = [at for at in range(len(bounds)) if at not in residency.prepared]
    sources: list[Any] = []
    queries: list[Any] = []
    if missing:  # the query is large, because it contains all factors, so it is sent only once per step
        sources, queries = graph.ship("source", source), graph.ship("query", query)
    rows: dict[int, str] = {}
    prepared: dict[int, Any] = dict(residency.prepared)
    for at in missing:
        if keeps_rows:
            if at not in residency.rows:
                rows[at] = graph.add("rows", at, grid_packed, sources[at], queries[at], *bounds[at])
            held = residency.rows.get(at, rows.get(at))
            prepared[at] = graph.add("prepared", at, _prepare_gridded, held, queries[at])
        else:
            prepared[at] = graph.add("prepared", at, _prepare, sources[at], queries[at], *bounds[at])
    folds = [graph.add("fold", at, _fold_tile, prepared[at], tile) for at in range(len(bounds))]
    made = {at: prepared[at] for at in missing} if keeps_prepared else {}
    return collect(
        client, graph, folds, size=tile.size, workers=[*memory], residency=residency, rows=rows, prepared=made
    )


def _prepare(source: Packed, query: Packed, first: int, last: int) -> PreparedBlocks:
    with one_thread():
        return prepare(source.open(), query.open(), first, last)


def _prepare_gridded(rows: Gridded, query: Packed) -> PreparedBlocks:
    with one_thread():
        return prepare_gridded(rows, query.open())


def _fold_tile(prepared: PreparedBlocks, tile: Tile) -> Partial:
    with one_thread():
        return fold_tile(prepared, tile)
