"""A place in a local folder, and the functions that open a place by its address."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from dpca.backends.atomic_files import (
    MOST_BYTES,
    is_hidden,
    make_folder,
    move_folder,
    read_tree,
    read_with_status,
    relative_paths,
    sync_folder,
    write_atomically,
    writing,
)
from dpca.backends.base import Place, Stored
from dpca.errors import Unavailable
from dpca.installed import needing

if TYPE_CHECKING:
    from zarr.abc.store import Store


@dataclass(frozen=True, slots=True)
class LocalPlace:
    """A local folder as a `Place`. Publishing is a sync and one rename."""

    lists: ClassVar[bool] = True

    root: Path

    @property
    def address(self) -> str:
        """The folder's path."""
        return str(self.root)

    def at(self, path: str) -> str:
        """Return the address of a path."""
        return str(self.root / path)

    def read(self, path: str, *, most: int = MOST_BYTES) -> Stored:
        """Read a small file; content written during the read has another tag."""
        address = f"{self.root}/{path}"  # no path object, since thousands of files are read at once
        try:
            payload, status = read_with_status(address, most=most)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise _unreadable(Path(address), error) from error
        return Stored(payload, _tag(status))

    def write(self, path: str, payload: bytes, *, over: Stored | None) -> bool:
        """Replace a small file."""
        with writing(self.root):
            make_folder((self.root / path).parent)
            write_atomically(self.root / path, payload)
        return True

    def names(self, folder: str) -> list[str]:
        """Return the names in a folder."""
        try:
            return sorted(os.listdir(self.root / folder))  # noqa: PTH208 - a path a name takes ten times as long
        except FileNotFoundError:
            return []
        except OSError as error:
            raise _unreadable(self.root / folder, error) from error

    def paths(self, folder: str) -> list[str]:
        """Return the paths below a folder."""
        try:
            found = relative_paths(self.root / folder)
        except FileNotFoundError:
            return []
        except OSError as error:
            raise _unreadable(self.root / folder, error) from error
        return sorted(path for path in found if not is_hidden(path))

    def tags(self, folder: str) -> dict[str, str | None]:
        """Return the tags of the files in a folder."""
        found: dict[str, str | None] = {}
        try:
            with os.scandir(self.root / folder) as entries:
                for entry in entries:
                    with suppress(FileNotFoundError):  # a temporary file that was renamed meanwhile
                        found[entry.name] = _tag(entry.stat())
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise _unreadable(self.root / folder, error) from error
        return found

    def holds(self, folder: str, *, marker: str) -> bool:
        """Return whether the folder exists."""
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
            sync_folder(address.parent)  # the process that moved it there may have been killed before its sync
            return False

    def remove(self, folder: str, *, marker: str) -> None:
        """Rename a folder to a hidden name, then delete it; other processes may do so at the same time."""
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
        """Do nothing, since reading reports any local file that cannot be read."""
        yield


def _tag(status: os.stat_result) -> str:
    return f"{status.st_mtime_ns}-{status.st_size}"


def _unless_gone(_function: object, _path: str, error: BaseException) -> None:
    if not isinstance(error, FileNotFoundError):
        raise error


def _unreadable(path: Path, error: OSError) -> Unavailable:
    return Unavailable(
        f"{path} cannot be read ({error.strerror or error}); a consumer must be able to read all of the registry; "
        "request access or a copy from its owner"
    )


_WEB = ("https://", "http://")


def open_place(address: str | Path) -> Place:
    """Return the place at an address, which is ``s3://bucket/prefix`` or a local folder.

    Raises
    ------
    Invalid
        If the address is another kind of URL.
    NotInstalled
        If the address is an object store, and its client is not installed.
    """
    if isinstance(address, str) and "://" in address:
        with needing("an object store"):  # imported here, since a folder needs no object store client
            from dpca.backends.s3 import ObjectPlace

        return ObjectPlace(address)
    return LocalPlace(Path(address).expanduser().absolute())


def open_published(address: str | Path) -> Place:
    """Return the place of a registry, at an address of `open_place` or at ``https://host/path/registry`` (read-only).

    Raises
    ------
    Invalid
        If the address is another kind of URL.
    """
    if isinstance(address, str) and address.startswith(_WEB):
        from dpca.backends.web import WebPlace  # imported here, as above

        return WebPlace(address)
    return open_place(address)
