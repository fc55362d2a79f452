"""The session of a site in one secure sum: its shared secrets, its masks, and the phases of the protocol.

*Secret sharing.* Shamir's scheme divides a 32-byte secret into shares: any t shares recover it, and fewer reveal
nothing.

The arithmetic is exact, in integers modulo the least prime above ``2^256``. The secret is the constant term of a
polynomial of degree ``t - 1``, whose other coefficients are uniform. The shares of the sites are the values of the
polynomial at 1, 2 and so on, in the order of the roster.

>>> shares = split(bytes(31) + b"!", threshold=2, places=3)
>>> recover({2: shares[1], 3: shares[2]})[-1:]
b'!'

*Pairwise key agreement.* Each site draws two X25519 keys per attempt. With one key, it agrees with each other site on
the seed of a common mask, and with the other key on the encryption of shares. The server cannot compute these secrets.
HKDF-SHA256 derives them from the X25519 secret of the pair, the places of both sites, and the context, which covers
session, round, attempt, roster and query.

*Masks.* A masked sum contains two kinds of masks: the pairwise masks, which cancel in the total, and the site's own
mask, which the server subtracts when it opens the total.

*Phases.* All phases of a site have a common interface, and so have all phases of the server. A phase accepts one type
of message. A refused message changes nothing: the phase stays the same, and nothing is sent.
"""

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from numpy.typing import NDArray

from dpca_tasks.errors import InvalidInput, MessageRefused, SiteSilent
from dpca_tasks.noise.keystream import WORDS_PER_TILE, SecretKey, subkey, words
from dpca_tasks.sites.roster import Address, Masks, Roster
from dpca_tasks.sites.secure_sum.wire import Identity, Memory, Received, Scene, Telegram, decode, encode, longest_frame

PRIME = 2**256 + 297
SECRET_BYTES = 32
SHARE_BYTES = 33

Entropy = Callable[[int], bytes]
"""A function that returns a given number of random bytes: `os.urandom`, except in tests."""


def split(secret: bytes, *, threshold: int, places: int, entropy: Entropy = os.urandom) -> list[int]:
    """Divide a secret into Shamir shares: the values of a polynomial at 1 to ``places``."""
    if len(secret) != SECRET_BYTES or not 1 <= threshold <= places:
        raise InvalidInput(
            f"the secret has {len(secret)} bytes and must have {SECRET_BYTES}; threshold={threshold} must be from 1 to "
            f"places={places}; correct them."
        )
    # A random 64-byte integer modulo the prime is uniform up to 2^-255.
    coefficients = [int.from_bytes(entropy(64), "little") % PRIME for _ in range(threshold - 1)]
    coefficients.append(int.from_bytes(secret, "little"))
    return [_value(coefficients, at) for at in range(1, places + 1)]


def recover(shares: Mapping[int, int]) -> bytes:
    """Recover a secret from its shares, as many as the threshold; each share is given with its point (1, 2, ...).

    Raises
    ------
    MessageRefused
        When the result is no possible secret, so that a share must be false. Not all false shares are noticed here, so
        a caller that has a commitment to the secret must check the commitment too.
    """
    total = 0
    for place, share in shares.items():
        weight = 1
        for other in shares:
            if other != place:
                weight = weight * other * pow(other - place, -1, PRIME) % PRIME
        total += weight * share
    total %= PRIME
    if total >= 2 ** (8 * SECRET_BYTES):
        raise MessageRefused("shares of a secret do not belong together; void the attempt and begin another.")
    return total.to_bytes(SECRET_BYTES, "little")


def _value(coefficients: list[int], at: int) -> int:
    """Return a polynomial's value at a point by Horner's rule; the highest coefficient comes first."""
    value = 0
    for coefficient in coefficients:
        value = (value * at + coefficient) % PRIME
    return value


TAG_BYTES = 16
"""The number of bytes by which an encrypted text is longer than the plain text."""
_NONCE = bytes(12)  # constant, because each key encrypts one message


@dataclass(frozen=True, slots=True, kw_only=True)
class PublicKeys:
    """Public facts of a site in one attempt: its keys, a commitment, and the sum that it helped to open before.

    Parameters
    ----------
    sealing, masking : bytes of length 32
        The public keys with which other sites encrypt shares for this site, and agree with it on pairwise masks.
    commitment : bytes of length 32
        The commitment to the seed of the site's own mask.
    opened : frozenset of int
        The sites whose sum, with the same noise, this site helped to open in an earlier attempt. Empty if there was
        none.
    """

    sealing: bytes
    masking: bytes
    commitment: bytes
    opened: frozenset[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pairing:
    """A private X25519 key of a site, with which the site agrees on secrets with each other site."""

    scene: Scene
    place: int
    secret: SecretKey = field(repr=False)

    @property
    def public(self) -> bytes:
        """The public key that belongs to the private key."""
        return X25519PrivateKey.from_private_bytes(self.secret.secret).public_key().public_bytes_raw()

    def mask_seed(self, other: int, *, public: bytes) -> SecretKey:
        """Return the seed of the mask that this site and another have in common; both compute the same seed."""
        pair = b"".join(place.to_bytes(2, "little") for place in sorted((self.place, other)))
        return subkey(self._agree(other, public), label="masks of a pair", info=self.scene.context.digest + pair)

    def seal(self, text: bytes, *, to: int, public: bytes, bound_to: bytes) -> bytes:
        """Encrypt a text for another site; it is the only text that this site sends to the other site."""
        return self._cipher(self.place, to, public, other=to).encrypt(_NONCE, text, bound_to)

    def unseal(self, sealed: bytes, *, sender: int, public: bytes, bound_to: bytes) -> bytes:
        """Decrypt the text that another site encrypted for this site; refuse a text that was changed."""
        try:
            return self._cipher(sender, self.place, public, other=sender).decrypt(_NONCE, sealed, bound_to)
        except InvalidTag:
            raise MessageRefused(
                f"shares from site {self.scene.name(sender)!r} were changed, or made for another list of keys than "
                "this site received; the server may be dishonest: begin another attempt."
            ) from None

    def _cipher(self, sender: int, receiver: int, public: bytes, *, other: int) -> ChaCha20Poly1305:
        kind = sender.to_bytes(2, "little") + receiver.to_bytes(2, "little")
        key = subkey(self._agree(other, public), label="shares on their way", info=self.scene.context.digest + kind)
        return ChaCha20Poly1305(key.secret)

    def _agree(self, other: int, public: bytes) -> bytes:
        private = X25519PrivateKey.from_private_bytes(self.secret.secret)
        try:
            return private.exchange(X25519PublicKey.from_public_bytes(public))
        except ValueError:
            raise MessageRefused(
                f"the key of site {self.scene.name(other)!r} does not allow key agreement; begin another attempt "
                "without it."
            ) from None


def commit(self_seed: SecretKey, scene: Scene) -> bytes:
    """Return the commitment to a mask seed: a hash that hides the seed, and that no other seed has."""
    return subkey(self_seed.secret, label="commitment", info=scene.context.digest).secret


@dataclass(slots=True, kw_only=True)
class DoubleMasks:
    """The pairwise masks and the own mask of a site in one attempt, as `dpca_tasks.sites.roster.Masks`."""

    scene: Scene
    site: str
    self_seed: SecretKey = field(repr=False)
    pair_seeds: Mapping[int, SecretKey] = field(repr=False)
    used: int = 0
    """The number of calls of `mask`."""

    def mask(self, address: Address, *, roster: Roster, size: int) -> NDArray[np.uint64]:
        """Return the sum of the site's own mask and its pairwise masks."""
        context = self.scene.context
        if (address, roster.digest, size) != (context.address, self.scene.participants.roster.digest, context.words):
            raise InvalidInput(
                f"the masks of {context.words} integers are for another attempt, roster or query; use the attempt, "
                "roster and query that the server proposed."
            )
        self.used += 1
        mask = np.zeros(size, np.uint64)
        add_mask(mask, own_mask_key(self.self_seed, self.scene), sign=1)
        place = self.scene.participants.place(self.site)
        for other, seed in self.pair_seeds.items():
            add_mask(mask, seed, sign=sign_of(place, other))
        return mask


def own_mask_key(self_seed: SecretKey, scene: Scene) -> SecretKey:
    """Return the key from which the words of a site's own mask are generated."""
    return subkey(self_seed.secret, label="own mask", info=scene.context.digest)


def sign_of(place: int, other: int) -> int:
    """Return the sign, 1 or -1, with which the site at a place adds the mask that it shares with another site."""
    return 1 if place < other else -1


def add_mask(total: NDArray[np.uint64], key: SecretKey, *, sign: int) -> None:
    """Add the pseudorandom words of a key to a total, or subtract them, in place and modulo ``2^64``."""
    for start in range(0, total.size, WORDS_PER_TILE):
        stop = min(start + WORDS_PER_TILE, total.size)
        drawn = words(key, stream=0, start=start, stop=stop)
        if sign > 0:
            total[start:stop] += drawn
        else:
            total[start:stop] -= drawn


Contribute = Callable[[Masks], NDArray[np.uint64]]
"""A function that returns a site's noised integers plus masks; it reads the rows, unless an earlier attempt did."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteSession:
    """The inputs of one site for one secure sum.

    Parameters
    ----------
    scene : Scene
        Participants and context, from the site's own copy of the roster and the site's own plan.
    site : str
        The name of the site.
    identity : Identity
        The key with which the site signs its messages.
    memory : Memory
        The site's permanent memory of begun attempts and opened sums.
    contribute : callable
        Returns the site's noised integers plus given masks.
    entropy : callable, optional
        The source of randomness, by default the operating system; only tests may pass another.
    """

    scene: Scene
    site: str
    identity: Identity = field(repr=False)
    memory: Memory = field(repr=False)
    contribute: Contribute = field(repr=False)
    entropy: Entropy = field(default=os.urandom, repr=False)

    def __post_init__(self) -> None:
        """Check that the identity is the one in the roster."""
        if self.scene.participants.keys[self.scene.name(self.place)] != self.identity.public:
            raise InvalidInput(
                f"the identity key of site {self.site!r} differs from the one in the roster; correct the roster."
            )

    @property
    def place(self) -> int:
        """The site's place in the roster, from 0."""
        return self.scene.participants.place(self.site)

    def draw_key(self) -> SecretKey:
        """Draw a secret key for this attempt."""
        return SecretKey(self.entropy(32))

    def send(self, message: Telegram) -> bytes:
        """Return a message as a frame (encoded bytes) that the site has signed."""
        return encode(message, self.scene, sender=self.site, identity=self.identity)


@dataclass(frozen=True, slots=True, kw_only=True)
class SitePhase[T: Telegram](ABC):
    """Base class of a site's phases; a phase expects one type of message, and returns an answer and the next phase."""

    session: SiteSession

    expects: ClassVar[type[Any]]

    @property
    def longest(self) -> int:
        """The largest number of bytes of a message that this phase reads."""
        return longest_frame(self.expects, self.session.scene)

    def receive(self, raw: bytes) -> tuple[bytes, "SitePhase[Any]"]:
        """Return the answer to a message of the server, and the next phase.

        Raises
        ------
        MessageRefused
            When the message is not of the expected type, or the server is dishonest or requests too much.
        """
        received: Received[T] = decode(raw, self.expects, self.session.scene)
        return self.answer(received)

    @abstractmethod
    def answer(self, received: Received[T]) -> tuple[bytes, "SitePhase[Any]"]:
        """Return the answer to a checked message, and the next phase."""

    def check_enough(self, places: frozenset[int], title: str) -> None:
        """Check that a set of sites includes this site and is at least as large as the threshold."""
        threshold = self.session.scene.participants.threshold
        if len(places) < threshold or self.session.place not in places:
            raise MessageRefused(
                f"{title} must cover at least {threshold} sites, including this one (got {len(places)}); begin "
                "another attempt when more sites are present."
            )


@dataclass(kw_only=True)
class ServerPhase[T: Telegram](ABC):
    """Base class of the server's phases; a phase collects one type of message, and `close` gives the next messages."""

    scene: Scene
    awaited: frozenset[int]
    received: dict[int, Received[T]] = field(default_factory=dict)

    expects: ClassVar[type[Any]]

    def receive(self, raw: bytes, *, sender: int) -> None:
        """Accept a message of a site, or refuse it.

        Parameters
        ----------
        raw : bytes
        sender : int
            The place of the site whose connection delivered the message.

        Raises
        ------
        MessageRefused
            When this phase does not expect the message from that site, or the message is a repetition.
        """
        received: Received[T] = decode(raw, self.expects, self.scene)
        if received.sender != sender or sender not in self.awaited - self.received.keys():
            raise MessageRefused(
                f"{self.expects.title} of site {self.scene.name(received.sender)!r} are not expected from this "
                "connection, or arrived before; each site sends its own, once."
            )
        self.check(received)
        self.received[sender] = received

    def check(self, received: Received[T]) -> None:  # noqa: B027 some phases have no such facts
        """Compare the content of one message with known facts."""

    @property
    def present(self) -> frozenset[int]:
        """The places of the sites that have answered."""
        return frozenset(self.received)

    @property
    def missing(self) -> frozenset[int]:
        """The places of the sites that have not answered."""
        return self.awaited - self.present

    def check_enough(self) -> None:
        """Check that as many sites as the threshold have answered.

        Raises
        ------
        SiteSilent
            When fewer sites have answered. The attempt is then void, and nothing can be opened.
        """
        if len(self.present) < self.scene.participants.threshold:
            gone = tuple(name for at, name in enumerate(self.scene.participants.names) if at not in self.present)
            raise SiteSilent(
                f"sites {', '.join(gone)} sent no {self.expects.title}, and {self.scene.participants.threshold} of "
                f"{self.scene.sites} must; begin another attempt.",
                names=gone,
            )
