"""Plan of a simulated history, derived from a seed: the actions of its processes, and the steps of its faults."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from dpca.backends.atomic_files import POINTS, STREAM_POINTS
from tests.histories.worlds import NAMES, REQUESTS

Kind = Literal["fit", "tick", "promote", "read", "statement"]
Wrong = Literal["kill", "jump", "disk", "answer", "copy", "restore", "lose"]

SPAN = 1_600
"""Steps within which faults occur; a fit alone takes about 450."""
JUMPS = (-30 * 86_400.0, -86_400.0, -7_200.0, 7_200.0, 86_400.0, 30 * 86_400.0)
"""Clock jumps in seconds."""
KILLED_AT = (*(*POINTS, *STREAM_POINTS), *("",) * len((*POINTS, *STREAM_POINTS)))
"""Crash points of kills, and as many empty entries, which mean any step."""
RESTORED = ("database", "database and keys")
LOST = ("keys", "witness beside", "witness apart")


@dataclass(frozen=True, slots=True, kw_only=True)
class Act:
    """One action of a simulated process.

    ``number`` is the number of a request, a slot or a version; ``name`` is the name to publish, promote or read.
    """

    kind: Kind
    number: int = 0
    name: str = ""

    def __str__(self) -> str:
        """Format the action as a line of a story."""
        match self.kind:
            case "fit":
                return f"fits request {self.number} and publishes it as {self.name}"
            case "tick":
                return f"runs slot {self.number} of the stream"
            case "promote":
                return f"promotes {self.name}@{self.number}"
            case "read":
                return f"reads {self.name}"
            case "statement":
                return "asks what is spent"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A fault at a step of the scheduler.

    ``by`` is a clock jump in seconds. ``what`` is restored or lost, or is the crash point at which a process is killed;
    without it, the process is killed at the step itself. If the fault ``resumes``, another process continues the
    remaining actions.
    """

    step: int
    kind: Wrong
    by: float = 0.0
    what: str = ""
    resumes: bool = True

    def __str__(self) -> str:
        """Format the fault as a line of a story."""
        match self.kind:
            case "kill":
                who = f"whoever first reaches {self.what} then" if self.what else "whoever runs"
                return f"step {self.step}: {who} is killed{', and followed' if self.resumes else ''}"
            case "jump":
                return f"step {self.step}: clocks jump by {self.by:+.0f} s"
            case "disk":
                return f"step {self.step}: the disk is full for one file"
            case "answer":
                return f"step {self.step}: the answer to the next commit is lost"
            case "copy":
                return f"step {self.step}: the database and the keys are copied"
            case "restore":
                return f"step {self.step}: all are killed, and the copy of the {self.what} is restored"
            case "lose":
                return f"step {self.step}: all are killed, and the {self.what} are lost"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Plan of one history: seed, database, store, the actions of each process, and the faults."""

    seed: int
    database: Literal["file", "server"]
    store: Literal["folder", "objects"]
    scripts: Sequence[Sequence[Act]]
    faults: Sequence[Fault]
    switching: float

    def story(self) -> str:
        """Return the plan as lines of text."""
        acts = [f"process {at}: {', then '.join(map(str, script))}" for at, script in enumerate(self.scripts) if script]
        head = f"seed {self.seed}: database {self.database}, store {self.store}, switching {self.switching:g}"
        return "\n".join([head, *acts, *map(str, self.faults)])


def plan_of(seed: int, *, on_server: bool) -> Plan:
    """Derive a plan from a seed.

    Every fifth plan uses a PostgreSQL server if there is one, and every third keeps its objects in an object store.
    """
    chance = random.Random(f"plan {seed}")
    numbers = chance.sample(range(REQUESTS), 3)
    scripts = tuple(
        tuple(_act(chance, numbers) for _ in range(chance.choice((1, 1, 2)))) for _ in range(chance.choice((2, 3, 4)))
    )
    return Plan(
        seed=seed,
        database="server" if on_server and seed % 5 == 4 else "file",
        store="objects" if seed % 3 == 2 else "folder",
        scripts=scripts,
        faults=tuple(sorted(_faults(chance), key=lambda fault: fault.step)),
        switching=chance.choice((0.02, 0.1, 0.3)),
    )


def _act(chance: random.Random, numbers: Sequence[int]) -> Act:
    match chance.choice(("fit",) * 7 + ("tick",) * 2 + ("promote", "read", "statement")):
        case "fit":
            return Act(kind="fit", number=chance.choice(numbers), name=chance.choice(NAMES))
        case "tick":
            return Act(kind="tick", number=chance.choice((1, 2)))
        case "promote":
            return Act(kind="promote", name=chance.choice(NAMES), number=chance.choice((1, 2)))
        case "read":
            return Act(kind="read", name=chance.choice(NAMES))
        case _:
            return Act(kind="statement")


def _faults(chance: random.Random) -> list[Fault]:
    def step(least: int = 1) -> int:
        return chance.randrange(least, SPAN)

    faults = [
        Fault(step=step(), kind="kill", what=chance.choice(KILLED_AT), resumes=chance.random() < 0.7)
        for _ in range(chance.choice((0, 1, 1, 2, 3)))
    ]
    faults += [Fault(step=step(), kind="jump", by=chance.choice(JUMPS)) for _ in range(chance.choice((0, 1, 2)))]
    if chance.random() < 0.2:
        faults.append(Fault(step=step(), kind="disk"))
    if chance.random() < 0.2:
        faults.append(Fault(step=step(), kind="answer"))
    if chance.random() < 0.3:
        copied = step()
        faults.append(Fault(step=copied, kind="copy"))
        faults.append(Fault(step=step(copied), kind="restore", what=chance.choice(RESTORED)))
    elif chance.random() < 0.1:
        faults.append(Fault(step=step(), kind="lose", what=chance.choice(LOST)))
    return faults
