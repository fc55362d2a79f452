"""Data frames as input: columns are matched by name, and the index is never a feature.

The rules hold for frames of every library. A missing or unknown column is refused in one line. Values that an array of
float64 cannot represent are refused with the name of their column, or are missing where missing values are allowed.
"""

import datetime as dt
import warnings
from contextlib import closing
from pathlib import Path
from typing import Any

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse

from dpca.artifacts.columns import rows_by_name
from dpca.artifacts.dpca_subspace import Subspace
from dpca.artifacts.subspace import PrivateSubspace
from dpca.errors import BadSource, Invalid
from dpca.schemas.encoder import Encoder
from dpca.schemas.frames import feature_columns, match_names, plain_rows
from dpca.schemas.schema import Schema
from dpca_tasks.errors import InvalidInput
from dpca_tasks.records.blocks import ArrayBlocks
from flows.estimators import PrivateMatrixFactorization, PrivatePCA
from flows.estimators.memory import InMemoryBudget
from flows.estimators.tables import Entries, Table
from storage.formats.batch import Rejects
from storage.formats.declared import Declared
from storage.formats.sources import open_file
from storage.formats.violations import read_head

ROWS = pd.DataFrame({"a": [1.0, 2.0, 3.0], "b": [4.0, 5.0, 6.0]}, index=[11, 12, 13])
INDEXED = {
    "no name": ROWS,
    "a name": ROWS.rename_axis("who"),
    "the name of a column": ROWS.rename_axis("a"),
    "the name of a role": ROWS.rename_axis("row"),
    "text": ROWS.set_axis(["x", "y", "z"]),
    "several levels": ROWS.set_index(pd.MultiIndex.from_arrays([[1, 2, 3], [4, 5, 6]], names=["who", None])),
    "from set_index": ROWS.assign(key=[7.0, 8.0, 9.0]).set_index("key"),
    "a range": ROWS.reset_index(drop=True),
    "a range from 1": ROWS.set_axis(pd.RangeIndex(1, 4)),
    "dates": ROWS.set_axis(pd.date_range("2026-01-01", periods=3)),
}
COLUMNS: list[dict[str, Any]] = [
    {"name": name, "kind": "numeric", "range": [0, 10], "scale": "none"} for name in ("a", "b")
]


def read(path: Path, **declared: Any) -> tuple[list[str], list[Any] | None]:
    """Return the feature names and the ids of a file with the test's rows, and check its features."""
    with closing(open_file(path, Declared(**declared))) as reader:
        (batch,) = reader.batches(Rejects())
        assert reader.names is not None
        order = np.argsort(reader.names)
        assert batch.values.reshape(3, -1)[:, order].tolist() == ROWS.to_numpy().tolist()
        return sorted(reader.names), None if batch.unit_ids is None else batch.unit_ids.to_pylist()


@pytest.mark.parametrize("kind", INDEXED)
def test_a_stored_index_is_left_out_of_parquet(tmp_path: Path, kind: str) -> None:
    INDEXED[kind].to_parquet(path := tmp_path / "x.parquet", index=None if "range" in kind else True)
    assert read(path) == (["a", "b"], None)
    assert read(path, names=("a", "b")) == (["a", "b"], None)
    assert read(path, schema=Schema.parse({"columns": COLUMNS})) == (["a", "b"], None)
    found, _ = read_head(str(path), format=None, header=None, delimiter=None, encoding=None)
    assert [name for name, _ in found] == ["a", "b"]


def test_a_declaration_names_the_stored_index(tmp_path: Path) -> None:
    ROWS.rename_axis("who").to_parquet(path := tmp_path / "x.parquet")
    assert read(path, unit_column="who") == (["a", "b"], [11, 12, 13])
    schema = Schema.parse({"columns": [*COLUMNS, {"name": "who", "kind": "id"}]})
    assert read(path, schema=schema) == (["a", "b"], [11, 12, 13])
    ROWS.set_index("a").to_parquet(path)
    assert read(path, names=("a", "b")) == (["a", "b"], None)
    entries = pd.DataFrame({"row": [0, 1], "column": [0, 1], "value": [1.0, 2.0]}).set_index(["row", "column"])
    entries.to_parquet(path)
    with closing(open_file(path, Declared(n_features=2))) as reader:
        assert reader.scattered
        assert next(iter(reader.batches(Rejects()))).indices.tolist() == [0, 1]


def without_metadata(path: Path, rows: pd.DataFrame) -> Path:
    pq.write_table(pa.Table.from_pandas(rows).replace_schema_metadata(None), path)
    return path


def reread(path: Path, rows: pd.DataFrame) -> Path:
    """Write rows to CSV with their index, and read the CSV back into a Parquet file."""
    rows.to_csv(path.with_suffix(".csv"))
    pd.read_csv(path.with_suffix(".csv")).to_parquet(path)
    return path


def csv(path: Path, rows: pd.DataFrame) -> Path:
    rows.to_csv(path, sep="\t" if path.suffix == ".tsv" else ",")
    return path


def csv_twice(path: Path, rows: pd.DataFrame) -> Path:
    pd.read_csv(csv(path, rows)).to_csv(path, index=False)
    return path


AMBIGUOUS = {
    "Parquet without metadata": (without_metadata, "x.parquet", "__index_level_0__"),
    "Parquet of reread text": (reread, "x.parquet", "Unnamed: 0"),
    "CSV": (csv, "x.csv", ""),
    "TSV": (csv, "x.tsv", ""),
    "CSV of reread text": (csv_twice, "x.csv", "Unnamed: 0"),
}


@pytest.mark.parametrize("kind", AMBIGUOUS)
def test_a_column_that_resembles_an_index_is_refused_until_it_is_declared(tmp_path: Path, kind: str) -> None:
    write, file, name = AMBIGUOUS[kind]
    path = write(tmp_path / file, ROWS)
    width = {"n_features": 3} if file != "x.parquet" else {}
    refusal = rf"column {name!r} has the name of the index" if name else r"column 1 has no name, like the index"
    for declared in (width, {"schema": Schema.parse({"columns": COLUMNS})}):
        with pytest.raises(BadSource, match=rf"{refusal} of a data frame.*--feature-names.*--unit-column"):
            read(path, **declared)
    assert read(path, names=("a", "b")) == (["a", "b"], None)
    assert read(path, schema=Schema.parse({"unlisted": "drop", "columns": COLUMNS})) == (["a", "b"], None)
    features = {"n_features": 2} if width else {}
    ids = [11, 12, 13] if file == "x.parquet" else ["11", "12", "13"]
    assert read(path, unit_column=name, **features) == (["a", "b"], ids)
    if name:
        schema = Schema.parse({"columns": [*COLUMNS, {"name": name, "kind": "drop"}]})
        assert read(path, schema=schema) == (["a", "b"], None)


def test_a_trailing_delimiter_adds_no_feature(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("a,b,\n1,4,\n2,5,\n3,6,\n")
    with pytest.raises(BadSource, match="column 3 has no name"):
        read(tmp_path / "x.csv", n_features=3)
    assert read(tmp_path / "x.csv", names=("a", "b")) == (["a", "b"], None)


@pytest.mark.parametrize(
    ("pandas_index", "is_read"),
    [(b"{", False), (b"[7]", False), (b'{"index_columns": 7}', False), (b'{"index_columns": [["a"], "c"]}', True)],
)
def test_damaged_metadata_is_refused_in_one_line_or_names_no_index(
    tmp_path: Path, pandas_index: bytes, *, is_read: bool
) -> None:
    table = pa.table({"a": [1.0, 2.0, 3.0], "b": [4.0, 5.0, 6.0]}).replace_schema_metadata({b"pandas": pandas_index})
    pq.write_table(table, tmp_path / "x.parquet")
    if is_read:
        assert read(tmp_path / "x.parquet") == (["a", "b"], None)
        return
    with pytest.raises(BadSource, match="not a readable Parquet file"):
        read(tmp_path / "x.parquet")


FRAMES = {
    "pandas": lambda rows: rows,
    "Arrow": pa.Table.from_pandas,
    "an Arrow batch": pa.RecordBatch.from_pandas,
}


@pytest.mark.parametrize("kind", FRAMES)
@pytest.mark.parametrize("index", [kind for kind in INDEXED if kind != "dates"])
def test_the_index_of_a_frame_in_memory_is_not_a_feature(kind: str, index: str) -> None:
    rows = FRAMES[kind](INDEXED[index])
    assert rows_by_name(rows, names=("a", "b"), noun="release").tolist() == ROWS.to_numpy().tolist()
    assert rows_by_name(rows, names=None, noun="release").shape == (3, 2)
    encoder = Encoder(Schema.parse({"columns": COLUMNS}))
    assert encoder.transform(rows).tolist() == ROWS.to_numpy().tolist()


@pytest.mark.parametrize("kind", ["no name", "a name", "from set_index", "a range"])
def test_an_estimator_does_not_use_the_index(kind: str) -> None:
    table = pa.Table.from_pandas(INDEXED[kind])
    fitted = PrivatePCA(1, epsilon=8.0, delta=1e-6, clip_norm=9.0, budget=InMemoryBudget()).fit(table)
    assert fitted.feature_names_in_.tolist() == ["a", "b"]
    assert fitted.transform(table).shape == (3, 1)


@pytest.mark.parametrize("name", ["Unnamed: 0", "__index_level_0__", ""])
def test_a_frame_with_a_column_that_resembles_an_index_is_refused(name: str) -> None:
    columns = {name: [1.0, 2.0, 3.0], "a": [1.0, 2.0, 3.0], "b": [4.0, 5.0, 6.0]}
    for rows in (pd.DataFrame(columns), pa.table(columns)):
        with pytest.raises(Invalid, match="index of a data frame, which is not a feature"):
            PrivatePCA(1, epsilon=8.0, delta=1e-6, clip_norm=9.0).fit(rows)
        with pytest.raises(Invalid, match="index of a data frame, which is not a feature"):
            rows_by_name(rows, names=("a", "b"), noun="release")
        with pytest.raises(Invalid, match="index of a data frame, which is not a feature"):
            Encoder(Schema.parse({"columns": COLUMNS})).transform(rows)
        encoder = Encoder(Schema.parse({"unlisted": "drop", "columns": COLUMNS}))
        assert encoder.transform(rows).tolist() == ROWS.to_numpy().tolist()


def test_names_that_only_resemble_an_index_are_features() -> None:
    names = ["index", "Unnamed", "Unnamed: x", "level_0", "__index_level_x__", "0"]
    assert feature_columns(names) == names


NAMES = st.lists(st.text(max_size=5), unique=True, min_size=1, max_size=12)


@given(NAMES, st.randoms(use_true_random=False))
def test_columns_in_any_order_are_matched(names: list[str], random: object) -> None:
    permuted = list(names)
    random.shuffle(permuted)  # type: ignore[attr-defined]
    order = match_names(permuted, names, noun="release")
    assert (permuted if order is None else [permuted[at] for at in order]) == names


@given(NAMES, st.data())
def test_a_missing_column_is_named_and_existing_columns_are_not(names: list[str], data: st.DataObject) -> None:
    missing = data.draw(st.sampled_from(names))
    found = [name for name in names if name != missing] + ["SECRET cell of a first row"]
    with pytest.raises(Invalid) as caught:
        match_names(found, names, noun="release")
    assert f"column {missing!r} is missing" in str(caught.value)
    assert "SECRET" not in str(caught.value)


def test_undeclared_columns_are_refused_or_left_out() -> None:
    with pytest.raises(Invalid, match=r"^column 'x' and 1 more are not among the 2 of this release; drop"):
        match_names(["b", "x", "a", "y"], ["a", "b"], noun="release")
    order = match_names(["b", "x", "a", "y"], ["a", "b"], noun="release", drop_others=True)
    assert order is not None
    assert order.tolist() == [2, 0]


def test_duplicate_names_are_matched_by_position_or_refused() -> None:
    assert match_names(["a", "a", "b"], ["a", "a", "b"], noun="release") is None
    for found, wanted in ((["a", "b", "a"], ["a", "a", "b"]), (["b", "a", "a"], ["a", "b"])):
        with pytest.raises(Invalid, match="occurs twice"):
            match_names(found, wanted, noun="release")


PLAIN_ROWS_ROWS = np.arange(18.0).reshape(6, 3)
MASKED = np.ma.masked_array(PLAIN_ROWS_ROWS, mask=PLAIN_ROWS_ROWS == 4)
PLAIN_ROWS_NAMES = list("abc")


class Quantity(np.ndarray):
    """An array with a unit, like astropy's Quantity."""

    unit = "kg"


def frame(column: Any) -> pd.DataFrame:
    return pd.DataFrame(PLAIN_ROWS_ROWS, columns=PLAIN_ROWS_NAMES).assign(b=column)


DATES = pd.to_datetime(["2020-01-01"] * 6)
LOSSES: dict[str, tuple[Any, str]] = {
    "dates": (pd.DataFrame({name: DATES for name in PLAIN_ROWS_NAMES}), "column 'a' of .* holds datetime64"),
    "one column of dates": (frame(DATES), "column 'b' of .* holds datetime64"),
    "dates with a zone": (frame(DATES.tz_localize("Europe/Berlin")), "column 'b' of .* holds datetime64"),
    "durations": (frame(DATES - DATES[0]), "column 'b' of .* holds timedelta64"),
    "periods": (frame(pd.period_range("2020", periods=6, freq="M")), "column 'b' of .* holds period"),
    "intervals": (frame(pd.interval_range(0, 6)), "column 'b' of .* holds interval"),
    "categories": (frame(pd.Categorical([1, 2, 3] * 2)), "column 'b' of .* holds category"),
    "Arrow dates": (
        frame(pd.array([dt.date(2020, 1, 1)] * 6, dtype=pd.ArrowDtype(pa.date32()))),
        "'b' of .* holds date32",
    ),
    "objects with ticks": (
        frame(pd.Series([np.timedelta64(1, "D")] * 6, dtype=object)),
        "column 'b' of .* holds (dates|timedelta)",
    ),
    "large integers": (frame(np.full(6, 2**53 + 1)), "column 'b' of .* beyond 2\\*\\*53"),
    "large nullable integers": (frame(pd.array([1, None, 3, 4, 5, 2**60], dtype="Int64")), "column 'b' of .* beyond"),
    "table of dates": (
        pa.table({name: pa.array(range(6), pa.date32()) for name in PLAIN_ROWS_NAMES}),
        "column 'a' of .* date32",
    ),
    "table of codes": (
        pa.table({name: pa.array(range(6)).dictionary_encode() for name in PLAIN_ROWS_NAMES}),
        "dictionary",
    ),
    "Dask frame of dates": (dd.from_pandas(frame(DATES), npartitions=2), "column 'b' of .* holds datetime64"),
    "array of dates": (np.full((6, 3), np.datetime64("2020-01-01")), "holds datetime64"),
    "array of durations": (np.full((6, 3), np.timedelta64(1, "D")), "holds timedelta64"),
    "list of dates": ([[np.datetime64("2020-01-01")] * 3] * 6, "holds datetime64"),
    "structured array": (np.zeros((6, 3), dtype=[("unit", "f8")]), "holds"),
    "unit": (PLAIN_ROWS_ROWS.view(Quantity), "has the unit kg"),
    "array of large integers": (np.full((6, 3), 2**53 + 1), "beyond 2\\*\\*53"),
    "csr array of large integers": (sparse.csr_array(np.full((6, 3), -(2**53) - 1)), "beyond 2\\*\\*53"),
}


def check(estimator: Any, rows: Any, entries: Entries) -> Any:
    table = Table.checked(estimator, rows, reset=True, entries=entries)
    parts = [piece() for piece in table.pieces]
    return np.vstack([part.toarray() if sparse.issparse(part) else part for part in parts])


READERS = {
    "PrivatePCA": lambda rows: check(PrivatePCA(), rows, Entries()),
    "PrivateMatrixFactorization": lambda rows: check(PrivateMatrixFactorization(), rows, Entries(missing=True)),
    "subspace": lambda rows: PrivateSubspace(components=np.eye(3), manifest={}).transform(rows),
    "subspace with names": lambda rows: PrivateSubspace(
        components=np.eye(3), manifest={"feature_names": PLAIN_ROWS_NAMES}
    ).transform(rows),
}


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("loss", LOSSES)
def test_a_lossy_conversion_is_refused_in_one_line(loss: str, reader: str) -> None:
    rows, message = LOSSES[loss]
    with pytest.raises(Invalid, match=message) as caught:
        READERS[reader](rows)
    assert "\n" not in str(caught.value)
    assert "2020" not in str(caught.value)


@pytest.mark.parametrize(
    "rows", [MASKED, list(MASKED), da.from_array(MASKED, chunks=(2, 3))], ids=["array", "list", "Dask"]
)
def test_masked_values_are_missing_values(rows: Any) -> None:
    for reader in ("PrivatePCA", "subspace", "subspace with names"):
        with pytest.raises(Invalid, match="masked values, which are missing data"):
            READERS[reader](rows)
    found = Table.checked(PrivateMatrixFactorization(), rows, reset=True, entries=Entries(missing=True))
    stored = sum(piece().nnz for piece in found.pieces)
    assert stored == PLAIN_ROWS_ROWS.size - 1
    with pytest.raises(InvalidInput, match="masked values"):
        ArrayBlocks(MASKED)
    assert ArrayBlocks(np.ma.masked_array(PLAIN_ROWS_ROWS)).content == ArrayBlocks(PLAIN_ROWS_ROWS).content


def test_an_array_without_masked_values_is_the_array() -> None:
    plain = plain_rows(np.ma.masked_array(PLAIN_ROWS_ROWS))
    assert type(plain) is np.ndarray
    assert (READERS["subspace"](np.ma.masked_array(PLAIN_ROWS_ROWS)) == PLAIN_ROWS_ROWS).all()


@pytest.mark.parametrize("fill", [0.0, 1.0])
def test_sparse_frames_equal_dense_frames_and_ambiguous_ratings_are_refused(fill: float) -> None:
    dense = frame(np.array([fill, fill, 2, fill, 3, fill]))
    one = dense.assign(b=pd.arrays.SparseArray(dense["b"], fill_value=fill))
    every = pd.DataFrame({name: pd.arrays.SparseArray(dense[name], fill_value=fill) for name in PLAIN_ROWS_NAMES})
    for rows in (one, every):
        for reader in ("PrivatePCA", "subspace", "subspace with names"):
            assert (READERS[reader](rows) == dense.to_numpy()).all()
        if fill == 0:
            with pytest.raises(
                Invalid, match="is sparse with 0 for entries that are not stored, which may be ratings or missing"
            ):
                READERS["PrivateMatrixFactorization"](rows)
        else:
            assert (READERS["PrivateMatrixFactorization"](rows) == dense.to_numpy()).all()


def test_nullable_numbers_keep_values_and_missing_values() -> None:
    whole = frame(pd.array([1, 2, 3, 4, 5, 6], dtype="Int64"))
    absent = frame(pd.array([1, None, 3, 4, 5, 6], dtype="Int64"))
    for reader in READERS:
        assert READERS[reader](whole)[1, 1] == 2
    for reader in ("PrivatePCA", "subspace", "subspace with names"):
        with pytest.raises(ValueError, match="NaN"):
            READERS[reader](absent)
    assert (
        Table.checked(PrivateMatrixFactorization(), absent, reset=True, entries=Entries(missing=True)).whole.nnz == 17
    )


def test_objects_that_are_not_numbers_are_refused_in_one_line() -> None:
    rows = frame(pd.Series([dt.date(2020, 1, 1)] * 6, dtype=object))
    for reader in READERS:
        with pytest.raises((TypeError, ValueError), match=r"^[^\n]*(not|become) numbers[^\n]*$|text or objects"):
            READERS[reader](rows)


def test_an_exported_model_refuses_ambiguous_input(tmp_path: Any) -> None:
    np.savez(tmp_path / "subspace.npz", components=np.eye(3), offset=np.zeros(3), names=np.array(PLAIN_ROWS_NAMES))
    model = Subspace(str(tmp_path))
    with warnings.catch_warnings(action="error"):
        for rows in (frame(DATES), frame(pd.Categorical([1, 2, 3] * 2)), MASKED):
            with pytest.raises(ValueError, match=r"are not numbers|masked values"):
                model.predict(rows)
    assert (model.predict(pd.DataFrame(PLAIN_ROWS_ROWS, columns=PLAIN_ROWS_NAMES)) == PLAIN_ROWS_ROWS).all()
