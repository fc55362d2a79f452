"""Program that kills ingests at random, inspects what they left, and ingests again.

    python -m tests.flows.killing FOLDER (kill MOMENTS|race)

The program has no threads, so that each ingest can be a fork of one warm process. Every printed line is one JSON
object: what a killed ingest left, and the result of the next ingest.
"""

import json
import os
import random
import shutil
import signal
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from dpca.backends.local import LocalPlace
from flows import ingest as _ingest  # noqa: F401 - imported before the process forks
from flows.cli import build_app, main
from storage.datasets.catalog import Catalog
from storage.formats.batch import Rejects, RowBatch, make_canonical
from storage.formats.svmlight import SvmlightParser
from storage.workspace import Workspace
from tests.crash.processes import start, stop, wait_for

SEED = 41
UNFINISHED = 4
"""Number of ingests killed while writing a snapshot, one per kind and action; others are killed at random moments."""
_ROWS, _WIDTH = 800, 30
_DEADLINE = 120.0


def kill_all(folder: Path, moments: int) -> None:
    """Kill ingests of text and triplets at random times, and repeat them, without and with ``--resume``.

    The first ones are killed while they write.
    """
    rng = random.Random(SEED + moments)
    _in_fork(folder, "new", _inspect)
    words = {kind: _words(folder, kind) for kind in ("text", "triplets")}
    expected, seconds = {}, {}
    for kind in words:
        started = time.monotonic()
        expected[kind] = _in_fork(folder, f"calm-{kind}", partial(_again, words[kind]))["digest"]
        seconds[kind] = time.monotonic() - started
    for moment in range(moments):
        kind, resume = ("text", "triplets")[moment % 2], moment // 2 % 2 == 1
        tries = 0
        while _survived(
            folder,
            f"{moment}-{tries}",
            words[kind],
            rng.uniform(0, 0.9**tries * seconds[kind]) if moment >= UNFINISHED else None,
        ):
            tries += 1
        extra = ["--resume"] if resume else []
        found = _in_fork(folder, f"{moment}-{tries}", partial(_again, words[kind] + extra))
        report = {"kind": kind, "resume": resume, "right": found["digest"] == expected[kind]}
        print(json.dumps(found | report), flush=True)


def race(folder: Path) -> None:
    """Run two ingests under one name at the same time: from scratch, after a killed ingest, and for two populations."""
    _in_fork(folder, "new", _inspect)
    words = _words(folder, "text")
    started = time.monotonic()
    calm = _in_fork(folder, "calm", partial(_again, words))["digest"]
    seconds = time.monotonic() - started
    contests: list[list[list[str]]] = [[[], []], [["--resume"]] * 2, [["--population", "p"], ["--population", "q"]]]
    for number, extra in enumerate(contests):
        tries, home = 0, f"race-{number}"
        while number == 1 and _survived(folder, home, words, 0.6 * 0.9**tries * seconds):
            tries += 1
            home = f"race-{number}-{tries}"
        # number of complete snapshots: 1 if the ingest was killed only after it had finished
        already = len(_in_fork(folder, home, _inspect)["digests"])
        first, second = (start(_at_home(folder, home, _ingesting(words + more)), group=True) for more in extra)
        statuses = [wait_for(pid, seconds=_DEADLINE) for pid in (first, second)]
        found = _in_fork(folder, home, _inspect)
        report = {"new": len(found["digests"]) - already, "statuses": sorted(statuses)}
        print(json.dumps(found | report | {"right": set(found["digests"]) == {calm}}), flush=True)


def _words(folder: Path, kind: str) -> list[str]:
    """Write a source file; return the words of the command that ingests it."""
    rng = np.random.default_rng(SEED)
    rows = rng.integers(1, 9, (_ROWS, _WIDTH)) * (rng.random((_ROWS, _WIDTH)) < 0.3)
    command = ["--name", "x", "--features", str(_WIDTH), "--block-nnz", "1000", "--direct", "--json"]
    if kind == "text":
        path = folder / "rows.svm"
        lines = (" ".join(f"{column + 1}:{row[column]}" for column in np.flatnonzero(row)) for row in rows)
        path.write_text("".join(f"1 {line}\n" for line in lines))
    else:
        path = folder / "rows.csv"
        row, column = np.nonzero(rows)
        order = rng.permutation(len(row))
        lines = (f"{row[at]},{column[at]},{rows[row[at], column[at]]}\n" for at in order)
        path.write_text("row,column,value\n" + "".join(lines))
    return ["dataset", "ingest", str(path), *command]


def _survived(folder: Path, home: str, words: Sequence[str], seconds: float | None) -> bool:
    """Kill an ingest after some seconds, or while it writes if ``seconds`` is None.

    Return whether it had finished before.
    """
    pid = start(_at_home(folder, home, _ingesting(words)), group=True)
    if seconds is None:
        while not _is_written(folder / home) and not _ended(pid):
            time.sleep(0.001)
    else:
        time.sleep(seconds)
    os.killpg(pid, signal.SIGKILL)
    finished = wait_for(pid, seconds=_DEADLINE) != -signal.SIGKILL
    return finished or (seconds is None and not _is_written(folder / home))


def _ended(pid: int) -> bool:
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _is_written(home: Path) -> bool:
    """Return whether a snapshot is being written: it has a hidden name until it is complete."""
    return any((home / "datasets/x").glob(".*"))


def _ingesting(words: Sequence[str]) -> Callable[[], None]:
    def ingesting() -> None:
        with open(os.devnull, "w") as nothing, redirect_stdout(nothing):  # noqa: PTH123
            os._exit(main(list(words)))

    return ingesting


def _at_home(folder: Path, home: str, body: Callable[[], None]) -> Callable[[], None]:
    if not (folder / home).exists() and (folder / "new").exists():
        shutil.copytree(folder / "new", folder / home)

    def there() -> None:
        os.environ["DPCA_HOME"] = str(folder / home)
        os.environ["DPCA_STATE_FOLDER"] = str(folder / f"{home}-state")
        body()

    return there


def _in_fork(folder: Path, home: str, body: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Run a function in a fork of this process, and return the function's result."""
    answer = folder / "answer"
    pid = start(_at_home(folder, home, lambda: void(answer.write_text(json.dumps(body())))), group=True)
    try:
        assert wait_for(pid, seconds=_DEADLINE) == 0
    finally:
        stop(pid, group=True)
    return dict(json.loads(answer.read_text()))


def void(_: object) -> None:
    """Discard the argument."""


def _catalog() -> Catalog:
    ledger = Workspace.open().ledger
    return Catalog(ledger.engine, ledger.home, LocalPlace(ledger.home))


def _inspect() -> dict[str, Any]:
    """Return the state of the current home; every registered snapshot is read completely."""
    catalog = _catalog()
    names = sorted(path.name for path in (catalog.home / "datasets/x").glob("*"))
    visible = [name for name in names if not name.startswith(".")]
    digests = [catalog.open(catalog.entry(name)).verify() for name in visible if catalog.has(name)]
    scratch = [path.name for path in (catalog.home / "scratch").glob("*")]
    return {
        "digests": digests,
        "unregistered": [name for name in visible if not catalog.has(name)],
        "listed": len(catalog.entries()),
        "hidden": [name for name in names if name.startswith(".")],
        "scratch": scratch,
        "notes": [path.name for path in (catalog.home / "datasets").glob("x/[!.]*/.*")],
    }


def _again(words: Sequence[str]) -> dict[str, Any]:
    """Inspect the home after a killed ingest, then ingest again and inspect again."""
    before = _inspect()
    with open(os.devnull, "w") as nothing, redirect_stdout(nothing):  # noqa: PTH123
        assert main(list(words)) == 0
    return {"before": before, "after": _inspect(), "digest": _catalog().current("x").content_digest}


def _warm_up() -> None:
    """Import and compile everything that forked ingests use."""
    build_app()
    rows = SvmlightParser(n_features=3, capacity=64).parse(memoryview(b"1 1:1\n"), first_line=1)
    batch = RowBatch(
        values=rows.values,
        indices=rows.indices,
        row_ptr=rows.row_ptr,
        record_ptr=np.arange(2),
        places=rows.lines,
        place="line",
    )
    make_canonical(batch, n_features=3, dtype=np.dtype(np.float64), rejects=Rejects())


if __name__ == "__main__":
    _warm_up()
    if sys.argv[2] == "kill":
        kill_all(Path(sys.argv[1]), int(sys.argv[3]))
    else:
        race(Path(sys.argv[1]))
