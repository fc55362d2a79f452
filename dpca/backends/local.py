"""A storage place in a local folder, and the functions that open any storage place by its address."""

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
    """A local folder as a `Place`. A folder is published by syncing its files and one rename."""

    lists: ClassVar[bool] = True

    root: Path

    @property
    def address(self) -> str:
        """The path of the local folder."""
        return str(self.root)

    def at(self, path: str) -> str:
        """Return the full path of a path within this place."""
        return str(self.root / path)

    def read(self, path: str, *, most: int = MOST_BYTES) -> Stored:
        """Read a small file. Its tag is taken before the read, so any later change of the file changes the tag."""
        address = f"{self.root}/{path}"  # use a string path, because creating thousands of Path objects is slow
        try:
            payload, status = read_with_status(address, most=most)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise _unreadable(Path(address), error) from error
        return Stored(payload, _tag(status))

    def write(self, path: str, payload: bytes, *, over: Stored | None) -> bool:
        """Write or replace a small file, whatever its present content is, and return True."""
        with writing(self.root):
            make_folder((self.root / path).parent)
            write_atomically(self.root / path, payload)
        return True

    def names(self, folder: str) -> list[str]:
        """Return the sorted names of the files and folders in a folder."""
        try:
            return sorted(os.listdir(self.root / folder))  # noqa: PTH208 - one path object per name takes ten times as long
        except FileNotFoundError:
            return []
        except OSError as error:
            raise _unreadable(self.root / folder, error) from error

    def paths(self, folder: str) -> list[str]:
        """Return the relative paths of all files below a folder, without hidden ones."""
        try:
            found = relative_paths(self.root / folder)
        except FileNotFoundError:
            return []
        except OSError as error:
            raise _unreadable(self.root / folder, error) from error
        return sorted(path for path in found if not is_hidden(path))

    def tags(self, folder: str) -> dict[str, str | None]:
        """Return the tag of each file in a folder, by name."""
        found: dict[str, str | None] = {}
        try:
            with os.scandir(self.root / folder) as entries:
                for entry in entries:
                    with suppress(FileNotFoundError):  # skip a temporary file that was renamed since the listing
                        found[entry.name] = _tag(entry.stat())
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise _unreadable(self.root / folder, error) from error
        return found

    def holds(self, folder: str, *, marker: str) -> bool:
        """Return whether a published folder exists at this path."""
        return (self.root / folder).is_dir()

    def read_folder(self, folder: str, *, most: int = MOST_BYTES) -> dict[str, bytes]:
        """Read all files of a folder into memory; return the contents by relative path."""
        try:
            return read_tree(self.root / folder, most=most)
        except PermissionError as error:
            raise _unreadable(self.root / folder, error) from error

    def publish(self, staged: Path, folder: str, *, marker: str) -> bool:
        """Sync a staged folder to the disk and move it to its final path."""
        address = self.root / folder
        with writing(self.root):
            make_folder(address.parent)
            if move_folder(staged, address):
                return True
            sync_folder(address.parent)  # sync for the process that moved the folder and may have been killed
            return False

    def remove(self, folder: str, *, marker: str) -> None:
        """Rename a folder to a hidden name, then delete it. Several processes may do this at the same time."""
        address = self.root / folder
        hidden = address.with_name(f".{address.name}.removed")
        with writing(self.root):
            with suppress(FileNotFoundError):
                address.rename(hidden)
                sync_folder(address.parent)
            shutil.rmtree(hidden, onexc=_unless_gone)

    def zarr_store(self) -> "Store":
        """Return a read-only Zarr store with the files of the folder."""
        from zarr.storage import LocalStore

        return LocalStore(self.root, read_only=True)

    @contextmanager
    def reaching(self) -> Iterator[None]:
        """Return a context that does nothing, because the methods of a local place report unreadable files."""
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
    """Open the storage place at an address, which is ``s3://bucket/prefix`` or a local folder.

    Raises
    ------
    Invalid
        If the address is a URL that does not begin with ``s3://``.
    NotInstalled
        If the address is an object store, and the client package for object stores is not installed.
    """
    if isinstance(address, str) and "://" in address:
        with needing("an object store"):  # import the client only if an object store is used
            from dpca.backends.s3 import ObjectPlace

        return ObjectPlace(address)
    return LocalPlace(Path(address).expanduser().absolute())


def open_published(address: str | Path) -> Place:
    """Open the storage place of a registry, which may also be a read-only web server (``https://host/path/registry``).

    All addresses of `open_place` are accepted too.

    Raises
    ------
    Invalid
        If the address is a URL that does not begin with ``s3://``, ``https://`` or ``http://``.
    """
    if isinstance(address, str) and address.startswith(_WEB):
        from dpca.backends.web import WebPlace  # import the HTTP client only if a web server is used

        return WebPlace(address)
    return open_place(address)
