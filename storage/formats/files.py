"""Files of a source on a disk or in an object store, with the same interface for readers.

Examples
--------
>>> locate("s3://bucket/rows.svm.gz").name
'rows.svm.gz'
"""

import glob
import io
import os
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path, PurePath, PurePosixPath
from typing import TYPE_CHECKING, Any, BinaryIO, Protocol, cast, runtime_checkable

from dpca.backends.base import Place
from dpca.backends.local import open_place
from dpca.errors import BadSource, Invalid

if TYPE_CHECKING:
    from zarr.abc.store import Store

ZARR_FILES = ("zarr.json", ".zgroup", ".zarray")
_SCHEME = "s3://"
_AHEAD = 1 << 23  # number of bytes that one request to an object store fetches
_MARKERS = ("_SUCCESS", "_metadata", "_common_metadata", "_committed_*", "_started_*", "*.crc")
"""Names of marker files that writers of tables put next to the files with rows."""
_LOGS = {
    "_delta_log": "a Delta table, whose log lists the valid files; export the rows, for example with `to_parquet`",
    ".hoodie": "a Hudi table, whose log lists the valid files; export the rows to files",
    "_temporary": "the output of an unfinished job; finish the job, or write the files again",
}
_RETRIES: Any = {"max_retries": 8, "retry_timeout": timedelta(minutes=1)}


@runtime_checkable
class SourceFile(Protocol):
    """Interface of one file, or one Zarr store, from which rows are read.

    Attributes
    ----------
    address : str, as the user named it
    name : str, the last part of the address
    is_far : bool, whether the file is in an object store, where each seek costs a request
    """

    @property
    def address(self) -> str:
        """Path or URL."""

    @property
    def name(self) -> str:
        """Last part of the address."""

    @property
    def is_far(self) -> bool:
        """True if the file is in an object store."""

    def is_file(self) -> bool:
        """Return whether this is a single file, not a Zarr store."""

    def is_zarr(self) -> bool:
        """Return whether this is a Zarr store."""

    def version(self) -> tuple[int, str]:
        """Return the size in bytes, and a tag that changes with the content."""

    def marks(self) -> tuple[Hashable, ...]:
        """Return the real path, and further values that are equal for all names of the same file."""

    def open(self) -> BinaryIO:
        """Open the file for reading with random access."""

    def zarr_store(self) -> "Path | Store":
        """Return the folder or store object to pass to `zarr.open`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sighting:
    """A file of an inbox, with its state when it was listed.

    Attributes
    ----------
    file : SourceFile
    version : tuple of int and str, the size and tag that `SourceFile.version` returns
    changed : float, the time of the file's last change, in seconds since the epoch
    is_link : bool, whether the file, or a folder below the inbox on its path, is a symbolic link
    """

    file: SourceFile
    version: tuple[int, str]
    changed: float
    is_link: bool = False


@dataclass(frozen=True, slots=True)
class LocalFile:
    """A file on a disk; see `SourceFile`."""

    path: Path

    @property
    def address(self) -> str:
        """Path as the user named it."""
        return str(self.path)

    @property
    def name(self) -> str:
        """Name of the file."""
        return self.path.name

    @property
    def is_far(self) -> bool:
        """False: the file is on a disk, where a seek costs no request."""
        return False

    def is_file(self) -> bool:
        """Return whether the path is a file."""
        return self.path.is_file()

    def is_zarr(self) -> bool:
        """Return whether the folder holds the metadata of a Zarr store."""
        return any(_exists(self.path / name) for name in ZARR_FILES)

    def version(self) -> tuple[int, str]:
        """Return the size, and the time of the last change as the tag."""
        return local_version(self.path.stat())

    def marks(self) -> tuple[Hashable, ...]:
        """Return the path without symbolic links, and the device and inode, which hard links share."""
        path = Path(os.path.realpath(self.path))
        try:
            status = path.stat()
        except OSError:  # a missing file is reported later, when it is opened
            return (path,)
        return path, (status.st_dev, status.st_ino)

    def open(self) -> BinaryIO:
        """Open the file."""
        return self.path.open("rb")

    def zarr_store(self) -> "Path | Store":
        """Return the path of the store's folder."""
        return self.path


@dataclass(frozen=True, slots=True)
class ObjectFile:
    """An object of an S3-compatible store, reached with the usual ``AWS_*`` variables; see `SourceFile`.

    Parameters
    ----------
    address : str
        ``s3://bucket/key``.

    Raises
    ------
    Invalid
        If the address is not such a URL.
    """

    address: str
    _bucket: Place = field(init=False, repr=False, compare=False)
    _store: Any = field(init=False, repr=False, compare=False)
    _key: str = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Split the URL into bucket and key; no request is made."""
        from obstore.store import S3Store

        bucket, _, key = self.address.removeprefix(_SCHEME).partition("/")
        object.__setattr__(self, "_bucket", open_place(f"{_SCHEME}{bucket}"))
        object.__setattr__(self, "_key", key.strip("/"))
        with self._bucket.reaching():
            object.__setattr__(self, "_store", S3Store(bucket, retry_config=_RETRIES))

    @property
    def name(self) -> str:
        """Last part of the key."""
        return PurePosixPath(self._key).name

    @property
    def is_far(self) -> bool:
        """True: the file is in an object store, where each seek costs a request."""
        return True

    def is_file(self) -> bool:
        """Return whether the store holds an object with this key."""
        return self._holds("")

    def is_zarr(self) -> bool:
        """Return whether the objects below the key include the metadata of a Zarr store."""
        return any(map(self._holds, ZARR_FILES))

    def version(self) -> tuple[int, str]:
        """Return the size, and a tag that changes with each write of the object.

        For a Zarr store, these are the size and tag of its metadata object.
        """
        for name in ("", *ZARR_FILES):
            with suppress(FileNotFoundError):
                return _version(self._meta(name))
        raise FileNotFoundError(f"nothing exists at {self.address}")

    def marks(self) -> tuple[Hashable, ...]:
        """Return the bucket and the key as a single path."""
        return (PurePosixPath("s3:", self._canonical()),)

    def open(self) -> BinaryIO:
        """Open the object; each request fetches several megabytes."""
        found = self._meta()
        read = partial(self.read_range, tag=str(found["e_tag"]))
        return cast("BinaryIO", io.BufferedReader(RangeStream(read, size=int(found["size"])), _AHEAD))

    def zarr_store(self) -> "Path | Store":
        """Return a Zarr store object that reads the objects below the key."""
        return open_place(self.address).zarr_store()

    def names(self) -> list[str]:
        """Return the names of the objects directly below the key."""
        import obstore

        with self._bucket.reaching():
            found = obstore.list_with_delimiter(self._store, self._key or None)
        names = [*found["common_prefixes"], *(entry["path"] for entry in found["objects"])]
        return sorted(PurePosixPath(name).name for name in names)

    def sightings(self, pattern: str) -> "list[Sighting]":
        """Return the objects directly below the key whose names match a pattern, with one listing request."""
        import obstore

        with self._bucket.reaching():
            found = obstore.list_with_delimiter(self._store, self._key or None)["objects"]
        named = [(PurePosixPath(entry["path"]).name, entry) for entry in found]
        return [
            Sighting(
                file=ObjectFile(f"{_SCHEME}{self._canonical()}/{name}"),
                version=_version(entry),
                changed=entry["last_modified"].timestamp(),
            )
            for name, entry in named
            if _is_shown(name, pattern)
        ]

    def read_range(self, start: int, stop: int, *, tag: str) -> bytes:
        """Read a range of bytes, provided that the object still has this ETag."""
        import obstore
        from obstore.exceptions import PreconditionError

        with self._bucket.reaching():
            try:
                found = obstore.get(self._store, self._key, options={"range": (start, stop), "if_match": tag})
                return bytes(found.bytes())
            except PreconditionError:
                raise BadSource("the object was changed while it was read; ingest it again") from None

    def _canonical(self) -> str:
        """Return ``bucket/key`` without redundant slashes."""
        return f"{self.address.removeprefix(_SCHEME).partition('/')[0]}/{self._key}".rstrip("/")

    def _holds(self, name: str) -> bool:
        try:
            self._meta(name)
        except FileNotFoundError:
            return False
        return True

    def _meta(self, name: str = "") -> Mapping[str, Any]:
        import obstore

        if not (key := f"{self._key}/{name}".strip("/")):
            raise FileNotFoundError("the address is a bucket without the key of an object")
        with self._bucket.reaching():
            # a GET request instead of HEAD, because a failed HEAD request returns no reason
            return cast("Mapping[str, Any]", obstore.get(self._store, key).meta)


def _version(entry: Mapping[str, Any]) -> tuple[int, str]:
    """Return the size of an object, and a tag that combines the ETag with the second of the last change.

    An ETag alone is a digest of the content. If a file with equal rows is written again, only the time shows that it is
    a new arrival.
    """
    return int(entry["size"]), f"{entry['e_tag']} {int(entry['last_modified'].timestamp())}"


def local_version(status: os.stat_result) -> tuple[int, str]:
    """Return the size of a local file, and the time of the last change as a tag, from the file's status."""
    return status.st_size, str(status.st_mtime_ns)


class RangeStream(io.RawIOBase):
    """A seekable stream over a function that returns the bytes between two positions."""

    def __init__(self, read: Callable[[int, int], bytes], *, size: int) -> None:
        super().__init__()
        self._read, self._size, self._at = read, size, 0

    def readable(self) -> bool:
        """Return True: the stream can be read."""
        return True

    def seekable(self) -> bool:
        """Return True: the stream allows random access."""
        return True

    def tell(self) -> int:
        """Return the position."""
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Move the position, and return it."""
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        if start + offset < 0:
            raise ValueError("the position in the stream is negative")
        self._at = start + offset
        return self._at

    def readinto(self, target: Any) -> int:
        """Read into a buffer; return the number of bytes."""
        stop = min(self._at + len(target), self._size)
        if stop <= self._at:
            return 0
        found = self._read(self._at, stop)
        target[: len(found)] = found
        self._at += len(found)
        return len(found)


def locate(address: str | Path) -> SourceFile:
    """Return the file at a path or an ``s3://`` URL.

    Raises
    ------
    Invalid
        If the address is a URL with another scheme than ``s3://``.
    """
    text = str(address)
    if isinstance(address, str) and "://" in text:
        if not text.startswith(_SCHEME):
            raise Invalid(
                f"sources are paths and s3:// URLs, not {text.partition('://')[0]}://; copy the file to one of these"
            )
        return ObjectFile(text)
    return LocalFile(Path(address))


def find_files(sources: Sequence[str | Path | SourceFile]) -> list[SourceFile]:
    """List the files of a source in the order in which they are read.

    A folder means the files in it, and a pattern such as ``part-*.csv`` means the files that it matches, both sorted by
    name. Hidden files and marker files such as ``_SUCCESS`` are left out. A Zarr store counts as one file. In an object
    store, only the last part of a URL may be a pattern.

    Raises
    ------
    BadSource
        If no file is found, or if the same file is named twice, because its records would count twice. Also if a folder
        contains partitions, or a table such as Delta, whose log determines which files are valid.
    Invalid
        If no source is named.
    Unavailable
        If an object store cannot be used.
    """
    if not sources or not all(str(source).strip() for source in sources):
        raise Invalid("no source is given; give a file, a folder or a pattern")
    found: list[SourceFile] = []
    for source in sources:
        if isinstance(source, SourceFile):
            found.append(source)
            continue
        file = locate(source)
        if isinstance(file, ObjectFile):
            matches = _matches(file)
        else:
            path = Path(source)
            if path.is_dir() and not file.is_zarr():
                entries = sorted(path.iterdir())
                partitions = [entry.name for entry in entries if "=" in entry.name and entry.is_dir()]
                _refuse_tables(str(path), [entry.name for entry in entries], partitions)
            matches = local_matches(path)
        if not matches:
            raise BadSource(f"{source}: no file exists there; correct the path or pattern")
        found += matches
    _refuse_repeats(found)
    return found


def _refuse_tables(folder: str, names: Sequence[str], partitions: Sequence[str]) -> None:
    """Refuse a folder whose files alone are not the whole table.

    `names` are all names in the folder, and `partitions` the subfolders named like ``key=value``.
    """
    for name in names:
        if name in _LOGS:
            raise BadSource(f"the folder holds {name}, so it is {_LOGS[name]}")
    if partitions:
        key = partitions[0].partition("=")[0]
        raise BadSource(
            f"the folder holds partitions by {key!r}, a column that its files lack; give the files as "
            f"'{folder.rstrip('/')}/{key}=*/*' to drop {key!r}, or write the table with {key!r} as a column"
        )


def _refuse_repeats(files: Sequence[SourceFile]) -> None:
    """Refuse a file that is named twice, for example by a link, overlapping patterns, or a folder and its parent."""
    known: dict[Any, SourceFile] = {}
    for file in files:
        for mark in file.marks():
            if (first := known.setdefault(mark, file)) is not file:
                raise BadSource(
                    f"{file.address} is the same file as {first.address}, so its rows would count twice; give each "
                    "file once"
                )
    for path, file in known.items():
        for folder in path.parents if isinstance(path, PurePath) else ():
            if folder in known:
                raise BadSource(
                    f"{file.address} is inside {known[folder].address}, so its rows would count twice; give only one "
                    "of them"
                )


def local_matches(path: Path) -> Sequence[LocalFile]:
    """List the local files of a path, folder or pattern; symbolic links are followed."""
    if path.is_dir() and not LocalFile(path).is_zarr():
        matches = sorted(entry for entry in path.iterdir() if _is_shown(entry.name, "*"))
    elif not _exists(path) and glob.has_magic(str(path)):
        matches = sorted(Path(match) for match in glob.glob(str(path)))  # noqa: PTH207
        if path.name == "*":
            matches = [match for match in matches if _is_shown(match.name, "*")]
    else:
        matches = [path]
    return [LocalFile(match) for match in matches]


def _matches(file: ObjectFile) -> Sequence[SourceFile]:
    if file.is_file() or file.is_zarr():
        return [file]
    folder, pattern = listed(file)
    below, names = folder.address.rstrip("/"), folder.names()
    if pattern == "*":
        _refuse_tables(below, names, [name for name in names if "=" in name and not PurePosixPath(name).suffix])
    return [ObjectFile(f"{below}/{name}") for name in names if _is_shown(name, pattern)]


def listed(file: ObjectFile) -> tuple[ObjectFile, str]:
    """Return the folder (prefix) that an address with a pattern lists, and the pattern for the names in it."""
    if glob.has_magic(file.name):
        return ObjectFile(file.address.rstrip("/").rpartition("/")[0]), file.name
    return file, "*"


def _is_shown(name: str, pattern: str) -> bool:
    if name.startswith(".") or (pattern == "*" and any(fnmatchcase(name, marker) for marker in _MARKERS)):
        return False
    return fnmatchcase(name, pattern)


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:
        return False
