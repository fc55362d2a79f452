"""Phase 1, the roster: the server proposes a sum, which each site compares with what it knows itself.

Server to site: `Begin`, all of the context. A site holds the roster that its operator agreed to, plans the query
itself, and never begins an attempt twice. It answers with its keys, signed for this context: the signatures of all are
the proof that all were shown the same roster.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, Self

from dpca_tasks.errors import InvalidInput, MessageRefused
from dpca_tasks.sites.masks import Address
from dpca_tasks.sites.secure_sum.agreements import Pairing, PublicKeys, commit
from dpca_tasks.sites.secure_sum.keys import Keys, SiteKeys
from dpca_tasks.sites.secure_sum.participants import (
    DIGEST_BYTES,
    LONGEST_SESSION,
    Context,
    attempt_key,
    opened_key,
)
from dpca_tasks.sites.secure_sum.session import SitePhase
from dpca_tasks.sites.secure_sum.wire import HEAD_BYTES, Reader, Received, Scene, Telegram, encode


@dataclass(frozen=True, slots=True, kw_only=True)
class Begin(Telegram):
    """The proposal of a sum."""

    context: Context

    kind: ClassVar[int] = 1
    title: ClassVar[str] = "a proposal"
    is_signed: ClassVar[bool] = False

    def body(self, scene: Scene) -> bytes:
        """Return the encoded body."""
        context, session = self.context, self.context.session.encode()
        numbers = (context.address.round, context.address.attempt, context.words)
        return b"".join(
            [
                len(session).to_bytes(2, "little"),
                session,
                *(number.to_bytes(8, "little") for number in numbers),
                context.participants,
                context.asked,
            ]
        )

    @classmethod
    def longest(cls, scene: Scene) -> int:
        """Return the most bytes of a body."""
        return _LONGEST

    @classmethod
    def parse(cls, reader: Reader, scene: Scene) -> Self:
        """Return the message of a body."""
        context = _parse_context(reader)
        if context != scene.context:
            raise MessageRefused("a proposal says another context than its head; begin another attempt.")
        return cls(context=context)


_LONGEST = 2 + LONGEST_SESSION + 3 * 8 + 2 * DIGEST_BYTES


def propose(scene: Scene) -> bytes:
    """Return the server's first frame."""
    return encode(Begin(context=scene.context), scene)


def read_proposal(raw: bytes) -> Context:
    """Return what a proposal says, before anything is known of it; a site looks up roster and query by that.

    Raises
    ------
    MessageRefused
        When it is no proposal.
    """
    if raw[5:6] != bytes([Begin.kind]) or not HEAD_BYTES < len(raw) <= HEAD_BYTES + _LONGEST:
        raise MessageRefused(f"{len(raw)} bytes came where a proposal is expected; begin an attempt.")
    return _parse_context(Reader(raw[HEAD_BYTES:]))


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteRoster(SitePhase[Begin]):
    """A site before its first message."""

    expects: ClassVar[type[Any]] = Begin

    def receive(self, raw: bytes) -> tuple[bytes, SitePhase[Any]]:
        """Say which part of a proposal differs from what this site knows, if one does; else answer it."""
        if raw[5:6] == bytes([Begin.kind]):
            said, known = read_proposal(raw), self.session.scene.context
            for part, facts in (
                ("session", (said.session, known.session)),
                ("round and attempt", (said.address, known.address)),
                ("roster or identity keys", (said.participants, known.participants)),
                ("query", (said.asked, known.asked)),
                ("number of integers", (said.words, known.words)),
            ):
                if facts[0] != facts[1]:
                    raise MessageRefused(
                        f"the server proposes another {part} than this site knows; it may lie, or one of the "
                        "two has an old roster: compare them."
                    )
        return SitePhase.receive(self, raw)

    def answer(self, received: Received[Begin]) -> tuple[bytes, SitePhase[Any]]:
        """Remember the attempt, and send keys drawn for it."""
        session = self.session
        context = session.scene.context
        mark = session.entropy(16)
        if session.memory.remember(attempt_key(context.session, context.address), mark) != mark:
            address = context.address
            raise MessageRefused(
                f"attempt {address.attempt} of round {address.round} was begun here before, and is never begun twice; "
                "begin one with a higher number."
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
        participants, asked = reader.take(DIGEST_BYTES), reader.take(DIGEST_BYTES)
        address = Address(round=round_index, attempt=attempt)
        context = Context(session=session, address=address, participants=participants, asked=asked, words=count)
    except (UnicodeDecodeError, InvalidInput):
        raise MessageRefused("a proposal names no session, or numbers beyond all bounds; begin an attempt.") from None
    if not reader.is_done():
        raise MessageRefused("a proposal is followed by more bytes, which no message is; send it alone.")
    return context
