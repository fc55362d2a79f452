"""The root of a registry, the signed pointers of its names, and the signed files that both are.

Signed files: plain JSON statements with Ed25519 signatures, each bound to the role that it plays.

A signed file is ``{"signed": statement, "signatures": {public key: signature}}`` in canonical JSON. What is signed is a
prefix that names the role, and the canonical JSON of the statement; so no statement of one role passes for another's.

Examples
--------
>>> from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
>>> key = Ed25519PrivateKey.from_private_bytes(bytes(32))
>>> payload = sign({"artifact": "0" * 64}, role="artifact", keys=[key])
>>> verified(payload, role="artifact").signers == {public_name(key)}
True

The root of a registry: which keys may publish which names, signed by keys that are kept apart from publishers'.

``registry/root/1.json``, ``2.json``, ... are its versions. Each is signed by enough of its own keys, and from the
second on by enough of those of the version before, so that whoever trusts one version comes to trust the next ones.
A publisher's key is ``active``; ``retired``, when what it signed until then stays valid; or ``revoked``, when nothing
that it signed does.

The signed pointer of a name, ``registry/signed/NAME.json``, and the signature of an artifact.

The signed pointer holds all that the pointer file holds, under a number that only grows, so that whoever pinned a root
key needs one file to be whole, not two. It names the digest of the pointer file as it will be once that is written too,
and as it was before: the publisher writes the signed one first.
"""

import hashlib
import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal, Self, get_args

from dpca.artifacts.base import canonical_json, canonical_object
from dpca.artifacts.files import DIGEST
from dpca.backends.base import Place
from dpca.errors import Refused
from dpca.registry.pointers import NAME_PATTERN, Pointer

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


State = Literal["active", "retired", "revoked"]

FOLDER = "registry/root"
MOST_NUMBER = 1 << 53
_NAMES = rf"\*|{NAME_PATTERN}\*?"
_MOST_BYTES = 1 << 24
_MOST_VERSIONS = 10_000
_SHOWN = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Publisher:
    """What a publisher's key may sign.

    Attributes
    ----------
    names : tuple of str
        Names, or beginnings of names with a ``*`` after them; ``*`` alone is every name.
    state : {"active", "retired", "revoked"}
    through : mapping of str to int
        Of a retired key: the number of the last pointer of each name that it signed.
    """

    names: tuple[str, ...] = ("*",)
    state: State = "active"
    through: Mapping[str, int] = field(default_factory=dict)

    def covers(self, name: str) -> bool:
        """Tell whether the key was given a name."""
        return any(name.startswith(rule[:-1]) if rule.endswith("*") else name == rule for rule in self.names)


@dataclass(frozen=True, slots=True, kw_only=True)
class Root:
    """One version of the root.

    Attributes
    ----------
    version : int, from 1
    keys : tuple of str, the public halves of the root's keys, in hex
    threshold : int, how many of them must sign
    publishers : mapping of a publisher's public key to what it may sign
    """

    version: int
    keys: tuple[str, ...]
    threshold: int
    publishers: Mapping[str, Publisher]

    @staticmethod
    def path(version: int) -> str:
        """Return the path of a version in a place."""
        return f"{FOLDER}/{version}.json"

    def facts(self) -> dict[str, Any]:
        """Return the statement that is signed."""
        publishers = {
            key: {
                "names": list(publisher.names),
                "state": publisher.state,
                **({"through": dict(publisher.through)} if publisher.state == "retired" else {}),
            }
            for key, publisher in self.publishers.items()
        }
        return {"version": self.version, "keys": list(self.keys), "threshold": self.threshold, "publishers": publishers}

    @classmethod
    def from_facts(cls, said: Any) -> Self:
        """Build it from what `facts` returned.

        Raises
        ------
        ValueError
            If it is anything else, or no root: keys twice, a threshold that cannot be met.
        """
        try:
            publishers = {
                key: Publisher(names=tuple(row["names"]), state=row["state"], through=dict(row.get("through", {})))
                for key, row in said["publishers"].items()
            }
            root = cls(
                version=said["version"], keys=tuple(said["keys"]), threshold=said["threshold"], publishers=publishers
            )
            sound = root.facts() == said and root._is_sound()
        except (TypeError, LookupError, AttributeError) as error:
            raise ValueError(f"no root: {type(error).__name__}") from None
        if not sound:
            raise ValueError("no root")
        return root

    def _is_sound(self) -> bool:
        named = [*self.keys, *self.publishers]
        rows = self.publishers.values()
        return (
            _is_number(self.version)
            and _is_number(self.threshold)
            and self.threshold <= len(self.keys) == len(set(self.keys))
            and not set(self.keys) & set(self.publishers)
            and all(isinstance(key, str) and re.fullmatch(KEY, key) for key in named)
            and all(row.state in get_args(State) for row in rows)
            and all(re.fullmatch(_NAMES, rule) for row in rows for rule in row.names)
            and all(re.fullmatch(NAME_PATTERN, name) for row in rows for name in row.through)
            and all(_is_number(number) for row in rows for number in row.through.values())
        )

    def is_signed_by(self, signers: Collection[str]) -> bool:
        """Tell whether enough of its keys are among those that signed something."""
        return len(set(self.keys) & set(signers)) >= self.threshold

    def check(self, key: str, *, name: str, number: int | None, at: str) -> None:
        """Check that a key may have signed the pointer of a name, or with no number an artifact published under it.

        Raises
        ------
        Refused
            If it is unknown, revoked, retired before that number, or was given other names.
        """
        publisher = self.publishers.get(key)
        if publisher is None:
            reason = "is not a publisher's key"
        elif publisher.state == "revoked":
            reason = "was revoked"
        elif not publisher.covers(name):
            reason = f"may not publish {name!r}"
        elif publisher.state == "retired" and number is not None and number > publisher.through.get(name, 0):
            reason = f"was retired after pointer {publisher.through.get(name, 0)} of {name!r}"
        else:
            return
        raise Refused(
            f"{at} is signed by key {key[:_SHOWN]}..., which {reason} in version {self.version} of the root; only "
            "keys with a delegation from the root may sign; its publisher must run `dpca registry resign`."
        )


def read_root(place: Place, version: int) -> tuple[Root, frozenset[str]] | None:
    """Read a version of the root, and who signed it; None where there is none.

    Raises
    ------
    Refused
        If what is there is no root of this version, or is not signed by enough of its own keys.
    """
    try:
        payload = place.read(Root.path(version), most=_MOST_BYTES).payload
    except FileNotFoundError:
        return None
    try:
        found: Signed = verified(payload, role="root")
        root = Root.from_facts(found.statement)
        if root.version != version or not root.is_signed_by(found.signers):
            raise ValueError
    except ValueError:
        raise Refused(
            f"{place.at(Root.path(version))} is not a root with enough signatures of its own keys; it must be as it "
            "was signed; restore that file from a copy."
        ) from None
    return root, found.signers


def first_root(place: Place, keys: Collection[str]) -> Root:
    """Find the first version that some pinned keys, all of them its own, have signed.

    Raises
    ------
    Refused
        If there is none.
    """
    for version in range(1, _MOST_VERSIONS):
        found = read_root(place, version)
        if found is None:
            break
        if set(keys) <= found[1] & set(found[0].keys):
            return found[0]
    raise Refused(
        f"{place.at('registry')} has no root signed by the pinned key "
        f"{', '.join(f'{key[:_SHOWN]}...' for key in keys)}; a registry is trusted through its root; correct the key "
        "or the address, or request a signed root from its publisher."
    )


def follow(place: Place, root: Root) -> Root:
    """Read the versions after one that is trusted, and return the newest; each is signed by the keys before it.

    Raises
    ------
    Refused
        If one of them is not signed by enough keys of the version before.
    """
    for version in range(root.version + 1, root.version + _MOST_VERSIONS):
        found = read_root(place, version)
        if found is None:
            break
        if not root.is_signed_by(found[1]):
            raise Refused(
                f"{place.at(Root.path(version))} is not signed by {root.threshold} of the keys of version "
                f"{root.version}; keys of the previous root must sign each root; restore that file from a copy."
            )
        root = found[0]
    return root


def newest_root(place: Place) -> Root | None:
    """Return the newest root that a place shows, to those who write there; None where it has none.

    Raises
    ------
    Refused
        As `read_root`.
    """
    versions = [int(match[1]) for name in place.names(FOLDER) if (match := re.fullmatch(r"([1-9]\d{0,8})\.json", name))]
    found = read_root(place, max(versions)) if versions else None
    return None if found is None else found[0]


def _is_number(value: object) -> bool:
    return type(value) is int and 0 < value < MOST_NUMBER


SIGNED_FOLDER = "registry/signed"
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
        return f"{SIGNED_FOLDER}/{name}.json"

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
