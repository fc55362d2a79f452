"""The index of a data frame is no feature, whatever holds the frame."""

from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from flows.estimators.memory import InMemoryBudget
from flows.estimators.pca import PrivatePCA
from storage.artifacts.columns import rows_by_name
from storage.errors import BadSource, Invalid
from storage.formats.declared import Declared
from storage.formats.rejects import Rejects
from storage.formats.sources import open_file
from storage.formats.table_heads import read_head
from storage.schemas.encoder import Encoder
from storage.schemas.frames import feature_columns
from storage.schemas.schema import Schema

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
    """Read the names of the features and the ids of a table whose features are 1, 2, 3 and 4, 5, 6."""
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


def test_a_stored_index_is_what_a_declaration_names_it(tmp_path: Path) -> None:
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
    """Write a frame that was read from text with an index."""
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
def test_a_column_that_looks_like_an_index_is_refused_until_it_is_declared(tmp_path: Path, kind: str) -> None:
    write, file, name = AMBIGUOUS[kind]
    path = write(tmp_path / file, ROWS)
    width = {"n_features": 3} if file != "x.parquet" else {}
    said = rf"column {name!r} has the name of the index" if name else r"column 1 has no name, like the index"
    for given in (width, {"schema": Schema.parse({"columns": COLUMNS})}):
        with pytest.raises(BadSource, match=rf"{said} of a data frame.*--feature-names.*--unit-column"):
            read(path, **given)
    assert read(path, names=("a", "b")) == (["a", "b"], None)
    assert read(path, schema=Schema.parse({"unlisted": "drop", "columns": COLUMNS})) == (["a", "b"], None)
    features = {"n_features": 2} if width else {}
    ids = [11, 12, 13] if file == "x.parquet" else ["11", "12", "13"]
    assert read(path, unit_column=name, **features) == (["a", "b"], ids)
    if name:
        schema = Schema.parse({"columns": [*COLUMNS, {"name": name, "kind": "drop"}]})
        assert read(path, schema=schema) == (["a", "b"], None)


def test_a_trailing_delimiter_makes_no_feature(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("a,b,\n1,4,\n2,5,\n3,6,\n")
    with pytest.raises(BadSource, match="column 3 has no name"):
        read(tmp_path / "x.csv", n_features=3)
    assert read(tmp_path / "x.csv", names=("a", "b")) == (["a", "b"], None)


@pytest.mark.parametrize(
    ("stated", "is_read"),
    [(b"{", False), (b"[7]", False), (b'{"index_columns": 7}', False), (b'{"index_columns": [["a"], "c"]}', True)],
)
def test_damaged_metadata_is_refused_in_one_line_or_names_no_index(
    tmp_path: Path, stated: bytes, *, is_read: bool
) -> None:
    table = pa.table({"a": [1.0, 2.0, 3.0], "b": [4.0, 5.0, 6.0]}).replace_schema_metadata({b"pandas": stated})
    pq.write_table(table, tmp_path / "x.parquet")
    if is_read:
        assert read(tmp_path / "x.parquet") == (["a", "b"], None)
        return
    with pytest.raises(BadSource, match="no readable Parquet file"):
        read(tmp_path / "x.parquet")


FRAMES = {
    "pandas": lambda rows: rows,
    "Arrow": pa.Table.from_pandas,
    "an Arrow batch": pa.RecordBatch.from_pandas,
}


@pytest.mark.parametrize("kind", FRAMES)
@pytest.mark.parametrize("index", [kind for kind in INDEXED if kind != "dates"])
def test_the_index_of_a_frame_in_memory_is_no_feature(kind: str, index: str) -> None:
    rows = FRAMES[kind](INDEXED[index])
    assert rows_by_name(rows, names=("a", "b"), noun="release").tolist() == ROWS.to_numpy().tolist()
    assert rows_by_name(rows, names=None, noun="release").shape == (3, 2)
    encoder = Encoder(Schema.parse({"columns": COLUMNS}))
    assert encoder.transform(rows).tolist() == ROWS.to_numpy().tolist()


@pytest.mark.parametrize("kind", ["no name", "a name", "from set_index", "a range"])
def test_an_estimator_learns_no_index(kind: str) -> None:
    table = pa.Table.from_pandas(INDEXED[kind])
    fitted = PrivatePCA(1, epsilon=8.0, delta=1e-6, clip_norm=9.0, budget=InMemoryBudget()).fit(table)
    assert fitted.feature_names_in_.tolist() == ["a", "b"]
    assert fitted.transform(table).shape == (3, 1)


@pytest.mark.parametrize("name", ["Unnamed: 0", "__index_level_0__", ""])
def test_a_frame_with_a_column_that_looks_like_an_index_is_refused(name: str) -> None:
    columns = {name: [1.0, 2.0, 3.0], "a": [1.0, 2.0, 3.0], "b": [4.0, 5.0, 6.0]}
    for rows in (pd.DataFrame(columns), pa.table(columns)):
        with pytest.raises(Invalid, match="index of a data frame, which is no feature"):
            PrivatePCA(1, epsilon=8.0, delta=1e-6, clip_norm=9.0).fit(rows)
        with pytest.raises(Invalid, match="index of a data frame, which is no feature"):
            rows_by_name(rows, names=("a", "b"), noun="release")
        with pytest.raises(Invalid, match="index of a data frame, which is no feature"):
            Encoder(Schema.parse({"columns": COLUMNS})).transform(rows)
        encoder = Encoder(Schema.parse({"unlisted": "drop", "columns": COLUMNS}))
        assert encoder.transform(rows).tolist() == ROWS.to_numpy().tolist()


def test_names_that_only_resemble_an_index_are_features() -> None:
    names = ["index", "Unnamed", "Unnamed: x", "level_0", "__index_level_x__", "0"]
    assert feature_columns(names) == names
