"""One attempt of a secure sum, at the sites and at the server, with phases 1 (roster) and 2 (keys).

*Phase 1, the roster.* The server proposes a sum, and each site compares the proposal with its local facts.

Server to site: `Begin`, the whole context of the sum: session, round, attempt, roster and query. A site has the roster
to which its operator agreed, plans the query itself, and never begins an attempt twice. If the proposal agrees with
these facts, the site answers with its keys, signed for this context. So the signatures of all sites prove that the
server proposed the same roster to all of them.

*Phase 2, keys.* All sites receive each other's signed keys of this attempt.

Site to server: `Keys`, which contains two public keys and a commitment to the seed of the site's own mask. If the site
helped to open a sum with the same noise before, the message also contains the set of sites in that sum. Server to
sites: `KeyList`, all messages `Keys` as received. A site checks that all signatures are for its context, and that its
own message is unchanged. The site then sends to each other site a share of its mask seed and a share of its masking
key. The encryption of these shares is bound to the list that the site received.

*One attempt.* A site answers each message of the server with one message, phase after phase. The server queries all
sites concurrently, phase by phase, and continues with the sites that answer.
"""

import hashlib
import logging
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from threading import Lock
from typing import Any, ClassVar, Self

from dpca_tasks.errors import InvalidInput, MessageRefused, SiteSilent
from dpca_tasks.noise.keystream import SecretKey
from dpca_tasks.sites.roster import Address
from dpca_tasks.sites.secure_sum.opening import SharesOf, Total
from dpca_tasks.sites.secure_sum.session import (
    SHARE_BYTES,
    Pairing,
    PublicKeys,
    ServerPhase,
    SitePhase,
    SiteSession,
    commit,
    split,
)
from dpca_tasks.sites.secure_sum.shares import SealedShares, ServerShares, SiteShares
from dpca_tasks.sites.secure_sum.wire import (
    DIGEST_BYTES,
    HEAD_BYTES,
    KEY_BYTES,
    LONGEST_SESSION,
    Context,
    Frames,
    Reader,
    Received,
    Scene,
    Telegram,
    attempt_key,
    encode,
    opened_key,
    write_places,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Keys(Telegram):
    """Message of a site with its public keys for one attempt."""

    public: PublicKeys

    kind: ClassVar[int] = 2
    title: ClassVar[str] = "keys"
    is_signed: ClassVar[bool] = True

    def body(self, scene: Scene) -> bytes:
        """Return the encoded body of the message."""
        public = self.public
        return public.sealing + public.masking + public.commitment + write_places(public.opened, scene)

    @classmethod
    def longest(cls, scene: Scene) -> int:
        """Return the length of an encoded body in bytes, which is the same for all such messages."""
        return 3 * KEY_BYTES + scene.bitmap_bytes

    @classmethod
    def parse(cls, reader: Reader, scene: Scene) -> Self:
        """Parse the message from its encoded body."""
        sealing, masking, commitment = (reader.take(KEY_BYTES) for _ in range(3))
        opened = reader.places(scene)
        return cls(public=PublicKeys(sealing=sealing, masking=masking, commitment=commitment, opened=opened))


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyList(Frames[Keys]):
    """Message of the server with the `Keys` of all sites that sent them."""

    kind: ClassVar[int] = 3
    title: ClassVar[str] = "the list of keys"
    of: ClassVar[type[Any]] = Keys


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteKeys(SitePhase[KeyList]):
    """Phase of a site that has sent its keys and waits for the list of all keys."""

    sealing: Pairing
    masking: Pairing
    self_seed: SecretKey = field(repr=False)
    sent: bytes

    expects: ClassVar[type[Any]] = KeyList

    def answer(self, received: Received[KeyList]) -> tuple[bytes, SitePhase[Any]]:
        """Return encrypted shares of the mask seed and of the masking key for each other site of the list."""
        scene, place = self.session.scene, self.session.place
        frames = received.message.frames
        self.check_enough(frozenset(frames), KeyList.title)
        if frames[place].raw != self.sent:
            raise MessageRefused(
                "the list contains other keys of this site than the site sent; the server is dishonest: stop."
            )
        keys = {other: one.message.public for other, one in frames.items()}
        shown = [key for one in keys.values() for key in (one.sealing, one.masking)]
        if len(set(shown)) < len(shown):
            raise MessageRefused(
                "two keys of the list are equal, so one site could impersonate another; begin another attempt."
            )
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
    """Phase in which the server collects the keys of the sites."""

    expects: ClassVar[type[Any]] = Keys

    def close(self) -> tuple[dict[int, bytes], ServerShares]:
        """Return the encoded list of keys for each site that sent its keys, and the next phase."""
        self.check_enough()
        frame = encode(KeyList(frames=self.received), self.scene)
        keys = {place: one.message.public for place, one in self.received.items()}
        return dict.fromkeys(sorted(keys), frame), ServerShares(scene=self.scene, awaited=self.present, keys=keys)


@dataclass(frozen=True, slots=True, kw_only=True)
class Begin(Telegram):
    """Message of the server that proposes a secure sum."""

    context: Context

    kind: ClassVar[int] = 1
    title: ClassVar[str] = "a proposal"
    is_signed: ClassVar[bool] = False

    def body(self, scene: Scene) -> bytes:
        """Return the encoded body of the message."""
        context, session = self.context, self.context.session.encode()
        numbers = (context.address.round, context.address.attempt, context.words)
        return b"".join(
            [
                len(session).to_bytes(2, "little"),
                session,
                *(number.to_bytes(8, "little") for number in numbers),
                context.participants,
                context.requested,
            ]
        )

    @classmethod
    def longest(cls, scene: Scene) -> int:
        """Return the largest length of an encoded body, in bytes."""
        return _LONGEST

    @classmethod
    def parse(cls, reader: Reader, scene: Scene) -> Self:
        """Parse the message from its encoded body, and check that it contains the expected context."""
        context = _parse_context(reader)
        if context != scene.context:
            raise MessageRefused("the context in a proposal does not match the digest in its head; begin another.")
        return cls(context=context)


_LONGEST = 2 + LONGEST_SESSION + 3 * 8 + 2 * DIGEST_BYTES


def propose(scene: Scene) -> bytes:
    """Return the encoded first message of the server, which proposes a sum."""
    return encode(Begin(context=scene.context), scene)


def read_proposal(raw: bytes) -> Context:
    """Return the unchecked context of a proposal, so that a site can look up the proposed roster and query.

    Raises
    ------
    MessageRefused
        When the bytes are not a proposal.
    """
    if raw[5:6] != bytes([Begin.kind]) or not HEAD_BYTES < len(raw) <= HEAD_BYTES + _LONGEST:
        raise MessageRefused(f"{len(raw)} bytes arrived, and are no proposal of a sum; begin an attempt.")
    return _parse_context(Reader(raw[HEAD_BYTES:]))


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteRoster(SitePhase[Begin]):
    """Phase of a site that waits for the proposal of a sum."""

    expects: ClassVar[type[Any]] = Begin

    def receive(self, raw: bytes) -> tuple[bytes, SitePhase[Any]]:
        """Answer a proposal, or refuse it; the refusal names the part that differs from this site's local facts."""
        if raw[5:6] == bytes([Begin.kind]):
            claimed, known = read_proposal(raw), self.session.scene.context
            for part, facts in (
                ("session", (claimed.session, known.session)),
                ("round and attempt", (claimed.address, known.address)),
                ("roster or identity keys", (claimed.participants, known.participants)),
                ("query", (claimed.requested, known.requested)),
                ("number of integers", (claimed.words, known.words)),
            ):
                if facts[0] != facts[1]:
                    raise MessageRefused(
                        f"the {part} that the server proposes differs from this site's; the server may be dishonest, "
                        "or one roster may be old: compare the rosters."
                    )
        return SitePhase.receive(self, raw)

    def answer(self, received: Received[Begin]) -> tuple[bytes, SitePhase[Any]]:
        """Record that the attempt has begun, and return new public keys for it."""
        session = self.session
        context = session.scene.context
        mark = session.entropy(16)
        if session.memory.remember(attempt_key(context.session, context.address), mark) != mark:
            address = context.address
            raise MessageRefused(
                f"attempt {address.attempt} of round {address.round} already began at this site and cannot begin "
                "twice; use a higher number."
            )
        sealing, masking = (
            Pairing(scene=session.scene, place=session.place, secret=session.draw_key()) for _ in range(2)
        )
        self_seed = session.draw_key()
        roster = session.scene.participants.roster
        opened = session.memory.recall(opened_key(roster.digest, round_index=context.address.round))
        public = PublicKeys(
            sealing=sealing.public,
            masking=masking.public,
            commitment=commit(self_seed, session.scene),
            opened=frozenset() if opened is None else Reader(opened).places(session.scene),
        )
        frame = session.send(Keys(public=public))
        return frame, SiteKeys(session=session, sealing=sealing, masking=masking, self_seed=self_seed, sent=frame)


def _parse_context(reader: Reader) -> Context:
    size = reader.integer(2)
    try:
        session = reader.take(size).decode()
        round_index, attempt, count = (reader.integer(8) for _ in range(3))
        participants, requested = reader.take(DIGEST_BYTES), reader.take(DIGEST_BYTES)
        address = Address(round=round_index, attempt=attempt)
        context = Context(session=session, address=address, participants=participants, requested=requested, words=count)
    except (UnicodeDecodeError, InvalidInput):
        raise MessageRefused(
            "a proposal has no session name, or numbers out of range; begin another attempt."
        ) from None
    if not reader.is_done():
        raise MessageRefused("extra bytes follow a proposal; send it alone.")
    return context


logger = logging.getLogger("dpca.sites")


class SiteMachine:
    """One attempt of a secure sum at one site, from phase to phase.

    The secrets of the attempt are only in the memory of this object. If the process ends, the site cannot continue the
    attempt, and another attempt must be begun.

    Parameters
    ----------
    session : SiteSession
    """

    def __init__(self, session: SiteSession) -> None:
        self._phase: SitePhase[Any] = SiteRoster(session=session)
        self._turn = Lock()  # of two concurrent messages, the second is processed in the phase that follows the first

    @property
    def longest(self) -> int:
        """The largest number of bytes of a message that the current phase reads."""
        return self._phase.longest

    def receive(self, raw: bytes) -> bytes:
        """Return the answer to a message of the server.

        Raises
        ------
        MessageRefused
            When the current phase refuses the message. The phase then stays the same, and the refusal is logged without
            the content of the message.
        """
        with self._turn:
            try:
                answer, self._phase = self._phase.receive(raw)
            except MessageRefused as refused:
                logger.warning("message refused: %s", refused)
                raise
            return answer


Line = Callable[[bytes], bytes]
"""A function that sends a message to a site and returns the answer; raises `SiteSilent` if no answer comes in time."""


def open_sum(scene: Scene, lines: Mapping[str, Line]) -> Total:
    """Run all phases of one attempt as the server, and return the total.

    Parameters
    ----------
    scene : Scene
    lines : mapping of str to callable
        The connection to each site of the roster, by the site's name. A connection is used by one thread at a time.

    Returns
    -------
    Total
        The exact sum of the senders' integers, and the names of the senders, at least as many as the threshold.

    Raises
    ------
    SiteSilent
        When fewer sites than the threshold answered in a phase. Nothing is opened then.
    MessageRefused
        When a received share is false, so that the sum cannot be opened.
    """
    participants = scene.participants
    everyone = frozenset(range(scene.sites))
    frames, phase = dict.fromkeys(sorted(everyone), propose(scene)), ServerKeys(scene=scene, awaited=everyone)
    with ThreadPoolExecutor(max_workers=scene.sites) as pool:
        closed: Any = (frames, phase)
        while not isinstance(closed, Total):
            frames, phase = closed
            answers = {
                place: pool.submit(_call, lines[participants.names[place]], frame) for place, frame in frames.items()
            }
            for place, answer in answers.items():
                _take(phase, place, answer.result())
            closed = phase.close()
    return closed


def _call(line: Line, frame: bytes) -> bytes | None:
    try:
        return line(frame)
    except (SiteSilent, MessageRefused) as reason:
        logger.warning("a site gave no answer: %s", reason)
        return None


def _take(phase: ServerPhase[Any], place: int, answer: bytes | None) -> None:
    if answer is None:
        return
    try:
        phase.receive(answer, sender=place)
    except MessageRefused as refused:
        logger.warning("message refused: %s", refused)
