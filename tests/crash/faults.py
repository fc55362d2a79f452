"""Faults in the first attempt of a run, and the outcome required of each.

These faults are simulated:

- The process is killed, the disk becomes full, the database becomes unavailable, or a Dask worker is killed.
- Another process completes the same request while the run waits at a crash point, or several processes make the request
  at the same time.
- The clock is set back while rows are ingested.
- The home is restored from an older copy, in which the run must be refused.

Runs without faults give the crash points that a run reaches, and the artifacts that it publishes.
"""

import json
import os
import resource
import shutil
import signal
import socket
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Literal

from dpca_tasks.sums import cluster_sum
from storage.ledger import journal
from tests.crash.fuse import Fuse
from tests.crash.processes import DEADLINE, REFUSED, TIMED_OUT, UNAVAILABLE, forked, start, stop, wait_for
from tests.crash.recount import Tally, query, recount
from tests.crash.world import (
    MECHANISMS,
    Hook,
    World,
    attempt,
    connect_from_outside,
    ingest_rows,
    open_budget,
    request_of,
)

Kind = Literal["kill", "disk", "database", "worker", "rival", "crowd", "clock", "restored"]
TORN_AFTER = 16  # bytes of a file that are still written before the simulated full disk reports an error
PATIENCE = 0.2  # seconds that SQLite waits for a lock in these tests
BACK = timedelta(days=1)  # how far the fault moves the clock back
CROWD = 8  # number of processes that make the same request at once


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """The n-th time that a run reaches a crash point; ``occurrence`` counts from 1."""

    point: str
    occurrence: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A kind of fault and the crash point where it strikes, once, in the first attempt of a run."""

    kind: Kind
    place: Place


def recorder(seen: list[Place]) -> Hook:
    """Return a hook that appends every crash point that a run reaches to a list, in order."""
    counts: Counter[str] = Counter()

    def hook(point: str) -> None:
        counts[point] += 1
        seen.append(Place(point=point, occurrence=counts[point]))

    return hook


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """A running Dask cluster, and the `Fuse` by which one of its workers can be killed."""

    address: str
    fuse: Fuse


def strike(world: World, run: int, fault: Fault, *, cluster: Cluster) -> list[str]:
    """Make the first attempt at a run with a fault; return a line for each violated expectation."""
    match fault.kind:
        case "worker":
            return _lose_worker(world, run, fault.place, cluster)
        case "database":
            return _lose_database(world, run, fault.place)
        case "rival":
            return _let_another_finish(world, run, fault.place)
        case "crowd":
            return _crowd(world, run)
        case "clock":
            return _set_clock_back(world, run)
        case "restored":
            return _restore_home(world, run)
        case "kill":
            status = forked(lambda: attempt(world, run, 0, hook=_at(fault.place, _kill)))
            return _unlike("the run", status, -signal.SIGKILL)
        case "disk":
            status = forked(lambda: attempt(world, run, 0, hook=_at(fault.place, _fill_disk)))
            return _unlike("the run", status, UNAVAILABLE)


def _unlike(who: str, status: int, expected: int) -> list[str]:
    """Return a line if a process ended with another exit status than expected."""
    if status == expected:
        return []
    return [
        f"{who} did not end within {DEADLINE:g} s"
        if status == TIMED_OUT
        else f"{who} ended with {status}, not {expected}"
    ]


def _at(place: Place, act: Callable[[], None]) -> Hook:
    seen: list[Place] = []
    record = recorder(seen)

    def hook(point: str) -> None:
        record(point)
        if seen[-1] == place:
            act()

    return hook


def _kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _fill_disk() -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (TORN_AFTER, resource.RLIM_INFINITY))


def _lose_worker(world: World, run: int, place: Place, cluster: Cluster) -> list[str]:
    """Kill a Dask worker after it has read some blocks; another worker must complete the sum."""

    def body() -> None:
        vars(cluster_sum)["HEARTBEAT"] = 0.2  # seconds; if both Dask workers are killed, the sum must report an error
        attempt(world, run, 0, cluster=cluster.address)

    with cluster.fuse.lit(place.occurrence) as has_burnt:
        wrong = _unlike("the fit", forked(body), 0)
        return wrong if has_burnt() else [*wrong, "the fuse did not burn"]


def _lose_database(world: World, run: int, place: Place) -> list[str]:
    """Remove the database from outside while the run waits at a crash point."""
    with ExitStack() as takeaway:
        wrong, status = _meet(world, run, place, lambda: takeaway.enter_context(_dropped(world)), is_patient=False)
    return [*wrong, *_unlike("the run", status, UNAVAILABLE)]


def _let_another_finish(world: World, run: int, place: Place) -> list[str]:
    """Let another process complete the same request while the run waits at a crash point."""
    rival = TIMED_OUT

    def finish() -> None:
        nonlocal rival
        rival = forked(lambda: attempt(world, run, 1))

    wrong, status = _meet(world, run, place, finish, is_patient=True)
    return [*wrong, *_unlike("the other", rival, 0), *_unlike("the run", status, 0)]


def _meet(
    world: World, run: int, place: Place, act: Callable[[], object], *, is_patient: bool
) -> tuple[list[str], int]:
    """Call ``act`` while a run waits at a crash point; return the violated expectations, and the run's exit status."""
    ours, theirs = socket.socketpair()
    reached = False

    def wait_there() -> None:
        theirs.sendall(b"here")
        theirs.recv(4)

    def body() -> None:
        ours.close()
        if not is_patient:
            vars(sqlite3.dbapi2)["connect"] = partial(_impatient, sqlite3.connect)
        attempt(world, run, 0, hook=_at(place, wait_there))

    def meanwhile() -> None:
        nonlocal reached
        theirs.close()
        ours.settimeout(60)
        reached = ours.recv(4) == b"here"
        if reached:
            act()
            ours.sendall(b"go")

    with ours, theirs:
        status = forked(body, meanwhile=meanwhile)
    return ([] if reached else ["the run did not reach the place"]), status


def _set_clock_back(world: World, run: int) -> list[str]:
    """Ingest the rows again with the clock set back, and make the request, which must use the new snapshot."""

    def body() -> None:
        vars(journal)["now"] = lambda: (datetime.now(UTC) - BACK).isoformat(timespec="microseconds")
        world.enter()
        ingest_rows(world.home)
        attempt(world, run, 0)

    wrong = _unlike("the run", forked(body), 0)
    if _newest(world, "release_reserved")["snapshot_id"] != _newest(world, "snapshot_registered")["snapshot"]:
        wrong.append("the release is not of the snapshot that was ingested last")
    return wrong


def _restore_home(world: World, run: int) -> list[str]:
    """Make the request, and repeat it in an older copy of the home, which must refuse; restore the newest home."""
    copy, newest = (world.home.with_name(f"{world.home.name}-{which}") for which in ("copy", "newest"))
    shutil.copytree(world.home, copy)
    wrong = _unlike("the run", forked(lambda: attempt(world, run, 0)), 0)
    world.home.rename(newest)
    copy.rename(world.home)
    wrong += _unlike("the run in the restored home", forked(lambda: attempt(world, run, 1)), REFUSED)
    shutil.rmtree(world.home)
    newest.rename(world.home)
    return wrong


def _newest(world: World, name: str) -> dict[str, Any]:
    """Return the stored detail of the last journal entry with a given name."""
    last = "(SELECT max(seq) FROM event AS other WHERE other.name = event.name)"
    found = query(world, f"SELECT detail FROM event WHERE name = '{name}' AND seq = {last}")
    return dict(json.loads(found[0][0])) if found else {"snapshot_id": None}


def _crowd(world: World, run: int) -> list[str]:
    """Make the same request in many processes that start at once."""
    gate, ours = os.pipe()

    def body(number: int) -> None:
        os.close(ours)
        os.read(gate, 1)  # this read returns when the parent closes the write end of the pipe
        attempt(world, run, number)

    crowd = [start(partial(body, number)) for number in range(CROWD)]
    os.close(gate)
    os.close(ours)
    try:
        ends = [wait_for(pid, seconds=DEADLINE) for pid in crowd]
    except TimeoutError:
        return [f"the crowd did not end within {DEADLINE:g} s"]
    finally:
        for pid in crowd:
            stop(pid)
    return [wrong for number, end in enumerate(ends) for wrong in _unlike(f"process {number}", end, 0)]


def _impatient(connect: Callable[..., sqlite3.Connection], *args: Any, **settings: Any) -> sqlite3.Connection:
    return connect(*args, **{**settings, "timeout": PATIENCE})


@contextmanager
def _dropped(world: World) -> Iterator[None]:
    if world.url:
        with connect_from_outside(world.url) as connection:
            connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
        yield
        return
    with closing(sqlite3.connect(world.home / "dpca.sqlite", timeout=5, isolation_level=None)) as file:
        file.execute("BEGIN EXCLUSIVE")
        yield


def trace(calm: World) -> list[list[Place]]:
    """Return the crash points that a run of each mechanism reaches, in order, in a home that already has a release."""
    world, runs = calm.copy("traced"), range(2 * len(MECHANISMS))  # the first run to publish creates the signing key
    open_budget(world, runs)

    def body() -> None:
        for run in runs:
            seen: list[Place] = []
            attempt(world, run, 0, hook=recorder(seen))
            (world.home / f"trace-{run}").write_text(json.dumps([asdict(place) for place in seen]))

    assert forked(body) == 0
    traces = [json.loads((world.home / f"trace-{run}").read_text()) for run in runs[len(MECHANISMS) :]]
    world.destroy()
    return [[Place(**place) for place in seen] for seen in traces]


@dataclass(frozen=True, slots=True, kw_only=True)
class Undisturbed:
    """Artifact digests of runs without faults, by release id, computed on demand."""

    calm: World
    name: str
    known: dict[str, str] = field(default_factory=dict)

    def digests(self, world: World, runs: Sequence[int]) -> dict[str, str]:
        """Return the artifact digests that the releases of a world would have without faults, by release id.

        The undisturbed runs use the same keys as the releases of the world.
        """
        rows = query(world, "SELECT request, id FROM release")
        drawn = {json.loads(request)["clip_norm"]: release for request, release in rows}
        for number in (0, 1):
            missing = [run for run in runs if drawn.get(request_of(run).clip_norm) not in self.known]
            if missing:
                self._make(missing, number)
        return self.known

    def _make(self, runs: Sequence[int], number: int) -> None:
        world = self.calm.copy(self.name)
        open_budget(world, runs)

        def body() -> None:
            for run in runs:
                attempt(world, run, number)

        assert forked(body) == 0
        made: dict[str, str] = dict(query(world, "SELECT id, artifact_digest FROM release"))
        peace = recount(world, [request_of(run) for run in runs], made)
        assert peace == Tally(digests_equal=len(runs)), peace
        self.known.update(made)
        world.destroy()
