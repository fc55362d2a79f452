"""Safe reading of files in a folder into which other users can write.

If a file were checked and then opened again by path, any user who may write into the folder could replace it by a link
in between. Therefore a file is opened only once, each component of its path without following links. Checks and reads
use the resulting file descriptor, so the checked file is the file that is read.

Examples
--------
::

    (seen,) = open_matches("inbox/*.npy")
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
"""Error numbers of `os.open` for a missing file, a symbolic link, a path through a non-folder, or a socket."""


@dataclass(frozen=True, slots=True)
class HeldFile:
    """A file on a disk that was opened once, and is then read only through its file descriptor.

    It implements `SourceFile`; `holding` and `held` create it.
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
        """False: the file is on a disk, where a seek costs no request."""
        return False

    def is_file(self) -> bool:
        """Return True: only regular files are opened in this way."""
        return True

    def is_zarr(self) -> bool:
        """Return False: a Zarr store is a folder, not a file."""
        return False

    def version(self) -> tuple[int, str]:
        """Return the size, and the time of the last change as the tag."""
        return local_version(os.fstat(self.descriptor))

    def marks(self) -> tuple[Hashable, ...]:
        """Return the device and inode, which are equal for all names of the same file."""
        status = os.fstat(self.descriptor)
        return ((status.st_dev, status.st_ino),)

    def open(self) -> BinaryIO:
        """Return a stream that reads the file from its beginning; each stream has its own position."""
        read = partial(_read_at, self.descriptor)
        return cast("BinaryIO", io.BufferedReader(RangeStream(read, size=self.version()[0]), _BUFFER))

    def zarr_store(self) -> "Path | Store":
        """Raise NotADirectoryError, since a file is not a Zarr store."""
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), self.address)


def open_matches(address: str | Path) -> list[Sighting]:
    """List the files of an inbox, each with its current size, tag and time of change; there may be none.

    The address is a folder, a pattern, or a prefix in an object store. Symbolic links in the path of the folder are
    resolved, so that each file has the same path under every name of the folder. Links inside the folder are not
    followed.

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
    """Open a file that `open_matches` listed, and yield it; no component of its path may be a symbolic link.

    A file on a disk is read through the checked file descriptor, so the file cannot be replaced between check and read.
    An object in an object store is yielded unchanged.

    Raises
    ------
    FileNotFoundError
        If there is no regular file at the address, or its path contains a symbolic link.
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
    """Open a regular file on a disk once, and yield an object that reads only through this file descriptor.

    Symbolic links are followed. A Zarr store, or an object in an object store, is yielded unchanged.
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
    """List the paths at the address of an inbox; symbolic links are resolved only in the path of the folder."""
    if path.is_dir():
        return [file.path for file in local_matches(_without_links(path))]
    folder = _without_links(path.parent)
    if os.path.lexists(path) or not glob.has_magic(path.name):
        return [folder / path.name]
    return sorted(folder / match for match in glob.glob(path.name, root_dir=folder))  # noqa: PTH207


def _without_links(folder: Path) -> Path:
    return Path(os.path.realpath(folder))


def _sighted(path: Path) -> Sighting | None:
    """Return the current state of a regular file or symbolic link; None for other paths, or if nothing exists there."""
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
