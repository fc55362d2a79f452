"""Soak of readers: twenty writers and twenty readers use one ledger concurrently, and no reader reports a false alarm.

Writers reserve, begin, publish and abandon releases. Readers open the home, read statements, quotes, histories and the
registry, and verify the whole ledger. Nothing is damaged, so every error is a false alarm. Shortly before the end, the
stored total of one budget is edited while all processes continue. From then on each statement of that budget, and each
verification of the whole ledger, must report the damage.
"""

import argparse
import multiprocessing
import os
import random
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from multiprocessing.queues import SimpleQueue
from multiprocessing.synchronize import Event
from pathlib import Path

from dpca.errors import BudgetExhausted, Corrupt
from storage.database import tables
from storage.ledger.ledger import Ledger
from storage.workspace import Workspace
from tests.crash.world import World
from tests.postgres import running_server
from tests.storage.releasing import DELTA, calibrated, open_budget, publish, reserve

PEOPLE = tuple(f"people-{number}" for number in range(4))
DAMAGED = "damaged"
NAME = f"map.{PEOPLE[0]}"
EVENT = calibrated(0.01)
_SHARE = 0.15  # fraction of the time that is spent on detecting the damage
_FORK = multiprocessing.get_context("fork")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Signals:
    """Events ``planted`` (a total was edited) and ``ended`` for all processes, and a queue for their counts."""

    planted: Event = field(default_factory=_FORK.Event)
    ended: Event = field(default_factory=_FORK.Event)
    counts: "SimpleQueue[Counter[str]]" = field(default_factory=_FORK.SimpleQueue)


def soak(world: World, *, writers: int, readers: int, seconds: float) -> Counter[str]:
    """Run each writer and reader in a process; return counts of their actions and of each kind and text of alarm."""
    world.enter()
    ledger = Workspace.open().ledger
    for population in (*PEOPLE, DAMAGED):
        open_budget(ledger, population, epsilon=50.0)
        reserve(ledger, f"first of {population}", population=population, event=EVENT)
    publish(ledger, "published", name=NAME, population=PEOPLE[0], event=EVENT)
    signals, acts = _Signals(), (*[_write] * writers, *[_read] * readers)
    crew = [_FORK.Process(target=_work, args=(act, number, signals)) for number, act in enumerate(acts)]
    for worker in crew:
        worker.start()
    time.sleep(seconds * (1 - _SHARE))
    signals.planted.set()  # from now on only `_find_damage` verifies the whole ledger
    time.sleep(seconds * _SHARE / 3)
    found = _find_damage(ledger, seconds=seconds * _SHARE / 3 * 2)
    signals.ended.set()
    counts = sum((signals.counts.get() for _ in crew), found)
    for worker in crew:
        worker.join()
    return counts


def is_sound(counts: Counter[str]) -> bool:
    """Return whether there were no false alarms, and every check reported the damage."""
    worked = counts["reads"] and counts["writes"] and counts["looks at the damage"]
    return bool(worked) and not counts["alarms"] and counts["reports"] == counts["looks at the damage"]


def _find_damage(ledger: Ledger, *, seconds: float) -> Counter[str]:
    """Edit a stored total, verify it repeatedly, and count the verifications and the reported damages."""
    total = tables.charged_total
    with ledger.transaction() as connection:
        edited = total.update().where(total.c.population == DAMAGED)
        connection.execute(edited.values(releases=total.c.releases + 1))
    checks: tuple[Callable[[Ledger], object], ...] = (lambda read: read.statement(DAMAGED), lambda read: read.verify())
    counts, until = Counter[str](), time.monotonic() + seconds
    while not counts or time.monotonic() < until:
        for inspect in checks:
            counts["looks at the damage"] += 1
            try:
                inspect(Workspace.read_only().ledger)
            except Corrupt:
                counts["reports"] += 1
    return counts


def _work(act: Callable[[random.Random, str, Event], str], number: int, signals: _Signals) -> None:
    counts, turn = Counter[str](), 0
    while not signals.ended.is_set():
        turn += 1
        try:
            counts[act(random.Random(10_000 * number + turn), f"{number} {turn}", signals.planted)] += 1
        except Exception as error:  # noqa: BLE001 - every error is counted
            text = re.sub("[0-9a-f]{32}", "...", str(error))
            counts["alarms"] += 1
            counts[f"{type(error).__name__}: {text[:120]}"] += 1
    signals.counts.put(counts)
    os._exit(0)


def _write(draw: random.Random, run_key: str, planted: Event) -> str:
    """Reserve a release, then abandon it, publish it, or leave it in progress."""
    ledger, population = Workspace.open().ledger, draw.choice(PEOPLE)
    try:
        match draw.randrange(4):
            case 0:
                publish(ledger, run_key, name=f"map.{population}", population=population, event=EVENT)
            case 1:
                ledger.abandon(reserve(ledger, run_key, population=population, event=EVENT).release_id)
            case _:
                ledger.begin(reserve(ledger, run_key, population=population, event=EVENT).release_id)
    except BudgetExhausted:
        return "refusals"
    return "writes"


def _read(draw: random.Random, run_key: str, planted: Event) -> str:
    """Read one random item in the way commands, pages and services do."""
    workspace = Workspace.read_only() if draw.random() < 0.7 else Workspace.open()
    ledger, population = workspace.ledger, draw.choice(PEOPLE)
    kinds: list[Callable[[], object]] = [
        lambda: ledger.statement(population, burn_down=True),
        lambda: ledger.statement(population, newest=5),
        lambda: ledger.history(population),
        lambda: ledger.quote(population, EVENT, epsilon=0.01, delta=DELTA),
        lambda: ledger.pace(population, runs=3),
        lambda: workspace.registry.load(NAME),
        lambda: workspace.alias_history(NAME),
        *(() if planted.is_set() else (ledger.verify, ledger.check_changes)),
    ]
    draw.choice(kinds)()
    return "reads"


def main() -> int:
    """Run the soak on both databases, print the counts, and fail on a false alarm or on unreported damage."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--seconds", type=float, default=60.0, help="duration for each database")
    options.add_argument("--writers", type=int, default=20)
    options.add_argument("--readers", type=int, default=20)
    options.add_argument("--folder", type=Path, help="folder for the test homes")
    given, sound = options.parse_args(), True
    with ExitStack() as stack:
        root = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=given.folder)))
        server = stack.enter_context(running_server())
        for name, url in (("sqlite", ""), ("postgresql", stack.enter_context(server.database()))):
            world = World(home=root / name, url=url)
            world.home.mkdir(mode=0o700)
            counts = soak(world, writers=given.writers, readers=given.readers, seconds=given.seconds)
            sound = sound and is_sound(counts)
            print(f"{name}: " + ", ".join(f"{count} {what}" for what, count in sorted(counts.items())), flush=True)
    return 0 if sound else 1


if __name__ == "__main__":
    sys.exit(main())
