"""Small valid sources of each kind that a reader accepts, from which the fuzzer starts."""

import csv
import gzip
import io
import json
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anndata
import h5py
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv as pc
import pyarrow.parquet as pq
import scipy.io
import scipy.sparse as sp
import zarr
from numpy.typing import NDArray

ROWS, WIDTH = 40, 7
NAMES = [f"item {column}" for column in range(WIDTH)]

RAW = {
    "columns": [
        {"name": "who", "kind": "id"},
        {"name": "a", "kind": "numeric", "range": [0, 10]},
        {"name": "note", "kind": "categorical", "values": ["plain"], "others": "category", "missing": "zero"},
    ]
}

type Write = Callable[[Path], dict[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Seed:
    """A valid source: its path, and the declarations that a user would make."""

    path: Path
    declared: dict[str, Any] = field(default_factory=dict)


def files_of(path: Path) -> list[Path]:
    """Return the files of a source: the source itself, or all files under it."""
    return [path] if path.is_file() else sorted(found for found in path.rglob("*") if found.is_file())


def dense_rows() -> NDArray[np.float64]:
    """Return random rows, some of them empty."""
    rng = np.random.default_rng(3)
    rows = np.round(rng.standard_normal((ROWS, WIDTH)) * (rng.random((ROWS, WIDTH)) < 0.4), 3)
    rows[[0, 7]] = 0.0
    return rows


def write_seeds(folder: Path) -> list[Seed]:
    """Write a source of every kind to a folder."""
    folder.mkdir(parents=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # from anndata's dependencies
        return [Seed(path=folder / name, declared=write(folder / name)) for name, write in WRITERS.items()]


def _svmlight(path: Path) -> dict[str, Any]:
    lines = [
        " ".join(["1", *(f"{column + 1}:{value}" for column, value in enumerate(row) if value)])
        for row in dense_rows().tolist()
    ]
    text = "\n".join(["# head", *lines, ""]).encode()
    if path.suffix == ".gz":
        text = gzip.compress(text, mtime=0)
    elif path.suffix == ".zst":
        text = pa.compress(text, codec="zstd", asbytes=True)
    path.write_bytes(text)
    return {"features": WIDTH}


def _svmlight_with_units(path: Path) -> dict[str, Any]:
    units = path.with_name("units-of-svmlight")
    np.save(units.open("wb"), np.arange(ROWS) // 3)
    return _svmlight(path) | {"units": units, "max_rows_per_unit": 2}


def _mtx(path: Path) -> dict[str, Any]:
    matrix, options = sp.coo_array(dense_rows()), {}
    if "symmetric" in path.name:
        square = sp.coo_array(dense_rows()[:WIDTH])
        matrix, options = sp.coo_array(square + square.T), {"symmetry": "symmetric"}
    elif "pattern" in path.name:
        options = {"field": "pattern"}
    stream = io.BytesIO()
    scipy.io.mmwrite(stream, matrix, **options)
    path.write_bytes(gzip.compress(stream.getvalue(), mtime=0) if path.suffix == ".gz" else stream.getvalue())
    return {}


def _npz(path: Path) -> dict[str, Any]:
    sp.save_npz(path, sp.csr_array(dense_rows()), compressed="packed" in path.name)
    return {}


def _npy(path: Path) -> dict[str, Any]:
    rows = dense_rows()
    np.save(path, np.asfortranarray(rows) if "columns" in path.name else rows)
    return {}


def _triplets(*, items: bool = False, units: bool = False) -> pa.Table:
    entries = sp.coo_array(dense_rows())
    column = [NAMES[at] for at in entries.col] if items else entries.col
    table = {"row": entries.row, "column": column, "value": entries.data}
    return pa.table(table | ({"who": [f"user {row // 3}" for row in entries.row]} if units else {}))


def _csv(path: Path) -> dict[str, Any]:
    declared: dict[str, Any] = {"features": WIDTH}
    if "wide" in path.name:
        table = pa.table(dict(zip(NAMES, dense_rows().T, strict=True)))
    elif "items" in path.name:
        names = path.with_name("names-of-items")
        names.write_text("\n".join(NAMES))
        table = _triplets(items=True, units=True)
        declared = {"feature_names": names, "unit_column": "who"}
    else:
        table = _triplets()
    stream = io.BytesIO()
    pc.write_csv(table, stream, pc.WriteOptions(delimiter="\t" if ".tsv" in path.name else ","))
    path.write_bytes(gzip.compress(stream.getvalue(), mtime=0) if path.suffix == ".gz" else stream.getvalue())
    return declared


def _parquet(path: Path) -> dict[str, Any]:
    if "wide" in path.name:
        pq.write_table(pa.table(dict(zip(NAMES, dense_rows().T, strict=True))), path, row_group_size=15)
        return {}
    if "public" in path.name:
        pq.write_table(_triplets(items=True, units=True), path, row_group_size=15, compression="zstd")
        return {"public_items": True, "unit_column": "who", "max_rows_per_unit": 2}
    pq.write_table(_triplets(), path, row_group_size=15)
    return {"features": WIDTH}


def _quoted(path: Path) -> dict[str, Any]:
    """Write quoted ids and notes, some of which contain delimiters, quotes, and rows like those of other users."""
    notes = ["", "plain", "a, b", 'he said "no"', "\tx", "two\nuser 9,9,x\nlines", "\r\nuser 8\t8\tx\r\n"]
    stream = io.StringIO(newline="")
    writer = csv.writer(stream, delimiter="\t" if ".tsv" in path.name else ",", quoting=csv.QUOTE_ALL)
    writer.writerow(["who", "a", "note"])
    writer.writerows(
        [f" user {row // 3}", row / 4, notes[row % (7 if "lines" in path.name else 5)]] for row in range(ROWS)
    )
    content = stream.getvalue().encode()
    path.write_bytes(gzip.compress(content, mtime=0) if path.suffix == ".gz" else content)
    schema = path.with_name(f"schema-of-{path.name}")
    schema.write_text(json.dumps(RAW))
    return {"table_schema": schema, **({"on_error": "quarantine"} if "lines" in path.name else {})}


def _indexed(path: Path) -> dict[str, Any]:
    """Write a data frame with its index to a file."""
    frame = pd.DataFrame(dense_rows(), columns=NAMES, index=np.arange(ROWS) // 3 + 0.0)
    if path.suffix == ".csv":
        frame.to_csv(path)
        return {"unit_column": "", "features": WIDTH}
    frame.rename_axis("who" if "named" in path.name else None).to_parquet(path)
    return {"unit_column": "who"} if "named" in path.name else {}


def _repeated(path: Path) -> dict[str, Any]:
    """Write rows that list columns several times."""
    row = np.arange(ROWS).repeat(3)
    entries = np.arange(ROWS * 3) / 4, row % WIDTH, np.arange(0, ROWS * 3 + 1, 3)
    if path.suffix == ".npz":
        np.savez(path, data=entries[0], indices=entries[1], indptr=entries[2], shape=(ROWS, WIDTH), format=b"csr")
    elif path.suffix == ".svm":
        pairs = [f"{column + 1}:{value}" for value, column in zip(*entries[:2], strict=True)]
        path.write_text("".join(f"1 {' '.join(pairs[at : at + 3])}\n" for at in range(0, len(pairs), 3)))
    else:
        pq.write_table(pa.table({"row": row + 0.0, "column": entries[1], "value": entries[0]}), path)
    return {"features": WIDTH, "duplicates": {".npz": "mean", ".svm": "last", ".parquet": "sum"}[path.suffix]}


def _spelt_units(path: Path) -> dict[str, Any]:
    units = path.with_name("spelt-units")
    np.save(units.open("wb"), np.array([f" {row // 3}" if row % 2 else f"{row // 3}.0" for row in range(ROWS)]))
    return _npy(path) | {"units": units}


def _anndata(path: Path) -> dict[str, Any]:
    rows = dense_rows()
    data = anndata.AnnData(X=rows if "dense" in path.name else sp.csr_matrix(rows), var=pd.DataFrame(index=NAMES))
    data.obs_names = [str(row) for row in range(ROWS)]
    if path.suffix == ".h5ad":
        data.write_h5ad(path)
    else:
        data.write_zarr(path)
    return {}


def _chunked_h5ad(path: Path) -> dict[str, Any]:
    with h5py.File(path, "w") as file:
        file.create_dataset("X", data=dense_rows(), chunks=(8, WIDTH), compression="gzip", fletcher32=True)
    return {}


def _zarr(path: Path) -> dict[str, Any]:
    rows = sp.csr_array(dense_rows())
    if "sparse" in path.name:
        group = zarr.create_group(path, attributes={"shape": list(rows.shape)})
        for name in ("indptr", "indices", "data"):
            group.create_array(name, data=getattr(rows, name), chunks=(16,))
    else:
        array = zarr.create_array(
            path, shape=rows.shape, chunks=(8, WIDTH), dtype="f8", zarr_format=2 if "v2" in path.name else 3
        )
        array[:] = rows.toarray()
    return {}


WRITERS: dict[str, Write] = {
    "x.svm": _svmlight,
    "x.svm.gz": _svmlight,
    "x.svm.zst": _svmlight,
    "with-units.svm": _svmlight_with_units,
    "x.mtx": _mtx,
    "x.mtx.gz": _mtx,
    "symmetric.mtx": _mtx,
    "pattern.mtx": _mtx,
    "x.npz": _npz,
    "packed.npz": _npz,
    "x.npy": _npy,
    "columns.npy": _npy,
    "x.csv": _csv,
    "x.tsv": _csv,
    "x.csv.gz": _csv,
    "items.csv": _csv,
    "wide.csv": _csv,
    "wide.tsv": _csv,
    "x.parquet": _parquet,
    "public.parquet": _parquet,
    "wide.parquet": _parquet,
    "quoted.csv": _quoted,
    "quoted.tsv.gz": _quoted,
    "quoted-lines.csv": _quoted,
    "quoted-lines.tsv": _quoted,
    "indexed.csv": _indexed,
    "indexed.parquet": _indexed,
    "named-index.parquet": _indexed,
    "repeated.svm": _repeated,
    "repeated.npz": _repeated,
    "repeated.parquet": _repeated,
    "spelt-units.npy": _spelt_units,
    "x.h5ad": _anndata,
    "dense.h5ad": _anndata,
    "chunked.h5ad": _chunked_h5ad,
    "anndata.zarr": _anndata,
    "sparse.zarr": _zarr,
    "dense.zarr": _zarr,
    "v2.zarr": _zarr,
}
