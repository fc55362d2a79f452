"""Sums are exact: any cut, order and cluster gives the same bits, and nothing is lost or counted twice."""

import os
import signal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpca_tasks.errors import IncompleteSum, WorkerFailed
from dpca_tasks.queries.second_moment import SecondMoment
from dpca_tasks.records.sources import ArrayBlocks
from dpca_tasks.sums.exact_sum import exact_sum
from dpca_tasks.sums.partial_sums import Partial, fold, merge

ROWS = np.random.default_rng(5).standard_normal((211, 7))
QUERY = SecondMoment(n_features=7, clip_norm=1.5, relation="add_remove", bits=12)


class KillsOneWorker(ArrayBlocks):
    """Kills the process that reads its last block, once."""

    def __init__(self, rows, *, mark, **cut):
        super().__init__(rows, **cut)
        self.mark = mark

    def read(self, block, /):
        if block == self.n_blocks - 1 and not self.mark.exists():
            self.mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().read(block)


class Unreadable(ArrayBlocks):
    def read(self, block, /):
        raise ValueError(f"row 17 holds {self._values[0]!r}")


def test_the_sum_agrees_with_the_float_product_up_to_the_grid():
    found = exact_sum(ArrayBlocks(ROWS), QUERY) / QUERY.steps_per_unit * QUERY.unit
    clipped = ROWS * np.minimum(1, 1.5 / np.linalg.norm(ROWS, axis=1))[:, None]
    np.testing.assert_allclose(found, (clipped.T @ clipped)[np.triu_indices(7)], atol=211 * 1.5**2 * 2**-11)


@given(block_records=st.integers(1, 300), order=st.permutations(range(30)))
def test_the_sum_is_bit_identical_for_any_blocks_and_row_order(block_records, order):
    rows = ROWS[:30]
    expected = exact_sum(ArrayBlocks(rows), QUERY)
    np.testing.assert_array_equal(exact_sum(ArrayBlocks(rows[order], block_records=block_records), QUERY), expected)


@pytest.mark.parametrize("block_records", [7, 64, 1000])
def test_a_cluster_gives_the_bits_of_one_process(client, block_records):
    seen = []
    found = exact_sum(
        ArrayBlocks(ROWS, block_records=block_records),
        QUERY,
        client=client,
        progress=lambda *at: seen.append(at),
    )
    np.testing.assert_array_equal(found, exact_sum(ArrayBlocks(ROWS), QUERY))
    assert {count for _, count in seen} <= {8}  # partitions, a public number: four a worker


def test_a_killed_worker_changes_no_bit(client, tmp_path):
    source = KillsOneWorker(ROWS, block_records=9, mark=tmp_path / "killed")
    np.testing.assert_array_equal(exact_sum(source, QUERY, client=client), exact_sum(ArrayBlocks(ROWS), QUERY))
    assert source.mark.exists()


def test_no_rows_sum_to_zero(client):
    empty = ArrayBlocks(np.empty((0, 7)))
    for cluster in (None, client):
        np.testing.assert_array_equal(exact_sum(empty, QUERY, client=cluster), np.zeros(28, np.int64))


def test_merging_refuses_an_overlap_and_a_gap():
    first, second, third = (fold(ArrayBlocks(ROWS, block_records=50), QUERY, at, at + 1) for at in range(3))
    np.testing.assert_array_equal(merge([third, first, second]).total, first.total + second.total + third.total)
    for wrong in ([first, third], [first, first], [merge([first, second]), second]):
        with pytest.raises(IncompleteSum):
            merge(wrong)


def test_merging_leaves_its_inputs_alone():
    parts = [fold(ArrayBlocks(ROWS, block_records=150), QUERY, at, at + 1) for at in range(2)]
    before = [part.total.copy() for part in parts]
    merge(parts)
    for part, total in zip(parts, before, strict=True):
        np.testing.assert_array_equal(part.total, total)


def test_merging_takes_no_rows_for_zero():
    source = ArrayBlocks(ROWS, block_records=100)
    whole, none = fold(source, QUERY, 0, source.n_blocks), fold(source, QUERY, source.n_blocks, source.n_blocks)
    for parts in ([whole, none], [none, whole], [none, none], [none]):
        merged = merge(parts)
        np.testing.assert_array_equal(merged.total, whole.total if whole in parts else np.zeros_like(whole.total))
        assert all(merged.total is not part.total for part in parts)


def test_a_source_that_lost_a_record_is_refused():
    source = ArrayBlocks(ROWS)
    source.n_records += 1
    with pytest.raises(IncompleteSum, match="every record"):
        exact_sum(source, QUERY)


def test_a_failing_worker_tells_the_kind_of_failure_and_no_value(client):
    for cluster in (None, client):
        with pytest.raises(WorkerFailed) as caught:
            exact_sum(Unreadable(ROWS), QUERY, client=cluster)
        assert "ValueError" in str(caught.value)
        assert "17" not in str(caught.value)
        assert caught.value.__cause__ is None
        assert caught.value.__suppress_context__ or caught.value.__context__ is None


def test_a_partial_shows_nothing():
    assert repr(Partial(first=0, last=1, records=3, stored=3, total=np.arange(3))) == "Partial()"
