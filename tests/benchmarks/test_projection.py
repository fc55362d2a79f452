"""The projection: its arithmetic, and a measurement on a few rows."""

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.inputs import DENSE, SYN, Input, one_hot_rows
from benchmarks.projection import (
    CORES,
    DOLLARS,
    KINDS,
    MACHINES,
    NETWORK,
    PAGE,
    ROWS,
    WORKERS,
    Costs,
    machine_of,
    measured,
    tables,
)
from benchmarks.scaling_model import Machine, RowCost
from benchmarks.table import rewritten

FREE = Machine(start=0.0, task=0.0, touch=0.0, add=0.0, move=0.0)
ROW = RowCost(read=1e-6, grid=2e-6, moment=3e-6, product=4e-6, kept=5e-6)
COSTS = Costs(
    name="some",
    n_rows=1_000_000,
    n_features=100,
    stored=10.0,
    rows=dict.fromkeys(WORKERS, ROW),
    measured={(kind, workers): 2.0 for kind in KINDS for workers in WORKERS},
    noise=0.25,
    eigenpairs=0.5,
)


def test_a_prediction_is_held_against_what_was_measured() -> None:
    off = COSTS.off(FREE)
    assert off["moment", 1] == pytest.approx(6 / 2)
    assert off["moment", 2] == pytest.approx(3 / 2)
    assert off["kept", 1] == pytest.approx(5 / 2)


def test_the_slower_of_computing_and_loading_counts() -> None:
    assert COSTS.projected(FREE, "moment") == pytest.approx(ROWS * 6e-6 / (MACHINES * CORES), rel=1e-3)
    heavy = replace(COSTS, stored=1e4)
    assert heavy.projected(FREE, "moment") == pytest.approx(ROWS * 1e4 / (MACHINES * NETWORK), rel=1e-3)
    assert heavy.projected(FREE, "kept") == pytest.approx(ROWS * 5e-6 / (MACHINES * CORES), rel=1e-3)


def test_a_release_is_priced_by_the_hour_of_all_machines() -> None:
    table = tables(FREE, [COSTS, replace(COSTS, name=SYN.name), replace(COSTS, name=DENSE.name)])
    seconds = COSTS.projected(FREE, "moment") + 0.75
    hours = seconds * MACHINES / 3_600
    assert f"| `some` | 10 | {seconds:,.1f} | {hours * CORES:.2f} | {hours * DOLLARS:.3f} |" in table
    assert table in rewritten(PAGE.read_text(encoding="utf-8"), table)


@pytest.mark.audit_only
def test_few_rows_are_measured_in_every_way(tmp_path: Path) -> None:
    few = Input(name="few", n_rows=3_000, n_features=123, clip_norm=14**0.5, make=one_hot_rows)
    costs = measured(few, tmp_path)
    assert costs.measured.keys() == {(kind, workers) for kind in KINDS for workers in WORKERS}
    assert min(costs.measured.values()) > 0
    for row in costs.rows.values():
        assert min(row.read, row.grid, row.moment, row.product, row.kept) > 0


@pytest.mark.audit_only
def test_the_machine_is_measured_on_rounds_over_nothing(tmp_path: Path) -> None:
    machine = machine_of(tmp_path)
    assert min(machine.task, machine.touch, machine.add, machine.move) > 0
