"""Commands ``dpca schema`` and ``dpca dataset``.

Schema drafts are derived from names and types alone. Files that arrived in an inbox are listed, and retried.
"""

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dpca.schemas.schema import TO_DECLARE
from storage.workspace import Workspace
from tests.flows.arriving import DATASET, drop, open_budget, refresh, states
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
    refused = dpca("dataset", "ingest", source, "--name", "d", "--table-schema", output, "--direct").complaint(1)
    assert f"is still {TO_DECLARE}; declare it from public knowledge, never from the rows" in refused


def test_a_source_without_columns_to_draft_is_refused_in_one_line(home: Path, dpca: Command, tmp_path: Path) -> None:
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
        ("bad.parquet", "x", (), "not a readable Parquet"),
        ("latin.csv", b"gr\xf6\xdfe\n", (), "in utf-8"),
        ("signs.csv", "a\n", ("--delimiter", "ab"), "delimiter: "),
        ("signs.csv", "a\n", ("--encoding", "nope"), "not a known text encoding"),
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


CHECKED = """\
text: {delimiter: ";"}
columns:
  - {name: id, kind: id}
  - {name: age, kind: numeric, range: [0, 100]}
  - {name: sex, kind: categorical, values: [f, m], others: refuse}
  - {name: since, kind: date, range: [1970-01-01, 2020-12-31], formats: ["%d.%m.%Y"], outside: refuse}
  - {name: married, kind: boolean, when_true: ["yes"], when_false: ["no"]}
  - {name: weight, kind: numeric, range: [0, 300]}
"""
MESSY = """\
id;age;sex;since;married;SECRET note
p1;34;f;01.02.2020;yes;x
p2;SECRET;f;2020-02-01;no;x
;SECRET;m;31.02.2020;maybe;x
p4;;SECRET;01.01.1900;;x
p5;SECRET;f;01.01.2000;yes
"p6;1;f;01.01.2000;yes;x
p7;SECRET;f;01.01.2000;yes;x
"""


LOST = (
    "the quote at character 1 (column 'id') is not closed before the end of a field, so the end of its record "
    "is unknown"
)


def violations(
    dpca: Command, source: Path, schema: Path
) -> tuple[int, dict[tuple[str | None, str], tuple[int | None, list[str]]]]:
    ending = dpca("schema", "check", source, schema, "--json")
    assert ending.err == ""
    facts = json.loads(ending.out)
    found = {(each["column"], each["rule"].partition(";")[0]): each for each in facts["violations"]}
    assert len(found) == len(facts["violations"])
    assert ending.status == (1 if found else 0)
    return facts["rows"], {key: (each["count"], each["first"]) for key, each in found.items()}


def test_a_check_reports_every_violation_of_schema_file_and_rows_at_once(
    home: Path, dpca: Command, tmp_path: Path
) -> None:
    source, schema = tmp_path / "people.csv", tmp_path / "people.yaml"
    source.write_text(MESSY)
    schema.write_text(CHECKED)
    rows, found = violations(dpca, source, schema)
    assert rows == 6, "what follows an open quote is no row"
    assert found == {
        ("weight", "is not in the file"): (None, ["people.csv"]),
        ("SECRET note", "is in the file, but not in the schema"): (None, ["people.csv"]),
        (None, f"line 7: {LOST}"): (None, ["people.csv"]),
        (None, "has a different number of fields than the header"): (1, ["line 6"]),
        (None, "has a quote that is not closed on its line"): (1, ["line 7"]),
        ("age", "has a value that is not a finite number"): (2, ["line 3", "line 4"]),
        ("since", "has a value that no declared format reads as a date"): (2, ["line 3", "line 4"]),
        ("id", "has an id that is neither a whole number nor text"): (1, ["line 4"]),
        ("married", "has a value that the schema does not list"): (1, ["line 4"]),
        ("age", "has a missing value"): (1, ["line 5"]),
        ("sex", "has a value that the schema does not list"): (1, ["line 5"]),
        ("since", "has a value outside the declared range"): (1, ["line 5"]),
        ("married", "has a missing value"): (1, ["line 5"]),
    }
    assert not home.exists(), "a check stores nothing"
    assert "SECRET" not in dpca("schema", "check", source, schema).out.replace("SECRET note", "")


def test_a_check_of_a_wrong_schema_reports_all_its_faults_and_checks_the_other_columns(
    home: Path, dpca: Command, tmp_path: Path
) -> None:
    source, schema = tmp_path / "people.csv", tmp_path / "people.yaml"
    source.write_text("id;age;sex;since;married\np1;old;f;01.02.2020;yes\n")
    schema.write_text(
        CHECKED.replace("[0, 100]", "[0, 100], missing: 30")
        .replace("values: [f, m]", "values: TO_DECLARE")
        .replace("kind: boolean", "kind: boolen")
        .replace("- {name: weight, kind: numeric, range: [0, 300]}", "- {name: weight, kind: numeric, range: [3, 0]}")
    )
    rows, found = violations(dpca, source, schema)
    assert rows == 1
    assert {column for column, _ in found} == {"age", "sex", "married", "weight"}
    assert ("age", "missing: must be refuse, category, or a public number such as {value: 30}") in found
    schema.write_text("columns: 3\n")
    rows, found = violations(dpca, source, schema)
    assert (rows, len(found)) == (0, 1)
    assert found[None, "columns: Input should be a valid array"] == (None, ["schema"])


def test_a_check_without_a_header_keeps_the_position_of_a_wrongly_declared_column(
    home: Path, dpca: Command, tmp_path: Path
) -> None:
    source, schema = tmp_path / "people.csv", tmp_path / "people.yaml"
    source.write_text("1,x,3\n2,y,no\n")
    schema.write_text(
        "text: {header: false}\ncolumns:\n  - {name: a, kind: numeric, range: [0, 9]}\n  - {name: b, kind: wrong}\n"
        "  - {name: c, kind: numeric, range: [0, 9]}\n  - {name: d, kind: drop, range: 3}\n"
    )
    rows, found = violations(dpca, source, schema)
    assert {column for column, _ in found} == {"b", "d", None}, "the file has three columns and the schema four"
    schema.write_text(schema.read_text().replace("  - {name: d, kind: drop, range: 3}\n", ""))
    rows, found = violations(dpca, source, schema)
    assert (rows, {column for column, _ in found}) == (2, {"b", "c"})
    assert found["c", "has a value that is not a finite number"] == (1, ["line 2"])


def test_a_check_reports_unsupported_types_and_the_values_of_other_columns(
    home: Path, dpca: Command, tmp_path: Path
) -> None:
    source, schema = tmp_path / "people.parquet", tmp_path / "people.yaml"
    table = {"id": [1, 2], "age": [1.0, float("inf")], "sex": [["f"], ["m"]], "since": [3, 4], "married": ["yes", None]}
    pq.write_table(pa.table(table), source)
    schema.write_text(CHECKED)
    rows, found = violations(dpca, source, schema)
    assert (rows, {column for column, _ in found}) == (2, {"weight", "sex", "since", "age", "married"})
    assert found["age", "has a value that is not a finite number"] == (1, ["row 1"])


def test_a_check_of_valid_tables_succeeds_and_names_each_of_several_files(
    home: Path, dpca: Command, tmp_path: Path
) -> None:
    schema, folder = tmp_path / "people.yaml", tmp_path / "people"
    folder.mkdir()
    schema.write_text("columns:\n  - {name: age, kind: numeric, range: [0, 100]}\n")
    (folder / "a.csv").write_text("age\n3\n")
    (folder / "b.csv").write_text("age\nx\n")
    assert violations(dpca, folder, schema)[1]["age", "has a value that is not a finite number"] == (
        1,
        ["b.csv line 2"],
    )
    (folder / "b.csv").write_text("age\n4\n")
    assert violations(dpca, folder, schema) == (2, {})
    assert "no violation" in dpca("schema", "check", folder, schema).out
    (folder / "c.csv").touch()
    assert (None, "the file is empty") in violations(dpca, folder, schema)[1]


def test_the_help_of_a_check_warns_that_its_output_describes_rows(dpca: Command) -> None:
    assert "depend on rows" in " ".join(dpca("schema", "check", "--help").out.split())


@pytest.mark.parametrize(
    ("kind", "rule"),
    [
        ("numeric, range: [0, 1]", "refuse, category, or a public number such as {value: 30}"),
        ("date, range: [2000-01-01, 2001-01-01]", "refuse, category, or a public date such as {value: 2000-01-31}"),
        ("boolean", "refuse, category, {value: true} or {value: false}"),
        ("categorical, values: [a], others: zero", "refuse, category, zero, or one of the listed values"),
        ("vector, length: 2, norm: 1", "refuse, category or zero"),
    ],
)
@pytest.mark.parametrize("missing", ["mean", "3", "{value: [1]}", "{worth: 3}", "[refuse]"])
def test_a_wrong_rule_for_missing_values_is_answered_with_the_valid_rules(
    home: Path, dpca: Command, tmp_path: Path, kind: str, rule: str, missing: str
) -> None:
    schema = tmp_path / "s.yaml"
    schema.write_text(f"columns:\n  - {{name: c, kind: {kind}, missing: {missing}}}\n")
    assert f"column 'c', missing: must be {rule}" in dpca("schema", "show", schema).complaint(1)


def test_messages_about_raw_tables_lead_to_a_draft(home: Path, dpca: Command, tmp_path: Path) -> None:
    source = tmp_path / "people.csv"
    source.write_text("age,work\n3,clerk\n")
    words = ("dataset", "ingest", source, "--name", "p", "--direct")
    for refused in (dpca(*words), dpca(*words, "--features", "2")):
        assert "`dpca schema draft FILE`" in refused.complaint(1)


LOOP = ("--publish", "map", "--components", 2, "--epsilon", 4, "--delta", 1e-6, "--clip-norm", 2, "--settled", 0)


def refreshes(dpca: Command, inbox: Path, *words: str | float) -> tuple[int, dict[str, object], str]:
    ending = dpca("subspace", "refresh", inbox, DATASET, *LOOP, *words, "--direct", "--yes", "--json")
    return ending.status, json.loads(ending.out), ending.err


def arrivals(dpca: Command) -> dict[str, dict[str, str | None]]:
    return {Path(row["file"]).name: row for row in json.loads(dpca("dataset", "arrivals", DATASET, "--json").out)}


def test_an_attended_refresh_that_sets_a_file_aside_fails_and_names_the_next_command(
    inbox: Path, dpca: Command
) -> None:
    open_budget()
    drop(inbox, "good.npy", seed=1)
    (inbox / "bad.npy").write_bytes(b"SECRET")
    status, found, err = refreshes(dpca, inbox)
    assert (status, found["set_aside"], found["promoted"]) == (1, 1, 1)
    assert f"dpca dataset arrivals {DATASET}" in err
    assert "SECRET" not in err
    listed = arrivals(dpca)
    assert listed["good.npy"]["state"] == "released"
    assert listed["bad.npy"]["state"] == "set_aside"
    assert "not a readable .npy array" in str(listed["bad.npy"]["reason"])
    status, found, err = refreshes(dpca, inbox)
    assert (status, found["outcome"], err) == (0, "nothing arrived", "")


def test_a_retried_file_is_ingested_with_other_options_and_charged_once(inbox: Path, dpca: Command) -> None:
    open_budget()
    np.save(inbox / "wide.npy", np.random.default_rng(2).normal(size=(2_000, 9)))
    assert refreshes(dpca, inbox, "--features", 8)[0] == 1
    assert arrivals(dpca)["wide.npy"]["state"] == "set_aside"
    assert refreshes(dpca, inbox)[1]["outcome"] == "nothing arrived", "it is not taken again by itself"
    retried = json.loads(dpca("dataset", "retry", DATASET, "wide.npy", "--json").out)
    assert [(Path(row["file"]).name, row["state"]) for row in retried] == [("wide.npy", "waiting")]
    status, found, _ = refreshes(dpca, inbox, "--features", 9)
    assert (status, found["set_aside"], states()) == (0, 0, ["committed"])
    assert {row["state"] for row in arrivals(dpca).values()} == {"released"}
    assert "no such file" in dpca("dataset", "retry", DATASET).complaint(1), "what was released stays released"


def test_a_retry_names_files_by_path_name_or_token_and_takes_all_by_default(inbox: Path, dpca: Command) -> None:
    open_budget()
    drop(inbox, "good.npy", seed=1)
    for name in ("a.npy", "b.npy", "c.npy"):
        (inbox / name).write_bytes(b"x")
    refreshes(dpca, inbox)
    listed = arrivals(dpca)
    for word in (inbox / "a.npy", str(listed["b.npy"]["token"])):
        assert dpca("dataset", "retry", DATASET, word).status == 0
    assert "no such file" in dpca("dataset", "retry", DATASET, "good.npy").complaint(1)
    assert "no such file" in dpca("dataset", "retry", DATASET, "a.npy").complaint(1), "it waits already"
    assert refreshes(dpca, inbox)[1]["set_aside"] == 0, "none of several fits, so none is set aside"


def test_a_file_refused_by_the_budget_is_ingested_after_a_retry(inbox: Path, dpca: Command) -> None:
    open_budget(5.0)
    drop(inbox, "monday.npy", seed=1)
    drop(inbox, "tuesday.npy", seed=2)
    ending = dpca("subspace", "refresh", inbox, DATASET, *LOOP, "--direct", "--yes")
    assert ending.status == 3
    assert sorted(str(row["state"]) for row in arrivals(dpca).values()) == ["refused", "released"]
    assert dpca("dataset", "retry", DATASET).status == 0
    assert refreshes(dpca, inbox, "--epsilon", 0.5)[0] == 0
    assert [row["state"] for row in arrivals(dpca).values()] == ["released"] * 2


@pytest.mark.parametrize("command", ["arrivals", "retry"])
def test_a_dataset_without_arrivals_lists_none(home: Path, dpca: Command, command: str) -> None:
    ending = dpca("dataset", command, "others")
    assert ending.status == (0 if command == "arrivals" else 1)
    assert "nothing arrived" in ending.out or "no such file" in ending.err


def test_a_retried_arrival_gets_separate_notices(inbox: Path, dpca: Command) -> None:
    open_budget()
    (inbox / "bad.npy").write_bytes(b"x")
    refresh(inbox)
    first = arrivals(dpca)["bad.npy"]["token"]
    assert dpca("dataset", "retry", DATASET).status == 0
    assert refresh(inbox)["set_aside"] == 1
    assert arrivals(dpca)["bad.npy"]["token"] != first
    notices = [path for path in (Workspace.read_only().home / "notices").rglob("*") if path.is_file()]
    assert len(notices) >= 2
