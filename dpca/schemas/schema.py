"""Declared schemas of tables.

A schema states the format of a table and its columns. Everything in it is public. It is read from a plain YAML
document, without repeated keys, references or objects of a programming language.

>>> schema = Schema.parse({"columns": [{"name": "age", "kind": "numeric", "range": [0, 120]}]})
>>> schema.feature_names, schema.norm_at_most
(('age',), 1.0)

A draft uses only the names and types of columns, never values; it marks the places that need public knowledge.

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
_LONGEST_INTEGER = 100  # characters, in any notation


class _Loader(yaml.SafeLoader):  # type: ignore[misc]
    """A safe loader that refuses features of YAML that a human reader might miss."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            raise Invalid(f"{self._here()} repeats a part by reference (*); write it in full")
        return super().compose_node(parent, index)

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:  # noqa: FBT001, FBT002 - as the base has it
        keys = [key.value for key, _ in node.value]
        if len(set(map(str, keys))) < len(keys):
            raise Invalid(f"line {node.start_mark.line + 1} begins a mapping that has a key twice; remove one")
        return super().construct_mapping(node, deep=deep)

    def construct_yaml_int(self, node: Any) -> Any:
        is_long = len(node.value) > _LONGEST_INTEGER  # base 60 takes time quadratic in the length
        if is_long or not -_INTEGERS <= super().construct_yaml_int(node) < _INTEGERS:
            raise Invalid(f"line {node.start_mark.line + 1} has an integer of more than 64 bits; correct it")
        return super().construct_yaml_int(node)

    def _here(self) -> str:
        return f"line {self.peek_event().start_mark.line + 1}"


_Loader.add_constructor("tag:yaml.org,2002:int", _Loader.construct_yaml_int)
_Loader.add_implicit_resolver(  # YAML 1.1 reads 1e6 as text
    "tag:yaml.org,2002:float", re.compile(r"^[-+]?[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+$"), list("-+0123456789")
)


def load_yaml(text: str) -> Any:
    """Parse a YAML text as a plain document; JSON is valid YAML.

    Raises
    ------
    Invalid
        If it is no plain document.
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
    """The declared schema of a table. Everything in it is public: choose it without looking at the rows."""

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
            raise ValueError("two columns have the same name")
        if sum(isinstance(column, Id) for column in self.columns) > 1:
            raise ValueError("at most one column can be the id of the individual")
        width = sum(len(column.features()) for column in self.columns)
        if not 1 <= width <= MAX_WIDTH:
            raise ValueError(f"the columns become {width} features; declare 1 to {MAX_WIDTH}")
        if len(set(self.feature_names)) < width:
            raise ValueError("two features would have the same name; rename a column or a value")
        for column in self.columns:
            self._check_values(column)
        return self

    def _check_values(self, column: AnyColumn) -> None:
        """Refuse listed texts whose canonical value (`dpca.schemas.canonical`) repeats or means a missing value."""
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
                    raise ValueError(f"column {column.name!r} lists {text!r}, which is {other!r}, {rule}; remove one")
            seen |= words

    @classmethod
    def parse(cls, document: Any) -> Self:
        """Check a document from YAML or JSON, and return its schema.

        Raises
        ------
        Invalid
            If it is no schema. The message names the place and the rule in one line.
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
        """The names of the features, in order."""
        return tuple(name for column in self.columns for name in column.features())

    @property
    def norm_at_most(self) -> float:
        """The public bound on the L2 norm of an encoded row."""
        return math.sqrt(math.fsum(column.largest_square() for column in self.columns))

    @property
    def unit(self) -> str | None:
        """The column with the id of the individual behind each row."""
        return next((column.name for column in self.columns if isinstance(column, Id)), None)

    def facts(self) -> dict[str, Any]:
        """Return the schema as plain JSON values, with every rule stated."""
        return dict(self.model_dump(mode="json", exclude_none=False))


def written_text(**values: Any) -> Text:
    """Return the format of a text; None selects the default of an option.

    Raises
    ------
    Invalid
        If a value is not allowed.
    """
    given = {name: value for name, value in values.items() if value is not None}
    try:
        return Text.model_validate(given)
    except ValidationError as error:
        raise Invalid(_in_one_line(error, given)) from None


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema of schema files, for editors."""
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
        If it cannot be read, or is no schema. The message is one line with the place and the rule.
    """
    document = _document(Path(path))
    try:
        return Schema.parse(document)
    except Invalid as error:
        raise Invalid(f"schema {path}: {error}") from None


def schema_faults(path: str | Path) -> tuple[Schema | None, list[tuple[str | None, str]]]:
    """Return the usable part of a schema, and all its faults as (column or None, rule).

    The usable part drops columns with a wrong declaration. It is None if nothing can be used.

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
    """Return a document in which the columns at these positions, if they have names, are declared as dropped."""
    columns = [
        {"name": column["name"], "kind": "drop"}
        if at in positions and isinstance(column, Mapping) and isinstance(column.get("name"), str)
        else column
        for at, column in enumerate(document["columns"])
    ]
    return {**document, "columns": columns}


def _document(path: Path) -> Any:
    """Read the document of a schema file."""
    pass

    try:
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:  # checks and reads the same file
            content = file.read(_MOST_BYTES + 1) if stat.S_ISREG(os.fstat(file.fileno()).st_mode) else None
        if content is None or len(content) > _MOST_BYTES:
            raise Invalid(
                f"schema {path} holds more than {_MOST_BYTES} bytes, or is not a file; list public values, not rows"
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
    """Return the first place of a draft that was not filled in."""
    columns = document.get("columns") if isinstance(document, Mapping) else None
    for at, column in enumerate(columns if isinstance(columns, list) else ()):
        for key in _undeclared_keys(column):
            return f"{key} of column {_column_at(document, at)}"
    return None


def _undeclared_keys(column: Any) -> list[str]:
    """Return the keys of a column of a draft that were not filled in."""
    if not isinstance(column, Mapping):
        return []
    return [
        str(key)
        for key, value in column.items()
        if value == TO_DECLARE or (isinstance(value, list) and TO_DECLARE in value)
    ]


def _in_one_line(error: ValidationError, document: Any) -> str:
    """Return the place and the rule of the first fault, without the value."""
    first = error.errors(include_url=False, include_input=False, include_context=False)[0]
    at, key, rule = _place_and_rule(first)
    column = "" if at is None else f"column {_column_at(document, at)}"
    place = ", ".join(part for part in (column, key) if part) or "the document"
    return f"{place}: {rule}"[:_SHOWN] + "; correct it, see `dpca schema json` for all declarations"


def _place_and_rule(error: Any) -> tuple[int | None, str, str]:
    """Return a fault's column (None for the whole document), its key (empty if it has none) and its rule."""
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
    """Return the quoted name of a column, or its number."""
    name = _name_at(document, at)
    return str(at + 1) if name is None else repr(name)


def _name_at(document: Any, at: int) -> str | None:
    column = document["columns"][at]
    name = column.get("name") if isinstance(column, Mapping) else None
    return name[:80] if isinstance(name, str) else None


_HEAD = """\
# A schema, see `dpca dataset ingest --table-schema`. All of it is public and is part of each release: declare it from
# what is publicly known, never from the rows. Fill in each {word}; `dpca schema json` describes all declarations.
version: 1
"""


def draft(columns: Sequence[tuple[str, pa.DataType | None]], *, text: Text | None) -> str:
    """Return a draft of a schema as YAML.

    Parameters
    ----------
    columns : sequence of (str, Arrow type or None)
        Names, with types if the format has them. CSV and TSV have none, and inferring a type would require reading
        values.
    text : Text or None
        The format of CSV or TSV text; None for Parquet.
    """
    lines = [_HEAD.format(word=TO_DECLARE).rstrip()]
    if text is not None:
        if text.header:
            lines.append("# The first line of the file was read as column names; if it is a row, use --no-header.")
        lines.append("text:  # how the file is written")
        lines += [f"  {name}: {json.dumps(value)}" for name, value in text.model_dump().items()]
        lines.append('missing_texts: [""]  # public: the texts that mean a missing value, such as "?" or "NA"')
    lines.append("unlisted: refuse  # columns that are not listed: refuse or drop")
    lines.append("columns:")
    for name, kind in columns:
        lines.append(f"  - name: {json.dumps(name, ensure_ascii=False)}")
        lines += [f"    {line}" for line in _column(kind)]
    return "\n".join(lines) + "\n"


def _column(kind: pa.DataType | None) -> Iterator[str]:
    """Yield the declaration of a column, as far as its type determines it."""
    ends = f"range: [{TO_DECLARE}, {TO_DECLARE}]  # public knowledge: "
    missing = "missing: refuse  # or category, or a public value: {value: ...}"
    if kind is None or pa.types.is_null(kind):
        yield f"kind: {TO_DECLARE}  # public knowledge: numeric, categorical, boolean, date, id or drop"
    elif pa.types.is_boolean(kind):
        yield "kind: boolean"
        yield missing
    elif is_number(kind):
        yield "kind: numeric  # or categorical, boolean, id, drop"
        yield f"{ends}the lowest and the highest allowed value"
        yield missing
    elif pa.types.is_date(kind) or pa.types.is_timestamp(kind):
        yield "kind: date  # or drop"
        yield f"{ends}the first and the last allowed day, as 1900-01-01"
        if getattr(kind, "tz", None) is not None:
            yield "timezone: UTC  # the time zone of the days, such as Europe/Berlin"
        yield missing
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        length = kind.list_size if pa.types.is_fixed_size_list(kind) else TO_DECLARE
        yield "kind: vector  # or drop"
        yield f"length: {length}" + ("" if length != TO_DECLARE else "  # public knowledge: number of entries")
        yield f"{ends}of each number; or, instead, norm: the largest L2 norm"
        yield "missing: refuse  # or category, or zero"
    elif pa.types.is_dictionary(kind):
        yield "kind: categorical  # or id, drop"
        yield f"values: [{TO_DECLARE}]  # public knowledge: all allowed values"
        yield f"others: {TO_DECLARE}  # category, zero or refuse"
        yield "missing: refuse  # or category, zero, or a listed value: {value: ...}"
    else:
        yield f"kind: {TO_DECLARE}  # public knowledge: categorical, id, date, boolean, numeric or drop"
