"""The simulated control plane: what its check refuses, its table, and its arithmetic."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from benchmarks.control_plane import BASE_MB, NO_LOSS, PAGE, SECONDS, Loss, Round, Row, check, table
from benchmarks.simulated_cluster import NumberSum, SleepingBlocks
from dpca_tasks.sums.exact_sum import exact_sum

ROUND = Round(tasks=85, depth=3, taken=1.0, seconds=0.05, messages=300, sent_and_received=200_000)
LOSS = Loss(killed=1, gone=1, at=0.4, again=3, equal=True)
ROW = Row(
    workers=16,
    blocks=100_000,
    partitions=64,
    round=ROUND,
    of_few_blocks=ROUND,
    scheduler=3 * 2**26,
    client=2**27,
    loss=LOSS,
)


def test_sums_of_block_numbers_are_what_arithmetic_says() -> None:
    query: Any = NumberSum(size=7)
    np.testing.assert_array_equal(exact_sum(SleepingBlocks(n_blocks=50, sleep=0.0), query), query.expected(50))


def test_a_round_that_grows_with_its_partitions_alone_passes() -> None:
    check([ROW])
    assert "| 16 | 64 | 85 | 3 | 588 | 588 | 3.5 | 2,353 | 192 | 128 | 1, yes |" in table([ROW])


@pytest.mark.parametrize(
    ("worse", "told"),
    [
        (replace(ROW, round=replace(ROUND, depth=4)), "levels of merges"),
        (replace(ROW, round=replace(ROUND, tasks=100)), "tasks at 16 workers"),
        (replace(ROW, of_few_blocks=replace(ROUND, tasks=84)), "grow with blocks"),
        (replace(ROW, round=replace(ROUND, messages=85 * 21)), "messages"),
        (replace(ROW, round=replace(ROUND, sent_and_received=10**6)), "bytes"),
        (replace(ROW, round=replace(ROUND, seconds=85 * SECONDS * 1.01)), "s of the scheduler a task"),
        (replace(ROW, scheduler=(BASE_MB + 5) * 2**20), "MB of the scheduler"),
        (replace(ROW, client=(BASE_MB + 1) * 2**20), "MB of the client"),
        (replace(ROW, loss=replace(LOSS, at=1.01)), "killed after the sum had ended"),
        (replace(ROW, loss=replace(LOSS, again=0)), "no task was assigned again"),
        (replace(ROW, loss=replace(LOSS, gone=0)), "0 workers were lost"),
        (replace(ROW, loss=replace(LOSS, equal=False)), "other bits"),
    ],
)
def test_what_grows_faster_or_has_other_bits_is_refused(worse: Row, told: str) -> None:
    with pytest.raises(AssertionError, match=told):
        check([worse])


@pytest.mark.parametrize(
    ("base", "others"),
    [(100, (2, 10)), (10, (2, 30)), (30, (2,))],
    ids=["a hundred", "ten for want of a hundred", "more for want of ten"],
)
def test_time_a_task_grows_by_half_at_most_from_the_base(base: int, others: tuple[int, ...]) -> None:
    def row(workers: int, factor: float) -> Row:
        return replace(ROW, workers=workers, round=replace(ROUND, seconds=factor * ROUND.seconds))

    rows = [row(base, 1.0), *(row(workers, 1.6) for workers in others)]
    check([*rows, row(1_000, 1.49)])
    with pytest.raises(AssertionError, match=f"1.51 times as long as at {base} workers"):
        check([*rows, row(1_000, 1.51)])


def test_memory_may_grow_with_tasks() -> None:
    held = (BASE_MB + 5) * 2**20
    larger = replace(ROUND, tasks=850, seconds=10 * ROUND.seconds)
    check([replace(ROW, partitions=640, round=larger, of_few_blocks=larger, scheduler=held, client=held)])


def test_few_workers_need_no_loss_and_no_base() -> None:
    check([replace(ROW, workers=2, loss=NO_LOSS)])


def test_the_page_has_a_place_for_the_table() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert text.count("<!-- control plane -->\n") == text.count("<!-- end of control plane -->\n") == 1
    assert "Simulation is not a cluster" in text.replace("\n", " ")
