"""The protocol of a place that holds datasets and artifacts, and several requests to it at once.

The protocol of a place that holds datasets and artifacts: a local folder, or a prefix of an object store.

Requests to a distant place, several at once.
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
    """The content of a small file, and the tag that distinguishes it from later content."""

    payload: bytes
    tag: str | None = None


class Place(Protocol):
    """A tree of small files and published folders.

    Every method raises `Unavailable`, in one line, when the place cannot be used.
    """

    @property
    def lists(self) -> bool:
        """Whether it tells what a folder holds; a web server does not."""

    @property
    def address(self) -> str:
        """The address with which `open_place` opens it again."""

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

    def paths(self, folder: str) -> list[str]:
        """Return the paths of all files below a folder, from there, without those whose names are hidden."""

    def tags(self, folder: str) -> dict[str, str | None]:
        """Return the tag of each file directly in a folder, by its name, as `read` would; a store may leave one out.

        It is one listing, whatever the folder holds.
        """

    def holds(self, folder: str, *, marker: str) -> bool:
        """Tell whether a published folder exists there."""

    def read_folder(self, folder: str, *, most: int = MOST_BYTES) -> dict[str, bytes]:
        """Read all files of a folder into memory, each once.

        Raises
        ------
        OSError
            When not all of them can be read.
        Corrupt, Unavailable
            When they are too many, or hold more than `most` bytes; checked before they are read.
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

        Other processes may remove it at the same time. What a killed one left hidden is removed too.
        """

    def zarr_store(self) -> "Store":
        """Return a read-only Zarr store of this place."""

    def reaching(self) -> AbstractContextManager[None]:
        """Turn failures to reach the place, inside this context, into `Unavailable`."""


def write_and_check(place: Place, path: str, payload: bytes) -> None:
    """Write a small file, over what may be there, until it reads back.

    Raises
    ------
    Unavailable
        If the place acknowledges the write and returns something else, or nothing.
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


_AT_ONCE = 8  # requests


def each[Result](function: Callable[[str], Result], paths: Iterable[str]) -> list[Result]:
    """Call a function for each path, several at once; the first failure ends it."""
    pool = ThreadPoolExecutor(_AT_ONCE)
    try:
        return list(pool.map(function, paths))
    finally:
        pool.shutdown(cancel_futures=True)
