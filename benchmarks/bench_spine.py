"""Time to ingest a file into a stored snapshot, compared with libraries that hold the whole matrix in memory."""

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from scipy import sparse
from sklearn.datasets import dump_svmlight_file, load_svmlight_file

from benchmarks.conftest import Comparison
from benchmarks.homes import own_ledger
from benchmarks.inputs import Input
from storage.datasets.ingest import IngestReport, ingest
from storage.datasets.ingest_options import IngestOptions
from storage.ledger.ledger import Ledger

type Ingest = Callable[[Path], IngestReport]


@pytest.fixture(scope="module")
def rows(spine_input: Input, *, toy: bool) -> sparse.csr_array:
    """Return all rows of the input as a sparse matrix in memory."""
    return spine_input.rows(toy=toy)


@pytest.fixture(scope="module")
def ledger(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ledger]:
    """Open a ledger in a temporary home folder."""
    with own_ledger(tmp_path_factory.mktemp("home")) as opened:
        yield opened


@pytest.fixture(scope="module")
def npz(rows: sparse.csr_array, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write the rows of the input to a SciPy ``.npz`` file, and return its path."""
    path = tmp_path_factory.mktemp("npz") / "rows.npz"
    sparse.save_npz(path, rows, compressed=False)
    return path


@pytest.fixture(scope="module")
def svmlight(rows: sparse.csr_array, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write the rows of the input to a file of svmlight text, and return its path."""
    path = tmp_path_factory.mktemp("svmlight") / "rows.svm"
    dump_svmlight_file(rows, np.zeros(rows.shape[0]), str(path), zero_based=False)
    return path


@pytest.fixture(scope="module")
def take(spine_input: Input, ledger: Ledger) -> Ingest:
    """Return a function that ingests a file under the name of the input."""

    def ingest_source(source: Path) -> IngestReport:
        return ingest(
            source,
            name=spine_input.name,
            home=ledger.home,
            engine=ledger.engine,
            options=IngestOptions(features=spine_input.n_features),
        )

    return ingest_source


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
