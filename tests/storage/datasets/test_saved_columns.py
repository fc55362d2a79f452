"""A new snapshot has the columns of its dataset: another order is mapped by name, and anything else is refused."""

from pathlib import Path
from typing import Any

import anndata
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from scipy import sparse

from storage.datasets.ingest import ingest
from storage.datasets.ingest_options import IngestOptions
from storage.datasets.snapshot_reader import Dataset
from storage.errors import BadSource, Invalid
from storage.workspace import Workspace

pytestmark = pytest.mark.filterwarnings("ignore:The 'future.infer_string' option")  # anndata sets it
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
    """Ingests into one home."""

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
def take(home: Path, tmp_path: Path) -> Taking:
    return Taking(tmp_path)


def reordered(columns: dict[str, Any]) -> dict[str, Any]:
    return {name: columns[name] for name in "cab"}


@pytest.mark.parametrize("form", ["csv", "tsv", "parquet"])
def test_columns_of_another_order_are_mapped_by_name(take: Taking, form: str) -> None:
    features = {} if form == "parquet" else {"features": 3}
    first = take(form, ROWS, **features)
    assert take(form, reordered(ROWS), **features) == first == [[1, 2, 3], [4, 5, 6]]
    assert take.dataset().feature_names() == ("a", "b", "c")
    assert take("csv" if form == "parquet" else "parquet", reordered(ROWS), features=3) == first


def test_a_store_whose_columns_have_another_order_is_refused(take: Taking) -> None:
    first = take("h5ad", ROWS)
    with pytest.raises(BadSource, match="the columns are not those of dataset 'd': they have another order"):
        take("h5ad", reordered(ROWS))
    assert take("h5ad", ROWS) == first


def test_other_columns_are_refused_by_their_names(take: Taking) -> None:
    take("csv", ROWS, features=3)
    before = take.dataset().manifest.snapshot
    for rows, message in (
        ({**ROWS, "d": ROWS["a"]}, "column 'd' new"),
        ({"a": ROWS["a"], "b": ROWS["b"]}, "column 'c' missing"),
        ({"a": ROWS["a"], "b": ROWS["b"], "C": ROWS["c"]}, "column 'c' missing and column 'C' new"),
    ):
        for form in ("csv", "parquet", "h5ad"):
            with pytest.raises(BadSource, match=f"rows.{form}: the columns are not those of dataset 'd': {message}; "):
                take(form, rows, features=len(rows))
    with pytest.raises(BadSource, match="the columns have no names, and those of dataset 'd' have"):
        take("npy", ROWS)
    assert take.dataset().manifest.snapshot == before


def test_columns_without_names_keep_their_number(take: Taking) -> None:
    take("npy", ROWS)
    with pytest.raises(BadSource, match="there are 2 features, and dataset 'd' has 3"):
        take("npy", {"a": ROWS["a"], "b": ROWS["b"]})
    take("csv", ROWS, features=3)


def test_a_schema_of_another_order_keeps_the_saved_one(take: Taking) -> None:
    first = take("csv", ROWS, table_schema=take.schema(COLUMNS))
    assert first == [[0.1, 1, 0], [0.4, 0, 1]]
    assert take("tsv", reordered(ROWS), table_schema=take.schema(reordered(COLUMNS), text="{quote: null}")) == first
    assert take.dataset().feature_names() == ("a", "b=2", "b=5")
    fewer = take.schema({name: COLUMNS[name] for name in "ba"})
    assert take("parquet", {"b": ROWS["b"], "a": ROWS["a"]}, table_schema=fewer) == first


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"a": "{name: a, kind: numeric, range: [0, 11]}"}, "declares column 'a' in another way"),
        ({"a": "{name: a, kind: categorical, values: [1], others: zero}"}, "declares column 'a' in another way"),
        ({"b": "{name: b, kind: categorical, values: [2, 6], others: zero}"}, "declares column 'b' in another way"),
        ({"b": "{name: b, kind: categorical, values: [5, 2], others: zero}"}, "declares column 'b' in another way"),
        ({"c": "{name: c, kind: numeric, range: [0, 10]}"}, "declares column 'c' in another way"),
        ({"a": "{name: A, kind: numeric, range: [0, 10]}"}, "declares columns 'a', 'A' in another way"),
    ],
    ids=["range", "kind", "values", "order of values", "feature", "name"],
)
def test_a_schema_that_means_something_else_is_refused(take: Taking, changed: dict[str, str], message: str) -> None:
    take("csv", ROWS, table_schema=take.schema(COLUMNS))
    with pytest.raises(Invalid, match=f"the schema of dataset 'd' {message}"):
        take("csv", ROWS, table_schema=take.schema({**COLUMNS, **changed}))


def test_a_schema_is_kept_with_its_missing_texts_and_its_positions(take: Taking) -> None:
    take("csv", ROWS, table_schema=take.schema(COLUMNS))
    with pytest.raises(Invalid, match="has other missing_texts"):
        take("csv", ROWS, table_schema=take.schema(COLUMNS, missing="-8"))
    with pytest.raises(Invalid, match="in another order, and without a header they go by position"):
        take("csv", ROWS, table_schema=take.schema({name: COLUMNS[name] for name in "bac"}, text="{header: false}"))
    with pytest.raises(Invalid, match="was ingested by a schema, and none is given"):
        take("csv", ROWS, features=3)
    Workspace.open().catalog.remove("d")
    take("csv", ROWS, features=3)
    with pytest.raises(Invalid, match="was ingested without a schema, and one is given"):
        take("csv", ROWS, table_schema=take.schema(COLUMNS))
