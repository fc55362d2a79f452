"""Search of everything that successful and failing runs on a real cluster leave: no exact value may occur."""

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from scipy import sparse

from dpca_tasks.mechanisms.base import PrivacyTarget, Problem
from dpca_tasks.mechanisms.subspace import MECHANISMS
from dpca_tasks.queries.second_moment import SecondMoment
from dpca_tasks.records.blocks import ArrayBlocks
from dpca_tasks.sums.exact_sum import exact_sum
from flows.cli import PREFECT_DEFAULTS
from tests.leaks.decoding import pieces_of_tree
from tests.leaks.guessing import RECORD, SMALLEST_TOTAL, Canaries, canaries_of
from tests.leaks.scenario import CLIP_NORM, COMPONENTS, FEATURES

pytestmark = pytest.mark.audit_only

DEADLINE, PATIENCE = 480.0, 60.0  # time limits in seconds, for a busy machine
ROWS = np.vstack(
    [
        np.random.default_rng(20261121).uniform(0.05, 0.7, (240, FEATURES)),
        [[*RECORD, *[0.0] * (FEATURES - len(RECORD))]],
    ]
)
SETTINGS = {
    **PREFECT_DEFAULTS,
    "PREFECT_LOGGING_TO_API_ENABLED": "true",
    "PREFECT_LOGGING_LEVEL": "DEBUG",
    "PREFECT_LOGGING_LOGGERS_PREFECT_FLOW_RUNS_LEVEL": "DEBUG",
    "PREFECT_LOGGING_LOGGERS_PREFECT_TASK_RUNS_LEVEL": "DEBUG",
    "PREFECT_RESULTS_PERSIST_BY_DEFAULT": "true",
}
"""Prefect settings under which a server stores and receives everything; with the defaults it stores a part."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Leftovers:
    """What the scenario left: its folder, and the exit codes of its commands."""

    folder: Path
    endings: dict[str, int]

    def printed(self, label: str, stream: str) -> str:
        return (self.folder / "printed" / f"{label}.{stream}").read_text()


@pytest.fixture(scope="module")
def left(tmp_path_factory: pytest.TempPathFactory) -> Leftovers:
    """Run the scenario in a separate process and folder; return what it left."""
    folder = tmp_path_factory.mktemp("story")
    _write_sources(folder)
    places = {
        "DPCA_HOME": "home",
        "DPCA_STATE_FOLDER": "state",
        "PREFECT_HOME": "prefect",
        "TMPDIR": "tmp",
        "HOME": "user",
    }
    (folder / "tmp").mkdir()
    (folder / "user").mkdir()
    (folder / "output").mkdir()
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("DPCA_", "PREFECT_", "DASK_"))
    }
    environment |= {name: str(folder / place) for name, place in places.items()} | SETTINGS
    command = [sys.executable, "-W", "error", "-m", "tests.leaks.scenario", str(folder)]
    with (folder / "output" / "out").open("wb") as out, (folder / "output" / "err").open("wb") as err:
        process = subprocess.Popen(
            command, env=environment, cwd=Path(__file__).parents[2], stdout=out, stderr=err, start_new_session=True
        )
        try:
            status = process.wait(timeout=DEADLINE)
            survivors = _wait_for_session(process.pid)
        finally:
            _kill_session(process.pid)
            process.wait()
    assert status == 0, (folder / "output" / "err").read_text()[-4000:]
    assert survivors == []
    return Leftovers(folder=folder, endings=json.loads((folder / "endings.json").read_text()))


def _write_sources(folder: Path) -> None:
    lines = [
        "1 " + " ".join(f"{at + 1}:{value!r}" for at, value in enumerate(row.tolist()) if value) + "\n" for row in ROWS
    ]
    (folder / "good.svm").write_text("".join(lines))
    (folder / "malformed.svm").write_text("".join(lines) + lines[-1].rstrip() + " 8:oops\n")
    (folder / "quoted.svm").write_text("".join(lines) + f"1 1:{RECORD[0]!r}x\n")


def _processes_of(session: int) -> list[str]:
    found = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            name, _, rest = status.read_text().partition("(")[2].rpartition(")")
        except OSError:
            continue
        state, _, _, sid = rest.split()[:4]
        if int(sid) == session and state != "Z":
            found.append(f"{status.parent.name} {name}")
    return found


def _wait_for_session(session: int) -> list[str]:
    deadline = time.monotonic() + PATIENCE
    while (found := _processes_of(session)) and time.monotonic() < deadline:
        time.sleep(0.1)
    return found


def _kill_session(session: int) -> None:
    for line in _processes_of(session):
        try:
            os.kill(int(line.split()[0]), signal.SIGKILL)
        except ProcessLookupError:
            continue


@pytest.fixture(scope="module")
def canaries() -> Canaries:
    """Return canaries of a record and of the exact sums, on the grid of the plan and in data units."""
    target = PrivacyTarget(epsilon=1.0, delta=1e-6)
    problem = Problem(n_features=FEATURES, clip_norm=CLIP_NORM)
    plan = MECHANISMS["analyze_gauss"](n_components=COMPONENTS).plan(problem, target)
    query = SecondMoment(n_features=FEATURES, clip_norm=CLIP_NORM, relation="add_remove", bits=plan.bits)
    totals = exact_sum(ArrayBlocks(sparse.csr_array(ROWS)), query)
    assert np.count_nonzero(totals >= SMALLEST_TOTAL) >= 30
    gridded = totals / query.steps_per_unit * query.unit
    real = (ROWS.T @ ROWS)[np.triu_indices(FEATURES)]
    return canaries_of([*RECORD, *gridded.tolist(), *real.tolist()], totals.tolist())


def _alarms(folder: Path, canaries: Canaries, *, without: frozenset[str] = frozenset()) -> list[str]:
    pieces = pieces_of_tree(folder, without=without)
    return [f"{place}: {what}" for place, piece in pieces for what in canaries.found_in(piece)]


def test_the_scenario_had_the_expected_exit_codes(left: Leftovers) -> None:
    well = {"ingest", "budget", "fit", "fit-again"}
    assert left.endings == {label: int(label not in well) for label in left.endings}
    assert "line 242: the value of '8:oops' is not a number" in left.printed("ingest-malformed", "err")
    assert "unexpected RuntimeError at scenario.py" in left.printed("fit-that-breaks", "err")
    assert "fold-" in (left.folder / "dask" / "0.txt").read_text()
    assert len(left.endings) == 11
    assert "a block could not be summed" in left.printed("fit-on-a-damaged-block", "err")
    assert "BudgetExhausted: budget 'people'" in left.printed("fit-over-budget", "err")
    assert list(left.folder.glob("home/staging/*/0-*.npz")), "the step that was answered stays, noised"
    assert len([*(left.folder / "dask").iterdir()]) == 3, "and one fit broke in the command's own process"


def test_prefect_stored_runs_and_logs_that_can_be_searched(left: Leftovers) -> None:
    connection = sqlite3.connect(left.folder / "prefect" / "prefect.db")
    states = {name for (name,) in connection.execute("SELECT state_name FROM flow_run")}
    keys = {key for (key,) in connection.execute("SELECT key FROM artifact")}
    logs = connection.execute("SELECT count(*) FROM log").fetchone()[0]
    connection.close()
    assert states == {"Completed", "Refused", "StageFailed", "BudgetExhausted", "Unavailable"}
    assert keys == {"release-sub", "release-other", "budget-people", "refusal-people"}
    assert logs > 0


def test_no_exact_value_is_left_anywhere(left: Leftovers, canaries: Canaries) -> None:
    """Search home, Prefect, temporary and scratch files, output and schedulers: no canary may occur.

    Sources and datasets are excluded.
    """
    assert _alarms(left.folder / "home", canaries, without=frozenset({"datasets"})) == []
    for place in ("prefect", "tmp", "user", "output", "dask"):
        assert _alarms(left.folder / place, canaries) == [], place
    printed = _alarms(left.folder / "printed", canaries)
    # The curator who ingests may see a malformed value in the error message.
    assert [alarm for alarm in printed if not alarm.startswith("ingest-quoted.err: ")] == []


def test_the_search_finds_canaries_in_the_source_files(left: Leftovers, canaries: Canaries) -> None:
    assert any(alarm.startswith("good.svm: ") for alarm in _alarms(left.folder, canaries, without=_ALL_BUT_SOURCES))


def test_content_digest_and_snapshot_id_are_not_published(left: Leftovers) -> None:
    ingested = json.loads(left.printed("ingest", "out"))
    for secret in (ingested["content_digest"], ingested["snapshot"]):
        for place in ("prefect", "home/registry", "output", "dask"):
            pieces = pieces_of_tree(left.folder / place)
            assert [where for where, piece in pieces if isinstance(piece, bytes) and secret.encode() in piece] == []
        for path in (left.folder / "printed").glob("fit*"):
            assert secret not in path.read_text()


def test_the_scenario_program_prints_nothing(left: Leftovers) -> None:
    assert (left.folder / "output" / "out").read_bytes() == b""


_ALL_BUT_SOURCES = frozenset({"home", "prefect", "tmp", "user", "output", "dask", "printed"})
