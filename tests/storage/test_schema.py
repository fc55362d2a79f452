"""Schemas in an ingest: privacy units, declared columns, and the handling of bad rows."""

import csv
import stat
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dpca.errors import BadSource, Invalid
from storage.datasets.catalog import Catalog
from storage.datasets.ingest import IngestReport, ingest
from storage.datasets.ingest_options import IngestOptions
from storage.datasets.snapshot_reader import Block, Dataset
from storage.datasets.staging import quarantine_notes

type Take = Callable[..., tuple[IngestReport, Dataset]]


@pytest.fixture
def take(tmp_path: Path, catalog: Catalog) -> Take:
    """Return a function that ingests text or a file, and returns the report and the opened snapshot."""

    def ingest_text(
        source: Any, file: str = "x.csv", dataset: str = "x", **declared: Any
    ) -> tuple[IngestReport, Dataset]:
        if isinstance(source, str):
            (tmp_path / file).write_text(source)
            source = tmp_path / file
        options = IngestOptions(**declared)
        ids = options.unit.name  # all snapshots of a dataset name must have the same privacy unit
        name = dataset if ids == "row" else f"{dataset}-{ids}"
        options = replace(options, population="x")
        report = ingest(source, name=name, home=catalog.home, engine=catalog.engine, options=options)
        return report, catalog.open(catalog.current(name))

    return ingest_text


def records(dataset: Dataset) -> list[list[list[tuple[int, float]]]]:
    """Return the records of a dataset, each as rows of (column, value)."""
    found = []
    for block in map(dataset.read, range(dataset.n_blocks)):
        rows = [
            list(zip(block.indices[start:stop].tolist(), block.values[start:stop].tolist(), strict=True))
            for start, stop in pairwise(block.row_ptr)
        ]
        found += [rows[start:stop] for start, stop in pairwise(block.record_ptr)]
    return found


def test_rows_of_one_individual_are_one_record_in_the_order_of_ids(take: Take) -> None:
    text = "who,a,b\n10,1,0\n9,2,0\nbob,3,0\n10,0,4\n9,0,0\nann,0,5\n"
    report, dataset = take(text, features=2, unit_column="who")
    assert (report.records, report.rows) == (4, 6)
    assert records(dataset) == [[[(0, 2.0)], []], [[(0, 1.0)], [(1, 4.0)]], [[(1, 5.0)]], [[(0, 3.0)]]]
    assert dataset.manifest.privacy_unit == "who"
    assert dataset.verify() == report.content_digest


def test_the_first_rows_of_each_individual_are_kept(take: Take) -> None:
    text = "who,a\n1,1\n2,2\n1,3\n1,4\n"
    _, dataset = take(text, features=1, unit_column="who", max_rows_per_unit=2)
    assert records(dataset) == [[[(0, 1.0)], [(0, 3.0)]], [[(0, 2.0)]]]
    assert dataset.manifest.max_rows_per_unit == 2
    with pytest.raises(Invalid, match="requires the individual of each row"):
        take(text, features=2, max_rows_per_unit=2)


@pytest.mark.parametrize("ids", [np.array([7, 5, 7]), np.array(["b", "a", "b"])])
@pytest.mark.parametrize("kind", ["svm", "npy", "mtx"])
def test_unit_ids_next_to_a_matrix(tmp_path: Path, take: Take, ids: np.ndarray, kind: str) -> None:
    np.save(tmp_path / "units.npy", ids)
    source: Any = "0 1:1\n0\n0 2:3\n"
    if kind == "npy":
        np.save(tmp_path / "x.npy", np.array([[1.0, 0], [0, 0], [0, 3]]))
        source = tmp_path / "x.npy"
    elif kind == "mtx":
        source = "%%MatrixMarket matrix coordinate real general\n3 2 2\n3 2 3\n1 1 1\n"
    _, dataset = take(source, f"x.{kind}", features=2, units=tmp_path / "units.npy")
    assert records(dataset) == [[[]], [[(0, 1.0)], [(1, 3.0)]]]
    assert dataset.manifest.privacy_unit == "unit"
    np.save(tmp_path / "units.npy", ids[:2])
    with pytest.raises((BadSource, Invalid), match="number of individuals' ids differs"):
        take(source if kind != "svm" else "0 1:1\n0\n0 2:3\n", f"x.{kind}", features=2, units=tmp_path / "units.npy")


def test_triplets_of_units_keep_their_rows_separate(take: Take) -> None:
    text = "visit,who,row,column,value\n0,p,2,0,1\n0,p,1,0,2\n0,q,1,1,3\n0,p,2,1,4\n"
    _, dataset = take(text, features=2, unit_column="who")
    assert records(dataset) == [[[(0, 2.0)], [(0, 1.0), (1, 4.0)]], [[(1, 3.0)]]]


def test_one_individual_may_have_a_million_rows_and_a_row_a_million_values(tmp_path: Path, take: Take) -> None:
    np.save(tmp_path / "x.npy", np.ones((10**6, 1), dtype=np.uint8))
    np.save(tmp_path / "units.npy", np.zeros(10**6, dtype=np.int64))
    report, dataset = take(tmp_path / "x.npy", units=tmp_path / "units.npy", block_nnz=100_000)
    assert (report.records, report.rows, report.nnz, report.blocks) == (1, 10**6, 10**6, 1)
    assert dataset.verify() == report.content_digest
    pq.write_table(
        pa.table({"row": np.zeros(10**6, np.int64), "column": np.arange(10**6)[::-1], "value": np.ones(10**6)}),
        tmp_path / "x.parquet",
    )
    report, dataset = take(tmp_path / "x.parquet", features=5_000_000)
    assert (report.records, report.nnz, report.features) == (1, 10**6, 5_000_000)
    assert dataset.read(0).indices.tolist() == list(range(10**6))


def test_names_and_scale_are_kept_and_applied(tmp_path: Path, take: Take) -> None:
    (tmp_path / "names").write_text("milk\nbread\nrye \u00e9\n")
    (tmp_path / "scale").write_text("0.5\n2\n1\n")
    text = "row,column,value\n1,bread,1\n1,bread,2\n0,milk,8\n"
    declared = {"feature_names": tmp_path / "names", "scale": tmp_path / "scale"}
    _, dataset = take(text, **declared)
    assert records(dataset) == [[[(0, 4.0)]], [[(1, 6.0)]]]
    assert dataset.feature_names() == ("milk", "bread", "rye \u00e9")
    found = dataset.scale()
    assert found is not None
    assert found.tolist() == [0.5, 2.0, 1.0]
    with pytest.raises(BadSource, match=r"line 2 has a column that is not in the feature names"):
        take("row,column,value\n1,beer,1\n", **declared)


def test_items_come_from_rows_only_if_they_are_public(take: Take) -> None:
    text = "row,column,value\n1,rye,1\n1,10,1\n2,9,1\n"
    with pytest.raises(Invalid, match="never inferred"):
        take(text)
    _, dataset = take(text, public_items=True)
    assert dataset.feature_names() == ("9", "10", "rye")
    assert records(dataset) == [[[(1, 1.0), (2, 1.0)]], [[(0, 1.0)]]]


@pytest.mark.parametrize("scale", ["auto", "std", "max"])
def test_scaling_by_the_data_is_refused_with_the_reason(take: Take, scale: str) -> None:
    with pytest.raises(Invalid, match="computed from the rows"):
        take("a\n1\n", features=1, scale=scale)


@pytest.mark.parametrize(("names", "fault"), [("a\n\nb", "line 2 .* is empty"), ("a\na", "line 2 .* occurs twice")])
def test_bad_dictionaries_are_refused(tmp_path: Path, take: Take, names: str, fault: str) -> None:
    (tmp_path / "names").write_text(names)
    with pytest.raises(Invalid, match=fault):
        take("a,b\n1,2\n", feature_names=tmp_path / "names")


BAD_ROWS = {
    "a,b\n1,2\n3,x\n5,inf\n7\n9,9\n": (["line 3", "line 4", "line 5"], [[1, 2], [0, 0], [0, 0], [0, 0], [9, 9]], {}),
    "\ufeffrow,column,value\r\n0,0,1\r\n\r\n1,-1,1\r\n2,7,1\r\n3,1.5,1\r\n,1,1\r\n4,1,2\r\n": (
        ["line 4", "line 5", "line 6", "line 7"],
        [[1, 0], [0, 0], [0, 0], [0, 0], [0, 2], [0, 0]],
        {},
    ),
    "0 1:1\n0 9:1\n# note\nx 1:1\n0 1:nan 2:1\n0 2:2": (
        ["line 2", "line 4", "line 5"],
        [[1, 0], [0, 0], [0, 0], [0, 0], [0, 2]],
        {"file": "x.svm"},
    ),
    "%%MatrixMarket matrix coordinate real general\n4 2 6\n1 1 1\n0 1 1\n2 3 1\n2 1\n3 2 nan\n4 2 2\n": (
        ["line 4", "line 5", "line 6", "line 7"],
        [[1, 0], [0, 0], [0, 0], [0, 2]],
        {"file": "x.mtx"},
    ),
}


@pytest.mark.parametrize("text", BAD_ROWS)
def test_bad_rows_end_the_ingest_or_make_their_records_empty(catalog: Catalog, take: Take, text: str) -> None:
    places, kept, declared = BAD_ROWS[text]
    with pytest.raises(BadSource, match=rf"x\.\w+: ({'|'.join(places)})[: ]") as caught:
        take(text, features=2, **declared)
    assert "\n" not in str(caught.value)
    assert [path for path in catalog.home.rglob("*") if path.is_file()] == []
    report, dataset = take(text, features=2, on_error="quarantine", **declared)
    dense = np.zeros((report.rows, 2))
    for row, record in enumerate(records(dataset)):
        for column, value in record[0]:
            dense[row, column] = value
    assert dense.tolist() == kept
    assert report.quarantined == dataset.manifest.quarantined == len(places)
    notes = quarantine_notes(Path(dataset.address))
    assert stat.S_IMODE(notes.stat().st_mode) == 0o600
    found = list(csv.DictReader(notes.read_text().splitlines()))
    assert sorted(f"{note['place']} {note['number']}" for note in found) == places
    assert all(note["file"].endswith(declared.get("file", "x.csv")) for note in found)
    assert not any(value in note["reason"] for note in found for value in ("9:1", "'x'", "nan"))
    catalog.remove("x")
    assert not notes.exists()


@pytest.mark.parametrize(
    ("text", "declared", "complaint"),
    [
        ("a;b\n1;2\n", {"features": 2}, "instead of the delimiter; give --delimiter"),
        ("a,b\n1,2\n", {}, "declare the number of features"),
        ("a,a\n1,2\n", {"features": 2}, "same name"),
        ("a,b\n1,2\n", {"features": 2, "columns": {"row": "user"}}, "no column 'user'"),
        ("a,b\n1,2\n", {"features": 2, "unit_column": "who"}, "no column 'who'"),
        ("a,b\n", {"features": 2}, "no row"),
        ("row,column,value\n", {"features": 2}, "no row"),
        ("\n1,2\n", {"features": 2}, "must contain the column names"),
        ("row,column,value\n1,0,1e308\n1,0,1e308\n", {"features": 2}, "outside the range of float64"),
        ("%%MatrixMarket matrix array real general\n", {"file": "x.mtx"}, "is not supported"),
        ("%%MatrixMarket matrix coordinate real general\n2 2 2\n1 1 1\n", {"file": "x.mtx"}, "there are 1 entries"),
        ("%%MatrixMarket matrix coordinate real general\n2 two 2\n", {"file": "x.mtx"}, "line 2 is not"),
        ("spam", {"file": "x.parquet"}, "not a readable Parquet"),
        ("spam", {"file": "x.npy"}, r"not a readable \.npy"),
        ("spam", {"file": "x.h5ad"}, "not a readable h5ad"),
        ("spam", {"file": "x.svm.zst", "features": 2}, "not Zstandard"),
    ],
)
def test_a_file_that_is_not_a_table_is_refused_in_one_line(
    catalog: Catalog, take: Take, text: str, declared: dict[str, Any], complaint: str
) -> None:
    with pytest.raises((BadSource, Invalid), match=complaint) as caught:
        take(text, **declared)
    assert "\n" not in str(caught.value)
    assert [path for path in catalog.home.rglob("*") if path.is_file()] == []


def test_blocks_do_not_split_a_record(tmp_path: Path, take: Take) -> None:
    rng = np.random.default_rng(4)
    np.save(tmp_path / "x.npy", rng.random((300, 6)))
    np.save(tmp_path / "units.npy", rng.integers(0, 40, 300))
    report, dataset = take(tmp_path / "x.npy", units=tmp_path / "units.npy", block_nnz=50)
    blocks: list[Block] = [dataset.read(block) for block in range(dataset.n_blocks)]
    assert report.blocks > 10
    assert sum(len(block.record_ptr) - 1 for block in blocks) == report.records == 40
    assert report.content_digest == take(tmp_path / "x.npy", units=tmp_path / "units.npy")[0].content_digest


HEADERLESS = "7,1,2\n7,3,4\n8,5,6\n"


@pytest.mark.parametrize("text", [HEADERLESS, "alice,1,2\n", "0,1,2\n7,3,4\n", "1e5,-.5,3.\n", "id,2019,2020\n1,2,3\n"])
def test_an_ambiguous_first_line_of_numbers_is_refused_without_an_option(take: Take, text: str) -> None:
    with pytest.raises(BadSource, match=r"x\.csv: the first line has numbers .* --no-header .* --header"):
        take(text, features=3)


def test_a_table_without_a_header_keeps_its_first_row(take: Take, tmp_path: Path) -> None:
    _, dataset = take(HEADERLESS, features=3, header=False)
    assert records(dataset)[0] == [[(0, 7.0), (1, 1.0), (2, 2.0)]]
    assert dataset.manifest.n_rows == 3
    assert dataset.feature_names() is None
    _, dataset = take("0,1,2\n7,3,4\n", dataset="named", features=3, header=True)
    assert dataset.manifest.n_rows == 1
    assert dataset.feature_names() == ("0", "1", "2")
    (tmp_path / "names").write_text("milk\nbread")
    _, dataset = take(HEADERLESS, dataset="named", feature_names=tmp_path / "names", unit_column="0", header=False)
    assert dataset.feature_names() == ("milk", "bread")
    assert records(dataset) == [[[(0, 1.0), (1, 2.0)], [(0, 3.0), (1, 4.0)]], [[(0, 5.0), (1, 6.0)]]]
    entries = {"row": "0", "column": "1", "value": "2"}
    _, dataset = take(HEADERLESS, dataset="entries", features=6, columns=entries, header=False)
    assert records(dataset) == [[[(1, 2.0), (3, 4.0)]], [[(5, 6.0)]]]


@pytest.mark.parametrize(
    "declared",
    [{"unit_column": "who"}, {"columns": {"row": "who", "column": "1", "value": "2"}}, {"feature_names": ""}],
)
def test_numbers_are_column_names_if_the_declarations_require_it(
    take: Take, tmp_path: Path, declared: dict[str, Any]
) -> None:
    (tmp_path / "names").write_text("who\n1\n2")
    width = {"feature_names": tmp_path / "names"} if "feature_names" in declared else {"features": 2, **declared}
    assert take("who,1,2\n1,0,4\n", **width)[1].manifest.n_rows == 1


@pytest.mark.parametrize("file", ["rows", "rows.txt", "rows.gz", "rows.dat.gz", "rows.xlsx"])
def test_a_file_name_without_known_suffix_is_refused_without_an_explicit_format(take: Take, file: str) -> None:
    with pytest.raises(BadSource, match=r"has no known format; .* give --format with one of svmlight"):
        take("1 1:2\n", file, features=3)
    if not file.endswith(".gz"):
        assert take("1 1:2\n", file, features=3, format="svmlight")[0].rows == 1


@pytest.mark.parametrize("public_items", [True, False])
def test_ids_in_a_struct_are_refused_in_one_line(take: Take, tmp_path: Path, *, public_items: bool) -> None:
    ids = pa.array([{"a": 1}, {"a": 2}])
    pq.write_table(pa.table({"row": [0, 1], "column": [0, 0], "value": [1.0, 2.0], "who": ids}), tmp_path / "x.parquet")
    declared = {"public_items": True} if public_items else {"features": 1}
    with pytest.raises(BadSource, match="ids are stored as struct") as caught:
        take(tmp_path / "x.parquet", unit_column="who", max_rows_per_unit=2, **declared)
    assert "\n" not in str(caught.value)
