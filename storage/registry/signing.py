"""The publisher's signing key, signed pointers and artifacts, and versions of the registry's root.

The publisher's signing key is in the key folder, and is created by the first publication. A *pointer* lists the
versions and aliases of a name. The *root* of a registry is a signed document that states which publishers' keys may
sign which names. After a rotation, the new key is stored in a second file until the root lists it. From then on, the
new key signs, and the old key is removed.

`init_root` and `update_root` are for the keeper of the root, who holds separate keys for it. They write the first
version and later versions of the root, and do not need the ledger.

Examples
--------
::

    root = init_root(store(), [make_new_key(Path("root.key"))], publishers={publisher: Publisher()})
    root = update_root(store(), [read_key(Path("root.key"))], revoke=[publisher], delegate={newer: ("*",)})
"""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from dpca.backends.atomic_files import claim_file, create_file, make_folder, sync_folder, write_atomically, writing
from dpca.backends.base import Place, Stored
from dpca.errors import Conflict, Corrupt, Invalid, NotFound, Refused, Unavailable
from dpca.registry.pointers import MOST_BYTES, Pointer
from dpca.registry.roots import (
    KEY,
    PUBLISHERS_KEY,
    SIGNED_FOLDER,
    Publisher,
    Root,
    SignedPointer,
    State,
    digest_of,
    newest_root,
    public_name,
    sign,
    sign_artifact,
    signature_path,
)

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey


NEXT_KEY = "publisher-signing.next.key"
# an existing number of this size or more is ignored, so that a forged file cannot use up the numbers
_MOST_TAKEN_OVER = 1 << 40
_ATTEMPTS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Signer:
    """Signer of pointers and artifacts, with the publisher's key in a key folder.

    Attributes
    ----------
    keys : Path, the key folder
    days : int or None, number of days after which a signed pointer expires
    """

    keys: Path
    days: int | None = None

    def key(self, place: Place) -> "Ed25519PrivateKey":
        """Return the current signing key; create it if it is missing.

        If a rotation created a next key, and the root of the registry lists it, the next key first becomes the current
        key.

        Raises
        ------
        Unavailable, Corrupt
            If a key cannot be read or written.
        """
        if (self.keys / NEXT_KEY).exists():
            root = newest_root(place)
            waiting = None if root is None else root.publishers.get(public_name(read_key(self.keys / NEXT_KEY)))
            if root is None or (waiting is not None and waiting.state == "active"):
                with writing(self.keys):
                    (self.keys / NEXT_KEY).replace(self.keys / PUBLISHERS_KEY)
                    sync_folder(self.keys)
        if not (self.keys / PUBLISHERS_KEY).exists():
            make_key(self.keys / PUBLISHERS_KEY)
        return read_key(self.keys / PUBLISHERS_KEY)

    def rotate(self) -> str:
        """Create the next signing key unless it exists, and return the public half of the next key."""
        if not (self.keys / NEXT_KEY).exists():
            make_key(self.keys / NEXT_KEY)
        return public_name(read_key(self.keys / NEXT_KEY))

    def agrees(
        self, place: Place, found: SignedPointer | None, pointer: Pointer, payload: bytes, *, above: int
    ) -> bool:
        """Return whether the existing signed pointer (versions and aliases) of a name is up to date.

        It is up to date if it has this content, is signed by the current key, and has a number over ``above``.
        ``found`` is the existing signed pointer, and ``payload`` is the content of the plain pointer file.
        """
        return (
            found is not None
            and found.pointer == pointer
            and found.now == digest_of(payload)
            and found.number > above
            and found.key == public_name(self.key(place))
        )

    def write(
        self,
        place: Place,
        pointer: Pointer,
        *,
        over: Stored | None,
        before: SignedPointer | None,
        plain: bytes | None,
        number: int,
    ) -> bool:
        """Sign the artifacts of a name that are not yet signed, and then the name's pointer.

        Parameters
        ----------
        place : Place
        pointer : Pointer
        over, before : Stored and SignedPointer, or None
            The existing file of the signed pointer, and the file's content if it is intact.
        plain : bytes or None
            The content of the existing plain pointer file.
        number : int
            The number of the new signed pointer.

        Returns
        -------
        bool
            False if nothing was written because the file of the signed pointer has changed in the meantime.
        """
        key = self.key(place)
        done = set(before.pointer.versions.values()) if before is not None and before.key == public_name(key) else set()
        self.sign_artifacts(place, set(pointer.versions.values()) - done)
        stood = digest_of(plain)
        if before is not None and stood not in (before.now, before.before):
            stood = before.now  # the pointer that consumers saw last, not a file that another program wrote over it
        expires = None
        if self.days is not None:
            expires = (datetime.now(UTC) + timedelta(days=self.days)).strftime("%Y-%m-%dT%H:%M:%SZ")
        signed = SignedPointer(
            pointer=pointer, number=number, now=str(digest_of(pointer.encode())), before=stood, expires=expires
        )
        return place.write(SignedPointer.path(pointer.name), signed.sign(key), over=over)

    def sign_artifacts(self, place: Place, digests: Collection[str]) -> None:
        """Write the signature file of each artifact that the current key has not signed.

        Raises
        ------
        Unavailable
            If a signature file cannot be written, or other programs keep changing it.
        """
        key = self.key(place)
        for digest in sorted(digests):
            payload, path = sign_artifact(digest, key), signature_path(digest)
            for _ in range(_ATTEMPTS):
                standing = read_stored(place, path)
                if standing is not None and standing.payload == payload:
                    break
                place.write(path, payload, over=standing)
            else:
                raise Unavailable(
                    f"{place.at(path)} changes while it is written, or is not read back as it was written; only one "
                    "ledger may publish there; give each ledger a separate store, check the store, and run the same "
                    "request again"
                )


def read_key(path: Path) -> "Ed25519PrivateKey":
    """Read a private Ed25519 key from a file.

    Raises
    ------
    Unavailable
        If the file cannot be read.
    Corrupt
        If the file does not contain a key.
    """
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    try:
        return Ed25519PrivateKey.from_private_bytes(path.read_bytes())
    except OSError as error:
        raise Unavailable(
            f"{path} cannot be read ({error.strerror}); correct the permissions, or give a readable key."
        ) from None
    except ValueError:
        raise Corrupt(f"{path} is not a signing key of 32 bytes; restore the file, or make a new key.") from None


def make_key(path: Path) -> "Ed25519PrivateKey":
    """Create a file with a new private key, unless the file exists, and return the key in the file.

    If another process creates the file at the same time, the key of that process is returned.

    Raises
    ------
    Unavailable
        If the file cannot be written.
    """
    with writing(path.parent):
        make_folder(path.parent)
        claim_file(path, _draw_key())
    return read_key(path)


def make_new_key(path: Path) -> "Ed25519PrivateKey":
    """Create a file with a new private key, also in a file system without hard links.

    Raises
    ------
    Conflict
        If the file exists.
    Unavailable
        If the file cannot be written.
    """
    with writing(path.parent):
        make_folder(path.parent)
        try:
            create_file(path)
        except FileExistsError:
            raise Conflict(
                f"{path} already exists; a key is never overwritten; choose another file, or use this key."
            ) from None
        try:
            write_atomically(path, _draw_key())
        except BaseException:
            path.unlink(missing_ok=True)
            raise
    return read_key(path)


def _draw_key() -> bytes:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    return Ed25519PrivateKey.generate().private_bytes_raw()


def decoded(name: str, standing: Stored | None) -> SignedPointer | None:
    """Return the signed pointer of a name from the content of its file; None if it is missing or damaged."""
    try:
        return None if standing is None else SignedPointer.decode(name, standing.payload)
    except ValueError:
        return None


def number_of(found: SignedPointer | None) -> int:
    """Return the number of the existing signed pointer, which the next number must exceed; 0 if there is none."""
    return found.number if found is not None and found.number < _MOST_TAKEN_OVER else 0


def read_stored(place: Place, path: str) -> Stored | None:
    """Read a file of the registry; return None if it does not exist."""
    try:
        return place.read(path, most=MOST_BYTES)
    except FileNotFoundError:
        return None


def signed_tags(place: Place) -> dict[str, str | None]:
    """Return the store's tag (ETag) of each signed pointer file, by name."""
    found = ((re.fullmatch(r"(.+)\.json", file), tag) for file, tag in place.tags(SIGNED_FOLDER).items())
    return {match[1]: tag for match, tag in found if match}


_SHOWN = 16


def init_root(
    place: Place, keys: Sequence["Ed25519PrivateKey"], *, publishers: Mapping[str, Publisher], threshold: int = 1
) -> Root:
    """Write the first version of a registry's root, which lists the publishers' keys.

    Parameters
    ----------
    place : Place
    keys : sequence of private keys
        The private keys of the root. All of them sign the first version.
    publishers : mapping of str to Publisher
        The publishers' public keys, in hex, with the names that each may publish.
    threshold : int
        The number of the root's keys that must sign a later version.

    Raises
    ------
    Conflict
        If the registry already has a root.
    Invalid
        If the keys, the threshold or the publishers' names are not valid in a root.
    """
    if newest_root(place) is not None:
        raise Conflict(f"{place.at('registry')} already has a root; change it with `dpca registry root update`.")
    root = Root(
        version=1, keys=tuple(public_name(key) for key in keys), threshold=threshold, publishers=dict(publishers)
    )
    _write(place, root, keys)
    return root


def update_root(
    place: Place,
    keys: Sequence["Ed25519PrivateKey"],
    *,
    delegate: Mapping[str, Sequence[str]] | None = None,
    retire: Collection[str] = (),
    revoke: Collection[str] = (),
    add: Collection[str] = (),
    drop: Collection[str] = (),
    threshold: int | None = None,
) -> Root:
    """Write the next version of a registry's root.

    Parameters
    ----------
    place : Place
    keys : sequence of private keys
        The private keys that sign the new version. They must reach the threshold of the previous version and of the new
        version.
    delegate : mapping of str to sequence of str, optional
        Publishers' public keys, and the names that each may publish from now on.
    retire, revoke : collection of str
        Publishers' public keys that may no longer sign. Earlier signatures of a retired key stay valid; all signatures
        of a revoked key become invalid.
    add, drop : collection of str
        Public keys to add to the root, or to remove from it.
    threshold : int, optional
        The number of the root's keys that must sign a version from now on.

    Raises
    ------
    NotFound
        If there is no root, or a given key is not in the root.
    Refused
        If too few keys are given, or a key in ``delegate`` was revoked.
    Invalid
        If the keys, the threshold or the publishers' names are not valid in a root.
    """
    before = newest_root(place)
    if before is None:
        raise NotFound(f"{place.at('registry')} has no root; make one with `dpca registry root init`.")
    publishers = dict(before.publishers) | {
        key: Publisher(names=tuple(names)) for key, names in (delegate or {}).items()
    }
    again = [key for key in delegate or {} if key in before.publishers and before.publishers[key].state == "revoked"]
    if again:
        raise Refused(
            f"key {again[0][:_SHOWN]}... was revoked permanently; make another key with `dpca registry key rotate`."
        )
    states: list[tuple[Collection[str], State]] = [(retire, "retired"), (revoke, "revoked")]
    for chosen, state in states:
        for key in chosen:
            if key not in publishers or (state == "retired" and publishers[key].state == "revoked"):
                raise NotFound(
                    f"key {key[:_SHOWN]}... is not a publisher's key that can be {state}; see `dpca registry root "
                    "show`."
                )
            through = _numbers(place, key) if state == "retired" else {}
            publishers[key] = replace(publishers[key], state=state, through=through)
    if missing := [key for key in drop if key not in before.keys]:
        raise NotFound(f"key {missing[0][:_SHOWN]}... is not a key of the root; see `dpca registry root show`.")
    kept = [key for key in before.keys if key not in drop]
    root = Root(
        version=before.version + 1,
        keys=(*kept, *(key for key in add if key not in kept)),
        threshold=before.threshold if threshold is None else threshold,
        publishers=publishers,
    )
    signers = {public_name(key) for key in keys}
    if not before.is_signed_by(signers) or not root.is_signed_by(signers):
        raise Refused(
            f"version {root.version} of the root needs {before.threshold} keys of the previous version and "
            f"{root.threshold} of the new one; fewer were given; add files with --key."
        )
    _write(place, root, keys)
    return root


def _write(place: Place, root: Root, keys: Sequence["Ed25519PrivateKey"]) -> None:
    for key in (*root.keys, *root.publishers):
        if not re.fullmatch(KEY, key):
            raise Invalid(f"{key!r} is not a public key, which has 64 hex digits; copy the whole key")
    try:
        Root.from_facts(root.facts())
    except ValueError:
        raise Invalid(
            f"a root cannot have threshold {root.threshold} with {len(root.keys)} keys and these names; keys must be "
            "distinct and not a publisher's, the threshold at most the number of keys, and names as published or "
            "ending in *; correct the arguments"
        ) from None
    path = Root.path(root.version)
    standing = read_stored(place, path)
    signed = sign(root.facts(), role="root", keys=keys)
    if standing is not None or not place.write(path, signed, over=None):
        raise Conflict(
            f"{place.at(path)} was written by another process in the meantime; check it, and run the command again."
        )
    stored = read_stored(place, path)
    if stored is None or stored.payload != signed:
        raise Unavailable(
            f"{place.at(path)} is not read back as it was written; check the store, and run the command again."
        )


def _numbers(place: Place, key: str) -> dict[str, int]:
    """Return the number of each current signed pointer that this key signed, by name."""
    found = (decoded(name, read_stored(place, SignedPointer.path(name))) for name in signed_tags(place))
    return {signed.pointer.name: signed.number for signed in found if signed is not None and signed.key == key}
