"""Time to read stored rows from the page cache into memory on one core, as every pass over a dataset does."""

import os
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import anndata
import numpy as np
import pytest
import zarr
from scipy import sparse

from benchmarks.conftest import Comparison, Measurement
from benchmarks.homes import own_ledger
from benchmarks.inputs import A9A_LIKE, SYN, Input
from dpca.backends.local import LocalPlace
from storage.datasets.catalog import Catalog
from storage.datasets.ingest import ingest
from storage.datasets.snapshot_reader import Dataset

ANNDATA_BAR = 4.0
SPEED_BAR = 1.2
"""The least accepted GB of CSR per second of processor time, including the store's threads, for blocks of 12 MB or
more.
"""
PASSES = 5
_VALUE, _ROW = 8 + 4, 8
"""Bytes of CSR in memory: a float64 and an int32 per stored value, an int64 per row."""


@pytest.fixture(autouse=True)
def one_core() -> Iterator[None]:
    """Pin all threads to one core, so that threads of the Zarr store cannot hide the cost of reading."""
    cores = os.sched_getaffinity(0)
    _keep_on({min(cores)})
    yield
    _keep_on(cores)


@pytest.fixture(params=[A9A_LIKE, SYN], ids=lambda source: source.name)
def declared(request: pytest.FixtureRequest) -> Input:
    """Return an input on which the benchmark runs."""
    source: Input = request.param
    return source


@pytest.fixture
def rows(declared: Input, *, toy: bool) -> sparse.csr_array:
    """Return all rows of the input as a sparse matrix in memory."""
    return declared.rows(toy=toy)


@pytest.fixture
def dataset(rows: sparse.csr_array, tmp_path: Path) -> Iterator[Dataset]:
    """Ingest the rows as float64 in blocks of the default size."""
    source = tmp_path / "rows.npz"
    sparse.save_npz(source, rows, compressed=False)
    with own_ledger(tmp_path / "home") as ledger:
        place = LocalPlace(ledger.home)
        ingest(source, name="rows", home=ledger.home, engine=ledger.engine, place=place)
        catalog = Catalog(ledger.engine, ledger.home, place)
        yield catalog.open(catalog.current("rows"))


def bench_read(
    rows: sparse.csr_array, dataset: Dataset, tmp_path: Path, compare: Comparison, measure: Measurement
) -> None:
    group = zarr.create_group(tmp_path / "peer.zarr")
    anndata.io.write_elem(group, "X", sparse.csr_matrix(rows))
    results = compare(
        lambda: _read(dataset), {"anndata": lambda: anndata.io.read_elem(group["X"])}, bars={"anndata": ANNDATA_BAR}
    )
    assert results["ours"] == (rows.nnz, rows.shape[0])
    np.testing.assert_array_equal(results["anndata"].indptr, rows.indptr)
    speeds = []
    for _ in range(PASSES):
        start = time.process_time()
        nnz, n_rows = _read(dataset)
        speeds.append((nnz * _VALUE + n_rows * _ROW) / 1e9 / (time.process_time() - start))
    measure("GB-per-cpu-second", max(speeds), at_least=SPEED_BAR)


def _keep_on(cores: set[int]) -> None:
    for thread in os.listdir("/proc/self/task"):  # noqa: PTH208, numbers
        with suppress(ProcessLookupError):
            os.sched_setaffinity(int(thread), cores)


def _read(dataset: Dataset) -> tuple[int, int]:
    """Read every block of a dataset, and return the total numbers of stored values and rows."""
    nnz = n_rows = 0
    for number in range(dataset.n_blocks):
        block = dataset.read(number)
        nnz, n_rows = nnz + len(block.values), n_rows + len(block.row_ptr) - 1
    return nnz, n_rows
