"""The benchmark of many rows: what its verdict refuses, and its last line."""

from dataclasses import replace

import pytest

from benchmarks.huge import FLAT, TOLERANCE, Cost, verdict

COST = Cost(rows=1_000, ingest=6.0, ingest_processor=5.0, release=1.0, release_processor=2.0, peak=400_000_000)
LARGER = replace(COST, rows=2_000, ingest=12.0, ingest_processor=10.0, release=2.0, release_processor=4.0)


def test_linear_time_and_flat_memory_pass() -> None:
    line, holds = verdict([COST, replace(LARGER, peak=440_000_000)])
    assert holds
    assert line == ("rows=2000 linear=1.000 linear_of_processors=1.000 peak_mb=440 linear_of_release=1.000 flat=1.100")


@pytest.mark.parametrize(
    "worse",
    [
        replace(LARGER, ingest=12.0 * (1 + 2 * TOLERANCE)),
        replace(LARGER, release=2.0 * (1 + TOLERANCE + 0.01)),
        replace(LARGER, release=2.0 / (1 + TOLERANCE + 0.01)),
        replace(LARGER, peak=round(COST.peak * (FLAT + 0.01))),
        replace(LARGER, peak=round(COST.peak / (FLAT + 0.01))),
    ],
    ids=["slower ingest", "slower release", "faster release", "more memory", "less memory"],
)
def test_time_that_is_not_linear_or_memory_that_is_not_flat_fails(worse: Cost) -> None:
    _, holds = verdict([COST, worse])
    assert not holds
