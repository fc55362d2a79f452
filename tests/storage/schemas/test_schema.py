"""A schema that breaks a rule is one line with the place and the rule; one that holds is stated whole."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from storage.errors import Invalid
from storage.schemas.plain_yaml import load_yaml
from storage.schemas.schema import Schema, json_schema, read_schema
from tests.raw_tables import TABLES

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("name", TABLES)
def test_stated_facts_give_the_same_schema(name: str) -> None:
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
    "columns: [{name: a, kind: numeric, range: [1, 0]}]": "column 'a': the range must rise",
    "columns: [{name: a, kind: numeric, range: [0, .inf]}]": "no plain value",
    "columns: [{name: a, kind: numeric, range: [-1.7e308, 1.7e308]}]": "column 'a': the range must rise",
    "columns: [{name: a, kind: numeric, range: [0, 1], missing: zero}]": "column 'a', missing: ",
    "columns: [{name: a, kind: numeric, range: [0, 1], missing: {value: 2}}]": "must lie in the range",
    "columns: [{name: a, kind: numeric, range: [0, 1], guess: true}]": "column 'a', guess: Extra inputs",
    "columns: [{name: a, kind: numeric, range: [TO_DECLARE, 1]}]": "range of column 'a' still says TO_DECLARE",
    "columns: [{name: a, kind: TO_DECLARE}]": "kind of column 'a' still says TO_DECLARE",
    "columns: [{name: a, kind: categorical, values: [x]}]": "column 'a', others: Field required",
    "columns: [{name: a, kind: categorical, values: [x, x], others: zero}]": "must list each value once",
    "columns: [{name: a, kind: categorical, values: [yes, no], others: zero}]": "put it in quotes",
    "columns: [{name: a, kind: categorical, values: [[1]], others: zero}]": "column 'a', values, 0: ",
    "columns: [{name: a, kind: categorical, values: [x], others: zero, missing: {value: y}}]": "must be listed",
    "columns: [{name: a, kind: categorical, values: [''], others: zero}]": "must not list the empty text",
    "columns: [{name: a, kind: categorical, values: [1, '1.00'], others: zero}]": "lists '1.00', which is '1', another",
    "columns: [{name: a, kind: categorical, values: ['TRUE', 1], others: zero}]": "lists '1', which is 'TRUE', another",
    "columns: [{name: a, kind: boolean, when_false: ['1.0']}]": "lists '1.0', which is ",
    "missing_texts: [-9]\ncolumns: [{name: a, kind: categorical, values: ['-9.0'], others: zero}]": "a missing text",
    "columns: [{name: a, kind: categorical, values: ['(other)'], others: category}]": "would have the same name",
    "columns: [{name: a, kind: boolean, when_true: [x], when_false: [x]}]": "both yes and no",
    "columns: [{name: a, kind: date, range: [2020-01-01, 2019-01-01]}]": "the range must rise",
    "columns: [{name: a, kind: date, range: [2020-01-01, 2021-01-01], formats: ['%H']}]": "year, month and day",
    "columns: [{name: a, kind: vector, length: 2}]": "either a range of each number or a norm",
    "columns: [{name: a, kind: vector, length: 99999, norm: 1}]": "column 'a', length: ",
    "columns: [{name: a, kind: id}]": "become 0 features",
    "columns: [{name: a, kind: id}, {name: b, kind: id}]": "one column at most is the id",
    "columns: [{name: a, kind: drop}, {name: a, kind: drop}]": "two columns have the same name",
    "columns: [{name: 'a\n\n  b', kind: drop}]": "must be one line",
    f"text: {{encoding: rot13}}\n{COLUMN}": "is no known encoding",
    f"text: {{encoding: punycode}}\n{COLUMN}": "is no known encoding",
    f"text: {{encoding: klingon}}\n{COLUMN}": "is no known encoding",
    f"text: {{delimiter: ';;'}}\n{COLUMN}": "text, delimiter: ",
    f"text: {{delimiter: ','}}\n{COLUMN}\ntext: {{}}": "one key twice",
    f"text: {{delimiter: ',', decimal: ','}}\n{COLUMN}": "must be three signs",
    "columns: &a [*a]": "repeats a part by reference",
    "columns: !!python/object/apply:os.system [ls]": "the text is no YAML near line 1",
    "columns: [": "the text is no YAML near line",
    "a: b: c": "the text is no YAML near line 1",
    "[" * 1500: "the text is no YAML",
    "? [a]\n: b": "the text is no YAML",
    "--- 1\n--- 2": "the text is no YAML near line 2",
    "columns: [{name: a, kind: numeric, range: [0, " + "9" * 5000 + "]}]": "",
}


@pytest.mark.parametrize("text", BAD, ids=range(len(BAD)))
def test_a_bad_schema_is_one_line_with_place_and_rule(tmp_path: Path, text: str) -> None:
    path = tmp_path / "schema.yaml"
    path.write_text(text)
    with pytest.raises(Invalid) as caught:
        read_schema(path)
    message = str(caught.value)
    assert message.startswith(f"schema {path}: ")
    assert BAD[text] in message
    assert "\n" not in message
    assert len(message) < 600


def test_a_file_that_is_no_text_is_one_line(tmp_path: Path) -> None:
    for make, rule in (
        (lambda path: None, "cannot be read (No such file"),
        (lambda path: path.mkdir(), "cannot be read (Is a directory"),
        (lambda path: path.write_bytes(b"\xff\xfe\x00"), "is no UTF-8 text"),
    ):
        path = tmp_path / rule[:5] / "schema.yaml"
        path.parent.mkdir(exist_ok=True)
        path.unlink(missing_ok=True) if path.is_file() else None
        path = path.with_name(f"{len(rule)}.yaml")
        make(path)
        with pytest.raises(Invalid) as caught:
            read_schema(path)
        assert rule in str(caught.value)


def test_powers_of_ten_are_numbers(tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text("columns: [{name: a, kind: numeric, range: [-1e3, 2.5E6], scale: none}]")
    assert read_schema(tmp_path / "s.yaml").norm_at_most == 2.5e6


def test_a_name_or_value_that_is_a_number_is_its_digits() -> None:
    column: dict[str, Any] = {"name": 2019, "kind": "categorical", "values": [1, "b"], "others": "zero"}
    assert Schema.parse({"columns": [column]}).feature_names == ("2019=1", "2019=b")


@pytest.mark.timeout(20)
def test_an_integer_of_many_digits_of_base_60_is_refused_before_it_is_read() -> None:
    """Its time would grow with the square of its length: a file of a megabyte took minutes."""
    with pytest.raises(Invalid, match="integer of more than 64 bits"):
        load_yaml("a: " + "1:" * 400_000 + "1")
    assert load_yaml("a: 1:30") == {"a": 90}
