"""``python -m benchmarks.projection``: test a cost model of distributed sums, and project costs to a cluster.

A round is one distributed sum over all rows. The model predicts the time of a round from constants of the machine. No
constant is measured in a round that it predicts:

- The cost of a row is measured without a cluster, by one process and by two concurrent processes on one machine.
- The costs of tasks, partial sums and messages are measured in rounds over no rows.

The tables are written into ``docs/scaling.md``, under a line that states the machine and the versions of the packages.
"""

import itertools
import os
import pickle
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from distributed import Client

from benchmarks.gauges import seconds_of
from benchmarks.homes import ingested_rows, own_ledger
from benchmarks.inputs import DENSE, Input, spine_inputs
from benchmarks.projected_costs import KINDS, WIDTH, WORKERS, Costs
from benchmarks.projection_tables import PAGE, tables
from benchmarks.ratios import ran_on
from benchmarks.scaling_model import Machine, RowCost
from benchmarks.table import heading, rewritten
from dpca_tasks.mechanisms.base import Problem
from dpca_tasks.mechanisms.eigenpairs import leading_eigenpairs
from dpca_tasks.mechanisms.noisy_products import product_query, start_directions
from dpca_tasks.noise.distributions import Symmetric
from dpca_tasks.noise.keystream import subkey
from dpca_tasks.queries.base import RowSum
from dpca_tasks.queries.second_moment import SecondMoment
from dpca_tasks.records.blocks import ArrayBlocks, BlockSource
from dpca_tasks.sums import partial_sums
from dpca_tasks.sums.exact_sum import exact_sum
from dpca_tasks.sums.partial_sums import PARTITIONS_PER_WORKER, Residency, cut, fold_gridded, grid
from dpca_tasks.threads import one_thread
from flows.clusters.connecting import connect, open_cluster
from flows.settings import Settings

BITS, COMPONENTS = 12, 10  # a release at epsilon 1 uses a grid of 12 bits
ROUNDS, EMPTY_ROUNDS, TIMES_MORE_TASKS = 5, 21, 20
MOVED = 16 << 20  # bytes of the array whose transfer to the client is timed, about a second moment of 2,000 columns
WITHIN = 1.3
PATIENCE = 300.0  # seconds that a measuring process waits at the barrier for the other processes

_barrier: Any = None  # the barrier of concurrent measuring processes; only an initializer can pass it to a process


def machine_of(folder: Path) -> Machine:
    """Measure the constants of the cost model that do not depend on rows, on two local workers."""
    empty = partial(ArrayBlocks, np.empty((0, 1)))
    few = _moment(1)
    whole = np.ones(MOVED // 8, np.int64)
    with _cluster(2, folder) as client:
        exact_sum(empty(), few, client=client)
        one, many = [], []
        for _ in range(EMPTY_ROUNDS):
            one.append(seconds_of(lambda: exact_sum(empty(), few, client=client)))
            with patch.object(partial_sums, "PARTITIONS_PER_WORKER", TIMES_MORE_TASKS * PARTITIONS_PER_WORKER):
                many.append(seconds_of(lambda: exact_sum(empty(), few, client=client)))
        tasks = 2 * PARTITIONS_PER_WORKER
        task = (statistics.median(many) - statistics.median(one)) / (tasks * (TIMES_MORE_TASKS - 1))
        moves = []
        for _ in range(1 + ROUNDS):
            both = [client.submit(np.ones, MOVED // 8, np.int64, workers=[at], pure=False) for at in client.nthreads()]
            client.gather([client.submit(len, total) for total in both])
            moves.append(seconds_of(partial(client.gather, both, direct=True)))
    held = []  # keep every allocated array alive, so that each new array gets fresh memory

    def touch() -> None:
        held.append(np.zeros(MOVED // 8, np.int64))
        held[-1].fill(0)

    return Machine(
        start=statistics.median(one) - tasks * task,
        task=task,
        touch=_median(touch) / MOVED,
        add=_median(lambda: np.add(whole, whole, out=whole)) / MOVED,
        move=statistics.median(moves[1:]) / (2 * MOVED),
    )


def measured(declared: Input, folder: Path) -> Costs:
    """Ingest an input, and measure the time of each step per row and of whole rounds on local workers."""
    with own_ledger(folder / "home") as ledger:
        stored = ingested_rows(declared.rows(toy=False), declared, ledger, folder)
        size = sum(file.stat().st_size for file in (folder / "home/datasets").rglob("*") if file.is_file())
        problem = Problem(n_features=declared.n_features, clip_norm=declared.clip_norm)
        queries: dict[str, RowSum] = {
            "moment": _moment(declared.n_features, declared.clip_norm),
            "product": product_query(problem, bits=BITS, directions=start_directions(problem.n_features, WIDTH)),
        }
        return Costs(
            name=declared.name,
            n_rows=stored.n_records,
            n_features=declared.n_features,
            extents=tuple(stored.extents.sum(axis=0).tolist()),
            stored=size / stored.n_records,
            rows={busy: _row_cost(stored, queries, busy) for busy in WORKERS},
            measured={case: taken for workers in WORKERS for case, taken in _rounds(stored, queries, workers, folder)},
            **_once(declared.n_features),
        )


def _moment(n_features: int, clip_norm: float = 1.0) -> SecondMoment:
    return SecondMoment(n_features=n_features, clip_norm=clip_norm, relation="add_remove", bits=BITS)


def _once(n_features: int) -> dict[str, float]:
    key = subkey(bytes(32), label="benchmark", info=b"projection")
    matrix = np.random.default_rng(1).standard_normal((n_features, n_features))
    matrix += matrix.T
    draw = partial(Symmetric(noise_multiplier=1.0).draw, key, n_features, scale_in_steps=2.0**20)
    return {"noise": _median(draw), "eigenpairs": _median(lambda: leading_eigenpairs(matrix, COMPONENTS))}


def _row_cost(stored: BlockSource, queries: Mapping[str, RowSum], busy: int) -> RowCost:
    """Measure the cost of a row while `busy` processes work concurrently, each on a part of the blocks.

    The result is the mean over the processes.
    """
    spawn, sharing = get_context("spawn"), min(busy, stored.n_blocks)
    work = pickle.dumps((stored, dict(queries)))
    with ProcessPoolExecutor(
        sharing, mp_context=spawn, initializer=_wait_at, initargs=(spawn.Barrier(sharing),)
    ) as processes:
        bounds = itertools.pairwise(cut(stored.extents, sharing))
        shares = list(processes.map(_take_share, *zip(*((work, first, last) for first, last in bounds), strict=True)))
    return RowCost(**{step: statistics.mean(share[step] for share in shares) for step in shares[0]})


def _wait_at(barrier: Any) -> None:
    """Set the barrier at which the concurrent measuring processes wait for each other before every pass."""
    global _barrier
    _barrier = barrier


def _take_share(work: bytes, first: int, last: int) -> dict[str, float]:
    stored, queries = pickle.loads(work)
    n_rows = int(stored.extents[first:last, 0].sum())
    with one_thread():
        kept = grid(stored, queries["product"], first, last)
        passes: dict[str, Callable[[], tuple[float, ...]]] = {
            kind: partial(_pass, stored, query, first, last) for kind, query in queries.items()
        }
        passes["kept"] = lambda: (0.0, 0.0, seconds_of(lambda: fold_gridded(kept, queries["product"])))
        taken: dict[str, tuple[float, ...]] = {}
        for kind, one_pass in passes.items():
            times = []
            for _ in range(1 + ROUNDS):
                _barrier.wait(PATIENCE)
                times.append(one_pass())
            taken[kind] = tuple(statistics.median(each) / n_rows for each in zip(*times[1:], strict=True))
    read, gridding, moment = taken["moment"]
    return {"read": read, "grid": gridding, "moment": moment, "product": taken["product"][2], "kept": taken["kept"][2]}


def _pass(stored: BlockSource, query: RowSum, first: int, last: int) -> tuple[float, ...]:
    """Make one pass over blocks, and return the seconds spent on reading, on gridding and on adding."""
    total, taken = np.zeros(query.layout.size, np.int64), np.zeros(3)
    for block in range(first, last):
        ends = [time.perf_counter()]
        rows = stored.read(block)
        ends.append(time.perf_counter())
        gridded = query.grid(rows)
        ends.append(time.perf_counter())
        query.add(gridded, total)
        ends.append(time.perf_counter())
        taken += np.diff(ends)
    return tuple(taken.tolist())


def _rounds(
    stored: BlockSource, queries: Mapping[str, RowSum], workers: int, folder: Path
) -> Iterable[tuple[tuple[str, int], float]]:
    """Yield each kind of round with its median seconds, on fresh workers that have made one such round before."""
    with _cluster(workers, folder) as client:
        resident = Residency()
        works = {kind: partial(exact_sum, stored, query, client=client) for kind, query in queries.items()}
        works["kept"] = partial(exact_sum, stored, queries["product"], client=client, residency=resident)
        for kind, work in works.items():
            work()
            yield (kind, workers), _median(work)
        resident.clear()


@contextmanager
def _cluster(workers: int, folder: Path) -> Iterator[Client]:
    local = Settings(cluster="local", workers=workers)
    with open_cluster(local, scratch=folder / "scratch") as address, connect(address) as client:
        assert client is not None
        client.wait_for_workers(workers)
        yield client


def _median(work: Callable[[], Any]) -> float:
    return statistics.median(seconds_of(work) for _ in range(ROUNDS))


def main() -> int:
    """Measure every input, and rewrite the tables in ``docs/scaling.md``.

    Return 1 if a predicted time differs from the measured time by more than the factor `WITHIN`.
    """
    under = heading("projection", ran_on(os.getloadavg()[0]))
    with tempfile.TemporaryDirectory() as folder:
        machine = machine_of(Path(folder))
    print(under, machine, sep="\n", flush=True)
    costs = []
    for declared in (*spine_inputs(), DENSE):
        with tempfile.TemporaryDirectory() as folder:
            costs.append(measured(declared, Path(folder)))
        shown = (f"{kind} {workers} {ratio:.2f}" for (kind, workers), ratio in costs[-1].off(machine).items())
        print(f"{costs[-1].name}: predicted over measured: {', '.join(shown)}", flush=True)
    results = tables(machine, costs, under=under)
    PAGE.write_text(rewritten(PAGE.read_text(encoding="utf-8"), results), encoding="utf-8")
    worst = max(max(ratio, 1 / ratio) for one in costs for ratio in one.off(machine).values())
    cases, verdict = len(KINDS) * len(WORKERS) * len(costs), "holds" if worst <= WITHIN else "falls short"
    print(f"cases={cases} worst={worst:.2f} {WITHIN} {verdict}")
    return int(worst > WITHIN)


if __name__ == "__main__":
    raise SystemExit(main())
