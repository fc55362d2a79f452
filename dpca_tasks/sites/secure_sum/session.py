"""A site's session in one secure sum, and the interface of the phases through which it and the server go.

A phase takes one type of message. Whatever is refused changes nothing: the phase stays, and nothing leaves.
"""

import os
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from dpca_tasks.errors import InvalidInput, MessageRefused, SiteSilent
from dpca_tasks.noise.keystream import SecretKey
from dpca_tasks.sites.masks import Masks
from dpca_tasks.sites.secure_sum.participants import Identity, Memory
from dpca_tasks.sites.secure_sum.shamir import Entropy
from dpca_tasks.sites.secure_sum.wire import Received, Scene, Telegram, decode, encode, longest_frame

Contribute = Callable[[Masks], NDArray[np.uint64]]
"""Returns a site's noised integers under masks that it is given; it reads the rows, unless they were read before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteSession:
    """What a site brings to one secure sum.

    Parameters
    ----------
    scene : Scene
        Participants and context as this site knows them, from its own copy of the roster and its own plan.
    site : str
    identity : Identity
    memory : Memory
    contribute : callable
    entropy : callable, optional
        The operating system's; only tests may pass another.
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
                f"the identity key of site {self.site!r} is not the one that the roster names; correct the roster."
            )

    @property
    def place(self) -> int:
        """The site's place in the roster."""
        return self.scene.participants.place(self.site)

    def draw_key(self) -> SecretKey:
        """Draw a secret of this attempt."""
        return SecretKey(self.entropy(32))

    def send(self, message: Telegram) -> bytes:
        """Return the signed frame of a message."""
        return encode(message, self.scene, sender=self.site, identity=self.identity)


@dataclass(frozen=True, slots=True, kw_only=True)
class SitePhase[T: Telegram](ABC):
    """What a site waits for; its answer takes it to the next phase."""

    session: SiteSession

    expects: ClassVar[type[Any]]

    @property
    def longest(self) -> int:
        """The most bytes of a frame that it reads."""
        return longest_frame(self.expects, self.session.scene)

    def receive(self, raw: bytes) -> tuple[bytes, "SitePhase[Any]"]:
        """Return the answer to a frame, and the phase after it.

        Raises
        ------
        MessageRefused
            When the frame is not the one this phase waits for, or the server lies or asks for too much.
        """
        received: Received[T] = decode(raw, self.expects, self.session.scene)
        return self.answer(received)

    @abstractmethod
    def answer(self, received: Received[T]) -> tuple[bytes, "SitePhase[Any]"]:
        """Return the answer to a checked message, and the phase after it."""

    def check_enough(self, places: frozenset[int], title: str) -> None:
        """Refuse a set of sites that is below the threshold or leaves this site out."""
        threshold = self.session.scene.participants.threshold
        if len(places) < threshold or self.session.place not in places:
            raise MessageRefused(
                f"{title} of {len(places)} sites must be those of {threshold} at least, this site among them; "
                "begin another attempt when more are there."
            )


@dataclass(kw_only=True)
class ServerPhase[T: Telegram](ABC):
    """What the server waits for, from which sites; closing it yields what they are sent next."""

    scene: Scene
    awaited: frozenset[int]
    received: dict[int, Received[T]] = field(default_factory=dict)

    expects: ClassVar[type[Any]]

    def receive(self, raw: bytes, *, sender: int) -> None:
        """Take a site's frame.

        Parameters
        ----------
        raw : bytes
        sender : int
            The place of the site whose connection it came over.

        Raises
        ------
        MessageRefused
            When it is not what this phase waits for from that site, or came before.
        """
        received: Received[T] = decode(raw, self.expects, self.scene)
        if received.sender != sender or sender not in self.awaited - self.received.keys():
            raise MessageRefused(
                f"{self.expects.title} of site {self.scene.name(received.sender)!r} are not awaited from this "
                "connection, or came before; each site sends its own, once."
            )
        self.check(received)
        self.received[sender] = received

    def check(self, received: Received[T]) -> None:  # noqa: B027 some phases know nothing to compare it with
        """Check what one message says against what is known."""

    @property
    def present(self) -> frozenset[int]:
        """The places of the sites that have answered."""
        return frozenset(self.received)

    @property
    def missing(self) -> frozenset[int]:
        """The places of the sites that have not."""
        return self.awaited - self.present

    def check_enough(self) -> None:
        """Check that the threshold has answered.

        Raises
        ------
        SiteSilent
            When the attempt is void: nothing can be opened.
        """
        if len(self.present) < self.scene.participants.threshold:
            gone = tuple(name for at, name in enumerate(self.scene.participants.names) if at not in self.present)
            raise SiteSilent(
                f"sites {', '.join(gone)} sent no {self.expects.title}, and {self.scene.participants.threshold} of "
                f"{self.scene.sites} must; begin another attempt.",
                names=gone,
            )
