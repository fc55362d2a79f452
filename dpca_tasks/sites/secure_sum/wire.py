"""The exact encoding of messages: fixed fields, one length for each kind and participants, no byte left over.

A frame is ``b"dpca"``, a version, the kind, the digest of the context, the place of the sender, and a body; a site's
frame ends in its signature of all that. A frame is refused by its kind before anything else of it is read, and by its
length before it is parsed. A refusal tells kinds, lengths and names, never what a message holds.
"""

import itertools
import struct
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from dpca_tasks.errors import MessageRefused
from dpca_tasks.sites.secure_sum.participants import SIGNATURE_BYTES, Context, Identity, Participants

MAGIC = b"dpca"
VERSION = 1
SERVER = 0xFFFF
"""The place that a frame of the server bears."""

_HEAD = struct.Struct("<4sBB32sH")
HEAD_BYTES = _HEAD.size


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """The participants and the context that both ends of a frame agree on."""

    participants: Participants
    context: Context

    @property
    def sites(self) -> int:
        """The number S of sites."""
        return self.participants.roster.size

    @property
    def bitmap_bytes(self) -> int:
        """The bytes of one bit a site."""
        return (self.sites + 7) // 8

    def name(self, place: int) -> str:
        """Return the name of the site at a place."""
        return self.participants.names[place]


class Reader:
    """Takes fields off the front of a body."""

    def __init__(self, body: bytes) -> None:
        self._rest = memoryview(body)

    def take(self, size: int) -> bytes:
        """Return the next bytes."""
        if size > len(self._rest):
            raise MessageRefused("a message ends within a field; it was cut: send it whole.")
        taken, self._rest = self._rest[:size], self._rest[size:]
        return bytes(taken)

    def integer(self, size: int) -> int:
        """Return the next little-endian number."""
        return int.from_bytes(self.take(size), "little")

    def place(self, scene: Scene) -> int:
        """Return the next place of a site."""
        place = self.integer(2)
        if place >= scene.sites:
            raise MessageRefused(f"place {place} is beyond the {scene.sites} sites of the roster; use its places.")
        return place

    def places(self, scene: Scene) -> frozenset[int]:
        """Return the next bitmap as the set of its places."""
        bits = self.integer(scene.bitmap_bytes)
        if bits >> scene.sites:
            raise MessageRefused(f"a set of sites names more than the {scene.sites} of the roster; use its places.")
        return frozenset(place for place in range(scene.sites) if bits >> place & 1)

    def is_done(self) -> bool:
        """Say whether nothing is left."""
        return not self._rest


class Telegram(ABC):
    """A message type: its kind, the length of its body, and how that is written and read."""

    kind: ClassVar[int]
    title: ClassVar[str]
    """How refusals call it."""
    is_signed: ClassVar[bool]
    """Whether a site sends it, signed."""

    @abstractmethod
    def body(self, scene: Scene) -> bytes:
        """Return the encoded body."""

    @classmethod
    @abstractmethod
    def longest(cls, scene: Scene) -> int:
        """Return the most bytes of a body."""

    @classmethod
    @abstractmethod
    def parse(cls, reader: Reader, scene: Scene) -> Self:
        """Return the message of a body; refuse what this encoding would not have written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Received[T: Telegram]:
    """A checked message, the place of its sender, and its bytes as they came."""

    message: T
    sender: int
    raw: bytes


def encode(message: Telegram, scene: Scene, *, sender: str | None = None, identity: Identity | None = None) -> bytes:
    """Return the frame of a message: of the server, or of a site under its identity."""
    place = SERVER if sender is None else scene.participants.place(sender)
    raw = _HEAD.pack(MAGIC, VERSION, message.kind, scene.context.digest, place) + message.body(scene)
    return raw + identity.sign(raw) if identity else raw


def longest_frame(expected: type[Telegram], scene: Scene) -> int:
    """Return the most bytes of a frame of a type; a transport reads no more."""
    return HEAD_BYTES + expected.longest(scene) + SIGNATURE_BYTES * expected.is_signed


def decode[T: Telegram](raw: bytes, expected: type[T], scene: Scene) -> Received[T]:
    """Return the message of a frame of the expected type.

    Raises
    ------
    MessageRefused
        When it is of another type, length, context, sender or encoding, or not signed by who is said to have sent it.
    """
    if len(raw) < HEAD_BYTES or raw[:5] != MAGIC + bytes([VERSION]):
        raise MessageRefused("a message is cut or not of this protocol's version; use one version of dpca everywhere.")
    if raw[5] != expected.kind:
        raise MessageRefused(
            f"a message of kind {raw[5]} came where {expected.title} (kind {expected.kind}) are expected: it is late, "
            "early or replayed; go on with the present phase or begin another attempt."
        )
    if len(raw) > longest_frame(expected, scene):
        raise MessageRefused(
            f"{expected.title} of {len(raw)} bytes exceed the {longest_frame(expected, scene)} of this round; "
            "send what was asked for."
        )
    context, sender = _HEAD.unpack_from(raw)[3:]
    if context != scene.context.digest:
        raise MessageRefused(
            f"{expected.title} are of another session, round, attempt, roster or query; begin another attempt."
        )
    end = len(raw)
    if expected.is_signed:
        end -= SIGNATURE_BYTES
        if end < HEAD_BYTES or sender >= scene.sites:
            raise MessageRefused(f"{expected.title} are cut or of no site of the roster; send them whole.")
        scene.participants.check_signature(sender, text=raw[:end], signature=raw[end:])
    elif sender != SERVER:
        raise MessageRefused(f"{expected.title} come from the server alone; send what a site sends.")
    reader = Reader(raw[HEAD_BYTES:end])
    message = expected.parse(reader, scene)
    if not reader.is_done():
        raise MessageRefused(f"{expected.title} are followed by more bytes, which no message is; send them alone.")
    return Received(message=message, sender=sender, raw=raw)


def write_places(places: Iterable[int], scene: Scene) -> bytes:
    """Return the bitmap of a set of places."""
    return sum(1 << place for place in places).to_bytes(scene.bitmap_bytes, "little")


def check_ascending(places: Sequence[int], title: str) -> None:
    """Refuse places that are not in order or come twice."""
    if any(one >= other for one, other in itertools.pairwise(places)):
        raise MessageRefused(f"{title} name a site twice or out of order; send each once, in the roster's order.")


def listed(places: Iterable[int], scene: Scene) -> str:
    """Return the names of sites for a message."""
    return ", ".join(scene.name(place) for place in sorted(places))


@dataclass(frozen=True, slots=True, kw_only=True)
class Frames[T: Telegram](Telegram):
    """The signed frames of several sites, as they came: what the server shows of one phase to all."""

    frames: dict[int, Received[T]]

    is_signed: ClassVar[bool] = False
    of: ClassVar[type[Any]]
    """The message type of every frame, of one length."""

    def body(self, scene: Scene) -> bytes:
        """Return the encoded body."""
        frames = [self.frames[place].raw for place in sorted(self.frames)]
        return len(frames).to_bytes(2, "little") + b"".join(frames)

    @classmethod
    def longest(cls, scene: Scene) -> int:
        """Return the most bytes of a body."""
        return 2 + scene.sites * longest_frame(cls.of, scene)

    @classmethod
    def parse(cls, reader: Reader, scene: Scene) -> Self:
        """Return the message of a body; every signature is checked."""
        frames = [reader.take(longest_frame(cls.of, scene)) for _ in range(reader.integer(2))]
        found = [decode(frame, cls.of, scene) for frame in frames]
        check_ascending([one.sender for one in found], cls.title)
        return cls(frames={one.sender: one for one in found})
