"""The model of a round: the tree of totals is that of the graph, and every constant counts as often as it is paid."""

import pytest

from benchmarks.scaling_model import Machine, RowCost, Tree, round_seconds
from dpca_tasks.sums.cluster_sum import NEAR_TOTALS, SMALL_TOTALS, Graph

FREE = Machine(start=0.0, task=0.0, touch=0.0, add=0.0, move=0.0)
SMALL, MEDIUM, LARGE = 8, SMALL_TOTALS, NEAR_TOTALS


@pytest.mark.parametrize(("size", "levels"), [(SMALL, (8,)), (MEDIUM, (8, 2)), (LARGE, (8, 2, 1))])
def test_a_tree_has_as_many_merges_as_the_graph(size: int, levels: tuple[int, ...]) -> None:
    graph = Graph(["worker"] * levels[0])
    totals = [graph.add("fold", at, len) for at in range(levels[0])]
    for expected in levels[1:]:
        totals = graph.add_merges(totals)
        assert len(totals) == expected
    assert Tree.of(partitions=8, size=size, near=True).levels == levels


def test_far_workers_merge_until_little_is_left() -> None:
    assert Tree.of(partitions=8, size=MEDIUM, near=False).levels == (8, 2, 1)
    assert Tree.of(partitions=1, size=LARGE, near=False).levels == (1,)


def test_rows_are_shared_by_the_workers_and_tasks_are_not() -> None:
    machine = Machine(start=3.0, task=0.5, touch=0.0, add=0.0, move=0.0)
    taken = round_seconds(machine, rows=1_000, row=0.01, size=SMALL, workers=2)
    assert taken == pytest.approx(3 + 8 * 0.5 + 1_000 * 0.01 / 2)


def test_a_worker_allocates_its_totals_in_turn_and_merges_beside_the_others() -> None:
    touching = Machine(start=0.0, task=0.0, touch=1.0, add=0.0, move=0.0)
    assert round_seconds(touching, rows=0, row=0.0, size=SMALL, workers=2) == 4 * SMALL
    adding = Machine(start=0.0, task=0.0, touch=0.0, add=1.0, move=0.0)
    merged, gathered = 3 * MEDIUM, 2 * MEDIUM
    assert round_seconds(adding, rows=0, row=0.0, size=MEDIUM, workers=2) == merged + gathered


def test_the_first_merges_transfer_nothing() -> None:
    moving = Machine(start=0.0, task=0.0, touch=0.0, add=0.0, move=1.0)
    assert round_seconds(moving, rows=0, row=0.0, size=MEDIUM, workers=2) == 2 * MEDIUM
    assert round_seconds(moving, rows=0, row=0.0, size=LARGE, workers=2) == LARGE + LARGE


def test_a_network_slows_what_moves() -> None:
    assert round_seconds(FREE, rows=0, row=0.0, size=MEDIUM, workers=2, network=1.0) == MEDIUM + MEDIUM


def test_kept_rows_are_neither_read_nor_put_on_the_grid() -> None:
    row = RowCost(read=1.0, grid=2.0, moment=4.0, product=8.0, kept=16.0)
    assert (row.of("moment"), row.of("product"), row.of("kept")) == (7, 11, 16)
