"""Text files as pieces of whole lines, plain or packed with gzip or Zstandard; memory holds one piece."""

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

PIECE = 1 << 20  # bytes of text handed out at a time

NO_LINE = b"\xff"
"""The text of a line that cannot be read; it is no row in any format, as it is not UTF-8."""

_ASCII = bytes(range(128))
_UNREADABLE = _ASCII + b"\xfe" * 128  # what a line becomes that cannot be decoded: its ASCII stays
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_PACKINGS = {".gz": b"\x1f\x8b", ".zst": b"\x28\xb5\x2f\xfd"}


class TextFile:
    """One text file, unpacked on the fly; the packing is known by its first bytes.

    Parameters
    ----------
    file : SourceFile
        The file.
    encoding : str
        How its text is encoded; it is handed out as UTF-8 where this is another one, and else as it is. Where a line
        feed is one byte, as in all but UTF-16, UTF-32 and EBCDIC, each line is decoded by itself, and one that cannot
        be decoded is handed out as text that is not UTF-8: with its ASCII letters where the encoding has them as they
        are, and else as `NO_LINE`.

    Attributes
    ----------
    size : int
        Bytes of the file as it lies on the disk.
    packing : str
        ".gz", ".zst" or "".
    encoding : str
        How the text is encoded.
    skips_long_lines : bool
        Whether a line that is too long is handed out as `NO_LINE`; else it is refused.
    reads_returns : bool
        Whether carriage returns end lines where the first line ends in one alone, as old Macintosh text has them. The
        first line decides it, so in an unattended ingest it must be a header.
    line : int
        Number of the line that the next piece begins with, moved on by whoever reads pieces: they count lines anyway.
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
        self._has_returns: bool | None = None  # whether carriage returns end lines, once the first line was read
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
        """Yield whole lines; the last line gets a newline if it lacks one.

        Parameters
        ----------
        longest : int
            Bytes that a line may take at least before it is refused.
        kept : bool
            Whether the caller may still hold a piece when it asks for the next one, which else overwrites it.

        Raises
        ------
        BadSource
            Where a packed stream is cut short or corrupt, or a line is too long to be one and is not skipped.
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
                buffer[filled : filled + 1] = b"\n"  # there is room, or the buffer would have grown
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
        """Fill the target, or a part of it if the text ends."""
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
        """Decode whole lines, each by itself."""
        if self._extends_ascii:  # then lines are decoded alike together, unless one cannot be
            with suppress(UnicodeError):
                return piece.decode(self.encoding).encode()
        return b"\n".join(map(self._line_as_utf8, piece.split(b"\n")))

    def _line_as_utf8(self, line: bytes) -> bytes:
        try:
            return line.decode(self.encoding).encode()
        except UnicodeError:
            return line.translate(_UNREADABLE) if self._extends_ascii else NO_LINE


def _ends_in_return(text: bytes) -> bool:
    """Return whether the first line ends in a carriage return that no line feed follows."""
    at = text.find(b"\r")
    return 0 <= at < len(text) - 1 and b"\n" not in text[: at + 2]


def has_byte_lines(encoding: str) -> bool:
    """Return whether a line feed is the byte 10 in an encoding, and that byte is nothing else."""
    return "a\n".encode(encoding).endswith(b"a\n")


def _extends_ascii(encoding: str) -> bool:
    """Return whether an encoding has ASCII as it is, and so no signs that change how what follows is read."""
    try:
        return not encoding.startswith("iso2022") and _ASCII.decode(encoding).encode() == _ASCII
    except UnicodeError:
        return False
