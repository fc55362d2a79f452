"""``python -m benchmarks.projection``: measure constants, hold the model against measured rounds, and project.

No constant comes from a round that it predicts: what a row takes is measured without a cluster, by one process and by
two at once, which share one memory; what tasks, totals and messages take, by rounds over no rows. The tables go into
``docs/scaling.md``, under a line that says what machine and versions their constants belong to.
"""

import itertools
import os
import pickle
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from distributed import Client

from benchmarks.gauges import seconds_of
from benchmarks.homes import ingested_rows, own_ledger
from benchmarks.inputs import A9A_LIKE, DENSE, SYN, Input, spine_inputs
from benchmarks.ratios import ran_on
from benchmarks.scaling_model import Machine, RowCost, round_seconds
from benchmarks.table import heading, rewritten
from dpca_tasks.mechanisms.base import Problem
from dpca_tasks.mechanisms.parts.eigenpairs import leading_eigenpairs
from dpca_tasks.mechanisms.parts.noisy_products import product_query, start_directions
from dpca_tasks.noise.distributions import Symmetric
from dpca_tasks.noise.keystream import subkey
from dpca_tasks.queries.base import RowSum
from dpca_tasks.queries.second_moment import SecondMoment
from dpca_tasks.records.blocks import BlockSource
from dpca_tasks.records.sources import ArrayBlocks
from dpca_tasks.sums import partitions
from dpca_tasks.sums.exact_sum import exact_sum
from dpca_tasks.sums.partial_sums import fold_gridded, grid
from dpca_tasks.sums.partitions import PARTITIONS_PER_WORKER, cut
from dpca_tasks.sums.resident_rows import SHARE, Residency, fits
from dpca_tasks.threads import one_thread
from flows.clusters.connecting import connect, open_cluster
from flows.settings import Settings

PAGE = Path(__file__).parent.parent / "docs/scaling.md"
BITS, COMPONENTS, WIDTH, PASSES = 12, 10, 20, 24  # the grid of a release at an epsilon of 1
WORKERS = (1, 2)
KINDS = ("moment", "product", "kept")
ROUNDS, EMPTY_ROUNDS, TIMES_MORE_TASKS = 5, 21, 20
MOVED = 16 << 20  # bytes of a total whose way to the client is timed: about what 2,000 columns have
WITHIN = 1.3
PATIENCE = 300.0  # seconds that a process waits for another one

_barrier: Any = None  # of a process that shares a memory with others; it can only be inherited
ROWS, MACHINES, CORES = 1_000_000_000, 8, 16
NETWORK = 1.25e9
"""Bytes a second that a machine reads from the store, or sends to another: 10 Gbit/s."""
MEMORY = 64 << 30
"""Bytes of a machine; its workers, one a core, declare equal parts."""
DOLLARS = 0.768
"""An hour of a machine of 16 virtual cores and 64 GiB: m5.4xlarge of Amazon EC2 in us-east-1, Linux, on demand."""
SPARK_SHAPE = (94_000_000, 4_000, 17.0)  # rows, columns, stored values a row
SYN_VALUES = 20.0  # a row
CELLS_SHAPE = (982_490, 5_002)
HUGE_ROWS, HUGE_SECONDS = 1_000_000_000, 98.0
"""The a9a-like rows of the largest run of `benchmarks.huge`, and how long their release took it, by `PAGE`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """What an input takes, the seconds of its rounds as measured, and what is done once on the released matrix."""

    name: str
    n_rows: int
    n_features: int
    extents: tuple[int, int, int]
    """Records, rows and stored values, of which gridded rows take memory."""
    stored: float
    """Bytes of a row in the store."""
    rows: Mapping[int, RowCost]
    """By the number of busy cores."""
    measured: Mapping[tuple[str, int], float]
    """Seconds of a round, by its kind and the number of workers."""
    noise: float
    eigenpairs: float

    def size(self, kind: str) -> int:
        """Return the bytes of a total."""
        moment = 4 * self.n_features * (self.n_features + 1)
        return moment if kind == "moment" else 8 * self.n_features * WIDTH

    def predicted(self, machine: Machine, kind: str, workers: int) -> float:
        """Return the seconds of a round that was measured."""
        row = self.rows[workers].of(kind)
        return round_seconds(machine, rows=self.n_rows, row=row, size=self.size(kind), workers=workers)

    def off(self, machine: Machine) -> dict[tuple[str, int], float]:
        """Return predicted over measured seconds, by kind and workers."""
        return {case: self.predicted(machine, *case) / taken for case, taken in self.measured.items()}

    def projected(self, machine: Machine, kind: str) -> float:
        """Return the seconds of a round over `ROWS` rows on the stated cluster, whose stores are no faster than it."""
        row, cores = self.rows[max(self.rows)].of(kind), MACHINES * CORES
        whole = round_seconds(machine, rows=ROWS, row=row, size=self.size(kind), workers=cores, network=NETWORK)
        loading = 0.0 if kind == "kept" else ROWS * self.stored / (MACHINES * NETWORK)
        return whole + max(0.0, loading - ROWS * row / cores)

    @property
    def rows_stay(self) -> bool:
        """Whether `ROWS` gridded rows fit in the part of the stated cluster's memory that a release may keep."""
        declared = {str(worker): MEMORY // CORES for worker in range(MACHINES * CORES)}
        return fits(np.array([self.extents]) * ROWS // self.n_rows, declared)

    def passes(self, machine: Machine) -> float:
        """Return the seconds of `PASSES` products on the stated cluster, all of which read rows that are not kept."""
        later = self.projected(machine, "kept" if self.rows_stay else "product")
        return self.projected(machine, "product") + (PASSES - 1) * later

    def huge(self, machine: Machine) -> float:
        """Return the seconds of a release of `HUGE_ROWS` rows by their moment on local workers."""
        return replace(self, n_rows=HUGE_ROWS).predicted(machine, "moment", max(WORKERS)) + self.noise + self.eigenpairs


def machine_of(folder: Path) -> Machine:
    """Measure what does not depend on rows, on two local workers."""
    empty = partial(ArrayBlocks, np.empty((0, 1)))
    few = _moment(1)
    whole = np.ones(MOVED // 8, np.int64)
    with _cluster(2, folder) as client:
        exact_sum(empty(), few, client=client)
        one, many = [], []
        for _ in range(EMPTY_ROUNDS):
            one.append(seconds_of(lambda: exact_sum(empty(), few, client=client)))
            with patch.object(partitions, "PARTITIONS_PER_WORKER", TIMES_MORE_TASKS * PARTITIONS_PER_WORKER):
                many.append(seconds_of(lambda: exact_sum(empty(), few, client=client)))
        tasks = 2 * PARTITIONS_PER_WORKER
        task = (statistics.median(many) - statistics.median(one)) / (tasks * (TIMES_MORE_TASKS - 1))
        moves = []
        for _ in range(1 + ROUNDS):
            both = [client.submit(np.ones, MOVED // 8, np.int64, workers=[at], pure=False) for at in client.nthreads()]
            client.gather([client.submit(len, total) for total in both])
            moves.append(seconds_of(partial(client.gather, both, direct=True)))
    held = []  # so that each total has memory that no other had

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
    """Ingest an input, take the time of every step of a row, and of rounds on local workers."""
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
    """Have a number of processes take their share of the blocks at the same time, and return their mean."""
    spawn, sharing = get_context("spawn"), min(busy, stored.n_blocks)
    work = pickle.dumps((stored, dict(queries)))
    with ProcessPoolExecutor(
        sharing, mp_context=spawn, initializer=_wait_at, initargs=(spawn.Barrier(sharing),)
    ) as processes:
        bounds = itertools.pairwise(cut(stored.extents, sharing))
        shares = list(processes.map(_take_share, *zip(*((work, first, last) for first, last in bounds), strict=True)))
    return RowCost(**{step: statistics.mean(share[step] for share in shares) for step in shares[0]})


def _wait_at(barrier: Any) -> None:
    """Set where the processes that share a memory wait for each other before every pass."""
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
    """Return the seconds of one pass: to read, to grid, and to add."""
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
    """Return the median seconds of a round of each kind on fresh workers that are warm."""
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


def tables(machine: Machine, costs: Sequence[Costs], *, under: str) -> str:
    """Return the constants, the model beside what was measured, and the projection, as Markdown under a heading."""
    named = {one.name: one for one in costs}
    return (
        "\n\n".join(
            "\n".join(lines)
            for lines in (
                _warning(under),
                _constants(machine, costs),
                _held_against(machine, costs),
                _huge(machine, named[A9A_LIKE.name]),
                _projection(machine, costs),
                _published(named),
            )
        )
        + "\n"
    )


def _warning(under: str) -> Iterator[str]:
    yield under
    yield ""
    yield (
        "The constants belong to this machine, this load and these versions. On any other, measure them again with "
        "`python -m benchmarks.projection` before projecting from them."
    )


def _constants(machine: Machine, costs: Sequence[Costs]) -> Iterator[str]:
    touch, add, move = (f"{1e12 * each:.0f} us" for each in (machine.touch, machine.add, machine.move))
    yield (
        f"A round takes {1e3 * machine.start:.1f} ms, and {1e3 * machine.task:.2f} ms a task; a megabyte of a total "
        f"{touch} to allocate, {add} to add and {move} to bring to the client."
    )
    yield ""
    yield f"| rows | bytes | cores | read, us | grid, us | moment, us | product with {WIDTH}, us | the same, kept, us |"
    yield "|---|--:|--:|--:|--:|--:|--:|--:|"
    for one in costs:
        for busy, row in one.rows.items():
            numbers = " | ".join(
                f"{1e6 * each:.2f}" for each in (row.read, row.grid, row.moment, row.product, row.kept)
            )
            yield f"| `{one.name}`, {one.n_features} columns | {one.stored:.0f} | {busy} | {numbers} |"


def _held_against(machine: Machine, costs: Sequence[Costs]) -> Iterator[str]:
    yield "| round over | workers | " + " | ".join(f"{kind}, s | predicted over measured" for kind in KINDS) + " |"
    yield "|---|--:|" + "--:|" * 2 * len(KINDS)
    for one in costs:
        off = one.off(machine)
        for workers in WORKERS:
            cells = " | ".join(f"{one.measured[kind, workers]:.3f} | {off[kind, workers]:.2f}" for kind in KINDS)
            yield f"| `{one.name}` | {workers} | {cells} |"


def _huge(machine: Machine, one: Costs) -> Iterator[str]:
    predicted = one.huge(machine)
    yield (
        f"`make bench-huge` released {HUGE_ROWS:,} `{one.name}` rows on {max(WORKERS)} local workers in "
        f"{HUGE_SECONDS:.0f} s; predicted are {predicted:.0f} s, or {predicted / HUGE_SECONDS:.2f} of that. It was "
        "another run, perhaps of another machine, so this ratio is not judged."
    )


def _projection(machine: Machine, costs: Sequence[Costs]) -> Iterator[str]:
    workers = MACHINES * CORES
    yield (
        f"{workers} workers that declare {MEMORY // CORES >> 30} GiB each keep gridded rows between products while "
        f"these take at most {SHARE * MEMORY * MACHINES / 1e9:.0f} GB, {100 * SHARE:.0f} % of it; others are read and "
        "put on the grid each time."
    )
    yield ""
    yield (
        f"| {ROWS:,} rows | GB | release by its moment, s | core-hours | dollars | "
        f"{PASSES} products, s | core-hours | dollars | rows between products |"
    )
    yield "|---|--:|--:|--:|--:|--:|--:|--:|---|"
    for one in costs:
        formed = one.projected(machine, "moment") + one.noise + one.eigenpairs
        cells = " | ".join(_priced(seconds) for seconds in (formed, one.passes(machine)))
        between = "kept" if one.rows_stay else "read each time"
        yield f"| `{one.name}` | {ROWS * one.stored / 1e9:,.0f} | {cells} | {between} |"


def _priced(seconds: float) -> str:
    hours = seconds * MACHINES / 3_600
    return f"{seconds:,.1f} | {hours * CORES:.2f} | {hours * DOLLARS:.3f}"


def _published(costs: Mapping[str, Costs]) -> Iterator[str]:
    """Tell what our constants give for the sizes of published figures, in seconds of a core."""
    syn, dense = costs[SYN.name], costs[DENSE.name]
    rows, _, values = SPARK_SHAPE
    sparse_row, share = syn.rows[max(WORKERS)], values / SYN_VALUES
    spark = rows * (share * (sparse_row.read + sparse_row.grid) + share**2 * sparse_row.moment)
    cells, genes = CELLS_SHAPE
    full_row, wider = dense.rows[max(WORKERS)], genes / dense.n_features
    single = cells * (wider * (full_row.read + full_row.grid) + wider**2 * full_row.moment)
    yield "| published | size | figure | our constants, s of a core |"
    yield "|---|---|---|--:|"
    yield (
        "| Spark's `computeSVD`, 5 vectors ([Bosagh Zadeh et al. 2016](https://arxiv.org/abs/1509.02256), "
        "table of runtimes) | 94,000,000 x 4,000, 1.6*10^9 values | 50 s on 68 executors, 3,400 s of an executor "
        f"| {spark:,.0f} |"
    )
    yield (
        "| scanpy's PCA, 100 components, and that of rapids-singlecell ([runtimes of its authors]"
        "(https://github.com/theislab/rapids_singlecell-reproducibility/blob/main/benchmarks/speed/"
        "runtime_1Mcells.csv)) | 982,490 x 5,002, dense | 141 s on 48 threads; 18.1 s on an L40S, 1.98 s on an H200 "
        f"| {single:,.0f} |"
    )


def main() -> int:
    """Measure every input, rewrite the page, and return 1 if a prediction is off by more than `WITHIN`."""
    under = heading("projection", ran_on(os.getloadavg()[0]))
    with tempfile.TemporaryDirectory() as folder:
        machine = machine_of(Path(folder))
    print(under, machine, sep="\n", flush=True)
    costs = []
    for declared in (*spine_inputs(), DENSE):
        with tempfile.TemporaryDirectory() as folder:
            costs.append(measured(declared, Path(folder)))
        told = (f"{kind} {workers} {ratio:.2f}" for (kind, workers), ratio in costs[-1].off(machine).items())
        print(f"{costs[-1].name}: predicted over measured: {', '.join(told)}", flush=True)
    results = tables(machine, costs, under=under)
    PAGE.write_text(rewritten(PAGE.read_text(encoding="utf-8"), results), encoding="utf-8")
    worst = max(max(ratio, 1 / ratio) for one in costs for ratio in one.off(machine).values())
    cases, verdict = len(KINDS) * len(WORKERS) * len(costs), "holds" if worst <= WITHIN else "falls short"
    print(f"cases={cases} worst={worst:.2f} {WITHIN} {verdict}")
    return int(worst > WITHIN)


if __name__ == "__main__":
    raise SystemExit(main())
