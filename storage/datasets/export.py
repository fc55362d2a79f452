"""Export of the rows of a snapshot to a file for other programs.

Only one block of rows is in memory at a time. Every format preserves each row, the order of rows and the exact values.
If records have several rows, Parquet and the table `obs` of h5ad also hold the record number of each row. npz and
svmlight contain rows only, without records.

Examples
--------
::

    export_rows(catalog.open(catalog.current("news")), "news.h5ad", format="h5ad")
"""

import os
import warnings
import zipfile
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Any
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.lib import format as npy
from numpy.typing import NDArray

from dpca.errors import Conflict, Invalid, Unavailable
from storage.datasets.snapshot_reader import Block, Dataset

_CHUNK = 1 << 16


def export_rows(dataset: Dataset, output: str | Path, *, format: str) -> None:  # noqa: A002, the word users know
    """Write all rows of a snapshot to a new file, in order.

    Parameters
    ----------
    dataset : Dataset
        An opened snapshot.
    output : str or Path
        The file to create, with mode 0600. It appears whole or not at all.
    format : str
        "h5ad", "npz", "svmlight" or "parquet".

    Raises
    ------
    Invalid
        If the format is unknown, or needs a library that is not installed.
    Conflict
        If the file exists.
    Unavailable
        If the file cannot be written.
    Corrupt
        If the snapshot cannot be read.
    """
    if format not in WRITERS:
        raise Invalid(f"export format {format!r} is not one of {', '.join(WRITERS)}; choose one of these formats")
    path = Path(output)
    if path.exists():
        raise Conflict(f"{path} exists, and an export never overwrites a file; choose another name or remove the file")
    temporary = path.with_name(f".{uuid4().hex}.tmp")
    try:
        os.close(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        WRITERS[format](dataset, temporary)
        temporary.rename(path)
    except OSError as error:
        raise Unavailable(
            f"{path} cannot be written ({error.strerror or 'output error'}); free disk space or correct the permissions"
        ) from None
    finally:
        temporary.unlink(missing_ok=True)


def _write_npz(dataset: Dataset, path: Path) -> None:
    """Write an npz file for ``scipy.sparse.load_npz``, reading the blocks once for each array."""
    manifest = dataset.manifest
    shape = (manifest.n_rows, dataset.n_features)
    with zipfile.ZipFile(path, "w", allowZip64=True) as archive:
        for name, item in (("format", np.array(b"csr")), ("shape", np.array(shape))):
            with archive.open(f"{name}.npy", "w") as member:
                npy.write_array(member, item)
        arrays: tuple[tuple[str, int, np.dtype[Any], Callable[[Block], NDArray[Any]]], ...] = (
            ("indices", manifest.nnz, np.dtype(_index_dtype(dataset)), lambda block: block.indices),
            ("data", manifest.nnz, np.dtype(manifest.dtype), lambda block: block.values),
        )
        with archive.open("indptr.npy", "w", force_zip64=True) as member:
            _write_head(member, manifest.n_rows + 1, np.dtype(_index_dtype(dataset)))
            for bounds in _row_bounds(dataset):
                member.write(bounds.astype(_index_dtype(dataset)).tobytes())
        for name, length, dtype, part in arrays:
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                _write_head(member, length, dtype)
                for block in _blocks(dataset):
                    member.write(part(block).astype(dtype).tobytes())


def _write_h5ad(dataset: Dataset, path: Path) -> None:
    """Write a file for ``anndata.read_h5ad``.

    X is a CSR matrix, features are the rows of the table `var`, and rows of the dataset are the rows of `obs`.
    """
    if find_spec("anndata") is None:
        raise Invalid("writing h5ad needs anndata; install the extra: pip install 'dpca-pipeline[anndata]'")
    with warnings.catch_warnings(action="ignore"):  # ignores anndata's warnings about its dependencies
        _write_frame(dataset, path)
    import h5py

    manifest = dataset.manifest
    with h5py.File(path, "r+") as file:
        if "X" in file:
            del file["X"]
        group = file.create_group("X")
        group.attrs["encoding-type"], group.attrs["encoding-version"] = "csr_matrix", "0.1.0"
        group.attrs["shape"] = np.array([manifest.n_rows, dataset.n_features])
        index = _index_dtype(dataset)
        arrays = {
            name: group.create_dataset(name, shape=(length,), dtype=dtype, chunks=(min(_CHUNK, max(length, 1)),))
            for name, length, dtype in (
                ("data", manifest.nnz, manifest.dtype),
                ("indices", manifest.nnz, index),
                ("indptr", manifest.n_rows + 1, index),
            )
        }
        at = 0
        for block in _blocks(dataset):
            span = slice(at, at + len(block.values))
            arrays["data"][span], arrays["indices"][span] = block.values, block.indices
            at = span.stop
        at = 0
        for bounds in _row_bounds(dataset):
            arrays["indptr"][at : at + len(bounds)] = bounds
            at += len(bounds)


def _write_frame(dataset: Dataset, path: Path) -> None:
    """Write an AnnData file with the tables `obs` and `var`, but without values."""
    import anndata
    import pandas as pd

    manifest, names = dataset.manifest, dataset.feature_names()
    columns = (
        {} if manifest.n_rows == manifest.n_records else {"record": np.concatenate(list(_record_of_rows(dataset)))}
    )
    obs = pd.DataFrame(columns, index=pd.RangeIndex(manifest.n_rows).astype(str))
    var = pd.DataFrame(index=pd.RangeIndex(dataset.n_features).astype(str) if names is None else list(names))
    anndata.AnnData(obs=obs, var=var).write_h5ad(path)


def _write_svmlight(dataset: Dataset, path: Path) -> None:
    """Write each row as a svmlight line: label 0, then ``COLUMN:VALUE`` pairs with columns from 1.

    Each value has enough digits to be read back exactly.
    """
    with path.open("wb") as file:
        for block in _blocks(dataset):
            column = pa.array(block.indices.astype(np.int64) + 1).cast(pa.string())
            pairs = pc.binary_join_element_wise(column, pa.array(_numbers(block.values)).cast(pa.string()), ":")
            rows = pa.LargeListArray.from_arrays(pa.array(block.row_ptr), pairs)
            for row in pc.binary_join(rows, " ").to_pylist():
                file.write(f"0 {row}\n".encode() if row else b"0\n")


def _write_parquet(dataset: Dataset, path: Path) -> None:
    """Write one line `record`, `row`, `column`, `value` for each stored value.

    A row without values becomes one line with value 0 in column 0.
    """
    fields = [("record", pa.int64()), ("row", pa.int64()), ("column", pa.int64())]
    schema = pa.schema([*fields, ("value", pa.from_numpy_dtype(np.dtype(dataset.manifest.dtype)))])
    first = 0
    with pq.ParquetWriter(path, schema, compression="zstd") as writer:
        for block, records in zip(_blocks(dataset), _record_of_rows(dataset), strict=True):
            counts = np.diff(block.row_ptr)
            entries = np.maximum(counts, 1)
            owners, filled = np.repeat(np.arange(len(counts)), entries), np.repeat(counts > 0, entries)
            columns = np.zeros(len(owners), dtype=np.int64)
            values = np.zeros(len(owners), dtype=block.values.dtype)
            columns[filled], values[filled] = block.indices, block.values
            writer.write_table(pa.table([records[owners], owners + first, columns, values], schema=schema))
            first += len(counts)


WRITERS: dict[str, Callable[[Dataset, Path], None]] = {
    "h5ad": _write_h5ad,
    "npz": _write_npz,
    "svmlight": _write_svmlight,
    "parquet": _write_parquet,
}


def _blocks(dataset: Dataset) -> Iterator[Block]:
    return map(dataset.read, range(dataset.n_blocks))


def _row_bounds(dataset: Dataset) -> Iterator[NDArray[np.int64]]:
    """Yield the CSR row pointer of the whole dataset, one block at a time."""
    last = np.zeros(1, dtype=np.int64)
    yield last
    for block in _blocks(dataset):
        bounds = block.row_ptr[1:] + last[-1]
        yield bounds
        last = bounds if len(bounds) else last


def _record_of_rows(dataset: Dataset) -> Iterator[NDArray[np.int64]]:
    """Yield, for the rows of each block, the number of the record that contains the row."""
    for block in _blocks(dataset):
        counts = np.diff(block.record_ptr)
        yield np.repeat(block.first_record + np.arange(len(counts)), counts)


def _index_dtype(dataset: Dataset) -> type[np.signedinteger[Any]]:
    """Return the integer type that scipy would choose for the indices of this matrix."""
    return np.int32 if max(dataset.manifest.nnz, dataset.n_features, dataset.manifest.n_rows) < 2**31 else np.int64


def _numbers(values: NDArray[Any]) -> NDArray[Any]:
    """Return values converted to a type that Arrow prints with all digits: integers unchanged, floats as float64."""
    return values.astype({"b": np.uint8, "f": np.float64}.get(values.dtype.kind, values.dtype))


def _write_head(member: IO[bytes], length: int, dtype: np.dtype[Any]) -> None:
    npy.write_array_header_1_0(member, {"descr": npy.dtype_to_descr(dtype), "fortran_order": False, "shape": (length,)})
