"""On a cluster: rows that stay, workers that go, and one thread a task. None of it moves a bit."""

import dataclasses
import os
import signal
import threading
import time
import uuid
from typing import Any

import numpy as np
import pytest
from distributed import Client, LocalCluster
from threadpoolctl import threadpool_info

from dpca_tasks.accounting import events
from dpca_tasks.errors import WorkerFailed
from dpca_tasks.noise.distributions import Symmetric
from dpca_tasks.noise.keystream import subkey
from dpca_tasks.privacy.curator import Curator
from dpca_tasks.privacy.gate import InMemoryReservation
from dpca_tasks.queries.eigensolver_product import ExactProduct
from dpca_tasks.queries.eigensolver_product import on_direction_grid as exact_directions
from dpca_tasks.queries.locally_noised import LocallyNoised
from dpca_tasks.queries.poisson_sampled import PoissonSampled, sampled
from dpca_tasks.queries.recentred_moment import on_shift_grid
from dpca_tasks.queries.record_mean import RecordMean
from dpca_tasks.queries.rounded_product import MomentProduct, on_direction_grid
from dpca_tasks.queries.second_moment import SecondMoment
from dpca_tasks.records.sources import ArrayBlocks
from dpca_tasks.sums import cluster_sum, resident_rows
from dpca_tasks.sums.cluster_sum import Packed
from dpca_tasks.sums.exact_sum import exact_sum
from dpca_tasks.sums.partial_sums import Gridded
from dpca_tasks.sums.resident_rows import Residency

ROWS = np.random.default_rng(8).standard_normal((211, 7))
COUNTS = [1] * 100 + [3] * 37
TERMS: dict[str, Any] = {"n_features": 7, "clip_norm": 1.5, "bits": 12}
MOMENT = SecondMoment(relation="add_remove", **TERMS)
KEY = subkey(bytes(32), label="coins", info=b"a test")


def product(seed):
    directions = np.linalg.qr(np.random.default_rng(seed).standard_normal((7, 2)))[0]
    return MomentProduct(relation="add_remove", directions=on_direction_grid(directions), **TERMS)


class Watched(ArrayBlocks):
    """Leaves a mark for every block read, in whatever process."""

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


class KillsOneWorker(Watched):
    """Kills the process that reads while a mark stands."""

    def read(self, block, /):
        if (self.marks / "kill").exists():
            (self.marks / "kill").unlink()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().read(block)


class Threads(ArrayBlocks):
    """Two tasks read at once and look at the threads of linear algebra."""

    meeting = threading.Barrier(2, timeout=30)
    seen: list[int] = []  # noqa: RUF012 - of the class, since the source travels

    def read(self, block, /):
        self.meeting.wait()
        algebra = [library for library in threadpool_info() if library["user_api"] == "blas"]
        self.seen.extend(library["num_threads"] for library in algebra)
        self.meeting.wait()
        return super().read(block)


class Opened(ArrayBlocks):
    """Leaves a mark in each process that unpickles it."""

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
    """A scheduler without a worker."""
    with in_process(n_workers=0) as cluster, Client(cluster, set_as_default=False) as client:
        yield client


@pytest.mark.parametrize("cut", [{"block_records": 5}, {"record_rows": COUNTS, "block_records": 9}])
def test_kept_rows_give_the_bits_of_rows_read_again(client, tmp_path, cut):
    source = Watched(ROWS, marks=tmp_path, **cut)
    kept = Residency()
    for query in (product(1), product(2), MOMENT, sampled_with_key(product(3)), sampled_with_key(MOMENT)):
        found = exact_sum(source, query, client=client, residency=kept)
        np.testing.assert_array_equal(found, exact_sum(ArrayBlocks(ROWS, **cut), query))
        assert source.reads() == (source.n_blocks if query.digest() == product(1).digest() else 0)


def test_products_around_a_mean_share_their_rows(client, tmp_path):
    source, kept = Watched(ROWS, marks=tmp_path, block_records=50), Residency()
    shift = on_shift_grid(np.full(7, 0.3))
    for seed in range(2):
        directions = np.linalg.qr(np.random.default_rng(seed).standard_normal((7, 2)))[0]
        query = ExactProduct(
            relation="add_remove", directions=exact_directions(directions, shifted=True), shift=shift, **TERMS
        )
        found = exact_sum(source, query, client=client, residency=kept)
        np.testing.assert_array_equal(found, exact_sum(ArrayBlocks(ROWS), query))
        assert source.reads() == (0 if seed else source.n_blocks)


def sampled_with_key(query):
    sample = sampled(query, rate=0.3)
    assert isinstance(sample, PoissonSampled)
    return dataclasses.replace(sample, coin_key=KEY)


def test_rows_on_another_grid_or_of_another_source_are_not_taken_for_the_kept_ones(client, tmp_path):
    source, kept = Watched(ROWS, marks=tmp_path, block_records=50), Residency()
    finer = SecondMoment(relation="add_remove", **TERMS | {"bits": 13})
    mean = RecordMean(relation="add_remove", **TERMS)
    for query in (MOMENT, finer, mean, mean, MOMENT):
        found = exact_sum(source, query, client=client, residency=kept)
        np.testing.assert_array_equal(found, exact_sum(ArrayBlocks(ROWS), query))
    assert source.reads() == 4 * source.n_blocks
    other = ArrayBlocks(ROWS[1:])
    np.testing.assert_array_equal(exact_sum(other, MOMENT, client=client, residency=kept), exact_sum(other, MOMENT))


def test_noise_of_a_query_s_own_is_never_kept(client):
    kept = Residency()
    for label in (b"one step", b"another"):
        key = subkey(bytes(32), label="noise", info=label)
        reports = LocallyNoised.of(SecondMoment(relation="replace_one", **TERMS))
        query = dataclasses.replace(reports, noise_key=key, noise_std=9.0)
        found = exact_sum(ArrayBlocks(ROWS), query, client=client, residency=kept)
        np.testing.assert_array_equal(found, exact_sum(ArrayBlocks(ROWS), query))


def test_rows_that_do_not_fit_are_read_again(client, tmp_path, monkeypatch):
    monkeypatch.setattr(resident_rows, "SHARE", 1e-9)
    source, kept = Watched(ROWS, marks=tmp_path, block_records=50), Residency()
    for seed in range(2):
        found = exact_sum(source, product(seed), client=client, residency=kept)
        np.testing.assert_array_equal(found, exact_sum(ArrayBlocks(ROWS), product(seed)))
        assert source.reads() == source.n_blocks
    assert kept.rows == {}


def test_a_worker_lost_with_its_rows_changes_no_bit(client, tmp_path):
    source, kept = KillsOneWorker(ROWS, marks=tmp_path, block_records=9), Residency()
    addresses = set(client.scheduler_info()["workers"])
    for seed in range(3):
        if seed == 0:
            (tmp_path / "kill").touch()
        found = exact_sum(source, product(seed), client=client, residency=kept)
        np.testing.assert_array_equal(found, exact_sum(ArrayBlocks(ROWS), product(seed)))
    assert set(client.scheduler_info()["workers"]) != addresses
    client.wait_for_workers(2)
    found = exact_sum(source, product(9), client=client, residency=kept)
    np.testing.assert_array_equal(found, exact_sum(ArrayBlocks(ROWS), product(9)))
    assert set(kept.homes) == set(client.scheduler_info()["workers"])


@pytest.mark.timeout(60)
def test_a_sum_that_loses_the_last_worker_goes_on_with_its_successor(alone, tmp_path):
    source, done = KillsOneWorker(ROWS, marks=tmp_path, block_records=9), []
    (before,) = alone.scheduler_info()["workers"]
    (tmp_path / "kill").touch()
    found = exact_sum(source, MOMENT, client=alone, residency=Residency(), progress=lambda *at: done.append(at))
    np.testing.assert_array_equal(found, exact_sum(ArrayBlocks(ROWS), MOMENT))
    assert before not in alone.scheduler_info()["workers"]
    assert done[-4:] == [(at, 4) for at in range(1, 5)]


def test_a_sum_that_loses_every_worker_it_is_given_is_given_up(alone, tmp_path, monkeypatch):
    monkeypatch.setattr(cluster_sum, "RESUBMISSIONS", 0)
    (tmp_path / "kill").touch()
    with pytest.raises(WorkerFailed, match="lost, again and again"):
        exact_sum(KillsOneWorker(ROWS, marks=tmp_path), MOMENT, client=alone)


def test_rows_vanish_from_the_workers_when_a_release_ends(client):
    event = events.self_composed(Symmetric(noise_multiplier=4.0).event, 2)
    curator = Curator(ArrayBlocks(ROWS), InMemoryReservation(event=event), client=client)
    curator.release(MOMENT, Symmetric(noise_multiplier=4.0))
    assert held(client)
    curator.release(MOMENT, Symmetric(noise_multiplier=4.0))
    deadline = time.monotonic() + 30
    while held(client) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert held(client) == []


def held(client):
    return sorted({key for keys in client.run(lambda dask_worker: [*dask_worker.data]).values() for key in keys})


def test_large_inputs_and_totals_take_the_long_way_to_the_same_bits(client, tmp_path, monkeypatch):
    monkeypatch.setattr(cluster_sum, "SMALL_INPUT", 0)
    monkeypatch.setattr(cluster_sum, "SMALL_TOTALS", 0)
    done = []
    for kept in (None, Residency()):
        found = exact_sum(
            ArrayBlocks(ROWS, block_records=9),
            product(1),
            client=client,
            residency=kept,
            progress=lambda *at: done.append(at),
        )
        np.testing.assert_array_equal(found, exact_sum(ArrayBlocks(ROWS), product(1)))
    assert {count for _, count in done} == {8}


def test_the_scheduler_opens_no_source(client, tmp_path):
    exact_sum(Opened(ROWS, marks=tmp_path), MOMENT, client=client)
    workers = {str(pid) for pid in client.run(os.getpid).values()}
    assert {mark.name for mark in tmp_path.iterdir()} <= workers


def test_tasks_of_a_threaded_worker_hold_linear_algebra_to_one_thread_together():
    before = [library["num_threads"] for library in threadpool_info()]
    with in_process(n_workers=1, threads_per_worker=2) as cluster, Client(cluster, set_as_default=False) as client:
        found = exact_sum(Threads(ROWS, block_records=27), MOMENT, client=client)
    np.testing.assert_array_equal(found, exact_sum(ArrayBlocks(ROWS), MOMENT))
    assert set(Threads.seen) == {1}
    assert [library["num_threads"] for library in threadpool_info()] == before


def test_a_cluster_without_workers_is_given_up_and_the_release_goes_on_elsewhere(lonely, monkeypatch):
    monkeypatch.setattr(cluster_sum, "PATIENCE", 0.2)
    law = Symmetric(noise_multiplier=4.0)
    event = events.self_composed(law.event, 2)
    reservation = InMemoryReservation(event=event, key=bytes(32))
    first = Curator(ArrayBlocks(ROWS), reservation).release(MOMENT, law)
    stopped = Curator(ArrayBlocks(ROWS), reservation, client=lonely)
    np.testing.assert_array_equal(stopped.release(MOMENT, law), first)
    with pytest.raises(WorkerFailed, match="no worker that takes work"):
        stopped.release(MOMENT, law)
    whole = Curator(ArrayBlocks(ROWS), InMemoryReservation(event=event, key=bytes(32)))
    resumed = Curator(ArrayBlocks(ROWS), reservation)
    for curator in (whole, resumed):
        np.testing.assert_array_equal(curator.release(MOMENT, law), first)
    np.testing.assert_array_equal(resumed.release(MOMENT, law), whole.release(MOMENT, law))


def test_a_sum_whose_workers_have_all_gone_is_given_up(lonely, monkeypatch):
    monkeypatch.setattr(cluster_sum, "PATIENCE", 0.2)
    monkeypatch.setattr(cluster_sum, "HEARTBEAT", 0.1)
    monkeypatch.setattr(cluster_sum, "await_workers", lambda _: {"tcp://127.0.0.1:9": 1 << 40})
    kept = Residency()
    with pytest.raises(WorkerFailed, match="it resumes after the last stored step"):
        exact_sum(ArrayBlocks(ROWS), MOMENT, client=lonely, residency=kept)
    assert kept.rows == {}


def test_what_travels_shows_nothing():
    assert repr(Packed.of(ArrayBlocks(ROWS))) == "Packed()"
    assert repr(Gridded(first=0, last=1, stored=3, blocks=())) == "Gridded()"
