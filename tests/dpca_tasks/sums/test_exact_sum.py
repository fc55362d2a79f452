"""Exact sums over partitions, locally and on a Dask cluster: the same bits for any partition, order and workers.

No record may be lost or counted twice. Partition bounds and placement must be balanced, complete and stable. When
workers die repeatedly, killed or out of memory, the sum must be exact or end after a limit with a one-line error.
Clusters are tested for rows that stay on their workers, workers that leave, and one thread per task; none of these
changes a bit.
"""

import dataclasses
import itertools
import os
import signal
import threading
import time
import uuid
from contextlib import contextmanager
from typing import Any

import dask
import numpy as np
import pytest
from distributed import Client, LocalCluster
from hypothesis import given
from hypothesis import strategies as st
from threadpoolctl import threadpool_info

from dpca_tasks.accounting import events
from dpca_tasks.errors import IncompleteSum, WorkerFailed
from dpca_tasks.noise.distributions import Symmetric
from dpca_tasks.noise.keystream import subkey
from dpca_tasks.privacy.curator import Curator
from dpca_tasks.privacy.gate import InMemoryReservation
from dpca_tasks.queries.locally_noised import LocallyNoised
from dpca_tasks.queries.operator_product import ExactProduct
from dpca_tasks.queries.operator_product import on_direction_grid as exact_directions
from dpca_tasks.queries.poisson_sampled import PoissonSampled, sampled
from dpca_tasks.queries.recentred_moment import on_shift_grid
from dpca_tasks.queries.rounded_product import MomentProduct, on_direction_grid
from dpca_tasks.queries.second_moment import RecordMean, SecondMoment
from dpca_tasks.records.blocks import ArrayBlocks
from dpca_tasks.sums import cluster_sum, partial_sums
from dpca_tasks.sums.cluster_sum import Packed
from dpca_tasks.sums.exact_sum import exact_sum
from dpca_tasks.sums.partial_sums import (
    SHARE,
    Gridded,
    Partial,
    Residency,
    cut,
    first_homes,
    fits,
    fold,
    merge,
    settle_homes,
)

ROWS = np.random.default_rng(5).standard_normal((211, 7))
QUERY = SecondMoment(n_features=7, clip_norm=1.5, relation="add_remove", bits=12)


class KillsOneWorker(ArrayBlocks):
    """A source of blocks that kills the process which reads its last block, once."""

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
    assert {count for _, count in seen} <= {8}  # the number of partitions is public: four per worker


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


def test_merging_does_not_change_its_inputs():
    parts = [fold(ArrayBlocks(ROWS, block_records=150), QUERY, at, at + 1) for at in range(2)]
    before = [part.total.copy() for part in parts]
    merge(parts)
    for part, total in zip(parts, before, strict=True):
        np.testing.assert_array_equal(part.total, total)


def test_merging_treats_no_rows_as_zero():
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


def test_an_error_on_a_worker_states_its_kind_and_no_value(client):
    for cluster in (None, client):
        with pytest.raises(WorkerFailed) as caught:
            exact_sum(Unreadable(ROWS), QUERY, client=cluster)
        assert "ValueError" in str(caught.value)
        assert "17" not in str(caught.value)
        assert caught.value.__cause__ is None
        assert caught.value.__suppress_context__ or caught.value.__context__ is None


def test_the_repr_of_a_partial_sum_reveals_nothing():
    assert repr(Partial(first=0, last=1, records=3, stored=3, total=np.arange(3))) == "Partial()"


EXTENTS = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 50), st.integers(0, 1000)), max_size=40).map(
    lambda blocks: np.array(blocks, np.int64).reshape(-1, 3)
)
NAMES = st.lists(st.sampled_from("abcdef"), min_size=1, max_size=6, unique=True)


@given(extents=EXTENTS, partitions=st.integers(1, 24))
def test_partitions_are_contiguous_complete_and_as_equal_as_blocks_allow(extents, partitions):
    bounds = cut(extents, partitions)
    assert len(bounds) == partitions + 1
    assert bounds == sorted(bounds)
    assert (bounds[0], bounds[-1]) == (0, len(extents))
    weights = extents[:, 1:].sum(axis=1)
    mean, largest = weights.sum() / partitions, max(weights, default=0)
    for first, last in itertools.pairwise(bounds):
        assert abs(weights[first:last].sum() - mean) <= largest


def test_partitions_are_balanced_by_the_weight_of_blocks():
    extents = np.array([[1, 1, 1000]] * 2 + [[1, 1, 100]] * 20)
    assert cut(extents, 2) == [0, 2, 22]


@given(homes=st.lists(st.sampled_from("abcdef"), min_size=1, max_size=24), workers=NAMES)
def test_partitions_are_placed_evenly_on_the_available_workers(homes, workers):
    settled = settle_homes(homes, workers)
    most = -(-len(homes) // len(workers))
    assert len(settled) == len(homes)
    assert set(settled) <= set(workers)
    assert max(settled.count(worker) for worker in workers) <= most
    for worker in workers:  # a partition changes its worker only if necessary
        keep = sum(before == after == worker for before, after in zip(homes, settled, strict=True))
        assert keep == min(homes.count(worker), most)


def test_a_restarted_worker_gets_its_partitions_back():
    homes = first_homes(["a", "b"])
    without = settle_homes(homes, ["a"])
    assert without == ["a"] * 8
    assert sorted(settle_homes(without, ["a", "c"])) == ["a"] * 4 + ["c"] * 4


def test_the_declared_memory_alone_decides_whether_rows_are_kept():
    source = ArrayBlocks(np.ones((100, 10)), block_records=7)
    needed = 8 * (1000 + 100 + 100)
    enough = {"a": int(needed / SHARE / 2) + 1, "b": 1 << 40}
    assert fits(source.extents, enough)
    assert not fits(source.extents, enough | {"a": int(needed / SHARE / 2) - 1})
    assert not fits(source.extents, {"a": 0, "b": 1 << 40})  # no limit declared


KILLED_WORKERS_ROWS = np.random.default_rng(8).standard_normal((211, 7))
MOMENT = SecondMoment(relation="add_remove", n_features=7, clip_norm=1.5, bits=12)
LIMIT = 2
"""Number of workers that a task may lose here; clusters outside tests allow 10."""
MEMORY = 1 << 29


class Deadly(ArrayBlocks):
    """A source of blocks that kills the process which reads block 3, or exhausts its memory, once per mark file."""

    def __init__(self, rows, *, marks, how, **cut):
        super().__init__(rows, **cut)
        self.marks, self.how = marks, how

    def read(self, block, /):
        if block == 3 and (left := sorted(self.marks.iterdir())):
            left[0].unlink()
            if self.how == "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            held = np.ones(2 * MEMORY // 8)
            time.sleep(60)
            return held
        return super().read(block)


@contextmanager
def two_workers(monkeypatch):
    monkeypatch.setattr(cluster_sum, "HEARTBEAT", 0.2)
    monkeypatch.setattr(cluster_sum, "RESUBMISSIONS", 1)
    settings = {
        "distributed.scheduler.allowed-failures": LIMIT,
        "distributed.worker.memory.target": False,
        "distributed.worker.memory.spill": False,
        "distributed.worker.memory.pause": False,
        "distributed.worker.memory.terminate": 0.95,
        "distributed.deploy.lost-worker-timeout": "1 hour",
    }
    with (
        dask.config.set(settings),
        LocalCluster(
            n_workers=2,
            threads_per_worker=1,
            memory_limit=MEMORY,
            dashboard_address="127.0.0.1:0",
            scheduler_kwargs={"dashboard": False},
            host="127.0.0.1",
        ) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        yield client


@pytest.mark.audit_only
@pytest.mark.parametrize("how", ["killed", "out of memory"])
def test_a_block_that_kills_workers_is_summed_exactly_or_refused_in_one_line(monkeypatch, tmp_path, how):
    source = Deadly(KILLED_WORKERS_ROWS, marks=tmp_path, how=how, block_records=9)
    with two_workers(monkeypatch) as client:
        for number in range(LIMIT):
            (tmp_path / str(number)).touch()
        found = exact_sum(source, MOMENT, client=client)
        np.testing.assert_array_equal(found, exact_sum(ArrayBlocks(KILLED_WORKERS_ROWS), MOMENT))
        assert not [*tmp_path.iterdir()]
        for number in range(50):
            (tmp_path / str(number)).touch()
        with pytest.raises(WorkerFailed, match=r"perhaps for lack of memory; .*more memory") as caught:
            exact_sum(source, MOMENT, client=client)
        assert "\n" not in str(caught.value)
        assert len([*tmp_path.iterdir()]) >= 50 - (LIMIT + 1) * (cluster_sum.RESUBMISSIONS + 1)
        for mark in tmp_path.iterdir():
            mark.unlink()
        found = exact_sum(source, MOMENT, client=client)
        np.testing.assert_array_equal(found, exact_sum(ArrayBlocks(KILLED_WORKERS_ROWS), MOMENT))


CLUSTER_SUM_ROWS = np.random.default_rng(8).standard_normal((211, 7))
COUNTS = [1] * 100 + [3] * 37
TERMS: dict[str, Any] = {"n_features": 7, "clip_norm": 1.5, "bits": 12}
CLUSTER_SUM_MOMENT = SecondMoment(relation="add_remove", **TERMS)
KEY = subkey(bytes(32), label="coins", info=b"a test")


def product(seed):
    directions = np.linalg.qr(np.random.default_rng(seed).standard_normal((7, 2)))[0]
    return MomentProduct(relation="add_remove", directions=on_direction_grid(directions), **TERMS)


class Watched(ArrayBlocks):
    """A source of blocks that writes a mark file for every block read, in any process."""

    def __init__(self, rows, *, marks, **cut):
        super().__init__(rows, **cut)
        self.marks = marks

    def read(self, block, /):
        (self.marks / uuid.uuid4().hex).touch()
        return super().read(block)

    def reads(self):
        found = [*self.marks.iterdir()]
        for mark in found:
            mark.unlink()
        return len(found)


class KillsOneWorkerClusterSum(Watched):
    """A source of blocks that kills the reading process while a mark file exists."""

    def read(self, block, /):
        if (self.marks / "kill").exists():
            (self.marks / "kill").unlink()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().read(block)


class Threads(ArrayBlocks):
    """A source that lets two tasks read at the same time, and records the number of BLAS threads in each."""

    meeting = threading.Barrier(2, timeout=30)
    seen: list[int] = []  # noqa: RUF012 - a class attribute, so that it is not pickled

    def read(self, block, /):
        self.meeting.wait()
        algebra = [library for library in threadpool_info() if library["user_api"] == "blas"]
        self.seen.extend(library["num_threads"] for library in algebra)
        self.meeting.wait()
        return super().read(block)


class Opened(ArrayBlocks):
    """A source that writes a mark file in each process that unpickles it."""

    def __init__(self, rows, *, marks):
        super().__init__(rows)
        self.marks = marks

    def __setstate__(self, state):
        self.__dict__.update(state)
        (self.marks / str(os.getpid())).touch()


def in_process(**settings):
    return LocalCluster(
        processes=False,
        protocol="tcp",
        host="127.0.0.1",
        dashboard_address="127.0.0.1:0",
        scheduler_kwargs={"dashboard": False},
        **settings,
    )


@pytest.fixture
def lonely():
    """Yield a client of a Dask scheduler without workers."""
    with in_process(n_workers=0) as cluster, Client(cluster, set_as_default=False) as client:
        yield client


@pytest.mark.parametrize("cut", [{"block_records": 5}, {"record_rows": COUNTS, "block_records": 9}])
def test_kept_rows_give_the_bits_of_rows_read_again(client, tmp_path, cut):
    source = Watched(CLUSTER_SUM_ROWS, marks=tmp_path, **cut)
    kept = Residency()
    for query in (
        product(1),
        product(2),
        CLUSTER_SUM_MOMENT,
        sampled_with_key(product(3)),
        sampled_with_key(CLUSTER_SUM_MOMENT),
    ):
        found = exact_sum(source, query, client=client, residency=kept)
        np.testing.assert_array_equal(found, exact_sum(ArrayBlocks(CLUSTER_SUM_ROWS, **cut), query))
        assert source.reads() == (source.n_blocks if query.digest() == product(1).digest() else 0)


def test_products_around_a_mean_share_their_rows(client, tmp_path):
    source, kept = Watched(CLUSTER_SUM_ROWS, marks=tmp_path, block_records=50), Residency()
    shift = on_shift_grid(np.full(7, 0.3))
    for seed in range(2):
        directions = np.linalg.qr(np.random.default_rng(seed).standard_normal((7, 2)))[0]
        query = ExactProduct(
            relation="add_remove", directions=exact_directions(directions, shifted=True), shift=shift, **TERMS
        )
        found = exact_sum(source, query, client=client, residency=kept)
        np.testing.assert_array_equal(found, exact_sum(ArrayBlocks(CLUSTER_SUM_ROWS), query))
        assert source.reads() == (0 if seed else source.n_blocks)


def sampled_with_key(query):
    sample = sampled(query, rate=0.3)
    assert isinstance(sample, PoissonSampled)
    return dataclasses.replace(sample, coin_key=KEY)


def test_kept_rows_are_not_used_for_another_grid_or_source(client, tmp_path):
    source, kept = Watched(CLUSTER_SUM_ROWS, marks=tmp_path, block_records=50), Residency()
    finer = SecondMoment(relation="add_remove", **TERMS | {"bits": 13})
    mean = RecordMean(relation="add_remove", **TERMS)
    for query in (CLUSTER_SUM_MOMENT, finer, mean, mean, CLUSTER_SUM_MOMENT):
        found = exact_sum(source, query, client=client, residency=kept)
        np.testing.assert_array_equal(found, exact_sum(ArrayBlocks(CLUSTER_SUM_ROWS), query))
    assert source.reads() == 4 * source.n_blocks
    other = ArrayBlocks(CLUSTER_SUM_ROWS[1:])
    np.testing.assert_array_equal(
        exact_sum(other, CLUSTER_SUM_MOMENT, client=client, residency=kept), exact_sum(other, CLUSTER_SUM_MOMENT)
    )


def test_noise_that_a_query_adds_itself_is_never_kept(client):
    kept = Residency()
    for label in (b"one step", b"another"):
        key = subkey(bytes(32), label="noise", info=label)
        reports = LocallyNoised.of(SecondMoment(relation="replace_one", **TERMS))
        query = dataclasses.replace(reports, noise_key=key, noise_std=9.0)
        found = exact_sum(ArrayBlocks(CLUSTER_SUM_ROWS), query, client=client, residency=kept)
        np.testing.assert_array_equal(found, exact_sum(ArrayBlocks(CLUSTER_SUM_ROWS), query))


def test_rows_that_exceed_the_memory_are_read_again(client, tmp_path, monkeypatch):
    monkeypatch.setattr(partial_sums, "SHARE", 1e-9)
    source, kept = Watched(CLUSTER_SUM_ROWS, marks=tmp_path, block_records=50), Residency()
    for seed in range(2):
        found = exact_sum(source, product(seed), client=client, residency=kept)
        np.testing.assert_array_equal(found, exact_sum(ArrayBlocks(CLUSTER_SUM_ROWS), product(seed)))
        assert source.reads() == source.n_blocks
    assert kept.rows == {}


def test_a_worker_lost_with_its_rows_changes_no_bit(client, tmp_path):
    source, kept = KillsOneWorkerClusterSum(CLUSTER_SUM_ROWS, marks=tmp_path, block_records=9), Residency()
    addresses = set(client.scheduler_info()["workers"])
    for seed in range(3):
        if seed == 0:
            (tmp_path / "kill").touch()
        found = exact_sum(source, product(seed), client=client, residency=kept)
        np.testing.assert_array_equal(found, exact_sum(ArrayBlocks(CLUSTER_SUM_ROWS), product(seed)))
    assert set(client.scheduler_info()["workers"]) != addresses
    client.wait_for_workers(2)
    found = exact_sum(source, product(9), client=client, residency=kept)
    np.testing.assert_array_equal(found, exact_sum(ArrayBlocks(CLUSTER_SUM_ROWS), product(9)))
    assert set(kept.homes) == set(client.scheduler_info()["workers"])


@pytest.mark.timeout(60)
def test_a_sum_that_loses_the_last_worker_continues_on_its_replacement(alone, tmp_path):
    source, done = KillsOneWorkerClusterSum(CLUSTER_SUM_ROWS, marks=tmp_path, block_records=9), []
    (before,) = alone.scheduler_info()["workers"]
    (tmp_path / "kill").touch()
    found = exact_sum(
        source, CLUSTER_SUM_MOMENT, client=alone, residency=Residency(), progress=lambda *at: done.append(at)
    )
    np.testing.assert_array_equal(found, exact_sum(ArrayBlocks(CLUSTER_SUM_ROWS), CLUSTER_SUM_MOMENT))
    assert before not in alone.scheduler_info()["workers"]
    assert done[-4:] == [(at, 4) for at in range(1, 5)]


def test_a_sum_that_loses_every_worker_ends_with_an_error(alone, tmp_path, monkeypatch):
    monkeypatch.setattr(cluster_sum, "RESUBMISSIONS", 0)
    (tmp_path / "kill").touch()
    with pytest.raises(WorkerFailed, match="lost repeatedly"):
        exact_sum(KillsOneWorkerClusterSum(CLUSTER_SUM_ROWS, marks=tmp_path), CLUSTER_SUM_MOMENT, client=alone)


def test_workers_drop_kept_rows_when_a_release_ends(client):
    event = events.self_composed(Symmetric(noise_multiplier=4.0).event, 2)
    curator = Curator(ArrayBlocks(CLUSTER_SUM_ROWS), InMemoryReservation(event=event), client=client)
    curator.release(CLUSTER_SUM_MOMENT, Symmetric(noise_multiplier=4.0))
    assert held(client)
    curator.release(CLUSTER_SUM_MOMENT, Symmetric(noise_multiplier=4.0))
    deadline = time.monotonic() + 30
    while held(client) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert held(client) == []


def held(client):
    return sorted({key for keys in client.run(lambda dask_worker: [*dask_worker.data]).values() for key in keys})


def test_large_inputs_and_totals_are_transferred_in_parts_with_equal_bits(client, tmp_path, monkeypatch):
    monkeypatch.setattr(cluster_sum, "SMALL_INPUT", 0)
    monkeypatch.setattr(cluster_sum, "SMALL_TOTALS", 0)
    done = []
    for kept in (None, Residency()):
        found = exact_sum(
            ArrayBlocks(CLUSTER_SUM_ROWS, block_records=9),
            product(1),
            client=client,
            residency=kept,
            progress=lambda *at: done.append(at),
        )
        np.testing.assert_array_equal(found, exact_sum(ArrayBlocks(CLUSTER_SUM_ROWS), product(1)))
    assert {count for _, count in done} == {8}


def test_the_scheduler_process_opens_no_source(client, tmp_path):
    exact_sum(Opened(CLUSTER_SUM_ROWS, marks=tmp_path), CLUSTER_SUM_MOMENT, client=client)
    workers = {str(pid) for pid in client.run(os.getpid).values()}
    assert {mark.name for mark in tmp_path.iterdir()} <= workers


def test_tasks_of_a_threaded_worker_limit_linear_algebra_to_one_thread():
    before = [library["num_threads"] for library in threadpool_info()]
    with in_process(n_workers=1, threads_per_worker=2) as cluster, Client(cluster, set_as_default=False) as client:
        found = exact_sum(Threads(CLUSTER_SUM_ROWS, block_records=27), CLUSTER_SUM_MOMENT, client=client)
    np.testing.assert_array_equal(found, exact_sum(ArrayBlocks(CLUSTER_SUM_ROWS), CLUSTER_SUM_MOMENT))
    assert set(Threads.seen) == {1}
    assert [library["num_threads"] for library in threadpool_info()] == before


def test_a_release_without_cluster_workers_stops_and_continues_on_another_cluster(lonely, monkeypatch):
    monkeypatch.setattr(cluster_sum, "PATIENCE", 0.2)
    law = Symmetric(noise_multiplier=4.0)
    event = events.self_composed(law.event, 2)
    reservation = InMemoryReservation(event=event, key=bytes(32))
    first = Curator(ArrayBlocks(CLUSTER_SUM_ROWS), reservation).release(CLUSTER_SUM_MOMENT, law)
    stopped = Curator(ArrayBlocks(CLUSTER_SUM_ROWS), reservation, client=lonely)
    np.testing.assert_array_equal(stopped.release(CLUSTER_SUM_MOMENT, law), first)
    with pytest.raises(WorkerFailed, match="no worker that accepts tasks"):
        stopped.release(CLUSTER_SUM_MOMENT, law)
    whole = Curator(ArrayBlocks(CLUSTER_SUM_ROWS), InMemoryReservation(event=event, key=bytes(32)))
    resumed = Curator(ArrayBlocks(CLUSTER_SUM_ROWS), reservation)
    for curator in (whole, resumed):
        np.testing.assert_array_equal(curator.release(CLUSTER_SUM_MOMENT, law), first)
    np.testing.assert_array_equal(resumed.release(CLUSTER_SUM_MOMENT, law), whole.release(CLUSTER_SUM_MOMENT, law))


def test_a_sum_without_any_remaining_worker_ends_with_an_error(lonely, monkeypatch):
    monkeypatch.setattr(cluster_sum, "PATIENCE", 0.2)
    monkeypatch.setattr(cluster_sum, "HEARTBEAT", 0.1)
    monkeypatch.setattr(cluster_sum, "await_workers", lambda _: {"tcp://127.0.0.1:9": 1 << 40})
    kept = Residency()
    with pytest.raises(WorkerFailed, match="it resumes after the last stored step"):
        exact_sum(ArrayBlocks(CLUSTER_SUM_ROWS), CLUSTER_SUM_MOMENT, client=lonely, residency=kept)
    assert kept.rows == {}


def test_the_repr_of_transferred_objects_reveals_nothing():
    assert repr(Packed.of(ArrayBlocks(CLUSTER_SUM_ROWS))) == "Packed()"
    assert repr(Gridded(first=0, last=1, stored=3, blocks=())) == "Gridded()"


@given(
    extents=st.lists(st.lists(st.integers(10**3, 10**6), min_size=3, max_size=3), min_size=1, max_size=4),
    extra=st.lists(st.integers(0, 50), min_size=4, max_size=4),
    workers=st.integers(1, 3),
)
def test_rows_fit_if_the_bytes_of_all_kept_data_do(extents, extra, workers):
    per_record, per_row, per_value, per_block = extra
    needed = sum(r * (8 + per_record) + n * (8 + per_row) + v * (8 + per_value) + per_block for r, n, v in extents)
    for share, expected in ((1.001, True), (0.999, False)):
        memory = {str(worker): int(needed / SHARE / workers * share + (share > 1)) for worker in range(workers)}
        assert fits(np.array(extents), memory, extra=extra) == expected
