"""The head of a raw table: the names of its columns, and their types where the format has them. No row is read.

The first line of a text without a header is a row: of that, the number of fields alone is used.
"""

import csv
import re
from collections.abc import Sequence
from contextlib import closing

import pyarrow as pa
import pyarrow.parquet as pq

from storage.errors import BadSource, Invalid
from storage.formats.broken import reading
from storage.formats.declared import Declared
from storage.formats.delimited import DELIMITERS, LONGEST, guess_delimiter, looks_like_a_row, split_line
from storage.formats.files import SourceFile, find_files
from storage.formats.sources import checked_format, opening
from storage.formats.text import TextFile
from storage.schemas.encoder import flat_table
from storage.schemas.frames import index_columns
from storage.schemas.schema import Schema, Text, written_text

_DATE = re.compile(r"\d{1,4}[-/.:]\d{1,2}([-/.:]\d{1,4}.*)?")

type Head = list[tuple[str, pa.DataType | None]]
"""Names of columns, with their types or None."""


def read_head(
    source: str,
    *,
    format: str | None,  # noqa: A002
    header: bool | None,
    delimiter: str | None,
    encoding: str | None,
) -> tuple[Head, Text | None]:
    """Read the head of the first file of a source.

    Parameters
    ----------
    source : str
        A file, a folder or a pattern.
    format : str or None
        csv, tsv or parquet; by the name of the file by default.
    header : bool or None
        Whether text begins with the names of its columns; None refuses a first line that looks like a row.
    delimiter, encoding : str or None
        How text is written; without a delimiter, that of the format, or the one that the header holds most often.

    Returns
    -------
    tuple of (head, text)
        The columns, and how text is written, or None for Parquet.

    Raises
    ------
    BadSource
        If the file cannot be read, or is none of a raw table.
    """
    file = find_files([source])[0]
    try:
        with opening():
            return _head(file, format=format, header=header, delimiter=delimiter, encoding=encoding)
    except BadSource as error:
        raise BadSource(f"{file.address}: {error}") from None


def _head(
    file: SourceFile,
    *,
    format: str | None,  # noqa: A002
    header: bool | None,
    delimiter: str | None,
    encoding: str | None,
) -> tuple[Head, Text | None]:
    kind = checked_format(file, Declared(format=format))
    if kind == "parquet":
        return _parquet_head(file), None
    _refuse_numbers(kind)
    return _text_head(file, kind, header=header, delimiter=delimiter, encoding=encoding)


def read_schema_head(file: SourceFile, kind: str, schema: Schema) -> Head:
    """Read the head of a file of a format that is written as a schema declares; raise as `read_head`."""
    if kind == "parquet":
        return _parquet_head(file)
    _refuse_numbers(kind)
    if not schema.text.header:
        return [(column.name, None) for column in schema.columns]
    text = schema.text.model_copy(update={"delimiter": schema.text.delimiter or DELIMITERS[kind]})
    return [(name, None) for name in _split_names(_first_line(file, text), text)]


def _parquet_head(file: SourceFile) -> Head:
    with reading("Parquet file"), file.open() as stream:
        schema = pq.ParquetFile(stream).schema_arrow
        index, flat = index_columns(schema), flat_table(schema.empty_table()).schema
    return [(field.name, field.type) for field in flat if field.name not in index]


def _refuse_numbers(kind: str) -> None:
    if kind not in DELIMITERS:
        raise Invalid(f"a {kind} file holds numbers alone and needs no schema; name CSV, TSV or Parquet")


def _text_head(
    file: SourceFile, kind: str, *, header: bool | None, delimiter: str | None, encoding: str | None
) -> tuple[Head, Text]:
    text = written_text(encoding=encoding, delimiter=delimiter, header=header)
    line = _first_line(file, text)
    if delimiter is None:
        delimiter = DELIMITERS[kind]
        if header is not False and kind == "csv":  # names of columns are public, a row is not
            delimiter = guess_delimiter(line)
    text = text.model_copy(update={"delimiter": delimiter})
    names = _split_names(line, text)
    if text.quote and line.count(text.quote) % 2:
        raise BadSource("the first line does not close a quote; a name of a column is of one line: rename it")
    if header is None and (looks_like_a_row(names, Declared()) or _has_a_date(names) or line.lstrip().startswith("#")):
        raise BadSource(
            "the first line holds numbers, dates or a comment where it should name the columns; give --no-header if it "
            "is a row, or --header if these are the names"
        )
    if header is False:
        names = [f"column{number}" for number in range(1, len(names) + 1)]
    elif len(set(names)) < len(names) or not all(names):
        raise BadSource("two columns have the same name, or one has none; name each, or give --no-header")
    return [(name, None) for name in names], text


def _first_line(file: SourceFile, text: Text) -> str:
    with closing(TextFile(file, encoding=text.encoding)) as opened:
        opened.reads_returns = True
        first = bytes(next(opened.pieces(longest=LONGEST), b"")).partition(b"\n")[0]
    try:
        line = first.decode().rstrip("\r")
    except UnicodeDecodeError:
        raise _no_names(text) from None
    if not line.strip():
        raise BadSource("the first line is empty; it must name the columns")
    return line


def _split_names(line: str, text: Text) -> list[str]:
    assert text.delimiter is not None
    try:
        return [name.strip() for name in split_line(line, delimiter=text.delimiter, quote=text.quote)]
    except csv.Error:
        raise _no_names(text) from None


def _no_names(text: Text) -> BadSource:
    return BadSource(f"the first line does not name columns in {text.encoding}; state --encoding")


def _has_a_date(names: Sequence[str]) -> bool:
    """Tell whether a name of a column is a date or a time of day, as in a row."""
    return any(_DATE.fullmatch(name) for name in names)
