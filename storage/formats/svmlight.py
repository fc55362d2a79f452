r"""Reader of svmlight files, compressed or not, with a parser in Numba.

A line is ``LABEL COLUMN:VALUE ... # comment``. The label must be a number, and is ignored. A ``qid:N`` directly after
the label is ignored too. Columns are numbered from 1. Blank lines and lines with only a comment are skipped. A line
with only a label is an empty row. Lines may end in LF or CRLF. Columns may come in any order and repeatedly, because
rows of all formats are later converted to canonical form.

A file is read in pieces, so it need not fit into memory. A file does not declare its number of columns. It is never
inferred from the rows, so the user must declare `n_features`.

>>> parser = SvmlightParser(n_features=3, capacity=64)
>>> rows = parser.parse(memoryview(b"+1 3:0.5 1:2\n-1\n"), first_line=1)
>>> rows.indices.tolist(), rows.values.tolist(), rows.row_ptr.tolist(), rows.lines.tolist()
([2, 0], [0.5, 2.0], [0, 2, 2], [1, 2])

"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from dpca.errors import BadSource
from storage.formats.batch import Rejects, RowBatch
from storage.formats.decimals import DECIDED, EIGHT, MALFORMED, leading_digits, load_eight, scan_decimal
from storage.formats.declared import Declared
from storage.formats.files import SourceFile
from storage.formats.text import PIECE, TextFile, TextReader

_NEWLINE, _SPACE, _HASH, _COLON, _ZERO, _NINE = (ord(c) for c in "\n #:09")
_BLANKS = b" \t\r\v\f"
_QID = b"qid:"
_COLUMN_CAP = 1 << 40
_QUOTED = 40  # largest number of characters of a bad token that a message quotes


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ParsedRows:
    """Rows parsed from a piece of text, in file order; the next call of `parse` overwrites these arrays.

    Attributes
    ----------
    values : float64 array of shape (nnz,)
    indices : int64 array of shape (nnz,), columns from 0
    row_ptr : int64 array of shape (n_rows + 1,), where each row begins in `values`
    lines : int64 array of shape (n_rows,), the line number of each row
    n_lines : int, the number of lines read, including lines without a row
    is_canonical : bool, whether the columns of every row increase and no value is 0
    """

    values: NDArray[np.float64]
    indices: NDArray[np.int64]
    row_ptr: NDArray[np.int64]
    lines: NDArray[np.int64]
    n_lines: int
    is_canonical: bool


class MalformedLine(ValueError):
    """Error for one line that is not valid svmlight text.

    Attributes
    ----------
    line : int, the number of the line in the file
    reason : str, the broken rule, with the offending token in quotes
    rule : str, the broken rule, with ... in place of the token
    start, stop : int, where the line begins and ends in the text, in bytes, including the newline
    """

    def __init__(self, line: int, *, reason: str, rule: str, start: int, stop: int) -> None:
        super().__init__(line, reason)
        self.line = line
        self.reason = reason
        self.rule = rule
        self.start = start
        self.stop = stop


class SvmlightParser:
    """Parser of svmlight text in pieces of at most `capacity` bytes, with reused buffers.

    Parameters
    ----------
    n_features : int
        Declared number of columns.
    capacity : int
        Largest number of bytes in a piece of text.
    """

    def __init__(self, *, n_features: int, capacity: int) -> None:
        self.n_features = n_features
        self.capacity = capacity
        # a value such as " 1:1" takes at least 4 bytes of text
        self._values = np.empty(capacity // 4 + 1, dtype=np.float64)
        self._indices = np.empty(capacity // 4 + 1, dtype=np.int64)
        # a row such as "1" takes at least 2 bytes of text, with its newline
        self._row_ptr = np.zeros(capacity // 2 + 2, dtype=np.int64)
        self._lines = np.empty(capacity // 2 + 1, dtype=np.int64)
        # for each number that `float` must convert: index in the values, first byte, and end in the text
        self._undecided = np.empty((capacity // 4 + 1, 3), dtype=np.int64)

    def parse(self, text: memoryview, *, first_line: int) -> ParsedRows:
        """Parse a text of complete lines, including the last newline.

        Raises
        ------
        ValueError
            If the text is longer than `capacity` or does not end in a newline.
        MalformedLine
            If a line breaks a rule of the format, or contains a column outside 1..n_features or a value that is not a
            finite number. The error is for the first such line.

        Guarantees
        ----------
        Each value has the same bits as ``float`` of its text.
        """
        if len(text) > self.capacity or not text or text[-1] != _NEWLINE:
            raise ValueError(
                f"{len(text)} bytes are not complete lines of at most {self.capacity} bytes; cut the text at a newline"
            )
        n_rows, n_lines, n_undecided, bad, is_canonical = _parse_lines(
            np.frombuffer(text, dtype=np.uint8),
            self.n_features,
            self._values,
            self._indices,
            self._row_ptr,
            self._lines,
            self._undecided,
        )
        stop = int(bad) if bad >= 0 else len(text)
        for position, start, end in self._undecided[:n_undecided].tolist():
            value = float(bytes(text[start:end]))
            if not math.isfinite(value):
                stop = min(stop, start)
                break
            self._values[position] = value
            is_canonical = is_canonical and value != 0.0
        if stop < len(text):
            raise _malformed(text, stop, first_line=first_line, n_features=self.n_features)
        nnz = int(self._row_ptr[n_rows])
        self._lines[:n_rows] += first_line
        return ParsedRows(
            values=self._values[:nnz],
            indices=self._indices[:nnz],
            row_ptr=self._row_ptr[: n_rows + 1],
            lines=self._lines[:n_rows],
            n_lines=int(n_lines),
            is_canonical=bool(is_canonical),
        )


@njit(cache=True, nogil=True, inline="always")
def _is_blank(byte):  # type: ignore[no-untyped-def]
    return byte == 32 or byte == 9 or 11 <= byte <= 13


@njit(cache=True, nogil=True, inline="always")
def _ends_token(byte):  # type: ignore[no-untyped-def]
    return byte == 32 or 9 <= byte <= 13 or byte == _HASH


@njit(cache=True, nogil=True, error_model="numpy")
def _scan_column(text, start):  # type: ignore[no-untyped-def]
    """Read ``digits:`` at `start`.

    Return (column, position of the value). The column is -1 if the text has another form.
    """
    at, column = start, np.uint64(0)
    while True:
        digit = np.uint64(text[at]) - np.uint64(_ZERO)
        if digit > np.uint64(9):
            break
        column = min(column * np.uint64(10) + digit, np.uint64(_COLUMN_CAP))
        at += 1
    if at == start or text[at] != _COLON:
        return -1, at
    return np.int64(column), at + 1


@njit(cache=True, nogil=True, error_model="numpy")
def _skip_qid(text, start):  # type: ignore[no-untyped-def]
    """Return the position after ``qid:N`` and blanks, or `start` if there is no ``qid:N`` at `start`."""
    at = start
    for letter in _QID:
        if text[at] != letter:
            return start
        at += 1
    digits = at
    while _ZERO <= text[at] <= _NINE:
        at += 1
    if at == digits or not _ends_token(text[at]):
        return start
    while _is_blank(text[at]):
        at += 1
    return at


@njit(cache=True, nogil=True, error_model="numpy")
def _parse_lines(text, n_features, values, indices, row_ptr, lines, undecided):  # type: ignore[no-untyped-def]
    """Parse complete lines, and write their rows into the buffers.

    Return (number of rows, number of lines, number of values that `float` must parse, position of the first bad token
    or -1, whether all rows are canonical).
    """
    at, end = np.int64(0), len(text)
    n_rows, n_lines, n_values, n_undecided, is_canonical = 0, 0, 0, 0, True
    row_ptr[0] = 0
    while at < end:
        while _is_blank(text[at]):
            at += 1
        if not _ends_token(text[at]):
            token = at
            verdict, value, at = scan_decimal(text, at)
            if verdict == MALFORMED or not _ends_token(text[at]):
                return n_rows, n_lines, n_undecided, token, False
            while _is_blank(text[at]):
                at += 1
            at = _skip_qid(text, at)
            previous = np.int64(0)
            while True:
                token, column = at, np.int64(-1)
                if at + EIGHT <= end:
                    word = load_eight(text, at)
                    number, bits = leading_digits(word)
                    rest = word >> (bits & np.uint64(63))
                    digit = ((rest >> np.uint64(8)) & np.uint64(0xFF)) - np.uint64(_ZERO)
                    if (
                        rest & np.uint64(0xFF00FF) == np.uint64(_COLON | _SPACE << 16)
                        and digit <= np.uint64(9)
                        and number - np.uint64(1) < np.uint64(n_features)
                    ):  # fast path for a value of one digit, such as "123:1 " in data of indicators
                        column = np.int64(number)
                        is_canonical &= (column > previous) & (digit > np.uint64(0))
                        previous = column
                        values[n_values] = np.float64(np.int64(digit))
                        indices[n_values] = column - 1
                        n_values += 1
                        at += np.int64(bits >> np.uint64(3)) + 3
                        continue
                    if bits > np.uint64(0) and rest & np.uint64(0xFF) == np.uint64(_COLON):
                        column, at = np.int64(number), at + np.int64(bits >> np.uint64(3)) + 1
                if column < 0:
                    while _is_blank(text[at]):
                        at += 1
                    if _ends_token(text[at]):
                        break
                    token = at
                    column, at = _scan_column(text, at)
                if column < 1 or column > n_features:
                    return n_rows, n_lines, n_undecided, token, False
                start = at
                digit = np.uint64(text[at]) - np.uint64(_ZERO)
                # fast path for a value of one digit, such as the 1 of an indicator
                if digit <= np.uint64(9) and _ends_token(text[at + 1]):
                    value, at = np.float64(np.int64(digit)), at + 1
                else:
                    verdict, value, at = scan_decimal(text, at)
                    if verdict == MALFORMED or not _ends_token(text[at]):
                        return n_rows, n_lines, n_undecided, token, False
                    if verdict != DECIDED:
                        undecided[n_undecided, 0] = n_values
                        undecided[n_undecided, 1] = start
                        undecided[n_undecided, 2] = at
                        n_undecided += 1
                        value = 1.0
                is_canonical &= (column > previous) & (value != 0.0)
                previous = column
                values[n_values] = value
                indices[n_values] = column - 1
                n_values += 1
                while _is_blank(text[at]):
                    at += 1
            lines[n_rows] = n_lines
            n_rows += 1
            row_ptr[n_rows] = n_values
        while text[at] != _NEWLINE:
            at += 1
        at += 1
        n_lines += 1
    return n_rows, n_lines, n_undecided, -1, is_canonical


def _malformed(text: memoryview, at: int, *, first_line: int, n_features: int) -> MalformedLine:
    """Return the error for the bad token that contains byte `at` of the text."""
    before = bytes(text[:at])  # only the text before the bad token is copied, because the rest may be long
    first, stop = before.rfind(b"\n") + 1, _end_of_line(text, at)
    line = bytes(text[first:stop]).partition(b"#")[0]
    start = at - first
    while start > 0 and line[start - 1] not in _BLANKS:
        start -= 1
    token = line[start:].split(maxsplit=1)[0]
    shown = repr(token[:_QUOTED].decode("utf-8", "backslashreplace")) + ("..." if len(token) > _QUOTED else "")
    rule = _broken_rule(token, is_label=not line[:start].strip(), n_features=n_features)
    return MalformedLine(
        first_line + before.count(b"\n"),
        reason=rule.format(shown),
        rule=rule.format("..."),
        start=first,
        stop=stop,
    )


def _end_of_line(text: memoryview, at: int) -> int:
    """Return the position after the next newline; the search uses windows of increasing size."""
    window = 256
    while (found := bytes(text[at : at + window]).find(b"\n")) < 0:
        window *= 4
    return at + found + 1


def _broken_rule(token: bytes, *, is_label: bool, n_features: int) -> str:
    """Return the rule that a bad token breaks, as text with ``{}`` in place of the token."""
    if is_label:
        return "label {} is not a number; every line must start with a label"
    column, colon, value = token.partition(b":")
    if not colon:
        return "{} is not COLUMN:VALUE"
    if column[:1] == b"-" and column[1:].isdigit():
        return "{} has a negative column; columns start at 1"
    if not column.isdigit():
        return "{} has a column that is not a whole number"
    if not column.strip(b"0"):
        return "{} has column 0, but svmlight columns start at 1; add 1 to every column"
    if len(column.lstrip(b"0")) > 18 or int(column) > n_features:
        return f"{{}} is beyond the {n_features} declared features; declare more or correct the file"
    try:
        is_infinite = not math.isfinite(float(value))
    except ValueError:
        is_infinite = False
    return f"the value of {{}} is not {'finite' if is_infinite else 'a number'}"


_ZERO_BASED = b"# Column indices are zero-based"  # a comment that scikit-learn writes into such files
_HEAD = 1 << 12  # number of bytes at the start of a file that are searched for comments
_WIDEST_FEATURE = 64  # bytes of text allowed for each declared column; a longer line cannot be a row


class SvmlightReader(TextReader):
    """Reader of svmlight text, which implements `storage.formats.batch.Reader`; each line with a label is one row.

    Parameters
    ----------
    file : SourceFile
        The file.
    declared : Declared
        The user's declarations, which must include the number of columns. Lines may also end in a carriage return
        alone, if the first line does. Unattended ingests exclude this, because the first line is a row, which must not
        decide how other rows are read.
    """

    names: Sequence[str] | None = None
    n_rows: int | None = None
    scattered = False
    repeats = True

    def __init__(self, file: SourceFile, *, declared: Declared) -> None:
        assert declared.width is not None
        self.n_features = declared.width
        self.dtype: np.dtype[Any] = np.dtype(np.float64)
        self._text = TextFile(file)
        self._text.reads_returns = not declared.is_unattended
        self._parser = SvmlightParser(n_features=self.n_features, capacity=PIECE)
        self.size = self._text.size
        self.format = f"svmlight{self._text.packing}"

    def batches(self, rejects: Rejects) -> Iterator[RowBatch]:
        """Yield the rows of the file in order; a bad line becomes an empty, rejected row.

        Raises
        ------
        BadSource
            If a compressed file is cut short or corrupt, or if a comment before the rows states that columns start at
            0.
        """
        self._text.skips_long_lines = rejects.is_tolerant
        for piece in self._text.pieces(longest=_WIDEST_FEATURE * self.n_features, kept=False):
            if self._text.line == 1:
                _check_comments(piece)
            if len(piece) > self._parser.capacity:
                self._parser = SvmlightParser(n_features=self.n_features, capacity=len(piece))
            if parts := list(self._parts(piece, rejects)):
                yield parts[0] if len(parts) == 1 else _joined(parts)

    def _parts(self, text: memoryview, rejects: Rejects) -> Iterator[RowBatch]:
        """Parse complete lines into batches of good rows, and a separate batch for each bad line, in order."""
        while len(text):
            try:
                yield self._parse(text)
                return
            except MalformedLine as bad:
                rejects.reject(place="line", number=bad.line, reason=bad.rule, quoting=bad.reason)
                if bad.start:
                    rows = self._parse(text[: bad.start])
                    yield replace(
                        rows,
                        values=rows.values.copy(),
                        indices=rows.indices.copy(),
                        places=rows.places.copy(),
                        row_ptr=rows.row_ptr.copy(),
                    )
                yield _rejected_row(bad.line)
                text, self._text.line = text[bad.stop :], bad.line + 1

    def _parse(self, text: memoryview) -> RowBatch:
        rows = self._parser.parse(text, first_line=self._text.line)
        self._text.line += rows.n_lines
        return RowBatch(
            values=rows.values,
            indices=rows.indices,
            row_ptr=rows.row_ptr,
            record_ptr=np.arange(len(rows.row_ptr)),
            places=rows.lines,
            place="line",
            is_canonical=rows.is_canonical,
        )


def _check_comments(text: memoryview) -> None:
    """Refuse a file in which a comment before the first row states that columns start at 0."""
    for line in bytes(text[:_HEAD]).split(b"\n"):
        if not line.startswith(b"#"):
            return
        if line.startswith(_ZERO_BASED):
            raise BadSource("a comment states that columns start at 0, but they must start at 1; add 1 to each")


def _rejected_row(line: int) -> RowBatch:
    return RowBatch(
        values=np.empty(0),
        indices=np.empty(0, dtype=np.int64),
        row_ptr=np.zeros(2, dtype=np.int64),
        record_ptr=np.arange(2),
        places=np.array([line]),
        place="line",
        rejected=np.array([True]),
    )


def _joined(parts: list[RowBatch]) -> RowBatch:
    """Concatenate batches, so that many bad lines do not cause many small batches."""
    rejected = [
        np.zeros(len(part.places), dtype=np.bool_) if part.rejected is None else part.rejected for part in parts
    ]
    counts = np.concatenate([np.diff(part.row_ptr) for part in parts])
    row_ptr = np.zeros(len(counts) + 1, dtype=np.int64)
    np.cumsum(counts, out=row_ptr[1:])
    return RowBatch(
        values=np.concatenate([part.values for part in parts]),
        indices=np.concatenate([part.indices for part in parts]),
        row_ptr=row_ptr,
        record_ptr=np.arange(len(row_ptr)),
        places=np.concatenate([part.places for part in parts]),
        place="line",
        rejected=np.concatenate(rejected),
    )
