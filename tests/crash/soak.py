"""Crash soak: crash releases, resume them, and count ledger errors independently of the product's code.

``python -m tests.crash.soak`` makes 1,000 crashes on SQLite and 200 on PostgreSQL; four of five are kills. Every run is
one request. The first attempt of a run has one fault, and the run is repeated until it commits. Each world has several
runs and a budget that they use up exactly. The last line of the output is the verdict.
"""

import argparse
import json
import logging
import os
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import batched, cycle
from multiprocessing import get_context
from pathlib import Path

import dask
from distributed import Client, LocalCluster
from distributed.utils import get_mp_context

from dpca.backends.atomic_files import POINTS, write_atomically
from flows.clusters.certificates import cluster_security
from flows.clusters.dask_clusters import LOCAL_SETTINGS
from flows.settings import cluster_settings
from tests.crash.faults import Cluster, Fault, Kind, Place, Undisturbed, strike, trace
from tests.crash.fuse import LONGEST, Fuse
from tests.crash.processes import forked, start, stop, wait_for
from tests.crash.recount import Tally, leftovers, recount
from tests.crash.world import World, attempt, found_world, open_budget, recover, request_of, warm_up
from tests.postgres import running_server
from tests.web_server import issue

RUNS = 25
"""Runs in each world."""
RESUMES = 3
LANES = 2
WALL = 3600.0
OTHERS: Sequence[Kind] = ("database", "disk", "worker", "rival", "clock", "crowd", "restored")
"""Faults of every fifth run; in all others the process is killed. A restored home includes its database."""
CROWD_EVERY = 41
"""With evenly distributed faults, one run in this many is a crowd, of whose eight processes one is not overtaken."""

IN_TRANSACTIONS = (
    *("reserve.key_written", "reserve.row_written", "begin.row_written", "keep.row_written"),
    *("commit.row_written", "pointer.signed", "pointer.written", "pointer.row_written"),
)
"""Crash points at which a run has a connection that can be lost."""
BETWEEN_TRANSACTIONS = ("record.committed", "keep.file_written", "artifact.staged")
"""Crash points at which a run does not hold the lock of SQLite, but will need it."""
WARM = ["distributed", "dpca_tasks.sums.exact_sum", "storage.datasets.snapshot_reader"]
"""Modules that the workers of the cluster import before they are forked."""
IN_FILES = ("file.synced", "file.renamed", "witness.synced")
"""Crash points of every file write, with or without a lock."""


@dataclass(kw_only=True)
class Report:
    """Counts over several worlds."""

    crashes: Counter[str] = field(default_factory=Counter)
    points: Counter[str] = field(default_factory=Counter)
    tally: Tally = field(default_factory=Tally)

    def add(self, other: "Report") -> None:
        """Add the counts of another report."""
        self.crashes += other.crashes
        self.points += other.points
        self.tally += other.tally

    def to_json(self) -> str:
        """Serialize the report to JSON for another process."""
        return json.dumps([self.crashes, self.points, asdict(self.tally)])

    @classmethod
    def from_json(cls, text: str) -> "Report":
        """Parse the output of `to_json`."""
        crashes, points, tally = json.loads(text)
        return cls(crashes=Counter(crashes), points=Counter(points), tally=Tally(**tally))

    @property
    def verdict(self) -> str:
        """Return the last line of the output, with the verdict."""
        tally = " ".join(f"{name}={count}" for name, count in asdict(self.tally).items())
        return f"crashes={self.crashes.total()} {tally}"


def main() -> int:
    """Run the crash soak and print the results; the last line is the verdict."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sqlite", type=int, default=1_000, metavar="N", help="number of crashes on SQLite")
    parser.add_argument("--postgres", type=int, default=200, metavar="N", help="number of crashes on PostgreSQL")
    parser.add_argument("--even", action="store_true", help="use all kinds of faults equally often, not mostly kills")
    parser.add_argument("--folder", metavar="PATH", help="folder for the test homes; /dev/shm avoids disk writes")
    parser.add_argument("--server", metavar="URL", help="URL of a PostgreSQL server on which databases may be created")
    requested = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))
    for name in ("distributed", "distributed.client"):  # do not log workers that were killed on purpose
        logging.getLogger(name).setLevel(logging.CRITICAL)  # these two loggers of Dask have separate levels
    report, wanted, started = Report(), requested.sqlite + requested.postgres, time.monotonic()
    with ExitStack() as stack:
        base = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="dpca-soak-", dir=requested.folder)))
        cluster = stack.enter_context(_running_cluster(base))
        calm = found_world(base / "calm")
        warm_up(calm.copy("warm"))
        traces = trace(calm)
        parts = [("SQLite", requested.sqlite, calm)]
        if requested.postgres:
            server = requested.server or stack.enter_context(running_server()).url
            there = found_world(base / f"soak_{os.getpid()}", server=server)
            stack.callback(there.destroy)
            parts.append(("PostgreSQL", requested.postgres, there))
        for name, count, template in parts:
            kinds = plan_kinds(count, is_even=requested.even, on_server=bool(template.url))
            part = _crash_all(template, kinds, calm, traces, cluster)
            variants = ", ".join(f"{number} {kind}" for kind, number in part.crashes.items())
            print(f"{name}: {part.verdict} ({variants or 'none'})", flush=True)
            report.add(part)
    missed = [point for point in POINTS if not report.points[point]]
    print(f"killed at {len(POINTS) - len(missed)} of {len(POINTS)} crash points; not at: {', '.join(missed) or 'none'}")
    print(f"{time.monotonic() - started:.0f} s")
    print(report.verdict)
    is_clean = report.crashes.total() == wanted and report.tally == Tally(digests_equal=wanted)
    return 0 if is_clean and not missed else 1


def plan_kinds(count: int, *, is_even: bool, on_server: bool) -> list[Kind]:
    """Return the kind of fault of each run: all kinds in turn, or four kills of every five."""
    others = [kind for kind in OTHERS if not (on_server and kind == "restored")]
    if is_even:
        variants: Iterator[Kind] = cycle(("kill", *(kind for kind in others if kind != "crowd")))
        return ["crowd" if number % CROWD_EVERY == CROWD_EVERY - 1 else next(variants) for number in range(count)]
    return [others[number // 5 % len(others)] if number % 5 == 4 else "kill" for number in range(count)]


def plan_faults(kinds: Sequence[Kind], size: int, traces: Sequence[Sequence[Place]], *, on_server: bool) -> list[Fault]:
    """Distribute faults over the crash points that runs reach: first each point once, then its later occurrences.

    ``size`` is the number of runs in a world; the runs of a world alternate between the mechanisms.
    """
    used: Counter[tuple[str, int]] = Counter()
    faults = []
    for number, kind in enumerate(kinds):
        mechanism = number % size % len(traces)
        places = _places(kind, traces[mechanism], on_server=on_server)
        shift = mechanism * len(POINTS) // len(traces)
        faults.append(Fault(kind=kind, place=places[(used[kind, mechanism] + shift) % len(places)]))
        used[kind, mechanism] += 1
    return faults


def _places(kind: Kind, trace: Sequence[Place], *, on_server: bool) -> list[Place]:
    if kind in ("crowd", "clock", "restored"):
        # crowd, clock and restore faults have an effect at this crash point
        return [Place(point="reserve.row_written", occurrence=1)]
    if kind == "rival":
        trace = _without_lock(trace)
    if kind == "worker":
        return [Place(point="block.read", occurrence=reads) for reads in range(1, LONGEST + 1)]
    if kind == "disk":  # a full disk: after these crash points, a release writes only the pointer file
        last = max(at for at, place in enumerate(trace) if place.point == "commit.staging_removed")
        trace = trace[: last + 1]
    if kind == "database" and on_server:
        trace = [place for place in trace if place.point in IN_TRANSACTIONS]
    elif kind == "database":  # after these crash points, a run only reads, which a lock does not prevent
        trace = [place for place in trace if place.point in BETWEEN_TRANSACTIONS][:-1]
    return sorted(trace, key=lambda place: place.occurrence)


def _without_lock(trace: Sequence[Place]) -> list[Place]:
    """Return the crash points at which a run holds no lock that another run with the same request needs.

    Files are written under a lock in a transaction, and by the witness right after a transaction.
    """
    free, after, before = [], "", [place.point for place in trace]
    for at, place in enumerate(trace):
        if place.point in IN_FILES:
            ahead = next((point for point in before[at:] if point not in IN_FILES), "")
            is_free = after != "record.committed" and ahead == "keep.file_written"
        else:
            is_free, after = place.point not in IN_TRANSACTIONS, place.point
        if is_free:
            free.append(place)
    return free


def _crash_all(
    template: World, kinds: Sequence[Kind], calm: World, traces: Sequence[Sequence[Place]], cluster: Cluster
) -> Report:
    """Crash the runs of all worlds in parallel lanes: process groups, each of which gets a part of the worlds."""
    size = max(1, min(RUNS, -(-len(kinds) // LANES)))
    worlds = list(enumerate(batched(plan_faults(kinds, size, traces, on_server=bool(template.url)), size)))
    parent, report, lanes = os.getpid(), Report(), {}
    try:
        for lane in range(LANES):
            path = template.home.with_name(f"{template.home.name}-lane-{lane}.json")

            def body(lane: int = lane, path: Path = path) -> None:
                done, undisturbed = Report(), Undisturbed(calm=calm, name=f"undisturbed_{lane}")
                for number, faults in worlds[lane::LANES]:
                    world = template.copy(f"{template.home.name}_{number}")
                    done.add(_crash_world(world, faults, undisturbed, cluster, parent))
                path.write_text(done.to_json())

            lanes[start(body, group=True)] = path
        for lane, path in lanes.items():
            if wait_for(lane, seconds=WALL) == 0:
                report.add(Report.from_json(path.read_text()))
    finally:
        for lane in lanes:
            stop(lane, group=True)
    return report


def _crash_world(
    world: World, faults: Sequence[Fault], undisturbed: Undisturbed, cluster: Cluster, parent: int
) -> Report:
    report, runs = Report(), range(len(faults))
    open_budget(world, runs)
    for run, fault in enumerate(faults):
        if os.getppid() != parent:
            sys.exit("the soak itself is gone")
        wrong = strike(world, run, fault, cluster=cluster)
        if wrong:
            print(f"{world.home.name}, run {run}: {fault}: {', '.join(wrong)}", file=sys.stderr, flush=True)
        else:
            report.crashes[fault.kind] += 1
            report.points[fault.place.point] += fault.kind == "kill"
        for number in range(1, RESUMES + 1):
            if forked(partial(attempt, world, run, number)) == 0:
                break
    recover(world)
    report.tally = recount(world, [request_of(run) for run in runs], undisturbed.digests(world, runs))
    if report.tally != Tally(digests_equal=len(faults)):
        print(f"{world.home.name}: {report.tally}; {leftovers(world.home)}", file=sys.stderr, flush=True)
    world.destroy()
    return report


@contextmanager
def _running_cluster(base: Path) -> Iterator[Cluster]:
    """Run a Dask cluster of two worker processes in a separate process group; forked processes may connect to it."""
    fuse, address, parent = Fuse(folder=base / "fuse"), base / "scheduler", os.getpid()
    os.environ.update(issue(base / "tls").settings)

    def body() -> None:
        # workers import this small module when they start
        sys.modules["__main__"] = sys.modules[Fuse.__module__]
        method = "forkserver"
        dask.config.set({"distributed.worker.multiprocessing-method": method})
        get_mp_context()  # imports Dask's modules
        get_context(method).set_forkserver_preload(WARM)  # a killed worker is restarted soon
        security = cluster_security(cluster_settings())
        with (
            dask.config.set(LOCAL_SETTINGS),
            LocalCluster(
                n_workers=2,
                threads_per_worker=1,
                host="127.0.0.1",
                protocol="tls://",
                security=security,
                dashboard_address="127.0.0.1:0",
                local_directory=str(base / "scratch"),
                silence_logs=logging.CRITICAL,
            ) as running,
            Client(running, set_as_default=False) as client,
        ):
            fuse.lay(client)
            write_atomically(address, running.scheduler_address.encode())
            while os.getppid() == parent:
                time.sleep(0.5)

    group = start(body, group=True)
    try:
        end = time.monotonic() + 120
        while not address.exists():
            if time.monotonic() > end:
                raise TimeoutError("the cluster of the soak did not start within 120 s")
            time.sleep(0.1)
        yield Cluster(address=address.read_text(), fuse=fuse)
    finally:
        stop(group, group=True)


if __name__ == "__main__":
    sys.exit(main())
