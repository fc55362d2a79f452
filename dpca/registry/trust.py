"""Verification of a registry by pinned root keys, and the memory of the newest state that was seen.

*Memory.* The folder ``DPCA_STATE_FOLDER`` holds the pinned root keys, and the newest root and pointers that this user
saw. An entry is only replaced by a newer entry, under a lock, so several processes can share the folder. If the folder
cannot be written, nothing is remembered, and one warning is logged. A registry that returns to an older state would
then not be detected by a later process.

*Trust.* A consumer who has pinned root keys accepts only pointers and artifacts that are signed by a publisher's key
which the root authorizes.

Examples
--------
::

    trust = Trust.pinned_to(place, ["<root key in hex>"])
    pointer = trust.pointer(place, "news", root=trust.root(place))
"""

import fcntl
import hashlib
import json
import logging
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

from dpca.artifacts.base import canonical_json
from dpca.backends.atomic_files import make_folder, write_atomically, writing
from dpca.backends.base import Place
from dpca.errors import Conflict, Corrupt, Invalid, Refused, Unavailable
from dpca.home import state_folder
from dpca.registry.pointers import MOST_BYTES, Pointer
from dpca.registry.roots import (
    KEY,
    Root,
    SignedPointer,
    digest_of,
    first_root,
    follow,
    signature_path,
    signer_of_artifact,
)

_LOG = logging.getLogger("dpca.storage.registry")
_shown: set[str] = set()


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """The newest signed pointer of a name that this user saw.

    Attributes
    ----------
    number : int
        The number of the signed pointer.
    digest : str
        The digest of the file of the signed pointer.
    complete : bool
        Whether the pointer file was already seen with the content that this signed pointer states. If so, an older
        pointer file is refused later.
    """

    number: int
    digest: str
    complete: bool


@dataclass(frozen=True, slots=True)
class Memory:
    """The stored record of the newest root and pointers seen in one registry, under one set of pinned root keys."""

    folder: Path

    @classmethod
    def of(cls, address: str, keys: Sequence[str]) -> "Memory":
        """Return the memory of the registry at an address under a set of pinned root keys."""
        return cls(_folder() / _short("\n".join([_one_spelling(address), *sorted(keys)])))

    def root(self) -> Root | None:
        """Return the newest root (list of publishers' keys) that this user saw, or None if no root was seen yet."""
        found = _read_remembered(self.folder / "root.json")
        try:
            return None if found is None else Root.from_facts(found)
        except ValueError:
            raise _damaged(self.folder / "root.json") from None

    def note_root(self, root: Root) -> None:
        """Remember a root if it is newer than the remembered root."""

        def is_known() -> bool:
            seen = self.root()
            return seen is not None and seen.version >= root.version

        self._write("root.json", root.facts(), unless=is_known)

    def pointer(self, name: str) -> Seen | None:
        """Return the newest signed pointer (versions and aliases) of a name that this user saw, or None."""
        path = self._path(name)
        found = _read_remembered(path)
        try:
            seen = None if found is None else Seen(**found)
        except TypeError:
            raise _damaged(path) from None
        if seen is not None and [type(value) for value in asdict(seen).values()] != [int, str, bool]:
            raise _damaged(path)
        return seen

    def note_pointer(self, name: str, seen: Seen) -> None:
        """Remember a signed pointer (versions and aliases) of a name if it is newer than the remembered one."""

        def is_known() -> bool:
            before = self.pointer(name)
            return before is not None and (before.number, before.complete) >= (seen.number, seen.complete)

        self._write(self._path(name).name, asdict(seen), unless=is_known)

    def _path(self, name: str) -> Path:
        return self.folder / f"name-{name}.json"

    def _write(self, name: str, facts: Mapping[str, Any], *, unless: Callable[[], bool]) -> None:
        """Write a file of the memory under a lock, unless `unless` returns True; warn once if writing fails."""
        try:
            with writing(self.folder):
                make_folder(self.folder)
                with (self.folder / ".lock").open("a") as lock:
                    fcntl.flock(lock, fcntl.LOCK_EX)
                    if not unless():
                        write_atomically(self.folder / name, canonical_json(facts))
        except Unavailable as error:
            notify_once(
                f"{str(error).partition(';')[0]}, so the state of this registry is not stored, and a later return to "
                "an older state would not be detected; set DPCA_STATE_FOLDER to a writable folder"
            )


def pinned(address: str) -> tuple[str, ...]:
    """Return the root keys that are pinned for the registry at an address; empty if no key is pinned."""
    address = _one_spelling(address)
    path = _pin_path(address)
    found = _read_remembered(path)
    if found is None:
        return ()
    if found.get("registry") != address or not isinstance(found.get("keys"), list):
        raise _damaged(path)
    return tuple(map(str, found["keys"]))


def pin(address: str, keys: Sequence[str], *, replace: bool) -> None:
    """Store the root keys by which the registry at an address is verified from now on.

    Raises
    ------
    Conflict
        If other keys are already pinned, and `replace` is False.
    Unavailable
        If the state folder cannot be written.
    """
    address = _one_spelling(address)
    before = pinned(address)
    if before and set(before) != set(keys) and not replace:
        raise Conflict(
            f"{address} is already pinned to key {', '.join(before)}; another key means that the root has another "
            "owner; confirm this with the publisher, and use --replace"
        )
    path = _pin_path(address)
    with writing(path.parent):
        make_folder(path.parent)
        write_atomically(path, canonical_json({"registry": address, "keys": list(keys)}))


def notify_once(text: str) -> None:
    """Log a warning, but each text only once per process."""
    if text not in _shown:
        _shown.add(text)
        _LOG.warning(text)


def _folder() -> Path:
    return state_folder() / "registries"


def _pin_path(address: str) -> Path:
    return _folder() / f"{_short(address)}.json"


def _one_spelling(address: str) -> str:
    """Return the normalized form of a registry's address.

    Symbolic links are resolved, the host is converted to lower case, and a default port is removed. Without this, a
    registry with a pinned key would be accepted unverified if its address were spelled differently.
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


def _read_remembered(path: Path) -> Any:
    try:
        found = json.loads(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise Unavailable(
            f"{path} cannot be read ({error.strerror}); correct its permissions, or set DPCA_STATE_FOLDER to another "
            "folder"
        ) from None
    except (ValueError, RecursionError):
        raise _damaged(path) from None
    if not isinstance(found, dict):
        raise _damaged(path)
    return found


def _damaged(path: Path) -> Corrupt:
    return Corrupt(
        f"{path}, which stores pinned keys or the last seen state, is damaged; restore the file, or remove it and pin "
        "the key again"
    )


_ATTEMPTS = 10
_MOST_SIGNATURE = 1 << 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Trust:
    """Verification of one registry by its pinned root keys and the publishers' keys that its root authorizes.

    Guarantees
    ----------
    Every root and pointer that is returned is signed by an authorized key. None is older than the state that this user
    saw before under the same pinned keys.
    """

    keys: tuple[str, ...]
    memory: Memory

    @classmethod
    def pinned_to(cls, place: Place, keys: Sequence[str]) -> Self:
        """Return the verification of a registry by root keys in hex, all of which must have signed the first root.

        Raises
        ------
        Invalid
            If there are no keys, or one of them is not a public key in hex.
        """
        if not keys or not all(re.fullmatch(KEY, key) for key in keys):
            raise Invalid(
                f"{', '.join(map(str, keys)) or 'no key'!r} is not a root key; a root key has 64 hex digits; copy the "
                "whole key that `dpca registry root show` prints"
            )
        return cls(keys=tuple(keys), memory=Memory.of(place.address, keys))

    def root(self, place: Place) -> Root:
        """Return the newest root of the registry, and remember it.

        Raises
        ------
        Refused
            If no chain of signatures leads from the pinned keys, or from the newest root seen, to the newest root.
        """
        seen = self.memory.root()
        root = follow(place, first_root(place, self.keys) if seen is None else seen)
        if seen is None or root.version > seen.version:
            self.memory.note_root(root)
        return root

    def pointer(self, place: Place, name: str, *, root: Root) -> Pointer:
        """Read and verify the pointer of a name, and remember it.

        Raises
        ------
        Refused
            If the pointer is unsigned, signed by an unauthorized key, expired, or older than the last pointer seen.
        Corrupt
            If the signed pointer is damaged, or the pointer file does not have the signed content.
        NotFound
            If the name has no pointer.
        """
        read: tuple[bytes | None, bytes] | None = None
        for _ in range(_ATTEMPTS):  # try again if a publisher wrote between the reads of the two files
            # Read the memory before the files, because another process may remember a newer pointer in between.
            seen = self.memory.pointer(name)
            plain, payload = _read(place, Pointer.path(name)), _read(place, SignedPointer.path(name))
            if payload is None:
                Pointer.read(place, name)
                raise Refused(
                    f"{place.at(Pointer.path(name))} is not signed, but a root key is pinned for this registry, so "
                    "every file needs a signature; the publisher must run `dpca registry resign`."
                )
            signed = _decoded(place, name, payload)
            root.check(signed.key, name=name, number=signed.number, at=place.at(SignedPointer.path(name)))
            if digest_of(plain) in (signed.now, signed.before):
                complete = digest_of(plain) == signed.now
                if complete and (seen is None or (seen.number, seen.complete) < (signed.number, True)):
                    # An earlier state may have had the same content, so read the file again after the signed pointer.
                    complete = _read(place, Pointer.path(name)) == plain
                self._compare(place, signed, seen, payload, complete=complete)
                return signed.pointer
            if read == (plain, payload):
                break
            read = plain, payload
        raise Corrupt(
            f"pointer file {place.at(Pointer.path(name))} differs from the signed one, so it was changed or replaced "
            "by an older file; `dpca doctor` on the home of the ledger rebuilds it."
        )

    def check_artifact(self, place: Place, digest: str, *, name: str, root: Root) -> None:
        """Check that an authorized publisher signed the artifact with this digest, published under this name.

        Raises
        ------
        Refused
            If the artifact has no signature, or was signed by an unauthorized key.
        Corrupt
            If the signature is invalid.
        """
        path = signature_path(digest)
        payload = _read(place, path, most=_MOST_SIGNATURE)
        if payload is None:
            raise Refused(
                f"artifact {digest} has no signature at {place.at(path)}, but a root key is pinned for this registry, "
                "so every artifact needs a signature; the publisher must run `dpca registry resign`."
            )
        try:
            key = signer_of_artifact(digest, payload)
        except ValueError:
            raise Corrupt(
                f"{place.at(path)} is not a valid signature of the artifact named by the file; `dpca registry resign` "
                "on the home of the ledger writes a new signature."
            ) from None
        root.check(key, name=name, number=None, at=place.at(path))

    def _compare(
        self, place: Place, signed: SignedPointer, seen: Seen | None, payload: bytes, *, complete: bool
    ) -> None:
        """Refuse a signed pointer that is expired or older than the one seen before; remember it if it is newer."""
        name, at = signed.pointer.name, place.at(SignedPointer.path(signed.pointer.name))
        if signed.expires is not None and datetime.fromisoformat(signed.expires) < datetime.now(UTC):
            raise Refused(
                f"{at} expired at {signed.expires}; an expired pointer may hide newer versions; the publisher must run "
                "`dpca registry resign`."
            )
        digest = str(digest_of(payload))
        if seen is not None and signed.number < seen.number:
            raise Refused(
                f"{at} has number {signed.number}, but number {seen.number} was seen before, and the number never "
                "decreases; if the registry was restored from an older backup, the publisher must run "
                f"`dpca registry resign --above {seen.number}`."
            )
        if seen is not None and signed.number == seen.number and digest != seen.digest:
            raise Refused(
                f"{at} differs from the pointer with number {signed.number} that was seen before, but each number is "
                "used only once; the publisher must run `dpca registry resign`."
            )
        if seen is not None and signed.number == seen.number and seen.complete and not complete:
            raise Refused(
                f"pointer file {place.at(Pointer.path(name))} is older than the one seen before, but a pointer file "
                "never returns to an older state; `dpca doctor` on the home of the ledger rebuilds it."
            )
        if seen is None or (seen.number, seen.complete) < (signed.number, complete):
            self.memory.note_pointer(name, Seen(number=signed.number, digest=digest, complete=complete))


def _read(place: Place, path: str, *, most: int = MOST_BYTES) -> bytes | None:
    try:
        return place.read(path, most=most).payload
    except FileNotFoundError:
        return None


def _decoded(place: Place, name: str, payload: bytes) -> SignedPointer:
    try:
        return SignedPointer.decode(name, payload)
    except ValueError:
        raise Corrupt(
            f"signed pointer {place.at(SignedPointer.path(name))} is damaged, or has another name than its file; "
            "`dpca doctor` on the home of the ledger rebuilds it."
        ) from None
