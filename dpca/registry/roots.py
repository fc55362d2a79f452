"""Signed files of a registry: the root, the signed pointers of names, and the signatures of artifacts.

*Signed files.* A signed file is ``{"signed": statement, "signatures": {public key: signature}}`` in canonical JSON. The
statement is plain JSON, and the signatures are Ed25519. A file has one of three roles: root, pointer or artifact. What
is signed is a prefix that names the role, followed by the canonical JSON of the statement. So a statement that was
signed for one role is not valid for another role.

Examples
--------
>>> from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
>>> key = Ed25519PrivateKey.from_private_bytes(bytes(32))
>>> payload = sign({"artifact": "0" * 64}, role="artifact", keys=[key])
>>> verified(payload, role="artifact").signers == {public_name(key)}
True

*Root.* The root states which publishers' keys may sign which names. The root itself is signed by root keys, which are
stored separately from the publishers' keys. Its versions are the files ``registry/root/1.json``, ``2.json``, ... Each
version must be signed by a threshold of the root keys that it lists. From the second version on, each version must also
be signed by a threshold of the root keys of the previous version. So a consumer who trusts one version can trust all
later versions. A publisher's key is ``active``, ``retired`` or ``revoked``. The earlier signatures of a retired key
stay valid; no signature of a revoked key is valid.

*Signed pointer of a name.* ``registry/signed/NAME.json`` repeats the content of the pointer file of the name, so a
consumer with a pinned root key needs only this one file to be intact. It also has a number that grows with every
update, and the digests of the pointer file before and after the update. Both digests are needed because the publisher
writes the signed pointer before the pointer file.
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
"""The public half of an Ed25519 key in hex, which is the key's name."""
_SIGNATURE = "[0-9a-f]{128}"
_MOST_SIGNATURES = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Signed:
    """A statement and the public keys that signed it."""

    statement: Mapping[str, Any]
    signers: frozenset[str]


def sign(statement: Mapping[str, Any], *, role: Role, keys: Sequence["Ed25519PrivateKey"]) -> bytes:
    """Sign a statement, and return the bytes of the signed file; equal statements and keys give equal bytes."""
    return sign_encoded(canonical_json(statement), role=role, keys=keys)


def sign_encoded(statement: bytes, *, role: Role, keys: Sequence["Ed25519PrivateKey"]) -> bytes:
    """Sign a statement that is already encoded as canonical JSON, and return the bytes of the signed file."""
    message = _prefix(role) + statement
    signatures = {public_name(key): key.sign(message).hex() for key in keys}
    return canonical_object({"signed": statement, "signatures": canonical_json(signatures)})


def verified(payload: bytes, *, role: Role) -> Signed:
    """Read a signed file, and check each signature with the public key under which it is listed.

    The result states which keys signed. The caller decides whether these keys are trusted.

    Raises
    ------
    ValueError
        If the file does not have exactly the form in which `sign` writes it, or if any signature is invalid.
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
            message = _prefix(role) + encoded
            for key, text in signatures.items():
                Ed25519PublicKey.from_public_bytes(bytes.fromhex(key)).verify(bytes.fromhex(text), message)
            return Signed(statement=statement, signers=frozenset(signatures))
    except (TypeError, LookupError, RecursionError, InvalidSignature) as error:
        raise ValueError(f"not a signed file of role {role}: {type(error).__name__}") from None
    raise ValueError(f"not a signed file of role {role}")


def public_name(key: "Ed25519PrivateKey") -> str:
    """Return the public half of a private key in hex, which is used as the name of the key."""
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
    """The rights of a publisher's key that a root states: the names that the key may sign, and the state of the key.

    Attributes
    ----------
    names : tuple of str
        Names, or prefixes of names followed by ``*``; ``*`` alone means every name.
    state : {"active", "retired", "revoked"}
        Whether new signatures (only active) and earlier signatures (active, retired) of the key are valid.
    through : mapping of str to int
        For a retired key: by name, the number of the last signed pointer of this key that is valid.
    """

    names: tuple[str, ...] = ("*",)
    state: State = "active"
    through: Mapping[str, int] = field(default_factory=dict)

    def covers(self, name: str) -> bool:
        """Return whether the key may sign pointers and artifacts of a name."""
        return any(name.startswith(rule[:-1]) if rule.endswith("*") else name == rule for rule in self.names)


@dataclass(frozen=True, slots=True, kw_only=True)
class Root:
    """One version of a registry's root, which states the publishers' keys that may sign.

    Attributes
    ----------
    version : int
        The number of this version, from 1.
    keys : tuple of str
        The public halves of the root keys, in hex.
    threshold : int
        How many of the root keys must sign this version and the next one.
    publishers : mapping of str to Publisher
        By a publisher's public key in hex: what this key may sign.
    """

    version: int
    keys: tuple[str, ...]
    threshold: int
    publishers: Mapping[str, Publisher]

    @staticmethod
    def path(version: int) -> str:
        """Return the path, within a storage place, of a version of the root."""
        return f"{FOLDER}/{version}.json"

    def facts(self) -> dict[str, Any]:
        """Return this root as the plain JSON statement that root keys sign."""
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
    def from_facts(cls, message: Any) -> Self:
        """Build a root from a plain JSON statement, as `facts` returns it.

        Raises
        ------
        ValueError
            If the statement has another form, or is not a valid root, for example because a key is repeated or there
            are fewer keys than the threshold.
        """
        try:
            publishers = {
                key: Publisher(names=tuple(row["names"]), state=row["state"], through=dict(row.get("through", {})))
                for key, row in message["publishers"].items()
            }
            root = cls(
                version=message["version"],
                keys=tuple(message["keys"]),
                threshold=message["threshold"],
                publishers=publishers,
            )
            sound = root.facts() == message and root._is_sound()
        except (TypeError, LookupError, AttributeError) as error:
            raise ValueError(f"the statement is not a valid root: {type(error).__name__}") from None
        if not sound:
            raise ValueError("the statement is not a valid root")
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
        """Return whether the signers include at least the threshold number of root keys."""
        return len(set(self.keys) & set(signers)) >= self.threshold

    def check(self, key: str, *, name: str, number: int | None, at: str) -> None:
        """Check that a publisher's key may sign a pointer of a name, or an artifact published under the name.

        Parameters
        ----------
        key : str
            The public key in hex that signed.
        name : str
            The published name.
        number : int or None
            The number of the signed pointer; None if an artifact was signed.
        at : str
            The address of the signed file, for the message.

        Raises
        ------
        Refused
            If the key is unknown or revoked, may sign only other names, or was retired before pointer `number`.
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
            "keys that the root authorizes may sign; the publisher must run `dpca registry resign`."
        )


def read_root(place: Place, version: int) -> tuple[Root, frozenset[str]] | None:
    """Read a version of the root (the publishers' keys), and return it with its signers; None if it does not exist.

    Raises
    ------
    Refused
        If the file is not a root with this version number, or is not signed by enough of the keys that it lists.
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
            f"{place.at(Root.path(version))} is not a root with enough signatures of its own keys, so it was changed "
            "after signing; restore that file from a copy."
        ) from None
    return root, found.signers


def first_root(place: Place, keys: Collection[str]) -> Root:
    """Return the lowest version of the root that lists all pinned keys as root keys and is signed by all of them.

    Raises
    ------
    Refused
        If the registry has no such version.
    """
    for version in range(1, _MOST_VERSIONS):
        found = read_root(place, version)
        if found is None:
            break
        if set(keys) <= found[1] & set(found[0].keys):
            return found[0]
    raise Refused(
        f"{place.at('registry')} has no root signed by the pinned key "
        f"{', '.join(f'{key[:_SHOWN]}...' for key in keys)}; without such a root, the registry cannot be trusted; "
        "correct the key or the address, or request a signed root from the publisher."
    )


def follow(place: Place, root: Root) -> Root:
    """Read all versions of the root after a trusted one, and return the newest version.

    Raises
    ------
    Refused
        If a version is not signed by enough root keys of the previous version.
    """
    for version in range(root.version + 1, root.version + _MOST_VERSIONS):
        found = read_root(place, version)
        if found is None:
            break
        if not root.is_signed_by(found[1]):
            raise Refused(
                f"{place.at(Root.path(version))} is not signed by {root.threshold} of the keys of version "
                f"{root.version}; keys of the previous version must sign each version of the root; restore that file "
                "from a copy."
            )
        root = found[0]
    return root


def newest_root(place: Place) -> Root | None:
    """Return the newest root (list of publishers' keys) of a registry, for its own publisher; None without a root.

    The chain of versions is not checked: a consumer must use `follow` instead.

    Raises
    ------
    Refused
        If the file of the newest root is refused by `read_root`.
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
    """The content of the signed pointer of a name.

    Attributes
    ----------
    pointer : Pointer
        The versions and aliases of the name.
    number : int
        The number of this signed pointer. Every earlier signed pointer of the name has a smaller number.
    now, before : str or None
        The digests of the pointer file after and before this update; ``before`` is None for the first update.
    expires : str or None
        The time in UTC after which the signed pointer is refused; None if it never expires.
    key : str
        The public key of the publisher that signed the pointer; empty before it is signed.
    """

    pointer: Pointer
    number: int
    now: str
    before: str | None
    expires: str | None = None
    key: str = ""

    @staticmethod
    def path(name: str) -> str:
        """Return the path, within a storage place, of the signed pointer of a name."""
        return f"{SIGNED_FOLDER}/{name}.json"

    def sign(self, private: "Ed25519PrivateKey") -> bytes:
        """Sign this pointer with a publisher's key, and return the bytes of the signed file."""
        own = {name: canonical_json(fact) for name, fact in self._own_facts().items()}
        return sign_encoded(canonical_object({**self.pointer.members, **own}), role="pointer", keys=[private])

    def _own_facts(self) -> dict[str, Any]:
        own = {"name": self.pointer.name, "number": self.number, "now": self.now, "before": self.before}
        return {**own, "expires": self.expires}

    @classmethod
    def decode(cls, name: str, payload: bytes) -> Self:
        """Read the signed pointer of a name and check the signature; the caller decides whether the key is trusted.

        Raises
        ------
        ValueError
            If the file is not a pointer of this name with exactly one signature, or if the signature is invalid.
        """
        found = verified(payload, role="pointer")
        message: Mapping[str, Any] = found.statement
        pointer = Pointer.from_facts(name, message)
        if pointer is None or len(found.signers) != 1:
            raise ValueError("the file is not a signed pointer of this name")
        fields = {field: message.get(field) for field in ("number", "now", "before", "expires")}
        made = cls(pointer=pointer, key=next(iter(found.signers)), **fields)  # type: ignore[arg-type]
        sound = (
            {**pointer.facts(), **made._own_facts()} == message
            and type(made.number) is int
            and 0 < made.number < MOST_NUMBER
            and all(value is None or isinstance(value, str) for value in (made.now, made.before, made.expires))
            and all(value is None or re.fullmatch(DIGEST, value) for value in (made.now, made.before))
            and made.now is not None
            and (made.expires is None or re.fullmatch(_MOMENT, made.expires))
        )
        if not sound:
            raise ValueError("the file is not a signed pointer of this name")
        if made.expires is not None:
            datetime.fromisoformat(made.expires)
        return made


def digest_of(payload: bytes | None) -> str | None:
    """Return the digest of the bytes of a pointer file, as a signed pointer states it; None if there is no file."""
    return None if payload is None else hashlib.sha256(payload).hexdigest()


def signature_path(digest: str) -> str:
    """Return the path, within a storage place, of the signature of an artifact."""
    return f"{SIGNATURES}/{digest}.json"


def sign_artifact(digest: str, private: "Ed25519PrivateKey") -> bytes:
    """Sign an artifact's digest, which covers the manifest and every array; return the bytes of the signed file."""
    return sign({"artifact": digest}, role="artifact", keys=[private])


def signer_of_artifact(digest: str, payload: bytes) -> str:
    """Check the signature of an artifact, and return the public key that signed.

    Raises
    ------
    ValueError
        If `payload` is not a signed file about this artifact with exactly one valid signature.
    """
    found = verified(payload, role="artifact")
    if found.statement != {"artifact": digest} or len(found.signers) != 1:
        raise ValueError("the file is not one key's signature of this artifact")
    return next(iter(found.signers))
