"""What is told to whoever waits."""

import io
import os
import pty
import re
import subprocess
import sys
from collections.abc import Callable

import pytest

from flows.reports import activity as module
from flows.reports.activity import Activity, activity, begin_step, plain_line, tell_parts


class Clock:
    """Seconds that pass when a test says so."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def told() -> list[tuple[str, str]]:
    return []


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def seen(told: list[tuple[str, str]], clock: Clock) -> Activity:
    tell: Callable[[str, str], None] = lambda doing, far: told.append((doing, far))  # noqa: E731
    return Activity("starting", tell, monotonic=clock)


def test_parts_are_counted_and_the_time_left_follows_from_those_done(
    seen: Activity, told: list[tuple[str, str]], clock: Clock
) -> None:
    seen.step("summing")
    seen.parts(1, 4)
    clock.now = 10.0
    seen.step("summing")  # said again, it began when it began
    seen.parts(2, 4)
    seen.parts(4, 4)
    seen.parts(5, None)
    assert told == [
        ("summing", ""),
        ("summing", "1 of 4"),
        ("summing", "2 of 4, about 0:00:10 left"),
        ("summing", "4 of 4"),
        ("summing", "5"),
    ]


def test_a_transfer_tells_rows_bytes_rate_and_time_left_phase_by_phase(
    seen: Activity, told: list[tuple[str, str]], clock: Clock
) -> None:
    seen.transfer("reading", 0, 4_000_000, 0)
    clock.now = 2.0
    seen.transfer("reading", 1_000_000, 4_000_000, 12_345)
    seen.transfer("grouping", 4_000, 4_000, 1)
    assert told[1:] == [
        ("reading", "0 rows, 0 B of 4.0 MB"),
        ("reading", "12,345 rows, 1.0 MB of 4.0 MB, 500.0 kB/s, about 0:00:06 left"),
        ("grouping", ""),
        ("grouping", "1 rows, 4.0 kB of 4.0 kB"),
    ]


def test_rows_without_an_end_are_counted(seen: Activity, told: list[tuple[str, str]]) -> None:
    seen.rows(1_234_567)
    assert told[-1] == ("starting", "1,234,567 rows")


def test_what_is_short_is_silent_where_no_terminal_is(capsys: pytest.CaptureFixture[str]) -> None:
    with activity("summing") as seen:
        seen.parts(1, 2)
        begin_step("publishing")
    begin_step("nobody watches")
    tell_parts(1, 2)
    assert capsys.readouterr() == ("", "")


def test_what_is_long_writes_a_plain_line_now_and_then_where_no_terminal_is(monkeypatch: pytest.MonkeyPatch) -> None:
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
def test_a_log_that_is_asked_for_holds_no_other_lines(monkeypatch: pytest.MonkeyPatch, form: str) -> None:
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


def test_at_a_terminal_one_line_moves_and_is_gone_when_the_work_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
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
