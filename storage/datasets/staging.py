"""Staging folder of a snapshot, and its recovery after a writer was killed.

A writer holds a lock on its staging folder while its process lives. A staging folder without a lock was therefore left
by a killed writer. The next ingest into the same dataset resumes or removes such a folder.

Examples
--------
::

    with begin(folder, request=request, resume=False, is_registered=catalog.has, discard=discard) as staging:
        ...                                   # write into staging.path
        place.publish(staging.path, f"datasets/news/{staging.snapshot}", marker=MARKER)
"""

import fcntl
import json
import os
import secrets
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpca.backends.atomic_files import make_folder, write_atomically
from dpca.errors import StorageError, Unavailable

_PARTIAL = ".partial"
_REMOVED = ".removed"  # suffix of the name of a folder that is about to be deleted
_REQUEST = ".request"
_BLOCKS = ".blocks"
_EXTENT = 5 * 8  # bytes


type Extent = tuple[int, int, int, int, int]
"""Numbers of records, rows and stored values of a block, the block's checksum, and the checksum of its hashed ids."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Staging:
    """A private folder for a snapshot being written, locked against other processes.

    Attributes
    ----------
    path : Path, the folder
    snapshot : str, the id that the snapshot will have
    resumed : bool, whether the folder was left by a killed ingest with the same request, and has blocks
    """

    path: Path
    snapshot: str
    resumed: bool

    def extents(self) -> list[Extent]:
        """Return the extent (sizes and checksums) of each block that was written completely."""
        return _extents(self.path)

    def block_written(self, extent: Extent) -> None:
        """Record the extent (sizes and checksums) of one more block that was written completely."""
        with (self.path / _BLOCKS).open("ab") as file:
            file.write(np.array(extent, dtype="<i8").tobytes())

    def settle(self, address: Path) -> None:
        """Remove the notes of the ingest (request and extents of blocks) from the folder of a registered snapshot."""
        _remove_notes(address)


@contextmanager
def begin(
    folder: Path,
    *,
    request: Mapping[str, Any],
    resume: bool,
    is_registered: Callable[[str], bool],
    discard: Callable[[str], None],
) -> Iterator[Staging]:
    """Create or resume a staging folder for a snapshot, and remove other folders that killed ingests left.

    Parameters
    ----------
    folder : Path
        The dataset's folder. It is created if it is missing, and removed at the end if it is empty.
    request : mapping
        Everything that determines the written blocks. Only a folder with an equal request is resumed.
    resume : bool
        Whether to resume a folder with an equal request. If there is none, a new folder is created.
    is_registered : callable
        Returns whether a snapshot id is registered in the catalog. A published snapshot that is not registered was left
        by a killed ingest, and is removed.
    discard : callable
        Removes the files of a snapshot from the store of datasets. A killed ingest may leave some of a snapshot's files
        in an object store.

    Guarantees
    ----------
    A folder locked by a living process stays unchanged. At the end of the context, this ingest's folder is removed
    unless it was published, with two exceptions. After an interrupt by the user, or if the store of datasets was
    unavailable, the folder is kept for resuming. After a disk failure or on a full disk, the folder is kept if it
    contains complete blocks.
    """
    wanted = json.dumps(request, sort_keys=True)
    snapshot, held, resumed, keep = secrets.token_hex(16), -1, False, False
    try:
        with _locked(folder):
            living = set()
            for left in sorted(path for path in folder.iterdir() if path.is_dir()):
                part = _part_of(left)
                descriptor = _try_lock(left)
                if descriptor is None:
                    living.add(part)
                    continue
                try:
                    if resume and not resumed and _is_resumable(left, wanted=wanted, is_registered=is_registered):
                        snapshot, held, resumed, keep = part, descriptor, True, True
                        living.add(part)
                    else:
                        _clear(left, is_registered=is_registered, discard=discard)
                finally:
                    if descriptor != held:
                        os.close(descriptor)
            for notes in sorted(folder.glob(quarantine_notes(folder / "*").name)):
                if (part := notes.name.partition(".")[0]) not in living and not is_registered(part):
                    notes.unlink(missing_ok=True)
            path = _partial(folder, snapshot)
            if not resumed:
                make_folder(path)
                taken = _try_lock(path)
                assert taken is not None, "no other process can have locked the new folder"
                held = taken
                write_atomically(path / _REQUEST, wanted.encode())
        keep = False
        yield Staging(path=path, snapshot=snapshot, resumed=resumed)
    except (KeyboardInterrupt, Unavailable):
        keep = True
        raise
    except StorageError:
        raise
    except OSError:  # the disk is full or broken
        keep = bool(_extents(_partial(folder, snapshot)))
        raise
    finally:
        if held != -1:
            if not keep:
                shutil.rmtree(_partial(folder, snapshot), ignore_errors=True)
            os.close(held)
        remove_if_empty(folder)


def _partial(folder: Path, snapshot: str) -> Path:
    return folder / f".{snapshot}{_PARTIAL}"


def _is_partial(left: Path) -> bool:
    return left.name.startswith(".") and left.name.endswith(_PARTIAL)


def _part_of(left: Path) -> str:
    """Return the id of the snapshot in a folder, which may be a staging folder or a published folder."""
    return left.name[1 : -len(_PARTIAL)] if _is_partial(left) else left.name


def _is_resumable(left: Path, *, wanted: str, is_registered: Callable[[str], bool]) -> bool:
    return (
        _is_partial(left) and not is_registered(_part_of(left)) and _request_of(left) == wanted and bool(_extents(left))
    )


def _clear(left: Path, *, is_registered: Callable[[str], bool], discard: Callable[[str], None]) -> None:
    """Remove the folder of a killed ingest; if its snapshot is registered, remove only the notes of the ingest."""
    found, part = _request_of(left), _part_of(left)
    if _is_partial(left) and not is_registered(part):
        discard(part)
    if _is_partial(left) or left.name.endswith(_REMOVED) or (found and not is_registered(part)):
        shutil.rmtree(left, ignore_errors=True)
    elif found:
        _remove_notes(left)


def quarantine_notes(folder: Path) -> Path:
    """Return the path of the private report on a snapshot's bad rows, a local file next to the snapshot's folder."""
    return folder.with_name(f"{folder.name}.rejected.csv")


def remove_if_empty(folder: Path) -> None:
    """Remove a dataset's folder if it is empty; another process that needs the folder creates it again."""
    descriptor = _lock(folder)
    if descriptor is not None:
        with suppress(OSError):
            folder.rmdir()
        os.close(descriptor)


@contextmanager
def scratch_folder(home: Path) -> Iterator[Path]:
    """Create an empty folder of mode 0700 for temporary data, and remove it at the end of the context.

    Folders that killed processes left are removed first.
    """
    parent = home / "scratch"
    make_folder(parent)
    with _locked(parent):
        for left in sorted(parent.iterdir()):
            if (descriptor := _try_lock(left)) is not None:
                shutil.rmtree(left, ignore_errors=True)
                os.close(descriptor)
        path = parent / secrets.token_hex(8)
        make_folder(path)
        held = _try_lock(path)
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
        if held is not None:
            os.close(held)


def _extents(path: Path) -> list[Extent]:
    try:
        raw = (path / _BLOCKS).read_bytes()
    except OSError:
        return []
    whole: NDArray[np.int64] = np.frombuffer(raw[: len(raw) // _EXTENT * _EXTENT], dtype="<i8")
    return [(records, rows, nnz, one, other) for records, rows, nnz, one, other in whole.reshape(-1, 5).tolist()]


def _request_of(path: Path) -> str | None:
    try:
        return (path / _REQUEST).read_text()
    except (OSError, ValueError):
        return None


def _remove_notes(folder: Path) -> None:
    (folder / _BLOCKS).unlink(missing_ok=True)
    (folder / _REQUEST).unlink(missing_ok=True)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Create a folder and hold its lock in the context; the folder cannot be removed while the lock is held."""
    descriptor = None
    while descriptor is None:
        make_folder(folder)
        descriptor = _lock(folder)
    try:
        yield
    finally:
        os.close(descriptor)


def _lock(folder: Path) -> int | None:
    """Wait for the lock of a folder.

    Return the file descriptor that holds the lock, or None if the folder was removed meanwhile.
    """
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except FileNotFoundError:
        return None
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    try:
        if os.path.samestat(os.fstat(descriptor), folder.stat()):
            return descriptor
    except FileNotFoundError:
        pass
    os.close(descriptor)
    return None


def _try_lock(folder: Path) -> int | None:
    """Try to lock a folder without waiting.

    Return the file descriptor that holds the lock, or None if another process holds it.
    """
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return None
    return descriptor
