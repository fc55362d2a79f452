"""``python -m benchmarks.control_plane [WORKERS ...]``: load of the Dask scheduler with up to 1,000 workers.

The benchmark computes distributed sums (rounds) on simulated workers. The scheduler, the messages and the task graph
are real; the workers sleep instead of adding rows. Everything runs on one machine, so wall times have no meaning.

With 100 workers or more, one worker in a hundred is killed during a sum. Some tasks of the sum must then be assigned
again, and the sum must have the same bits. The results are written into a table of ``docs/scaling.md``.
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
from dpca_tasks.sums.partial_sums import PARTITIONS_PER_WORKER

PAGE = Path(__file__).parent.parent / "docs/scaling.md"
WORKERS = (2, 10, 30, 100, 300, 1_000)
BLOCKS = 100_000
FEWER_BLOCKS = 1_000
SIZE = 64  # length of each partial sum, so small that a thousand partial sums fit in the memory of one machine
SLEEP = 0.2  # seconds that a simulated worker sleeps per partition instead of adding rows
ROUNDS, IDLE = 3, 3.0  # rounds; seconds without tasks, to measure the load of heartbeats, which is subtracted
LOST_FROM, LOST = 100, 0.01
LOSE_AFTER = 0.4  # workers are killed after this fraction of the wall time of the previous sum
TASKS = 4 / 3  # limit on tasks per partition: 1 + 1/4 + 1/16 + ..., because four partial sums merge in one task
MESSAGES, BYTES = 12, 6_000  # limits on the scheduler's messages and bytes per task: 1.5 times the measured values

SECONDS = 5e-3
"""The limit of the scheduler's processor time per task, at any number of workers: five times the largest measured
value."""

BASE_WORKERS, LEAST_BASE_WORKERS = 100, 10
"""The number of workers whose time per task is the base of the growth. If it was not run, the base is the smallest
number of workers that is at least the second constant: with fewer workers, few tasks share the fixed costs of a
round."""

TIME_GROWTH = 1.5
"""The limit of the scheduler's time per task with the most workers, relative to the base; 1.15 was measured."""

BASE_MB = 240
"""The limit on each of scheduler and client before any task, in MB of 2^20 bytes: one and a half times the measured
value."""

SCHEDULER_MB, CLIENT_MB = 50, 10
"""The limits of growth of scheduler and client per thousand tasks, in MB; 34 and 4 were measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """The cost of one distributed sum: its tasks, the depth of its merge tree, wall time, and scheduler load.

    The scheduler load consists of processor seconds, messages and bytes.
    """

    tasks: int
    depth: int
    taken: float
    seconds: float
    messages: int
    sent_and_received: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """A distributed sum during which workers were killed.

    ``killed`` is the number of workers to kill, and ``gone`` the number of workers missing at the end of the sum.
    ``at`` is the time of the kill as a fraction of the sum's duration; a value above 1 means that the sum had already
    ended. ``again`` counts the tasks that were assigned to a worker more than once. ``equal`` states whether the sum
    had the expected bits.
    """

    killed: int
    gone: int
    at: float
    again: int
    equal: bool


NO_LOSS = Loss(killed=0, gone=0, at=0.0, again=0, equal=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """The results at one number of workers: median costs of sums, and the peak memory of scheduler and client."""

    workers: int
    blocks: int
    partitions: int
    round: Round
    of_few_blocks: Round
    scheduler: int
    client: int
    loss: Loss


def measured(workers: int) -> Row:
    """Compute sums over many blocks and over few blocks on simulated workers, then one sum with killed workers."""
    lost = math.ceil(LOST * workers) if workers >= LOST_FROM else 0
    query, partitions = NumberSum(size=SIZE), PARTITIONS_PER_WORKER * workers
    source, few = (SleepingBlocks(n_blocks=n, sleep=SLEEP * partitions / n) for n in (BLOCKS, FEWER_BLOCKS))
    with simulated_cluster(workers, to_lose=lost) as cluster:
        assert np.array_equal(_sum(cluster, few, query), query.expected(FEWER_BLOCKS)), "the first round is wrong"
        calm = _median([_round(cluster, source, query) for _ in range(ROUNDS)])
        of_few = _median([_round(cluster, few, query) for _ in range(ROUNDS)])
        loss = _loss(cluster, source, query, calm=calm, killed=lost, workers=workers) if lost else NO_LOSS
        peak = cluster.read().peak
    return Row(
        workers=workers,
        blocks=BLOCKS,
        partitions=partitions,
        round=calm,
        of_few_blocks=of_few,
        scheduler=peak,
        client=peak_bytes(),
        loss=loss,
    )


def _loss(
    cluster: Simulated, source: SleepingBlocks, query: NumberSum, *, calm: Round, killed: int, workers: int
) -> Loss:
    losses: list[float] = []

    def lose() -> None:
        cluster.lose()
        losses.append(time.monotonic())

    before = cluster.read()
    killer = threading.Timer(LOSE_AFTER * calm.taken, lose)
    started = time.monotonic()
    killer.start()
    total = _sum(cluster, source, query)
    ended = time.monotonic()
    killer.join()
    (lost,) = losses
    return Loss(
        killed=killed,
        gone=workers - len(cluster.client.scheduler_info(n_workers=-1)["workers"]),
        at=(lost - started) / (ended - started),
        again=cluster.read().assigned - before.assigned - calm.tasks,
        equal=bool(np.array_equal(total, query.expected(source.n_blocks))),
    )


def _sum(cluster: Simulated, source: SleepingBlocks, query: Any) -> Any:
    """Compute a sum with all merges on the workers, which otherwise happens only for partial sums of megabytes."""
    with patch.multiple(cluster_sum, SMALL_TOTALS=0, NEAR_TOTALS=0):
        return exact_sum(source, query, client=cluster.client)


def _round(cluster: Simulated, source: SleepingBlocks, query: NumberSum) -> Round:
    resting = cluster.read()
    time.sleep(IDLE)
    before = cluster.read()
    with _submitted() as graphs:
        started = time.monotonic()
        total = _sum(cluster, source, query)
        taken = time.monotonic() - started
    after = cluster.read()
    idle = (before.seconds - resting.seconds) / (before.clock - resting.clock)
    assert np.array_equal(total, query.expected(source.n_blocks)), "a round is wrong"
    (keys,) = graphs
    return Round(
        tasks=len(keys),
        depth=len({key.rsplit("-", 2)[0] for key in keys if key.startswith("merge-")}),
        taken=taken,
        seconds=after.seconds - before.seconds - idle * (after.clock - before.clock),
        messages=after.messages - before.messages,
        sent_and_received=after.sent_and_received - before.sent_and_received,
    )


@contextmanager
def _submitted() -> Iterator[list[list[str]]]:
    """Collect the task keys of every Dask graph that is submitted while the context is open."""
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
        taken=statistics.median(each.taken for each in rounds),
        seconds=statistics.median(each.seconds for each in rounds),
        messages=round(statistics.median(each.messages for each in rounds)),
        sent_and_received=round(statistics.median(each.sent_and_received for each in rounds)),
    )


def check(rows: Sequence[Row]) -> None:
    """Check that tasks, traffic and memory grow at most linearly with partitions, and that sums survive kills."""
    for row in rows:
        _check_round(row)
        _check_memory(row)
        _check_loss(row)
    _check_growth(rows)


def _check_round(row: Row) -> None:
    levels = math.ceil(math.log(row.partitions, FAN_IN) - 1e-9)
    assert row.round.depth <= levels, f"{row.round.depth} levels of merges for {row.partitions} partitions"
    assert row.round.tasks <= TASKS * row.partitions + levels, f"{row.round.tasks} tasks at {row.workers} workers"
    assert row.of_few_blocks.tasks == row.round.tasks, "tasks grow with blocks"
    assert row.round.messages <= MESSAGES * row.round.tasks, f"{row.round.messages} messages"
    assert row.round.sent_and_received <= BYTES * row.round.tasks, f"{row.round.sent_and_received} bytes"
    assert _seconds(row) <= SECONDS, f"{_seconds(row):.4f} s of the scheduler per task at {row.workers} workers"


def _check_memory(row: Row) -> None:
    for name, held, each in (("scheduler", row.scheduler, SCHEDULER_MB), ("client", row.client, CLIENT_MB)):
        most = BASE_MB + each * row.round.tasks / 1_000
        assert held <= most * 2**20, f"{held / 2**20:.0f} MB of the {name} at {row.workers} workers, over {most:.0f}"


def _check_loss(row: Row) -> None:
    loss, where = row.loss, f"at {row.workers} workers"
    assert loss.at < 1, f"workers were killed after the sum had ended {where}, at {loss.at:.2f} of its time"
    assert loss.again > 0 or not loss.killed, f"no task was assigned again after the loss {where}"
    assert loss.gone == loss.killed, f"{loss.gone} workers were lost {where}, not {loss.killed}"
    assert loss.equal, f"the sum after a loss {where} has other bits"


def _check_growth(rows: Sequence[Row]) -> None:
    """Check that the scheduler's time per task hardly grows from the base to the largest number of workers.

    The base is 100 workers, or else the smallest measured number of at least 10 workers. Without a base, nothing is
    checked.
    """
    seconds = {row.workers: _seconds(row) for row in rows if row.workers >= LEAST_BASE_WORKERS}
    if seconds:
        base = BASE_WORKERS if BASE_WORKERS in seconds else min(seconds)
        growth = seconds[max(seconds)] / seconds[base]
        assert growth <= TIME_GROWTH, f"a task takes the scheduler {growth:.2f} times as long as at {base} workers"


def _seconds(row: Row) -> float:
    return row.round.seconds / row.round.tasks


def table(rows: Sequence[Row]) -> str:
    """Return the measurements as a Markdown table."""
    lines = [
        "| workers | partitions | tasks | merge levels | scheduler, us per task | with 1,000 blocks | "
        "messages per task | bytes per task | scheduler, MB | client, MB | lost, same bits |",
        "|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|---|",
    ]
    for row in rows:
        each, few = row.round, row.of_few_blocks
        lines.append(
            f"| {row.workers:,} | {row.partitions:,} | {each.tasks:,} | {each.depth} | "
            f"{1e6 * each.seconds / each.tasks:,.0f} | {1e6 * few.seconds / few.tasks:,.0f} | "
            f"{each.messages / each.tasks:.1f} | {each.sent_and_received / each.tasks:,.0f} | "
            f"{row.scheduler / 2**20:,.0f} | {row.client / 2**20:,.0f} | "
            f"{f'{row.loss.killed}, {"yes" if row.loss.equal else "no"}' if row.loss.killed else 'none'} |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measure each number of workers, print one line for each, check the results, and print a summary.

    A run with the default numbers of workers also rewrites the table in ``docs/scaling.md``.
    """
    requested = tuple(map(int, sys.argv[1:])) or WORKERS
    rows = []
    for workers in requested:
        rows.append(measured(workers))
        print(table(rows[-1:]).splitlines()[-1], flush=True)
    check(rows)
    if requested == WORKERS:
        PAGE.write_text(
            rewritten(PAGE.read_text(encoding="utf-8"), table(rows), name="control plane"), encoding="utf-8"
        )
    last = rows[-1]
    print(
        f"workers={last.workers} blocks={last.blocks} us_per_task={1e6 * _seconds(last):.0f} "
        f"bytes_per_task={last.round.sent_and_received / last.round.tasks:.0f} lost={last.loss.killed} "
        f"equal={'yes' if last.loss.equal else 'no'} lost_at={last.loss.at:.2f} again={last.loss.again}"
    )


if __name__ == "__main__":
    main()
