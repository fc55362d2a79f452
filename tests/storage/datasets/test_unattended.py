"""Unattended ingests: they never fail because of a record.

A bad record becomes empty, and all others are unchanged, bit for bit.
"""

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dpca.errors import BadSource, Invalid
from storage.datasets.catalog import Catalog
from storage.datasets.ingest import ingest
from storage.datasets.ingest_options import IngestOptions
from storage.datasets.snapshot_reader import Dataset
from storage.datasets.staging import quarantine_notes
from storage.workspace import Workspace

WIDE = b"who,a,b\nu1,1,2\nu2,3,4\nu2,5,6\nu3,7,8\n"
TRIPLETS = b"row,column,value\nu1,0,1\nu1,1,2\nu2,0,3\nu2,1,4\nu3,0,5\n"
SVMLIGHT = b"1 1:1 2:2\n1 1:3\n1 2:4\n"
MATRIX = b"%%MatrixMarket matrix coordinate real general\n3 2 4\n1 1 1\n1 2 2\n2 1 3\n3 2 4\n"
OF_WIDE: dict[str, Any] = {"features": 2, "unit_column": "who"}
OF_TRIPLETS: dict[str, Any] = {"features": 2, "duplicates": "refuse"}

type Rows = list[list[dict[int, float]]]


@pytest.fixture
def catalog(home: Path) -> Catalog:
    workspace = Workspace.open()
    return Catalog(workspace.ledger.engine, workspace.home)


@pytest.fixture
def take(catalog: Catalog, tmp_path: Path) -> Callable[..., Dataset]:
    """Return a function that ingests a file unattended, each time under a new dataset name."""
    numbers = itertools.count()

    def call(content: bytes, suffix: str = "csv", **options: Any) -> Dataset:
        name = f"d{next(numbers)}"
        source = tmp_path / f"{name}.{suffix}"
        source.write_bytes(content)
        requested = IngestOptions(unattended=True, **options)
        report = ingest(source, name=name, home=catalog.home, engine=catalog.engine, options=requested)
        return catalog.open(catalog.entry(report.snapshot))

    return call


def records(dataset: Dataset) -> list[tuple[bool, Any]]:
    """Return whether each record was rejected, and its rows as columns with values."""
    found = []
    for number in range(dataset.n_blocks):
        block = dataset.read(number)
        for record, rejected in enumerate(block.rejected.tolist()):
            rows = []
            for row in range(block.record_ptr[record], block.record_ptr[record + 1]):
                held = slice(block.row_ptr[row], block.row_ptr[row + 1])
                rows.append(dict(zip(block.indices[held].tolist(), block.values[held].tolist(), strict=True)))
            found.append((rejected, rows))
    dataset.verify()
    return found


def reported(dataset: Dataset) -> list[list[str]]:
    """Return place, number and reason of each line of the private report on bad records."""
    return [line.split(",")[1:4] for line in quarantine_notes(Path(dataset.address)).read_text().splitlines()[1:]]


BAD = {
    "NaN": (WIDE, b"5,6", b"nan,6", "csv", OF_WIDE, 1, "4"),
    "infinity": (WIDE, b"5,6", b"5,-inf", "csv", OF_WIDE, 1, "4"),
    "too large": (WIDE, b"5,6", b"1e999,6", "csv", OF_WIDE, 1, "4"),
    "no number": (WIDE, b"1,2", b"1,x", "csv", OF_WIDE, 0, "2"),
    "empty cell": (WIDE, b"1,2", b"1,", "csv", OF_WIDE, 0, "2"),
    "item out of range": (TRIPLETS, b"u2,1,4", b"u2,2,4", "csv", OF_TRIPLETS, 1, "5"),
    "two values": (TRIPLETS, b"u2,1,4", b"u2,0,4", "csv", OF_TRIPLETS, 1, "5"),
    "a column twice": (SVMLIGHT, b"1 1:3", b"1 1:3 1:2", "svm", {"features": 2}, 1, "2"),
    "rating that is no number": (TRIPLETS, b"u2,1,4", b"u2,1,", "csv", OF_TRIPLETS, 1, "5"),
    "line of no entry": (MATRIX, b"2 1 3", b"2 1 x", "mtx", {"duplicates": "sum"}, 1, "5"),
    "entry outside": (MATRIX, b"2 1 3", b"2 9 3", "mtx", {"duplicates": "sum"}, 1, "5"),
    "feature beyond": (SVMLIGHT, b"1 1:3", b"1 9:3", "svm", {"features": 2}, 1, "2"),
    "label": (SVMLIGHT, b"1 1:3", b"\xff 1:3", "svm", {"features": 2}, 1, "2"),
    "overlong line": (SVMLIGHT, b"1 1:3", b"1 1:" + b"3" * (5 << 20), "svm", {"features": 2}, 1, "2"),
}
"""Source, bytes of a good record, bad replacement, format, options, number of the record, and reported line."""


@pytest.mark.parametrize("fault", BAD)
def test_a_bad_record_is_counted_as_empty_and_others_keep_their_bits(take: Callable[..., Dataset], fault: str) -> None:
    source, good, bad, suffix, options, at, line = BAD[fault]
    clean, spoilt = take(source, suffix, **options), take(source.replace(good, bad, 1), suffix, **options)
    expected = [
        (number == at, [{} for _ in rows] if number == at else rows) for number, (_, rows) in enumerate(records(clean))
    ]
    assert records(spoilt) == expected
    assert clean.content != spoilt.content
    assert [number for _, number, _ in reported(spoilt)] == [line]
    assert reported(clean) == []


UNKNOWN = {
    "open quote": b'"u2,5,6',
    "quote behind a letter": b'u2"x,"5,6',
    "ragged": b"u2,5,6,7",
    "short": b"u2",
    "not UTF-8": b"u\xff,5,6",
    "carriage return": b"u2,5\r,6",
    "no id": b",5,6",
    "overlong": b"u2,5," + b"6" * (40 << 20),
}


@pytest.mark.parametrize("fault", UNKNOWN)
def test_a_row_without_a_readable_id_is_an_empty_record_after_the_others(
    take: Callable[..., Dataset], fault: str
) -> None:
    clean, spoilt = take(WIDE, **OF_WIDE), take(WIDE.replace(b"u2,5,6", UNKNOWN[fault]), **OF_WIDE)
    expected = [(False, rows[:1]) for _, rows in records(clean)]
    assert records(spoilt) == [*expected, (True, [{}])]
    assert [number for _, number, _ in reported(spoilt)] == ["4"]


def test_random_bytes_in_lines_change_no_other_record(take: Callable[..., Dataset]) -> None:
    """Insert a line of random bytes before each of 200 good lines: every good record must be unchanged."""
    draw, lines = np.random.default_rng(39), [b"who,a,b"]
    for number in range(200):
        lines.append(bytes(draw.choice(list(b'v2,"5\r;x.\xff\xc3e-+ \x00'), size=draw.integers(1, 12))))
        lines.append(f"u{number},{number},1".encode())
    found = records(take(b"\n".join(lines), **OF_WIDE))
    known = sorted(rows[0].get(0, 0.0) for _, rows in found if rows[0].get(1) == 1.0)
    assert known == list(range(200))
    assert 300 < len(found) <= 400


def test_rows_beyond_a_bound_are_kept_or_omitted_and_reported(take: Callable[..., Dataset]) -> None:
    many = WIDE + b"u1,9,9\nu1,9,9\nu4,1,1\n"
    found = take(many, **OF_WIDE, max_rows_per_unit=2, records_at_most=3)
    assert [len(rows) for _, rows in records(found)] == [2, 2, 1, 1]
    assert [(number, reason.split(" ")[1]) for _, number, reason in reported(found)] == [
        ("7", "max_rows_per_unit"),
        ("8", "a"),
    ]
    assert not any(rejected for rejected, _ in records(found))


@pytest.mark.parametrize("unit", [{}, {"unit_column": "who"}], ids=["rows", "individuals"])
def test_a_source_without_records_gives_an_empty_snapshot(take: Callable[..., Dataset], unit: dict[str, Any]) -> None:
    found = take(b"who,a,b\n" if unit else b"a,b\n", features=2, **unit)
    assert (found.n_records, records(found)) == (0, [])
    spoilt = take(b"who,a,b\nu1,x,1\n" if unit else b"a,b\nx,1\n", features=2, **unit)
    assert records(spoilt) == [(True, [{}])]


def test_text_of_a_column_file_that_is_not_utf8_is_one_bad_record(take: Callable[..., Dataset], tmp_path: Path) -> None:
    words = pa.array([b"u1", b"u\xff", b"u3"], pa.binary())
    text = pa.Array.from_buffers(pa.string(), 3, words.buffers())
    pq.write_table(pa.table({"who": text, "a": [1.0, 2.0, 3.0]}), tmp_path / "x.parquet")
    found = records(take((tmp_path / "x.parquet").read_bytes(), "parquet", unit_column="who"))
    assert found == [(False, [{0: 1.0}]), (False, [{0: 3.0}]), (True, [{}])]


def test_an_undecodable_line_of_another_encoding_is_one_bad_record(
    take: Callable[..., Dataset], tmp_path: Path
) -> None:
    schema = tmp_path / "schema.yaml"
    schema.write_text(
        "text: {encoding: cp1252}\ncolumns: [{name: a, kind: categorical, values: [\u00e9, x], others: refuse}]\n"
    )
    found = take(b"a\n\xe9\n\x81\nx\n", table_schema=str(schema))
    assert records(found) == [(False, [{0: 1.0}]), (True, [{}]), (False, [{1: 1.0}])]


def test_the_first_row_of_a_text_without_header_does_not_affect_its_reading(
    take: Callable[..., Dataset], tmp_path: Path
) -> None:
    for first, rejected in ((b"u1,1,2", False), (b'u1,"1', True), (b"u1,1,2,3,4", True), (b"\xff", True)):
        found = take(first + b"\nu2,3,4\n", features=2, header=False, unit_column="0")
        assert (rejected, [{}] if rejected else [{0: 1.0, 1: 2.0}]) in records(found)
        assert (False, [{0: 3.0, 1: 4.0}]) in records(found)
    schema = tmp_path / "schema.yaml"
    column = "{name: a, kind: numeric, range: [0, 1]}"
    schema.write_text(f"text: {{header: false}}\ncolumns: [{column}]\n")
    assert records(take(b"0,0\n1\n", table_schema=str(schema))) == [(True, [{}]), (False, [{0: 1.0}])]


REFUSED = {
    "on_error=fail": (WIDE, {**OF_WIDE, "on_error": "fail"}, "outcome of an unattended run is public"),
    "duplicates": (TRIPLETS, {"features": 2}, "an unattended run needs a rule"),
    "public items": (TRIPLETS, {"public_items": True, "duplicates": "sum"}, "file of feature names"),
    "no header": (
        b"u1,0,1\n",
        {"features": 2, "duplicates": "sum", "header": False, "columns": {"row": "0", "column": "1", "value": "2"}},
        "write a header line",
    ),
}


@pytest.mark.parametrize("requested", REFUSED)
def test_options_that_depend_on_rows_are_refused_in_one_line(take: Callable[..., Dataset], requested: str) -> None:
    source, options, rule = REFUSED[requested]
    with pytest.raises(Invalid, match=rule) as refused:
        take(source, **options)
    assert "\n" not in str(refused.value)


def test_text_in_multi_byte_encodings_is_refused(take: Callable[..., Dataset], tmp_path: Path) -> None:
    schema = tmp_path / "schema.yaml"
    schema.write_text("text: {encoding: utf-16}\ncolumns: [{name: a, kind: numeric, range: [0, 1]}]\n")
    with pytest.raises(Invalid, match="save it as UTF-8"):
        take("a\n1\n".encode("utf-16"), table_schema=str(schema))


FAULTS: dict[str, tuple[bytes, str, dict[str, Any]]] = {
    "empty": (b"", "csv", {"features": 2}),
    "no header": (b"\n1,2\n", "csv", {"features": 2}),
    "header of other columns": (b"a,b,c\n1,2,3\n", "csv", {"features": 2}),
    "a name twice": (b"a,a\n1,2\n", "csv", {"features": 2}),
    "cut short": (MATRIX[:-6], "mtx", {"duplicates": "sum"}),
    "cut short with a bad line": (MATRIX[:-6].replace(b"2 1 3", b"2 1 x"), "mtx", {"duplicates": "sum"}),
    "no archive": (b"PK", "npz", {}),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_of_the_file_ends_the_ingest_without_leftovers(
    take: Callable[..., Dataset], catalog: Catalog, fault: str
) -> None:
    source, suffix, options = FAULTS[fault]
    with pytest.raises(BadSource):
        take(source, suffix, **options)
    assert catalog.entries() == []


def test_rows_of_another_population_are_accepted_and_reported(take: Callable[..., Dataset]) -> None:
    take(WIDE, **OF_WIDE)
    assert [place for place, _, _ in reported(take(WIDE, **OF_WIDE))] == ["all rows"]


def test_unit_ids_stay_with_their_rows_after_a_bad_line(take: Callable[..., Dataset], tmp_path: Path) -> None:
    np.save(tmp_path / "who.npy", np.array([1, 2, 2, 3]))
    spoilt = b"a,b\n1,2,9\n3,4\n5,6\n7,8\n"
    found = records(take(spoilt, features=2, units=str(tmp_path / "who.npy")))
    assert found == [(True, [{}]), (False, [{0: 3.0, 1: 4.0}, {0: 5.0, 1: 6.0}]), (False, [{0: 7.0, 1: 8.0}])]
