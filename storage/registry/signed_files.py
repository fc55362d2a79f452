"""Signed files: plain JSON statements with Ed25519 signatures, each bound to the role that it plays.

A signed file is ``{"signed": statement, "signatures": {public key: signature}}`` in canonical JSON. What is signed is a
prefix that names the role, and the canonical JSON of the statement; so no statement of one role passes for another's.

Examples
--------
>>> from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
>>> key = Ed25519PrivateKey.from_private_bytes(bytes(32))
>>> payload = sign({"artifact": "0" * 64}, role="artifact", keys=[key])
>>> verified(payload, role="artifact").signers == {public_name(key)}
True
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from storage.artifacts.manifest import canonical_json, canonical_object

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

Role = Literal["root", "pointer", "artifact"]

KEY = "[0-9a-f]{64}"
"""The public half of an Ed25519 key, in hex, by which it is named."""
_SIGNATURE = "[0-9a-f]{128}"
_MOST_SIGNATURES = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Signed:
    """A statement, and the public keys that signed it."""

    statement: Mapping[str, Any]
    signers: frozenset[str]


def sign(statement: Mapping[str, Any], *, role: Role, keys: Sequence["Ed25519PrivateKey"]) -> bytes:
    """Write a signed file; equal statements and keys give equal bytes."""
    return sign_encoded(canonical_json(statement), role=role, keys=keys)


def sign_encoded(statement: bytes, *, role: Role, keys: Sequence["Ed25519PrivateKey"]) -> bytes:
    """Write a signed file of a statement in canonical JSON."""
    said = _prefix(role) + statement
    signatures = {public_name(key): key.sign(said).hex() for key in keys}
    return canonical_object({"signed": statement, "signatures": canonical_json(signatures)})


def verified(payload: bytes, *, role: Role) -> Signed:
    """Read a signed file, and check every signature in it under the key that it names.

    Raises
    ------
    ValueError
        If it is not what `sign` writes, to the byte, or any signature is false. Whether the keys are trusted is for the
        caller to decide.
    """
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    try:
        content = json.loads(payload)
        statement, signatures = content["signed"], content["signatures"]
        encoded = canonical_json(statement)
        sound = (
            canonical_object({"signed": encoded, "signatures": canonical_json(signatures)}) == payload
            and isinstance(statement, dict)
            and isinstance(signatures, dict)
            and 1 <= len(signatures) <= _MOST_SIGNATURES
            and all(re.fullmatch(KEY, key) and re.fullmatch(_SIGNATURE, text) for key, text in signatures.items())
        )
        if sound:
            said = _prefix(role) + encoded
            for key, text in signatures.items():
                Ed25519PublicKey.from_public_bytes(bytes.fromhex(key)).verify(bytes.fromhex(text), said)
            return Signed(statement=statement, signers=frozenset(signatures))
    except (TypeError, LookupError, RecursionError, InvalidSignature) as error:
        raise ValueError(f"not a signed file of role {role}: {type(error).__name__}") from None
    raise ValueError(f"not a signed file of role {role}")


def public_name(key: "Ed25519PrivateKey") -> str:
    """Return the public half of a key, in hex."""
    return key.public_key().public_bytes_raw().hex()


def _prefix(role: Role) -> bytes:
    return f"dpca {role} 1\n".encode()
