"""Scheduler for simulated processes, which are greenlets; one runs at a time, in an order that a seed decides.

A process stops at each of its steps, and the scheduler selects the next process. A step is a statement, a commit,
opening or renaming a file, or a crash point. A process that would wait for a lock reports that it waits, and is tried
again after another one has made progress. As after ``kill -9``, a killed process is never resumed, and none of its
handlers runs. Functions registered with its `Process` do what the operating system would then do, such as closing its
connections.

>>> seen = []
>>> scheduler = Scheduler(seed=1, switching=1.0)
>>> def body(name):
...     for turn in range(2):
...         scheduler.reach(f"turn {turn}")
...         seen.append(name)
>>> for name in "ab":
...     _ = scheduler.start(name, lambda name=name: body(name))
>>> scheduler.run()
>>> sorted(seen), scheduler.step
(['a', 'a', 'b', 'b'], 4)
"""

import hashlib
import random
from collections.abc import Callable
from dataclasses import dataclass, field

from greenlet import getcurrent, greenlet  # type: ignore[import-untyped]

MOST_STEPS = 200_000
"""Maximum steps of one history; a history with more counts as one that does not end."""
MOST_STALLS = 200
"""Maximum consecutive turns in which processes only wait, before the history counts as deadlocked."""

_GRAVES: list[greenlet] = []
"""Greenlets of killed processes, kept alive because the handlers of a collected greenlet would still run."""


class Stuck(Exception):
    """Error: the processes of a history wait for each other, or do not end."""


@dataclass(eq=False, kw_only=True)
class Process:
    """A simulated process."""

    name: str
    fibre: greenlet
    at_death: list[Callable[[], None]] = field(default_factory=list)
    is_waiting: bool = False
    is_killed: bool = False


class Scheduler:
    """Scheduler that runs one simulated process at a time, in an order that follows from a seed.

    Parameters
    ----------
    seed : int
        Determines which process gets each turn.
    switching : float
        The probability that a process is interrupted at a step.

    Attributes
    ----------
    step : int, number of steps made by all processes
    trace : list of (process, step description)
    acts : dict of step to function, called outside of all processes when that step is reached
    acts_at : dict of step description to function, called once when such a step is reached
    """

    def __init__(self, *, seed: int, switching: float) -> None:
        self.step = 0
        self.trace: list[tuple[str, str]] = []
        self.acts: dict[int, Callable[[], None]] = {}
        self.acts_at: dict[str, Callable[[], None]] = {}
        self._random, self._switching = random.Random(seed), switching
        self._hub = getcurrent()
        self._alive: list[Process] = []

    @property
    def running(self) -> Process | None:
        """The process whose code is running; None outside of all processes."""
        fibre = getcurrent()
        return next((process for process in self._alive if process.fibre is fibre), None)

    @property
    def alive(self) -> tuple[Process, ...]:
        """The processes that have not ended."""
        return tuple(self._alive)

    def digest(self) -> str:
        """Return the digest of the trace; equal histories have equal digests."""
        return hashlib.sha256(repr(self.trace).encode()).hexdigest()

    def start(self, name: str, body: Callable[[], None]) -> Process:
        """Start a process, which gets its first turn later."""
        process = Process(name=name, fibre=greenlet(body, parent=self._hub))
        self._alive.append(process)
        return process

    def reach(self, what: str) -> None:
        """Make a step, at which other processes may get a turn; outside of all processes, do nothing."""
        process = self.running
        if process is None:
            return
        self.step += 1
        self.trace.append((process.name, what))
        if self.step > MOST_STEPS:
            self._hub.throw(Stuck(f"the processes do not end within {MOST_STEPS} steps"))
        act = self.acts.pop(self.step, None) or self.acts_at.pop(what, None)
        if act is not None:
            self._hub.switch(act)
        elif self._random.random() < self._switching:
            self._hub.switch(None)

    def wait(self, what: str) -> None:
        """Let other processes continue because another process holds the lock that this one needs."""
        process = self.running
        if process is None:
            raise Stuck(f"{what} is locked by a process that cannot continue")
        self.trace.append((process.name, f"waits for {what}"))
        process.is_waiting = True
        self._hub.switch(None)

    def kill(self, process: Process) -> None:
        """Kill a process at its current step."""
        process.is_killed = True
        _GRAVES.append(process.fibre)
        self._alive.remove(process)
        for end in reversed(process.at_death):
            end()

    def run(self) -> None:
        """Give turns until every process has ended.

        Raises
        ------
        Stuck
            If the processes wait for each other, or do not end.
        """
        stalls = 0
        while self._alive:
            ready = [process for process in self._alive if not process.is_waiting] or self._alive
            process = self._random.choice(ready)
            process.is_waiting = False
            act = process.fibre.switch()
            if process.fibre.dead:
                self._alive.remove(process)
            stalls = stalls + 1 if process.is_waiting else 0
            if stalls > MOST_STALLS:
                waiting = ", ".join(f"{who} {what}" for who, what in self.trace[-len(self._alive) :])
                raise Stuck(f"the processes wait for each other: {waiting}")
            for other in self._alive:
                other.is_waiting = other.is_waiting and other is process
            if callable(act):
                act()
