"""``make bench-ledger``: measure requests to ledger and registry after many releases, and update ``docs/scaling.md``.

``python -m benchmarks.ledger_load [RELEASES ...]`` fills one home folder for each number of releases, with 200
populations. A quarter of the releases belong to one population, and are the versions of one published name. An alias of
this name moved to each version in turn. All measured requests concern this population and name. Each home also has a
dataset with half as many blocks as releases.

Requests are timed in this process, so the start of Python is excluded. The benchmark also counts SQLite steps, the
instructions of SQLite's virtual machine. They grow with the rows read, but do not depend on the load of the machine.
"""

import contextlib
import io
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, Self

import numpy as np
import sqlalchemy as sa
from scipy import sparse

from benchmarks.homes import own_home
from benchmarks.large_homes import (
    LARGEST,
    LARGEST_NAME,
    open_budgets,
    record_of,
    release_at_once,
    release_each,
    request_of,
    subspace_of,
    without_waiting,
)
from benchmarks.table import rewritten
from dpca.artifacts.files import write_artifact
from dpca.home import store
from flows.cli import main as dpca
from storage.database.engine import transaction
from storage.datasets.ingest import ingest
from storage.datasets.ingest_options import IngestOptions
from storage.registry.agreement import alias_history
from storage.registry.publishing import add_version, promote
from storage.workspace import Workspace

SIZES = (1_000, 5_000, 20_000)
POPULATIONS = 200
ROUNDS = 9
MEMORY = Path("/dev/shm")
COMPARED = 50
"""The number of releases in the two homes that are compared row by row."""
PAGE = Path(__file__).parents[1] / "docs" / "scaling.md"
POINTERS = "move an alias, with both pointers"
COMMANDS = {
    f"`dpca {words}`": words
    for words in (
        f"budget show {LARGEST}",
        f"budget history {LARGEST}",
        f"registry history {LARGEST_NAME}",
        "registry list",
        f"registry show {LARGEST_NAME}",
        "dataset list",
        "dataset show rows",
        "doctor",
        "doctor --all",
    )
}
_EVERY = 20  # SQLite calls the step counter once per this number of steps
LINEAR = {POINTERS, "`dpca doctor --all`"}
"""Requests whose time may grow with the number of releases, because they write files of every version or read
everything.
"""
MOST = 2.0
"""The limit of all other requests' time on the largest home, relative to the smallest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """The cost of one request: seconds, SQLite steps and SQL statements."""

    seconds: float
    steps: int
    statements: int


class Gauge:
    """Counters of the SQL statements of this process, and of the SQLite steps that they take."""

    def __init__(self) -> None:
        self.steps = self.statements = 0

    def __enter__(self) -> Self:
        """Start counting statements and steps."""
        sa.event.listen(sa.Engine, "before_cursor_execute", self._count)
        sa.event.listen(sa.pool.Pool, "connect", self._watch)
        return self

    def __exit__(self, *_: object) -> None:
        """Stop counting statements and steps."""
        sa.event.remove(sa.Engine, "before_cursor_execute", self._count)
        sa.event.remove(sa.pool.Pool, "connect", self._watch)

    def _count(self, *_: object) -> None:
        self.statements += 1

    def _watch(self, connection: Any, *_: object) -> None:
        connection.set_progress_handler(self._step, _EVERY)

    def _step(self) -> None:
        self.steps += _EVERY


def make_home(folder: Path, *, releases: int) -> Workspace:
    """Fill a new home with releases, versions, a moved alias and a dataset, and return its workspace."""
    workspace = Workspace.open()
    sparse.save_npz(folder / "rows.npz", sparse.csr_array(np.ones((releases // 2, 1))))
    with without_waiting():
        open_budgets(workspace, POPULATIONS)
        release_at_once(workspace, releases, populations=POPULATIONS)
        with workspace.ledger.transaction() as connection:
            for version in range(1, 1 + releases // 4):
                promote(connection, name=LARGEST_NAME, version=version, alias="champion")
        workspace.rebuild_pointers()
        options = IngestOptions(features=1, block_nnz=1, population=LARGEST)
        ingest(folder / "rows.npz", name="rows", home=workspace.home, engine=workspace.ledger.engine, options=options)
    return workspace


def requests_on(workspace: Workspace) -> Iterator[tuple[str, Callable[[], object]]]:
    """Yield the name and function of each request to measure, in an order in which requests can depend on earlier ones.

    For example, ``begin`` follows ``reserve``, because it begins a reserved release.
    """
    ledger, requested = workspace.ledger, count(1_000_000)
    reserved: list[str] = []
    begun: list[str] = []

    def reserve() -> None:
        reserved.append(ledger.reserve(LARGEST, **request_of(next(requested), LARGEST)).release_id)

    def begin() -> None:
        begun.append(reserved.pop())
        ledger.begin(begun[-1])

    def commit() -> None:
        release_id = begun.pop()

        def record(connection: sa.Connection) -> int:
            return add_version(connection, name=LARGEST_NAME, digest=digests[release_id], release_id=release_id)

        ledger.commit(release_id, artifact_digest=digests[release_id], record=record)

    def moves() -> object:
        with transaction(ledger.engine) as connection:
            return alias_history(connection, LARGEST_NAME, newest=20)

    yield "`reserve`", reserve
    yield "`begin`", begin
    digests = {one: write_artifact(subspace_of(one), home=workspace.home, place=store()) for one in begun}
    yield "`commit`, with a version", commit
    workspace.rebuild_pointers()
    yield POINTERS, lambda: workspace.promote(LARGEST_NAME, version=1 + next(requested) % 5, alias="champion")
    yield "the newest moves of an alias", moves
    yield "open to write", Workspace.open
    yield "open to read", Workspace.read_only
    for name, words in COMMANDS.items():
        yield name, partial(_run, words)


def taken_by(request: Callable[[], object], gauge: Gauge) -> Measured:
    """Call a request once, and return its time, SQLite steps and statements."""
    gauge.steps = gauge.statements = 0
    start = time.perf_counter()
    request()
    return Measured(seconds=time.perf_counter() - start, steps=gauge.steps, statements=gauge.statements)


def measured_in_turn(folders: Mapping[int, Path], gauge: Gauge) -> dict[int, dict[str, Measured]]:
    """Measure each request on every home in turn, so that load on the machine affects all homes alike."""
    found: dict[int, dict[str, Measured]] = {size: {} for size in folders}
    requested = {}
    for size, folder in folders.items():
        with own_home(folder):
            requested[size] = requests_on(Workspace.open())
    while True:
        requests: dict[int, tuple[str, Callable[[], object]]] = {}
        for size, folder in folders.items():
            with own_home(folder), contextlib.suppress(StopIteration):
                requests[size] = next(requested[size])
        if not requests:
            return found
        taken: dict[int, list[Measured]] = {size: [] for size in folders}
        for _ in range(1 + ROUNDS):
            for size, (_, request) in requests.items():
                with own_home(folders[size]):
                    taken[size].append(taken_by(request, gauge))
        for size, (name, _) in requests.items():
            seconds = statistics.median(each.seconds for each in taken[size][1:])  # the first call only fills caches
            found[size][name] = replace(taken[size][-1], seconds=seconds)
            print(f"{size} {name}: {1e3 * seconds:.1f} ms", flush=True)


def compare_homes(folder: Path) -> None:
    """Check that a home filled by `release_at_once` equals a home filled by `release_each`, row by row."""
    records = []
    for name, fill in (("at-once", release_at_once), ("each", release_each)):
        with _home(folder / name):
            workspace = Workspace.open()
            open_budgets(workspace, 8)
            fill(workspace, COMPARED, populations=8)
            workspace.ledger.verify()
            records.append(record_of(workspace))
    if records[0] != records[1]:
        raise SystemExit(
            "homes written by release_at_once differ from homes that the ledger creates; correct large_homes.py."
        )


def grown(found: Mapping[int, Mapping[str, Measured]]) -> dict[str, float]:
    """Return, for each request, its time on the largest home divided by its time on the smallest home."""
    few, many = found[min(found)], found[max(found)]
    return {name: many[name].seconds / first.seconds for name, first in few.items()}


def falls_short(found: Mapping[int, Mapping[str, Measured]]) -> list[str]:
    """Return the requests that took at least `MOST` times as long on the largest home, except those in `LINEAR`."""
    return [name for name, ratio in grown(found).items() if name not in LINEAR and ratio >= MOST]


def table(found: Mapping[int, Mapping[str, Measured]], *, where: str) -> str:
    """Return the measurements as a Markdown table."""
    few, many = min(found), max(found)
    short = falls_short(found)
    verdict = f"not met by {', '.join(short)}" if short else "met"
    lines = [
        f"Measured with SQLite on {os.cpu_count()} cores, with homes in {where}. Times are medians of {ROUNDS} calls",
        f"in milliseconds. In the largest home, a request must take less than {MOST:g} times as long as in the",
        f"smallest, except requests that write all versions or read everything: {verdict}.",
        "",
        f"| releases | {' | '.join(f'{size:,}' for size in found)} | last over first | statements | steps of SQLite |",
        f"|---|{len(found) * '--:|'}--:|--:|--:|",
    ]
    for name, first in found[few].items():
        last = found[many][name]
        cells = [f"{1e3 * found[size][name].seconds:.1f}" for size in found]
        cells += [f"{grown(found)[name]:.1f}", _both(first.statements, last.statements)]
        lines.append(f"| {name} | {' | '.join(cells)} | {_both(first.steps, last.steps)} |")
    return "\n".join(lines) + "\n"


def main(sizes: tuple[int, ...]) -> None:
    """Measure all requests on homes of several sizes, and rewrite the table in ``docs/scaling.md``."""
    memory = str(MEMORY) if MEMORY.is_dir() else None
    with tempfile.TemporaryDirectory(dir=memory) as folder, Gauge() as gauge:
        compare_homes(Path(folder))
        folders = {size: Path(folder) / str(size) for size in sizes}
        for size, home in folders.items():
            with _home(home):
                make_home(Path(folder), releases=size)
                print(f"{size} releases are made", flush=True)
        found = measured_in_turn(folders, gauge)
    results = table(found, where="files" if memory is None else "memory")
    PAGE.write_text(rewritten(PAGE.read_text(encoding="utf-8"), results, name="load"), encoding="utf-8")
    if short := falls_short(found):
        raise SystemExit(f"falls short: {', '.join(short)} took {MOST:g} times as long or longer; see {PAGE.name}.")


@contextlib.contextmanager
def _home(folder: Path) -> Iterator[None]:
    folder.mkdir(mode=0o700)
    with own_home(folder):
        yield


def _run(words: str) -> None:
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        dpca(words.split())


def _both(first: int, last: int) -> str:
    return f"{first:,}" if first == last else f"{first:,} to {last:,}"


if __name__ == "__main__":
    main(tuple(map(int, sys.argv[1:])) or SIZES)
