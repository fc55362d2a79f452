"""One matrix in every format, and regressions found by the fuzzer.

The same matrix gives the same dataset in each format, for any order, packing and number of files. Each input from the
fuzzer is refused in one line that names the cause, before it costs time or memory.
"""

import gzip
import io
import itertools
import json
import tracemalloc
import zipfile
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import anndata
import h5py
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv as pc
import pyarrow.parquet as pq
import pytest
import scipy.io
import scipy.sparse as sp
import zarr
from sklearn.datasets import dump_svmlight_file

from dpca.errors import BadSource, Invalid
from storage.database import tables
from storage.database.engine import connect, transaction
from storage.datasets.ingest import IngestReport, ingest
from storage.datasets.ingest_options import IngestOptions
from storage.formats import hdf5
from storage.formats import tables as parquet
from storage.formats.batch import Quarantine, Rejects
from storage.formats.declared import Declared
from storage.formats.files import locate
from storage.formats.sources import open_file
from storage.formats.tables import ParquetReader

type Take = Callable[..., IngestReport]
type Write = Callable[[Path, sp.csr_array], dict[str, Any]]

WIDTH = 23
NAMES = [f"item {column}" for column in range(WIDTH)]


@pytest.fixture
def take(tmp_path: Path) -> Iterator[Take]:
    """Return a function that ingests a source into a separate home, each time under a new dataset name.

    A name is used once, because all snapshots of a dataset must have the same columns.
    """
    numbers = itertools.count()
    engine = connect(f"sqlite:///{tmp_path / 'dpca.sqlite'}")
    with transaction(engine) as connection:
        connection.execute(tables.ledger.insert().values(id="a" * 32, created_at="2026-01-01"))
    yield lambda source, **declared: ingest(
        source,
        name=f"x-{next(numbers)}",
        home=tmp_path / "home",
        engine=engine,
        options=IngestOptions(**{"population": "x"} | declared),
    )
    engine.dispose()


@pytest.fixture(scope="module")
def rows() -> sp.csr_array:
    """Return 500 rows, some of them empty, with values that need all their digits."""
    rng = np.random.default_rng(5)
    dense = rng.standard_normal((500, WIDTH)) * (rng.random((500, WIDTH)) < 0.15)
    dense[[0, 7, 499]] = 0.0
    return sp.csr_array(dense)


def triplets(rows: sp.csr_array, *, items: bool = False, text: bool = False) -> pa.Table:
    """Return the entries as triplets in random order; an empty row is represented by an explicit zero."""
    entries = rows.tocoo()
    empty = np.flatnonzero(np.diff(rows.indptr) == 0)
    row = np.concatenate((entries.row, empty))
    column = np.concatenate((entries.col, np.zeros_like(empty)))
    value = np.concatenate((entries.data, np.zeros(len(empty))))
    order = np.random.default_rng(1).permutation(len(row))
    row, column, value = row[order], column[order], value[order]
    return pa.table(
        {
            "value": value,
            "row": pa.array(row).cast(pa.string()) if text else pa.array(row),
            "column": pa.array([NAMES[at] for at in column]) if items else pa.array(column),
        }
    )


def write_svmlight(path: Path, rows: sp.csr_array) -> dict[str, Any]:
    lines = []
    for row in range(rows.shape[0]):
        span = slice(rows.indptr[row], rows.indptr[row + 1])
        pairs = zip(rows.indices[span] + 1, rows.data[span].tolist(), strict=True)
        lines.append(" ".join(["0", *(f"{column}:{value!r}" for column, value in pairs)]))
    text = "\n".join(lines).encode()
    if path.suffix == ".gz":
        text = gzip.compress(text)
    elif path.suffix == ".zst":
        text = pa.compress(text, codec="zstd", asbytes=True)
    path.write_bytes(text)
    return {"features": WIDTH}


def write_mtx(path: Path, rows: sp.csr_array) -> dict[str, Any]:
    order = np.random.default_rng(2).permutation(rows.nnz)
    entries = rows.tocoo()
    lines = [
        f"{row + 1} {column + 1} {value!r}"
        for row, column, value in zip(entries.row[order], entries.col[order], entries.data[order].tolist(), strict=True)
    ]
    head = f"%%MatrixMarket matrix coordinate real general\n% by hand\n{rows.shape[0]} {WIDTH} {rows.nnz}\n"
    text = (head + "\n".join(lines)).encode()
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
    return {}


def write_npz(path: Path, rows: sp.csr_array) -> dict[str, Any]:
    sp.save_npz(path, rows)
    return {}


def write_npy(path: Path, rows: sp.csr_array) -> dict[str, Any]:
    np.save(path, rows.toarray())
    return {}


def write_npy_by_columns(path: Path, rows: sp.csr_array) -> dict[str, Any]:
    np.save(path, np.asfortranarray(rows.toarray()))
    return {}


def write_dense_zarr(path: Path, rows: sp.csr_array) -> dict[str, Any]:
    zarr.save_array(path, rows.toarray())
    return {}


def write_anndata(path: Path, rows: sp.csr_array) -> dict[str, Any]:
    data = anndata.AnnData(X=sp.csr_matrix(rows), var=pd.DataFrame(index=NAMES))
    data.obs_names = [str(row) for row in range(rows.shape[0])]
    if path.suffix == ".h5ad":
        data.write_h5ad(path)
    else:
        data.write_zarr(path)
    return {}


def write_dense_h5ad(path: Path, rows: sp.csr_array) -> dict[str, Any]:
    data = anndata.AnnData(X=rows.toarray(), var=pd.DataFrame(index=NAMES))
    data.obs_names = [str(row) for row in range(rows.shape[0])]
    data.write_h5ad(path)
    return {}


def write_sparse_zarr(path: Path, rows: sp.csr_array) -> dict[str, Any]:
    group = zarr.create_group(path, attributes={"shape": list(rows.shape)})
    for name in ("indptr", "indices", "data"):
        group.create_array(name, data=getattr(rows, name))
    return {}


def write_triplet_csv(path: Path, rows: sp.csr_array) -> dict[str, Any]:
    delimiter = "\t" if path.suffix == ".tsv" else ","
    pc.write_csv(triplets(rows), path, pc.WriteOptions(delimiter=delimiter))
    return {"features": WIDTH}


def write_item_csv(path: Path, rows: sp.csr_array) -> dict[str, Any]:
    table = triplets(rows, items=True, text=True).rename_columns(["rating", "user", "item"])
    pc.write_csv(table, path)
    names = path.with_name("names.txt")
    names.write_text("\n".join(NAMES) + "\n")
    return {"feature_names": names, "columns": {"row": "user", "column": "item", "value": "rating"}}


def write_wide_csv(path: Path, rows: sp.csr_array) -> dict[str, Any]:
    pc.write_csv(pa.table(dict(zip(NAMES, rows.toarray().T, strict=True))), path)
    return {"features": WIDTH}


def write_triplet_parquet(path: Path, rows: sp.csr_array) -> dict[str, Any]:
    pq.write_table(triplets(rows, items=True), path, row_group_size=100)
    names = path.with_name("names.txt")
    names.write_text("\n".join(NAMES))
    return {"feature_names": names}


def write_wide_parquet(path: Path, rows: sp.csr_array) -> dict[str, Any]:
    pq.write_table(pa.table(dict(zip(NAMES, rows.toarray().T, strict=True))), path, row_group_size=100)
    return {}


WRITERS: dict[str, Write] = {
    "x.svm": write_svmlight,
    "x.svm.gz": write_svmlight,
    "x.svm.zst": write_svmlight,
    "x.mtx": write_mtx,
    "x.mtx.gz": write_mtx,
    "x.npy": write_npy,
    "columns.npy": write_npy_by_columns,
    "dense.zarr": write_dense_zarr,
    "sparse.zarr": write_sparse_zarr,
    "anndata.zarr": write_anndata,
    "x.h5ad": write_anndata,
    "dense.h5ad": write_dense_h5ad,
    "x.csv": write_triplet_csv,
    "x.tsv": write_triplet_csv,
    "items.csv": write_item_csv,
    "wide.csv": write_wide_csv,
    "x.parquet": write_triplet_parquet,
    "wide.parquet": write_wide_parquet,
}


@pytest.mark.filterwarnings(
    "ignore::zarr.errors.ZarrUserWarning", "ignore::FutureWarning", "ignore:The 'future.infer_string' option"
)
def test_every_format_gives_the_same_content(tmp_path: Path, rows: sp.csr_array, take: Take) -> None:
    expected = take(tmp_path / "x.npz", **write_npz(tmp_path / "x.npz", rows))
    assert (expected.rows, expected.records, expected.nnz) == (500, 500, rows.nnz)
    found = {}
    for name, write in WRITERS.items():
        report = take(tmp_path / name, **write(tmp_path / name, rows))
        found[name] = report.content_digest
    assert found == dict.fromkeys(WRITERS, expected.content_digest)
    assert not any((tmp_path / "home" / "scratch").iterdir())


@pytest.mark.parametrize("kind", ["svm", "mtx", "npz", "csv", "parquet"])
def test_several_files_are_one_source(tmp_path: Path, rows: sp.csr_array, take: Take, kind: str) -> None:
    writers: dict[str, Write] = {
        "svm": write_svmlight,
        "mtx": write_mtx,
        "npz": write_npz,
        "csv": write_wide_csv,
        "parquet": write_wide_parquet,
    }
    write_npz(tmp_path / "x.npz", rows)
    whole = take(tmp_path / "x.npz")
    folder = tmp_path / "parts"
    folder.mkdir()
    declared: dict[str, Any] = {}
    for part, first in enumerate(range(0, 500, 200)):
        declared = writers[kind](folder / f"part-{part}.{kind}", rows[first : first + 200])
    (folder / ".hidden").write_text("not read")
    files = [folder / f"part-{part}.{kind}" for part in range(3)]
    sources: list[Any] = [folder, str(folder / "part-*"), files]
    assert {take(source, **declared).content_digest for source in sources} == {whole.content_digest}
    if kind != "mtx":
        assert take(files[::-1], **declared).content_digest != whole.content_digest


def test_an_explicit_format_is_used_for_an_unknown_file_name(tmp_path: Path, rows: sp.csr_array, take: Take) -> None:
    write_npz(tmp_path / "x.npz", rows)
    write_wide_csv(tmp_path / "rows.txt", rows)
    found = take(tmp_path / "rows.txt", format="csv", features=WIDTH)
    assert found.content_digest == take(tmp_path / "x.npz").content_digest
    with pytest.raises(Invalid, match="is not one of"):
        take(tmp_path / "rows.txt", format="xlsx", features=WIDTH)
    with pytest.raises(BadSource, match="no file exists there"):
        take(str(tmp_path / "none-*.csv"), features=WIDTH)


def test_symmetric_and_pattern_matrices_are_those_of_scipy(tmp_path: Path, take: Take) -> None:
    pattern = sp.coo_array(sp.random_array((40, 40), density=0.1, rng=np.random.default_rng(3)))
    full = sp.coo_array(pattern + pattern.T)
    for number, (matrix, options) in enumerate(
        [
            (full, {"symmetry": "symmetric"}),
            (sp.coo_array(pattern - pattern.T), {"symmetry": "skew-symmetric"}),
            (full, {"field": "pattern", "symmetry": "general"}),
        ]
    ):
        path = tmp_path / f"{number}.mtx"
        scipy.io.mmwrite(path, matrix, **options)
        sp.save_npz(tmp_path / "x.npz", sp.csr_array(scipy.io.mmread(path, spmatrix=False)))
        assert take(path).content_digest == take(tmp_path / "x.npz").content_digest


def test_svmlight_rows_equal_those_of_scikit_learn(tmp_path: Path, rows: sp.csr_array, take: Take) -> None:
    whole = sp.csr_array((rows != 0).astype(np.float64))
    dump_svmlight_file(whole, np.zeros(500), str(tmp_path / "x.svm"), zero_based=False)
    write_npz(tmp_path / "x.npz", whole)
    assert take(tmp_path / "x.svm", features=WIDTH).content_digest == take(tmp_path / "x.npz").content_digest


def test_row_groups_of_parquet_are_released_after_reading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet, "BATCH_VALUES", 1 << 13)
    groups, source, numbers = 16, tmp_path / "rows.parquet", np.random.default_rng(1)
    with pq.ParquetWriter(source, pa.schema([("a", pa.float64())]), use_dictionary=False) as writer:
        for _ in range(groups):
            writer.write_table(pa.table({"a": numbers.random(1 << 16)}))
    with closing(ParquetReader(locate(source), declared=Declared.of())) as reader:
        tracemalloc.start()
        rows = sum(len(batch.places) for batch in reader.batches(Rejects()))
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert rows == groups << 16
    assert peak < source.stat().st_size / 2


def read(path: Path, *, rejects: Rejects | None = None, **declared: Any) -> int:
    """Read a source completely; return the number of accepted rows."""
    with closing(open_file(path, Declared(**declared))) as reader:
        batches = reader.batches(Rejects() if rejects is None else rejects)
        flags = [(len(batch.places), batch.rejected) for batch in batches]
    return sum(rows - (0 if rejected is None else int(rejected.sum())) for rows, rejected in flags)


def test_a_small_archive_member_that_declares_a_large_array_is_refused(tmp_path: Path) -> None:
    sp.save_npz(tmp_path / "x.npz", sp.csr_array(np.eye(3)))
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<i8", "fortran_order": False, "shape": (10**13,)})
    with zipfile.ZipFile(tmp_path / "x.npz") as archive:
        members = {name: archive.read(name) for name in archive.namelist()} | {"shape.npy": header.getvalue()}
    with zipfile.ZipFile(tmp_path / "x.npz", "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    with pytest.raises(BadSource, match=r"not a readable \.npz"):
        read(tmp_path / "x.npz")


@pytest.mark.parametrize("descriptor", ["{'descr': '<f8', 'fortran_order': False, 'shape': (\0)}", "{" + "(" * 300])
def test_a_header_that_is_not_a_python_literal_is_refused(tmp_path: Path, descriptor: str) -> None:
    text = descriptor.ljust(502) + "\n"
    (tmp_path / "x.npy").write_bytes(b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode() + bytes(80))
    with pytest.raises(BadSource, match=r"not a readable \.npy"):
        read(tmp_path / "x.npy")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b"a,b\n1,2\n3,\xff\n", "line 3 is not UTF-8"),
        (b"a,b\n1,2\r3,4\n", "line 2 holds a carriage return"),
        (b'a,b\n1,2\n3,"4\n5,6\n', r"line 3: the quote at character 3 \(column 'b'\) is not closed"),
        (b'a,b\n1,2\nx"y,"4\n5,6\n', r"line 3: the quote at character 5 \(column 'b'\) is not closed"),
        (b'a,b\n1,2\n3",4\n5,6\n', "line 3 does not close a quote"),
        (b",".join([b"c"] * 70_000) + b"\n", "70000 columns, more than"),
    ],
)
def test_ambiguous_delimited_text_is_refused(tmp_path: Path, text: bytes, reason: str) -> None:
    (tmp_path / "x.csv").write_bytes(text)
    with pytest.raises(BadSource, match=reason):
        read(tmp_path / "x.csv", n_features=2)


def test_an_unclosed_quote_rejects_one_line_in_an_unattended_ingest(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text('a,b\n1,2\n\n3,"4\n5,6\n7,8,9\n"1","2"\n')
    rejects = Quarantine()
    rejects.open(tmp_path / "notes")
    assert read(tmp_path / "x.csv", rejects=rejects, n_features=2, is_unattended=True) == 3
    rejects.close()
    assert [line.split(",")[2] for line in (tmp_path / "notes").read_text().splitlines()[1:]] == ["4", "6"]


def test_an_implausible_shape_for_the_file_size_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.mtx").write_text("%%MatrixMarket matrix coordinate real general\n1000000000 3 1\n1 1 1\n")
    zarr.create_array(tmp_path / "dense.zarr", shape=(10**12, 7), chunks=(8, 7), dtype="f8")
    group = zarr.create_group(tmp_path / "sparse.zarr", attributes={"shape": [10**12, 7]})
    for name, length in (("indptr", 10**12 + 1), ("indices", 0), ("data", 0)):
        group.create_array(name, shape=(length,), chunks=(16,), dtype="i8")
    for name in ("x.mtx", "dense.zarr", "sparse.zarr"):
        with pytest.raises(BadSource, match="almost all are empty"):
            read(tmp_path / name)


def test_pieces_that_exceed_memory_are_refused(tmp_path: Path) -> None:
    zarr.create_array(tmp_path / "x.zarr", shape=(10, 7), chunks=(8, 7), dtype="f8")[:] = 1.0
    described = json.loads((tmp_path / "x.zarr/zarr.json").read_text())
    described["chunk_grid"]["configuration"]["chunk_shape"] = [1 << 30, 7]
    (tmp_path / "x.zarr/zarr.json").write_text(json.dumps(described))
    with pytest.raises(BadSource, match="in chunks of at most"):
        read(tmp_path / "x.zarr")


def test_an_hdf5_file_that_cannot_be_opened_in_time_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with h5py.File(tmp_path / "x.h5ad", "w") as file:
        file["X"] = np.eye(3)
    assert read(tmp_path / "x.h5ad") == 3
    hdf5._is_survived.cache_clear()
    monkeypatch.setattr(hdf5, "_SECONDS", 0.001)
    with pytest.raises(BadSource, match="header cannot be read within"):
        read(tmp_path / "x.h5ad")
    hdf5._is_survived.cache_clear()


def test_a_table_may_hold_one_bad_cell_among_many(tmp_path: Path) -> None:
    cells = ["1.5"] * 10_000
    cells[7_777] = "x"
    pq.write_table(pa.table({"a": cells, "b": [" 2 "] * 10_000}), tmp_path / "x.parquet")
    with pytest.raises(BadSource, match="row 7777 has a value that is missing or not a number"):
        read(tmp_path / "x.parquet")


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary(), pa.binary(2), pa.binary_view()], ids=str)
@pytest.mark.parametrize("column", ["column", "value"])
@pytest.mark.parametrize("is_tolerant", [False, True])
def test_columns_of_bytes_are_refused(tmp_path: Path, kind: pa.DataType, column: str, *, is_tolerant: bool) -> None:
    """Read a column of byte strings: it is refused, even if the bytes could be parsed as numbers.

    Arrow parses bytes as numbers where it can, and otherwise raises an internal error.
    """
    found = {"row": pa.array([0, 1]), "column": pa.array([0, 1]), "value": pa.array([1.0, 2.0])}
    found[column] = pa.array([b"10", b"\xef\xff"], kind)
    pq.write_table(pa.table(found), tmp_path / "x.parquet")
    with pytest.raises(BadSource, match=r"holds .*binary.*; convert"):
        read(tmp_path / "x.parquet", n_features=2, rejects=Quarantine() if is_tolerant else None)
