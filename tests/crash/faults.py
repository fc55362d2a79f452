"""What goes wrong, and where: the process is killed, the disk fills, the database goes away, a worker is killed."""

import os
import resource
import signal
import socket
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from tests.crash.fuse import Fuse
from tests.crash.processes import UNAVAILABLE, forked
from tests.crash.world import Hook, World, attempt, connect_from_outside

Kind = Literal["kill", "disk", "database", "worker"]
TORN_AFTER = 16  # bytes of a file that still get written when the disk is full
PATIENCE = 0.2  # seconds that SQLite waits for a lock in these tests


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A crash point, and the how-manieth time that a run reaches it."""

    point: str
    occurrence: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One thing that goes wrong once, in the first attempt of a run."""

    kind: Kind
    place: Place


def recorder(seen: list[Place]) -> Hook:
    """Return a hook that notes every place that a run reaches, in order."""
    counts: Counter[str] = Counter()

    def hook(point: str) -> None:
        counts[point] += 1
        seen.append(Place(point=point, occurrence=counts[point]))

    return hook


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """A running Dask cluster whose workers share a fuse."""

    address: str
    fuse: Fuse


def strike(world: World, run: int, fault: Fault, *, cluster: Cluster) -> bool:
    """Make the first attempt at a run and let it go wrong; tell whether it did, in the way that it must."""
    if fault.kind == "worker":
        with cluster.fuse.lit(fault.place.occurrence) as has_burnt:
            status = forked(lambda: attempt(world, run, 0, cluster=cluster.address))
            return status == 0 and has_burnt()
    if fault.kind == "database":
        return _lose_database(world, run, fault.place)
    act, expected = (_kill, -signal.SIGKILL) if fault.kind == "kill" else (_fill_disk, UNAVAILABLE)
    return forked(lambda: attempt(world, run, 0, hook=_at(fault.place, act))) == expected


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


def _lose_database(world: World, run: int, place: Place) -> bool:
    """Take the database away at a place, from outside, while the run waits there."""
    ours, theirs = socket.socketpair()
    reached = False

    def wait_there() -> None:
        theirs.sendall(b"here")
        theirs.recv(4)

    def body() -> None:
        ours.close()
        vars(sqlite3.dbapi2)["connect"] = partial(_impatient, sqlite3.connect)
        attempt(world, run, 0, hook=_at(place, wait_there))

    def meanwhile() -> None:
        nonlocal reached
        theirs.close()
        ours.settimeout(60)
        reached = ours.recv(4) == b"here"
        if reached:
            takeaway.enter_context(_dropped(world))
            ours.sendall(b"go")

    with ExitStack() as takeaway, ours, theirs:
        status = forked(body, meanwhile=meanwhile)
    return reached and status == UNAVAILABLE


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
