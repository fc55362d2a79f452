"""The projection: its arithmetic, and a measurement on a few rows."""

import math
from pathlib import Path

import pytest

from benchmarks.inputs import Input, one_hot_rows
from benchmarks.projection import CORES, MACHINES, NETWORK, PAGE, ROWS, Costs, measured, tables
from benchmarks.table import rewritten

COSTS = Costs(
    name="some",
    n_features=100,
    read=1e-6,
    grid=2e-6,
    moment=3e-6,
    product=4e-6,
    stored=50.0,
    merge=0.0,
    eigenpairs=0.5,
    predicted_over_measured=0.9,
)


def test_the_slower_of_computing_and_loading_counts_and_merging_comes_on_top() -> None:
    computing = ROWS * 6e-6 / (MACHINES * CORES)
    assert COSTS.job(COSTS.moment, total=0.0) == pytest.approx(computing)
    assert COSTS.job(1e-6, reads=False, total=0.0) == pytest.approx(ROWS * 1e-6 / (MACHINES * CORES))
    assert COSTS.job(-3e-6, total=0.0) == pytest.approx(ROWS * 50.0 / (MACHINES * NETWORK))
    levels = math.ceil(math.log(MACHINES * CORES, 4))
    assert COSTS.job(COSTS.moment, total=NETWORK) == pytest.approx(computing + 4 * levels)


@pytest.mark.audit_only
def test_the_page_takes_the_tables(tmp_path: Path) -> None:
    few = Input(name="few", n_rows=3_000, n_features=123, clip_norm=14**0.5, make=one_hot_rows)
    costs = measured(few, tmp_path)
    assert min(costs.read, costs.grid, costs.moment, costs.product, costs.stored) > 0
    results = tables([costs, COSTS])
    assert results.count("| `few`") == results.count("| `some`") == 2
    assert "| 1.00 | 2.00 | 3.00 | 4.00 | 0.90 |" in results
    assert results in rewritten(PAGE.read_text(encoding="utf-8"), results)
