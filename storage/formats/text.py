"""Text files as pieces of whole lines, plain or packed with gzip or Zstandard.

Memory holds one piece at a time.
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

PIECE = 1 << 20  # bytes of text yielded at a time

NO_LINE = b"\xff"
"""Replacement text for an unreadable line; no format accepts it as a row, since it is not UTF-8."""

_ASCII = bytes(range(128))
_UNREADABLE = _ASCII + b"\xfe" * 128  # decoded replacement of an undecodable line: ASCII bytes stay
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_PACKINGS = {".gz": b"\x1f\x8b", ".zst": b"\x28\xb5\x2f\xfd"}


class TextFile:
    """One text file, unpacked while it is read; its first bytes determine the packing.

    Parameters
    ----------
    file : SourceFile
        The file.
    encoding : str
        Encoding of the text. UTF-8 text is yielded unchanged; text in any other encoding is yielded as UTF-8. If a line
        feed is one byte, as in all encodings except UTF-16, UTF-32 and EBCDIC, each line is decoded separately. A line
        that cannot be decoded is yielded as text that is not UTF-8. It keeps its ASCII letters if the encoding extends
        ASCII; otherwise it becomes `NO_LINE`.

    Attributes
    ----------
    size : int
        Bytes of the file on the disk.
    packing : str
        ".gz", ".zst" or "".
    encoding : str
        Encoding of the text.
    skips_long_lines : bool
        Whether a line that is too long is yielded as `NO_LINE`. Otherwise it is refused.
    reads_returns : bool
        Whether carriage returns end lines if the first line ends in a single one, as in old Macintosh text. The
        first line decides this, so in an unattended ingest it must be a header.
    line : int
        Number of the first line of the next piece. The reader of the pieces advances it, because the reader counts
        lines anyway.
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
            raise BadSource(f"the name ends in {suffix}, but the content is not {kind}; compress it again or rename it")
        self._text: io.BufferedIOBase = self._file
        if self.packing == ".gz":
            self._text = gzip.GzipFile(fileobj=self._file)
        elif self.packing == ".zst":
            self._text = cast("io.BufferedIOBase", pa.CompressedInputStream(self._file, "zstd"))
        self.encoding, self.skips_long_lines, self.reads_returns = encoding, False, False
        self._has_returns: bool | None = None  # whether carriage returns end lines; None until the first line is read
        self._is_streamed = encoding != "utf-8" and not has_byte_lines(encoding)
        self._extends_ascii = _extends_ascii(encoding)
        if self._is_streamed:
            self._text = cast(
                "io.BufferedIOBase", pa.transcoding_input_stream(pa.PythonFile(self._text, "r"), encoding, "utf-8")
            )

    @property
    def position(self) -> int:
        """Bytes of the file read so far."""
        return self._file.tell()

    def close(self) -> None:
        """Close the file."""
        self._text.close()
        self._file.close()

    def pieces(self, *, longest: int, kept: bool = True) -> Iterator[memoryview]:
        """Yield pieces of whole lines; the last line gets a newline if it lacks one.

        Parameters
        ----------
        longest : int
            Number of bytes that a line may always have. Only a longer line may be refused.
        kept : bool
            Whether the caller may still hold a piece when it requests the next one. Otherwise the next piece
            overwrites it.

        Raises
        ------
        BadSource
            If a packed stream is cut short or corrupt, or a line is too long and is not skipped.
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
                buffer[filled : filled + 1] = b"\n"  # there is room, since a full buffer would have grown
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
        """Fill the target, or only a part of it at the end of the text."""
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
        """Decode whole lines, each separately."""
        if self._extends_ascii:  # then decoding all lines at once gives the same, unless one of them fails
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
    """Return whether an encoding represents a line feed, and nothing else, by the byte 10."""
    return "a\n".encode(encoding).endswith(b"a\n")


def _extends_ascii(encoding: str) -> bool:
    """Return whether an encoding extends ASCII and has no sequences that change how later bytes are read."""
    try:
        return not encoding.startswith("iso2022") and _ASCII.decode(encoding).encode() == _ASCII
    except UnicodeError:
        return False


class TextReader:
    """Base of the readers of one text file."""

    _text: TextFile

    @property
    def position(self) -> int:
        """Bytes of the file read so far."""
        return self._text.position

    def close(self) -> None:
        """Close the file."""
        self._text.close()
