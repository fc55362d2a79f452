"""Phase 4, masked sums: the server holds them, and says whose it will open.

Site to server: `MaskedSum`, the noised integers under both masks. Server to those sites: `Senders`, the one set whose
sum is to be opened. A site that is among them, and has helped to open no other set under the same noise, signs set and
transcript: the context, the list of keys, and who shared with whom.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from dpca_tasks.errors import MessageRefused, SiteSilent
from dpca_tasks.sites.secure_sum.agreements import PublicKeys
from dpca_tasks.sites.secure_sum.opening import ServerSignatures, SharesOf, SignedSenders, SiteOpening
from dpca_tasks.sites.secure_sum.participants import opened_key
from dpca_tasks.sites.secure_sum.session import ServerPhase, SitePhase
from dpca_tasks.sites.secure_sum.wire import Reader, Received, Scene, Telegram, encode, write_places


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MaskedSum(Telegram):
    """A site's integers under its masks."""

    words: NDArray[np.uint64] = field(repr=False)

    kind: ClassVar[int] = 6
    title: ClassVar[str] = "masked sums"
    is_signed: ClassVar[bool] = True

    def body(self, scene: Scene) -> bytes:
        """Return the encoded body."""
        return self.words.astype("<u8", copy=False).tobytes()

    @classmethod
    def longest(cls, scene: Scene) -> int:
        """Return the bytes of every body."""
        return 8 * scene.context.words

    @classmethod
    def parse(cls, reader: Reader, scene: Scene) -> Self:
        """Return the message of a body."""
        words = np.frombuffer(reader.take(cls.longest(scene)), "<u8")
        return cls(words=words.astype(np.uint64, copy=False))


@dataclass(frozen=True, slots=True, kw_only=True)
class Senders(Telegram):
    """The sites whose sum is to be opened."""

    senders: frozenset[int]

    kind: ClassVar[int] = 7
    title: ClassVar[str] = "the senders"
    is_signed: ClassVar[bool] = False

    def body(self, scene: Scene) -> bytes:
        """Return the encoded body."""
        return write_places(self.senders, scene)

    @classmethod
    def longest(cls, scene: Scene) -> int:
        """Return the bytes of every body."""
        return scene.bitmap_bytes

    @classmethod
    def parse(cls, reader: Reader, scene: Scene) -> Self:
        """Return the message of a body."""
        return cls(senders=reader.places(scene))


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteSums(SitePhase[Senders]):
    """A site that has sent its masked sum."""

    transcript: bytes
    sharers: frozenset[int]
    held: Mapping[int, SharesOf] = field(repr=False)

    expects: ClassVar[type[Any]] = Senders

    def answer(self, received: Received[Senders]) -> tuple[bytes, SitePhase[Any]]:
        """Sign the set."""
        scene, senders = self.session.scene, received.message.senders
        self.check_enough(senders, Senders.title)
        if not senders <= self.sharers:
            raise MessageRefused("a sum was asked for of sites that shared nothing with this one; stop.")
        key = opened_key(scene.participants.roster.digest, round_index=scene.context.address.round)
        if self.session.memory.recall(key) not in (None, write_places(senders, scene)):
            raise MessageRefused(
                "this site helped to open another set of sites under the same noise, and a difference of two would "
                "show a site's integers; go on with a smaller roster, whose noise is fresh."
            )
        signed = SignedSenders(transcript=self.transcript, senders=senders)
        return self.session.send(signed), SiteOpening(
            session=self.session, signed=signed, sharers=self.sharers, held=self.held
        )


@dataclass(kw_only=True)
class ServerSums(ServerPhase[MaskedSum]):
    """The server while it collects masked sums."""

    keys: Mapping[int, PublicKeys]

    expects: ClassVar[type[Any]] = MaskedSum

    def close(self) -> tuple[dict[int, bytes], ServerSignatures]:
        """Return the senders for each of them, and the next phase."""
        self.check_enough()
        senders = self._settled()
        frame = encode(Senders(senders=senders), self.scene)
        return dict.fromkeys(sorted(senders), frame), ServerSignatures(
            scene=self.scene,
            awaited=senders,
            keys=self.keys,
            sharers=self.awaited,
            sums={place: self.received[place].message.words for place in sorted(senders)},
        )

    def _settled(self) -> frozenset[int]:
        """Return the set that some site helped to open in an earlier attempt, else all that sent."""
        for opened in {keys.opened for keys in self.keys.values()} - {frozenset()}:
            if not opened <= self.present:
                gone = tuple(self.scene.name(place) for place in sorted(opened - self.present))
                raise SiteSilent(
                    f"sites {', '.join(gone)} are missing, with which this noise was opened before, and it is opened "
                    "with no other set; begin another attempt, or take a smaller roster.",
                    names=gone,
                )
            return opened
        return self.present
