"""Recursive decoding of everything that a run may leave, to search it for private values.

Content may be packed, pickled, escaped, encoded, or in tables.
"""

import base64
import binascii
import io
import json
import pickletools
import re
import shutil
import sqlite3
import tempfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

Piece = bytes | int | float

DEPTH = 6
_LARGEST = 1 << 26
_BASE64 = re.compile(rb"[A-Za-z0-9+/_-]{11,}={0,2}")
_HEX = re.compile(rb"(?:[0-9a-fA-F]{2}){8,}")
_PACKED = re.compile(rb"\x1f\x8b\x08|\x78[\x01\x5e\x9c\xda]")
_ESCAPE = re.compile(rb"\\(?:x([0-9a-fA-F]{2})|u00([0-9a-fA-F]{2})|([^xu]))", re.DOTALL)
_LETTERS = {b"n": b"\n", b"r": b"\r", b"t": b"\t", b"b": b"\b", b"f": b"\f"}
_SQLITE = b"SQLite format 3\0"


def pieces_of_tree(root: Path, *, without: frozenset[str] = frozenset()) -> Iterator[tuple[str, Piece]]:
    """Yield the path and the content of everything under a folder: names, files and their decoded parts.

    Parameters
    ----------
    root : Path
    without : set of str
        Names at the top of the tree to skip.
    """
    for path in sorted(root.rglob("*")):
        place = path.relative_to(root)
        if place.parts[0] in without:
            continue
        yield f"name {place}", str(place).encode()
        if path.is_file() and not path.is_symlink():
            for piece in pieces_of_file(path):
                yield str(place), piece


def pieces_of_file(path: Path) -> Iterator[Piece]:
    """Yield the content and the parts of a file; a SQLite database is also read row by row, with its log."""
    content = path.read_bytes()
    yield from pieces(content)
    if content.startswith(_SQLITE):
        for value in _cells(path):
            yield from _of_value(value, DEPTH)


def pieces(content: bytes, depth: int = DEPTH) -> Iterator[Piece]:
    """Yield content and, recursively, everything into which it can be decoded."""
    yield content
    if depth:
        for inner in _decoded(content):
            yield from _of_value(inner, depth - 1)


def _of_value(value: Any, depth: int) -> Iterator[Piece]:
    if isinstance(value, bool) or value is None:
        return
    if isinstance(value, (int, float)):
        yield value
    elif isinstance(value, (bytes, bytearray)):
        yield from pieces(bytes(value), depth)
    elif isinstance(value, str):
        yield from pieces(value.encode("utf-8", "surrogatepass"), depth)
        if not value.isascii():
            yield from pieces(value.encode("latin-1", "ignore"), depth)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _of_value(item, depth)
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _of_value(key, depth)
            yield from _of_value(item, depth)


def _decoded(content: bytes) -> Iterator[Any]:
    for match in _PACKED.finditer(content):
        unpacker = zlib.decompressobj(31 if match.group().startswith(b"\x1f") else 15)
        try:
            unpacked = unpacker.decompress(content[match.start() :], _LARGEST)
        except zlib.error:
            continue
        if unpacked:
            yield unpacked
    if content.startswith(b"PK\x03\x04"):
        yield from _members(content)
    if content[:1] == b"\x80" and content[1:2] in b"\x02\x03\x04\x05":
        yield from _pickled(content)
    if content[:1] in (b"{", b"[", b'"'):
        with suppress(ValueError):
            yield json.loads(content)
    for text in {content, content.replace(b"\\n", b"").replace(b"\n", b"")}:
        for match in _BASE64.finditer(text):
            yield from _base64(match.group())
    for match in _HEX.finditer(content):
        yield bytes.fromhex(match.group().decode())
    if b"\\x" in content or b"\\u" in content:
        yield _ESCAPE.sub(_unescaped, content)


def _unescaped(found: re.Match[bytes]) -> bytes:
    code, letter = found.group(1) or found.group(2), found.group(3)
    return bytes.fromhex(code.decode()) if code else _LETTERS.get(letter, letter)


def _base64(text: bytes) -> Iterator[bytes]:
    plain = text.translate(bytes.maketrans(b"-_", b"+/")).rstrip(b"=")
    whole = plain[: len(plain) // 4 * 4] if len(plain) % 4 == 1 else plain
    try:
        yield base64.b64decode(whole + b"=" * (-len(whole) % 4))
    except binascii.Error:
        return


def _members(content: bytes) -> Iterator[bytes]:
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            for name in archive.namelist():
                yield archive.read(name)
    except (zipfile.BadZipFile, zlib.error, NotImplementedError):
        return


def _pickled(content: bytes) -> Iterator[Any]:
    try:
        for _, argument, _ in pickletools.genops(content):
            yield argument
    except ValueError:
        return


def _cells(path: Path) -> Iterator[Any]:
    """Yield every value of every table of a SQLite file.

    A copy is read, because reading may change a database with a write-ahead log.
    """
    with tempfile.TemporaryDirectory() as folder:
        for sibling in path.parent.glob(f"{path.name}*"):
            shutil.copy(sibling, folder)
        connection = sqlite3.connect(Path(folder) / path.name)
        connection.text_factory = bytes
        try:
            tables = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
            for (table,) in tables:
                for row in connection.execute(f'SELECT * FROM "{table.decode()}"'):
                    yield from row
        finally:
            connection.close()
