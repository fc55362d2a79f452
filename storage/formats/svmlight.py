"""Read svmlight files, plain or packed, one piece of text at a time.

The source declares no width, so `n_features` must be given: it is never inferred from the rows.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from storage.errors import BadSource
from storage.formats.batch import RowBatch
from storage.formats.declared import Declared
from storage.formats.files import SourceFile
from storage.formats.rejects import Rejects
from storage.formats.svmlight_parser import MalformedLine, SvmlightParser
from storage.formats.text import PIECE, TextFile

_ZERO_BASED = b"# Column indices are zero-based"  # as scikit-learn writes
_HEAD = 1 << 12  # bytes in which such a comment is
_WIDEST_FEATURE = 64  # bytes of text one column may take on average; a longer line is no row


class SvmlightReader:
    """A `storage.formats.batch.Reader` of svmlight text, each line that is not blank one row.

    Parameters
    ----------
    file : SourceFile
        The file.
    declared : Declared
        The user's declarations, with the number of columns. In an attended ingest, carriage returns end lines where
        the first line, which is a row, ends in one.
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

    @property
    def position(self) -> int:
        """Bytes of the file read so far."""
        return self._text.position

    def close(self) -> None:
        """Close the file."""
        self._text.close()

    def batches(self, rejects: Rejects) -> Iterator[RowBatch]:
        """Yield the rows of each piece of text; a line that was rejected is an empty row.

        Raises
        ------
        BadSource
            Where a packed stream is cut short or corrupt, or comments before the rows state that columns count from 0.
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
        """Cut whole lines into good rows and bad ones, in order."""
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
    """Refuse the columns that comments before the first row describe, where they are others."""
    for line in bytes(text[:_HEAD]).split(b"\n"):
        if not line.startswith(b"#"):
            return
        if line.startswith(_ZERO_BASED):
            raise BadSource("a comment states that columns count from 0, and here they count from 1; add 1 to each")


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
    """Join batches into one, so that many bad lines do not make many small batches."""
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
