"""Make files survive a crash: written whole or not at all, and known by a digest.

A file becomes visible by one rename of a synced temporary file; a folder becomes visible by one rename of a
synced staged folder. Nothing here knows what the bytes mean.

Examples
--------
>>> import tempfile
>>> folder = Path(tempfile.mkdtemp())
>>> write_atomically(folder / "note.txt", b"kept")
>>> digest_tree(folder) == digest_files({"note.txt": b"kept"})
True
"""

import errno
import io
import os
import shutil
import stat
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

from storage.backends.crash_points import reached
from storage.backends.private import FILE, FOLDER, close_tree
from storage.errors import Corrupt, StorageError, Unavailable

MOST_BYTES = 1 << 34
"""Bytes of a file, or of a published folder, at most that are read into memory."""
MOST_FILES = 1 << 12
"""Files of a published folder at most that are read at once."""
_PIECE = 1 << 12
_ATTEMPTS = 100


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Turn failures to write below a folder into one clear error.

    Raises
    ------
    Unavailable
        When something below the folder cannot be written: the disk is full, or access is denied.
    """
    try:
        yield
    except StorageError:
        raise
    except OSError as error:
        raise Unavailable(
            f"{folder} cannot be written ({error.strerror or error}); make room or correct the permissions, "
            "and run the same request again."
        ) from None


def sync_file(path: Path | str) -> None:
    """Flush the content of one file to the disk."""
    _sync(path, os.O_RDONLY)


def sync_folder(path: Path | str) -> None:
    """Flush the entries of one folder (names, renames, removals) to the disk."""
    _sync(path, os.O_RDONLY | os.O_DIRECTORY)


def sync_tree(root: Path) -> None:
    """Flush every file and folder under `root`, and `root` itself, to the disk."""
    for folder, _, names in os.walk(root, topdown=False):  # no path objects: each takes as long as a sync
        for name in names:
            sync_file(f"{folder}/{name}")
        sync_folder(folder)


def make_folder(path: Path) -> None:
    """Create a folder and its missing parents, durably, for their owner alone; an existing one is left as it is."""
    attempts = _ATTEMPTS
    while not path.is_dir():
        make_folder(path.parent)
        attempts -= 1
        try:
            path.mkdir(mode=FOLDER, exist_ok=True)
            path.chmod(FOLDER)  # whatever the umask
            sync_folder(path.parent)
        except (FileNotFoundError, FileExistsError):  # removed meanwhile, as empty folders are, or there can be none
            if attempts <= 0:
                raise


def write_atomically(path: Path, payload: bytes) -> None:
    """Write a file whole or not at all, durably, for its owner alone; an existing one is replaced.

    Parameters
    ----------
    path : Path
        Where the file appears. Its folder must exist.
    payload : bytes
        The whole content.

    Guarantees
    ----------
    A reader sees the old content or the new content, also after a crash. A killed writer leaves at most a
    hidden file ``.<random>.tmp`` beside it. The mode holds from the first byte on, whatever the umask.
    """
    temporary = path.with_name(f".{uuid4().hex}.tmp")
    try:
        with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, FILE), "wb") as file:
            os.fchmod(file.fileno(), FILE)
            file.write(payload)
            file.flush()
            os.fsync(file.fileno())
        reached("file.synced")
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    reached("file.renamed")
    sync_folder(path.parent)


def move_folder(staged: Path, address: Path) -> bool:
    """Make a staged folder visible at its address, whole and durably, to its owner alone.

    Parameters
    ----------
    staged : Path
        A complete folder on the file system of `address`.
    address : Path
        Where it appears. The parent folder must exist.

    Returns
    -------
    bool
        False when something stands at `address` already; both are then left untouched.
    """
    close_tree(staged)
    sync_tree(staged)
    reached("folder.synced")
    try:
        staged.rename(address)
    except OSError:
        if address.exists():
            return False
        raise
    reached("folder.renamed")
    sync_folder(address.parent)
    sync_folder(staged.parent)
    return True


def write_files(root: Path, files: Mapping[str, bytes]) -> None:
    """Write files by their relative paths, and the folders that they need; `move_folder` then makes them durable."""
    for folder in {relative.rpartition("/")[0] for relative in files}:  # no path objects: each takes as long as a write
        os.makedirs(f"{root}/{folder}", exist_ok=True)  # noqa: PTH103
    for relative, payload in files.items():
        with open(f"{root}/{relative}", "wb") as file:  # noqa: PTH123
            file.write(payload)


def write_folder(path: Path, files: Mapping[str, bytes]) -> None:
    """Write a new folder of files by their relative paths, whole or not at all, durably, for its owner alone.

    Raises
    ------
    FileExistsError
        If something stands there.
    """
    staged = path.with_name(f".{uuid4().hex}.tmp")
    try:
        write_files(staged, files)
        if not move_folder(staged, path):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path))
    finally:
        shutil.rmtree(staged, ignore_errors=True)


def read_file(path: Path | str, *, most: int) -> bytes:
    """Read a regular file of a bounded size; anything else is refused before a byte of it is read.

    Raises
    ------
    Corrupt
        If it is a pipe or a device, which another person may have put there, or holds more than `most` bytes.
    OSError
        If it cannot be opened.
    """
    return read_with_status(path, most=most)[0]


def read_with_status(path: Path | str, *, most: int) -> tuple[bytes, os.stat_result]:
    """Read a file as `read_file` does; return its status of before it was read, too."""
    with open_regular(path) as file:
        status = os.fstat(file.fileno())
        if status.st_size <= most:
            pieces, length = [], 0
            while length <= most and (piece := file.read(max(status.st_size - length, _PIECE) + 1)):
                pieces.append(piece)
                length += len(piece)
                if length == status.st_size:
                    break
            if length <= most:
                return b"".join(pieces), status
    raise _irregular(path, most)


@contextmanager
def open_regular(path: Path | str) -> Iterator[io.FileIO]:
    """Open a regular file once, to check and read it; links are followed, and a pipe is not waited for.

    Raises
    ------
    Corrupt
        If it is a pipe or a device, which another person may have put there.
    OSError
        If it cannot be opened, or is a folder.
    """
    with io.FileIO(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise _irregular(path, MOST_BYTES)
        yield file


def _irregular(path: Path | str, most: int) -> Corrupt:
    return Corrupt(
        f"{path} is no regular file of at most {most} bytes; what is published is; remove it, or restore it from a copy"
    )


def check_sizes(address: str, sizes: Collection[int], *, most: int) -> None:
    """Refuse a folder that is more than is read into memory at once.

    Raises
    ------
    Corrupt
        If it has more than `MOST_FILES` files.
    Unavailable
        If they hold more than `most` bytes.
    """
    if len(sizes) > MOST_FILES:
        raise Corrupt(
            f"{address} holds more than {MOST_FILES} files; a published folder does not; restore it from a copy"
        )
    if sum(sizes) > most:
        raise Unavailable(
            f"{address} holds {sum(sizes)} bytes; this machine reads at most {most} at once; read it on a larger one, "
            "or restore it from a copy"
        )


def _sync(path: Path | str, flags: int) -> None:
    descriptor = os.open(path, flags)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
