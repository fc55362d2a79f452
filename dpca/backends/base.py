"""The interface of a storage place, and concurrent requests to a remote place.

A *place* holds datasets and artifacts. It is a local folder, a prefix in an object store, or a read-only web server.
"""

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from dpca.backends.atomic_files import MOST_BYTES
from dpca.errors import Unavailable

if TYPE_CHECKING:
    from zarr.abc.store import Store


_ATTEMPTS = 3


@dataclass(frozen=True, slots=True)
class Stored:
    """The content of a small file, with a tag (such as an ETag) that changes when the content changes."""

    payload: bytes
    tag: str | None = None


class Place(Protocol):
    """The interface of a place: a tree of small files and published folders.

    A published folder never changes. Every method raises `Unavailable` with a one-line message if the place cannot be
    used.
    """

    @property
    def lists(self) -> bool:
        """True if the place can list the files of a folder; a web server cannot."""

    @property
    def address(self) -> str:
        """The address from which `open_place` or `open_published` opens this place again."""

    def at(self, path: str) -> str:
        """Return the full address of a path within this place, for messages."""

    def read(self, path: str, *, most: int = MOST_BYTES) -> Stored:
        """Read a small file.

        Raises
        ------
        FileNotFoundError
            If no such file exists.
        Corrupt
            If the path is not a regular file, or the file has more than `most` bytes; then it is not read in full.
        """

    def write(self, path: str, payload: bytes, *, over: Stored | None) -> bool:
        """Write a small file atomically.

        Parameters
        ----------
        path : str
        payload : bytes
            The new content of the file.
        over : Stored or None
            The content to be replaced, as `read` returned it; None if there was no file. An object store replaces only
            this content; if the present content differs, it writes nothing and returns False. A local folder always
            replaces the file and returns True, because there a lock excludes other writers.
        """

    def names(self, folder: str) -> list[str]:
        """Return the sorted names of the files and folders in a folder; an empty list if the folder does not exist."""

    def paths(self, folder: str) -> list[str]:
        """Return the paths of all files at any depth below a folder, relative to the folder, without hidden ones."""

    def tags(self, folder: str) -> dict[str, str | None]:
        """Return the tag of each file in a folder by name, as `read` would return it; a store may omit some tags.

        The tags are read by one listing of the folder, regardless of the number of files.
        """

    def holds(self, folder: str, *, marker: str) -> bool:
        """Return whether a published folder exists at this path; `marker` is the file that is written last."""

    def read_folder(self, folder: str, *, most: int = MOST_BYTES) -> dict[str, bytes]:
        """Read all files of a folder into memory, each file once; return the contents by relative path.

        Raises
        ------
        OSError
            If the folder does not exist or a file cannot be read.
        Corrupt, Unavailable
            If there are too many files, or the files have more than `most` bytes. This is checked before reading.
        """

    def publish(self, staged: Path, folder: str, *, marker: str) -> bool:
        """Publish a complete local folder atomically and durably.

        Parameters
        ----------
        staged : Path
            The local folder to publish. A local place moves this folder, which must be on the same file system. An
            object store copies the files, except hidden files at the top of the folder, which are notes of the writer.
        folder : str
            The path at which the folder is published.
        marker : str
            The name of a file at the top of the folder. This file is written last, and marks the folder as complete.

        Returns
        -------
        bool
            False if a folder already exists at this path; the existing folder is then left unchanged.
        """

    def remove(self, folder: str, *, marker: str) -> None:
        """Remove a published folder if it exists. The folder disappears as a whole before its files are deleted.

        Several processes may remove the same folder at the same time. Hidden files that a killed process left behind
        are removed too.
        """

    def zarr_store(self) -> "Store":
        """Return a read-only Zarr store with the files of this place."""

    def reaching(self) -> AbstractContextManager[None]:
        """Return a context that raises `Unavailable` if this place cannot be reached."""


def write_and_check(place: Place, path: str, payload: bytes) -> None:
    """Write or replace a small file, read it back, and repeat the write if the content differs.

    Raises
    ------
    Unavailable
        If the place acknowledges the writes but still returns other content.
    """
    for _ in range(_ATTEMPTS + 1):
        try:
            standing = place.read(path)
        except FileNotFoundError:
            standing = None
        if standing is not None and standing.payload == payload:
            return
        place.write(path, payload, over=standing)
    raise Unavailable(
        f"{place.at(path)} does not read back as it was written; a store must keep the writes that it acknowledges; "
        "check it, and run the same request again"
    )


_AT_ONCE = 8  # concurrent requests


def each[Result](function: Callable[[str], Result], paths: Iterable[str]) -> list[Result]:
    """Call a function for each path, several at a time, and return the results in order; stop at the first failure."""
    pool = ThreadPoolExecutor(_AT_ONCE)
    try:
        return list(pool.map(function, paths))
    finally:
        pool.shutdown(cancel_futures=True)
