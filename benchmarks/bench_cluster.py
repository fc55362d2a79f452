"""Benchmarks of sums and releases on a Dask cluster: fixed costs, scaling and recovery from failures.

The cases are sums over no rows, more rows, more workers, a killed worker, and the cost of privacy. Each bar (the bound
that a result must meet) is a constant in this file. Absolute times depend on the machine, and are larger on a busy one.
"""

import os
import signal
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import batched, count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from distributed import Client
from numpy.typing import NDArray
from scipy import sparse

from benchmarks.conftest import Comparison, Measurement
from benchmarks.gauges import peak_bytes, seconds_in_turn, seconds_of
from benchmarks.homes import ingested_rows, own_ledger
from benchmarks.inputs import A9A_LIKE, DENSE
from dpca.artifacts.subspace import PrivateSubspace
from dpca.registry.reader import Registry
from dpca_tasks.mechanisms.base import Problem
from dpca_tasks.mechanisms.noisy_products import orthonormal, product_query, start_directions
from dpca_tasks.queries.base import RowSum
from dpca_tasks.queries.rounded_product import MomentProduct
from dpca_tasks.queries.second_moment import SecondMoment
from dpca_tasks.records.blocks import ArrayBlocks
from dpca_tasks.sums import cluster_sum
from dpca_tasks.sums.cluster_sum import FAN_IN
from dpca_tasks.sums.exact_sum import exact_sum
from dpca_tasks.sums.partial_sums import PARTITIONS_PER_WORKER, Residency
from flows.clusters.connecting import connect, open_cluster
from flows.orchestration.stage_calls import directly
from flows.releases.stages import make_release
from flows.requests import SubspaceRequest
from flows.settings import Settings
from storage.datasets.snapshot_reader import Dataset
from storage.ledger.ledger import Ledger

BITS = 14
COMPONENTS = 5
WORKERS = 2
BASE_ROWS, TIMES = 1_000_000, (1, 2, 4, 8)
ITERATIONS = 24  # `bench_overhead` makes this number of passes over its dense rows, which takes about ten seconds
EPSILON, DELTA, BUDGET = 1.0, 1e-9, 100.0
OVER_BARE, MERGED_OVER_BARE = 1.3, 1.2
MEMORY_RATIO = 1.1
SPEED_UP = 1.7
OVERHEAD = 1.10
OVER_NUMPY = 2.0
RECOVERY_FACTOR, RECOVERY_SECONDS = 2.0, 3.0


@pytest.fixture(scope="module")
def ledger(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ledger]:
    """Open a ledger in a temporary home folder."""
    with own_ledger(tmp_path_factory.mktemp("home")) as opened:
        yield opened


@pytest.fixture(scope="module")
def dense(*, toy: bool) -> sparse.csr_array:
    """Generate 200,000 dense rows of 500 columns."""
    return DENSE.rows(toy=toy)


@pytest.fixture(scope="module")
def stored(dense: sparse.csr_array, ledger: Ledger, tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """Ingest the rows of the fixture `dense`, open a budget for them, and return the dataset."""
    found = ingested_rows(dense, DENSE, ledger, tmp_path_factory.mktemp("dense"))
    ledger.open_budget(DENSE.name, epsilon=BUDGET, delta=DELTA)
    return found


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Start a local Dask cluster whose workers have one thread each."""
    with _workers(WORKERS, tmp_path_factory.mktemp("scratch")) as started:
        yield started


@pytest.fixture(scope="module")
def client(address: str) -> Iterator[Client]:
    """Connect a client to the local Dask cluster."""
    with connect(address) as connected:
        assert connected is not None
        yield connected


@pytest.mark.parametrize("columns", [0, 13], ids=["moment", "product"])
def bench_empty_round(
    columns: int, client: Client, measure: Measurement, monkeypatch: pytest.MonkeyPatch, *, toy: bool
) -> None:
    """Time an exact sum over no rows, compared with the same number of Dask tasks that do nothing.

    By default the client itself adds totals of this size. The sum is also timed with all merges on the workers, so that
    it has the same task graph as the Dask tasks with a merge tree.
    """
    query: RowSum = _product(784, columns) if columns else _moment(7, 1.0)
    nothing, kept = ArrayBlocks(np.empty((0, query.n_features))), Residency()

    def ours() -> None:
        exact_sum(nothing, query, client=client, residency=kept)

    def ours_merged() -> None:
        with monkeypatch.context() as patch:
            for bound in ("SMALL_TOTALS", "NEAR_TOTALS"):
                patch.setattr(cluster_sum, bound, 0)
            ours()

    works: dict[str, Callable[[], Any]] = {
        "ours": ours,
        "ours-merged": ours_merged,
        "bare": lambda: _bare_round(client, merged=True),
        "bare-unmerged": lambda: _bare_round(client, merged=False),
    }
    taken = seconds_in_turn(works, rounds=1 if toy else 51)
    median = {name: statistics.median(seconds) for name, seconds in taken.items()}
    measure("milliseconds", 1e3 * median["ours"])
    measure("milliseconds-at-best", 1e3 * min(taken["ours"]))
    measure("over-bare-dask", median["ours"] / median["bare"], at_most=OVER_BARE)
    measure("merged-over-bare-dask", median["ours-merged"] / median["bare"], at_most=MERGED_OVER_BARE)
    measure("over-bare-dask-unmerged", median["ours"] / median["bare-unmerged"])


def bench_scaling(
    ledger: Ledger, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, measure: Measurement, *, toy: bool
) -> None:
    """Sum n, 2n, 4n and 8n rows on fresh workers, and measure the time per row and the peak memory of a worker."""
    rows = A9A_LIKE.make(BASE_ROWS // 1_000 if toy else BASE_ROWS)
    query = _moment(A9A_LIKE.n_features, A9A_LIKE.clip_norm)
    seconds, peaks = {}, {}
    workers, sizes = (1, (TIMES[0], TIMES[-1])) if toy else (WORKERS, TIMES)
    for times in sizes:
        more = sparse.vstack([rows] * times, format="csr")
        snapshot = ingested_rows(more, A9A_LIKE, ledger, tmp_path_factory.mktemp("more"), name=f"times-{times}")
        seconds[times], peaks[times] = _cost(snapshot, query, workers, tmp_path, rounds=1 if toy else 5)
        measure(f"seconds-at-{times}n", seconds[times])
        measure(f"worker-MB-at-{times}n", peaks[times] / 2**20)
    measure("time-per-row-at-8n-over-n", seconds[8] / seconds[1] / 8)
    measure("memory-at-8n-over-n", peaks[8] / peaks[1], at_most=MEMORY_RATIO)
    alone = seconds[8] if toy else _cost(snapshot, query, 1, tmp_path, rounds=5)[0]
    measure("speed-of-2-workers-over-1", alone / seconds[8], at_least=SPEED_UP)


def bench_killed_worker(stored: Dataset, tmp_path: Path, measure: Measurement, *, toy: bool) -> None:
    """Kill a worker during a sum, and compare the time with the same sum on undisturbed workers.

    The sum must have the same bits, and take less than twice the undisturbed time plus three seconds.
    """
    query = _moment(DENSE.n_features, DENSE.clip_norm)
    calm, shaken = [], []
    with _workers(WORKERS, tmp_path) as started, connect(started) as client:
        assert client is not None
        expected = exact_sum(stored, query, client=client)
        for _ in range(1 if toy else 5):
            client.wait_for_workers(WORKERS)
            client.run(_warmed, stored, query)
            calm.append(seconds_of(lambda: exact_sum(stored, query, client=client)))
            victim = min(client.run(os.getpid).values())
            killer = threading.Timer(0.4 * calm[-1], os.kill, (victim, signal.SIGKILL))
            killer.start()
            start = time.perf_counter()
            found = exact_sum(stored, query, client=client)
            shaken.append(time.perf_counter() - start)
            killer.join()
            np.testing.assert_array_equal(found, expected)
    measure("seconds-undisturbed", statistics.median(calm))
    measure("seconds-with-a-kill", statistics.median(shaken))
    beyond = (statistics.median(shaken) - RECOVERY_SECONDS) / statistics.median(calm)
    measure("less-3-s-over-undisturbed", beyond, at_most=RECOVERY_FACTOR)


def bench_over_numpy(dense: sparse.csr_array, release: Callable[..., Any], compare: Comparison) -> None:
    """Time a release of five components of dense rows in one round, compared with NumPy on the same rows in memory.

    NumPy computes only the product ``X.T @ X`` and its eigenvectors, without privacy.
    """
    matrix = dense.toarray()
    results = compare(
        partial(release, rounds=1),
        {"numpy-gram-eigh": lambda: np.linalg.eigh(matrix.T @ matrix)},
        limits={"numpy-gram-eigh": OVER_NUMPY},
    )
    assert results["ours"].shape == (COMPONENTS, DENSE.n_features)


def bench_overhead(
    stored: Dataset, client: Client, release: Callable[..., Any], compare: Comparison, *, toy: bool
) -> None:
    """Time a release that makes many passes over the rows, compared with the same passes alone.

    The passes alone have no noise, no plan, no reservation of budget, and no storing or publishing.
    """
    iterations = 2 if toy else ITERATIONS
    problem = Problem(n_features=DENSE.n_features, clip_norm=DENSE.clip_norm)

    def without_privacy() -> NDArray[np.float64]:
        kept, directions = Residency(), start_directions(DENSE.n_features, COMPONENTS + 3)
        for _ in range(iterations):
            query = product_query(problem, bits=BITS, directions=directions)
            total = exact_sum(stored, query, client=client, residency=kept).astype(np.float64)
            directions = orthonormal(total.reshape(directions.shape))
        return directions

    compare(
        lambda: release(mechanism="noisy_power", settings={"iterations": str(iterations)}),
        {"non-private": without_privacy},
        limits={"non-private": OVERHEAD},
    )


@pytest.fixture
def release(stored: Dataset, address: str) -> Callable[..., Any]:
    """Return a function that makes a new release of the dense rows on the running cluster at each call."""
    assert stored.n_blocks > 0

    def released(**requested: Any) -> NDArray[np.float64]:
        request = SubspaceRequest(
            dataset=DENSE.name,
            components=COMPONENTS,
            epsilon=EPSILON,
            delta=DELTA,
            clip_norm=DENSE.clip_norm,
            publish="directions",
            run_key=f"release {next(_numbers)}",
            **requested,
        )
        artifact = make_release(directly, request, Settings(cluster=address))["artifact"]
        return Registry.open().load(artifact, PrivateSubspace).components

    return released


_numbers = count(1)


@contextmanager
def _workers(workers: int, scratch: Path) -> Iterator[str]:
    with open_cluster(Settings(cluster="local", workers=workers), scratch=scratch) as started:
        yield started


def _moment(n_features: int, clip_norm: float) -> SecondMoment:
    return SecondMoment(n_features=n_features, clip_norm=clip_norm, relation="add_remove", bits=BITS)


def _product(n_features: int, width: int) -> MomentProduct:
    problem = Problem(n_features=n_features, clip_norm=1.0)
    return product_query(problem, bits=BITS, directions=start_directions(n_features, width))


def _cost(snapshot: Dataset, query: RowSum, workers: int, scratch: Path, *, rounds: int) -> tuple[float, float]:
    """Start workers, compute a sum several times, and return its median seconds and a worker's peak bytes."""
    with _workers(workers, scratch) as started, connect(started) as client:
        assert client is not None
        exact_sum(snapshot, query, client=client)
        taken = [seconds_of(lambda: exact_sum(snapshot, query, client=client)) for _ in range(rounds)]
        peaks = client.run(peak_bytes)
        return statistics.median(taken), max(peaks.values())


def _bare_round(client: Client, *, merged: bool) -> None:
    """Run a Dask task that does nothing for every partition, with or without a tree of merge tasks above them."""
    run = next(_numbers)
    tasks: dict[str, Any] = {f"fold-{run}-{at}": (_nothing,) for at in range(PARTITIONS_PER_WORKER * WORKERS)}
    keys = [*tasks]
    while merged and len(keys) > 1:
        groups = [[*group] for group in batched(keys, FAN_IN)]
        above = {f"merge-{run}-{len(tasks) + at}": (_nothing, group) for at, group in enumerate(groups)}
        tasks |= above
        keys = [*above]
    client.get(tasks, keys)


def _nothing(*_: Any) -> None:
    return None


def _warmed(snapshot: Dataset, query: RowSum) -> None:
    """Compute the query on one block, so that a restarted worker loads its code before the measurement."""
    query.map(query.grid(snapshot.read(0)))
