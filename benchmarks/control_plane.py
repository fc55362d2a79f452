"""``python -m benchmarks.control_plane [WORKERS ...]``: what the scheduler of a round takes at up to 1,000 workers.

The scheduler, the messages and the graph of a round are the real ones; sums sleep. One machine runs everything, so no
time by the clock says anything: simulation is not a cluster. From 100 workers on, one in a hundred is lost during a
round, and the sum must have the same bits. The table goes into ``docs/scaling.md``.
"""

import math
import statistics
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

from benchmarks.gauges import peak_bytes
from benchmarks.simulated_cluster import NumberSum, Simulated, SleepingBlocks, simulated_cluster
from benchmarks.table import rewritten
from dpca_tasks.sums import cluster_sum
from dpca_tasks.sums.cluster_sum import FAN_IN, Graph
from dpca_tasks.sums.exact_sum import exact_sum
from dpca_tasks.sums.partitions import PARTITIONS_PER_WORKER

PAGE = Path(__file__).parent.parent / "docs/scaling.md"
WORKERS = (2, 10, 30, 100, 300, 1_000)
BLOCKS = 100_000
FEWER_BLOCKS = 1_000
SIZE = 64  # coordinates of a total, so small that a thousand of them fit one machine
SLEEP = 0.2  # seconds of a partition's sum
ROUNDS, IDLE = 3, 3.0  # seconds in which the scheduler only hears heartbeats, which are taken off
LOST_FROM, LOST = 100, 0.01
TASKS = 4 / 3  # a partition, at most: itself, a fourth of a merge, a sixteenth ...
MESSAGES, BYTES = 12, 6_000  # a task at most, at any number of workers: half more than was measured


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """What one round took: its tasks and the depth of its tree, and the scheduler's part in it."""

    tasks: int
    depth: int
    seconds: float
    messages: int
    sent_and_received: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Rounds at one number of workers, in the median, and the most that scheduler and client held."""

    workers: int
    blocks: int
    partitions: int
    round: Round
    of_few_blocks: Round
    scheduler: int
    client: int
    lost: int
    equal: bool


def measured(workers: int) -> Row:
    """Run rounds on simulated workers, of many blocks and of few, then one in which workers are lost."""
    lost = math.ceil(LOST * workers) if workers >= LOST_FROM else 0
    query, partitions = NumberSum(size=SIZE), PARTITIONS_PER_WORKER * workers
    source, few = (SleepingBlocks(n_blocks=n, sleep=SLEEP * partitions / n) for n in (BLOCKS, FEWER_BLOCKS))
    with simulated_cluster(workers, to_lose=lost) as cluster:
        assert np.array_equal(_sum(cluster, few, query), query.expected(FEWER_BLOCKS)), "the first round is wrong"
        started = time.monotonic()
        rounds = [_round(cluster, source, query) for _ in range(ROUNDS)]
        taken = (time.monotonic() - started) / ROUNDS
        of_few = [_round(cluster, few, query) for _ in range(ROUNDS)]
        equal = True
        if lost:
            killer = threading.Timer(0.4 * taken, cluster.lose)
            killer.start()
            equal = bool(np.array_equal(_sum(cluster, source, query), query.expected(BLOCKS)))
            killer.join()
            left = len(cluster.client.scheduler_info(n_workers=-1)["workers"])
            assert left == workers - lost, f"{workers - left} workers were lost, not {lost}"
        peak = cluster.read().peak
    return Row(
        workers=workers,
        blocks=BLOCKS,
        partitions=partitions,
        round=_median(rounds),
        of_few_blocks=_median(of_few),
        scheduler=peak,
        client=peak_bytes(),
        lost=lost,
        equal=equal,
    )


def _sum(cluster: Simulated, source: SleepingBlocks, query: Any) -> Any:
    """Sum with every merge on the workers, as it is for totals of megabytes."""
    with patch.multiple(cluster_sum, SMALL_TOTALS=0, NEAR_TOTALS=0):
        return exact_sum(source, query, client=cluster.client)


def _round(cluster: Simulated, source: SleepingBlocks, query: NumberSum) -> Round:
    resting = cluster.read()
    time.sleep(IDLE)
    before = cluster.read()
    with _submitted() as graphs:
        total = _sum(cluster, source, query)
    after = cluster.read()
    idle = (before.seconds - resting.seconds) / (before.clock - resting.clock)
    assert np.array_equal(total, query.expected(source.n_blocks)), "a round is wrong"
    (keys,) = graphs
    return Round(
        tasks=len(keys),
        depth=len({key.rsplit("-", 2)[0] for key in keys if key.startswith("merge-")}),
        seconds=after.seconds - before.seconds - idle * (after.clock - before.clock),
        messages=after.messages - before.messages,
        sent_and_received=after.sent_and_received - before.sent_and_received,
    )


@contextmanager
def _submitted() -> Iterator[list[list[str]]]:
    """Collect the keys of every graph that is submitted."""
    graphs: list[list[str]] = []
    submit = Graph.submit

    def collected(graph: Graph, *given: Any) -> Any:
        graphs.append([*graph.home_of])
        return submit(graph, *given)

    with patch.object(Graph, "submit", collected):
        yield graphs


def _median(rounds: Sequence[Round]) -> Round:
    (tasks,), (depth,) = {each.tasks for each in rounds}, {each.depth for each in rounds}
    return Round(
        tasks=tasks,
        depth=depth,
        seconds=statistics.median(each.seconds for each in rounds),
        messages=round(statistics.median(each.messages for each in rounds)),
        sent_and_received=round(statistics.median(each.sent_and_received for each in rounds)),
    )


def check(rows: Sequence[Row]) -> None:
    """Check that a round grows at most linearly with its partitions, is as deep as a logarithm, and is exact."""
    for row in rows:
        levels = math.ceil(math.log(row.partitions, FAN_IN) - 1e-9)
        assert row.round.depth <= levels, f"{row.round.depth} levels of merges for {row.partitions} partitions"
        assert row.round.tasks <= TASKS * row.partitions + levels, f"{row.round.tasks} tasks at {row.workers} workers"
        assert row.of_few_blocks.tasks == row.round.tasks, "tasks grow with blocks"
        assert row.round.messages <= MESSAGES * row.round.tasks, f"{row.round.messages} messages"
        assert row.round.sent_and_received <= BYTES * row.round.tasks, f"{row.round.sent_and_received} bytes"
        assert row.equal, f"the sum after a loss at {row.workers} workers has other bits"


def table(rows: Sequence[Row]) -> str:
    """Return what was measured, as Markdown."""
    lines = [
        "| workers | partitions | tasks | merges deep | scheduler, us a task | of 1,000 blocks | messages a task | "
        "bytes a task | scheduler, MB | client, MB | lost, same bits |",
        "|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|---|",
    ]
    for row in rows:
        each, few = row.round, row.of_few_blocks
        lines.append(
            f"| {row.workers:,} | {row.partitions:,} | {each.tasks:,} | {each.depth} | "
            f"{1e6 * each.seconds / each.tasks:,.0f} | {1e6 * few.seconds / few.tasks:,.0f} | "
            f"{each.messages / each.tasks:.1f} | {each.sent_and_received / each.tasks:,.0f} | "
            f"{row.scheduler / 2**20:,.0f} | {row.client / 2**20:,.0f} | "
            f"{f'{row.lost}, {"yes" if row.equal else "no"}' if row.lost else 'none'} |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measure, print a line a number of workers and one of the last, and rewrite the page after a full run."""
    asked = tuple(map(int, sys.argv[1:])) or WORKERS
    rows = []
    for workers in asked:
        rows.append(measured(workers))
        print(table(rows[-1:]).splitlines()[-1], flush=True)
    check(rows)
    if asked == WORKERS:
        PAGE.write_text(
            rewritten(PAGE.read_text(encoding="utf-8"), table(rows), name="control plane"), encoding="utf-8"
        )
    last = rows[-1]
    print(
        f"workers={last.workers} blocks={last.blocks} us_per_task={1e6 * last.round.seconds / last.round.tasks:.0f} "
        f"bytes_per_task={last.round.sent_and_received / last.round.tasks:.0f} lost={last.lost} "
        f"equal={'yes' if last.equal else 'no'}"
    )


if __name__ == "__main__":
    main()
