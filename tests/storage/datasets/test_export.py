"""What we export, others read, and so do we: nothing is lost on the way."""

import stat
from pathlib import Path
from typing import Any

import anndata
import numpy as np
import pyarrow.parquet as pq
import pytest
import scipy.sparse as sp
from numpy.typing import NDArray
from sklearn.datasets import load_svmlight_file

from storage.datasets.catalog import Catalog
from storage.datasets.export import WRITERS, export_rows
from storage.datasets.ingest import ingest
from storage.datasets.ingest_options import IngestOptions
from storage.datasets.snapshot_reader import Dataset
from storage.errors import Conflict, Invalid, Unavailable

pytestmark = pytest.mark.filterwarnings("ignore:The 'future.infer_string' option", "ignore::FutureWarning")


@pytest.fixture
def rows() -> NDArray[np.float64]:
    dense = np.random.default_rng(2).standard_normal((200, 9))
    return dense * (np.random.default_rng(3).random((200, 9)) < 0.2)


def open_rows(catalog: Catalog, rows: NDArray[np.generic], **declared: Any) -> Dataset:
    np.save(catalog.home.with_name("x.npy"), rows)
    ingest(
        catalog.home.with_name("x.npy"),
        name="x",
        home=catalog.home,
        engine=catalog.engine,
        options=IngestOptions(block_nnz=50, **declared),
    )
    return catalog.open(catalog.current("x"))


@pytest.mark.parametrize("dtype", ["float64", "float32", "int16", "bool"])
def test_others_read_the_same_matrix(tmp_path: Path, catalog: Catalog, rows: NDArray[np.float64], dtype: str) -> None:
    values = (rows * 50).astype(dtype)
    dataset = open_rows(catalog, values)
    for format in WRITERS:  # noqa: A001
        export_rows(dataset, tmp_path / f"out.{format}", format=format)
        assert stat.S_IMODE((tmp_path / f"out.{format}").stat().st_mode) == 0o600
    found = {
        "npz": sp.load_npz(tmp_path / "out.npz"),
        "h5ad": anndata.read_h5ad(tmp_path / "out.h5ad").X,
        "svmlight": load_svmlight_file(str(tmp_path / "out.svmlight"), n_features=9, zero_based=False)[0],
    }
    table = pq.read_table(tmp_path / "out.parquet")
    entries = (table["value"].to_numpy(), (table["row"].to_numpy(), table["column"].to_numpy()))
    found["parquet"] = sp.coo_array(entries, shape=rows.shape)
    for format, matrix in found.items():  # noqa: A001
        np.testing.assert_array_equal(matrix.toarray(), values, err_msg=format)
        assert format == "svmlight" or matrix.dtype == np.dtype(dtype)


@pytest.mark.parametrize("format", WRITERS)
def test_what_comes_back_is_the_same_dataset(
    tmp_path: Path,
    catalog: Catalog,
    rows: NDArray[np.float64],
    format: str,  # noqa: A002
) -> None:
    dataset = open_rows(catalog, rows)
    export_rows(dataset, tmp_path / f"out.{format}", format=format)
    back = ingest(
        tmp_path / f"out.{format}",
        name="y",
        home=catalog.home,
        engine=catalog.engine,
        options=IngestOptions(population="x", features=9, format=format),
    )
    assert back.content_digest == dataset.content


def test_records_and_names_go_along(tmp_path: Path, catalog: Catalog, rows: NDArray[np.float64]) -> None:
    np.save(tmp_path / "units.npy", np.arange(200) // 3)
    (tmp_path / "names").write_text("\n".join("abcdefghi"))
    declared = {"units": tmp_path / "units.npy", "feature_names": tmp_path / "names"}
    dataset = open_rows(catalog, rows, **declared)
    export_rows(dataset, tmp_path / "x.h5ad", format="h5ad")
    data = anndata.read_h5ad(tmp_path / "x.h5ad")
    assert data.obs["record"].tolist() == (np.arange(200) // 3).tolist()
    assert data.var_names.tolist() == list("abcdefghi")
    export_rows(dataset, tmp_path / "x.parquet", format="parquet")
    back = ingest(
        tmp_path / "x.parquet",
        name="y",
        home=catalog.home,
        engine=catalog.engine,
        options=IngestOptions(population="x", features=9, unit_column="record"),
    )
    assert back.content_digest == dataset.content


def test_an_export_replaces_nothing(tmp_path: Path, catalog: Catalog, rows: NDArray[np.float64]) -> None:
    dataset = open_rows(catalog, rows)
    (tmp_path / "there").write_text("mine")
    with pytest.raises(Conflict, match="replaces nothing"):
        export_rows(dataset, tmp_path / "there", format="npz")
    with pytest.raises(Invalid, match="is not one of"):
        export_rows(dataset, tmp_path / "x", format="xlsx")
    with pytest.raises(Unavailable, match="cannot be written"):
        export_rows(dataset, tmp_path / "no/folder", format="npz")
    assert (tmp_path / "there").read_text() == "mine"
