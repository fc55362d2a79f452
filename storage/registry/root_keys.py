"""The keeper's side of the root: its first version, and later ones with other keys; nothing here needs the ledger.

Examples
--------
::

    root = init_root(store(), [make_new_key(Path("root.key"))], publishers={publisher: Publisher()})
    root = update_root(store(), [read_key(Path("root.key"))], revoke=[publisher], delegate={newer: ("*",)})
"""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from storage.backends.base import Place
from storage.errors import Conflict, Invalid, NotFound, Refused, Unavailable
from storage.registry.roots import Publisher, Root, State, newest_root
from storage.registry.signed_files import KEY, public_name, sign
from storage.registry.signed_pointers import SignedPointer
from storage.registry.signing import decoded, read_stored, signed_tags

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

_SHOWN = 16


def init_root(
    place: Place, keys: Sequence["Ed25519PrivateKey"], *, publishers: Mapping[str, Publisher], threshold: int = 1
) -> Root:
    """Write the first version of a registry's root.

    Parameters
    ----------
    place : Place
    keys : sequence of private keys
        The root's; all of them sign it.
    publishers : mapping of str to Publisher
        Public keys, in hex, and what each may publish.
    threshold : int
        How many of the root's keys a later version needs.

    Raises
    ------
    Conflict
        If there is one.
    Invalid
        If no such root can be.
    """
    if newest_root(place) is not None:
        raise Conflict(f"{place.at('registry')} has a root already; change it with `dpca registry root update`.")
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
    """Write the next version of a registry's root, signed by enough of the keys before and of its own.

    Parameters
    ----------
    place : Place
    keys : sequence of private keys
        That sign it.
    delegate : mapping of str to sequence of str, optional
        Publishers' public keys, and the names that each may publish from now on.
    retire, revoke : collection of str
        Publishers' keys that sign nothing more, and of which all that they signed stays valid, or becomes invalid.
    add, drop : collection of str
        Public keys that the root has besides, or no more.
    threshold : int, optional
        How many of the root's keys a version needs from now on.

    Raises
    ------
    NotFound
        If there is no root, or no such key in it.
    Refused
        If the keys are not enough.
    Invalid
        If no such root can be.
    """
    before = newest_root(place)
    if before is None:
        raise NotFound(f"{place.at('registry')} has no root; make one with `dpca registry root init`.")
    publishers = dict(before.publishers) | {
        key: Publisher(names=tuple(names)) for key, names in (delegate or {}).items()
    }
    again = [key for key in delegate or {} if key in before.publishers and before.publishers[key].state == "revoked"]
    if again:
        raise Refused(f"key {again[0][:_SHOWN]}... was revoked for ever; make another with `dpca registry key rotate`.")
    states: list[tuple[Collection[str], State]] = [(retire, "retired"), (revoke, "revoked")]
    for chosen, state in states:
        for key in chosen:
            if key not in publishers or (state == "retired" and publishers[key].state == "revoked"):
                raise NotFound(
                    f"key {key[:_SHOWN]}... is no publisher's that could be {state}; see `dpca registry root show`."
                )
            through = _numbers(place, key) if state == "retired" else {}
            publishers[key] = replace(publishers[key], state=state, through=through)
    if missing := [key for key in drop if key not in before.keys]:
        raise NotFound(f"key {missing[0][:_SHOWN]}... is none of the root's; see `dpca registry root show`.")
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
            f"version {root.version} of the root needs {before.threshold} keys of the one before and {root.threshold} "
            "of its own; fewer of them were given; name further files with --key."
        )
    _write(place, root, keys)
    return root


def _write(place: Place, root: Root, keys: Sequence["Ed25519PrivateKey"]) -> None:
    for key in (*root.keys, *root.publishers):
        if not re.fullmatch(KEY, key):
            raise Invalid(f"{key!r} is no public key; one is 64 hex digits; copy it whole")
    try:
        Root.from_facts(root.facts())
    except ValueError:
        raise Invalid(
            f"no root has threshold {root.threshold} over {len(root.keys)} keys and these names; no key is named "
            "twice or "
            "is a publisher's too, a threshold is 1 to the number of keys, names are as published or end in *; "
            "correct it"
        ) from None
    path = Root.path(root.version)
    standing = read_stored(place, path)
    signed = sign(root.facts(), role="root", keys=keys)
    if standing is not None or not place.write(path, signed, over=None):
        raise Conflict(
            f"{place.at(path)} was written by somebody else meanwhile; look at it, and run the command again."
        )
    stored = read_stored(place, path)
    if stored is None or stored.payload != signed:
        raise Unavailable(
            f"{place.at(path)} does not read back as it was written; check the store, and run this again."
        )


def _numbers(place: Place, key: str) -> dict[str, int]:
    """Return the number of the signed pointer of each name that a key has signed last."""
    found = (decoded(name, read_stored(place, SignedPointer.path(name))) for name in signed_tags(place))
    return {signed.pointer.name: signed.number for signed in found if signed is not None and signed.key == key}
