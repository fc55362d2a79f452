"""The main job without its noise: a source into a snapshot, and a snapshot into leading eigenvectors.

Peers hold the whole matrix in memory; the sums that are timed end to end read it from disk. Bars stand here,
beside what they judge.
"""

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from distributed import Client
from numpy.typing import NDArray
from scipy import linalg, sparse
from sklearn.datasets import dump_svmlight_file, load_svmlight_file
from sklearn.decomposition import PCA
from threadpoolctl import threadpool_limits

from benchmarks.conftest import Comparison
from benchmarks.inputs import Input, spine_inputs
from dpca_tasks.exact_sum import exact_sum
from dpca_tasks.layouts import unpack_symmetric
from dpca_tasks.queries.second_moment import SecondMoment
from flows.cluster import connect, open_cluster
from flows.settings import Settings
from storage.catalog import Catalog
from storage.datasets import Dataset
from storage.ingest import IngestReport, ingest
from storage.ledger import Ledger

BITS = 14
COMPONENTS = 10
WORKERS = 2
PCA_BAR = 1.0

type Matrix = NDArray[np.float64]
type Ingest = Callable[[Path], IngestReport]


@pytest.fixture(scope="module", params=spine_inputs(), ids=lambda spine_input: spine_input.name)
def spine_input(request: pytest.FixtureRequest) -> Input:
    """Take each input in turn."""
    declared: Input = request.param
    return declared


@pytest.fixture(scope="module")
def rows(spine_input: Input, *, toy: bool) -> sparse.csr_array:
    """Hold the rows of the input in memory."""
    return spine_input.rows(toy=toy)


@pytest.fixture(scope="module")
def query(spine_input: Input) -> SecondMoment:
    """Ask for the second moment under the input's public bound."""
    return SecondMoment(
        n_features=spine_input.n_features, clip_norm=spine_input.clip_norm, relation="add_remove", bits=BITS
    )


@pytest.fixture(scope="module")
def ledger(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ledger]:
    """Open a ledger in a home of its own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DPCA_HOME", str(tmp_path_factory.mktemp("home")))
        for elsewhere in ("DPCA_DATABASE_URL", "DPCA_KEY_FOLDER"):
            patch.delenv(elsewhere, raising=False)
        opened = Ledger.open()
        yield opened
        opened.engine.dispose()


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """Start local workers of one thread each."""
    settings = Settings(cluster="local", workers=WORKERS)
    with (
        open_cluster(settings, scratch=tmp_path_factory.mktemp("workers")) as address,
        connect(address) as connected,
    ):
        assert connected is not None
        yield connected


@pytest.fixture(scope="module")
def npz(rows: sparse.csr_array, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write the rows as scipy does."""
    path = tmp_path_factory.mktemp("npz") / "rows.npz"
    sparse.save_npz(path, rows, compressed=False)
    return path


@pytest.fixture(scope="module")
def svmlight(rows: sparse.csr_array, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write the rows as svmlight text."""
    path = tmp_path_factory.mktemp("svmlight") / "rows.svm"
    dump_svmlight_file(rows, np.zeros(rows.shape[0]), str(path), zero_based=False)
    return path


@pytest.fixture(scope="module")
def take(spine_input: Input, ledger: Ledger) -> Ingest:
    """Ingest a file under the name of the input."""

    def ingest_source(source: Path) -> IngestReport:
        return ingest(
            source,
            name=spine_input.name,
            n_features=spine_input.n_features,
            home=ledger.home,
            engine=ledger.engine,
        )

    return ingest_source


@pytest.fixture(scope="module")
def snapshot(spine_input: Input, npz: Path, take: Ingest, ledger: Ledger) -> Dataset:
    """Ingest the rows once."""
    take(npz)
    catalog = Catalog(ledger.engine, ledger.home)
    return catalog.open(catalog.current(spine_input.name))


def bench_ingest_npz(npz: Path, rows: sparse.csr_array, take: Ingest, tmp_path: Path, compare: Comparison) -> None:
    results = compare(
        lambda: take(npz),
        {"scipy-copy": lambda: sparse.save_npz(tmp_path / "copy.npz", sparse.load_npz(npz), compressed=False)},
    )
    assert (results["ours"].rows, results["ours"].nnz) == (rows.shape[0], rows.nnz)


def bench_ingest_svmlight(svmlight: Path, rows: sparse.csr_array, take: Ingest, compare: Comparison) -> None:
    results = compare(
        lambda: take(svmlight),
        {"sklearn-read": lambda: load_svmlight_file(str(svmlight), n_features=rows.shape[1])[0]},
    )
    assert results["sklearn-read"].nnz == rows.nnz
    assert (results["ours"].rows, results["ours"].nnz) == (rows.shape[0], rows.nnz)


def bench_second_moment(
    rows: sparse.csr_array, query: SecondMoment, snapshot: Dataset, client: Client, compare: Comparison
) -> None:
    leading = [query.n_features - COMPONENTS, query.n_features - 1]

    def leading_eigenvectors() -> tuple[Matrix, Matrix]:
        moment = in_data_units(query, exact_sum(snapshot, query, client=client))
        return moment, linalg.eigh(moment, subset_by_index=leading)[1]

    with threadpool_limits(limits=WORKERS):
        results = compare(
            leading_eigenvectors,
            {
                "scipy-product": lambda: rows.T @ rows,
                "sklearn-pca": lambda: PCA(COMPONENTS, svd_solver="covariance_eigh").fit(rows),
            },
            bars={"sklearn-pca": PCA_BAR},
        )
    moment, vectors = results["ours"]
    assert vectors.shape == (query.n_features, COMPONENTS)
    check_same(moment, results["scipy-product"].toarray())
    mean = rows.mean(axis=0)
    covariance = (moment - rows.shape[0] * np.outer(mean, mean)) / (rows.shape[0] - 1)
    variances = linalg.eigvalsh(covariance, subset_by_index=leading)[::-1]
    np.testing.assert_allclose(variances, results["sklearn-pca"].explained_variance_, rtol=0.02)


def in_data_units(query: SecondMoment, total: NDArray[np.int64]) -> Matrix:
    return unpack_symmetric(total * np.float64(query.unit / query.steps_per_unit), query.n_features)


def check_same(ours: Matrix, theirs: Matrix) -> None:
    """Compare up to the grid, whose steps are 2^-14 of the clip norm."""
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-3 * np.abs(theirs).max())
