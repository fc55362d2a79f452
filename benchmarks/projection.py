"""``python -m benchmarks.projection``: measure what a row costs, and project a thousand million of them.

The constants are those of one core of this machine. Before they are used, they predict a sum on two local workers,
which is measured. The tables go into ``docs/scaling.md``.
"""

import math
import statistics
import tempfile
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy import sparse

from benchmarks.gauges import seconds_of
from benchmarks.homes import ingested, own_home
from benchmarks.inputs import Input, spine_inputs
from benchmarks.table import rewritten
from dpca_tasks.mechanisms.base import Problem
from dpca_tasks.mechanisms.parts.eigenpairs import leading_eigenpairs
from dpca_tasks.mechanisms.parts.noisy_products import product_query, start_directions
from dpca_tasks.queries.base import RowSum
from dpca_tasks.queries.second_moment import SecondMoment
from dpca_tasks.sums.cluster_sum import FAN_IN
from dpca_tasks.sums.exact_sum import exact_sum
from dpca_tasks.threads import one_thread
from flows.clusters.connecting import connect, open_cluster
from flows.settings import Settings
from storage.datasets.snapshot_reader import Dataset
from storage.workspace import Workspace

PAGE = Path(__file__).parent.parent / "docs/scaling.md"
BITS, COMPONENTS, WIDTH, PASSES = 12, 10, 20, 24  # the grid of a release at an epsilon of 1
WORKERS, ROUNDS = 2, 3
ROWS, MACHINES, CORES = 1_000_000_000, 8, 16
NETWORK = 1.25e9
"""Bytes a second that a machine reads from the store, or sends to another: 10 Gbit/s."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """Seconds of one core a row, the bytes it is stored in, and seconds that are the same for any number of rows."""

    name: str
    n_features: int
    read: float
    grid: float
    moment: float
    product: float
    stored: float
    merge: float
    eigenpairs: float
    predicted_over_measured: float

    @property
    def triangle(self) -> int:
        """Bytes of a second moment."""
        return 4 * self.n_features * (self.n_features + 1)

    def job(self, work: float, *, reads: bool = True, total: float) -> float:
        """Return the seconds of a sum on the stated cluster, of ``work`` a row and totals of ``total`` bytes."""
        cores = MACHINES * CORES
        computing = ROWS * (work + (self.read + self.grid if reads else 0.0)) / cores
        loading = ROWS * self.stored / (MACHINES * NETWORK) if reads else 0.0
        levels = math.ceil(math.log(cores, FAN_IN))
        merging = levels * FAN_IN * (total / NETWORK + self.merge * total / self.triangle)
        return max(computing, loading) + merging


def measured(declared: Input, folder: Path) -> Costs:
    """Ingest an input, and take the time of every step of a row."""
    path = folder / "rows.npz"
    with own_home(folder / "home"):
        ledger = Workspace.open().ledger
    sparse.save_npz(path, declared.rows(toy=False), compressed=False)
    stored = ingested(path, declared, ledger)
    problem = Problem(n_features=declared.n_features, clip_norm=declared.clip_norm)
    moment = SecondMoment(n_features=problem.n_features, clip_norm=problem.clip_norm, relation="add_remove", bits=BITS)
    product = product_query(problem, bits=BITS, directions=start_directions(problem.n_features, WIDTH))
    with one_thread():
        rounds = [_steps(stored, moment, product) for _ in range(1 + ROUNDS)][1:]
        total = exact_sum(stored, moment)
        merge = seconds_of(lambda: np.add(total, total, out=total))
        matrix = np.random.default_rng(1).standard_normal((problem.n_features,) * 2)
        eigenpairs = seconds_of(lambda: leading_eigenpairs(matrix + matrix.T, COMPONENTS))
    read, grid, add, multiply = (statistics.median(times) / stored.n_records for times in zip(*rounds, strict=True))
    local = Settings(cluster="local", workers=WORKERS)
    with open_cluster(local, scratch=folder / "scratch") as address, connect(address) as client:
        assert client is not None
        exact_sum(stored, moment, client=client)
        taken = statistics.median(seconds_of(lambda: exact_sum(stored, moment, client=client)) for _ in range(ROUNDS))
    ledger.engine.dispose()
    size = sum(file.stat().st_size for file in (folder / "home/datasets").rglob("*") if file.is_file())
    return Costs(
        name=declared.name,
        n_features=declared.n_features,
        read=read,
        grid=grid,
        moment=add,
        product=multiply,
        stored=size / stored.n_records,
        merge=merge,
        eigenpairs=eigenpairs,
        predicted_over_measured=stored.n_records * (read + grid + add) / WORKERS / taken,
    )


def _steps(stored: Dataset, moment: RowSum, product: RowSum) -> tuple[float, ...]:
    """Return the seconds of one pass: to read, to grid, and to sum in either way."""
    totals = {query: np.zeros(query.layout.size, np.int64) for query in (moment, product)}
    taken = np.zeros(4)
    for block in range(stored.n_blocks):
        ends = [time.process_time()]
        rows = stored.read(block)
        ends.append(time.process_time())
        gridded = moment.grid(rows)
        ends.append(time.process_time())
        for query in (moment, product):
            query.add(gridded, totals[query])
            ends.append(time.process_time())
        taken += np.diff(ends)
    return tuple(taken.tolist())


def tables(costs: Iterable[Costs]) -> str:
    """Return the constants, and what they give at the stated size, as Markdown."""
    kinds = list(costs)
    constants = [
        f"| rows | bytes | read, us | grid, us | moment, us | product with {WIDTH}, us | predicted over measured |",
        "|---|--:|--:|--:|--:|--:|--:|",
        *(
            f"| `{one.name}`, {one.n_features} columns | {one.stored:.0f} | "
            + " | ".join(f"{1e6 * cost:.2f}" for cost in (one.read, one.grid, one.moment, one.product))
            + f" | {one.predicted_over_measured:.2f} |"
            for one in kinds
        ),
    ]
    projected = [
        f"| {ROWS:,} rows | GB | moment, s | its leading {COMPONENTS}, s | one product, s | {PASSES}, rows kept, s |",
        "|---|--:|--:|--:|--:|--:|",
    ]
    for one in kinds:
        wide = 8.0 * one.n_features * WIDTH
        first = one.job(one.product, total=wide)
        kept = first + (PASSES - 1) * one.job(one.product, reads=False, total=wide)
        numbers = (one.job(one.moment, total=one.triangle), one.eigenpairs, first, kept)
        projected.append(
            f"| `{one.name}` | {ROWS * one.stored / 1e9:,.0f} | " + " | ".join(f"{n:,.1f}" for n in numbers) + " |"
        )
    return "\n".join([*constants, "", *projected]) + "\n"


def main() -> None:
    """Measure every input, and rewrite the page."""
    costs = []
    for declared in spine_inputs():
        with tempfile.TemporaryDirectory() as folder:
            costs.append(measured(declared, Path(folder)))
        print(costs[-1])
    PAGE.write_text(rewritten(PAGE.read_text(encoding="utf-8"), tables(costs)), encoding="utf-8")


if __name__ == "__main__":
    main()
