"""Where partitions begin and where they live: balanced, complete, and stable."""

import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dpca_tasks.records.sources import ArrayBlocks
from dpca_tasks.sums.partial_sums import cut, first_homes, settle_homes
from dpca_tasks.sums.resident_rows import SHARE, fits

EXTENTS = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 50), st.integers(0, 1000)), max_size=40).map(
    lambda blocks: np.array(blocks, np.int64).reshape(-1, 3)
)
NAMES = st.lists(st.sampled_from("abcdef"), min_size=1, max_size=6, unique=True)


@given(extents=EXTENTS, partitions=st.integers(1, 24))
def test_partitions_are_contiguous_whole_and_as_equal_as_blocks_allow(extents, partitions):
    bounds = cut(extents, partitions)
    assert len(bounds) == partitions + 1
    assert bounds == sorted(bounds)
    assert (bounds[0], bounds[-1]) == (0, len(extents))
    weights = extents[:, 1:].sum(axis=1)
    mean, largest = weights.sum() / partitions, max(weights, default=0)
    for first, last in itertools.pairwise(bounds):
        assert abs(weights[first:last].sum() - mean) <= largest


def test_a_few_heavy_blocks_weigh_as_much_as_many_light_ones():
    extents = np.array([[1, 1, 1000]] * 2 + [[1, 1, 100]] * 20)
    assert cut(extents, 2) == [0, 2, 22]


@given(homes=st.lists(st.sampled_from("abcdef"), min_size=1, max_size=24), workers=NAMES)
def test_partitions_settle_evenly_on_the_workers_there_are(homes, workers):
    settled = settle_homes(homes, workers)
    most = -(-len(homes) // len(workers))
    assert len(settled) == len(homes)
    assert set(settled) <= set(workers)
    assert max(settled.count(worker) for worker in workers) <= most
    for worker in workers:  # nobody moves who need not
        stay = sum(before == after == worker for before, after in zip(homes, settled, strict=True))
        assert stay == min(homes.count(worker), most)


def test_a_restarted_worker_gets_back_what_the_others_took_over():
    homes = first_homes(["a", "b"])
    without = settle_homes(homes, ["a"])
    assert without == ["a"] * 8
    assert sorted(settle_homes(without, ["a", "c"])) == ["a"] * 4 + ["c"] * 4


def test_rows_fit_by_the_declared_memory_alone():
    source = ArrayBlocks(np.ones((100, 10)), block_records=7)
    needed = 8 * (1000 + 100 + 100)
    enough = {"a": int(needed / SHARE / 2) + 1, "b": 1 << 40}
    assert fits(source.extents, enough)
    assert not fits(source.extents, enough | {"a": int(needed / SHARE / 2) - 1})
    assert not fits(source.extents, {"a": 0, "b": 1 << 40})  # no limit declared
