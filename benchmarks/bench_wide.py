"""Releases of rows with many columns, which multiply by the noised second moment without forming the matrix.

Such a release is compared with its arithmetic alone, and with a release that forms the matrix. The arithmetic alone
draws the noise once and computes the same exact products, in threads of this process. It has no store, no cluster, no
orthogonalization, no ledger and no artifact.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import count, pairwise
from pathlib import Path

import dask
import numpy as np
import pytest
from distributed import Client, LocalCluster
from numpy.typing import NDArray
from scipy import linalg, sparse
from threadpoolctl import threadpool_limits

from benchmarks.conftest import Comparison, Measurement
from benchmarks.gauges import peak_bytes
from benchmarks.homes import own_ledger
from benchmarks.inputs import SYN, TEXT, Input
from dpca.artifacts.subspace import PrivateSubspace
from dpca.registry.reader import Registry
from dpca_tasks.mechanisms.base import PrivacyTarget, Problem
from dpca_tasks.mechanisms.eigenpairs import block_width
from dpca_tasks.mechanisms.noisy_products import start_directions
from dpca_tasks.mechanisms.released_moment import moment_query
from dpca_tasks.mechanisms.subspace.analyze_gauss import AnalyzeGauss
from dpca_tasks.noise.distributions import Symmetric
from dpca_tasks.noise.keystream import subkey
from dpca_tasks.privacy.curator import Curator
from dpca_tasks.privacy.gate import InMemoryReservation
from dpca_tasks.privacy.tiled_noise import NoiseOperator, Panel, cut_rows, draw_panel, multiply
from dpca_tasks.queries.operator_product import DIRECTION_BITS, UnroundedProduct
from dpca_tasks.records.blocks import ArrayBlocks, RowBlock
from flows.clusters.connecting import open_cluster
from flows.clusters.dask_clusters import LOCAL_SETTINGS
from flows.orchestration.stage_calls import directly
from flows.releases.stages import make_release
from flows.requests import SubspaceRequest
from flows.settings import Settings
from storage.datasets.ingest import ingest
from storage.datasets.ingest_options import IngestOptions

COMPONENTS = 50
WORKERS = 2
TARGET = PrivacyTarget(epsilon=1.0, delta=1e-6)
BUDGET = 100.0
BARE_LIMIT = 1.3
KEPT_GB, DRAWN_AGAIN_GB = 2.5, 1.0
SMALL_WORKER = "2GB"  # the noise of 20,000 columns does not fit in such a worker, so each product draws it again
TOY_FEATURES = 200

type Integers = NDArray[np.int64]


@pytest.fixture
def rows(*, toy: bool) -> sparse.csr_array:
    """Return generated texts as sparse rows of 20,000 columns."""
    made = TEXT.rows(toy=toy)
    return made[:, :TOY_FEATURES] if toy else made


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Record the number of directions of every product with the noised second moment in this process."""
    widths: list[int] = []
    begin = NoiseOperator.begin

    def noted(self: NoiseOperator, directions: Integers) -> Callable[[], Integers]:
        widths.append(directions.shape[1])
        return begin(self, directions)

    monkeypatch.setattr(NoiseOperator, "begin", noted)
    return widths


@pytest.fixture
def release(rows: sparse.csr_array, tmp_path: Path) -> Iterator[Callable[[], NDArray[np.float64]]]:
    """Ingest the texts, start a cluster, and return a function that makes a new release at each call."""
    path, numbers, local = tmp_path / "rows.npz", count(1), Settings(cluster="local", workers=WORKERS)
    sparse.save_npz(path, rows, compressed=False)
    with own_ledger(tmp_path / "home") as ledger, open_cluster(local, scratch=tmp_path / "scratch") as address:
        ingest(
            path, name="texts", home=ledger.home, engine=ledger.engine, options=IngestOptions(features=rows.shape[1])
        )
        ledger.open_budget("texts", epsilon=BUDGET, delta=TARGET.delta)

        def released() -> NDArray[np.float64]:
            request = SubspaceRequest(
                dataset="texts",
                components=COMPONENTS,
                epsilon=TARGET.epsilon,
                delta=TARGET.delta,
                clip_norm=TEXT.clip_norm,
                publish="directions",
                settings={"form": "operator"},
                run_key=f"release {next(numbers)}",
            )
            artifact = make_release(directly, request, Settings(cluster=address))["artifact"]
            return Registry.open().load(artifact, PrivateSubspace).components

        yield released


def bench_wide(
    rows: sparse.csr_array,
    passes: list[int],
    release: Callable[[], NDArray[np.float64]],
    compare: Comparison,
    measure: Measurement,
) -> None:
    release()
    widths = list(passes)
    bare = Bare(rows)
    with threadpool_limits(limits=1):
        results = compare(
            release, {"bare-products": partial(bare.run, widths)}, limits={"bare-products": BARE_LIMIT}, rounds=1
        )
    assert results["ours"].shape == (COMPONENTS, rows.shape[1])
    measure("products", len(widths))


class Bare:
    """The arithmetic of a release alone, on gridded rows in memory, with as many threads as a cluster has workers."""

    def __init__(self, rows: sparse.csr_array) -> None:
        self._order = rows.shape[1]
        problem = Problem(n_features=self._order, clip_norm=TEXT.clip_norm)
        plan = AnalyzeGauss(n_components=COMPONENTS, rounds=1).plan(problem, TARGET)
        self._moment = moment_query(problem, bits=plan.bits)
        self._scale = plan.noise_multiplier * 4.0**plan.bits
        source = ArrayBlocks(rows, block_records=-(-rows.shape[0] // WORKERS))
        self._blocks = [self._moment.grid(source.read(block)) for block in range(source.n_blocks)]

    def run(self, widths: list[int]) -> Integers:
        """Draw the noise once, and compute one product with each of the given numbers of directions."""
        key = subkey(bytes(32), label="benchmark", info=b"wide")
        law, bounds = Symmetric(noise_multiplier=1.0), cut_rows(self._order, WORKERS)
        panels = [
            Panel(distribution=law, key=key, order=self._order, scale_in_steps=self._scale, first=first, last=last)
            for first, last in pairwise(bounds)
        ]
        with ThreadPoolExecutor(WORKERS) as pool:
            drawn = list(pool.map(draw_panel, panels))
            for width in widths:
                directions = on_grid(start_directions(self._order, width))
                products = list(pool.map(partial(self._share, directions), zip(drawn, self._blocks, strict=True)))
        return products[-1]

    def _share(self, directions: Integers, mine: tuple[Panel, RowBlock]) -> Integers:
        panel, block = mine
        noise = multiply(panel, directions)
        return noise.ravel() + UnroundedProduct.of(self._moment, directions).map(block)[: noise.size]


@pytest.mark.parametrize(
    ("memory", "most"), [("auto", KEPT_GB), (SMALL_WORKER, DRAWN_AGAIN_GB)], ids=["kept", "drawn-again"]
)
def bench_worker_memory(memory: str, most: float, rows: sparse.csr_array, measure: Measurement) -> None:
    """Compute two products with the noised second moment on a new cluster, and measure its workers' peak memory."""
    with (
        dask.config.set(LOCAL_SETTINGS),
        LocalCluster(
            n_workers=WORKERS, threads_per_worker=1, memory_limit=memory, host="127.0.0.1", dashboard_address=":0"
        ) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        problem = Problem(n_features=rows.shape[1], clip_norm=TEXT.clip_norm)
        plan = AnalyzeGauss(n_components=COMPONENTS, rounds=1).plan(problem, TARGET)
        law = Symmetric(noise_multiplier=plan.noise_multiplier)
        curator = Curator(
            ArrayBlocks(rows), InMemoryReservation(event=plan.event, relation=plan.problem.relation), client=client
        )
        operator = curator.release_operator(moment_query(problem, bits=plan.bits), law)
        directions = on_grid(start_directions(rows.shape[1], block_width(rows.shape[1], COMPONENTS)))
        for _ in range(2):
            operator.product(directions)
        peaks = client.run(peak_bytes)
    measure("gigabytes", max(peaks.values()) / 1e9, at_most=most)


@pytest.mark.parametrize("source", [SYN, TEXT], ids=["syn", "text"])
def bench_formed(source: Input, measure: Measurement, *, toy: bool) -> None:
    """Compare the release without a formed matrix with the release that forms it, at 2,000 columns.

    Products must be equal bit for bit. Ritz values of the first release must be near the eigenvalues of the second.
    """
    d, n = (200, 400) if toy else (2_000, 20_000)
    rows = source.make(n)[:, :d]
    problem = Problem(n_features=d, clip_norm=source.clip_norm)
    dense, operator = (AnalyzeGauss(n_components=COMPONENTS, form=form, rounds=1) for form in ("dense", "operator"))
    plan = dense.plan(problem, TARGET)

    def curator() -> Curator:
        return Curator(
            ArrayBlocks(rows), InMemoryReservation(event=plan.event, relation=plan.problem.relation, key=bytes(32))
        )

    law, query = Symmetric(noise_multiplier=plan.noise_multiplier), moment_query(problem, bits=plan.bits)
    formed = curator().release(query, law)
    requested = on_grid(start_directions(d, COMPONENTS))
    steps = np.rint(formed / query.unit * query.steps_per_unit)
    high, low = np.divmod(steps, 2.0**20)  # both parts are small enough for exact floating-point products
    exact = [high @ requested.astype(np.float64), low @ requested.astype(np.float64)]
    whole = (exact[0].astype(object) * 2**20 + exact[1].astype(object)).astype(np.float64)
    product = curator().release_operator(query, law).product(requested)
    differ = product != whole * (query.unit / query.steps_per_unit * 2.0**-DIRECTION_BITS)
    measure("entries-that-differ", int(differ.sum()), at_most=0)
    values = linalg.eigvalsh(formed, subset_by_index=[d - COMPONENTS, d - 1])[::-1]
    found = operator.run(curator(), plan).eigenvalues
    assert found is not None
    measure("thousandths-off", 1e3 * np.abs(found / values - 1).max(), at_most=1.0)


def on_grid(directions: NDArray[np.float64]) -> Integers:
    return np.rint(directions * 2.0**DIRECTION_BITS).astype(np.int64)
