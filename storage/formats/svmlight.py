"""Read svmlight files, plain or gzip, one piece of text at a time.

The source declares no width, so `n_features` must be given: it is never inferred from the rows.
"""

import gzip
import io
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from storage.errors import BadSource
from storage.formats.batch import RowBatch
from storage.svmlight import MalformedLine, SvmlightParser

PIECE = 1 << 20  # bytes of text parsed at a time

_GZIP_MAGIC = b"\x1f\x8b"
_NEWLINE = ord("\n")
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_WIDEST_FEATURE = 64  # bytes of text one column may take on average; a longer line is no row


class SvmlightReader:
    """Satisfies `storage.formats.batch.Reader` for svmlight text; gzip is known by its first two bytes.

    Parameters
    ----------
    path : Path
        The file.
    n_features : int
        Declared number of columns.
    """

    def __init__(self, path: Path, *, n_features: int) -> None:
        self.n_features = n_features
        self.dtype: np.dtype[Any] = np.dtype(np.float64)
        self.size = path.stat().st_size
        self._file = path.open("rb")
        packed = self._file.peek(2)[:2] == _GZIP_MAGIC
        self._text: io.BufferedIOBase = gzip.GzipFile(fileobj=self._file) if packed else self._file
        self.format = "svmlight.gz" if packed else "svmlight"
        if path.suffix == ".gz" and not packed:
            self.close()
            raise BadSource("the name ends in .gz, but the content is not gzip; compress it again or rename it")

    @property
    def position(self) -> int:
        """Bytes of the file read so far."""
        return self._file.tell()

    def close(self) -> None:
        """Close the file."""
        self._text.close()
        self._file.close()

    def batches(self) -> Iterator[RowBatch]:
        """Yield the rows of each piece of text, one record a row.

        Raises
        ------
        BadSource
            At the first malformed line, and where a gzip stream is cut short or corrupt.
        """
        line = 1
        buffer, filled = bytearray(PIECE), 0
        parser = SvmlightParser(n_features=self.n_features, capacity=PIECE)
        while True:
            count = self._read_into(memoryview(buffer)[filled:])
            if line == 1 and filled == 0 and buffer.startswith(_BYTE_ORDER_MARK):
                buffer[:3] = b"   "
            filled += count
            if not count and filled:
                buffer[filled] = _NEWLINE  # the last line may lack it; there is room, or the buffer would have grown
                filled += 1
            stop = buffer.rfind(b"\n", 0, filled) + 1
            if stop:
                try:
                    rows = parser.parse(memoryview(buffer)[:stop], first_line=line)
                except MalformedLine as error:
                    raise BadSource(f"line {error.line}: {error.reason}") from None
                line += rows.n_lines
                yield RowBatch(
                    values=rows.values,
                    indices=rows.indices,
                    row_ptr=rows.row_ptr,
                    record_ptr=np.arange(len(rows.row_ptr)),
                    places=rows.lines,
                    place="line",
                )
            if not count:
                return
            buffer[: filled - stop] = buffer[stop:filled]
            filled -= stop
            if filled == len(buffer):
                if filled > PIECE + _WIDEST_FEATURE * self.n_features:
                    raise BadSource(
                        f"line {line}: longer than {filled} bytes, too long for {self.n_features} features; "
                        "check that this is svmlight text, one row a line"
                    )
                buffer += bytes(filled)
                parser = SvmlightParser(n_features=self.n_features, capacity=len(buffer))

    def _read_into(self, target: memoryview) -> int:
        try:
            return self._text.readinto(target)
        except (EOFError, zlib.error, gzip.BadGzipFile):
            raise BadSource("the gzip stream is cut short or corrupt; fetch the file again") from None
