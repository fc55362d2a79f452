"""Read CSV and TSV, plain or packed: a header line unless there is none, then triplets or wide rows, one row a line.

A field in double quotes may hold the delimiter, but no line break. Blank lines hold no row. In an unattended ingest
each line is a row by its own bytes (`storage.formats.split_lines`), so that no line changes how another is read.
Elsewhere a record with a line break in quotes is one bad row, and a file whose records have no certain end is refused.
"""

import csv
import re
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyarrow import csv as arrow_csv

from storage.errors import BadSource, Invalid
from storage.formats.batch import BATCH_VALUES, RowBatch
from storage.formats.declared import Declared
from storage.formats.encoded_tables import EncodedTable, encoded_table
from storage.formats.files import SourceFile
from storage.formats.rejects import Rejects
from storage.formats.split_lines import NO_ROWS, OPENED, ROW, Extent, judge_lines, reason_of
from storage.formats.tables import TableSchema, column_text, table_schema
from storage.formats.text import NO_LINE, TextFile, has_byte_lines
from storage.schemas.schema import DOUBLE_COLON, Schema, Text

DELIMITERS = {"csv": ",", "tsv": "\t"}
LONGEST = 1 << 24  # bytes of a line
_UNIT = "\x1f"  # the sign of ASCII between units, in place of a delimiter of two signs
_GUESSED = (",", ";", "\t", "|", DOUBLE_COLON)
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")


class DelimitedReader:
    """A `storage.formats.batch.Reader` of a delimited text file.

    Parameters
    ----------
    file : SourceFile
        The file.
    declared : Declared
        The user's declarations; the format is "csv" or "tsv", and the width is never taken from the file alone.
    """

    n_rows: int | None = None

    def __init__(self, file: SourceFile, *, declared: Declared) -> None:
        format = declared.format or "csv"  # noqa: A001
        self.dtype: np.dtype[Any] = np.dtype(np.float64)
        written = Text() if declared.schema is None else declared.schema.text
        self._text = TextFile(file, encoding=written.encoding)
        self._pieces = self._text.pieces(longest=LONGEST)
        self._delimiter, self._quote = written.delimiter or declared.delimiter or DELIMITERS[format], written.quote
        if self._delimiter == DOUBLE_COLON:  # one sign, as parsers need
            self._pieces = (memoryview(bytes(piece).replace(b"::", _UNIT.encode())) for piece in self._pieces)
            self._delimiter = _UNIT
        self._follows_quotes = not declared.is_unattended and self._quote is not None
        self.size = self._text.size
        self.format = f"{format}{self._text.packing}"
        try:
            self._header, self._rest, self._text.line = self._read_header(declared)
            self._schema: TableSchema | EncodedTable = (
                table_schema(self._header, declared, declares_width=False)
                if declared.schema is None
                else encoded_table(self._header, declared)
            )
        except BaseException:
            self.close()
            raise
        self.n_features = self._schema.n_features
        self.names: Sequence[str] | None = declared.names if declared.header is False else self._schema.names
        self.found_names = self._schema.found
        self.unit_type = pa.string()
        self.id_types = dict.fromkeys(("unit", "row"), pa.string())
        self.scattered = self.repeats = self._schema.triplet is not None

    @property
    def position(self) -> int:
        """Bytes of the file read so far."""
        return self._text.position

    def close(self) -> None:
        """Close the file."""
        self._text.close()

    def batches(self, rejects: Rejects) -> Iterator[RowBatch]:
        """Yield the rows of each piece of text.

        Raises
        ------
        BadSource
            Where a packed stream is cut short or corrupt, or a quote is open whose end is unknown.
        """
        step = max(1, BATCH_VALUES // max(1, len(self._header), 0 if self.scattered else self.n_features))
        for table, places, bad in self._tables(self._schema.read, rejects):
            for at in range(0, max(table.num_rows, 1), step):  # a piece without a row is progress too
                some = slice(at, at + step)
                yield self._schema.batch(table[some], places=places[some], place="line", rejects=rejects, bad=bad[some])

    def items(self, rejects: Rejects) -> Iterator[pa.Array]:
        """Yield the column ids of triplets, each once a piece, as text."""
        if self._schema.triplet is not None:
            name = self._schema.triplet[1]
            for table, _, _ in self._tables([name], rejects):
                yield pc.unique(column_text(table.column(name)))

    def _tables(
        self, wanted: list[str], rejects: Rejects
    ) -> Iterator[tuple[pa.RecordBatch, NDArray[np.int64], NDArray[np.bool_]]]:
        text, extent = self._rest, Extent() if self._follows_quotes else None
        self._text.skips_long_lines = rejects.is_tolerant and extent is None  # else its quotes would be skipped too
        while True:
            if text:
                yield self._parse(text, self._text.line, wanted, rejects, extent)
            self._text.line += text.count(b"\n")
            piece = next(self._pieces, None)
            if piece is None:
                break
            text = bytes(piece)
        if extent is not None and extent.is_open:
            raise self._lost(extent)

    def _parse(
        self, text: bytes, first_line: int, wanted: list[str], rejects: Rejects, extent: Extent | None
    ) -> tuple[pa.RecordBatch, NDArray[np.int64], NDArray[np.bool_]]:
        """Split whole lines into fields, still as text: (rows, the line number of each, whether it is bad).

        A line that is no row is passed to `rejects`, and is a row of empty fields.
        """
        verdicts = self._judge(text, first_line, extent)
        kept = np.flatnonzero(~np.isin(verdicts, NO_ROWS))
        places, bad = kept + first_line, verdicts[kept] != ROW
        if not len(kept):
            return pa.record_batch({name: pa.array([], pa.string()) for name in wanted}), places, bad
        if bad.any() or len(kept) < len(verdicts):
            empty, lines = self._delimiter.encode() * (len(self._header) - 1), text.split(b"\n")
            for line in kept[bad].tolist():
                reason = reason_of(int(verdicts[line]), encoding=self._text.encoding)
                said = self._opened(lines[line]) if verdicts[line] == OPENED and not rejects.is_tolerant else None
                rejects.reject(place="line", number=first_line + line, reason=reason, quoting=said)
            text = b"".join((empty if verdicts[line] else lines[line]) + b"\n" for line in kept.tolist())
        try:
            table = arrow_csv.read_csv(
                pa.py_buffer(text),
                read_options=arrow_csv.ReadOptions(
                    use_threads=False, column_names=self._header, block_size=max(len(text) + 1, 1 << 16)
                ),
                parse_options=arrow_csv.ParseOptions(
                    delimiter=self._delimiter, quote_char=self._quote or False, ignore_empty_lines=False
                ),
                convert_options=arrow_csv.ConvertOptions(
                    include_columns=wanted,
                    column_types={name: pa.string() for name in wanted},
                    strings_can_be_null=False,
                ),
            )
        except (pa.ArrowInvalid, pa.ArrowKeyError):
            raise BadSource(f"the text near line {first_line} is no delimited text; convert it") from None
        assert table.num_rows == len(kept), "Arrow splits lines as `judge_lines` does"
        return table.combine_chunks().to_batches()[0], places, bad

    def _judge(self, text: bytes, first_line: int, extent: Extent | None) -> NDArray[np.uint8]:
        """Judge whole lines.

        Raises
        ------
        BadSource
            Where the end of a record cannot be known.
        """
        if extent is not None and self._text.encoding != "utf-8":
            at = b"\n".join((b"", text)).find(b"\n".join((b"", NO_LINE, b"")))
            if at >= 0:
                line = first_line + text.count(b"\n", 0, at)
                raise BadSource(
                    f"line {line} is not {self._text.encoding.upper()}, so which quotes it opens or closes cannot be "
                    "known; convert the file"
                )
        verdicts = judge_lines(
            text,
            n_fields=len(self._header),
            delimiter=self._delimiter,
            quote=self._quote,
            extent=extent,
            first_line=first_line,
        )
        if extent is not None and extent.is_lost:
            raise self._lost(extent)
        return verdicts

    def _lost(self, extent: Extent) -> BadSource:
        return BadSource(
            f"line {extent.line}: {self._quote_at(extent)} is not closed before the end of a field, so where its "
            "record ends cannot be known; close it, and double each quote inside quotes"
        )

    def _opened(self, line: bytes) -> str:
        extent = Extent()
        judge_lines(line + b"\n", n_fields=1, delimiter=self._delimiter, quote=self._quote, extent=extent)
        return f"{self._quote_at(extent)} is not closed on its line; close it, or write the text without line breaks"

    def _quote_at(self, extent: Extent) -> str:
        column = f" (column {self._header[extent.field]!r})" if extent.field < len(self._header) else ""
        return f"the quote at character {extent.character}{column}"

    def _refuse_other_delimiter(self, line: str) -> None:
        if line.count(other := guess_delimiter(line)):
            flag = "--format tsv" if other == "\t" else f"--delimiter '{other}'"
            raise BadSource(
                f"the first line is one field, as it holds {other!r} and not the delimiter; give {flag}, or state it "
                "in a schema: `dpca schema draft FILE`"
            )

    def _read_header(self, declared: Declared) -> tuple[list[str], bytes, int]:
        """Return the names of the columns, the text of the first rows, and the number of its first line."""
        self._text.skips_long_lines = declared.is_unattended
        has_header = declared.header is not False if declared.schema is None else declared.schema.text.header
        self._text.reads_returns = has_header or not declared.is_unattended
        text = bytes(next(self._pieces, b""))
        if declared.is_unattended and (columns := _declared_columns(declared)) is not None:
            return columns, text, 1
        header, _, rest = text.partition(b"\n")
        if not header.strip():
            raise BadSource("the first line is empty; it must name the columns")
        extent = Extent()
        judge_lines(header + b"\n", n_fields=1, delimiter=self._delimiter, quote=self._quote, extent=extent)
        if extent.is_open or extent.is_lost:
            raise BadSource(
                f"line 1: the quote at character {extent.character} is not closed on its line, so the columns are not "
                "known; close it, and name columns without line breaks"
            )
        try:
            names = split_line(header.decode(), delimiter=self._delimiter, quote=self._quote)
        except (UnicodeDecodeError, csv.Error):
            raise BadSource("the first line does not name columns in UTF-8; convert the file") from None
        names = [name.strip() for name in names]
        if len(names) == 1 and declared.schema is None and declared.width != 1:
            self._refuse_other_delimiter(names[0])
        if declared.schema is not None:
            if declared.schema.text.header:
                return names, rest, 2
            return _listed(len(names), declared.schema), text, 1
        if declared.header is False:
            return _numbered(len(names), declared), text, 1
        if declared.header is None and looks_like_a_row(names, declared):
            raise BadSource(
                "the first line holds numbers where it should name the columns; give --no-header if it is a row, or "
                "--header if these are the names"
            )
        return names, rest, 2


def guess_delimiter(line: str) -> str:
    """Return the delimiter that a line of names holds most often."""
    return max(_GUESSED, key=line.count)


def split_line(line: str, *, delimiter: str, quote: str | None) -> list[str]:
    """Split one line of text into its fields.

    Raises
    ------
    csv.Error
        If it cannot be split.
    """
    if delimiter == DOUBLE_COLON:
        line, delimiter = line.replace(delimiter, _UNIT), _UNIT
    lines = [line.rstrip("\r")]
    if quote is None:
        return next(csv.reader(lines, delimiter=delimiter, quotechar=None, quoting=csv.QUOTE_NONE), [])
    return next(csv.reader(lines, delimiter=delimiter, quotechar=quote), [])


def _declared_columns(declared: Declared) -> list[str] | None:
    """Return the names of the columns of a text without a header, from declarations alone; None where it has a header.

    Raises
    ------
    Invalid
        If the number of columns, or the ends of lines, would follow from the first row alone.
    """
    if declared.schema is not None:
        if not has_byte_lines(declared.schema.text.encoding):
            raise Invalid(
                f"one bad line of {declared.schema.text.encoding} text may hide the ends of all others, so it is not "
                "read unattended; save it as UTF-8"
            )
        return None if declared.schema.text.header else [column.name for column in declared.schema.columns]
    if declared.header is not False:
        return None
    if declared.columns_named or declared.width is None:
        raise Invalid(
            "triplets without a header declare their number of columns in the first row alone, so they are not read "
            "unattended; write a header line"
        )
    return _numbered(declared.width + (declared.unit_column is not None), declared)


def _listed(count: int, schema: Schema) -> list[str]:
    """Name the columns of a table without a header as its schema lists them."""
    if count != len(schema.columns):
        raise BadSource(
            f"the first line has {count} fields, and the schema lists {len(schema.columns)} columns of a table without "
            "a header; list every column in order, with kind: drop what is not wanted, and check the delimiter"
        )
    return [column.name for column in schema.columns]


def looks_like_a_row(names: list[str], declared: Declared) -> bool:
    """Return whether a first line holds a number, and no declaration shows that it names columns."""
    known = set(names)
    if declared.unit_column in known or set(declared.columns) <= known:
        return False
    return (declared.names is None or set(declared.names) != known) and any(map(_NUMBER.fullmatch, names))


def _numbered(count: int, declared: Declared) -> list[str]:
    """Name the columns of a table without a header: by number, those of values by the declared names if there are."""
    numbers = [str(column) for column in range(count)]
    if declared.names is None or declared.columns_named:
        return numbers
    free = iter(declared.names)
    return [number if number == declared.unit_column else next(free, number) for number in numbers]
