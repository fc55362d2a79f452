"""The participants of a secure sum, and the exact encoding of their messages.

*Participants* are the sites of a roster with their identity keys. At least a threshold number of sites must answer in
every phase, or no total is opened.

>>> from dpca_tasks.sites.roster import Member, Roster
>>> members = tuple(Member(name=name, records=1000, noise_multiplier=4.0) for name in "abcde")
>>> identities = {name: Identity.draw() for name in "abcde"}
>>> keys = {name: identity.public for name, identity in identities.items()}
>>> Participants(roster=Roster(session="spring", members=members, colluders=1, dropouts=1), keys=keys).threshold
4

*Context.* The context of a message identifies the sum to which the message belongs. A site permanently records which
attempts it has begun and which sum it has helped to open (`Memory`), because its process may be killed.

*Encoding.* Each message has exactly one encoding, with fixed fields and without extra bytes.

An encoded message is called a frame: ``b"dpca"``, a version, the kind of the message, the digest of the context, the
place of the sender, and a body. The frame of a site ends with the site's signature of all preceding bytes. Kind and
length of a frame are checked before its body is parsed. A refusal states kinds, lengths and names, never the content of
a message.
"""

import hashlib
import itertools
import os
import struct
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol, Self

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from dpca_tasks.errors import InvalidInput, MessageRefused
from dpca_tasks.noise.keystream import SecretKey
from dpca_tasks.sites.roster import Address, Roster

KEY_BYTES = 32
SIGNATURE_BYTES = 64
MOST_SITES = 1000


@dataclass(frozen=True, slots=True)
class Identity:
    """A site's Ed25519 key, which signs all its messages in all sessions."""

    secret: SecretKey

    @classmethod
    def draw(cls) -> "Identity":
        """Return a new identity with randomness from the operating system."""
        return cls(SecretKey(os.urandom(KEY_BYTES)))

    @property
    def public(self) -> bytes:
        """The public key, which is listed in the roster."""
        return Ed25519PrivateKey.from_private_bytes(self.secret.secret).public_key().public_bytes_raw()

    def sign(self, text: bytes) -> bytes:
        """Return the signature of a text by this key."""
        return Ed25519PrivateKey.from_private_bytes(self.secret.secret).sign(text)


@dataclass(frozen=True, slots=True, kw_only=True)
class Participants:
    """A roster, and the public identity key of each of its sites.

    Parameters
    ----------
    roster : Roster
        The S sites. With C colluders and D dropouts, the threshold is ``t = S - D``; it must satisfy ``2 t > S + C``.
    keys : mapping of str to bytes of length 32
        The public Ed25519 key of each site.

    Raises
    ------
    InvalidInput
        When a site has no key, two sites have the same key, or a dishonest server could have two sums opened.
    """

    roster: Roster
    keys: Mapping[str, bytes] = field(hash=False)

    def __post_init__(self) -> None:
        """Check the keys, and the condition on the threshold."""
        if sorted(self.keys) != list(self.roster.names):
            unlike = sorted(set(self.keys) ^ set(self.roster.names))
            raise InvalidInput(
                f"sites {', '.join(unlike)} lack an identity key or are not in the roster; roster and identity keys "
                "must name the same sites: correct the roster."
            )
        for name, key in self.keys.items():
            if len(key) != KEY_BYTES:
                raise InvalidInput(
                    f"the identity key of site {name!r} has {len(key)} bytes and must have {KEY_BYTES}; request it "
                    "from that site."
                )
            if twins := sorted(other for other in self.keys if other != name and self.keys[other] == key):
                raise InvalidInput(
                    f"sites {name}, {', '.join(twins)} have the same identity key, so one could answer for another; "
                    "give each site a unique key."
                )
        check_threshold(self.roster.size, colluders=self.roster.colluders, dropouts=self.roster.dropouts)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the sites, sorted; the place of a site counts from 0 in this order."""
        return self.roster.names

    @property
    def threshold(self) -> int:
        """The least number t of sites that must answer, so that a sum is opened."""
        return self.roster.size - self.roster.dropouts

    @property
    def digest(self) -> bytes:
        """A hash of the roster and the keys."""
        hasher = hashlib.sha256(b"participants 1" + self.roster.digest)
        for name in self.names:
            hasher.update(self.keys[name])
        return hasher.digest()

    def place(self, name: str) -> int:
        """Return the place of a site: its index in `names`."""
        if name not in self.keys:
            raise InvalidInput(f"site {name!r} is not in the roster ({', '.join(self.names)}); use one of these.")
        return self.names.index(name)

    def without(self, *names: str) -> "Participants":
        """Return the participants that remain without some sites."""
        roster = self.roster.without(*names)
        return Participants(roster=roster, keys={name: self.keys[name] for name in roster.names})

    def check_signature(self, place: int, *, text: bytes, signature: bytes) -> None:
        """Check that the site at a place signed a text.

        Raises
        ------
        MessageRefused
            When the site did not sign the text.
        """
        name = self.names[place]
        try:
            Ed25519PublicKey.from_public_bytes(self.keys[name]).verify(signature, text)
        except (InvalidSignature, ValueError):
            raise MessageRefused(
                f"a message in the name of site {name!r} lacks the signature of that site; it is forged or damaged: "
                "begin another attempt."
            ) from None


def check_threshold(size: int, *, colluders: int, dropouts: int) -> None:
    """Check ``2 (S - D) > S + C``, under which a dishonest server cannot have two sums opened.

    Raises
    ------
    InvalidInput
        When the condition fails, or there are too many sites.
    """
    if 2 * (size - dropouts) <= size + colluders:
        raise InvalidInput(
            f"dropouts={dropouts} and colluders={colluders} of {size} sites let a dishonest server have two sums "
            "unmasked, because 2 (sites - dropouts) is not above sites + colluders; tolerate fewer, such as "
            f"{max(0, (size - colluders - 1) // 2)} dropouts."
        )
    if size > MOST_SITES:
        raise InvalidInput(f"a secure sum has at most {MOST_SITES} sites (got {size}); split the roster.")


DIGEST_BYTES = 32
MOST_WORDS = 2**32
LONGEST_SESSION = 400


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """The facts that identify one secure sum; all keys, masks and signatures are bound to the digest of these facts.

    Parameters
    ----------
    session : str
        The session of the roster.
    address : Address
        The round and the attempt. An attempt is never begun twice at a site.
    participants : bytes of length 32
        The digest of the roster with its identity keys.
    requested : bytes of length 32
        The digest of the query that every site answers. It is included because two queries may need different noise.
    words : int
        The number of integers of the sum.
    """

    session: str
    address: Address
    participants: bytes = field(repr=False)
    requested: bytes = field(repr=False)
    words: int

    def __post_init__(self) -> None:
        """Refuse facts that the encoding of messages cannot contain."""
        if not 0 < len(self.session.encode()) <= LONGEST_SESSION or not 0 < self.words <= MOST_WORDS:
            raise InvalidInput(
                f"the session name has {len(self.session.encode())} bytes and the sum {self.words} integers, but "
                f"1 to {LONGEST_SESSION} bytes and 1 to {MOST_WORDS} integers are allowed; shorten them."
            )
        if {len(self.participants), len(self.requested)} != {DIGEST_BYTES}:
            raise InvalidInput(f"the digests of participants and query must have {DIGEST_BYTES} bytes; pass SHA-256.")

    @property
    def digest(self) -> bytes:
        """A hash of all these facts."""
        hasher = hashlib.sha256(b"secure sum 1")
        for part in (
            self.session.encode(),
            self.address.round.to_bytes(8, "little"),
            self.address.attempt.to_bytes(8, "little"),
            self.participants,
            self.requested,
            self.words.to_bytes(8, "little"),
        ):
            hasher.update(len(part).to_bytes(8, "little") + part)
        return hasher.digest()


class Memory(Protocol):
    """The interface of a site's permanent memory, which writes to disk before `remember` returns."""

    def recall(self, key: bytes) -> bytes | None:
        """Return the first value stored under a key, or None."""

    def remember(self, key: bytes, value: bytes) -> bytes:
        """Store a value under a key that has no value yet; return the value of the key. The operation is atomic."""


def attempt_key(session: str, address: Address) -> bytes:
    """Return the key under which a site records that it began an attempt."""
    return hashlib.sha256(f"attempt {address.round} {address.attempt} ".encode() + session.encode()).digest()


def next_attempt(memory: Memory, *, session: str, round_index: int) -> int:
    """Return the first attempt of a round that a site has not begun."""
    attempts = itertools.count()
    begun = (memory.recall(attempt_key(session, Address(round=round_index, attempt=at))) for at in attempts)
    return next(at for at, mark in enumerate(begun) if mark is None)


def opened_key(roster_digest: bytes, *, round_index: int) -> bytes:
    """Return the key under which a site records the set of sites whose sum it helped to open in a round of a roster.

    A roster's digest covers its session. A site's noise is the same in all attempts of a round of a roster.
    """
    return hashlib.sha256(f"opened {round_index} ".encode() + roster_digest).digest()


MAGIC = b"dpca"
VERSION = 1
SERVER = 0xFFFF
"""The number of the sender in messages of the server; sites have their places instead."""

_HEAD = struct.Struct("<4sBB32sH")
HEAD_BYTES = _HEAD.size


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """The participants and the context of a secure sum, which are the same for sender and receiver of a message."""

    participants: Participants
    context: Context

    @property
    def sites(self) -> int:
        """The number S of sites."""
        return self.participants.roster.size

    @property
    def bitmap_bytes(self) -> int:
        """The size of a bitmap with one bit per site, in bytes."""
        return (self.sites + 7) // 8

    def name(self, place: int) -> str:
        """Return the name of the site at a place."""
        return self.participants.names[place]


class Reader:
    """Reader of the consecutive fields in the body of a message."""

    def __init__(self, body: bytes) -> None:
        self._rest = memoryview(body)

    def take(self, size: int) -> bytes:
        """Return the next ``size`` bytes."""
        if size > len(self._rest):
            raise MessageRefused("a message ends within a field, so it is truncated; send it whole.")
        taken, self._rest = self._rest[:size], self._rest[size:]
        return bytes(taken)

    def integer(self, size: int) -> int:
        """Return the next ``size`` bytes as a little-endian integer."""
        return int.from_bytes(self.take(size), "little")

    def place(self, scene: Scene) -> int:
        """Return the next number, which must be the place of a site."""
        place = self.integer(2)
        if place >= scene.sites:
            raise MessageRefused(f"place {place} is not below {scene.sites}, the number of sites; use valid places.")
        return place

    def places(self, scene: Scene) -> frozenset[int]:
        """Return the places of the sites in the next field, a bitmap with one bit per site."""
        bits = self.integer(scene.bitmap_bytes)
        if bits >> scene.sites:
            raise MessageRefused(f"a set of sites has places beyond the {scene.sites} of the roster; use valid places.")
        return frozenset(place for place in range(scene.sites) if bits >> place & 1)

    def is_done(self) -> bool:
        """Return whether all bytes have been read."""
        return not self._rest


class Telegram(ABC):
    """Base class of the messages of a secure sum; a subclass has a kind number, and an encoding of the body."""

    kind: ClassVar[int]
    title: ClassVar[str]
    """The name of the message type in error messages."""
    is_signed: ClassVar[bool]
    """Whether sites send such messages, with a signature; otherwise only the server sends them."""

    @abstractmethod
    def body(self, scene: Scene) -> bytes:
        """Return the encoded body of the message."""

    @classmethod
    @abstractmethod
    def longest(cls, scene: Scene) -> int:
        """Return the largest length of an encoded body, in bytes."""

    @classmethod
    @abstractmethod
    def parse(cls, reader: Reader, scene: Scene) -> Self:
        """Parse the message from its encoded body; refuse a body that `body` would not have returned."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Received[T: Telegram]:
    """A received and checked message, with the place of its sender and its bytes as received."""

    message: T
    sender: int
    raw: bytes


def encode(message: Telegram, scene: Scene, *, sender: str | None = None, identity: Identity | None = None) -> bytes:
    """Encode a message as a frame; a site signs it with its identity, the server (no sender) does not."""
    place = SERVER if sender is None else scene.participants.place(sender)
    raw = _HEAD.pack(MAGIC, VERSION, message.kind, scene.context.digest, place) + message.body(scene)
    return raw + identity.sign(raw) if identity else raw


def longest_frame(expected: type[Telegram], scene: Scene) -> int:
    """Return the largest length of an encoded message of a type, in bytes; a transport reads no more bytes."""
    return HEAD_BYTES + expected.longest(scene) + SIGNATURE_BYTES * expected.is_signed


def decode[T: Telegram](raw: bytes, expected: type[T], scene: Scene) -> Received[T]:
    """Decode a frame, and return its message, which must be of the expected type.

    Raises
    ------
    MessageRefused
        When the frame has another type, length, context, sender or encoding, or lacks the signature of its sender.
    """
    if len(raw) < HEAD_BYTES or raw[:5] != MAGIC + bytes([VERSION]):
        raise MessageRefused(
            "a message is truncated or of another protocol version; use one version of dpca everywhere."
        )
    if raw[5] != expected.kind:
        raise MessageRefused(
            f"a message of kind {raw[5]} arrived, but kind {expected.kind} ({expected.title}) is expected: the message "
            "is late, early or replayed; continue with this phase or begin another attempt."
        )
    if len(raw) > longest_frame(expected, scene):
        raise MessageRefused(
            f"a message ({expected.title}) has {len(raw)} bytes, and at most {longest_frame(expected, scene)} are "
            "allowed in this round; send only the requested message."
        )
    context, sender = _HEAD.unpack_from(raw)[3:]
    if context != scene.context.digest:
        raise MessageRefused(
            f"a message ({expected.title}) is of another session, round, attempt, roster or query; begin another "
            "attempt."
        )
    end = len(raw)
    if expected.is_signed:
        end -= SIGNATURE_BYTES
        if end < HEAD_BYTES or sender >= scene.sites:
            raise MessageRefused(
                f"a message ({expected.title}) is truncated, or its sender is no site of the roster; send it whole."
            )
        scene.participants.check_signature(sender, text=raw[:end], signature=raw[end:])
    elif sender != SERVER:
        raise MessageRefused(f"a message ({expected.title}) may come only from the server; send a message of a site.")
    reader = Reader(raw[HEAD_BYTES:end])
    message = expected.parse(reader, scene)
    if not reader.is_done():
        raise MessageRefused(f"extra bytes follow a message ({expected.title}); send it alone.")
    return Received(message=message, sender=sender, raw=raw)


def write_places(places: Iterable[int], scene: Scene) -> bytes:
    """Return the bitmap of a set of places."""
    return sum(1 << place for place in places).to_bytes(scene.bitmap_bytes, "little")


def check_ascending(places: Sequence[int], title: str) -> None:
    """Check that places are in ascending order without repetition."""
    if any(one >= other for one, other in itertools.pairwise(places)):
        raise MessageRefused(
            f"a message ({title}) names a site twice, or sites out of order; name each once, in the roster's order."
        )


def listed(places: Iterable[int], scene: Scene) -> str:
    """Return the names of the sites at some places, separated by commas, for an error message."""
    return ", ".join(scene.name(place) for place in sorted(places))


@dataclass(frozen=True, slots=True, kw_only=True)
class Frames[T: Telegram](Telegram):
    """Message of the server that contains the signed messages of several sites in one phase, as received."""

    frames: dict[int, Received[T]]

    is_signed: ClassVar[bool] = False
    of: ClassVar[type[Any]]
    """The type of the contained messages, which all have the same length."""

    def body(self, scene: Scene) -> bytes:
        """Return the encoded body of the message."""
        frames = [self.frames[place].raw for place in sorted(self.frames)]
        return len(frames).to_bytes(2, "little") + b"".join(frames)

    @classmethod
    def longest(cls, scene: Scene) -> int:
        """Return the largest length of an encoded body, in bytes."""
        return 2 + scene.sites * longest_frame(cls.of, scene)

    @classmethod
    def parse(cls, reader: Reader, scene: Scene) -> Self:
        """Parse the message from its encoded body, and check every signature."""
        frames = [reader.take(longest_frame(cls.of, scene)) for _ in range(reader.integer(2))]
        found = [decode(frame, cls.of, scene) for frame in frames]
        check_ascending([one.sender for one in found], cls.title)
        return cls(frames={one.sender: one for one in found})
