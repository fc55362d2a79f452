"""Where datasets and artifacts stand: a local folder, or a prefix of an S3-compatible object store.

Both have one shape. Files are named by relative POSIX paths. A small file is written whole or not at all. A folder is
built on the local disk and then *published*: whoever looks sees all of it or none of it, and it never changes again.
One file of each published folder is its *marker*, and in an object store a folder without its marker does not exist.
The paths are the same in both, so a copy of one is the other.

Examples
--------
>>> import tempfile
>>> place = open_place(tempfile.mkdtemp())
>>> place.write("registry/names/news.json", b"{}", over=None)
True
>>> place.read("registry/names/news.json").payload
b'{}'
"""

import shutil
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from storage.durable import (
    MOST_BYTES,
    make_folder,
    move_folder,
    read_file,
    read_tree,
    sync_folder,
    write_atomically,
    writing,
)
from storage.errors import Unavailable

if TYPE_CHECKING:
    from zarr.abc.store import Store


@dataclass(frozen=True, slots=True)
class Stored:
    """The content of a small file, and the tag that tells it from what others write there later."""

    payload: bytes
    tag: str | None = None


class Place(Protocol):
    """A tree of small files and published folders.

    Every method raises `Unavailable`, in one line, when the place cannot be used.
    """

    @property
    def address(self) -> str:
        """What `open_place` opens it by again."""

    def at(self, path: str) -> str:
        """Return the address of a path."""

    def read(self, path: str, *, most: int = MOST_BYTES) -> Stored:
        """Read a small file.

        Raises
        ------
        FileNotFoundError
            When there is none.
        Corrupt
            When it is no file, or holds more than `most` bytes: known before it is read.
        """

    def write(self, path: str, payload: bytes, *, over: Stored | None) -> bool:
        """Write a small file whole or not at all.

        Parameters
        ----------
        path : str
        payload : bytes
        over : Stored or None
            What `read` found there, None when it found nothing. An object store writes over nothing else, and returns
            False when something else stands there. In a local folder the writers' lock has to do: the file is
            replaced, and the answer is True.
        """

    def names(self, folder: str) -> list[str]:
        """Return the sorted names of files and folders directly in a folder; none when there is no such folder."""

    def holds(self, folder: str, *, marker: str) -> bool:
        """Say whether a published folder stands there."""

    def read_folder(self, folder: str, *, most: int = MOST_BYTES) -> dict[str, bytes]:
        """Read all files of a folder into memory, each once.

        Raises
        ------
        OSError
            When they cannot all be had.
        Corrupt, Unavailable
            When they are too many, or hold more than `most` bytes: known before they are read.
        """

    def publish(self, staged: Path, folder: str, *, marker: str) -> bool:
        """Make a complete local folder visible, whole and durably.

        Parameters
        ----------
        staged : Path
            For a local place, on the same file system; it is then moved. Hidden files in its top are notes of the
            writer, which an object store is not given.
        folder : str
        marker : str
            Name of the file, in the top of the folder, that comes last.

        Returns
        -------
        bool
            False when something stands there already; it is then left as it is.
        """

    def remove(self, folder: str, *, marker: str) -> None:
        """Remove a published folder, if there is one; it disappears whole, before its files go.

        Others may remove it at the same time. What a killed one hid and left is removed too.
        """

    def zarr_store(self) -> "Store":
        """Return a read-only Zarr store of this place."""

    def reaching(self) -> AbstractContextManager[None]:
        """Turn what goes wrong on the way to the place, inside, into `Unavailable`."""


def open_place(address: str | Path) -> Place:
    """Return the place at an address: ``s3://bucket/prefix``, or a local folder.

    Raises
    ------
    Invalid
        When it is another kind of URL.
    """
    if isinstance(address, str) and "://" in address:
        from storage.objects import ObjectPlace  # at use: whoever reads a folder needs no client of object stores

        return ObjectPlace(address)
    return LocalPlace(Path(address).expanduser().absolute())


@dataclass(frozen=True, slots=True)
class LocalPlace:
    """A folder; see `Place`. Publishing is a sync and one rename."""

    root: Path

    @property
    def address(self) -> str:
        """The folder's path."""
        return str(self.root)

    def at(self, path: str) -> str:
        """Return the address of a path."""
        return str(self.root / path)

    def read(self, path: str, *, most: int = MOST_BYTES) -> Stored:
        """Read a small file."""
        try:
            return Stored(read_file(self.root / path, most=most))
        except FileNotFoundError:
            raise
        except OSError as error:
            raise _unreadable(self.root / path, error) from error

    def write(self, path: str, payload: bytes, *, over: Stored | None) -> bool:
        """Replace a small file."""
        with writing(self.root):
            make_folder((self.root / path).parent)
            write_atomically(self.root / path, payload)
        return True

    def names(self, folder: str) -> list[str]:
        """Return the names in a folder."""
        try:
            return sorted(path.name for path in (self.root / folder).iterdir())
        except FileNotFoundError:
            return []
        except OSError as error:
            raise _unreadable(self.root / folder, error) from error

    def holds(self, folder: str, *, marker: str) -> bool:
        """Say whether the folder is there."""
        return (self.root / folder).is_dir()

    def read_folder(self, folder: str, *, most: int = MOST_BYTES) -> dict[str, bytes]:
        """Read all files of a folder."""
        try:
            return read_tree(self.root / folder, most=most)
        except PermissionError as error:
            raise _unreadable(self.root / folder, error) from error

    def publish(self, staged: Path, folder: str, *, marker: str) -> bool:
        """Sync a folder and move it into place."""
        address = self.root / folder
        with writing(self.root):
            make_folder(address.parent)
            if move_folder(staged, address):
                return True
            sync_folder(address.parent)  # whoever moved it there may have been killed before this
            return False

    def remove(self, folder: str, *, marker: str) -> None:
        """Move a folder out of sight, then remove it; others may do so, or sweep it up, at the same time."""
        address = self.root / folder
        hidden = address.with_name(f".{address.name}.removed")
        with writing(self.root):
            with suppress(FileNotFoundError):
                address.rename(hidden)
                sync_folder(address.parent)
            shutil.rmtree(hidden, onexc=_unless_gone)

    def zarr_store(self) -> "Store":
        """Return a store of the folder."""
        from zarr.storage import LocalStore

        return LocalStore(self.root, read_only=True)

    @contextmanager
    def reaching(self) -> Iterator[None]:
        """Change nothing: a local file that cannot be read is the reader's to name."""
        yield


def _unless_gone(_function: object, _path: str, error: BaseException) -> None:
    if not isinstance(error, FileNotFoundError):
        raise error


def _unreadable(path: Path, error: OSError) -> Unavailable:
    return Unavailable(
        f"{path} cannot be read ({error.strerror or error}); a consumer needs all of its registry; "
        "ask its owner for access, or for a copy"
    )
