"""What the fuzzer found once: each is refused in one line that names the cause, before it costs time or memory."""

import io
import json
import zipfile
from contextlib import closing
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import scipy.sparse as sp
import zarr

from storage.errors import BadSource
from storage.formats import hdf5
from storage.formats.declared import Declared
from storage.formats.rejects import Quarantine, Rejects
from storage.formats.sources import open_file


def read(path: Path, *, rejects: Rejects | None = None, **declared: Any) -> int:
    """Read a source to its end; return the number of rows that were not rejected."""
    with closing(open_file(path, Declared(**declared))) as reader:
        batches = reader.batches(Rejects() if rejects is None else rejects)
        flags = [(len(batch.places), batch.rejected) for batch in batches]
    return sum(rows - (0 if rejected is None else int(rejected.sum())) for rows, rejected in flags)


def test_a_small_member_that_declares_much_is_not_believed(tmp_path: Path) -> None:
    sp.save_npz(tmp_path / "x.npz", sp.csr_array(np.eye(3)))
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<i8", "fortran_order": False, "shape": (10**13,)})
    with zipfile.ZipFile(tmp_path / "x.npz") as archive:
        members = {name: archive.read(name) for name in archive.namelist()} | {"shape.npy": header.getvalue()}
    with zipfile.ZipFile(tmp_path / "x.npz", "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    with pytest.raises(BadSource, match=r"no readable \.npz"):
        read(tmp_path / "x.npz")


@pytest.mark.parametrize("descriptor", ["{'descr': '<f8', 'fortran_order': False, 'shape': (\0)}", "{" + "(" * 300])
def test_a_header_that_is_no_python_is_refused(tmp_path: Path, descriptor: str) -> None:
    text = descriptor.ljust(502) + "\n"
    (tmp_path / "x.npy").write_bytes(b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode() + bytes(80))
    with pytest.raises(BadSource, match=r"no readable \.npy"):
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
def test_delimited_text_that_would_be_read_otherwise_is_refused(tmp_path: Path, text: bytes, reason: str) -> None:
    (tmp_path / "x.csv").write_bytes(text)
    with pytest.raises(BadSource, match=reason):
        read(tmp_path / "x.csv", n_features=2)


def test_a_quote_that_is_not_closed_takes_one_line_with_it_unattended(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text('a,b\n1,2\n\n3,"4\n5,6\n7,8,9\n"1","2"\n')
    rejects = Quarantine()
    rejects.open(tmp_path / "notes")
    assert read(tmp_path / "x.csv", rejects=rejects, n_features=2, is_unattended=True) == 3
    rejects.close()
    assert [line.split(",")[2] for line in (tmp_path / "notes").read_text().splitlines()[1:]] == ["4", "6"]


def test_a_shape_that_no_file_of_its_size_honestly_has_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.mtx").write_text("%%MatrixMarket matrix coordinate real general\n1000000000 3 1\n1 1 1\n")
    zarr.create_array(tmp_path / "dense.zarr", shape=(10**12, 7), chunks=(8, 7), dtype="f8")
    group = zarr.create_group(tmp_path / "sparse.zarr", attributes={"shape": [10**12, 7]})
    for name, length in (("indptr", 10**12 + 1), ("indices", 0), ("data", 0)):
        group.create_array(name, shape=(length,), chunks=(16,), dtype="i8")
    for name in ("x.mtx", "dense.zarr", "sparse.zarr"):
        with pytest.raises(BadSource, match="almost all are empty"):
            read(tmp_path / name)


def test_pieces_that_fill_memory_are_refused(tmp_path: Path) -> None:
    zarr.create_array(tmp_path / "x.zarr", shape=(10, 7), chunks=(8, 7), dtype="f8")[:] = 1.0
    described = json.loads((tmp_path / "x.zarr/zarr.json").read_text())
    described["chunk_grid"]["configuration"]["chunk_shape"] = [1 << 30, 7]
    (tmp_path / "x.zarr/zarr.json").write_text(json.dumps(described))
    with pytest.raises(BadSource, match="in pieces of at most"):
        read(tmp_path / "x.zarr")


def test_an_hdf5_file_that_cannot_be_opened_in_time_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with h5py.File(tmp_path / "x.h5ad", "w") as file:
        file["X"] = np.eye(3)
    assert read(tmp_path / "x.h5ad") == 3
    hdf5._is_survived.cache_clear()
    monkeypatch.setattr(hdf5, "_SECONDS", 0.001)
    with pytest.raises(BadSource, match="its head cannot be read within"):
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
def test_columns_of_bytes_hold_no_numbers(tmp_path: Path, kind: pa.DataType, column: str, *, is_tolerant: bool) -> None:
    """Arrow parses bytes as numbers where it can, and fails in a way of its own where it cannot."""
    found = {"row": pa.array([0, 1]), "column": pa.array([0, 1]), "value": pa.array([1.0, 2.0])}
    found[column] = pa.array([b"10", b"\xef\xff"], kind)
    pq.write_table(pa.table(found), tmp_path / "x.parquet")
    with pytest.raises(BadSource, match=r"holds .*binary.*; convert"):
        read(tmp_path / "x.parquet", n_features=2, rejects=Quarantine() if is_tolerant else None)
