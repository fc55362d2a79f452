"""Phase 5 of a secure sum, the opening: sites reveal shares with which the server removes the remaining masks.

Site to server: `SignedSenders`. Server to sites: `Signatures`, all these messages as received. A site checks that at
least t signatures, for the threshold t, are on the same set and transcript as its own signature. The site then
permanently records the set, and sends `OpeningShares`, one share for each site that shared its secrets. For a sender of
a masked sum, this is a share of the sender's mask seed. For any other site, it is a share of the site's masking key.
The server recovers these secrets, and subtracts the senders' own masks and the remaining pairwise masks.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Never, Self

import numpy as np
from numpy.typing import NDArray

from dpca_tasks.errors import MessageRefused
from dpca_tasks.noise.keystream import SecretKey
from dpca_tasks.sites.secure_sum.session import (
    PRIME,
    SHARE_BYTES,
    Pairing,
    PublicKeys,
    ServerPhase,
    SitePhase,
    add_mask,
    commit,
    own_mask_key,
    recover,
    sign_of,
)
from dpca_tasks.sites.secure_sum.wire import (
    DIGEST_BYTES,
    Frames,
    Reader,
    Received,
    Scene,
    Telegram,
    check_ascending,
    encode,
    opened_key,
    write_places,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SharesOf:
    """A site's shares of the two secrets of one site (possibly its own): the mask seed, and the masking key."""

    seed: int = field(repr=False)
    key: int = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Total:
    """The result of a secure sum: the sum of the senders' noised integers, without masks."""

    integers: NDArray[np.int64] = field(repr=False)
    senders: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SignedSenders(Telegram):
    """Message of a site that signs a set of senders, and a hash of everything that it received before."""

    transcript: bytes
    senders: frozenset[int]

    kind: ClassVar[int] = 8
    title: ClassVar[str] = "signed senders"
    is_signed: ClassVar[bool] = True

    def body(self, scene: Scene) -> bytes:
        """Return the encoded body of the message."""
        return self.transcript + write_places(self.senders, scene)

    @classmethod
    def longest(cls, scene: Scene) -> int:
        """Return the length of an encoded body in bytes, which is the same for all such messages."""
        return DIGEST_BYTES + scene.bitmap_bytes

    @classmethod
    def parse(cls, reader: Reader, scene: Scene) -> Self:
        """Parse the message from its encoded body."""
        return cls(transcript=reader.take(DIGEST_BYTES), senders=reader.places(scene))


@dataclass(frozen=True, slots=True, kw_only=True)
class Signatures(Frames[SignedSenders]):
    """Message of the server with the `SignedSenders` of all sites that sent them."""

    kind: ClassVar[int] = 9
    title: ClassVar[str] = "signatures"
    of: ClassVar[type[Any]] = SignedSenders


@dataclass(frozen=True, slots=True, kw_only=True)
class OpeningShares(Telegram):
    """Message of a site with one share for each site: of its mask seed if it is a sender, else of its masking key."""

    shares: dict[int, int] = field(repr=False)

    kind: ClassVar[int] = 10
    title: ClassVar[str] = "opening shares"
    is_signed: ClassVar[bool] = True

    def body(self, scene: Scene) -> bytes:
        """Return the encoded body of the message."""
        parts = [
            place.to_bytes(2, "little") + self.shares[place].to_bytes(SHARE_BYTES, "little")
            for place in sorted(self.shares)
        ]
        return len(parts).to_bytes(2, "little") + b"".join(parts)

    @classmethod
    def longest(cls, scene: Scene) -> int:
        """Return the largest length of an encoded body, in bytes."""
        return 2 + scene.sites * (2 + SHARE_BYTES)

    @classmethod
    def parse(cls, reader: Reader, scene: Scene) -> Self:
        """Parse the message from its encoded body."""
        pairs = [(reader.place(scene), reader.integer(SHARE_BYTES)) for _ in range(reader.integer(2))]
        check_ascending([place for place, _ in pairs], cls.title)
        if any(share >= PRIME for _, share in pairs):
            raise MessageRefused("an opening share is not below the prime, so it is invalid; begin another attempt.")
        return cls(shares=dict(pairs))


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteOpening(SitePhase[Signatures]):
    """Phase of a site that has signed a set of senders and waits for the other signatures."""

    signed: SignedSenders
    sharers: frozenset[int]
    held: Mapping[int, SharesOf] = field(repr=False)

    expects: ClassVar[type[Any]] = Signatures

    def answer(self, received: Received[Signatures]) -> tuple[bytes, SitePhase[Any]]:
        """Record the set of senders, and return the shares that open its sum."""
        scene, senders = self.session.scene, self.signed.senders
        frames = received.message.frames
        self.check_enough(frozenset(frames), Signatures.title)
        if not frames.keys() <= senders or any(one.message != self.signed for one in frames.values()):
            raise MessageRefused(
                "sites signed different sets, or received different keys or shares, so the server is dishonest; stop."
            )
        key = opened_key(scene.participants.roster.digest, round_index=scene.context.address.round)
        if self.session.memory.remember(key, write_places(senders, scene)) != write_places(senders, scene):
            raise MessageRefused(
                "this site meanwhile helped to unmask another set of sites under the same noise; continue with a "
                "smaller roster, whose noise is fresh."
            )
        shares = {place: of.seed if place in senders else of.key for place, of in self.held.items()}
        return self.session.send(OpeningShares(shares=shares)), SiteDone(session=self.session)


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteDone(SitePhase[Never]):
    """Phase of a site that has finished this attempt; it contains no secrets of the attempt."""

    @property
    def longest(self) -> int:
        """Zero, because no further message is read."""
        return 0

    def receive(self, raw: bytes) -> tuple[bytes, SitePhase[Any]]:
        """Refuse every message."""
        raise MessageRefused(f"a message of {len(raw)} bytes arrived after the end of an attempt; begin another.")

    def answer(self, received: Received[Never]) -> tuple[bytes, SitePhase[Any]]:
        """Raise an error; this method is never called, because `receive` refuses every message."""
        raise AssertionError


@dataclass(kw_only=True)
class ServerSignatures(ServerPhase[SignedSenders]):
    """Phase in which the server collects signatures on the set of senders."""

    keys: Mapping[int, PublicKeys]
    sharers: frozenset[int]
    sums: Mapping[int, NDArray[np.uint64]] = field(repr=False)

    expects: ClassVar[type[Any]] = SignedSenders

    def check(self, received: Received[SignedSenders]) -> None:
        """Check that the site signed the requested set."""
        if received.message.senders != self.awaited:
            raise MessageRefused(
                f"site {self.scene.name(received.sender)!r} signed another set of senders than requested; begin "
                "another attempt."
            )

    def close(self) -> tuple[dict[int, bytes], "ServerOpening"]:
        """Return the encoded signatures for each site that signed, and the next phase."""
        self.check_enough()
        frame = encode(Signatures(frames=self.received), self.scene)
        return dict.fromkeys(sorted(self.present), frame), ServerOpening(
            scene=self.scene, awaited=self.present, keys=self.keys, sharers=self.sharers, sums=self.sums
        )


@dataclass(kw_only=True)
class ServerOpening(ServerPhase[OpeningShares]):
    """Phase in which the server collects the shares that open the sum."""

    keys: Mapping[int, PublicKeys]
    sharers: frozenset[int]
    sums: Mapping[int, NDArray[np.uint64]] = field(repr=False)

    expects: ClassVar[type[Any]] = OpeningShares

    def check(self, received: Received[OpeningShares]) -> None:
        """Check that the message contains one share for each site that shared its secrets."""
        if received.message.shares.keys() != self.sharers:
            raise MessageRefused(
                f"opening shares of site {self.scene.name(received.sender)!r} do not cover all sites that shared; "
                "begin another attempt."
            )

    def close(self) -> Total:
        """Remove all masks, and return the sum of the senders' integers.

        Raises
        ------
        SiteSilent
            When too few sites sent their shares.
        MessageRefused
            When a recovered secret does not match its commitment, so that a share is false. No total is computed then.
        """
        self.check_enough()
        total = np.zeros(self.scene.context.words, np.uint64)
        for place in sorted(self.sharers):
            secret = self._recovered(place)
            if place in self.sums:
                total += self.sums[place]
                self._check(commit(secret, self.scene) == self.keys[place].commitment, place)
                add_mask(total, own_mask_key(secret, self.scene), sign=-1)
                continue
            pairing = Pairing(scene=self.scene, place=place, secret=secret)
            self._check(pairing.public == self.keys[place].masking, place)
            for other in sorted(self.sums):
                seed = pairing.mask_seed(other, public=self.keys[other].masking)
                add_mask(total, seed, sign=-sign_of(other, place))
        names = tuple(self.scene.name(place) for place in sorted(self.sums))
        return Total(integers=total.view(np.int64), senders=names)

    def _recovered(self, place: int) -> SecretKey:
        """Recover a secret of the site at a place from the first received shares, as many as the threshold."""
        helpers = sorted(self.received)[: self.scene.participants.threshold]
        return SecretKey(recover({helper + 1: self.received[helper].message.shares[place] for helper in helpers}))

    def _check(self, fits: bool, place: int) -> None:  # noqa: FBT001 the checked condition
        if not fits:
            raise MessageRefused(
                f"the shares of site {self.scene.name(place)!r} do not match its commitment, so some share is false; "
                "begin another attempt."
            )
