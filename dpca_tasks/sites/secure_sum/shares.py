"""Phases 3 (shares of secrets) and 4 (masked sums) of a secure sum.

*Phase 3, shares.* Every site receives shares of the secrets of every other site, and then sends its masked sum.

Site to server: `SealedShares`, one encrypted text for each other site on the list of keys. Server to each site:
`Delivered`, the texts for this site. The site decrypts all texts, which proves that their senders received the same
list of keys. It then generates its masks for the sites that sent shares, and sends its noised integers plus these
masks.

*Phase 4, masked sums.* The server has the masked sums, and announces the set of sites whose sum it will open.

Site to server: `MaskedSum`, the noised integers plus both kinds of masks. Server to these sites: `Senders`, the set of
sites whose sum is to be opened. A site signs the set and the transcript if the site is in the set, and has not helped
to open another set with the same noise. The transcript is a hash of the context, the list of keys, and the set of sites
whose shares the site received.
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
    """Message of a site with its noised integers plus its masks."""

    words: NDArray[np.uint64] = field(repr=False)

    kind: ClassVar[int] = 6
    title: ClassVar[str] = "masked sums"
    is_signed: ClassVar[bool] = True

    def body(self, scene: Scene) -> bytes:
        """Return the encoded body of the message."""
        return self.words.astype("<u8", copy=False).tobytes()

    @classmethod
    def longest(cls, scene: Scene) -> int:
        """Return the length of an encoded body in bytes, which is the same for all such messages."""
        return 8 * scene.context.words

    @classmethod
    def parse(cls, reader: Reader, scene: Scene) -> Self:
        """Parse the message from its encoded body."""
        words = np.frombuffer(reader.take(cls.longest(scene)), "<u8")
        return cls(words=words.astype(np.uint64, copy=False))


@dataclass(frozen=True, slots=True, kw_only=True)
class Senders(Telegram):
    """Message of the server with the set of sites (senders of masked sums) whose sum is to be opened."""

    senders: frozenset[int]

    kind: ClassVar[int] = 7
    title: ClassVar[str] = "the senders"
    is_signed: ClassVar[bool] = False

    def body(self, scene: Scene) -> bytes:
        """Return the encoded body of the message."""
        return write_places(self.senders, scene)

    @classmethod
    def longest(cls, scene: Scene) -> int:
        """Return the length of an encoded body in bytes, which is the same for all such messages."""
        return scene.bitmap_bytes

    @classmethod
    def parse(cls, reader: Reader, scene: Scene) -> Self:
        """Parse the message from its encoded body."""
        return cls(senders=reader.places(scene))


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteSums(SitePhase[Senders]):
    """Phase of a site that has sent its masked sum and waits for the set of senders."""

    transcript: bytes
    sharers: frozenset[int]
    held: Mapping[int, SharesOf] = field(repr=False)

    expects: ClassVar[type[Any]] = Senders

    def answer(self, received: Received[Senders]) -> tuple[bytes, SitePhase[Any]]:
        """Return the set of senders with the site's signature."""
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
    """Phase in which the server collects the masked sums."""

    keys: Mapping[int, PublicKeys]

    expects: ClassVar[type[Any]] = MaskedSum

    def close(self) -> tuple[dict[int, bytes], ServerSignatures]:
        """Return the encoded set of senders for each sender, and the next phase."""
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
        """Return the set whose sum a site helped to open before with this noise, or else all sites that sent a sum."""
        for opened in {keys.opened for keys in self.keys.values()} - {frozenset()}:
            if not opened <= self.present:
                gone = tuple(self.scene.name(place) for place in sorted(opened - self.present))
                raise SiteSilent(
                    f"sites {', '.join(gone)} are missing, and this noise may be unmasked only with them, because a "
                    "site already helped to unmask that sum; begin another attempt, or use a smaller roster.",
                    names=gone,
                )
            return opened
        return self.present


SEALED_BYTES = 2 * SHARE_BYTES + TAG_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sealed(Telegram):
    """Encrypted shares, by the place of the other site: of the receiver, or of the sender."""

    sealed: dict[int, bytes]

    def body(self, scene: Scene) -> bytes:
        """Return the encoded body of the message."""
        parts = [place.to_bytes(2, "little") + self.sealed[place] for place in sorted(self.sealed)]
        return len(parts).to_bytes(2, "little") + b"".join(parts)

    @classmethod
    def longest(cls, scene: Scene) -> int:
        """Return the largest length of an encoded body, in bytes."""
        return 2 + (scene.sites - 1) * (2 + SEALED_BYTES)

    @classmethod
    def parse(cls, reader: Reader, scene: Scene) -> Self:
        """Parse the message from its encoded body."""
        pairs = [(reader.place(scene), reader.take(SEALED_BYTES)) for _ in range(reader.integer(2))]
        check_ascending([place for place, _ in pairs], cls.title)
        return cls(sealed=dict(pairs))


class SealedShares(_Sealed):
    """Message of a site with its encrypted shares for the other sites."""

    kind: ClassVar[int] = 4
    title: ClassVar[str] = "sealed shares"
    is_signed: ClassVar[bool] = True


class Delivered(_Sealed):
    """Message of the server to one site with the encrypted shares that the other sites sent for this site."""

    kind: ClassVar[int] = 5
    title: ClassVar[str] = "delivered shares"
    is_signed: ClassVar[bool] = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteShares(SitePhase[Delivered]):
    """Phase of a site that has sent shares of its secrets and waits for the shares of the other sites."""

    sealing: Pairing
    masking: Pairing
    self_seed: SecretKey = field(repr=False)
    keys: Mapping[int, PublicKeys]
    listed: bytes
    own: SharesOf = field(repr=False)

    expects: ClassVar[type[Any]] = Delivered

    def answer(self, received: Received[Delivered]) -> tuple[bytes, SitePhase[Any]]:
        """Decrypt the shares of the other sites, and return the masked sum of this site."""
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
    """Phase in which the server collects the encrypted shares."""

    keys: Mapping[int, PublicKeys]

    expects: ClassVar[type[Any]] = SealedShares

    def check(self, received: Received[SealedShares]) -> None:
        """Check that the message contains shares for each other site on the list of keys."""
        lacking = self.awaited - {received.sender} ^ received.message.sealed.keys()
        if lacking:
            raise MessageRefused(
                f"sealed shares of site {self.scene.name(received.sender)!r} do not cover all other sites of the list "
                f"({listed(lacking, self.scene)}); begin another attempt."
            )

    def close(self) -> tuple[dict[int, bytes], ServerSums]:
        """Return for each site the encoded message with the shares for this site; return the next phase."""
        self.check_enough()
        frames = {}
        for place in sorted(self.present):
            texts = {other: self.received[other].message.sealed[place] for other in self.present - {place}}
            frames[place] = encode(Delivered(sealed=texts), self.scene)
        return frames, ServerSums(scene=self.scene, awaited=self.present, keys=self.keys)
