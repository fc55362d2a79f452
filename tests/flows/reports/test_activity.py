"""Progress reports, the terminal line, and budget shares.

Progress must reach waiting callers, and a process updates one line on a terminal. Shares of a budget are verified by
reserving them: every run is admitted, and with the next larger float the last is refused.
"""

import io
import itertools
import json
import math
import os
import pty
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dpca.errors import BudgetExhausted
from dpca_tasks.accounting.calibration import gaussian_noise_multiplier
from dpca_tasks.accounting.events import approximate, gaussian, non_private, poisson_sampled, self_composed
from flows.reports import activity as module
from flows.reports import heartbeat
from flows.reports.activity import Activity, activity, begin_step, plain_line, report_parts
from flows.reports.budget_facts import pacing_facts, runs_that_fit, written_share
from flows.reports.heartbeat import clock as heartbeat_clock
from flows.reports.heartbeat import line_of
from storage.ledger.ledger import Ledger
from storage.workspace import Workspace
from tests.flows.conftest import Command


class Clock:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def reported() -> list[tuple[str, str]]:
    return []


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def seen(reported: list[tuple[str, str]], clock: Clock) -> Activity:
    notify: Callable[[str, str], None] = lambda doing, far: reported.append((doing, far))  # noqa: E731
    return Activity("starting", notify, monotonic=clock)


def test_parts_are_counted_and_the_time_left_follows_from_those_done(
    seen: Activity, reported: list[tuple[str, str]], clock: Clock
) -> None:
    seen.step("summing")
    seen.parts(1, 4)
    clock.now = 10.0
    seen.step("summing")  # reporting the same step again must not change its start time
    seen.parts(2, 4)
    seen.parts(4, 4)
    seen.parts(5, None)
    assert reported == [
        ("summing", ""),
        ("summing", "1 of 4"),
        ("summing", "2 of 4, about 0:00:10 left"),
        ("summing", "4 of 4"),
        ("summing", "5"),
    ]


def test_a_transfer_reports_rows_bytes_rate_and_remaining_time_of_each_phase(
    seen: Activity, reported: list[tuple[str, str]], clock: Clock
) -> None:
    seen.transfer("reading", 0, 4_000_000, 0)
    clock.now = 2.0
    seen.transfer("reading", 1_000_000, 4_000_000, 12_345)
    seen.transfer("grouping", 4_000, 4_000, 1)
    assert reported[1:] == [
        ("reading", "0 rows, 0 B of 4.0 MB"),
        ("reading", "12,345 rows, 1.0 MB of 4.0 MB, 500.0 kB/s, about 0:00:06 left"),
        ("grouping", ""),
        ("grouping", "1 rows, 4.0 kB of 4.0 kB"),
    ]


def test_rows_without_an_end_are_counted(seen: Activity, reported: list[tuple[str, str]]) -> None:
    seen.rows(1_234_567)
    assert reported[-1] == ("starting", "1,234,567 rows")


def test_without_a_terminal_a_short_activity_prints_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with activity("summing") as seen:
        seen.parts(1, 2)
        begin_step("publishing")
    begin_step("nobody watches")
    report_parts(1, 2)
    assert capsys.readouterr() == ("", "")


def test_without_a_terminal_a_long_activity_prints_occasional_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = os.pipe()
    with os.fdopen(theirs, "w") as log, os.fdopen(ours) as lines:
        monkeypatch.setattr(sys, "stderr", log)
        monkeypatch.setattr(module, "PLAIN_EVERY", 0.01)
        with activity("summing") as seen:
            seen.parts(1, 2)
            begin_step("publishing")
            assert re.fullmatch(r"(summing|summing: 1 of 2|publishing) \(0:\d\d:\d\d\)\n", lines.readline())
            while not lines.readline().startswith("publishing ("):
                pass
    assert plain_line("publishing", "3 of 8", seconds=71.0) == "publishing: 3 of 8 (0:01:11)"


@pytest.mark.parametrize("form", ["text", "json"])
def test_a_requested_log_has_no_other_lines(monkeypatch: pytest.MonkeyPatch, form: str) -> None:
    monkeypatch.setenv("DPCA_LOG", form)
    monkeypatch.setattr(module, "PLAIN_EVERY", 0.0)
    screen = io.StringIO()
    monkeypatch.setattr(sys, "stderr", screen)
    with activity("summing") as seen:
        seen.parts(1, 2)
    assert screen.getvalue() == ""
    started: list[object] = []
    monkeypatch.setattr(module, "_is_terminal", lambda: True)
    monkeypatch.setattr(subprocess, "Popen", started.append)
    with activity("summing") as seen:
        seen.parts(1, 2)
    assert started == []


def test_an_activity_inside_another_is_a_step_of_it(capsys: pytest.CaptureFixture[str]) -> None:
    with activity("ingesting") as outer, activity("summing") as inner:
        assert inner is outer
        assert outer.doing == "summing"
    assert capsys.readouterr() == ("", "")


def test_at_a_terminal_one_line_is_updated_and_finally_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = pty.openpty()
    with os.fdopen(theirs, "w") as screen:
        monkeypatch.setattr(sys, "stderr", screen)
        shown = b""
        with activity("summing") as seen:
            seen.parts(1, 2)
            while b"summing: 1 of 2, 0:00:0" not in shown:
                shown += os.read(ours, 4096)
            begin_step("publishing")
            while b" publishing, 0:00:00" not in shown:
                shown += os.read(ours, 4096)
    shown = os.read(ours, 4096)
    os.close(ours)
    assert shown.endswith(b"\r\x1b[K")


def started(terminal: int) -> subprocess.Popen[bytes]:
    words = [sys.executable, "-I", "-S", str(Path(heartbeat.__file__))]
    return subprocess.Popen(words, stdin=subprocess.PIPE, stderr=terminal)


def read_until(terminal: int, text: str) -> str:
    shown = b""
    while text.encode() not in shown:
        shown += os.read(terminal, 4096)
    return shown.decode()


def test_a_line_states_step_progress_and_duration_within_the_terminal_width() -> None:
    assert line_of("summing", "3 of 8", seconds=3675.0, turn=1, width=80) == "⠙ summing: 3 of 8, 1:01:15"
    assert line_of("publishing", "", seconds=0.2, turn=10, width=80) == "⠋ publishing, 0:00:00"
    assert len(line_of("summing", "x" * 200, seconds=0.0, turn=0, width=40)) == 40
    assert heartbeat_clock(59.9) == "0:00:59"


def test_the_line_is_updated_between_reports_and_removed_at_the_end() -> None:
    ours, theirs = pty.openpty()
    drawing = started(theirs)
    assert drawing.stdin is not None
    drawing.stdin.write(b"summing\t1 of 4\n")
    drawing.stdin.flush()
    assert "⠋ summing: 1 of 4, 0:00:0" in read_until(ours, "summing: 1 of 4")
    read_until(ours, "⠙ summing: 1 of 4")
    drawing.stdin.write(b"publi")
    drawing.stdin.write(b"shing\t\n")
    drawing.stdin.flush()
    assert "1 of 4, " not in read_until(ours, " publishing, 0:00:00").rpartition("\r\x1b[K")[2]
    drawing.send_signal(signal.SIGINT)  # Ctrl-C reaches all processes of a terminal
    read_until(ours, " publishing, ")
    drawing.stdin.close()
    assert drawing.wait(timeout=30) == 0
    os.close(theirs)
    assert os.read(ours, 4096).endswith(b"\r\x1b[K")
    os.close(ours)


DELTA = 1e-6
MIXED = (
    (approximate(0.25, 0.0), 0.25),
    (gaussian(gaussian_noise_multiplier(epsilon=1.2, delta=DELTA)), 1.2),
    (approximate(0.125, 1e-8), 0.125),
    (self_composed(poisson_sampled(gaussian(2.0), 0.01), 50), 0.5),
)
NUMBERS = itertools.count()
HALF = ((gaussian(gaussian_noise_multiplier(epsilon=2.4, delta=DELTA)), 2.4),)


@pytest.fixture
def ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ledger:
    """Return the ledger of an empty home."""
    monkeypatch.setenv("DPCA_HOME", str(tmp_path / "home"))
    return Workspace.open().ledger


def reserve(ledger: Ledger, population: str, event: Any, *, epsilon: float, delta: float = DELTA) -> None:
    what: dict[str, Any] = {"fingerprint": "f", "snapshot_id": "s" * 32, "request": {}}
    key = f"{population} {next(NUMBERS)}"
    ledger.reserve(population, run_key=key, event=event, epsilon=epsilon, delta=delta, void=True, **what)


def run(ledger: Ledger, population: str, *, epsilon: float, delta: float) -> None:
    """Reserve one Gaussian release at a target, as a mechanism requests it."""
    event = gaussian(gaussian_noise_multiplier(epsilon=epsilon, delta=delta))
    reserve(ledger, population, event, epsilon=epsilon, delta=delta)


@pytest.mark.parametrize(
    ("filter_", "relation", "before", "runs", "delta"),
    [
        ("gdp", "add_remove", (), 52, None),
        ("renyi", "add_remove", HALF, 52, None),
        ("gdp", "zero_out", MIXED, 12, None),
        ("gdp", "replace_one", MIXED, 12, 1e-9),
        ("renyi", "zero_out", MIXED, 12, 1e-9),
        ("renyi", "replace_one", MIXED, 12, None),
    ],
)
def test_all_runs_are_admitted_and_with_the_next_float_the_last_is_refused(
    ledger: Ledger, filter_: str, relation: str, before: tuple[Any, ...], runs: int, delta: float | None
) -> None:
    for population in ("exact", "next"):
        ledger.open_budget(population, epsilon=4.0, delta=DELTA, filter=filter_, relation=relation)
        for event, epsilon in before:
            reserve(ledger, population, event, epsilon=epsilon, delta=2e-8)
    facts = pacing_facts(ledger, "exact", runs=runs, delta=delta)
    each, delta = facts["epsilon_each"], facts["delta_each"]
    assert facts["state"] == "open"
    assert runs_that_fit(ledger, "exact", epsilon=each, delta=delta) == runs
    for _ in range(runs):
        run(ledger, "exact", epsilon=each, delta=delta)
    assert ledger.statement("exact").remaining == facts["after"]
    more = math.nextafter(each, math.inf)
    for _ in range(runs_that_fit(ledger, "next", epsilon=more, delta=delta)):
        run(ledger, "next", epsilon=more, delta=delta)
    with pytest.raises(BudgetExhausted):
        run(ledger, "next", epsilon=more, delta=delta)
    assert len(ledger.statement("next").releases) == len(before) + runs - 1


def test_shares_computed_again_before_every_run_stay_equal(ledger: Ledger) -> None:
    """Compute the share of each of 12 runs from the remaining budget: shares stay equal, and all runs are admitted."""
    ledger.open_budget("people", epsilon=4.0, delta=DELTA)
    shares = []
    for left in range(12, 0, -1):
        shares.append(written_share(pacing_facts(ledger, "people", runs=left)["epsilon_each"]))
        run(ledger, "people", epsilon=shares[-1], delta=DELTA)
    assert shares == pytest.approx([shares[0]] * 12, rel=1e-7)
    assert pacing_facts(ledger, "people", runs=1)["remaining"] < 1e-3


def test_a_printed_share_is_rounded_down_by_at_most_one_part_in_1e8() -> None:
    for share in (0.46594812345678, 1.0, 0.1 + 0.2, 3.9999999999999996, 1e-5 / 3):
        assert share * (1 - 1e-8) <= written_share(share) <= share
        assert float(f"{written_share(share):.9g}") == written_share(share)
    assert written_share(0.0) == 0.0


def test_a_budget_that_admits_nothing_states_the_reason(ledger: Ledger) -> None:
    for population, (event, epsilon) in {
        "spent": (approximate(4.0, 0.0), 4.0),
        "void": (non_private(), math.inf),
    }.items():
        ledger.open_budget(population, epsilon=4.0, delta=DELTA)
        reserve(ledger, population, event, epsilon=epsilon)
    ledger.open_budget("rest", epsilon=4.0, delta=DELTA)
    facts = {
        (population, runs): pacing_facts(ledger, population, runs=runs)
        for population, runs in itertools.product(("spent", "void", "rest"), (1, 2**57))
    }
    assert {at: found["state"] for at, found in facts.items()} == {
        **{("spent", runs): "exhausted" for runs in (1, 2**57)},
        **{("void", runs): "voided" for runs in (1, 2**57)},
        **{("rest", runs): "open" for runs in (1, 2**57)},
    }
    assert {at for at, found in facts.items() if found["epsilon_each"] > 0} == {("rest", 1)}


def test_the_command_prints_the_share_and_json_the_exact_one(dpca: Command) -> None:
    ledger = Workspace.open().ledger
    ledger.open_budget("people", epsilon=4.0, delta=DELTA)
    facts = pacing_facts(ledger, "people", runs=52)
    printed = dpca("budget", "pace", "people", "--runs", "52")
    assert (printed.status, printed.err) == (0, "")
    requested = float(printed.out.split("epsilon_each")[1].split()[0])
    assert requested == written_share(facts["epsilon_each"])
    assert json.loads(dpca("budget", "pace", "people", "--runs", "52", "--json").out) == facts
    reserve(ledger, "people", approximate(4.0, 0.0), epsilon=4.0)
    gone = dpca("budget", "pace", "people", "--runs", "52")
    assert gone.status == 0
    assert "budget 'people' is exhausted" in gone.err
    assert "delta=2.0 must be in (0, 1)" in dpca("budget", "pace", "people", "--runs", "2", "--delta", "2").complaint(1)
    assert "has no budget" in dpca("budget", "pace", "strangers", "--runs", "2").complaint(1)
