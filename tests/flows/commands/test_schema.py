"""Drafts come from names and types alone; what needs public knowledge is marked, and a draft is no schema yet."""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from storage.schemas.schema import TO_DECLARE
from tests.flows.conftest import Command
from tests.raw_tables import TABLES

TYPES = pa.schema(
    [
        ("age", pa.int32()),
        ("name", pa.string()),
        ("kind", pa.dictionary(pa.int8(), pa.string())),
        ("ok", pa.bool_()),
        ("when", pa.timestamp("us")),
        ("home", pa.struct([("zip", pa.int64()), ("city", pa.string())])),
        ("v", pa.list_(pa.float32())),
        ("w", pa.list_(pa.float32(), 4)),
        ("empty", pa.null()),
        ("blob", pa.binary()),
    ]
)


@pytest.mark.parametrize("text", ["csv", "tsv", "headerless"])
def test_two_texts_of_equal_headers_and_other_values_give_equal_drafts(
    home: Path, dpca: Command, tmp_path: Path, text: str
) -> None:
    sign = "\t" if text == "tsv" else ";"
    drafts = []
    for at, values in enumerate((["1", "2020-01-01", "true"], ["SECRET", '"x, y, z"', ""])):
        folder = tmp_path / str(at)
        folder.mkdir()
        path = folder / f"rows.{'tsv' if text == 'tsv' else 'csv'}"
        head = [] if text == "headerless" else ["age", "größe", "ok"]
        path.write_text("\n".join(sign.join(line) for line in ([head] if head else []) + [values] * (at + 1)) + "\n")
        words = ("--no-header", "--delimiter", sign) if text == "headerless" else ()
        drafts.append(dpca("schema", "draft", path, *words))
        assert drafts[-1].status == 0
    assert drafts[0].out == drafts[1].out
    assert drafts[0].out.count(f"kind: {TO_DECLARE}") == 3
    assert f"delimiter: {json.dumps(sign)}" in drafts[0].out
    assert ('"column3"' if text == "headerless" else '"größe"') in drafts[0].out


def test_two_typed_files_of_equal_types_and_other_values_give_equal_drafts(
    home: Path, dpca: Command, tmp_path: Path
) -> None:
    empty, full = (
        TYPES.empty_table(),
        pa.Table.from_pylist(
            [{"age": 7, "name": "SECRET", "kind": "SECRET", "ok": True, "v": [1.0, 2.0], "w": [1, 2, 3, 4]}],
            schema=TYPES,
        ),
    )
    drafts = []
    for name, table in (("a", empty), ("b", full)):
        pq.write_table(table, tmp_path / f"{name}.parquet")
        drafts.append(dpca("schema", "draft", tmp_path / f"{name}.parquet").out)
    assert drafts[0] == drafts[1]
    for line in ('- name: "home.zip"', "length: 4", f"length: {TO_DECLARE}", "kind: boolean", "kind: date"):
        assert line in drafts[0]


@pytest.mark.parametrize("name", TABLES)
def test_a_draft_is_refused_until_it_is_filled_in(home: Path, dpca: Command, tmp_path: Path, name: str) -> None:
    table = TABLES[name]
    source, output = table.write(tmp_path), tmp_path / "draft.yaml"
    words = [] if table.has_header else ["--no-header", "--encoding", "utf-16"]
    words += ["--encoding", "latin-1"] if name == "bank" else []
    assert dpca("schema", "draft", source, "--output", output, *words).status == 0
    assert "must be a new file" in dpca("schema", "draft", source, "--output", output, *words).complaint(1)
    refused = dpca("dataset", "ingest", source, "--name", "d", "--schema", output, "--direct").complaint(1)
    assert f"still says {TO_DECLARE}; declare it from public knowledge, never from the rows" in refused


def test_what_cannot_be_drafted_is_one_line(home: Path, dpca: Command, tmp_path: Path) -> None:
    for name, content, words, rule in (
        ("gone.csv", None, (), "no such file"),
        ("empty.csv", "", (), "is empty"),
        ("blank.csv", "\n1\n", (), "the first line is empty"),
        ("rows.csv", "1,anna\n", (), "give --no-header"),
        ("dates.csv", "anna;2020-01-01\n", (), "give --no-header"),
        ("times.csv", "anna,01.02.1999 10:15\n", (), "give --no-header"),
        ("comment.csv", "# of SECRET\nage,work\n", (), "give --no-header"),
        ("quoted.csv", '"a\nb",c\n1,2\n', (), "does not close a quote"),
        ("twice.csv", "a,a\n", (), "same name"),
        ("rows.svm", "1 1:1\n", (), "needs no schema"),
        ("rows.xyz", "a\n", (), "no known format"),
        ("bad.parquet", "x", (), "no readable Parquet"),
        ("latin.csv", b"gr\xf6\xdfe\n", (), "in utf-8"),
        ("signs.csv", "a\n", ("--delimiter", "ab"), "delimiter: "),
        ("signs.csv", "a\n", ("--encoding", "nope"), "no known encoding"),
    ):
        path = tmp_path / name
        if content is not None:
            path.write_bytes(content if isinstance(content, bytes) else content.encode())
        refused = dpca("schema", "draft", path, *words).complaint(1)
        assert rule in refused
        assert "anna" not in refused


def test_a_schema_is_shown_with_its_features_and_bound(home: Path, dpca: Command, tmp_path: Path) -> None:
    table = TABLES["census"]
    shown = json.loads(dpca("schema", "show", table.write_schema(tmp_path), "--json").out)
    assert shown["feature_names"] == list(table.names)
    assert shown["norm_at_most"] == pytest.approx(table.norm)


def test_the_form_of_schemas_is_json_for_editors(home: Path, dpca: Command, tmp_path: Path) -> None:
    form = json.loads(dpca("schema", "json").out)
    assert {"columns", "missing_texts", "text", "unlisted", "version"} == form["properties"].keys()
    assert dpca("schema", "json", "--output", tmp_path / "form.json").status == 0
    assert json.loads((tmp_path / "form.json").read_text()) == form
