"""Ingest of files on disk, compared with libraries that read the same file and store the matrix.

Rows stored by dpca can be read one block at a time; the files written by the peers cannot.
"""

import statistics
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from scipy import sparse
from sklearn.datasets import dump_svmlight_file, load_svmlight_file

from benchmarks.conftest import ROUNDS, Comparison, Measurement
from benchmarks.homes import own_ledger
from benchmarks.inputs import SYN, Input, spine_inputs
from storage.datasets.ingest import ingest
from storage.datasets.ingest_options import IngestOptions
from storage.formats.batch import Rejects
from storage.formats.declared import Declared
from storage.formats.files import locate
from storage.formats.svmlight import SvmlightReader
from storage.ledger.ledger import Ledger

COPY_BAR = 2.0
TRIPLETS_BAR = 3.0
CORE_MB = {"a9a-like": 260.0, "syn": 400.0, "mnist": 400.0}
"""The least accepted megabytes of svmlight text that are ingested per second of processor time, by input."""


@pytest.fixture(params=[SYN], ids=lambda source: source.name)
def declared(request: pytest.FixtureRequest) -> Input:
    """Return an input on which the benchmark runs."""
    source: Input = request.param
    return source


@pytest.fixture
def rows(declared: Input, *, toy: bool) -> sparse.csr_array:
    """Return all rows of the input as a sparse matrix in memory."""
    return declared.rows(toy=toy)


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    """Open a ledger in a temporary home folder."""
    with own_ledger(tmp_path / "home") as opened:
        yield opened


def bench_copy_svmlight(rows: sparse.csr_array, ledger: Ledger, tmp_path: Path, compare: Comparison) -> None:
    source, width = tmp_path / "rows.svm", rows.shape[1]
    dump_svmlight_file(rows, np.zeros(rows.shape[0]), str(source), zero_based=False)

    def sklearn_scipy(*, compressed: bool = True) -> sparse.csr_array:
        matrix = load_svmlight_file(str(source), n_features=width)[0]
        sparse.save_npz(tmp_path / "copy.npz", matrix, compressed=compressed)
        return matrix

    results = compare(
        lambda: ingest(
            source, name="rows", home=ledger.home, engine=ledger.engine, options=IngestOptions(features=width)
        ),
        {"sklearn-scipy": sklearn_scipy, "sklearn-scipy-uncompressed": partial(sklearn_scipy, compressed=False)},
        bars={"sklearn-scipy": COPY_BAR},
    )
    theirs = results["sklearn-scipy"]
    assert (results["ours"].rows, results["ours"].nnz) == (*theirs.shape[:1], theirs.nnz) == (rows.shape[0], rows.nnz)


@pytest.mark.parametrize("written", spine_inputs(), ids=lambda source: source.name)
def bench_ingest_per_core(written: Input, ledger: Ledger, tmp_path: Path, measure: Measurement, *, toy: bool) -> None:
    """Measure the processor time of a whole ingest of svmlight text, and of the svmlight parser alone."""
    rows, source = written.rows(toy=toy), tmp_path / "rows.svm"
    dump_svmlight_file(rows, np.zeros(rows.shape[0]), str(source), zero_based=False)
    options, size = IngestOptions(features=written.n_features), source.stat().st_size / 1e6

    def parse() -> None:
        with closing(
            SvmlightReader(locate(source), declared=Declared(n_features=written.n_features, is_unattended=True))
        ) as reader:
            deque(reader.batches(Rejects()), maxlen=0)

    def stored() -> None:
        ingest(source, name="rows", home=ledger.home, engine=ledger.engine, options=options)

    measure("megabytes-a-second", size / _processor(stored, toy=toy), at_least=CORE_MB[written.name])
    measure("megabytes-a-second-parsed", size / _processor(parse, toy=toy))


def bench_copy_triplets(rows: sparse.csr_array, ledger: Ledger, tmp_path: Path, compare: Comparison) -> None:
    source, width = tmp_path / "rows.parquet", rows.shape[1]
    entries = rows.tocoo()
    order = np.random.default_rng(0).permutation(rows.nnz)
    table = {"row": entries.row[order], "column": entries.col[order], "value": entries.data[order]}
    pq.write_table(pa.table(table), source)

    def pandas_scipy(*, compressed: bool = True) -> sparse.csr_array:
        frame = pd.read_parquet(source)
        matrix = sparse.csr_array((frame["value"], (frame["row"], frame["column"])), shape=rows.shape)
        sparse.save_npz(tmp_path / "copy.npz", matrix, compressed=compressed)
        return matrix

    results = compare(
        lambda: ingest(
            source, name="triplets", home=ledger.home, engine=ledger.engine, options=IngestOptions(features=width)
        ),
        {"pandas-scipy": pandas_scipy, "pandas-scipy-uncompressed": partial(pandas_scipy, compressed=False)},
        bars={"pandas-scipy": TRIPLETS_BAR},
    )
    assert results["ours"].nnz == results["pandas-scipy"].nnz == rows.nnz


def _processor(work: Callable[[], None], *, toy: bool) -> float:
    """Return the median processor seconds of a call, after one warm-up call."""
    taken = []
    for _ in range(2 if toy else ROUNDS + 1):
        start = time.process_time()
        work()
        taken.append(time.process_time() - start)
    return statistics.median(taken[1:])
