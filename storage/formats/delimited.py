r"""Reader of CSV and TSV text, compressed or not, that detects lines that are not rows.

A file has a header line, unless the user declared that it has none. Each further line is one triplet or one row with a
value per column. A field in double quotes may contain the delimiter and doubled quotes, but no line break. Blank lines
are skipped.

In an unattended ingest, each line is judged by its own bytes alone, so that no line changes how other lines are read.
An unclosed quote then ends at the end of the line, and the next line is a new row. In an attended ingest, an `Extent`
tracks open quotes from line to line. A row with a line break in quotes then counts as one bad row with all its lines.
The file is refused if the end of such a row cannot be determined.

>>> text = b'1,"a,b"\n1,"a\n1\n'
>>> [reason_of(verdict) for verdict in judge_lines(text, n_fields=2, delimiter=",", quote='"').tolist() if verdict]
['does not close a quote; close or drop it', 'has a different number of fields than the header; correct or drop it']
>>> text = b'1,"a\n2,3\nb"\n4,5\n'
>>> judge_lines(text, n_fields=2, delimiter=",", quote='"', extent=Extent()).tolist() == [OPENED, INSIDE, INSIDE, ROW]
True
"""

import csv
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numba import njit
from numpy.typing import NDArray
from pyarrow import csv as arrow_csv

from dpca.errors import BadSource, Invalid
from dpca.schemas.schema import DOUBLE_COLON, Schema, Text
from storage.formats.batch import BATCH_VALUES, Rejects, RowBatch
from storage.formats.declared import Declared
from storage.formats.files import SourceFile
from storage.formats.tables import EncodedTable, TableSchema, column_text, encoded_table, table_schema
from storage.formats.text import NO_LINE, TextFile, TextReader, has_byte_lines

ROW, BLANK, INSIDE, OPENED, _QUOTE, _BEHIND, _WIDTH, _RETURN, _ENCODING = range(9)
NO_ROWS = (BLANK, INSIDE)
"""Verdicts on lines without a new row: blank lines, and further lines of a row with line breaks in quotes."""
_REASONS = {
    OPENED: "has a quote that is not closed on its line; close it, or write the text without line breaks",
    _QUOTE: "does not close a quote; close or drop it",
    _BEHIND: "has text after a closing quote; double each quote inside quotes",
    _WIDTH: "has a different number of fields than the header; correct or drop it",
    _RETURN: "holds a carriage return; end lines in LF or CRLF",
    _ENCODING: "is not {}, or is too long for a row; convert the file",
}
_ALONE = re.compile(rb"\r(?!\n)")
_NEWLINE, _CARRIAGE, _SPACE, _TAB = (ord(sign) for sign in "\n\r \t")


@dataclass(slots=True, kw_only=True)
class Extent:
    """State of the quotes after some lines of text: whether a quote is still open, and where it was opened.

    Attributes
    ----------
    is_open : bool, whether a quoted field is open
    is_lost : bool, whether the end of the row with this quote cannot be determined
    line, character : int, where the quote was opened, each counted from 1
    field : int, the number of the field with the quote in the row, counted from 0
    """

    is_open: bool = False
    is_lost: bool = False
    line: int = 0
    character: int = 0
    field: int = 0


def judge_lines(
    text: bytes,
    *,
    n_fields: int,
    delimiter: str,
    quote: str | None,
    extent: Extent | None = None,
    first_line: int = 1,
) -> NDArray[np.uint8]:
    """Return a verdict on each line.

    A verdict is `ROW`, one of `NO_ROWS`, or a fault code, which `reason_of` explains.

    Parameters
    ----------
    text : bytes
        Complete lines, including the last newline. A line that is not UTF-8 gets a fault code.
    n_fields : int
        Number of fields that a row must have.
    delimiter, quote : str, quote may be None
    extent : Extent or None
        State of the quotes after the preceding text, which is updated in place. If its attribute ``is_lost`` becomes
        true, the verdicts have no meaning. Without an extent, each line is judged alone.
    first_line : int
        Number of the first line of `text` in the file.

    Guarantees
    ----------
    Without an extent, the verdict on a line depends on this line alone. With an extent, no line inside a quoted field
    gets the verdict `ROW`, under either of two rules for the end of a quoted field. By the first rule, it ends at the
    next quote that is not doubled. By the second rule, it ends at the next quote that is not doubled and is followed by
    a delimiter or the end of the line.
    """
    octets = np.frombuffer(text, dtype=np.uint8)
    verdicts = np.empty(text.count(b"\n"), dtype=np.uint8)
    signs, before = (ord(delimiter), -1 if quote is None else ord(quote)), Extent() if extent is None else extent
    is_open, is_lost, (line, at, field) = _judge(
        octets, verdicts, n_fields, signs, extent is not None, before.is_open, before.field
    )
    if extent is not None:
        extent.is_open, extent.is_lost = bool(is_open), bool(is_lost)
        if line >= 0:
            start = text.rfind(b"\n", 0, at) + 1
            extent.line, extent.field = first_line + int(line), int(field)
            extent.character = len(text[start:at].decode(errors="replace")) + 1
        if is_lost:
            return verdicts
    alone = b"\r" in text and _ALONE.search(text) is not None
    if alone or not (text.isascii() or _is_text(text)):
        for at, line in enumerate(text.split(b"\n")[:-1]):
            if verdicts[at] == INSIDE:
                continue
            if _ALONE.search(line + b"\n") is not None:
                verdicts[at] = _RETURN
            if not _is_text(line):
                verdicts[at] = _ENCODING
    return verdicts


def reason_of(verdict: int, *, encoding: str = "utf-8") -> str:
    """Return the reason why a line is not a row; ``encoding`` is the original encoding of the text."""
    return _REASONS[verdict].format(encoding.upper())


def _is_text(line: bytes) -> bool:
    try:
        line.decode()
    except UnicodeDecodeError:
        return False
    return True


@njit(cache=True, nogil=True, inline="always")
def _is_blank(byte):  # type: ignore[no-untyped-def]
    return byte in (_SPACE, _TAB, _CARRIAGE)


@njit(cache=True, nogil=True)
def _ends_field(text, at, delimiter):  # type: ignore[no-untyped-def]
    """Return whether only blanks separate position `at` from a delimiter or the end of the line."""
    while _is_blank(text[at]) and text[at] != delimiter:
        at += 1
    return text[at] == delimiter or text[at] == _NEWLINE


@njit(cache=True, nogil=True)
def _judge(text, verdicts, n_fields, signs, follows, is_open, field):  # type: ignore[no-untyped-def]
    """Write the verdict of each line; return the state of the quotes at the end of the text.

    The state is (whether a quote is open, whether the end of its row is unknown, (line, byte and field of the quote)).

    Two rules for quotes are applied in parallel. The plain rule follows Arrow's parser: a quote opens a field only as
    its first byte, and the next quote that is not doubled closes the field. By the strict rule, blanks may precede the
    opening quote, and only a quote at the end of a field closes the field. The end of a row is unknown if the two rules
    differ at the end of a line, or if a row with line breaks has text after a closing quote.
    """
    delimiter, quote = signs
    at, line = 0, 0
    opened = (-1, -1, field)
    while at < len(text):
        start, fields, quotes = at, opened[2] + 1 if is_open else 1, 0
        inside, plain, strict = is_open, is_open, is_open
        at_start, blank, behind, broken, loose = True, True, False, False, False
        # true if the current byte is the second quote of a doubled quote, by the plain and by the strict rule
        second_plain, second_strict = False, False
        while text[at] != _NEWLINE:
            byte = text[at]
            if byte == quote:
                quotes += 1
                is_doubled = text[at + 1] == quote
                if second_plain:
                    second_plain = False
                elif plain:
                    second_plain = is_doubled
                    plain = is_doubled
                    behind = not is_doubled
                elif at_start:
                    plain = True
                    opened = (line, at, fields - 1)
                elif behind:
                    broken = True
                if second_strict:
                    second_strict = False
                elif strict:
                    second_strict = is_doubled
                    if not is_doubled and _ends_field(text, at + 1, delimiter):
                        strict = False
                    elif not is_doubled:
                        loose = True
                elif blank:
                    strict = True
                    opened = (line, at, fields - 1)
                at_start, blank = False, False
            elif byte == delimiter:
                if not plain:
                    fields += 1
                    at_start, behind = True, False
                blank = not strict
            else:
                if not _is_blank(byte):
                    broken = broken or (behind and not plain)
                    blank = False
                at_start = False
            at += 1
        length = at - start
        if follows and (plain != strict or ((loose or broken) and (plain or inside))):
            return True, True, opened
        is_open = follows and plain
        if inside:
            verdicts[line] = INSIDE
        elif length == 0 or (length == 1 and text[start] == _CARRIAGE):
            verdicts[line] = BLANK
        elif is_open:
            verdicts[line] = OPENED
        elif plain or quotes % 2 == 1:
            verdicts[line] = _QUOTE
        elif broken:
            verdicts[line] = _BEHIND
        elif fields != n_fields:
            verdicts[line] = _WIDTH
        else:
            verdicts[line] = ROW
        at += 1
        line += 1
    return is_open, False, opened


DELIMITERS = {"csv": ",", "tsv": "\t"}
LONGEST = 1 << 24  # largest number of bytes in a line
_UNIT = "\x1f"  # the ASCII unit separator replaces the delimiter ``::`` in the text
_GUESSED = (",", ";", "\t", "|", DOUBLE_COLON)
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")


class DelimitedReader(TextReader):
    """Reader of a delimited text file, which implements `storage.formats.batch.Reader`.

    Parameters
    ----------
    file : SourceFile
        The file.
    declared : Declared
        The user's declarations. The format is "csv" or "tsv". The number of features must follow from declarations.
    """

    n_rows: int | None = None

    def __init__(self, file: SourceFile, *, declared: Declared) -> None:
        format = declared.format or "csv"  # noqa: A001
        self.dtype: np.dtype[Any] = np.dtype(np.float64)
        written = Text() if declared.schema is None else declared.schema.text
        self._text = TextFile(file, encoding=written.encoding)
        self._pieces = self._text.pieces(longest=LONGEST)
        self._delimiter, self._quote = written.delimiter or declared.delimiter or DELIMITERS[format], written.quote
        if self._delimiter == DOUBLE_COLON:  # parsers need a delimiter of one character, so ``::`` is replaced
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

    def batches(self, rejects: Rejects) -> Iterator[RowBatch]:
        """Yield the rows of the file in order.

        Raises
        ------
        BadSource
            If a compressed file is cut short or corrupt, or if the end of a quoted field is unknown.
        """
        step = max(1, BATCH_VALUES // max(1, len(self._header), 0 if self.scattered else self.n_features))
        for table, places, bad in self._tables(self._schema.read, rejects):
            # at least one batch is yielded, even if it is empty, so that progress is reported
            for at in range(0, max(table.num_rows, 1), step):
                some = slice(at, at + step)
                yield self._schema.batch(table[some], places=places[some], place="line", rejects=rejects, bad=bad[some])

    def items(self, rejects: Rejects) -> Iterator[pa.Array]:
        """Yield arrays of the column ids of triplets, as text; several arrays may contain the same id."""
        if self._schema.triplet is not None:
            name = self._schema.triplet[1]
            for table, _, _ in self._tables([name], rejects):
                yield pc.unique(column_text(table.column(name)))

    def _tables(
        self, wanted: list[str], rejects: Rejects
    ) -> Iterator[tuple[pa.RecordBatch, NDArray[np.int64], NDArray[np.bool_]]]:
        text, extent = self._rest, Extent() if self._follows_quotes else None
        # if quotes are tracked over lines, a line must not be skipped, because it may open or close a quote
        self._text.skips_long_lines = rejects.is_tolerant and extent is None
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
        """Split complete lines of text into fields, which are still text.

        Return (rows, the line number of each row, a mask of the bad rows). A line that is not a row is passed to
        `rejects`, and becomes a row of empty fields.
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
                message = self._opened(lines[line]) if verdicts[line] == OPENED and not rejects.is_tolerant else None
                rejects.reject(place="line", number=first_line + line, reason=reason, quoting=message)
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
            raise BadSource(f"the text near line {first_line} is not delimited text; convert the file") from None
        assert table.num_rows == len(kept), "Arrow splits lines as `judge_lines` does"
        return table.combine_chunks().to_batches()[0], places, bad

    def _judge(self, text: bytes, first_line: int, extent: Extent | None) -> NDArray[np.uint8]:
        """Return a verdict on each complete line of the text; see `judge_lines`.

        Raises
        ------
        BadSource
            If the end of a row with quotes cannot be determined.
        """
        if extent is not None and self._text.encoding != "utf-8":
            at = b"\n".join((b"", text)).find(b"\n".join((b"", NO_LINE, b"")))
            if at >= 0:
                line = first_line + text.count(b"\n", 0, at)
                raise BadSource(
                    f"line {line} is not {self._text.encoding.upper()}, so its quotes are unknown; convert the file"
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
            f"line {extent.line}: {self._quote_at(extent)} is not closed before the end of a field, so the end of its "
            "record is unknown; close it, and double each quote inside quotes"
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
                f"the first line is one field, because it has {other!r} instead of the delimiter; give {flag}, or "
                "declare the delimiter in a schema: `dpca schema draft FILE`"
            )

    def _read_header(self, declared: Declared) -> tuple[list[str], bytes, int]:
        """Return the column names, the text that was read after the header, and the number of the text's first line.

        Without a header, that text begins with line 1.
        """
        self._text.skips_long_lines = declared.is_unattended
        has_header = declared.header is not False if declared.schema is None else declared.schema.text.header
        self._text.reads_returns = has_header or not declared.is_unattended
        text = bytes(next(self._pieces, b""))
        if declared.is_unattended and (columns := _declared_columns(declared)) is not None:
            return columns, text, 1
        header, _, rest = text.partition(b"\n")
        if not header.strip():
            raise BadSource("the first line is empty; it must contain the column names")
        extent = Extent()
        judge_lines(header + b"\n", n_fields=1, delimiter=self._delimiter, quote=self._quote, extent=extent)
        if extent.is_open or extent.is_lost:
            raise BadSource(
                f"line 1: the quote at character {extent.character} is not closed on its line, so the columns are "
                "unknown; close it, and use column names without line breaks"
            )
        try:
            names = split_line(header.decode(), delimiter=self._delimiter, quote=self._quote)
        except (UnicodeDecodeError, csv.Error):
            raise BadSource("the first line has no column names in UTF-8; convert the file") from None
        names = [name.strip() for name in names]
        if len(names) == 1 and declared.schema is None and declared.width != 1:
            self._refuse_other_delimiter(names[0])
        if declared.schema is not None:
            if declared.schema.text.header:
                return names, rest, 2
            return _listed(len(names), declared.schema), text, 1
        if declared.header is False:
            return _numbered(len(names), declared), text, 1
        if declared.header is None and resembles_row(names, declared):
            raise BadSource(
                "the first line has numbers instead of column names; give --no-header if it is a row, or --header if "
                "these are the names"
            )
        return names, rest, 2


def guess_delimiter(line: str) -> str:
    """Return the usual delimiter that occurs most often in a line of column names."""
    return max(_GUESSED, key=line.count)


def split_line(line: str, *, delimiter: str, quote: str | None) -> list[str]:
    """Split one line of text into fields at the delimiter.

    Raises
    ------
    csv.Error
        If the line cannot be split.
    """
    if delimiter == DOUBLE_COLON:
        line, delimiter = line.replace(delimiter, _UNIT), _UNIT
    lines = [line.rstrip("\r")]
    if quote is None:
        return next(csv.reader(lines, delimiter=delimiter, quotechar=None, quoting=csv.QUOTE_NONE), [])
    return next(csv.reader(lines, delimiter=delimiter, quotechar=quote), [])


def _declared_columns(declared: Declared) -> list[str] | None:
    """Return the column names of a text without a header, from declarations alone; None if there is a header.

    This is for unattended ingests, where no row may determine the columns.

    Raises
    ------
    Invalid
        If only the first row could determine the number of columns. Also if in the declared encoding, one bad line
        could hide the line breaks after it.
    """
    if declared.schema is not None:
        if not has_byte_lines(declared.schema.text.encoding):
            raise Invalid(
                f"one bad line of {declared.schema.text.encoding} text may hide the ends of all other lines, so an "
                "unattended run does not read it; save it as UTF-8"
            )
        return None if declared.schema.text.header else [column.name for column in declared.schema.columns]
    if declared.header is not False:
        return None
    if declared.columns_named or declared.width is None:
        raise Invalid(
            "triplets without a header declare their number of columns only in the first row, so an unattended run "
            "does not read them; write a header line"
        )
    return _numbered(declared.width + (declared.unit_column is not None), declared)


def _listed(count: int, schema: Schema) -> list[str]:
    """Return the schema's column names for a table without a header, which must have `count` columns."""
    if count != len(schema.columns):
        raise BadSource(
            f"the first line has {count} fields, but the schema lists {len(schema.columns)} columns of a table "
            "without a header; list every column in order, use kind: drop for unused ones, and check the delimiter"
        )
    return [column.name for column in schema.columns]


def resembles_row(names: list[str], declared: Declared) -> bool:
    """Return whether a first line, split into `names`, may be a row of values instead of column names.

    It may be a row if a field is a number, and the declared columns or feature names do not match its fields.
    """
    known = set(names)
    if declared.unit_column in known or set(declared.columns) <= known:
        return False
    return (declared.names is None or set(declared.names) != known) and any(map(_NUMBER.fullmatch, names))


def _numbered(count: int, declared: Declared) -> list[str]:
    """Return names for the columns of a table without a header: their numbers, as text.

    If feature names were declared, the columns of features get these names instead.
    """
    numbers = [str(column) for column in range(count)]
    if declared.names is None or declared.columns_named:
        return numbers
    free = iter(declared.names)
    return [number if number == declared.unit_column else next(free, number) for number in numbers]
