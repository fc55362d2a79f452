"""A whole release, from opening the store to the published artifact, next to what peers need for the same directions.

The cluster of either side is warm; peers that hold the rows in memory have loaded them. A release spends budget, draws
noise, keeps, publishes and verifies; peers do none of that. Bars stand here, beside what they judge.
"""

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import anndata
import numpy as np
import pytest
import zarr
from numpy.typing import NDArray
from scipy import linalg, sparse

from benchmarks.conftest import Comparison, Measurement
from benchmarks.homes import ingested, own_ledger
from benchmarks.inputs import Input
from benchmarks.peers.asking import PYTHON, Answer, Peers
from flows.clusters.connecting import open_cluster
from flows.orchestration.prefect_stages import directly
from flows.releases.stages import make_release
from flows.requests.subspace import SubspaceRequest
from flows.settings import Settings
from storage.artifacts.subspace import PrivateSubspace
from storage.datasets.catalog import Catalog
from storage.ledger.ledger import Ledger
from storage.registry.reader import Registry

COMPONENTS = 10
WORKERS = 2
EPSILON, DELTA = 1.0, 1e-9
BUDGET = 100.0
BARS = {
    "sklearn-pca-dense": 1.0,
    "scanpy-pca": 3.0,
    "dask-ml-truncated-svd": 4.0,
    "dask-ml-pca": 4.0,
}
NARROW = 150  # columns, up to which dask-ml must be beaten more clearly
NARROW_BARS = dict.fromkeys(("dask-ml-truncated-svd", "dask-ml-pca"), 20.0)
UNBARRED = ("scanpy-pca-of-our-blocks", "sklearn-pca-sparse", "sklearn-truncated-svd", "dask-svd-compressed")
DENSE = ("sklearn-pca-dense", "dask-ml-truncated-svd", "dask-ml-pca", "dask-svd-compressed")
DENSE_BYTES = 2**30  # what peers that take dense rows alone are given; SYN would be 3.2 GB


@pytest.fixture
def rows(spine_input: Input, tmp_path: Path, *, toy: bool) -> Path:
    """Write the rows as scipy does."""
    path = tmp_path / "rows.npz"
    sparse.save_npz(path, spine_input.rows(toy=toy), compressed=False)
    return path


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    """Open a ledger in a home of its own."""
    with own_ledger(tmp_path / "home") as opened:
        yield opened


@pytest.fixture
def snapshot(spine_input: Input, rows: Path, ledger: Ledger) -> str:
    """Ingest the rows once, open a budget, and return where they stand."""
    ingested(rows, spine_input, ledger, name="rows")
    ledger.open_budget("rows", epsilon=BUDGET, delta=DELTA)
    return str(ledger.home / Catalog(ledger.engine, ledger.home).current("rows").path)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Settings]:
    """Start local workers of one thread each."""
    local = Settings(cluster="local", workers=WORKERS)
    with open_cluster(local, scratch=tmp_path_factory.mktemp("scratch")) as address:
        yield Settings(cluster=address)


@pytest.fixture
def release(spine_input: Input, snapshot: str, cluster: Settings) -> Callable[..., Any]:
    """Return what makes one more release on a warm cluster, refined as by default or as it is told."""
    numbers = count(1)

    def released(refine: str | None = None) -> NDArray[np.float64]:
        request = SubspaceRequest(
            dataset="rows",
            components=COMPONENTS,
            epsilon=EPSILON,
            delta=DELTA,
            clip_norm=spine_input.clip_norm,
            publish="directions",
            run_key=f"release {next(numbers)}",
            refine=refine,
        )
        artifact = make_release(directly, request, cluster)["artifact"]
        return Registry.open().load(artifact, PrivateSubspace).components

    return released


def bench_release(
    spine_input: Input,
    rows: Path,
    snapshot: str,
    release: Callable[..., Any],
    compare: Comparison,
    measure: Measurement,
    *,
    toy: bool,
) -> None:
    size = 8.0 * spine_input.n_rows * spine_input.n_features
    bars = {**BARS, **(NARROW_BARS if spine_input.n_features <= NARROW else {})}
    fitting = [name for name in (*BARS, *UNBARRED) if name not in DENSE or size <= DENSE_BYTES]
    names = fitting if PYTHON.is_file() and not toy else []
    theirs = rows.with_suffix(".zarr")
    anndata.io.write_elem(zarr.create_group(theirs), "X", sparse.csr_matrix(sparse.load_npz(rows)))
    inputs: dict[str, Any] = {"store": snapshot, "rows": rows, "anndata": theirs}
    with Peers(workers=WORKERS) if names else nullcontext() as peers:
        asked = {name: partial(peers.ask, name, **inputs, k=COMPONENTS) for name in names if peers}
        results = compare(release, asked, bars={name: bars[name] for name in names if name in bars})
    moment, centre = _moment(sparse.load_npz(rows))
    centred = moment - np.outer(centre, centre)
    for name, result in results.items():
        directions = result.directions if isinstance(result, Answer) else result
        measure(f"captured-by-{name}", _captured(centred if "pca" in name else moment, directions))


def bench_refined_release(rows: Path, release: Callable[..., Any], compare: Comparison, measure: Measurement) -> None:
    results = compare(release, {"unrefined": partial(release, refine="none")})
    moment, _ = _moment(sparse.load_npz(rows))
    for name, directions in results.items():
        measure(f"captured-by-{name}", _captured(moment, directions))


def _moment(rows: sparse.csr_array) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the second moment, and what is to be taken off it by those who center: the sum over the root of n."""
    total = np.asarray(rows.sum(axis=0)).ravel()
    return np.asarray((rows.T @ rows).toarray()), total / np.sqrt(rows.shape[0])


def _captured(moment: NDArray[np.float64], directions: NDArray[np.float64]) -> float:
    """Return the variance that directions capture, over the most that as many can."""
    basis = np.linalg.qr(directions.T)[0]
    order, k = moment.shape[0], basis.shape[1]
    most = linalg.eigvalsh(moment, subset_by_index=[order - k, order - 1]).sum()
    return float(np.trace(basis.T @ moment @ basis) / most)
