"""The signed pointer of a name, ``registry/signed/NAME.json``, and the signature of an artifact.

The signed pointer holds all that the pointer file holds, under a number that only grows, so that whoever pinned a root
key needs one file to be whole, not two. It names the digest of the pointer file as it will be once that is written too,
and as it was before: the publisher writes the signed one first.
"""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Self

from storage.artifacts.files import DIGEST
from storage.artifacts.manifest import canonical_json, canonical_object
from storage.registry.pointers import Pointer
from storage.registry.roots import MOST_NUMBER
from storage.registry.signed_files import sign, sign_encoded, verified

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

FOLDER = "registry/signed"
SIGNATURES = "registry/signatures"
PUBLISHERS_KEY = "publisher-signing.key"
"""The file of the publisher's key, in the folder of keys."""
_MOMENT = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ"


@dataclass(frozen=True, slots=True, kw_only=True)
class SignedPointer:
    """The content of a signed pointer.

    Attributes
    ----------
    pointer : Pointer
    number : int, one more than that of the last one of this name, or higher
    now, before : str or None, digests of the pointer file that belongs to it, and of the one that stood before
    expires : str or None, UTC
    key : str, of the publisher that signed it; empty before that
    """

    pointer: Pointer
    number: int
    now: str
    before: str | None
    expires: str | None = None
    key: str = ""

    @staticmethod
    def path(name: str) -> str:
        """Return the path of the signed pointer of a name in a place."""
        return f"{FOLDER}/{name}.json"

    def sign(self, private: "Ed25519PrivateKey") -> bytes:
        """Write the file, signed."""
        own = {name: canonical_json(fact) for name, fact in self._own_facts().items()}
        return sign_encoded(canonical_object({**self.pointer.members, **own}), role="pointer", keys=[private])

    def _own_facts(self) -> dict[str, Any]:
        own = {"name": self.pointer.name, "number": self.number, "now": self.now, "before": self.before}
        return {**own, "expires": self.expires}

    @classmethod
    def decode(cls, name: str, payload: bytes) -> Self:
        """Read the signed pointer of a name, and check its signature; whether its key is trusted is open.

        Raises
        ------
        ValueError
            If it is anything else than one publisher's statement about this name.
        """
        found = verified(payload, role="pointer")
        said: Mapping[str, Any] = found.statement
        pointer = Pointer.from_facts(name, said)
        if pointer is None or len(found.signers) != 1:
            raise ValueError("no pointer")
        fields = {field: said.get(field) for field in ("number", "now", "before", "expires")}
        made = cls(pointer=pointer, key=next(iter(found.signers)), **fields)  # type: ignore[arg-type]
        sound = (
            {**pointer.facts(), **made._own_facts()} == said
            and type(made.number) is int
            and 0 < made.number < MOST_NUMBER
            and all(value is None or isinstance(value, str) for value in (made.now, made.before, made.expires))
            and all(value is None or re.fullmatch(DIGEST, value) for value in (made.now, made.before))
            and made.now is not None
            and (made.expires is None or re.fullmatch(_MOMENT, made.expires))
        )
        if not sound:
            raise ValueError("no pointer")
        if made.expires is not None:
            datetime.fromisoformat(made.expires)
        return made


def digest_of(payload: bytes | None) -> str | None:
    """Return the digest by which a signed pointer names a pointer file; None where there is none."""
    return None if payload is None else hashlib.sha256(payload).hexdigest()


def signature_path(digest: str) -> str:
    """Return the path of the signature of an artifact in a place."""
    return f"{SIGNATURES}/{digest}.json"


def sign_artifact(digest: str, private: "Ed25519PrivateKey") -> bytes:
    """Write the signature of an artifact: of its digest, which covers its manifest and every array."""
    return sign({"artifact": digest}, role="artifact", keys=[private])


def signer_of_artifact(digest: str, payload: bytes) -> str:
    """Return the key that signed an artifact.

    Raises
    ------
    ValueError
        If the file is anything else than one key's signature of this artifact.
    """
    found = verified(payload, role="artifact")
    if found.statement != {"artifact": digest} or len(found.signers) != 1:
        raise ValueError("no signature of this artifact")
    return next(iter(found.signers))
