"""Schemas: validation in one line with the rule, complete statement of a valid schema, and spellings of ids.

One person is one record, however a file, an option or a schema spells the id.
"""

import csv
import itertools
import json
from collections.abc import Callable
from contextlib import closing
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml  # type: ignore[import-untyped]

from dpca.errors import BadSource, Invalid
from dpca.schemas.canonical import id_cells, id_type
from dpca.schemas.schema import Schema, json_schema, load_yaml, read_schema
from storage.datasets.ingest import IngestReport, ingest
from storage.datasets.ingest_options import IngestOptions
from storage.formats.batch import Quarantine, Rejects
from storage.formats.declared import Declared
from storage.formats.sources import open_file
from storage.workspace import Workspace
from tests.raw_tables import TABLES

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("name", TABLES)
def test_a_complete_statement_of_a_schema_gives_the_same_schema(name: str) -> None:
    schema = Schema.parse(yaml.safe_load(TABLES[name].schema))
    facts = json.loads(json.dumps(schema.facts()))
    assert Schema.parse(facts) == schema
    assert all("missing" in column for column in facts["columns"] if column["kind"] not in ("id", "drop"))


def test_the_file_for_editors_is_the_one_that_the_command_writes() -> None:
    kept = (ROOT / "docs" / "reference" / "table-schema.json").read_text(encoding="utf-8")
    assert kept == json.dumps(json_schema(), indent=2, sort_keys=True) + "\n", "run dpca schema json"


COLUMN = "columns: [{name: a, kind: numeric, range: [0, 1]}]"
BAD = {
    "": "the document: ",
    "[1, 2]": "the document: ",
    "columns: []": "columns: ",
    "columns: 7": "columns: ",
    COLUMN + "\nmore: 1": "more: Extra inputs are not permitted",
    "columns: [{name: a}]": "column 'a', kind: must be one of",
    "columns: [{kind: drop}]": "column 1, name: Field required",
    "columns: [{name: a, kind: numeric}]": "column 'a', range: Field required",
    "columns: [{name: a, kind: numeric, range: [1, 0]}]": "column 'a': the range must go from",
    "columns: [{name: a, kind: numeric, range: [0, .inf]}]": "a value that is not plain",
    "columns: [{name: a, kind: numeric, range: [-1.7e308, 1.7e308]}]": "column 'a': the range must go from",
    "columns: [{name: a, kind: numeric, range: [0, 1], missing: zero}]": "column 'a', missing: ",
    "columns: [{name: a, kind: numeric, range: [0, 1], missing: {value: 2}}]": "must be in the range",
    "columns: [{name: a, kind: numeric, range: [0, 1], guess: true}]": "column 'a', guess: Extra inputs",
    "columns: [{name: a, kind: numeric, range: [TO_DECLARE, 1]}]": "range of column 'a' is still TO_DECLARE",
    "columns: [{name: a, kind: TO_DECLARE}]": "kind of column 'a' is still TO_DECLARE",
    "columns: [{name: a, kind: categorical, values: [x]}]": "column 'a', others: Field required",
    "columns: [{name: a, kind: categorical, values: [x, x], others: zero}]": "must list each value once",
    "columns: [{name: a, kind: categorical, values: [yes, no], others: zero}]": "quote it",
    "columns: [{name: a, kind: categorical, values: [[1]], others: zero}]": "column 'a', values, 0: ",
    "columns: [{name: a, kind: categorical, values: [x], others: zero, missing: {value: y}}]": "must be listed",
    "columns: [{name: a, kind: categorical, values: [''], others: zero}]": "must not list the empty text",
    "columns: [{name: a, kind: categorical, values: [1, '1.00'], others: zero}]": "same as '1', another",
    "columns: [{name: a, kind: categorical, values: ['TRUE', 1], others: zero}]": "same as 'TRUE', another",
    "columns: [{name: a, kind: boolean, when_false: ['1.0']}]": "lists '1.0', which is the same as ",
    "missing_texts: [-9]\ncolumns: [{name: a, kind: categorical, values: ['-9.0'], others: zero}]": "a missing text",
    "columns: [{name: a, kind: categorical, values: ['(other)'], others: category}]": "would have the same name",
    "columns: [{name: a, kind: boolean, when_true: [x], when_false: [x]}]": "both yes and no",
    "columns: [{name: a, kind: date, range: [2020-01-01, 2019-01-01]}]": "the range must go from",
    "columns: [{name: a, kind: date, range: [2020-01-01, 2021-01-01], formats: ['%H']}]": "year, month and day",
    "columns: [{name: a, kind: vector, length: 2}]": "either a range for each number or a norm",
    "columns: [{name: a, kind: vector, length: 99999, norm: 1}]": "column 'a', length: ",
    "columns: [{name: a, kind: id}]": "become 0 features",
    "columns: [{name: a, kind: id}, {name: b, kind: id}]": "at most one column can be the id",
    "columns: [{name: a, kind: drop}, {name: a, kind: drop}]": "two columns have the same name",
    "columns: [{name: 'a\n\n  b', kind: drop}]": "must be one line",
    f"text: {{encoding: rot13}}\n{COLUMN}": "is not a known text encoding",
    f"text: {{encoding: punycode}}\n{COLUMN}": "is not a known text encoding",
    f"text: {{encoding: klingon}}\n{COLUMN}": "is not a known text encoding",
    f"text: {{delimiter: ';;'}}\n{COLUMN}": "text, delimiter: ",
    f"text: {{delimiter: ','}}\n{COLUMN}\ntext: {{}}": "a key twice",
    f"text: {{delimiter: ',', decimal: ','}}\n{COLUMN}": "must be three different characters",
    "columns: &a [*a]": "repeats a part by reference",
    "columns: !!python/object/apply:os.system [ls]": "the text is not YAML near line 1",
    "columns: [": "the text is not YAML near line",
    "a: b: c": "the text is not YAML near line 1",
    "[" * 1500: "the text is not YAML",
    "? [a]\n: b": "the text is not YAML",
    "--- 1\n--- 2": "the text is not YAML near line 2",
    "columns: [{name: a, kind: numeric, range: [0, " + "9" * 5000 + "]}]": "",
}


@pytest.mark.parametrize("text", BAD, ids=range(len(BAD)))
def test_a_bad_schema_is_refused_in_one_line_with_position_and_rule(tmp_path: Path, text: str) -> None:
    path = tmp_path / "schema.yaml"
    path.write_text(text)
    with pytest.raises(Invalid) as caught:
        read_schema(path)
    message = str(caught.value)
    assert message.startswith(f"schema {path}: ")
    assert BAD[text] in message
    assert "\n" not in message
    assert len(message) < 600


def test_a_file_that_is_not_text_is_refused_in_one_line(tmp_path: Path) -> None:
    for make, rule in (
        (lambda path: None, "cannot be read (No such file"),
        (lambda path: path.mkdir(), "cannot be read (Is a directory"),
        (lambda path: path.write_bytes(b"\xff\xfe\x00"), "is not UTF-8 text"),
    ):
        path = tmp_path / rule[:5] / "schema.yaml"
        path.parent.mkdir(exist_ok=True)
        path.unlink(missing_ok=True) if path.is_file() else None
        path = path.with_name(f"{len(rule)}.yaml")
        make(path)
        with pytest.raises(Invalid) as caught:
            read_schema(path)
        assert rule in str(caught.value)


def test_a_byte_order_mark_is_no_part_of_a_schema(tmp_path: Path) -> None:
    path, text = tmp_path / "s.yaml", "columns: [{name: a, kind: numeric, range: [0, 1]}]"
    path.write_text(text, encoding="utf-8-sig")
    assert read_schema(path) == Schema.parse(load_yaml(text))


def test_powers_of_ten_are_numbers(tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text("columns: [{name: a, kind: numeric, range: [-1e3, 2.5E6], scale: none}]")
    assert read_schema(tmp_path / "s.yaml").norm_at_most == 2.5e6


def test_a_numeric_name_or_value_is_read_as_its_digits() -> None:
    column: dict[str, Any] = {"name": 2019, "kind": "categorical", "values": [1, "b"], "others": "zero"}
    assert Schema.parse({"columns": [column]}).feature_names == ("2019=1", "2019=b")


@pytest.mark.timeout(20)
def test_an_integer_of_many_digits_of_base_60_is_refused_before_it_is_read() -> None:
    """Refuse a YAML integer such as 1:30:00 with many digits, because its parsing time is quadratic.

    A file of one megabyte took minutes.
    """
    with pytest.raises(Invalid, match="integer of more than 64 bits"):
        load_yaml("a: " + "1:" * 400_000 + "1")
    assert load_yaml("a: 1:30") == {"a": 90}


WHOLE = [7, 8, 7, 10, 8, 7]
"""The person of each row; row r has the value r + 1."""
SPELT = [" 7", "8", "7 ", "10.0", "8.00", "\u00a07."]
NAMED = [str(who) for who in WHOLE]
SCHEMA = Schema.parse(
    {
        "missing_texts": ["", "?"],
        "unlisted": "drop",
        "columns": [{"name": "who", "kind": "id"}, {"name": "a", "kind": "numeric", "range": [0, 9], "scale": "none"}],
    }
)

type Take = Callable[..., IngestReport]


@pytest.fixture
def take(home: Path, tmp_path: Path) -> Take:
    """Return a function that ingests files, each time under a new dataset name."""
    engine, numbers = Workspace.open().ledger.engine, itertools.count()
    (tmp_path / "schema.yaml").write_text(json.dumps(SCHEMA.facts()))

    def call(*files: Path, **options: Any) -> IngestReport:
        requested = IngestOptions(allow_shared_rows=True, **options)
        return ingest(list(files), name=f"d{next(numbers)}", home=home, engine=engine, options=requested)

    return call


def text(path: Path, ids: list[Any], *, first: int = 1, triplets: bool = False) -> Path:
    with path.open("w", newline="") as file:
        writer = csv.writer(file, delimiter="\t" if path.suffix == ".tsv" else ",")
        writer.writerow(["who", "column", "a"] if triplets else ["who", "a"])
        writer.writerows([who, *([row] if triplets else []), row + first] for row, who in enumerate(ids))
    return path


def columns(path: Path, ids: Any, *, first: int = 1, triplets: bool = False) -> Path:
    numbers = np.arange(len(ids))
    pq.write_table(
        pa.table({"who": ids, **({"column": numbers} if triplets else {}), "a": numbers + first + 0.0}), path
    )
    return path


KINDS: dict[str, Any] = {
    "int64": pa.array(WHOLE),
    "int8": pa.array(WHOLE, pa.int8()),
    "uint64": pa.array(WHOLE, pa.uint64()),
    "float64": pa.array(WHOLE, pa.float64()),
    "float32": pa.array(WHOLE, pa.float32()),
    "float16": pa.array(np.array(WHOLE, np.float16)),
    "decimal": pa.array([Decimal(who).quantize(Decimal("1.00")) for who in WHOLE]),
    "text": pa.array(SPELT),
    "large text": pa.array(SPELT, pa.large_string()),
    "text view": pa.array(SPELT, pa.string_view()),
    "categories": pa.array(SPELT).dictionary_encode(),
    "categories of integers": pa.array(WHOLE).dictionary_encode(),
    "categories of floats": pa.array(WHOLE, pa.float64()).dictionary_encode(),
}


def ids_in(path: Path, rejects: Rejects | None = None, **declared: Any) -> list[str | None]:
    """Read the ids of all rows as text."""
    found: list[str | None] = []
    with closing(open_file(path, Declared(**declared))) as reader:
        for batch in reader.batches(Rejects() if rejects is None else rejects):
            ids = batch.row_ids if batch.unit_ids is None else batch.unit_ids
            assert ids is not None
            found += ids.cast(pa.string()).to_pylist()
    return found


def test_an_id_is_the_same_in_every_type_and_by_every_declaration(tmp_path: Path) -> None:
    wide: dict[str, Any] = {"n_features": 1, "unit_column": "who"}
    ratings: dict[str, Any] = {"n_features": 6, "columns": ("who", "column", "a"), "columns_named": True}
    for ids in (SPELT, WHOLE):
        for name in ("x.csv", "x.tsv"):
            for given in (wide, {"schema": SCHEMA}):
                assert ids_in(text(tmp_path / name, ids), **given) == NAMED
            assert ids_in(text(tmp_path / name, ids, triplets=True), **ratings) == NAMED
    for kind, cells in KINDS.items():
        for given in (wide, {"schema": SCHEMA}):
            assert ids_in(columns(tmp_path / "x.parquet", cells), **given) == NAMED, kind
        assert ids_in(columns(tmp_path / "x.parquet", cells, triplets=True), **ratings) == NAMED, kind


def test_rows_of_one_individual_are_one_record_by_every_path(take: Take, tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("a\n" + "".join(f"{row + 1}\n" for row in range(len(WHOLE))))
    given, schema = {"features": 1, "unit_column": "who"}, str(tmp_path / "schema.yaml")
    found = [
        take(text(tmp_path / "x.csv", SPELT), **given),
        take(tmp_path / "x.csv", table_schema=schema),
        take(columns(tmp_path / "x.parquet", KINDS["float64"]), **given),
    ]
    for number, ids in enumerate(
        (np.array(WHOLE), np.array(WHOLE, ">f4"), np.array(SPELT), np.array(WHOLE, np.uint64))
    ):
        np.save(tmp_path / f"{number}.npy", ids)
        found.append(take(tmp_path / "rows.csv", features=1, units=str(tmp_path / f"{number}.npy")))
    assert {(report.records, report.content_digest) for report in found} == {(3, found[0].content_digest)}


@pytest.mark.parametrize("triplets", [False, True])
def test_files_of_other_types_contain_the_same_individuals(take: Take, tmp_path: Path, *, triplets: bool) -> None:
    given: dict[str, Any] = {"features": 6, "columns": {"row": "who", "column": "column", "value": "a"}}
    given = given if triplets else {"features": 1, "unit_column": "who"}
    one = take(text(tmp_path / "x.csv", WHOLE, triplets=triplets), **given)
    parts = [
        text(tmp_path / "a.csv", [f" {who}" for who in WHOLE[:2]], triplets=triplets),
        columns(tmp_path / "b.parquet", pa.array(WHOLE[2:4]), first=3, triplets=triplets),
        columns(tmp_path / "c.parquet", pa.array(WHOLE[4:], pa.float64()), first=5, triplets=triplets),
    ]
    for order in (parts, parts[::-1]):
        assert take(*order, **given).records == one.records == 3
    if not triplets:
        assert take(*parts, **given).content_digest == one.content_digest


MISSING = {
    "a blank": (pa.array(["u1", " ", "u3"]), "x.parquet"),
    "null": (pa.array(["u1", None, "u3"]), "x.parquet"),
    "NaN": (pa.array([1.0, float("nan"), 3.0]), "x.parquet"),
    "a null of floats": (pa.array([1.0, None, 3.0]), "x.parquet"),
    "a null of integers": (pa.array([1, None, 3]), "x.parquet"),
    "a null of decimals": (pa.array([Decimal("1.0"), None, Decimal("3.0")]), "x.parquet"),
    "no whole number": (pa.array([1.0, 2.5, 3.0]), "x.parquet"),
    "no whole decimal": (pa.array([Decimal("1.0"), Decimal("2.5"), Decimal("3.0")]), "x.parquet"),
    "a float that is two integers": (pa.array([1.0, 2.0**53, 3.0]), "x.parquet"),
    "a short float that is two integers": (pa.array([1.0, 2.0**24, 3.0], pa.float32()), "x.parquet"),
    "the word of NumPy": (["u1", "nan", "u3"], "x.csv"),
    "the word of pandas": (["u1", "<NA>", "u3"], "x.csv"),
    "the word of Python": (["u1", "None", "u3"], "x.csv"),
    "an empty cell": (["u1", "", "u3"], "x.csv"),
    "a text that the schema calls missing": (["u1", "?", "u3"], "x.csv"),
}


@pytest.mark.parametrize("fault", MISSING)
def test_a_row_without_an_id_is_refused_or_quarantined(tmp_path: Path, fault: str) -> None:
    ids, name = MISSING[fault]
    path = (columns if name == "x.parquet" else text)(tmp_path / name, ids)
    plain: dict[str, Any] = {"n_features": 1, "unit_column": "who"}
    declarations: list[dict[str, Any]] = [{"schema": SCHEMA}, *([] if "schema" in fault else [plain])]
    for given in declarations:
        with pytest.raises(BadSource, match=r"^(row 1|line 3).*has an id that is neither a whole number nor text"):
            ids_in(path, **given)
        rejects = Quarantine()
        rejects.open(tmp_path / "notes")
        assert [who is None for who in ids_in(path, rejects, **given)] == [False, True, False]
        rejects.close()
        assert rejects.count == 1
        assert "has an id that is neither a whole number nor text" in (tmp_path / "notes").read_text()


@pytest.mark.parametrize("rows", ["rows.npy", "rows.csv", "rows.mtx"])
@pytest.mark.parametrize("ids", [["u1", "", "u3"], [1.0, np.nan, 3.0]], ids=["text", "floats"])
def test_a_file_of_unit_ids_without_one_is_refused_or_quarantined(
    take: Take, tmp_path: Path, rows: str, ids: list[Any]
) -> None:
    np.save(tmp_path / "rows.npy", np.eye(3))
    (tmp_path / "rows.csv").write_text("a,b,c\n1,0,0\n0,1,0\n0,0,1\n")
    (tmp_path / "rows.mtx").write_text(
        "%%MatrixMarket matrix coordinate real general\n3 3 4\n1 1 1\n2 2 1\n2 1 1\n3 3 1\n"
    )
    np.save(tmp_path / "owners.npy", np.array(ids))
    given = {"features": 3, "units": str(tmp_path / "owners.npy")}
    with pytest.raises(
        BadSource, match="row 1 has an id in the file of individuals' ids that is neither a whole number nor text"
    ):
        take(tmp_path / rows, **given)
    report = take(tmp_path / rows, on_error="quarantine", **given)
    assert (report.records, report.quarantined) == (3, 1)


@pytest.mark.parametrize(
    "ids",
    [
        pa.array([True, False]),
        pa.array([0, 1], pa.date32()),
        pa.array([0, 1], pa.timestamp("us")),
        pa.array([0, 1], pa.duration("s")),
        pa.array([b"a", b"b"]),
        pa.array([[1], [2]]),
        pa.array([True, False]).dictionary_encode(),
    ],
    ids=lambda ids: str(ids.type),
)
def test_invalid_ids_are_refused_with_their_column(tmp_path: Path, ids: pa.Array) -> None:
    columns(tmp_path / "x.parquet", ids)
    for given in ({"n_features": 1, "unit_column": "who"}, {"schema": SCHEMA}):
        with pytest.raises(BadSource, match=r"column 'who': ids are stored as .*; ids must be whole numbers or text"):
            ids_in(tmp_path / "x.parquet", **given)


@pytest.mark.parametrize("ids", [np.array([True, False]), np.array([1, 2], "M8[s]"), np.array([1j, 2]), np.eye(2)])
def test_a_file_of_invalid_ids_is_refused(take: Take, tmp_path: Path, ids: Any) -> None:
    np.save(tmp_path / "rows.npy", np.eye(2))
    np.save(tmp_path / "owners.npy", ids)
    with pytest.raises(Invalid, match="must be whole numbers or text, one for each row"):
        take(tmp_path / "rows.npy", units=str(tmp_path / "owners.npy"))


def test_rows_by_position_and_by_id_are_not_combined(take: Take, tmp_path: Path) -> None:
    (tmp_path / "a.mtx").write_text("%%MatrixMarket matrix coordinate real general\n1 2 1\n1 1 1\n")
    pq.write_table(pa.table({"row": [0], "column": [1], "value": [1.0]}), tmp_path / "b.parquet")
    with pytest.raises(BadSource, match="a Matrix Market file numbers its rows, but a table of triplets names them"):
        take(tmp_path / "a.mtx", tmp_path / "b.parquet", features=2)


@pytest.mark.parametrize(("decimal", "wanted"), [(".", ["7", "7,0", "07"]), (",", ["7.0", "7", "07"])])
def test_the_decimal_mark_is_that_of_the_schema(decimal: str, wanted: list[str]) -> None:
    assert id_cells(pa.array(["7.0", "7,0", "07"]), decimal=decimal).to_pylist() == wanted


@pytest.mark.parametrize("ids", KINDS.values(), ids=list(KINDS))
def test_the_type_of_ids_follows_from_that_of_their_column(ids: pa.Array) -> None:
    assert id_cells(ids).type == id_type(ids.type)
    assert list(map(str, id_cells(ids).to_pylist())) == list(map(str, WHOLE))


def test_items_are_the_same_in_every_type(take: Take, tmp_path: Path) -> None:
    roles = {"row": "who", "column": "item", "value": "a"}
    (tmp_path / "names.txt").write_text("5\nnan\n")
    reports = []
    for number, items in enumerate((["5", "nan", "5"], [" 5", "nan ", "5.0"])):
        pq.write_table(pa.table({"who": [1, 1, 2], "item": items, "a": [1.0, 2, 3]}), tmp_path / f"{number}.parquet")
        path = tmp_path / f"{number}.parquet"
        reports += [take(path, columns=roles, feature_names=str(tmp_path / "names.txt"))]
        reports += [take(path, columns=roles, public_items=True)]
    assert len({(report.features, report.content_digest) for report in reports}) == 1
