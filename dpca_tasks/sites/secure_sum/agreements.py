"""What two sites agree on without the server: the seed of their masks, and the cipher of what they send each other.

Each draws two X25519 keys an attempt. HKDF-SHA256 binds what comes of a pair of keys to the context, which covers
session, round, attempt, roster and query, and to the pair.
"""

from dataclasses import dataclass, field

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

from dpca_tasks.errors import MessageRefused
from dpca_tasks.noise.keystream import SecretKey, subkey
from dpca_tasks.sites.secure_sum.wire import Scene

TAG_BYTES = 16
"""How much longer a sealed text is."""
_NONCE = bytes(12)  # of a key that encrypts one message


@dataclass(frozen=True, slots=True, kw_only=True)
class PublicKeys:
    """What a site shows of its secrets of an attempt.

    Parameters
    ----------
    sealing, masking : bytes of length 32
        The public keys under which others send it shares, and agree with it on masks.
    commitment : bytes of length 32
        That of the seed of its own mask.
    opened : frozenset of int
        The sites whose integers under this noise it helped to open in an earlier attempt; empty if there was none.
    """

    sealing: bytes
    masking: bytes
    commitment: bytes
    opened: frozenset[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pairing:
    """One site's side of its agreements: a private key, and its place."""

    scene: Scene
    place: int
    secret: SecretKey = field(repr=False)

    @property
    def public(self) -> bytes:
        """The public key."""
        return X25519PrivateKey.from_private_bytes(self.secret.secret).public_key().public_bytes_raw()

    def mask_seed(self, other: int, *, public: bytes) -> SecretKey:
        """Return the seed of the masks of this site and another, the same on both sides."""
        pair = b"".join(place.to_bytes(2, "little") for place in sorted((self.place, other)))
        return subkey(self._agree(other, public), label="masks of a pair", info=self.scene.context.digest + pair)

    def seal(self, text: bytes, *, to: int, public: bytes, bound_to: bytes) -> bytes:
        """Encrypt the one text that this site sends to another."""
        return self._cipher(self.place, to, public, other=to).encrypt(_NONCE, text, bound_to)

    def unseal(self, sealed: bytes, *, sender: int, public: bytes, bound_to: bytes) -> bytes:
        """Decrypt the one text that another site sent to this one."""
        try:
            return self._cipher(sender, self.place, public, other=sender).decrypt(_NONCE, sealed, bound_to)
        except InvalidTag:
            raise MessageRefused(
                f"shares from site {self.scene.name(sender)!r} were changed, or made for another list of keys than "
                "this site was shown; the server may lie: begin another attempt."
            ) from None

    def _cipher(self, sender: int, receiver: int, public: bytes, *, other: int) -> ChaCha20Poly1305:
        way = sender.to_bytes(2, "little") + receiver.to_bytes(2, "little")
        key = subkey(self._agree(other, public), label="shares on their way", info=self.scene.context.digest + way)
        return ChaCha20Poly1305(key.secret)

    def _agree(self, other: int, public: bytes) -> bytes:
        private = X25519PrivateKey.from_private_bytes(self.secret.secret)
        try:
            return private.exchange(X25519PublicKey.from_public_bytes(public))
        except ValueError:
            raise MessageRefused(
                f"the key of site {self.scene.name(other)!r} agrees with nobody's; begin another attempt without it."
            ) from None


def commit(self_seed: SecretKey, scene: Scene) -> bytes:
    """Return the commitment to a seed: a hash of 32 random bytes, which hides them and fits no others."""
    return subkey(self_seed.secret, label="commitment", info=scene.context.digest).secret
