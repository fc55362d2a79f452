"""The simulated control plane: what its check refuses, its table, and its arithmetic."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from benchmarks.control_plane import PAGE, Round, Row, check, table
from benchmarks.simulated_cluster import NumberSum, SleepingBlocks
from dpca_tasks.sums.exact_sum import exact_sum

ROUND = Round(tasks=85, depth=3, seconds=0.05, messages=300, sent_and_received=200_000)
ROW = Row(
    workers=16,
    blocks=100_000,
    partitions=64,
    round=ROUND,
    of_few_blocks=ROUND,
    scheduler=2**28,
    client=2**27,
    lost=1,
    equal=True,
)


def test_sums_of_block_numbers_are_what_arithmetic_says() -> None:
    query: Any = NumberSum(size=7)
    np.testing.assert_array_equal(exact_sum(SleepingBlocks(n_blocks=50, sleep=0.0), query), query.expected(50))


def test_a_round_that_grows_with_its_partitions_alone_passes() -> None:
    check([ROW])
    assert "| 16 | 64 | 85 | 3 | 588 | 588 | 3.5 | 2,353 | 256 | 128 | 1, yes |" in table([ROW])


@pytest.mark.parametrize(
    ("worse", "told"),
    [
        (replace(ROW, round=replace(ROUND, depth=4)), "levels of merges"),
        (replace(ROW, round=replace(ROUND, tasks=100)), "tasks at 16 workers"),
        (replace(ROW, of_few_blocks=replace(ROUND, tasks=84)), "grow with blocks"),
        (replace(ROW, round=replace(ROUND, messages=85 * 21)), "messages"),
        (replace(ROW, round=replace(ROUND, sent_and_received=10**6)), "bytes"),
        (replace(ROW, equal=False), "other bits"),
    ],
)
def test_what_grows_faster_or_has_other_bits_is_refused(worse: Row, told: str) -> None:
    with pytest.raises(AssertionError, match=told):
        check([worse])


def test_the_page_has_a_place_for_the_table() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert text.count("<!-- control plane -->\n") == text.count("<!-- end of control plane -->\n") == 1
    assert "Simulation is not a cluster" in text.replace("\n", " ")
