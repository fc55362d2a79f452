"""Columns of a dataset, and duplicate ratings.

A new snapshot must have the columns of its dataset: another order is mapped by name, and other columns are refused. For
ratings, the tests cover duplicate values of one user and item, stored zeros, and triplets without values.
"""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import anndata
import h5py
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import scipy.sparse as sp
import sqlalchemy as sa
import zarr
from scipy import sparse

from dpca.errors import BadSource, Invalid
from storage.datasets.ingest import ingest
from storage.datasets.ingest_options import IngestOptions
from storage.datasets.open_source import open_source
from storage.datasets.snapshot_reader import Dataset
from storage.datasets.staging import quarantine_notes
from storage.formats.batch import Rejects
from storage.formats.declared import Declared
from storage.workspace import Workspace
from tests.storage.test_schema import Take, records, take

# set by anndata
ROWS = {"a": [1.0, 4.0], "b": [2.0, 5.0], "c": [3.0, 6.0]}
SCHEMA = """
text: {text}
missing_texts: [{missing}]
columns:
"""
COLUMNS = {
    "a": "{name: a, kind: numeric, range: [0, 10]}",
    "b": "{name: b, kind: categorical, values: [2, 5], others: zero}",
    "c": "{name: c, kind: drop}",
}


class Taking:
    """Ingests files into one home."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(self, form: str, rows: dict[str, list[float]], **options: Any) -> list[list[float]]:
        path, frame = self.folder / f"rows.{form}", pd.DataFrame(rows)
        match form:
            case "csv" | "tsv":
                frame.to_csv(path, index=False, sep="," if form == "csv" else "\t")
            case "parquet":
                pq.write_table(pa.table(rows), path)
            case "h5ad":
                named = pd.DataFrame(index=list(rows))
                anndata.AnnData(X=frame.to_numpy(), var=named).write_h5ad(path)
            case _:
                np.save(path, frame.to_numpy())
        workspace = Workspace.open()
        more = IngestOptions(allow_shared_rows=True, **options)
        ingest(path, name="d", home=workspace.home, engine=workspace.ledger.engine, options=more)
        return self.rows()

    def rows(self) -> list[list[float]]:
        dataset = self.dataset()
        block = dataset.read(0)
        parts = (block.values.astype(float), block.indices.astype(np.int64), block.row_ptr)
        found: list[list[float]] = sparse.csr_array(parts, shape=(2, dataset.n_features)).toarray().tolist()
        return found

    def dataset(self) -> Dataset:
        catalog = Workspace.read_only().catalog
        return catalog.open(catalog.current("d"))

    def schema(self, columns: dict[str, str], *, missing: str = "-9", text: str = "{}") -> str:
        path = self.folder / "schema.yaml"
        lines = [f"  - {column}\n" for column in columns.values()]
        path.write_text(SCHEMA.format(missing=missing, text=text) + "".join(lines))
        return str(path)


@pytest.fixture
def take_of_saved_columns(home: Path, tmp_path: Path) -> Taking:
    return Taking(tmp_path)


def reordered(columns: dict[str, Any]) -> dict[str, Any]:
    return {name: columns[name] for name in "cab"}


@pytest.mark.filterwarnings("ignore:The 'future.infer_string' option")
@pytest.mark.parametrize("form", ["csv", "tsv", "parquet"])
def test_columns_of_another_order_are_mapped_by_name(take_of_saved_columns: Taking, form: str) -> None:
    features = {} if form == "parquet" else {"features": 3}
    first = take_of_saved_columns(form, ROWS, **features)
    assert take_of_saved_columns(form, reordered(ROWS), **features) == first == [[1, 2, 3], [4, 5, 6]]
    assert take_of_saved_columns.dataset().feature_names() == ("a", "b", "c")
    assert take_of_saved_columns("csv" if form == "parquet" else "parquet", reordered(ROWS), features=3) == first


@pytest.mark.filterwarnings("ignore:The 'future.infer_string' option")
def test_a_store_whose_columns_have_another_order_is_refused(take_of_saved_columns: Taking) -> None:
    first = take_of_saved_columns("h5ad", ROWS)
    with pytest.raises(BadSource, match="the columns differ from the columns of dataset 'd': they have another order"):
        take_of_saved_columns("h5ad", reordered(ROWS))
    assert take_of_saved_columns("h5ad", ROWS) == first


@pytest.mark.filterwarnings("ignore:The 'future.infer_string' option")
def test_other_columns_are_refused_by_their_names(take_of_saved_columns: Taking) -> None:
    take_of_saved_columns("csv", ROWS, features=3)
    before = take_of_saved_columns.dataset().manifest.snapshot
    for rows, message in (
        ({**ROWS, "d": ROWS["a"]}, "column 'd' new"),
        ({"a": ROWS["a"], "b": ROWS["b"]}, "column 'c' missing"),
        ({"a": ROWS["a"], "b": ROWS["b"], "C": ROWS["c"]}, "column 'c' missing and column 'C' new"),
    ):
        for form in ("csv", "parquet", "h5ad"):
            with pytest.raises(
                BadSource, match=f"rows.{form}: the columns differ from the columns of dataset 'd': {message}; "
            ):
                take_of_saved_columns(form, rows, features=len(rows))
    with pytest.raises(BadSource, match="the columns have no names, but those of dataset 'd' have"):
        take_of_saved_columns("npy", ROWS)
    assert take_of_saved_columns.dataset().manifest.snapshot == before


@pytest.mark.filterwarnings("ignore:The 'future.infer_string' option")
def test_columns_without_names_keep_their_number(take_of_saved_columns: Taking) -> None:
    take_of_saved_columns("npy", ROWS)
    with pytest.raises(BadSource, match="there are 2 features, and dataset 'd' has 3"):
        take_of_saved_columns("npy", {"a": ROWS["a"], "b": ROWS["b"]})
    take_of_saved_columns("csv", ROWS, features=3)


@pytest.mark.filterwarnings("ignore:The 'future.infer_string' option")
def test_a_schema_of_another_order_keeps_the_saved_one(take_of_saved_columns: Taking) -> None:
    first = take_of_saved_columns("csv", ROWS, table_schema=take_of_saved_columns.schema(COLUMNS))
    assert first == [[0.1, 1, 0], [0.4, 0, 1]]
    assert (
        take_of_saved_columns(
            "tsv", reordered(ROWS), table_schema=take_of_saved_columns.schema(reordered(COLUMNS), text="{quote: null}")
        )
        == first
    )
    assert take_of_saved_columns.dataset().feature_names() == ("a", "b=2", "b=5")
    fewer = take_of_saved_columns.schema({name: COLUMNS[name] for name in "ba"})
    assert take_of_saved_columns("parquet", {"b": ROWS["b"], "a": ROWS["a"]}, table_schema=fewer) == first


@pytest.mark.filterwarnings("ignore:The 'future.infer_string' option")
@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"a": "{name: a, kind: numeric, range: [0, 11]}"}, "changes the declaration of column 'a'"),
        ({"a": "{name: a, kind: categorical, values: [1], others: zero}"}, "changes the declaration of column 'a'"),
        ({"b": "{name: b, kind: categorical, values: [2, 6], others: zero}"}, "changes the declaration of column 'b'"),
        ({"b": "{name: b, kind: categorical, values: [5, 2], others: zero}"}, "changes the declaration of column 'b'"),
        ({"c": "{name: c, kind: numeric, range: [0, 10]}"}, "changes the declaration of column 'c'"),
        ({"a": "{name: A, kind: numeric, range: [0, 10]}"}, "changes the declaration of columns 'a', 'A'"),
    ],
    ids=["range", "kind", "values", "order of values", "feature", "name"],
)
def test_a_schema_with_other_rules_is_refused(
    take_of_saved_columns: Taking, changed: dict[str, str], message: str
) -> None:
    take_of_saved_columns("csv", ROWS, table_schema=take_of_saved_columns.schema(COLUMNS))
    with pytest.raises(Invalid, match=f"the schema of dataset 'd' {message}"):
        take_of_saved_columns("csv", ROWS, table_schema=take_of_saved_columns.schema({**COLUMNS, **changed}))


@pytest.mark.filterwarnings("ignore:The 'future.infer_string' option")
def test_a_schema_is_kept_with_its_missing_texts_and_its_positions(take_of_saved_columns: Taking) -> None:
    take_of_saved_columns("csv", ROWS, table_schema=take_of_saved_columns.schema(COLUMNS))
    with pytest.raises(Invalid, match="changes missing_texts"):
        take_of_saved_columns("csv", ROWS, table_schema=take_of_saved_columns.schema(COLUMNS, missing="-8"))
    with pytest.raises(Invalid, match="in another order, but columns without a header are matched by position"):
        take_of_saved_columns(
            "csv",
            ROWS,
            table_schema=take_of_saved_columns.schema({name: COLUMNS[name] for name in "bac"}, text="{header: false}"),
        )
    with pytest.raises(Invalid, match="was ingested with a schema, but none is given"):
        take_of_saved_columns("csv", ROWS, features=3)
    Workspace.open().catalog.remove("d")
    take_of_saved_columns("csv", ROWS, features=3)
    with pytest.raises(Invalid, match="was ingested without a schema, but a schema is given"):
        take_of_saved_columns("csv", ROWS, table_schema=take_of_saved_columns.schema(COLUMNS))


__all__ = ["take"]

ROLES = {"row": "user", "column": "item", "value": "rating"}
TEXT = "user,item,rating\nann,0,4\nbob,2,3\nann,1,0\nann,0,4\nann,2,5\nbob,0,0\nann,0,1\n"


@pytest.mark.parametrize(
    ("duplicates", "merged"), [("sum", 9.0), ("mean", 3.0), ("last", 1.0)], ids=["sum", "mean", "last"]
)
@pytest.mark.parametrize("keep_zeros", [False, True], ids=["zeros dropped", "zeros kept"])
def test_duplicates_and_zeros_follow_the_requested_rule(
    take: Take, *, duplicates: str, merged: float, keep_zeros: bool
) -> None:
    report, dataset = take(TEXT, features=3, columns=ROLES, duplicates=duplicates, keep_zeros=keep_zeros)
    ann = [(0, merged), (1, 0.0), (2, 5.0)] if keep_zeros else [(0, merged), (2, 5.0)]
    bob = [(0, 0.0), (2, 3.0)] if keep_zeros else [(2, 3.0)]
    assert records(dataset) == [[ann], [bob]]
    assert (report.records, report.rows, dataset.manifest.privacy_unit) == (2, 2, "row")
    assert dataset.verify() == report.content_digest


def test_the_sum_without_zeros_is_the_default(take: Take) -> None:
    plain, _ = take(TEXT, features=3, columns=ROLES)
    in_file, _ = take(TEXT, features=3, columns=ROLES, duplicates="sum", keep_zeros=False)
    kept, _ = take(TEXT, features=3, columns=ROLES, keep_zeros=True)
    assert plain.content_digest == in_file.content_digest != kept.content_digest


def engine_of(_home: Path) -> sa.Engine:
    return Workspace.open().ledger.engine


def test_refused_duplicates_are_a_bad_row(take: Take) -> None:
    with pytest.raises(BadSource, match=r"x\.csv: line 5: it has the same row and column as line 2; drop"):
        take(TEXT, features=3, columns=ROLES, duplicates="refuse")
    report, dataset = take(TEXT, features=3, columns=ROLES, duplicates="refuse", on_error="quarantine")
    assert (records(dataset), report.quarantined) == ([[[]], [[(2, 3.0)]]], 1)
    once, dataset = take("user,item,rating\nann,0,4\nann,1,4\n", features=2, columns=ROLES, duplicates="refuse")
    assert (once.quarantined, records(dataset)) == (0, [[[(0, 4.0), (1, 4.0)]]])


@pytest.mark.parametrize("packed", ["csv", "parquet"])
def test_without_a_value_column_each_value_is_one(take: Take, tmp_path: Path, packed: str) -> None:
    source: Any = "user,item\nann,0\nbob,1\nann,1\nann,0\n"
    if packed == "parquet":
        source = tmp_path / "x.parquet"
        pq.write_table(pa.table({"user": ["ann", "bob", "ann", "ann"], "item": [0, 1, 1, 0]}), source)
    named = {"row": "user", "column": "item"}
    report, dataset = take(source, features=2, columns=named, duplicates="last")
    assert records(dataset) == [[[(0, 1.0), (1, 1.0)]], [[(1, 1.0)]]]
    assert dataset.manifest.dtype == "float64"
    assert dataset.verify() == report.content_digest
    with pytest.raises(BadSource, match="no column 'stars'"):
        take(source, features=2, columns={**named, "value": "stars"})
    with pytest.raises(BadSource, match="no column 'value'"):
        take(source, features=2, columns={**named, "value": "value"})


def test_a_mean_of_whole_numbers_is_stored_as_a_float_and_never_rounded_to_a_declared_integer(
    take: Take, tmp_path: Path
) -> None:
    source = tmp_path / "x.parquet"
    pq.write_table(pa.table({"user": [7, 7], "item": [0, 0], "rating": np.array([4, 5], np.int8)}), source)
    _, dataset = take(source, features=1, columns=ROLES, duplicates="mean")
    assert (records(dataset), dataset.manifest.dtype) == ([[[(0, 4.5)]]], "float64")
    with pytest.raises(BadSource, match="not whole"):
        take(source, features=1, columns=ROLES, duplicates="mean", dtype="int8")


def test_a_mean_of_zero_is_kept_without_its_sign(take: Take) -> None:
    text = "user,item,rating\nann,0,-1\nann,0,1\nann,1,-0.0\n"
    _, dataset = take(text, features=2, columns=ROLES, duplicates="mean", keep_zeros=True)
    assert records(dataset) == [[[(0, 0.0), (1, 0.0)]]]
    assert [math.copysign(1.0, value) for value in dataset.read(0).values] == [1.0, 1.0]


def test_a_declared_row_without_entries_is_still_empty(take: Take) -> None:
    entries = "%%MatrixMarket matrix coordinate real general\n3 2 2\n1 1 0\n3 1 2\n"
    _, dataset = take(entries, file="x.mtx", keep_zeros=True)
    assert records(dataset) == [[[(0, 0.0)]], [[]], [[(0, 2.0)]]]


@pytest.mark.parametrize("requested", [{"duplicates": "last"}, {"keep_zeros": True}], ids=["duplicates", "zeros"])
def test_options_for_listed_entries_are_refused_for_dense_tables(take: Take, requested: dict[str, Any]) -> None:
    with pytest.raises(Invalid, match=r"applies only to (triplets|formats that list the entries)"):
        take("a,b\n1,2\n", features=2, **requested)


def test_zeros_of_whole_rows_are_not_kept(take: Take) -> None:
    with pytest.raises(Invalid, match="keep_zeros applies only to triplets"):
        take("1 1:1\n", file="x.svm", features=1, keep_zeros=True)


@pytest.mark.parametrize(
    ("second", "line", "other"), [("bob,1,1\nann,0,5\n", 3, "2 of .*a.csv"), ("ann,2,1\n\nbob,2,2\nann,2,2\n", 5, "2")]
)
def test_a_second_rating_is_named_with_the_file_and_line_of_both(
    home: Path, tmp_path: Path, second: str, line: int, other: str
) -> None:
    (tmp_path / "a.csv").write_text("user,item,rating\nann,0,4\nbob,0,3\nann,1,0\n")
    (tmp_path / "b.csv").write_text("user,item,rating\n" + second)
    options = IngestOptions(features=3, columns=ROLES, duplicates="refuse")
    with pytest.raises(
        BadSource, match=rf"b\.csv: line {line}: it has the same row and column as line {other};"
    ) as refused:
        ingest([tmp_path / "a.csv", tmp_path / "b.csv"], name="x", home=home, engine=engine_of(home), options=options)
    assert "ann" not in str(refused.value)
    quarantined = replace(options, on_error="quarantine")
    report = ingest(
        [tmp_path / "a.csv", tmp_path / "b.csv"], name="x", home=home, engine=engine_of(home), options=quarantined
    )
    notes = quarantine_notes(home / "datasets/x" / report.snapshot).read_text().splitlines()
    assert [note.rsplit("/", 1)[-1].split(",")[:3] for note in notes[1:]] == [["b.csv", "line", str(line)]]


REPEATED = {
    "x.svm": "1 1:1 3:2 1:4\n1 2:1\n",
    "x.npz": sp.csr_array((np.array([1.0, 2, 4, 1]), np.array([0, 2, 0, 1]), np.array([0, 3, 4])), shape=(2, 3)),
    "x.zarr": None,
    "x.h5ad": None,
}


def repeated(folder: Path, name: str) -> Path:
    """Write a matrix whose first row has two values in its first column."""
    path, matrix = folder / name, REPEATED["x.npz"]
    if name == "x.svm":
        path.write_text(REPEATED[name])
        return path
    if name == "x.npz":
        sp.save_npz(path, matrix)
        return path
    root: Any = h5py.File(path, "w") if name == "x.h5ad" else zarr.open_group(path, mode="w")
    group = root.create_group("X")
    group.attrs["encoding-type"], group.attrs["shape"] = "csr_matrix", [2, 3]
    for part in ("indptr", "indices", "data"):
        if name == "x.h5ad":
            group.create_dataset(part, data=getattr(matrix, part))
        else:
            group.create_array(part, data=getattr(matrix, part))
    if name == "x.h5ad":
        root.close()
    return path


@pytest.mark.parametrize("name", REPEATED)
def test_a_column_repeated_in_a_matrix_row_is_refused_or_merged_as_requested(
    take: Take, tmp_path: Path, name: str
) -> None:
    path, given = repeated(tmp_path, name), {"features": 3}
    place = "line 1" if name == "x.svm" else "row 0"
    with pytest.raises(BadSource, match=f"{place} has two values in one column; drop one, or choose --duplicates"):
        take(path, **given)
    for duplicates, merged in (("sum", 5.0), ("mean", 2.5), ("last", 4.0)):
        _, dataset = take(path, duplicates=duplicates, **given)
        assert records(dataset) == [[[(0, merged), (2, 2.0)]], [[(1, 1.0)]]]
        assert dataset.manifest.duplicates == duplicates
    report, dataset = take(path, on_error="quarantine", **given)
    assert (records(dataset), report.quarantined, dataset.manifest.duplicates) == ([[[]], [[(1, 1.0)]]], 1, "whole")
    np.save(tmp_path / "owners.npy", [7, 7])
    with pytest.raises(BadSource, match=f"{place} has two values in one column"):
        take(path, units=str(tmp_path / "owners.npy"), **given)
    _, dataset = take(path, units=str(tmp_path / "owners.npy"), duplicates="last", **given)
    assert records(dataset) == [[[(0, 4.0), (2, 2.0)], [(1, 1.0)]]]


def test_an_unknown_rule_for_duplicates_is_refused_by_an_ingest() -> None:
    with pytest.raises(Invalid, match="duplicates='first' is not one of sum, mean, last, refuse"):
        IngestOptions(duplicates="first")


def test_a_killed_ingest_is_resumed_only_under_the_same_rule(tmp_path: Path) -> None:
    source = tmp_path / "x.csv"
    source.write_text(TEXT)

    def request(**requested: Any) -> dict[str, Any]:
        options = IngestOptions(features=3, columns=ROLES, **requested)
        declared = Declared.of(n_features=3, columns=ROLES)
        with open_source(source, options=options, declared=declared, rejects=Rejects()) as opened:
            return opened.request(options, block_nnz=100)

    plain = request()
    assert plain == request(duplicates="sum", keep_zeros=False)
    assert request(duplicates="last") not in (plain, request(duplicates="mean"))
    assert request(keep_zeros=True) != plain
