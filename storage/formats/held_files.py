"""Safe reading of files from a folder into which others write.

Between a check and a read by path, any user who may write into the folder could replace the file by a link. So a file
is opened once, component by component without following links, and read only from that descriptor. What was checked is
therefore what is read.

Examples
--------
::

    (seen,) = look_at("inbox/*.npy")
    with holding(seen.file.address) as file:
        file.version(), file.open().read()
"""

import errno
import glob
import io
import os
import stat
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, cast

from storage.formats.files import (
    LocalFile,
    ObjectFile,
    RangeStream,
    Sighting,
    SourceFile,
    listed,
    local_matches,
    local_version,
    locate,
)

if TYPE_CHECKING:
    from zarr.abc.store import Store

_BUFFER = 1 << 17
_FOLDER_FLAGS = os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC | getattr(os, "O_PATH", os.O_RDONLY)
_NO_FILE = (errno.ENOENT, errno.ELOOP, errno.ENOTDIR, errno.ENXIO)
"""Error numbers of opening a path that leads to a link, to a folder of another kind, or to a socket."""


@dataclass(frozen=True, slots=True)
class HeldFile:
    """A file on a disk that was opened once, and is read only from that descriptor.

    See `SourceFile` and `holding`.
    """

    path: Path
    descriptor: int

    @property
    def address(self) -> str:
        """Path at which the file was opened."""
        return str(self.path)

    @property
    def name(self) -> str:
        """Name of the file."""
        return self.path.name

    @property
    def is_far(self) -> bool:
        """False: a seek costs no request."""
        return False

    def is_file(self) -> bool:
        """Return True."""
        return True

    def is_zarr(self) -> bool:
        """Return False: a Zarr store is a folder."""
        return False

    def version(self) -> tuple[int, str]:
        """Return the size and the time of the last change."""
        return local_version(os.fstat(self.descriptor))

    def marks(self) -> tuple[Hashable, ...]:
        """Return the device and inode."""
        status = os.fstat(self.descriptor)
        return ((status.st_dev, status.st_ino),)

    def open(self) -> BinaryIO:
        """Return a stream with an independent position."""
        read = partial(_read_at, self.descriptor)
        return cast("BinaryIO", io.BufferedReader(RangeStream(read, size=self.version()[0]), _BUFFER))

    def zarr_store(self) -> "Path | Store":
        """Refuse: a Zarr store is a folder."""
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), self.address)


def open_matches(address: str | Path) -> list[Sighting]:
    """Return the files at an address, as listed by `find_files`, in their current state; there may be none.

    Links in the path of the folder are resolved once, and no link below the folder is followed. So each file has one
    path, under every name of the folder.

    Raises
    ------
    Unavailable
        If an object store cannot be used.
    OSError
        If a folder cannot be read.
    """
    file = locate(address)
    if isinstance(file, ObjectFile):
        below, pattern = listed(file)
        return below.sightings(pattern)
    return [seen for path in _paths_below(Path(address)) if (seen := _sighted(path)) is not None]


@contextmanager
def holding(address: str) -> Iterator[SourceFile]:
    """Open a file that `open_matches` found, and yield it; no component of its path may be a link now.

    A file on a disk is read from the descriptor that was opened and checked, so no one can replace it in between. An
    object of a store is yielded as it is.

    Raises
    ------
    FileNotFoundError
        If there is no regular file, or it is behind a link.
    OSError
        If the file cannot be opened for another reason.
    """
    file = locate(address)
    if not isinstance(file, LocalFile):
        yield file
        return
    try:
        with _folder_of(file.path) as folder:
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            descriptor = os.open(file.path.name, flags, dir_fd=folder)
    except OSError as error:
        if error.errno not in _NO_FILE:
            raise
        raise FileNotFoundError(errno.ENOENT, "not a regular file", address) from None
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise FileNotFoundError(errno.ENOENT, "not a regular file", address)
        yield HeldFile(file.path, descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def held(file: SourceFile) -> Iterator[SourceFile]:
    """Open a regular file on a disk once, and yield an object that reads only that descriptor.

    Links are followed. Anything else, such as a Zarr store or an object, is yielded as it is.
    """
    if not isinstance(file, LocalFile):
        yield file
        return
    descriptor = os.open(file.path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        yield HeldFile(file.path, descriptor) if stat.S_ISREG(os.fstat(descriptor).st_mode) else file
    finally:
        os.close(descriptor)


def _paths_below(path: Path) -> list[Path]:
    """List the paths at the address of an inbox, and resolve only the links in the path of the folder."""
    if path.is_dir():
        return [file.path for file in local_matches(_without_links(path))]
    folder = _without_links(path.parent)
    if os.path.lexists(path) or not glob.has_magic(path.name):
        return [folder / path.name]
    return sorted(folder / match for match in glob.glob(path.name, root_dir=folder))  # noqa: PTH207


def _without_links(folder: Path) -> Path:
    return Path(os.path.realpath(folder))


def _sighted(path: Path) -> Sighting | None:
    """Return the current state of a regular file or a link; None if it is anything else, or is gone."""
    file = LocalFile(path)
    try:
        with _folder_of(path) as folder:
            status = os.stat(path.name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno not in _NO_FILE:
            raise
        return Sighting(file=file, version=(0, ""), changed=0.0, is_link=True)
    if not (stat.S_ISREG(status.st_mode) or stat.S_ISLNK(status.st_mode)):
        return None
    is_link = stat.S_ISLNK(status.st_mode)
    return Sighting(file=file, version=local_version(status), changed=status.st_mtime, is_link=is_link)


@contextmanager
def _folder_of(path: Path) -> Iterator[int]:
    """Open the folder of an absolute path component by component, without following links."""
    descriptor = os.open(path.anchor, _FOLDER_FLAGS)
    try:
        for name in path.parts[1:-1]:
            inner = os.open(name, _FOLDER_FLAGS, dir_fd=descriptor)
            os.close(descriptor)
            descriptor = inner
        yield descriptor
    finally:
        os.close(descriptor)


def _read_at(descriptor: int, start: int, stop: int) -> bytes:
    return os.pread(descriptor, stop - start, start)
