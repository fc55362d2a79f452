"""The projection: its arithmetic, and a measurement on a few rows."""

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.inputs import A9A_LIKE, DENSE, SYN, Input, one_hot_rows
from benchmarks.projected_costs import CORES, HUGE_ROWS, KINDS, MACHINES, NETWORK, PASSES, ROWS, WORKERS, Costs
from benchmarks.projection import machine_of, measured
from benchmarks.projection_tables import DOLLARS, HUGE_SECONDS, PAGE, tables
from benchmarks.scaling_model import Machine, RowCost
from benchmarks.table import rewritten

FREE = Machine(start=0.0, task=0.0, touch=0.0, add=0.0, move=0.0)
ROW = RowCost(read=1e-6, grid=2e-6, moment=3e-6, product=4e-6, kept=5e-6)
COSTS = Costs(
    name="some",
    n_rows=1_000_000,
    n_features=100,
    extents=(1_000_000, 1_000_000, 14_000_000),
    stored=10.0,
    rows=dict.fromkeys(WORKERS, ROW),
    measured={(kind, workers): 2.0 for kind in KINDS for workers in WORKERS},
    noise=0.25,
    eigenpairs=0.5,
)
LARGE = replace(COSTS, name="large", extents=(1_000_000, 1_000_000, 20_000_000), stored=1e4)
"""What 10^9 rows of 20 values take on the grid, 176 GB, is more than 30 % of 512 GiB."""
NAMED = [replace(COSTS, name=declared.name) for declared in (A9A_LIKE, SYN, DENSE)]


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
    table = tables(FREE, [COSTS, *NAMED], under="a machine")
    seconds = COSTS.projected(FREE, "moment") + 0.75
    hours = seconds * MACHINES / 3_600
    assert f"| `some` | 10 | {seconds:,.1f} | {hours * CORES:.2f} | {hours * DOLLARS:.3f} |" in table
    assert table in rewritten(PAGE.read_text(encoding="utf-8"), table)


def test_rows_that_do_not_fit_in_memory_are_read_for_every_product() -> None:
    first, later = COSTS.projected(FREE, "product"), COSTS.projected(FREE, "kept")
    assert COSTS.rows_stay
    assert COSTS.passes(FREE) == pytest.approx(first + (PASSES - 1) * later)
    assert not LARGE.rows_stay
    assert LARGE.passes(FREE) == pytest.approx(PASSES * LARGE.projected(FREE, "product"))
    lines = tables(FREE, [COSTS, LARGE, *NAMED], under="a machine").splitlines()
    projected = {line.split("`")[1]: line for line in lines if line.endswith(("| kept |", "| read each time |"))}
    assert projected["some"].endswith("| kept |")
    assert projected["large"].endswith("| read each time |")
    assert f"| {LARGE.passes(FREE):,.1f} |" in projected["large"]


def test_the_tables_stand_under_what_they_ran_on() -> None:
    first, _, warning, *_ = tables(FREE, NAMED, under="projection: 2 cores.").splitlines()
    assert first == "projection: 2 cores."
    assert "belong to this machine" in warning


def test_the_release_of_the_huge_run_is_predicted_from_its_rows() -> None:
    predicted = HUGE_ROWS * 6e-6 / 2 + 0.75
    assert COSTS.huge(FREE) == pytest.approx(predicted, rel=1e-3)
    told = f"in {HUGE_SECONDS:.0f} s; predicted are {predicted:.0f} s, or {predicted / HUGE_SECONDS:.2f} of that"
    assert told in tables(FREE, NAMED, under="a machine")


def test_the_huge_run_took_what_the_page_says() -> None:
    page = PAGE.read_text(encoding="utf-8").splitlines()
    cells = next(line for line in page if line.startswith(f"| {HUGE_ROWS:,} | quiet |")).split(" | ")
    assert float(cells[4]) == pytest.approx(HUGE_SECONDS * 1e7 / HUGE_ROWS)


@pytest.mark.audit_only
def test_few_rows_are_measured_in_every_way(tmp_path: Path) -> None:
    few = Input(name="few", n_rows=3_000, n_features=123, clip_norm=14**0.5, make=one_hot_rows)
    costs = measured(few, tmp_path)
    assert costs.measured.keys() == {(kind, workers) for kind in KINDS for workers in WORKERS}
    assert min(costs.measured.values()) > 0
    assert costs.extents == (3_000, 3_000, 3_000 * 14)
    for row in costs.rows.values():
        assert min(row.read, row.grid, row.moment, row.product, row.kept) > 0


@pytest.mark.audit_only
def test_the_machine_is_measured_on_rounds_over_nothing(tmp_path: Path) -> None:
    machine = machine_of(tmp_path)
    assert min(machine.task, machine.touch, machine.add, machine.move) > 0
