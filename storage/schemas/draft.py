"""Draft a schema from the names and the types of columns, never from values; what needs public knowledge is marked.

>>> print(draft([("age", None)], text=Text()).splitlines()[-1])
    kind: TO_DECLARE  # public knowledge: numeric, categorical, boolean, date, id or drop
"""

import json
from collections.abc import Iterator, Sequence

import pyarrow as pa

from storage.schemas.cells import is_number
from storage.schemas.schema import TO_DECLARE, Text

_HEAD = """\
# A schema, see `dpca dataset ingest --table-schema`. All in it is public and goes into each release: declare it from
# what is publicly known, never from the rows. Fill in each {word}; `dpca schema json` describes all that may be said.
version: 1
"""


def draft(columns: Sequence[tuple[str, pa.DataType | None]], *, text: Text | None) -> str:
    """Return a first schema as YAML.

    Parameters
    ----------
    columns : sequence of (str, Arrow type or None)
        Names, and types where the format has them: CSV and TSV have none, and telling a type from values would be
        reading them.
    text : Text or None
        How the text of CSV or TSV is written; None for Parquet.
    """
    lines = [_HEAD.format(word=TO_DECLARE).rstrip()]
    if text is not None:
        if text.header:
            lines.append("# The first line of the file was taken as names of columns; if it is a row, use --no-header.")
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
    """Yield the declaration of a column, as far as its type says it."""
    ends = f"range: [{TO_DECLARE}, {TO_DECLARE}]  # public knowledge: "
    missing = "missing: refuse  # or category, or a public value: {value: ...}"
    if kind is None or pa.types.is_null(kind):
        yield f"kind: {TO_DECLARE}  # public knowledge: numeric, categorical, boolean, date, id or drop"
    elif pa.types.is_boolean(kind):
        yield "kind: boolean"
        yield missing
    elif is_number(kind):
        yield "kind: numeric  # or categorical, boolean, id, drop"
        yield f"{ends}the lowest and the highest value that count"
        yield missing
    elif pa.types.is_date(kind) or pa.types.is_timestamp(kind):
        yield "kind: date  # or drop"
        yield f"{ends}the first and the last day that count, as 1900-01-01"
        if getattr(kind, "tz", None) is not None:
            yield "timezone: UTC  # the zone whose days count, such as Europe/Berlin"
        yield missing
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        length = kind.list_size if pa.types.is_fixed_size_list(kind) else TO_DECLARE
        yield "kind: vector  # or drop"
        yield f"length: {length}" + ("" if length != TO_DECLARE else "  # public knowledge: how many numbers")
        yield f"{ends}of each number; or, instead, norm: the largest L2 norm"
        yield "missing: refuse  # or category, or zero"
    elif pa.types.is_dictionary(kind):
        yield "kind: categorical  # or id, drop"
        yield f"values: [{TO_DECLARE}]  # public knowledge: all values that count"
        yield f"others: {TO_DECLARE}  # category, zero or refuse"
        yield "missing: refuse  # or category, zero, or a listed value: {value: ...}"
    else:
        yield f"kind: {TO_DECLARE}  # public knowledge: categorical, id, date, boolean, numeric or drop"
