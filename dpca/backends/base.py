"""The protocol of a place that holds datasets and artifacts, and concurrent requests to a remote place.

A place is a local folder, or a prefix of an object store.
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
    """The content of a small file, with a tag that changes when the content does."""

    payload: bytes
    tag: str | None = None


class Place(Protocol):
    """A tree of small files and published folders.

    Every method raises `Unavailable` with a one-line message if the place cannot be used.
    """

    @property
    def lists(self) -> bool:
        """True if the place can list a folder; a web server cannot."""

    @property
    def address(self) -> str:
        """The address with which `open_place` reopens the place."""

    def at(self, path: str) -> str:
        """Return the address of a path."""

    def read(self, path: str, *, most: int = MOST_BYTES) -> Stored:
        """Read a small file.

        Raises
        ------
        FileNotFoundError
            If there is none.
        Corrupt
            If it is no file, or holds more than `most` bytes. This is checked before reading.
        """

    def write(self, path: str, payload: bytes, *, over: Stored | None) -> bool:
        """Write a small file atomically.

        Parameters
        ----------
        path : str
        payload : bytes
        over : Stored or None
            The content that `read` returned; None if it found none. An object store overwrites nothing else, and
            returns False if the present content differs. A local folder relies on the writers' lock: it replaces the
            file and returns True.
        """

    def names(self, folder: str) -> list[str]:
        """Return the sorted names of files and folders directly in a folder; empty if the folder does not exist."""

    def paths(self, folder: str) -> list[str]:
        """Return the paths of all files below a folder, relative to it, without hidden names."""

    def tags(self, folder: str) -> dict[str, str | None]:
        """Return the tags of the files directly in a folder by name, as in `read`; a store may omit some.

        It needs one listing, regardless of the size of the folder.
        """

    def holds(self, folder: str, *, marker: str) -> bool:
        """Return whether a published folder exists at this path."""

    def read_folder(self, folder: str, *, most: int = MOST_BYTES) -> dict[str, bytes]:
        """Read all files of a folder into memory, each once.

        Raises
        ------
        OSError
            If not all of them can be read.
        Corrupt, Unavailable
            If there are too many files, or they hold more than `most` bytes. This is checked before reading.
        """

    def publish(self, staged: Path, folder: str, *, marker: str) -> bool:
        """Publish a complete local folder atomically and durably.

        Parameters
        ----------
        staged : Path
            The folder to publish. A local place requires it on the same file system, and moves it. Hidden files at its
            top are notes of the writer, which are not copied to an object store.
        folder : str
        marker : str
            The name of the file, at the top of the folder, that is written last.

        Returns
        -------
        bool
            False if the folder already exists; it is then left unchanged.
        """

    def remove(self, folder: str, *, marker: str) -> None:
        """Remove a published folder if it exists; it disappears as a whole before its files are deleted.

        Other processes may remove it at the same time. Hidden remains of a killed process are removed too.
        """

    def zarr_store(self) -> "Store":
        """Return a read-only Zarr store of this place."""

    def reaching(self) -> AbstractContextManager[None]:
        """Convert failures to reach the place within this context into `Unavailable`."""


def write_and_check(place: Place, path: str, payload: bytes) -> None:
    """Write a small file, replacing the present one, until it reads back correctly.

    Raises
    ------
    Unavailable
        If the place acknowledges the write but does not return the same content.
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
    """Call a function for each path, several at a time; the first failure stops the calls."""
    pool = ThreadPoolExecutor(_AT_ONCE)
    try:
        return list(pool.map(function, paths))
    finally:
        pool.shutdown(cancel_futures=True)
