"""Soak of streams: kill the process at every tick, and run the tick's scheduled slot again.

``python -m tests.crash.soak_streams`` opens a stream of 365 ticks on a small dataset, which gets new rows every tenth
night. The soak runs the stream twice: without faults, and with a kill in every tick, at varying crash points. New rows
also arrive between a kill and the next run of its slot. Keys are derived from the number of the tick, so both runs must
publish the same bytes. Plain SQL counts the versions and charges. The last line of the output is the verdict.
"""

import argparse
import json
import math
import os
import secrets
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from functools import partial
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from scipy import sparse
from zarr.core.sync import cleanup_resources

from dpca.backends import atomic_files
from flows.ingest import ingest_source
from flows.orchestration.stage_calls import directly
from flows.releases.streams import make_tick, open_stream
from flows.requests import StreamRequest
from flows.settings import Settings
from storage.datasets import staging
from storage.datasets.ingest_options import IngestOptions
from storage.ledger import releases
from storage.workspace import Workspace
from tests.crash.faults import Place, recorder
from tests.crash.processes import forked, start, stop, wait_for
from tests.crash.recount import leftovers, query
from tests.crash.world import DATASET, FEATURES, POPULATION, Hook, World, recover

NAME = "nightly"
EVERY = 10
"""Nights between two ingests."""
AFTER_BINDING = "tick.row_committed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Number of ticks, and the numbers of versions, charges and unequal artifacts found without the product's code."""

    ticks: int
    versions: int
    charges: int
    unequal: int

    def __str__(self) -> str:
        """Format the verdict as the last line of the output."""
        return f"ticks={self.ticks} versions={self.versions} charges={self.charges} unequal={self.unequal}"

    @property
    def is_clean(self) -> bool:
        """Return whether every tick has a version equal to that of the run without faults, for one charge in total."""
        return (self.versions, self.charges, self.unequal) == (self.ticks, 1, 0)


def main() -> int:
    """Run the soak of streams and print the results; the last line is the verdict."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ticks", type=int, default=365, metavar="N")
    parser.add_argument("--folder", metavar="PATH", help="folder for the test homes; /dev/shm avoids disk writes")
    parser.add_argument("--maps", choices=("first", "doubling"), default="first", help="the maps of the stream's ticks")
    requested = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="dpca-streams-", dir=requested.folder) as folder:
        template = _found_world(Path(folder) / "template", ticks=requested.ticks, maps=requested.maps)
        _warm_up(template.copy("warm"))
        calm, crashed = template.copy("calm"), template.copy("crashed")
        trace = _run_calm(calm, ticks=requested.ticks)
        killed = _run_killed(crashed, trace, ticks=requested.ticks)
        recover(crashed)
        verdict, left = _count(crashed, calm, ticks=requested.ticks), leftovers(crashed.home)
    struck, reached = ({place.point for place in places} for places in (killed, trace))
    print(f"killed {len(killed)} times, at {len(struck)} of the {len(reached)} crash points of a tick")
    print(f"{len(left)} files left")
    print(f"{time.monotonic() - began:.0f} s")
    print(verdict)
    return 0 if verdict.is_clean and len(killed) == requested.ticks and not left else 1


def _found_world(home: Path, *, ticks: int, maps: str) -> World:
    """Create a home with a dataset, a budget and an open stream."""
    world = World(home=home)

    def body() -> None:
        world.enter()
        _ingest(world, night=0)
        Workspace.open().ledger.open_budget(POPULATION, epsilon=1.0, delta=1e-7, failure_delta=0.0)
        open_stream(
            StreamRequest(
                dataset=DATASET,
                population=POPULATION,
                publish=NAME,
                epsilon=1.0,
                delta=1e-7,
                clip_norm=1.0,
                components=3,
                ticks=ticks,
                maps=maps,
            )
        )

    assert forked(body) == 0
    return world


def _ingest(world: World, *, night: int) -> None:
    """Ingest the rows of one night; the snapshot id is derived from the night's number."""
    source = world.home.with_name(f"{world.home.name}-{night}.npz")
    rows = np.random.default_rng(night).normal(size=(1_000 if night == 0 else 50, FEATURES))
    sparse.save_npz(source, sparse.csr_array(rows * np.geomspace(1.0, 0.1, FEATURES)))
    name = sha256(f"night {night}".encode()).hexdigest()[:32]
    replaced: dict[str, Any] = vars(staging)
    replaced["secrets"] = SimpleNamespace(token_hex=lambda count: name if count == 16 else secrets.token_hex(count))
    ingest_source(str(source), DATASET, IngestOptions(population=POPULATION, records_at_most=100_000, block_nnz=2_000))


def _tick(world: World, number: int, *, hook: Hook | None = None) -> None:
    """Make one tick of the stream in this process; the release key is derived from the tick's number."""
    world.enter()
    replaced: dict[str, Any] = vars(releases)
    replaced["new_key"] = lambda: sha256(f"tick {number}".encode()).digest()
    atomic_files.hook = hook
    make_tick(directly, NAME, Settings(cluster="none"), slot=(date(2026, 1, 1) + timedelta(days=number)).isoformat())


def _warm_up(world: World) -> None:
    """Load and compile everything that the child processes will need, once."""
    _tick(world, 1)
    atomic_files.hook = None
    cleanup_resources()  # no thread may be running when this process forks


def _run_calm(world: World, *, ticks: int) -> list[Place]:
    """Make every tick without faults; return the crash points that one tick reaches."""
    shown = world.home.with_name("trace")

    def body() -> None:
        for number in range(1, ticks + 1):
            seen: list[Place] = []
            _tick(world, number, hook=recorder(seen))
            atomic_files.hook = None
            _after(world, number)
            if number == 2:
                shown.write_text(json.dumps([[place.point, place.occurrence] for place in seen]))

    _in_child(body)
    return [Place(point=point, occurrence=occurrence) for point, occurrence in json.loads(shown.read_text())]


def _after(world: World, number: int) -> None:
    if number % EVERY == 0:
        _ingest(world, night=number)


def _run_killed(world: World, trace: Sequence[Place], *, ticks: int) -> list[Place]:
    """Kill the process in every tick, then run its slot again; return the crash points of the kills."""
    bound = max(at for at, place in enumerate(trace) if place.point == AFTER_BINDING)
    killed, size = [], len(trace)
    # order of the kills: each crash point once, then its later occurrences
    order = sorted(range(size), key=lambda at: trace[at].occurrence)
    stride = next(step for step in range(max(1, size // 3), size) if math.gcd(step, size) == 1)
    for number in range(1, ticks + 1):
        at = order[number * stride % size]
        ingests_early = number % EVERY == 0 and at >= bound

        def die(place: Place = trace[at], number: int = number) -> None:
            _tick(world, number, hook=_at(place))

        if forked(die) == -signal.SIGKILL:
            killed.append(trace[at])
        else:
            print(f"tick {number} was not killed at {trace[at]}", file=sys.stderr, flush=True)

        _in_child(partial(_go_on, world, number, ingests_early=ingests_early))
    return killed


def _go_on(world: World, number: int, *, ingests_early: bool) -> None:
    """Run the slot of a tick again after a kill; new rows arrive before or after this run."""
    if ingests_early:
        world.enter()
        _after(world, number)
    _tick(world, number)
    if not ingests_early:
        atomic_files.hook = None
        _after(world, number)


def _at(place: Place) -> Callable[[str], None]:
    seen: list[Place] = []
    record = recorder(seen)

    def hook(point: str) -> None:
        record(point)
        if seen[-1] == place:
            os.kill(os.getpid(), signal.SIGKILL)

    return hook


def _in_child(body: Callable[[], None]) -> None:
    pid = start(body)
    try:
        status = wait_for(pid, seconds=3600)
    finally:
        stop(pid)
    assert status == 0, status


def _count(crashed: World, calm: World, *, ticks: int) -> Verdict:
    """Count versions and charges in the database, and compare artifact bytes with the run without faults."""
    statement = f"SELECT version, digest FROM version WHERE name = '{NAME}'"
    found: list[dict[int, str]] = [dict(query(world, statement)) for world in (crashed, calm)]
    versions, expected = found
    charged = query(crashed, "SELECT detail FROM event WHERE name = 'release_reserved'")

    def verify() -> None:
        crashed.enter()
        Workspace.open().ledger.verify()

    _in_child(verify)
    return Verdict(
        ticks=ticks,
        versions=len(versions),
        charges=sum(any(json.loads(detail)["charge"]) for (detail,) in charged),
        unequal=sum(versions.get(number) != digest for number, digest in expected.items()) + (len(expected) != ticks),
    )


if __name__ == "__main__":
    sys.exit(main())
