"""Soak of histories: play simulated histories with the real code, and find each planted fault.

``python -m tests.histories.soak`` plays and checks 2,000 histories in two parallel lanes, then looks for each planted
fault. The last line of the output is the verdict. ``--seed N`` plays one history alone and prints its story, the
answers, and the last steps of its trace. A history depends on its seed alone.

A plan whose history fails is minimized: faults, actions and processes are removed one at a time.
"""

import argparse
import json
import os
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from itertools import batched
from pathlib import Path

from sqlalchemy.engine import make_url

from dpca.backends.atomic_files import POINTS, STREAM_POINTS
from tests.crash.processes import start, stop
from tests.crash.world import World, connect_from_outside
from tests.histories.checks import Known, violations
from tests.histories.plans import Plan, plan_of
from tests.histories.planted import PLANTS, Planted
from tests.histories.playing import History, play
from tests.histories.violation import Violation
from tests.histories.worlds import Template, found_template, renew, warm_up
from tests.postgres import find_programs, running_server

LANES = 2
CHUNK = 25
"""Histories of one child process, which is then replaced to free its memory and files."""
MOST_PLANTED = 400
"""Maximum number of histories within which a planted fault must be found."""
SHOWN = 40
"""Number of final trace steps that are printed."""
FAULTS = ("kill", "jump", "restore", "copy", "lose", "disk", "answer")


@dataclass(kw_only=True)
class Report:
    """Counts and violations of several histories."""

    histories: int = 0
    steps: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    killed_at: Counter[str] = field(default_factory=Counter)
    found: dict[int, list[str]] = field(default_factory=dict)
    known: list[tuple[tuple[str, str, str], str]] = field(default_factory=list)
    digests: dict[int, str] = field(default_factory=dict)

    @property
    def is_found(self) -> bool:
        """Whether some history has violations.

        A dead process, or two disagreeing histories, do not count as finding a planted fault.
        """
        return any(seed >= 0 for seed in self.found)

    def to_json(self) -> str:
        """Serialize the report to JSON for another process."""
        found, digests = [*self.found.items()], [*self.digests.items()]
        return json.dumps([self.histories, self.steps, self.counts, self.killed_at, found, self.known, digests])

    @classmethod
    def from_json(cls, text: str) -> "Report":
        """Parse the output of `to_json`."""
        histories, steps, counts, killed_at, found, known, digests = json.loads(text)
        return cls(
            histories=histories, steps=steps, counts=Counter(counts), killed_at=Counter(killed_at), found=dict(found),
            known=[(tuple(place), digest) for place, digest in known], digests=dict(digests),
        )  # fmt: skip

    def add(self, other: "Report") -> None:
        """Add the counts of another report, and compare the artifacts of both."""
        self.histories += other.histories
        self.steps += other.steps
        self.counts += other.counts
        self.killed_at += other.killed_at
        self.found |= other.found
        self.digests |= other.digests
        known = dict(self.known)
        for place, digest in other.known:
            if known.setdefault(place, digest) != digest:
                self.found.setdefault(-1, []).append(f"equal requests: release {place[2]} has two artifacts")
        self.known = [*known.items()]

    def __str__(self) -> str:
        """Format the report as one line."""
        counts = " ".join(f"{name}={self.counts[name]}" for name in FAULTS)
        return f"histories={self.histories} violations={len(self.found)} steps={self.steps} {counts}"


@dataclass(frozen=True, kw_only=True)
class Stage:
    """Template worlds by database and store, and the folder of each lane."""

    base: Path
    templates: dict[tuple[str, str], Template]

    @property
    def on_server(self) -> bool:
        """Whether a PostgreSQL server is available."""
        return ("server", "folder") in self.templates

    def world(self, plan: Plan, lane: int) -> World:
        """Return the world in which a lane plays a plan."""
        template = self.templates[plan.database, plan.store]
        url = make_url(template.world.url).set(database=f"lane_{lane}") if template.world.url else None
        return World(
            home=self.base / f"lane-{lane}" / "home",
            url=url.render_as_string(hide_password=False) if url is not None else "",
        )

    def judged(
        self, plan: Plan, lane: int, *, planted: Planted | None, known: Known
    ) -> tuple[History, list[Violation]]:
        """Play a plan in a lane and check it; return the history and its violations.

        For a planted fault, only violations of the checks that must find it are returned.
        """
        template, world = self.templates[plan.database, plan.store], self.world(plan, lane)
        history = play(plan, template, world, plant=planted.plant if planted else None)
        found = violations(history, template, world, known)
        return history, planted.found_in(found) if planted else found


def main() -> int:
    """Run the soak of histories and print the results; the last line is the verdict."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--histories", type=int, default=2_000, metavar="N")
    parser.add_argument("--planted", choices=("all", "none", *PLANTS), default="all", help="faults to plant")
    parser.add_argument(
        "--seed", type=int, metavar="N", help="play the history of this seed alone, with the fault named by --planted"
    )
    parser.add_argument("--folder", metavar="PATH", help="folder for the test homes; /dev/shm avoids disk writes")
    parser.add_argument("--no-server", action="store_true", help="play all histories on SQLite")
    parser.add_argument("--digests", action="store_true", help="print the digest of each trace")
    requested = parser.parse_args()
    # a history depends on the iteration order of sets, which this variable fixes
    if os.environ.get("PYTHONHASHSEED") != "0":
        again = [sys.executable, "-m", "tests.histories.soak", *sys.argv[1:]]
        os.execve(sys.executable, again, os.environ | {"PYTHONHASHSEED": "0"})
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))
    began = time.monotonic()
    with ExitStack() as stack:
        base = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="dpca-histories-", dir=requested.folder)))
        stage = stack.enter_context(_set(base, has_server=not requested.no_server and find_programs() is not None))
        if requested.seed is not None:
            return _notify(stage, requested.seed, name=requested.planted)
        report = _play_all(stage, range(requested.histories))
        for seed, found in sorted(report.found.items()):
            print(f"seed {seed}: {'; '.join(found)}", flush=True)
        if requested.digests:
            print("\n".join(f"seed {seed}: {digest}" for seed, digest in sorted(report.digests.items())))
        names = {"all": [*PLANTS], "none": []}.get(requested.planted, [requested.planted])
        planted = _find_planted(stage, names)
    for name, (part, story) in planted.items():
        verdict = "" if part.is_found else " NOT FOUND"
        print(f"planted {name}: histories={part.histories} violations={len(part.found)}{verdict}")
        print("\n".join(f"    {line}" for line in story.splitlines()))
    points = (*POINTS, *STREAM_POINTS)
    missed = [point for point in points if not report.killed_at[point]]
    print(f"killed at {len(points) - len(missed)} of {len(points)} crash points; not at: {', '.join(missed) or 'none'}")
    print(f"{time.monotonic() - began:.0f} s")
    print(report)
    is_clean = report.histories == requested.histories and not report.found
    return 0 if is_clean and all(part.is_found for part, _ in planted.values()) else 1


@contextmanager
def _set(base: Path, *, has_server: bool) -> Iterator[Stage]:
    """Create the template worlds of all histories, and load everything that this process needs."""
    with ExitStack() as stack:
        server = stack.enter_context(running_server()).url if has_server else ""
        if server:
            # autovacuum takes locks at unpredictable times
            _administer(server, "ALTER SYSTEM SET autovacuum = off", "SELECT pg_reload_conf()")
        templates = {}
        for database in ("file", "server") if server else ("file",):
            for store in ("folder", "objects"):
                name = f"{database}_{store}"
                if database == "server":
                    _administer(server, f"CREATE DATABASE {name}")
                url = f"{server}/{name}" if database == "server" else ""
                templates[database, store] = found_template(base / name / "home", url=url, objects=store == "objects")
        for lane in range(LANES):
            (base / f"lane-{lane}").mkdir()
            if server:
                _administer(server, f"CREATE DATABASE lane_{lane} TEMPLATE server_folder")
        stage = Stage(base=base, templates=templates)
        for place in templates:
            plan = Plan(seed=0, database=place[0], store=place[1], scripts=(), faults=(), switching=0.0)  # type: ignore[arg-type]
            world = stage.world(plan, 0)
            renew(templates[place], world)
            warm_up(world, objects=place[1] == "objects")
        yield stage


def _play_all(stage: Stage, seeds: Sequence[int]) -> Report:
    def job(chunk: Sequence[int]) -> Callable[[int], Report]:
        return lambda lane: _play(stage, chunk, lane)

    report = Report()
    for part in _on_lanes(stage, [job(chunk) for chunk in batched(seeds, CHUNK)]):
        report.add(part)
    return report


def _play(stage: Stage, seeds: Sequence[int], lane: int, *, planted: Planted | None = None) -> Report:
    """Play the histories of some seeds; with a planted fault, stop when it is found."""
    report, known = Report(), dict[tuple[str, str, str], str]()
    for seed in seeds:
        plan = plan_of(seed, on_server=stage.on_server)
        history, found = stage.judged(plan, lane, planted=planted, known=known)
        report.histories += 1
        report.steps += history.scheduler.step
        report.counts += history.counts
        report.killed_at += history.killed_at
        report.digests[seed] = history.scheduler.digest()
        if found:
            report.found[seed] = [*map(str, found)]
            if planted is not None:
                break
    report.known = [*known.items()]
    return report


def _find_planted(stage: Stage, names: Sequence[str]) -> dict[str, tuple[Report, str]]:
    """Look for each planted fault; return the results, and the shortest story of each."""

    def job(name: str) -> Callable[[int], Report]:
        def find(lane: int) -> Report:
            planted, report = PLANTS[name], Report()
            for chunk in batched(range(MOST_PLANTED), MOST_PLANTED):
                report.add(_play(stage, chunk, lane, planted=planted))
            for seed, found in [*report.found.items()]:
                report.found[seed] = [*found, *_shortest(stage, seed, lane, planted).splitlines()]
            report.known = []
            return report

        return find

    reports = _on_lanes(stage, [job(name) for name in names])
    shown = {}
    for name, report in zip(names, reports, strict=True):
        shown[name] = report, "\n".join(line for found in report.found.values() for line in found)
    return shown


def _shortest(stage: Stage, seed: int, lane: int, planted: Planted | None) -> str:
    """Return the shortest story of a failing history."""

    def fails(plan: Plan) -> bool:
        return bool(stage.judged(plan, lane, planted=planted, known={})[1])

    return least(plan_of(seed, on_server=stage.on_server), fails).story()


def _notify(stage: Stage, seed: int, *, name: str) -> int:
    """Play one history, and print its story, answers, violations and last steps."""
    planted, plan = PLANTS.get(name), plan_of(seed, on_server=stage.on_server)
    history, found = stage.judged(plan, 0, planted=planted, known={})
    print(plan.story())
    for call in history.calls:
        answer = call.result if call.result is not None else f"{call.error or 'no answer'} {call.message}"
        print(f"{call.start}-{call.end} {call.process} {call.act if call.act else call.what}: {answer}")
    for who, what in history.scheduler.trace[-SHOWN:]:
        print(f"    {who} {what}")
    if found:
        print(f"least story:\n{_shortest(stage, seed, 0, planted)}")
    print(f"trace {history.scheduler.digest()} of {history.scheduler.step} steps")
    print(f"seed={seed} violations={len(found)} {'; '.join(map(str, found))}")
    sys.stdout.flush()
    return 1 if found else 0


def _on_lanes(stage: Stage, jobs: Sequence[Callable[[int], Report]]) -> list[Report]:
    """Run jobs in child processes, one on each lane at a time; a child that dies counts as a violation."""
    left, running, reports = list(enumerate(jobs)), dict[int, tuple[int, int]](), dict[int, Report]()
    free = list(range(LANES))
    try:
        while left or running:
            while left and free:
                number, job = left.pop(0)
                lane = free.pop(0)
                path = stage.base / f"report-{number}.json"
                path.unlink(missing_ok=True)
                running[start(lambda job=job, lane=lane, path=path: _write(path, job(lane)), group=True)] = number, lane  # type: ignore[misc]
            pid, status = os.wait()
            if pid not in running:
                continue
            number, lane = running.pop(pid)
            free.append(lane)
            path = stage.base / f"report-{number}.json"
            if status == 0 and path.exists():
                reports[number] = Report.from_json(path.read_text())
            else:
                reports[number] = Report(found={-2 - number: [f"the process of job {number} ended with {status}"]})
    finally:
        for pid in running:
            stop(pid, group=True)
    return [reports[number] for number in range(len(jobs))]


def _write(path: Path, report: Report) -> None:
    path.write_text(report.to_json())


def _administer(server: str, *statements: str) -> None:
    with connect_from_outside(f"{server}/postgres") as connection:
        for statement in statements:
            connection.execute(statement.encode())


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    os._exit(status)  # exit without cleanup, so that killed greenlets do not run their handlers


MOST_REPLAYS = 60

Fails = Callable[[Plan], bool]


def least(plan: Plan, fails: Fails) -> Plan:
    """Return a failing plan from which nothing can be removed, or the smallest one after `MOST_REPLAYS` replays."""
    replays, is_smaller = 0, True
    while is_smaller and replays < MOST_REPLAYS:
        is_smaller = False
        for smaller in _smaller(plan):
            replays += 1
            if fails(smaller):
                plan, is_smaller = smaller, True
                break
            if replays == MOST_REPLAYS:
                break
    return plan


def _smaller(plan: Plan) -> Iterator[Plan]:
    """Yield plans with one process, one fault or one action less; the other processes keep their names."""
    for at, script in enumerate(plan.scripts):
        if script:
            yield replace(plan, scripts=(*plan.scripts[:at], (), *plan.scripts[at + 1 :]))
    for at in range(len(plan.faults)):
        yield replace(plan, faults=(*plan.faults[:at], *plan.faults[at + 1 :]))
    for at, script in enumerate(plan.scripts):
        for act in range(len(script)) if len(script) > 1 else ():
            yield replace(
                plan, scripts=(*plan.scripts[:at], (*script[:act], *script[act + 1 :]), *plan.scripts[at + 1 :])
            )
