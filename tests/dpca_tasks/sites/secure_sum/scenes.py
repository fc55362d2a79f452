"""In-process sites of a secure sum, with memories and integers that a test can inspect."""

import hashlib
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dpca_tasks.noise.keystream import SecretKey
from dpca_tasks.sites.roster import Address, Member, Roster, masked
from dpca_tasks.sites.secure_sum.attempt import ServerKeys, SiteMachine, propose
from dpca_tasks.sites.secure_sum.session import SiteSession
from dpca_tasks.sites.secure_sum.wire import Context, Identity, Participants, Scene

REQUESTED = hashlib.sha256(b"a query").digest()


def identity_of(name):
    return Identity(SecretKey(hashlib.sha256(f"identity of {name}".encode()).digest()))


def circle_of(size, **facts):
    roster = roster_of(size, **facts)
    return Participants(roster=roster, keys={name: identity_of(name).public for name in roster.names})


def scene_of(participants, *, round_index=0, attempt=0, words=5, requested=REQUESTED):
    address = Address(round=round_index, attempt=attempt)
    context = Context(
        session=participants.roster.session,
        address=address,
        participants=participants.digest,
        requested=requested,
        words=words,
    )
    return Scene(participants=participants, context=context)


class Remembered:
    """A site's memory that lasts as long as the test."""

    def __init__(self):
        self.kept = {}

    def recall(self, key):
        return self.kept.get(key)

    def remember(self, key, value):
        return self.kept.setdefault(key, value)


def entropy_of(label):
    """Return a function that draws random bytes, which are the same in each run of a test."""
    stream = hashlib.shake_256(label.encode())
    at = 0

    def draw(size):
        nonlocal at
        at += size
        return stream.digest(at)[-size:]

    return draw


@dataclass
class World:
    """All sites of a secure sum, with their integers and memories.

    A memory outlasts its site's state machine, as a disk outlasts a process.
    """

    participants: Participants
    words: int = 5
    memories: dict[str, Remembered] = field(default_factory=dict)
    integers: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self):
        for at, name in enumerate(self.participants.names):
            self.memories.setdefault(name, Remembered())
            drawn = np.random.default_rng(at).integers(-(2**40), 2**40, self.words)
            self.integers.setdefault(name, drawn)

    def scene(self, **address):
        return scene_of(self.participants, words=self.words, **address)

    def machine(self, name, scene, *, entropy=None):
        def contribute(masks):
            mask = masks.mask(scene.context.address, roster=scene.participants.roster, size=self.words)
            return masked(self.integers[name], mask)

        facts = {"scene": scene, "site": name, "identity": identity_of(name), "memory": self.memories[name]}
        session = SiteSession(**facts, contribute=contribute, **({"entropy": entropy} if entropy else {}))
        return SiteMachine(session)

    def machines(self, scene):
        return {scene.participants.place(name): self.machine(name, scene) for name in scene.participants.names}

    def sum_of(self, *names):
        return sum(self.integers[name] for name in names)


PHASES = ("keys", "sealed shares", "masked sums", "signed senders", "opening shares")


def attempt(world, scene, *, lost=(), order=None, transcript=None):
    """Run one attempt of a secure sum, passing all messages by hand.

    ``lost`` has pairs of a site and a phase of `PHASES`: from this phase on, no message of the site arrives.

    Returns
    -------
    Total
    """
    machines = world.machines(scene)
    silent: dict[str, set[int]] = {}
    for name, title in lost:
        silent.setdefault(title, set()).add(scene.participants.place(name))
    gone: set[int] = set()
    phase: Any = ServerKeys(scene=scene, awaited=frozenset(machines))
    frames = dict.fromkeys(sorted(machines), propose(scene))
    for title in PHASES:
        gone |= silent.get(title, set())
        for place in order or sorted(frames):
            if place in frames and place not in gone:
                answer = machines[place].receive(frames[place])
                if transcript is not None:
                    transcript.append((title, place, answer))
                phase.receive(answer, sender=place)
        closed = phase.close()
        if title != PHASES[-1]:
            frames, phase = closed
    return closed


def roster_of(size, *, multiplier=4.0, **facts):
    """Return a roster of ``size`` sites named ``a``, ``b``, ... with equal facts."""
    members = tuple(Member(name=chr(97 + at), records=1000, noise_multiplier=multiplier) for at in range(size))
    return Roster(**{"session": "spring", "members": members, "colluders": 0, **facts})
