"""Reader of Matrix Market coordinate files, compressed or not.

A file declares the shape of the matrix, and lists triplets (row, column, value) in any order. Rows and columns are
numbered from 1. A pattern matrix has no values; each entry is read as 1. A symmetric file stores only the lower
triangle, and the reader adds the upper triangle.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numba import njit
from numpy.typing import NDArray

from dpca.errors import BadSource
from storage.formats.batch import Rejects, RowBatch
from storage.formats.csr import check_rows, check_width
from storage.formats.decimals import DECIDED, MALFORMED, scan_decimal
from storage.formats.declared import Declared
from storage.formats.files import SourceFile
from storage.formats.text import TextFile, TextReader

_FIELDS = {
    "real": np.float64,
    "double": np.float64,
    "integer": np.int64,
    "unsigned-integer": np.uint64,
    "pattern": np.int8,
}
_SYMMETRIES = {"general": 0, "symmetric": 1, "skew-symmetric": -1}

_LONGEST = 1 << 12
_ORDINAL_CAP = 1 << 58
_FINE, _LINE, _OUTSIDE, _ABOVE, _ON = range(5)
_REASONS = {
    _LINE: "is not an entry of the declared kind; correct or drop it",
    _OUTSIDE: "is outside the declared shape; correct the entry or the size line",
    _ABOVE: "is above the diagonal, but a symmetric file stores only the lower triangle; drop it, or declare 'general'",
    _ON: "is on or above the diagonal, but a skew-symmetric file stores only entries below it; drop it, or declare "
    "'general'",
}
_NEWLINE = ord("\n")


class MatrixMarketReader(TextReader):
    """Reader of a coordinate file, with each entry as a fragment of a row; a `storage.formats.batch.Reader`.

    Parameters
    ----------
    file : SourceFile
        The file.
    declared : Declared
        The user's declarations. A declared number of columns must equal the number in the file.
    """

    names: Sequence[str] | None = None
    scattered = True
    repeats = True

    def __init__(self, file: SourceFile, *, declared: Declared) -> None:
        self._text = TextFile(file)
        self.size = self._text.size
        self.format = f"mtx{self._text.packing}"
        # the first line may decide how lines end, because it is the banner and not a row
        self._text.reads_returns = True
        self._pieces = self._text.pieces(longest=_LONGEST)
        try:
            self._read_header(declared.width)
        except BaseException:
            self.close()
            raise

    def batches(self, rejects: Rejects) -> Iterator[RowBatch]:
        """Yield the entries in file order, each as a fragment of its row.

        Raises
        ------
        BadSource
            If the number of entries differs from the number in the file's size line.
        """
        text, found, self._text.skips_long_lines = self._rest, 0, rejects.is_tolerant
        while True:
            rows, columns, values, lines, bad, n_lines = self._parse(text, self._text.line, rejects)
            found += len(lines)
            if self._symmetry:
                off = (rows != columns) & ~bad
                rows, columns = np.concatenate((rows, columns[off])), np.concatenate((columns, rows[off]))
                values = np.concatenate((values, self._symmetry * values[off]))
                lines, bad = np.concatenate((lines, lines[off])), np.concatenate((bad, bad[off]))
            yield RowBatch(
                values=values,
                indices=columns,
                row_ptr=np.arange(len(rows) + 1),
                record_ptr=np.arange(len(rows) + 1),
                places=lines,
                place="line",
                row_ids=pa.array(rows, mask=rows < 0),
                rejected=bad,
            )
            self._text.line += n_lines
            piece = next(self._pieces, None)
            if piece is None:
                break
            text = bytes(piece)
        if found != self._n_entries:
            raise BadSource(
                f"there are {found} entries, but the size line declares {self._n_entries}; fetch the file again"
            )

    def _parse(
        self, text: bytes, line: int, rejects: Rejects
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64], NDArray[np.int64], NDArray[np.bool_], int]:
        """Parse complete lines into entries.

        Return (rows, columns, values, line numbers, a mask of bad entries, number of lines). A bad line becomes an
        entry with value 0 in the line's row. If the line has no valid row number, the row is -1.
        """
        room = len(text) // 2 + 1
        rows, columns, lines = (np.empty(room, dtype=np.int64) for _ in range(3))
        values, undecided = np.empty(room), np.empty((room, 3), dtype=np.int64)
        octets = np.frombuffer(text, dtype=np.uint8)
        bad = np.zeros(room, dtype=np.bool_)
        at, n_lines, count = 0, 0, 0
        while at < len(text):
            verdict, at, n_lines, count, n_undecided = _parse_entries(
                octets,
                (at, n_lines, count),
                (self._pattern, self.dtype.kind == "i", self._symmetry),
                rows,
                columns,
                values,
                lines,
                undecided,
                self.n_rows,
                self.n_features,
            )
            for position, start, stop in undecided[:n_undecided].tolist():
                values[position] = float(text[start:stop])
            if verdict != _FINE:
                rejects.reject(place="line", number=line + n_lines - 1, reason=_REASONS[verdict])
                bad[count - 1] = True
        return rows[:count], columns[:count], values[:count], lines[:count] + line, bad[:count], n_lines

    def _read_header(self, n_features: int | None) -> None:
        """Read the banner, comments and size line; store the text that was read after them in `self._rest`."""
        rest = bytes(next(self._pieces, b""))
        banner, _, rest = rest.partition(b"\n")
        words = banner.decode("ascii", "replace").lower().split()
        if len(words) != 5 or words[0] != "%%matrixmarket" or words[1] != "matrix":
            raise BadSource("the file does not begin with a %%MatrixMarket banner; check the format")
        layout, kind, symmetry = words[2:]
        has_signs = kind not in ("pattern", "unsigned-integer")
        known = kind in _FIELDS and symmetry in _SYMMETRIES and (has_signs or symmetry != "skew-symmetric")
        if layout != "coordinate" or not known:
            raise BadSource(
                f"a Matrix Market file of kind '{layout} {kind} {symmetry}' is not supported; save a real, integer, "
                "unsigned-integer or pattern matrix in coordinate form"
            )
        while True:
            size, newline, rest = rest.partition(b"\n")
            self._text.line += 1
            if not newline:
                raise BadSource("the file ends before its size line; fetch it again")
            if size.strip() and not size.startswith(b"%"):
                break
        try:
            n_rows, self.n_features, self._n_entries = (int(word) for word in size.split())
        except ValueError:
            raise BadSource(f"line {self._text.line} is not 'ROWS COLUMNS ENTRIES'; correct the size line") from None
        check_width(self.n_features, n_features)
        check_rows(n_rows, stored=self.size)
        if symmetry != "general" and n_rows != self.n_features:
            raise BadSource(
                f"the banner declares a {symmetry} matrix of {n_rows} rows and {self.n_features} columns, which is not "
                "square; correct the size line, or declare 'general'"
            )
        self.dtype: np.dtype[Any] = np.dtype(_FIELDS[kind])
        self.n_rows: int | None = n_rows
        self._pattern, self._symmetry = kind == "pattern", _SYMMETRIES[symmetry]
        self._rest = rest
        self._text.line += 1


@njit(cache=True, nogil=True, inline="always")
def _is_blank(byte):  # type: ignore[no-untyped-def]
    return byte == 32 or byte == 9 or byte == 13


@njit(cache=True, nogil=True, error_model="numpy")
def _scan_ordinal(text, at):  # type: ignore[no-untyped-def]
    """Read blanks and then digits; return (the number, or 0 without digits; position of the first byte after them)."""
    while _is_blank(text[at]):
        at += 1
    number = 0
    while 48 <= text[at] <= 57:
        number = min(number * 10 + np.int64(text[at]) - 48, _ORDINAL_CAP)  # type: ignore[assignment]
        at += 1
    return number, at


@njit(cache=True, nogil=True, error_model="numpy")
def _parse_entries(  # type: ignore[no-untyped-def]
    text, progress, kind, rows, columns, values, lines, undecided, n_rows, n_features
):
    """Parse lines into the buffers, up to the end of the text or the end of the first bad line.

    Return (verdict on the last line, position, number of lines, number of entries, number of values that `float` must
    parse).
    """
    at, n_lines, count = progress
    pattern, whole, symmetry = kind
    n_undecided = 0
    while at < len(text):
        verdict, row, named = _FINE, 0, False
        while _is_blank(text[at]):
            at += 1
        if text[at] != _NEWLINE:
            first = at
            row, at = _scan_ordinal(text, at)
            gap = at
            named = _is_blank(text[at])
            column, at = _scan_ordinal(text, at)
            verdict = _FINE if at > gap and gap > first and _is_blank(text[gap]) else _LINE
            value, start, decided = 1.0, at, DECIDED
            if verdict == _FINE and not pattern:
                gap = at
                while _is_blank(text[at]):
                    at += 1
                start = at
                decided, value, at = scan_decimal(text, at)
                if decided == MALFORMED or start == gap or (whole and value != np.floor(value)):
                    verdict = _LINE
            stop = at
            while verdict == _FINE and _is_blank(text[at]):
                at += 1
            if text[at] != _NEWLINE:
                verdict = _LINE
            elif verdict == _FINE and not (1 <= row <= n_rows and 1 <= column <= n_features):
                verdict = _OUTSIDE
            elif verdict == _FINE and symmetry == 1 and row < column:
                verdict = _ABOVE
            elif verdict == _FINE and symmetry == -1 and row <= column:
                verdict = _ON
            if verdict == _FINE:
                if decided != DECIDED:
                    undecided[n_undecided, 0] = count
                    undecided[n_undecided, 1] = start
                    undecided[n_undecided, 2] = stop
                    n_undecided += 1
                rows[count], columns[count] = row - 1, column - 1
                values[count], lines[count] = value, n_lines
                count += 1
        while text[at] != _NEWLINE:
            at += 1
        at += 1
        n_lines += 1
        if verdict != _FINE:
            rows[count] = row - 1 if named and 1 <= row <= n_rows else -1
            columns[count], values[count], lines[count] = 0, 0.0, n_lines - 1
            count += 1
            return verdict, at, n_lines, count, n_undecided
    return _FINE, at, n_lines, count, n_undecided
