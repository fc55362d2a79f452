"""Check of raw tables against a schema, and reading of column names without rows.

The check reports all violations of the schema at once, counted by column and rule, and stores nothing. The result
contains row numbers, so it is for the owner of the data only.

The head of a raw table consists of its column names, with their types if the format has types. A head is read without
reading rows, with one exception: in text without a header, the number of fields of the first row is used.

Examples
--------
::

    found = check_tables("people.csv", "people.yaml")
    for violation in found.violations:
        print(violation.column, violation.rule, violation.count, violation.first)
"""

import csv
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path, PurePath

import pyarrow as pa
import pyarrow.parquet as pq

from dpca.errors import BadSource, Invalid
from dpca.schemas.encoder import Encoder, flat_table
from dpca.schemas.frames import index_columns
from dpca.schemas.kinds import Drop, Id
from dpca.schemas.schema import Schema, Text, schema_faults, written_text
from storage.formats.batch import Rejects
from storage.formats.csr import reading
from storage.formats.declared import Declared
from storage.formats.delimited import DELIMITERS, LONGEST, guess_delimiter, resembles_row, split_line
from storage.formats.files import SourceFile, find_files
from storage.formats.sources import checked_format, open_file, opening
from storage.formats.text import TextFile

_DATE = re.compile(r"\d{1,4}[-/.:]\d{1,2}([-/.:]\d{1,4}.*)?")

type Head = list[tuple[str, pa.DataType | None]]
"""The head of a table: the column names, each with an Arrow type, or None for text."""


def read_head(
    source: str,
    *,
    format: str | None,  # noqa: A002
    header: bool | None,
    delimiter: str | None,
    encoding: str | None,
) -> tuple[Head, Text | None]:
    """Read the column names (and types, for Parquet) of the first file of a source.

    Parameters
    ----------
    source : str
        A file, a folder or a pattern.
    format : str or None
        csv, tsv or parquet; by default, determined by the suffix of the file.
    header : bool or None
        Whether the first line of text contains the column names. With None, a first line that looks like a row is
        refused.
    delimiter, encoding : str or None
        Delimiter and encoding of the text. By default, the delimiter is a tab for TSV; for CSV, it is the usual
        delimiter that occurs most often in the header, or a comma without a header.

    Returns
    -------
    tuple of (head, text)
        The columns, and the dialect of the text (delimiter, quote, encoding), which is None for Parquet.

    Raises
    ------
    BadSource
        If the file cannot be read, or is not a raw table.
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
    """Read the column names of a file, whose text has the dialect that a schema declares.

    Raises the errors of `read_head`.
    """
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
        raise Invalid(f"a {kind} file has only numbers and needs no schema; give CSV, TSV or Parquet")


def _text_head(
    file: SourceFile, kind: str, *, header: bool | None, delimiter: str | None, encoding: str | None
) -> tuple[Head, Text]:
    text = written_text(encoding=encoding, delimiter=delimiter, header=header)
    line = _first_line(file, text)
    if delimiter is None:
        delimiter = DELIMITERS[kind]
        if (
            header is not False and kind == "csv"
        ):  # only a header may determine the delimiter, because column names are public and rows are not
            delimiter = guess_delimiter(line)
    text = text.model_copy(update={"delimiter": delimiter})
    names = _split_names(line, text)
    if text.quote and line.count(text.quote) % 2:
        raise BadSource(
            "the first line does not close a quote, and a column name must fit on one line; rename the column"
        )
    if header is None and (resembles_row(names, Declared()) or _has_a_date(names) or line.lstrip().startswith("#")):
        raise BadSource(
            "the first line has numbers, dates or a comment instead of column names; give --no-header if it is a "
            "row, or --header if these are the names"
        )
    if header is False:
        names = [f"column{number}" for number in range(1, len(names) + 1)]
    elif len(set(names)) < len(names) or not all(names):
        raise BadSource("two columns have the same name, or one has no name; give each a name, or use --no-header")
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
        raise BadSource("the first line is empty; it must contain the column names")
    return line


def _split_names(line: str, text: Text) -> list[str]:
    assert text.delimiter is not None
    try:
        return [name.strip() for name in split_line(line, delimiter=text.delimiter, quote=text.quote)]
    except csv.Error:
        raise _no_names(text) from None


def _no_names(text: Text) -> BadSource:
    return BadSource(f"the first line has no column names in {text.encoding}; give the right --encoding")


def _has_a_date(names: Sequence[str]) -> bool:
    """Return whether a supposed column name is a date or a time of day, so that the line looks like a row."""
    return any(_DATE.fullmatch(name) for name in names)


_FIRST = 3
_SCHEMA = "schema"

type Progress = Callable[[str, int, int, int], None]
"""A function that receives (phase, bytes done, bytes in total, rows done)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Violation:
    """One rule that the schema, a file or rows break.

    Attributes
    ----------
    column : str or None, the column; None if a row, a file or the schema as a whole breaks the rule
    rule : str, what is wrong, without any value from the data
    count : int or None, the number of rows that break the rule; None if a file or the schema breaks it
    first : tuple of str, the places of the first three rows that break the rule, or else the file's name or "schema"
    """

    column: str | None
    rule: str
    count: int | None
    first: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """The result of checking a source against a schema.

    Attributes
    ----------
    rows : int, the number of checked rows
    violations : tuple of Violation, first those of the schema, then those of files, then those of rows
    """

    rows: int
    violations: tuple[Violation, ...]


class _Counted(Rejects):
    """Handler of bad rows that counts violations by column and rule, with the places of the first three."""

    is_tolerant = counts_all = True

    def __init__(self, *, several: bool) -> None:
        super().__init__()
        self._several = several
        self._found: dict[tuple[str | None, str], tuple[int, list[str]]] = {}

    def reject(
        self, *, place: str, number: int, reason: str, column: str | int | None = None, quoting: str | None = None
    ) -> None:
        """Count one violation of a rule by a row."""
        count, first = self._found.setdefault((None if column is None else str(column), reason), (0, []))
        if len(first) < _FIRST:
            first.append(f"{PurePath(self.file).name} {place} {number}" if self._several else f"{place} {number}")
        self._found[None if column is None else str(column), reason] = count + 1, first

    def violations(self) -> Iterator[Violation]:
        """Yield the counted violations, in the order in which each was first found."""
        for (column, rule), (count, first) in self._found.items():
            yield Violation(column=column, rule=rule, count=count, first=tuple(first))


def check_tables(
    source: str,
    schema: str | Path,
    *,
    format: str | None = None,  # noqa: A002, the word users know
    progress: Progress | None = None,
) -> Checked:
    """Check all rows of a source against a schema; return every rule that the schema, a file or a row breaks.

    Columns that are declared wrongly, or are missing from a file, are reported and left out. All other columns are
    checked.

    Parameters
    ----------
    source : str
        A file, a folder or a pattern.
    schema : str or Path
        The path of the schema, a YAML file.
    format : str or None
        csv, tsv or parquet; by default, determined by the suffixes of the files.
    progress : callable or None
        Called after each batch of rows.

    Raises
    ------
    BadSource
        If there are no files.
    Invalid
        If the schema cannot be read as YAML.
    """
    usable, faults = schema_faults(schema)
    found = [Violation(column=column, rule=rule, count=None, first=(_SCHEMA,)) for column, rule in faults]
    files = find_files([source])
    rejects, rows = _Counted(several=len(files) > 1), 0
    for file in files if usable is not None else ():
        rejects.file = file.address
        try:
            assert usable is not None
            declared = Declared(format=format, schema=usable)
            matched, of_file = _matched_file(file, declared)
            found += [_of_file(file, column, rule) for column, rule in of_file]
            declared = replace(declared, schema=matched, unit_column=matched.unit)
            for done in _read(file, declared, rejects, progress, rows):
                rows = done
        except (BadSource, Invalid) as error:
            found.append(_of_file(file, None, str(error)))
    return Checked(rows=rows, violations=(*found, *rejects.violations()))


def _read(
    file: SourceFile, declared: Declared, rejects: Rejects, progress: Progress | None, rows: int
) -> Iterator[int]:
    """Read all rows of a file, and yield after each batch the number of rows read, starting from `rows`."""
    with closing(open_file(file, declared)) as reader:
        for batch in reader.batches(rejects):
            rows += len(batch.places)
            if progress is not None:
                progress("reading", reader.position, reader.size, rows)
            yield rows


def _matched_file(file: SourceFile, declared: Declared) -> tuple[Schema, list[tuple[str | None, str]]]:
    """Read a file's column names, and reduce the schema to the columns that can be checked in this file.

    Return the reduced schema, and the faults of all other columns as (column, rule).
    """
    assert declared.schema is not None
    with opening():
        head = read_schema_head(file, checked_format(file, declared), declared.schema)
    return _matched(declared.schema, head)


def _matched(schema: Schema, head: Head) -> tuple[Schema, list[tuple[str | None, str]]]:
    """Reduce a schema to the columns that can be checked in a file.

    A column can be checked if the file has it, and if its declared kind accepts the type in the file. Return the
    reduced schema, and the faults of all other columns as (column, rule).
    """
    names = [name for name, _ in head]
    faults: list[tuple[str | None, str]] = []
    faults += [
        (name, "two columns of the file have this name; rename one")
        for name in dict.fromkeys(names)
        if names.count(name) > 1
    ]
    # without a header, columns are matched by their order, not by name
    if not schema.text.header and head and head[0][1] is None:
        return schema, faults
    encoder = Encoder(schema)
    dropped = encoder.dropped(names)
    known = {column.name for column in schema.columns}
    absent = [
        column.name for column in schema.columns if column.name not in names and not isinstance(column, Drop | Id)
    ]
    faults += [
        (name, "is not in the file; correct the name in the schema, or remove the column from it") for name in absent
    ]
    if schema.unit is not None and schema.unit not in names:
        faults.append((schema.unit, "is not in the file, but the schema declares it as the id; correct the name"))
    if schema.unlisted == "refuse":
        others = [name for name in dict.fromkeys(names) if name not in known and name not in dropped]
        faults += [
            (name, "is in the file, but not in the schema; list it, or declare `unlisted: drop`") for name in others
        ]
    types = dict(head)
    kept = []
    for column in schema.columns:
        if column.name not in names and not isinstance(column, Drop):
            continue
        kind = types.get(column.name)
        try:
            if kind is not None and not isinstance(column, Drop | Id):
                empty = pa.schema([(column.name, kind)]).empty_table().column(0)
                Encoder(Schema(columns=(column,))).encode({column.name: empty})
        except BadSource as error:
            faults.append((column.name, str(error).partition(": ")[2]))
            continue
        kept.append(column)
    if all(isinstance(column, Drop | Id) for column in kept):
        raise BadSource(
            "the file has none of the columns that the schema encodes; check the names, the delimiter and the header"
        )
    return schema.model_copy(update={"columns": tuple(kept), "unlisted": "drop"}), faults


def _of_file(file: SourceFile, column: str | None, rule: str) -> Violation:
    return Violation(column=column, rule=rule, count=None, first=(file.name,))
