"""Reading of text files, plain or compressed with gzip or Zstandard, in pieces of complete lines.

Only one piece is in memory at a time.
"""

import gzip
import io
import zlib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import PurePath
from typing import cast

import pyarrow as pa

from dpca.errors import BadSource, Unavailable
from storage.formats.files import SourceFile

PIECE = 1 << 20  # usual number of bytes in a piece of text

NO_LINE = b"\xff"
"""Replacement for a line that cannot be decoded; since it is not UTF-8, every format treats it as a bad row."""

_ASCII = bytes(range(128))
# translation table for lines that cannot be decoded: ASCII bytes stay, all others are replaced
_UNREADABLE = _ASCII + b"\xfe" * 128
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_PACKINGS = {".gz": b"\x1f\x8b", ".zst": b"\x28\xb5\x2f\xfd"}


class TextFile:
    """A text file, decompressed while it is read; its first bytes determine the kind of compression.

    Parameters
    ----------
    file : SourceFile
        The file.
    encoding : str
        Encoding of the text. UTF-8 text is yielded unchanged; text in any other encoding is converted to UTF-8. If a
        line feed is the single byte 10, as in all encodings except UTF-16, UTF-32 and EBCDIC, each line is decoded
        separately. A line that cannot be decoded is yielded as bytes that are not UTF-8. Its ASCII characters are kept
        if the encoding extends ASCII; otherwise the line becomes `NO_LINE`.

    Attributes
    ----------
    size : int
        Size of the (compressed) file in bytes.
    packing : str
        Kind of compression: ".gz", ".zst", or "" for plain text.
    encoding : str
        Encoding of the text.
    skips_long_lines : bool
        Whether a line that is too long is yielded as `NO_LINE`. If false, such a line raises an error.
    reads_returns : bool
        Whether lines may end in a carriage return alone, as in old Macintosh text. They do if the first line ends in
        this way. In an unattended ingest, the first line must then be a header, because no row may decide how other
        rows are read.
    line : int
        Number of the first line of the next piece. The caller of `pieces` updates this number, because the caller
        counts lines anyway.
    """

    def __init__(self, file: SourceFile, *, encoding: str = "utf-8") -> None:
        self.size, _ = file.version()
        self.line = 1
        self._file = cast("io.BufferedReader", file.open())
        start, suffix = self._file.peek(4), PurePath(file.name).suffix
        self.packing = next((name for name, magic in _PACKINGS.items() if start.startswith(magic)), "")
        if suffix in _PACKINGS and suffix != self.packing:
            self._file.close()
            kind = {".gz": "gzip", ".zst": "Zstandard"}[suffix]
            raise BadSource(
                f"the name ends in {suffix}, but the content is not {kind}; compress the file again or rename it"
            )
        self._text: io.BufferedIOBase = self._file
        if self.packing == ".gz":
            self._text = gzip.GzipFile(fileobj=self._file)
        elif self.packing == ".zst":
            self._text = cast("io.BufferedIOBase", pa.CompressedInputStream(self._file, "zstd"))
        self.encoding, self.skips_long_lines, self.reads_returns = encoding, False, False
        self._has_returns: bool | None = None  # whether carriage returns end lines; None until the first line was read
        self._is_streamed = encoding != "utf-8" and not has_byte_lines(encoding)
        self._extends_ascii = _extends_ascii(encoding)
        if self._is_streamed:
            self._text = cast(
                "io.BufferedIOBase", pa.transcoding_input_stream(pa.PythonFile(self._text, "r"), encoding, "utf-8")
            )

    @property
    def position(self) -> int:
        """Number of bytes of the (compressed) file that were read so far."""
        return self._file.tell()

    def close(self) -> None:
        """Close the file."""
        self._text.close()
        self._file.close()

    def pieces(self, *, longest: int, kept: bool = True) -> Iterator[memoryview]:
        """Yield the text in pieces of complete lines; a newline is added to the last line if it lacks one.

        Parameters
        ----------
        longest : int
            Number of bytes up to which a line is never refused or skipped.
        kept : bool
            Whether each piece stays valid after the next piece was requested. If false, the next piece overwrites it.

        Raises
        ------
        BadSource
            If a compressed file is cut short or corrupt, or if a line is too long and `skips_long_lines` is false.
        """
        for piece in self._raw_pieces(longest=longest, kept=kept):
            yield piece if self._is_streamed or self.encoding == "utf-8" else memoryview(self._as_utf8(bytes(piece)))

    def _raw_pieces(self, *, longest: int, kept: bool) -> Iterator[memoryview]:
        begun = is_long = False
        buffer, filled = bytearray(PIECE), 0
        while True:
            count = self._read_into(memoryview(buffer)[filled:])
            filled += count
            if is_long:
                end = buffer.find(b"\n", 0, filled)
                if end < 0 and count:
                    filled = 0
                    continue
                rest = NO_LINE + (bytes(memoryview(buffer)[end:filled]) if end >= 0 else b"")
                buffer, filled, is_long = bytearray(max(len(buffer), len(rest) + 1)), len(rest), False
                buffer[:filled] = rest
            if not count and filled:
                # the newline fits into the buffer, because a full buffer has been enlarged before
                buffer[filled : filled + 1] = b"\n"
                filled += 1
            stop = buffer.rfind(b"\n", 0, filled) + 1
            if stop:
                start = 0 if begun or not buffer.startswith(_BYTE_ORDER_MARK) else len(_BYTE_ORDER_MARK)
                begun = True
                yield memoryview(buffer)[start:stop]
            if not count:
                return
            rest = bytes(memoryview(buffer)[stop:filled])
            if len(rest) == len(buffer):
                if filled > PIECE + longest and self.skips_long_lines:
                    is_long, filled = True, 0
                    continue
                if filled > PIECE + longest:
                    raise BadSource(
                        f"line {self.line}: longer than {filled} bytes, too long for a row; "
                        "check the format, and that each row is one line"
                    )
                buffer = bytearray(2 * len(buffer))
            elif stop and kept:
                buffer = bytearray(len(buffer))
            buffer[: len(rest)] = rest
            filled = len(rest)

    def _read_into(self, target: memoryview) -> int:
        """Read text into the buffer `target` until it is full or the text ends; return the number of bytes."""
        filled = 0
        try:
            while filled < len(target):
                if self.packing == ".zst" or self._is_streamed:
                    data = self._text.read(len(target) - filled)
                    target[filled : filled + len(data)] = data
                    count = len(data)
                else:
                    count = self._text.readinto(target[filled:])
                if not count:
                    break
                filled += count
        except (EOFError, zlib.error, gzip.BadGzipFile):
            raise BadSource("the gzip stream is cut short or corrupt; fetch the file again") from None
        except Unavailable:
            raise
        except UnicodeError:
            raise BadSource(f"the text is not {self.encoding}; declare its encoding, or convert the file") from None
        except OSError:
            if self.packing != ".zst":
                raise
            raise BadSource("the Zstandard stream is cut short or corrupt; fetch the file again") from None
        if self._has_returns is None:
            self._has_returns = self.reads_returns and _ends_in_return(bytes(target[:filled]))
        if self._has_returns:
            target[:filled] = bytes(target[:filled]).replace(b"\r", b"\n")
        return filled

    def _as_utf8(self, piece: bytes) -> bytes:
        """Convert complete lines to UTF-8, each separately, so that a bad line does not affect other lines."""
        # decoding all lines at once gives the same result, unless one of them cannot be decoded
        if self._extends_ascii:
            with suppress(UnicodeError):
                return piece.decode(self.encoding).encode()
        return b"\n".join(map(self._line_as_utf8, piece.split(b"\n")))

    def _line_as_utf8(self, line: bytes) -> bytes:
        try:
            return line.decode(self.encoding).encode()
        except UnicodeError:
            return line.translate(_UNREADABLE) if self._extends_ascii else NO_LINE


def _ends_in_return(text: bytes) -> bool:
    """Return whether the first line ends in a carriage return without a line feed."""
    at = text.find(b"\r")
    return 0 <= at < len(text) - 1 and b"\n" not in text[: at + 2]


def has_byte_lines(encoding: str) -> bool:
    """Return whether the byte 10 is always a line feed in an encoding, so that lines can be split as bytes."""
    return "a\n".encode(encoding).endswith(b"a\n")


def _extends_ascii(encoding: str) -> bool:
    """Return whether an encoding extends ASCII, without escape sequences that change the meaning of later bytes."""
    try:
        return not encoding.startswith("iso2022") and _ASCII.decode(encoding).encode() == _ASCII
    except UnicodeError:
        return False


class TextReader:
    """Base class of the readers of a text file."""

    _text: TextFile

    @property
    def position(self) -> int:
        """Number of bytes of the file that were read so far."""
        return self._text.position

    def close(self) -> None:
        """Close the file."""
        self._text.close()
