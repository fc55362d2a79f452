"""A consumer's trust in a registry: a pinned root key, and from there every pointer and artifact that is believed.

Examples
--------
::

    trust = Trust.pinned_to(place, ["<root key in hex>"])
    pointer = trust.pointer(place, "news", root=trust.root(place))
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Self

from storage.backends.base import Place
from storage.errors import Corrupt, Invalid, Refused
from storage.registry.pointers import MOST_BYTES, Pointer
from storage.registry.remembered import Memory, Seen
from storage.registry.roots import Root, first_root, follow
from storage.registry.signed_files import KEY
from storage.registry.signed_pointers import SignedPointer, digest_of, signature_path, signer_of_artifact

_ATTEMPTS = 10
_MOST_SIGNATURE = 1 << 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Trust:
    """Believe of one registry what the pinned root keys and the keys that they delegate to have signed.

    Guarantees
    ----------
    Nothing is returned that is not signed by a key in good standing, or is older than what was seen before, by this
    user and under this pin.
    """

    keys: tuple[str, ...]
    memory: Memory

    @classmethod
    def pinned_to(cls, place: Place, keys: Sequence[str]) -> Self:
        """Trust a registry by root keys, in hex; with several, each must have signed its root.

        Raises
        ------
        Invalid
            If one is no public key.
        """
        if not keys or not all(re.fullmatch(KEY, key) for key in keys):
            raise Invalid(
                f"{', '.join(map(str, keys)) or 'no key'!r} is no root key; one is 64 hex digits, as "
                "`dpca registry root show` prints it; copy it whole"
            )
        return cls(keys=tuple(keys), memory=Memory.of(place.address, keys))

    def root(self, place: Place) -> Root:
        """Return the newest root, and remember it.

        Raises
        ------
        Refused
            If no root leads to it from the pinned key, or from the newest that was seen.
        """
        seen = self.memory.root()
        root = follow(place, first_root(place, self.keys) if seen is None else seen)
        if seen is None or root.version > seen.version:
            self.memory.note_root(root)
        return root

    def pointer(self, place: Place, name: str, *, root: Root) -> Pointer:
        """Read the pointer of a name.

        Raises
        ------
        Refused
            If it is not signed, or by a key that may not; if it expired; or if it is older than the one seen last.
        Corrupt
            If the signed pointer or the pointer file is not as it was signed.
        NotFound
            If there is none of this name.
        """
        read: tuple[bytes | None, bytes] | None = None
        for _ in range(_ATTEMPTS):  # a publisher may write between two reads
            seen = self.memory.pointer(name)  # first: what others see while this one reads is newer
            plain, payload = _read(place, Pointer.path(name)), _read(place, SignedPointer.path(name))
            if payload is None:
                Pointer.read(place, name)
                raise Refused(
                    f"{place.at(Pointer.path(name))} is not signed, and a root key is pinned for this registry; "
                    "nothing "
                    "unsigned is believed then; ask its publisher to run `dpca registry resign`."
                )
            signed = _decoded(place, name, payload)
            root.check(signed.key, name=name, number=signed.number, at=place.at(SignedPointer.path(name)))
            if digest_of(plain) in (signed.now, signed.before):
                self._compare(place, signed, seen, payload, complete=digest_of(plain) == signed.now)
                return signed.pointer
            if read == (plain, payload):
                break
            read = plain, payload
        raise Corrupt(
            f"pointer file {place.at(Pointer.path(name))} is not the one that was signed; it was changed, or an "
            "older one "
            "was put back; `dpca doctor` on the home of the ledger rebuilds it."
        )

    def check_artifact(self, place: Place, digest: str, *, name: str, root: Root) -> None:
        """Check that a publisher signed an artifact.

        Raises
        ------
        Refused
            If nobody did, or a key that may not.
        Corrupt
            If the signature is false.
        """
        path = signature_path(digest)
        payload = _read(place, path, most=_MOST_SIGNATURE)
        if payload is None:
            raise Refused(
                f"artifact {digest} has no signature at {place.at(path)}; nothing unsigned is believed under a "
                "pinned key; "
                "ask its publisher to run `dpca registry resign`."
            )
        try:
            key = signer_of_artifact(digest, payload)
        except ValueError:
            raise Corrupt(
                f"{place.at(path)} is no true signature of that artifact; it must be as its publisher signed it; "
                "`dpca registry resign` on the home of the ledger writes it anew."
            ) from None
        root.check(key, name=name, number=None, at=place.at(path))

    def _compare(
        self, place: Place, signed: SignedPointer, seen: Seen | None, payload: bytes, *, complete: bool
    ) -> None:
        """Refuse what is older than what was seen before, and remember what is newer."""
        name, at = signed.pointer.name, place.at(SignedPointer.path(signed.pointer.name))
        if signed.expires is not None and datetime.fromisoformat(signed.expires) < datetime.now(UTC):
            raise Refused(
                f"{at} expired at {signed.expires}; an expired pointer may be an old one that is shown for ever; "
                "ask its "
                "publisher to run `dpca registry resign`."
            )
        digest = str(digest_of(payload))
        if seen is not None and signed.number < seen.number:
            raise Refused(
                f"{at} has number {signed.number}, and {seen.number} was seen here before; a pointer never goes "
                "back; ask "
                f"its publisher, who goes on with `dpca registry resign --above {seen.number}` after a loss."
            )
        if seen is not None and signed.number == seen.number and digest != seen.digest:
            raise Refused(
                f"{at} says something else under number {signed.number} than was seen here before; a number is given "
                "once; ask its publisher to run `dpca registry resign`."
            )
        if seen is not None and signed.number == seen.number and seen.complete and not complete:
            raise Refused(
                f"pointer file {place.at(Pointer.path(name))} is older than the one seen here before; a pointer "
                "never goes "
                "back; `dpca doctor` on the home of the ledger rebuilds it."
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
            f"signed pointer {place.at(SignedPointer.path(name))} is damaged, or of another name; it must be as its "
            "publisher signed it; `dpca doctor` on the home of the ledger rebuilds it."
        ) from None
