"""Declared schemas of tables.

A schema declares the format and the columns of a table. All of its content is public. A schema is read from a YAML or
JSON document. Repeated keys, references and language-specific objects are not allowed in the document.

>>> schema = Schema.parse({"columns": [{"name": "age", "kind": "numeric", "range": [0, 120]}]})
>>> schema.feature_names, schema.norm_at_most
(('age',), 1.0)

A draft of a schema is derived only from the names and types of columns, never from values. The draft marks each place
where public knowledge must be filled in.

>>> print(draft([("age", None)], text=Text()).splitlines()[-1])
    kind: TO_DECLARE  # public knowledge: numeric, categorical, boolean, date, id or drop
"""

import codecs
import json
import math
import os
import re
import stat
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import pyarrow as pa
import yaml  # type: ignore[import-untyped]
from pydantic import AfterValidator, Field, ValidationError, model_validator

from dpca.errors import Invalid
from dpca.schemas.canonical import is_number, word_of
from dpca.schemas.kinds import KINDS, MAX_WIDTH, MISSING_RULES, AnyColumn, Boolean, Categorical, Declared, Id, Word

_INTEGERS = 1 << 63
_LONGEST_INTEGER = 100  # the maximum number of characters of an integer in YAML


class _Loader(yaml.SafeLoader):  # type: ignore[misc]
    """A safe YAML loader that also refuses repeated keys, references and huge integers, which readers may overlook."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            raise Invalid(
                f"{self._here()} repeats a part by reference (*), which is not allowed; write this part in full"
            )
        return super().compose_node(parent, index)

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:  # noqa: FBT001, FBT002 - as the base has it
        keys = [key.value for key, _ in node.value]
        if len(set(map(str, keys))) < len(keys):
            raise Invalid(
                f"line {node.start_mark.line + 1} begins a mapping that has a key twice; remove one of the two"
            )
        return super().construct_mapping(node, deep=deep)

    def construct_yaml_int(self, node: Any) -> Any:
        is_long = len(node.value) > _LONGEST_INTEGER  # parsing base-60 integers takes quadratic time
        if is_long or not -_INTEGERS <= super().construct_yaml_int(node) < _INTEGERS:
            raise Invalid(
                f"line {node.start_mark.line + 1} has an integer of more than 64 bits, which is not allowed; correct it"
            )
        return super().construct_yaml_int(node)

    def _here(self) -> str:
        return f"line {self.peek_event().start_mark.line + 1}"


_Loader.add_constructor("tag:yaml.org,2002:int", _Loader.construct_yaml_int)
_Loader.add_implicit_resolver(  # read 1e6 as a number, although YAML 1.1 defines it as text
    "tag:yaml.org,2002:float", re.compile(r"^[-+]?[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+$"), list("-+0123456789")
)


def load_yaml(text: str) -> Any:
    """Parse YAML text, which may also be JSON, into plain values.

    Raises
    ------
    Invalid
        If the text is not YAML, or uses a feature of YAML that is not allowed here.
    """
    try:
        return yaml.load(text, _Loader)
    except Invalid:
        raise
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = "" if mark is None else f" near line {mark.line + 1}"
        raise Invalid(f"the text is not YAML{where}; check indentation, colons and quotes") from None
    except (yaml.YAMLError, ValueError, RecursionError, TypeError, OverflowError):
        raise Invalid("the text is not YAML; check indentation, colons and quotes") from None


DOUBLE_COLON = "::"
TO_DECLARE = "TO_DECLARE"
"""The placeholder in a draft where public knowledge is needed."""
_MOST_BYTES = 1 << 24
_NO_CHARACTER_SETS = ("idna", "punycode", "raw-unicode-escape", "undefined", "unicode-escape", "utf-7")
_SHOWN = 300
_NO_PLAIN_VALUE = "the schema has a value that is not plain; write text, numbers, lists and mappings"


def _text_codec(name: str) -> str:
    try:
        codec = codecs.lookup(name)
    except (LookupError, ValueError):
        codec = None
    if codec is None or not codec._is_text_encoding or codec.name in _NO_CHARACTER_SETS:
        raise ValueError("is not a known text encoding, such as utf-8, latin-1 or cp1252")
    return codec.name


def _sign(sign: str) -> str:
    if not sign.isascii() or not (sign.isprintable() or sign == "\t") or sign.isalnum() or sign in " .+-":
        raise ValueError("must be one ASCII character that does not occur in numbers")
    return sign


def _delimiter(sign: str) -> str:
    if sign != DOUBLE_COLON and len(sign) != 1:
        raise ValueError("must be one ASCII character that does not occur in numbers, or ::")
    return sign if sign == DOUBLE_COLON else _sign(sign)


Sign = Annotated[str, Field(min_length=1, max_length=1), AfterValidator(_sign)]
Delimiter = Annotated[str, Field(min_length=1, max_length=2), AfterValidator(_delimiter)]


class Text(Declared):
    """The format of CSV or TSV text."""

    delimiter: Delimiter | None = None
    """The separator of fields, or `::`; by default a comma in CSV and a tab in TSV."""
    quote: Sign | None = '"'
    """The quote character around fields that hold a delimiter; null: no quoting."""
    decimal: Literal[".", ","] = "."
    """The decimal mark."""
    header: bool = True
    """True if the first line names the columns. Otherwise the file has exactly the columns of the schema, in order."""
    encoding: Annotated[str, AfterValidator(_text_codec)] = "utf-8"
    """utf-8, latin-1, cp1252, utf-16, ..."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if len({self.delimiter or "", self.quote or "none", self.decimal}) < 3:
            raise ValueError("delimiter, quote and decimal mark must be three different characters")
        return self


class Schema(Declared):
    """The declared schema of a table. All of it is public, so choose every declaration without looking at the rows."""

    version: Literal[1] = 1
    """The version of the schema format."""
    text: Text = Text()
    """The format of CSV or TSV text."""
    missing_texts: tuple[Word, ...] = ("",)
    """The texts that mean a missing value, in any spelling of the same number or date; empty text always does."""
    unlisted: Literal["refuse", "drop"] = "refuse"
    """Columns of a file that the schema does not list: refuse the file, or drop the columns."""
    columns: Annotated[tuple[AnyColumn, ...], Field(min_length=1, max_length=MAX_WIDTH)]
    """The columns, by name; without a header, in the order of the file."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if len({column.name for column in self.columns}) < len(self.columns):
            raise ValueError("two columns have the same name; rename or remove one of them")
        if sum(isinstance(column, Id) for column in self.columns) > 1:
            raise ValueError("at most one column can be the id of the individual; declare the others as another kind")
        width = sum(len(column.features()) for column in self.columns)
        if not 1 <= width <= MAX_WIDTH:
            raise ValueError(f"the columns become {width} features; declare columns for 1 to {MAX_WIDTH} features")
        if len(set(self.feature_names)) < width:
            raise ValueError("two features would have the same name; rename a column or a value")
        for column in self.columns:
            self._check_values(column)
        return self

    def _check_values(self, column: AnyColumn) -> None:
        """Refuse a column that lists two texts with the same canonical value, or a text that means a missing value.

        `dpca.schemas.canonical` defines the canonical value of a text.
        """
        if isinstance(column, Categorical):
            parts = [[text] for text in column.values]
        elif isinstance(column, Boolean):
            parts = [list(column.when_true), list(column.when_false)]
        else:
            return
        missing = {word_of(text, decimal=self.text.decimal): text for text in self.missing_texts}
        seen: dict[str, str] = {}
        for part in parts:
            words = {word_of(text, decimal=self.text.decimal): text for text in part}
            for word, text in words.items():
                other = seen.get(word, missing.get(word))
                if other is not None:
                    rule = "a missing text" if word in missing else "another listed value"
                    raise ValueError(
                        f"column {column.name!r} lists {text!r}, which is the same as {other!r}, {rule}; remove one"
                    )
            seen |= words

    @classmethod
    def parse(cls, document: Any) -> Self:
        """Build a schema from the parsed values of a YAML or JSON document.

        Raises
        ------
        Invalid
            If the document is not a valid schema. The message names the place in the document and the broken rule.
        """
        if (place := _undeclared(document)) is not None:
            raise Invalid(f"{place} is still {TO_DECLARE}; declare it from public knowledge, never from the rows")
        try:
            text = json.dumps(document, allow_nan=False, default=_plain)
        except (TypeError, ValueError, RecursionError):
            raise Invalid(_NO_PLAIN_VALUE) from None
        try:
            return cls.model_validate_json(text)
        except ValidationError as error:
            raise Invalid(_in_one_line(error, document)) from None

    @property
    def feature_names(self) -> tuple[str, ...]:
        """The names of the features into which a row is encoded, in order."""
        return tuple(name for column in self.columns for name in column.features())

    @property
    def norm_at_most(self) -> float:
        """The largest possible L2 norm of an encoded row, which follows from the public schema alone."""
        return math.sqrt(math.fsum(column.largest_square() for column in self.columns))

    @property
    def unit(self) -> str | None:
        """The name of the column with the ids of individuals; None if the schema has no such column."""
        return next((column.name for column in self.columns if isinstance(column, Id)), None)

    def facts(self) -> dict[str, Any]:
        """Return the schema as plain JSON values, including the rules that are set by default."""
        return dict(self.model_dump(mode="json", exclude_none=False))


def written_text(**values: Any) -> Text:
    """Return the format of CSV or TSV text from options, such as ``delimiter=";"``; None selects an option's default.

    Raises
    ------
    Invalid
        If an option has a value that is not allowed.
    """
    given = {name: value for name, value in values.items() if value is not None}
    try:
        return Text.model_validate(given)
    except ValidationError as error:
        raise Invalid(_in_one_line(error, given)) from None


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema of schema files, with which editors can check and complete such files."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **Schema.model_json_schema(),
        "title": "Schema of a raw table for dpca",
    }


def read_schema(path: str | Path) -> Schema:
    """Read a schema from a YAML or JSON file.

    Raises
    ------
    Invalid
        If the file cannot be read or is not a valid schema. The message names, in one line, the place in the file and
        the broken rule.
    """
    document = _document(Path(path))
    try:
        return Schema.parse(document)
    except Invalid as error:
        raise Invalid(f"schema {path}: {error}") from None


def schema_faults(path: str | Path) -> tuple[Schema | None, list[tuple[str | None, str]]]:
    """Read a schema file that may have faults. Return the usable part of the schema, and a list of all faults.

    In the usable part, columns with a wrong declaration are declared as dropped. It is None if no part is usable. A
    fault is a pair of the column's name (None if the fault is outside the columns) and the broken rule.

    Raises
    ------
    Invalid
        If the file cannot be read as YAML.
    """
    document = _document(Path(path))
    faults: list[tuple[str | None, str]] = []
    columns = document.get("columns") if isinstance(document, Mapping) else None
    for at, column in enumerate(columns if isinstance(columns, list) else ()):
        if keys := _undeclared_keys(column):
            faults.append((str(column.get("name")), f"{', '.join(keys)}: still {TO_DECLARE}; declare it publicly"))
            document = _dropping(document, [at])
    while True:
        try:
            return Schema.model_validate_json(json.dumps(document, allow_nan=False, default=_plain)), faults
        except ValidationError as error:
            found = error.errors(include_url=False, include_input=False, include_context=False)
        except (TypeError, ValueError, RecursionError):
            return None, [*faults, (None, _NO_PLAIN_VALUE)]
        wrong = {each["loc"][1] for each in found if each["loc"][:1] == ("columns",) and len(each["loc"]) > 1}
        placed = ((at, f"{key}: {rule}" if key else rule) for at, key, rule in map(_place_and_rule, found))
        rules = [(None if at is None else _name_at(document, at), rule) for at, rule in placed]
        faults += dict.fromkeys(rules) if wrong or not faults else ()
        of_columns = [each for each in found if each["loc"][:1] == ("columns",) and len(each["loc"]) > 1]
        rest = _dropping(document, wrong) if len(of_columns) == len(found) else document
        if rest == document:
            return None, faults
        document = rest


def _dropping(document: Any, positions: Collection[Any]) -> Any:
    """Return a copy of a schema document in which the columns at these positions are declared as dropped.

    Columns without a name remain unchanged.
    """
    columns = [
        {"name": column["name"], "kind": "drop"}
        if at in positions and isinstance(column, Mapping) and isinstance(column.get("name"), str)
        else column
        for at, column in enumerate(document["columns"])
    ]
    return {**document, "columns": columns}


def _document(path: Path) -> Any:
    """Read a schema file, and return the parsed values of its document."""
    try:
        # Open the path once, so that the file whose type is checked is the file that is read.
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:
            content = file.read(_MOST_BYTES + 1) if stat.S_ISREG(os.fstat(file.fileno()).st_mode) else None
        if content is None or len(content) > _MOST_BYTES:
            raise Invalid(
                f"schema {path} holds more than {_MOST_BYTES} bytes, or is not a file; give a file that lists public "
                "values, not rows"
            )
        text = content.decode("utf-8-sig")
    except OSError as error:
        reason = error.strerror or "input error"
        raise Invalid(f"schema {path} cannot be read ({reason}); give a YAML file, see `dpca schema draft`") from None
    except UnicodeDecodeError:
        raise Invalid(f"schema {path} is not UTF-8 text; save it as UTF-8") from None
    try:
        return load_yaml(text)
    except Invalid as error:
        raise Invalid(f"schema {path}: {error}") from None


def _plain(value: object) -> str:
    if type(value) is date:
        return value.isoformat()
    raise TypeError


def _undeclared(document: Any) -> str | None:
    """Return a phrase for the first place of a schema draft that was not filled in; None if all were."""
    columns = document.get("columns") if isinstance(document, Mapping) else None
    for at, column in enumerate(columns if isinstance(columns, list) else ()):
        for key in _undeclared_keys(column):
            return f"{key} of column {_column_at(document, at)}"
    return None


def _undeclared_keys(column: Any) -> list[str]:
    """Return the keys in a column of a schema draft that were not filled in."""
    if not isinstance(column, Mapping):
        return []
    return [
        str(key)
        for key, value in column.items()
        if value == TO_DECLARE or (isinstance(value, list) and TO_DECLARE in value)
    ]


def _in_one_line(error: ValidationError, document: Any) -> str:
    """Return a one-line message with the place and the broken rule of the first fault, without the faulty value."""
    first = error.errors(include_url=False, include_input=False, include_context=False)[0]
    at, key, rule = _place_and_rule(first)
    column = "" if at is None else f"column {_column_at(document, at)}"
    place = ", ".join(part for part in (column, key) if part) or "the document"
    return f"{place}: {rule}"[:_SHOWN] + "; correct it, see `dpca schema json` for all declarations"


def _place_and_rule(error: Any) -> tuple[int | None, str, str]:
    """Return the position of a faulty column (None if outside the columns), the faulty key (or "") and the rule."""
    column, kind, parts = None, "", list(error["loc"])
    if parts[:1] == ["columns"] and len(parts) > 1 and isinstance(parts[1], int):
        column, parts = int(parts[1]), parts[2:]
        if parts and parts[0] in KINDS:
            kind, parts = str(parts[0]), parts[1:]
        if error["type"].startswith("union_tag"):
            return column, "kind", f"must be one of {', '.join(KINDS)}"
        if parts[:1] == ["missing"] and kind in MISSING_RULES:
            return column, "missing", f"must be {MISSING_RULES[kind]}"
    rule = error["msg"].removeprefix("Value error, ")
    return column, ", ".join(str(part) for part in parts if "[" not in str(part)), " ".join(rule.split())


def _column_at(document: Any, at: int) -> str:
    """Return the quoted name of the column at a position, or the column's number from 1 if it has no name."""
    name = _name_at(document, at)
    return str(at + 1) if name is None else repr(name)


def _name_at(document: Any, at: int) -> str | None:
    column = document["columns"][at]
    name = column.get("name") if isinstance(column, Mapping) else None
    return name[:80] if isinstance(name, str) else None


_HEAD = """\
# This file is a schema for `dpca dataset ingest --table-schema`. Every release that uses it publishes it.
# Declare everything from public knowledge, never from the rows.
# Replace each {word} by a declaration; `dpca schema json` describes all possible declarations.
version: 1
"""


def draft(columns: Sequence[tuple[str, pa.DataType | None]], *, text: Text | None) -> str:
    """Return a draft of a schema as YAML text.

    Parameters
    ----------
    columns : sequence of (str, Arrow type or None)
        The name of each column, with its type if the file format states types. CSV and TSV state none, and types are
        not inferred, because that would require reading values.
    text : Text or None
        The format of CSV or TSV text; None for Parquet.
    """
    lines = [_HEAD.format(word=TO_DECLARE).rstrip()]
    if text is not None:
        if text.header:
            lines.append("# The first line of the file was read as column names; if it is a row, use --no-header.")
        lines.append("text:  # the format of the CSV or TSV file")
        lines += [f"  {name}: {json.dumps(value)}" for name, value in text.model_dump().items()]
        lines.append(
            'missing_texts: [""]  # public knowledge: the texts that mean a missing value, such as "?" or "NA"'
        )
    lines.append("unlisted: refuse  # what to do with columns that are not listed: refuse or drop")
    lines.append("columns:")
    for name, kind in columns:
        lines.append(f"  - name: {json.dumps(name, ensure_ascii=False)}")
        lines += [f"    {line}" for line in _column(kind)]
    return "\n".join(lines) + "\n"


def _column(kind: pa.DataType | None) -> Iterator[str]:
    """Yield the YAML lines that declare a column in a draft, as far as the column's type determines the declaration."""
    ends = f"range: [{TO_DECLARE}, {TO_DECLARE}]  # public knowledge: "
    missing = "missing: refuse  # other rules for missing values: category, or a public value as {value: ...}"
    if kind is None or pa.types.is_null(kind):
        yield f"kind: {TO_DECLARE}  # public knowledge: numeric, categorical, boolean, date, id or drop"
    elif pa.types.is_boolean(kind):
        yield "kind: boolean"
        yield missing
    elif is_number(kind):
        yield "kind: numeric  # other possible kinds: categorical, boolean, id, drop"
        yield f"{ends}the lowest and the highest allowed value"
        yield missing
    elif pa.types.is_date(kind) or pa.types.is_timestamp(kind):
        yield "kind: date  # other possible kinds: drop"
        yield f"{ends}the first and the last allowed day, such as 1900-01-01"
        if getattr(kind, "tz", None) is not None:
            yield "timezone: UTC  # the time zone in which a timestamp is converted to a day, such as Europe/Berlin"
        yield missing
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        length = kind.list_size if pa.types.is_fixed_size_list(kind) else TO_DECLARE
        yield "kind: vector  # other possible kinds: drop"
        yield f"length: {length}" + ("" if length != TO_DECLARE else "  # public knowledge: the length of every list")
        yield f"{ends}the range of each number; or replace this line by norm: the largest L2 norm of a list"
        yield "missing: refuse  # other rules for missing values: category, zero"
    elif pa.types.is_dictionary(kind):
        yield "kind: categorical  # other possible kinds: id, drop"
        yield f"values: [{TO_DECLARE}]  # public knowledge: all allowed values"
        yield f"others: {TO_DECLARE}  # the rule for values that are not listed: category, zero or refuse"
        yield "missing: refuse  # other rules for missing values: category, zero, or a listed value as {value: ...}"
    else:
        yield f"kind: {TO_DECLARE}  # public knowledge: categorical, id, date, boolean, numeric or drop"
