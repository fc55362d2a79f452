"""The one sum that a message belongs to, and what a site must remember of it even when it is killed."""

import hashlib
import itertools
from dataclasses import dataclass, field
from typing import Protocol

from dpca_tasks.errors import InvalidInput
from dpca_tasks.sites.opening import Address

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
