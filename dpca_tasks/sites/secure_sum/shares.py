"""Phase 3, shares: every site holds a share of the secrets of every other, and then sends its masked sum.

Site to server: `SealedShares`, one sealed text for each other site of the list. Server to each site: `Delivered`, the
texts for it. A site opens them all, which proves that their senders saw its own list of keys, draws its masks for the
sites that it heard of, and sends its noised integers under them.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

from dpca_tasks.errors import MessageRefused
from dpca_tasks.noise.keystream import SecretKey
from dpca_tasks.sites.secure_sum.agreements import TAG_BYTES, Pairing, PublicKeys
from dpca_tasks.sites.secure_sum.double_masks import DoubleMasks
from dpca_tasks.sites.secure_sum.masked_sums import MaskedSum, ServerSums, SiteSums
from dpca_tasks.sites.secure_sum.opening import SharesOf
from dpca_tasks.sites.secure_sum.session import ServerPhase, SitePhase
from dpca_tasks.sites.secure_sum.shamir import PRIME, SHARE_BYTES
from dpca_tasks.sites.secure_sum.wire import (
    Reader,
    Received,
    Scene,
    Telegram,
    check_ascending,
    encode,
    listed,
    write_places,
)

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
        """Return the most bytes of a body."""
        return 2 + (scene.sites - 1) * (2 + SEALED_BYTES)

    @classmethod
    def parse(cls, reader: Reader, scene: Scene) -> Self:
        """Return the message of a body."""
        pairs = [(reader.place(scene), reader.take(SEALED_BYTES)) for _ in range(reader.integer(2))]
        check_ascending([place for place, _ in pairs], cls.title)
        return cls(sealed=dict(pairs))


class SealedShares(_Sealed):
    """What a site sends to the others, through the server."""

    kind: ClassVar[int] = 4
    title: ClassVar[str] = "sealed shares"
    is_signed: ClassVar[bool] = True


class Delivered(_Sealed):
    """What the others sent to a site."""

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
                f"{words.size} integers were masked {masks.used} times, which must be {scene.context.words}, once; "
                "nothing is sent."
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
                f"shares from site {self.session.scene.name(other)!r} are no shares; begin another attempt without it."
            )
        return SharesOf(seed=seed, key=key)


@dataclass(kw_only=True)
class ServerShares(ServerPhase[SealedShares]):
    """The server while it collects sealed shares."""

    keys: Mapping[int, PublicKeys]

    expects: ClassVar[type[Any]] = SealedShares

    def check(self, received: Received[SealedShares]) -> None:
        """Check that there is one for each other site of the list."""
        lacking = self.awaited - {received.sender} ^ received.message.sealed.keys()
        if lacking:
            raise MessageRefused(
                f"sealed shares of site {self.scene.name(received.sender)!r} are not for all others of the list "
                f"({listed(lacking, self.scene)}); begin another attempt."
            )

    def close(self) -> tuple[dict[int, bytes], ServerSums]:
        """Return each site's delivery, and the next phase."""
        self.check_enough()
        frames = {}
        for place in sorted(self.present):
            texts = {other: self.received[other].message.sealed[place] for other in self.present - {place}}
            frames[place] = encode(Delivered(sealed=texts), self.scene)
        return frames, ServerSums(scene=self.scene, awaited=self.present, keys=self.keys)
