"""Phases 3 (shares of secrets) and 4 (masked sums) of a secure sum.

*Phase 3, shares.* Every site receives a share of the secrets of every other site, and then sends its masked sum.

Site to server: `SealedShares`, one sealed text for each other site of the list. Server to each site: `Delivered`, the
texts for it. A site opens them all, which proves that their senders saw the same list of keys. It draws its masks for
the sites that sent it shares, and sends its noised integers under these masks.

*Phase 4, masked sums.* The server holds the masked sums, and announces which of them it will open.

Site to server: `MaskedSum`, the noised integers under both masks. Server to those sites: `Senders`, the one set whose
sum is to be opened. A site signs the set and the transcript if it is in the set, and has helped to open no other set
under the same noise. The transcript is the context, the list of keys, and which site shared with which.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from dpca_tasks.errors import MessageRefused, SiteSilent
from dpca_tasks.noise.keystream import SecretKey
from dpca_tasks.sites.secure_sum.opening import ServerSignatures, SharesOf, SignedSenders, SiteOpening
from dpca_tasks.sites.secure_sum.session import (
    PRIME,
    SHARE_BYTES,
    TAG_BYTES,
    DoubleMasks,
    Pairing,
    PublicKeys,
    ServerPhase,
    SitePhase,
)
from dpca_tasks.sites.secure_sum.wire import (
    Reader,
    Received,
    Scene,
    Telegram,
    check_ascending,
    encode,
    listed,
    opened_key,
    write_places,
)


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
        """Return the length in bytes of every body."""
        return 8 * scene.context.words

    @classmethod
    def parse(cls, reader: Reader, scene: Scene) -> Self:
        """Parse the message from a body."""
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
        """Return the length in bytes of every body."""
        return scene.bitmap_bytes

    @classmethod
    def parse(cls, reader: Reader, scene: Scene) -> Self:
        """Parse the message from a body."""
        return cls(senders=reader.places(scene))


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteSums(SitePhase[Senders]):
    """A site that has sent its masked sum."""

    transcript: bytes
    sharers: frozenset[int]
    held: Mapping[int, SharesOf] = field(repr=False)

    expects: ClassVar[type[Any]] = Senders

    def answer(self, received: Received[Senders]) -> tuple[bytes, SitePhase[Any]]:
        """Sign the set of senders."""
        scene, senders = self.session.scene, received.message.senders
        self.check_enough(senders, Senders.title)
        if not senders <= self.sharers:
            raise MessageRefused("the requested sum includes sites that shared nothing with this site; stop.")
        key = opened_key(scene.participants.roster.digest, round_index=scene.context.address.round)
        if self.session.memory.recall(key) not in (None, write_places(senders, scene)):
            raise MessageRefused(
                "this site helped to unmask another set of sites under the same noise, and the difference would reveal "
                "a site's integers; continue with a smaller roster, whose noise is fresh."
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
        """Return the set of senders for each of them, and the next phase."""
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
        """Return the set that some site helped to open in an earlier attempt, or else all sites that sent a sum."""
        for opened in {keys.opened for keys in self.keys.values()} - {frozenset()}:
            if not opened <= self.present:
                gone = tuple(self.scene.name(place) for place in sorted(opened - self.present))
                raise SiteSilent(
                    f"sites {', '.join(gone)} are missing from the set with which this noise was unmasked, and it is "
                    "unmasked with no other; begin another attempt, or use a smaller roster.",
                    names=gone,
                )
            return opened
        return self.present


SEALED_BYTES = 2 * SHARE_BYTES + TAG_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sealed(Telegram):
    """Sealed texts, by the place of the other site."""

    sealed: dict[int, bytes]

    def body(self, scene: Scene) -> bytes:
        """Return the encoded body."""
        parts = [place.to_bytes(2, "little") + self.sealed[place] for place in sorted(self.sealed)]
        return len(parts).to_bytes(2, "little") + b"".join(parts)

    @classmethod
    def longest(cls, scene: Scene) -> int:
        """Return the largest length in bytes of a body."""
        return 2 + (scene.sites - 1) * (2 + SEALED_BYTES)

    @classmethod
    def parse(cls, reader: Reader, scene: Scene) -> Self:
        """Parse the message from a body."""
        pairs = [(reader.place(scene), reader.take(SEALED_BYTES)) for _ in range(reader.integer(2))]
        check_ascending([place for place, _ in pairs], cls.title)
        return cls(sealed=dict(pairs))


class SealedShares(_Sealed):
    """A site's sealed shares for the other sites, sent through the server."""

    kind: ClassVar[int] = 4
    title: ClassVar[str] = "sealed shares"
    is_signed: ClassVar[bool] = True


class Delivered(_Sealed):
    """The sealed shares of the other sites for one site."""

    kind: ClassVar[int] = 5
    title: ClassVar[str] = "delivered shares"
    is_signed: ClassVar[bool] = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteShares(SitePhase[Delivered]):
    """A site that has shared its secrets."""

    sealing: Pairing
    masking: Pairing
    self_seed: SecretKey = field(repr=False)
    keys: Mapping[int, PublicKeys]
    listed: bytes
    own: SharesOf = field(repr=False)

    expects: ClassVar[type[Any]] = Delivered

    def answer(self, received: Received[Delivered]) -> tuple[bytes, SitePhase[Any]]:
        """Open the shares, and send the masked sum."""
        scene, place = self.session.scene, self.session.place
        sealed = received.message.sealed
        sharers = frozenset(sealed) | {place}
        self.check_enough(sharers, Delivered.title)
        if place in sealed or not sharers <= self.keys.keys():
            raise MessageRefused("shares were delivered from sites that are not on the list of keys; stop.")
        held = {other: self._open(other, text) for other, text in sealed.items()} | {place: self.own}
        seeds = {other: self.masking.mask_seed(other, public=self.keys[other].masking) for other in sharers - {place}}
        masks = DoubleMasks(scene=scene, site=self.session.site, self_seed=self.self_seed, pair_seeds=seeds)
        words = self.session.contribute(masks)
        if masks.used != 1 or words.shape != (scene.context.words,):
            raise MessageRefused(
                f"{scene.context.words} integers must be masked once (got {words.size} integers, masked {masks.used} "
                "times); nothing is sent."
            )
        transcript = hashlib.sha256(scene.context.digest + self.listed + write_places(sharers, scene)).digest()
        return self.session.send(MaskedSum(words=words)), SiteSums(
            session=self.session, transcript=transcript, sharers=sharers, held=held
        )

    def _open(self, other: int, text: bytes) -> SharesOf:
        plain = self.sealing.unseal(text, sender=other, public=self.keys[other].sealing, bound_to=self.listed)
        seed, key = (int.from_bytes(plain[at : at + SHARE_BYTES], "little") for at in (0, SHARE_BYTES))
        if max(seed, key) >= PRIME:
            raise MessageRefused(
                f"shares from site {self.session.scene.name(other)!r} are invalid; begin another attempt without it."
            )
        return SharesOf(seed=seed, key=key)


@dataclass(kw_only=True)
class ServerShares(ServerPhase[SealedShares]):
    """The server while it collects sealed shares."""

    keys: Mapping[int, PublicKeys]

    expects: ClassVar[type[Any]] = SealedShares

    def check(self, received: Received[SealedShares]) -> None:
        """Check that there is a share for each other site of the list."""
        lacking = self.awaited - {received.sender} ^ received.message.sealed.keys()
        if lacking:
            raise MessageRefused(
                f"sealed shares of site {self.scene.name(received.sender)!r} do not cover all other sites of the list "
                f"({listed(lacking, self.scene)}); begin another attempt."
            )

    def close(self) -> tuple[dict[int, bytes], ServerSums]:
        """Return the texts for each site, and the next phase."""
        self.check_enough()
        frames = {}
        for place in sorted(self.present):
            texts = {other: self.received[other].message.sealed[place] for other in self.present - {place}}
            frames[place] = encode(Delivered(sealed=texts), self.scene)
        return frames, ServerSums(scene=self.scene, awaited=self.present, keys=self.keys)
