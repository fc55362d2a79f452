"""The memory of a consumer, in ``DPCA_STATE_FOLDER``: pinned root keys, and the newest root and pointers seen.

What was seen only grows, under a lock, so several processes share it. Without a folder that can be written nothing is
remembered, and that is said once: an older state put back between two processes would then go unnoticed.
"""

import fcntl
import hashlib
import json
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from storage.artifacts.manifest import canonical_json
from storage.backends.atomic_files import make_folder, write_atomically, writing
from storage.errors import Conflict, Corrupt, Unavailable
from storage.home import state_folder
from storage.registry.roots import Root

_LOG = logging.getLogger("dpca.storage.registry")
_told: set[str] = set()


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """The newest signed pointer of a name that a consumer saw.

    Attributes
    ----------
    number : int
    digest : str, of the signed file
    complete : bool, whether the pointer file beside it was seen in the same state: it never falls back behind that
    """

    number: int
    digest: str
    complete: bool


@dataclass(frozen=True, slots=True)
class Memory:
    """What is remembered of one registry under one pin."""

    folder: Path

    @classmethod
    def of(cls, address: str, keys: Sequence[str]) -> "Memory":
        """Return the memory of a registry, trusted by some keys."""
        return cls(_folder() / _short("\n".join([_one_spelling(address), *sorted(keys)])))

    def root(self) -> Root | None:
        """Return the newest root that was seen."""
        found = _read(self.folder / "root.json")
        try:
            return None if found is None else Root.from_facts(found)
        except ValueError:
            raise _damaged(self.folder / "root.json") from None

    def note_root(self, root: Root) -> None:
        """Remember a root, if it is newer."""

        def is_known() -> bool:
            seen = self.root()
            return seen is not None and seen.version >= root.version

        self._write("root.json", root.facts(), unless=is_known)

    def pointer(self, name: str) -> Seen | None:
        """Return the newest signed pointer of a name that was seen."""
        path = self._path(name)
        found = _read(path)
        try:
            seen = None if found is None else Seen(**found)
        except TypeError:
            raise _damaged(path) from None
        if seen is not None and [type(value) for value in asdict(seen).values()] != [int, str, bool]:
            raise _damaged(path)
        return seen

    def note_pointer(self, name: str, seen: Seen) -> None:
        """Remember a signed pointer, if it is newer."""

        def is_known() -> bool:
            before = self.pointer(name)
            return before is not None and (before.number, before.complete) >= (seen.number, seen.complete)

        self._write(self._path(name).name, asdict(seen), unless=is_known)

    def _path(self, name: str) -> Path:
        return self.folder / f"name-{name}.json"

    def _write(self, name: str, facts: Mapping[str, Any], *, unless: Callable[[], bool]) -> None:
        """Write a file under the lock, unless what is there is as new; say it once where it cannot be written."""
        try:
            with writing(self.folder):
                make_folder(self.folder)
                with (self.folder / ".lock").open("a") as lock:
                    fcntl.flock(lock, fcntl.LOCK_EX)
                    if not unless():
                        write_atomically(self.folder / name, canonical_json(facts))
        except Unavailable as error:
            tell_once(
                f"{str(error).partition(';')[0]}, so it is not remembered what was seen of this registry; an "
                "older state "
                "put back later would go unnoticed; set DPCA_STATE_FOLDER to a folder that can be written"
            )


def pinned(address: str) -> tuple[str, ...]:
    """Return the root keys that are pinned for a registry, however it is spelled; none where it was not pinned."""
    address = _one_spelling(address)
    path = _pin_path(address)
    found = _read(path)
    if found is None:
        return ()
    if found.get("registry") != address or not isinstance(found.get("keys"), list):
        raise _damaged(path)
    return tuple(map(str, found["keys"]))


def pin(address: str, keys: Sequence[str], *, replace: bool) -> None:
    """Remember the root keys by which a registry is trusted.

    Raises
    ------
    Conflict
        If others are pinned already, and nobody said to replace them.
    Unavailable
        If the folder cannot be written.
    """
    address = _one_spelling(address)
    before = pinned(address)
    if before and set(before) != set(keys) and not replace:
        raise Conflict(
            f"{address} is pinned to key {', '.join(before)} already; another key is another keeper of its root; "
            "ask its "
            "publisher, and say --replace if that is so"
        )
    path = _pin_path(address)
    with writing(path.parent):
        make_folder(path.parent)
        write_atomically(path, canonical_json({"registry": address, "keys": list(keys)}))


def tell_once(text: str) -> None:
    """Log a warning line, once in a process."""
    if text not in _told:
        _told.add(text)
        _LOG.warning(text)


def _folder() -> Path:
    return state_folder() / "registries"


def _pin_path(address: str) -> Path:
    return _folder() / f"{_short(address)}.json"


def _one_spelling(address: str) -> str:
    """Return one address for all by which a registry is reached: links followed, hosts in small letters, no usual port.

    Another spelling would else be another registry, for which nothing is pinned.
    """
    scheme, separator, rest = address.partition("://")
    if not separator:
        return os.path.realpath(address)
    host, slash, path = rest.partition("/")
    if scheme.lower() in ("http", "https"):
        usual = {"http": ":80", "https": ":443"}[scheme.lower()]
        host = host.lower().removesuffix(usual)
    return f"{scheme.lower()}://{host}{slash}{path}"


def _short(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _read(path: Path) -> Any:
    try:
        found = json.loads(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise Unavailable(f"{path} cannot be read ({error.strerror}); fix it, or set DPCA_STATE_FOLDER") from None
    except (ValueError, RecursionError):
        raise _damaged(path) from None
    if not isinstance(found, dict):
        raise _damaged(path)
    return found


def _damaged(path: Path) -> Corrupt:
    return Corrupt(f"{path} is damaged; it holds what this user trusts and saw; restore it, or remove it and pin again")
