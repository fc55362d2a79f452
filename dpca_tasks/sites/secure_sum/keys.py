"""Phase 2, keys: all sites learn each other's keys of this attempt, signed.

Site to server: `Keys`, two public keys, a commitment to the seed of the site's own mask, and whose integers of this
noise it helped to open before, if any. Server to sites: `KeyList`, all frames of `Keys` as they came. A site checks
every signature, which is over the same context or none, finds its own frame unchanged, and sends each other site a
share of its mask seed and a share of its masking key, under a cipher that is bound to the list it saw.
"""

import hashlib
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

from dpca_tasks.errors import MessageRefused
from dpca_tasks.noise.keystream import SecretKey
from dpca_tasks.sites.secure_sum.agreements import Pairing, PublicKeys
from dpca_tasks.sites.secure_sum.opening import SharesOf
from dpca_tasks.sites.secure_sum.participants import KEY_BYTES
from dpca_tasks.sites.secure_sum.session import ServerPhase, SitePhase
from dpca_tasks.sites.secure_sum.shamir import SHARE_BYTES, split
from dpca_tasks.sites.secure_sum.shares import SealedShares, ServerShares, SiteShares
from dpca_tasks.sites.secure_sum.wire import (
    Frames,
    Reader,
    Received,
    Scene,
    Telegram,
    encode,
    write_places,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Keys(Telegram):
    """A site's public keys of one attempt."""

    public: PublicKeys

    kind: ClassVar[int] = 2
    title: ClassVar[str] = "keys"
    is_signed: ClassVar[bool] = True

    def body(self, scene: Scene) -> bytes:
        """Return the encoded body."""
        public = self.public
        return public.sealing + public.masking + public.commitment + write_places(public.opened, scene)

    @classmethod
    def longest(cls, scene: Scene) -> int:
        """Return the bytes of every body."""
        return 3 * KEY_BYTES + scene.bitmap_bytes

    @classmethod
    def parse(cls, reader: Reader, scene: Scene) -> Self:
        """Return the message of a body."""
        sealing, masking, commitment = (reader.take(KEY_BYTES) for _ in range(3))
        opened = reader.places(scene)
        return cls(public=PublicKeys(sealing=sealing, masking=masking, commitment=commitment, opened=opened))


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyList(Frames[Keys]):
    """The keys of all sites that sent theirs."""

    kind: ClassVar[int] = 3
    title: ClassVar[str] = "the list of keys"
    of: ClassVar[type[Any]] = Keys


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteKeys(SitePhase[KeyList]):
    """A site that has sent its keys."""

    sealing: Pairing
    masking: Pairing
    self_seed: SecretKey = field(repr=False)
    sent: bytes

    expects: ClassVar[type[Any]] = KeyList

    def answer(self, received: Received[KeyList]) -> tuple[bytes, SitePhase[Any]]:
        """Share seed and key with the sites of the list."""
        scene, place = self.session.scene, self.session.place
        frames = received.message.frames
        self.check_enough(frozenset(frames), KeyList.title)
        if frames[place].raw != self.sent:
            raise MessageRefused("the list holds other keys of this site than it sent; the server lies: stop.")
        keys = {other: one.message.public for other, one in frames.items()}
        shown = [key for one in keys.values() for key in (one.sealing, one.masking)]
        if len(set(shown)) < len(shown):
            raise MessageRefused("two keys of the list are equal, and a site could pose as another; begin another.")
        listed = hashlib.sha256(received.raw).digest()
        seeds, secrets = (
            split(
                secret.secret, threshold=scene.participants.threshold, places=scene.sites, entropy=self.session.entropy
            )
            for secret in (self.self_seed, self.masking.secret)
        )
        sealed = {}
        for other, one in keys.items():
            if other != place:
                text = b"".join(share[other].to_bytes(SHARE_BYTES, "little") for share in (seeds, secrets))
                sealed[other] = self.sealing.seal(text, to=other, public=one.sealing, bound_to=listed)
        return self.session.send(SealedShares(sealed=sealed)), SiteShares(
            session=self.session,
            sealing=self.sealing,
            masking=self.masking,
            self_seed=self.self_seed,
            keys=keys,
            listed=listed,
            own=SharesOf(seed=seeds[place], key=secrets[place]),
        )


@dataclass(kw_only=True)
class ServerKeys(ServerPhase[Keys]):
    """The server while it collects keys."""

    expects: ClassVar[type[Any]] = Keys

    def close(self) -> tuple[dict[int, bytes], ServerShares]:
        """Return the list for each site that sent its keys, and the next phase."""
        self.check_enough()
        frame = encode(KeyList(frames=self.received), self.scene)
        keys = {place: one.message.public for place, one in self.received.items()}
        return dict.fromkeys(sorted(keys), frame), ServerShares(scene=self.scene, awaited=self.present, keys=keys)
