"""The participants of a secure sum, and the one sum that a message belongs to.

The sites of a secure sum with their identity keys, and how many of them must stay for a total to be opened.

>>> from dpca_tasks.sites.roster import Member, Roster
>>> members = tuple(Member(name=name, records=1000, noise_multiplier=4.0) for name in "abcde")
>>> identities = {name: Identity.draw() for name in "abcde"}
>>> keys = {name: identity.public for name, identity in identities.items()}
>>> Participants(roster=Roster(session="spring", members=members, colluders=1, dropouts=1), keys=keys).threshold
4

The one sum that a message belongs to, and what a site must remember of it even when it is killed.
"""

import hashlib
import itertools
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from dpca_tasks.errors import InvalidInput, MessageRefused
from dpca_tasks.noise.keystream import SecretKey
from dpca_tasks.sites.masks import Address
from dpca_tasks.sites.roster import Roster

KEY_BYTES = 32
SIGNATURE_BYTES = 64
MOST_SITES = 1000


@dataclass(frozen=True, slots=True)
class Identity:
    """A site's Ed25519 key, which signs all that it sends; one for all sessions."""

    secret: SecretKey

    @classmethod
    def draw(cls) -> "Identity":
        """Return a new identity, from the operating system."""
        return cls(SecretKey(os.urandom(KEY_BYTES)))

    @property
    def public(self) -> bytes:
        """The public key, which stands in the roster."""
        return Ed25519PrivateKey.from_private_bytes(self.secret.secret).public_key().public_bytes_raw()

    def sign(self, text: bytes) -> bytes:
        """Return the signature of a text."""
        return Ed25519PrivateKey.from_private_bytes(self.secret.secret).sign(text)


@dataclass(frozen=True, slots=True, kw_only=True)
class Participants:
    """A roster whose sites know each other's identity keys.

    Parameters
    ----------
    roster : Roster
        C colluders and D dropouts make the threshold ``t = S - D``; it must satisfy ``2 t > S + C``.
    keys : mapping of str to bytes of length 32
        The public Ed25519 key of each site.

    Raises
    ------
    InvalidInput
        When a site has no key, two have the same, or the threshold leaves a lying server an opening.
    """

    roster: Roster
    keys: Mapping[str, bytes] = field(hash=False)

    def __post_init__(self) -> None:
        """Check keys and threshold."""
        if sorted(self.keys) != list(self.roster.names):
            unlike = sorted(set(self.keys) ^ set(self.roster.names))
            raise InvalidInput(
                f"sites {', '.join(unlike)} are in the roster or among the identity keys alone, which must name the "
                "same sites; correct the roster."
            )
        for name, key in self.keys.items():
            if len(key) != KEY_BYTES:
                raise InvalidInput(
                    f"the identity key of site {name!r} has {len(key)} bytes and must have {KEY_BYTES}; ask that site."
                )
            if twins := sorted(other for other in self.keys if other != name and self.keys[other] == key):
                raise InvalidInput(
                    f"sites {name}, {', '.join(twins)} have the same identity key, so one could answer for another; "
                    "give each site a key of its own."
                )
        check_threshold(self.roster.size, colluders=self.roster.colluders, dropouts=self.roster.dropouts)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the sites, sorted: the place of a site counts from 0 in this order."""
        return self.roster.names

    @property
    def threshold(self) -> int:
        """The number t of sites without which nothing is opened."""
        return self.roster.size - self.roster.dropouts

    @property
    def digest(self) -> bytes:
        """A hash of the roster and the keys."""
        hasher = hashlib.sha256(b"participants 1" + self.roster.digest)
        for name in self.names:
            hasher.update(self.keys[name])
        return hasher.digest()

    def place(self, name: str) -> int:
        """Return the place of a site."""
        if name not in self.keys:
            raise InvalidInput(f"site {name!r} is not in the roster ({', '.join(self.names)}); ask one that is.")
        return self.names.index(name)

    def without(self, *names: str) -> "Participants":
        """Return the participants of the smaller roster."""
        roster = self.roster.without(*names)
        return Participants(roster=roster, keys={name: self.keys[name] for name in roster.names})

    def check_signature(self, place: int, *, text: bytes, signature: bytes) -> None:
        """Check that the site at a place signed a text.

        Raises
        ------
        MessageRefused
            When it did not.
        """
        name = self.names[place]
        try:
            Ed25519PublicKey.from_public_bytes(self.keys[name]).verify(signature, text)
        except (InvalidSignature, ValueError):
            raise MessageRefused(
                f"a message in the name of site {name!r} does not bear its signature; it is forged or damaged: "
                "begin another attempt."
            ) from None


def check_threshold(size: int, *, colluders: int, dropouts: int) -> None:
    """Check that a lying server cannot have two sums opened, whatever it tells to whom: ``2 (S - D) > S + C``.

    Raises
    ------
    InvalidInput
        When it could, or there are too many sites.
    """
    if 2 * (size - dropouts) <= size + colluders:
        raise InvalidInput(
            f"dropouts={dropouts} and colluders={colluders} of {size} sites: a lying server could have two sums "
            f"opened unless 2 (S - D) > S + C; tolerate fewer, such as {max(0, (size - colluders - 1) // 2)} dropouts."
        )
    if size > MOST_SITES:
        raise InvalidInput(f"{size} sites are more than the {MOST_SITES} of a secure sum; split the roster.")


DIGEST_BYTES = 32
MOST_WORDS = 2**32
LONGEST_SESSION = 400


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """What a secure sum is about; all keys, masks and signatures are bound to its digest.

    Parameters
    ----------
    session : str
        That of the roster.
    address : Address
        The round and the attempt. An attempt is never begun twice at a site.
    participants : bytes of length 32
        The digest of the roster with its identity keys.
    asked : bytes of length 32
        The digest of the query that every site sums: two queries may want unlike noise.
    words : int
        The number of integers of the sum.
    """

    session: str
    address: Address
    participants: bytes = field(repr=False)
    asked: bytes = field(repr=False)
    words: int

    def __post_init__(self) -> None:
        """Check the bounds that the encoding has."""
        if not 0 < len(self.session.encode()) <= LONGEST_SESSION or not 0 < self.words <= MOST_WORDS:
            raise InvalidInput(
                f"a session name of {len(self.session.encode())} bytes and a sum of {self.words} integers must be "
                f"within 1 to {LONGEST_SESSION} and 1 to {MOST_WORDS}; shorten them."
            )
        if {len(self.participants), len(self.asked)} != {DIGEST_BYTES}:
            raise InvalidInput(f"the digests of participants and query must have {DIGEST_BYTES} bytes; pass SHA-256.")

    @property
    def digest(self) -> bytes:
        """A hash of all of it."""
        hasher = hashlib.sha256(b"secure sum 1")
        for part in (
            self.session.encode(),
            self.address.round.to_bytes(8, "little"),
            self.address.attempt.to_bytes(8, "little"),
            self.participants,
            self.asked,
            self.words.to_bytes(8, "little"),
        ):
            hasher.update(len(part).to_bytes(8, "little") + part)
        return hasher.digest()


class Memory(Protocol):
    """The interface of what a site remembers for good: it is on disk before `remember` returns."""

    def recall(self, key: bytes) -> bytes | None:
        """Return what was remembered first under a key, if anything."""

    def remember(self, key: bytes, value: bytes) -> bytes:
        """Remember a value under a key unless one is there, atomically; return the value that is there now."""


def attempt_key(session: str, address: Address) -> bytes:
    """Return the key under which a site remembers that it began an attempt."""
    return hashlib.sha256(f"attempt {address.round} {address.attempt} ".encode() + session.encode()).digest()


def next_attempt(memory: Memory, *, session: str, round_index: int) -> int:
    """Return the first attempt of a round that a site has not begun."""
    attempts = itertools.count()
    begun = (memory.recall(attempt_key(session, Address(round=round_index, attempt=at))) for at in attempts)
    return next(at for at, mark in enumerate(begun) if mark is None)


def opened_key(roster_digest: bytes, *, round_index: int) -> bytes:
    """Return the key under which a site remembers whose integers, under one noise, it helped to open.

    A roster's digest covers its session, and a site's noise is one for each round of a roster, whatever the attempt.
    """
    return hashlib.sha256(f"opened {round_index} ".encode() + roster_digest).digest()
