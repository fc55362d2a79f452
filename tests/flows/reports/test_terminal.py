"""What is printed where, and who may agree to spend."""

import io
import json
import sys
import time

import pytest
from rich.console import Console

from dpca_tasks.errors import Refused
from flows.reports import terminal
from flows.reports.terminal import confirm, print_facts, print_rows, progress_bar, transfer_bar


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_facts_are_lines_or_one_json_object(capsys: pytest.CaptureFixture[str]) -> None:
    facts = {"name": "sub@1", "epsilon": 1.0, "aliases": ["a", "b"], "none": None, "event": {"name": "gaussian"}}
    print_facts(facts, as_json=True)
    assert json.loads(capsys.readouterr().out) == facts
    print_facts(facts, as_json=False)
    lines = capsys.readouterr().out.splitlines()
    assert lines == [
        "name     sub@1",
        "epsilon  1",
        "aliases  a, b",
        "none     -",
        'event    {"name": "gaussian"}',
    ]


def test_rows_are_a_table_one_json_list_or_a_word(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"artifact": "sub@1", "digest": "d" * 64}, {"artifact": "sub@2", "digest": "e" * 64}]
    print_rows(rows, ("artifact", "digest"), as_json=True, empty="nothing")
    assert json.loads(capsys.readouterr().out) == rows
    print_rows(rows, ("artifact", "digest"), as_json=False, empty="nothing")
    printed = capsys.readouterr().out.splitlines()
    assert [line.split() for line in printed] == [["artifact", "digest"], *([*row.values()] for row in rows)]
    print_rows([], ("artifact",), as_json=False, empty="nothing")
    assert capsys.readouterr().out == "nothing\n"
    print_rows([], ("artifact",), as_json=True, empty="nothing")
    assert json.loads(capsys.readouterr().out) == []


def test_consent_is_given_beforehand_or_at_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    confirm("Spend?", yes=True)
    with pytest.raises(Refused, match="pass --yes"):
        confirm("Spend?", yes=False)
    monkeypatch.setattr(sys, "stderr", _Terminal())
    monkeypatch.setattr(sys, "stdin", _Terminal("y\n"))
    confirm("Spend?", yes=False)
    monkeypatch.setattr(sys, "stdin", _Terminal("n\n"))
    with pytest.raises(Refused, match="not confirmed; nothing was charged"):
        confirm("Spend?", yes=False)


def test_progress_is_silent_where_no_terminal_is(capsys: pytest.CaptureFixture[str]) -> None:
    with progress_bar("summing") as watch:
        watch(1, 2)
        watch(2, 2)
    assert capsys.readouterr() == ("", "")


def test_a_transfer_tells_bytes_rate_and_time_left_at_a_terminal_alone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with transfer_bar() as watch:
        watch("reading", 1, 2)
    assert capsys.readouterr() == ("", "")
    screen = io.StringIO()
    monkeypatch.setattr(terminal, "STDERR", Console(file=screen, force_terminal=True, width=120))
    with transfer_bar() as watch:
        watch("reading", 1_000_000, 4_000_000)
        time.sleep(0.01)
        watch("reading", 2_000_000, 4_000_000)
        watch("grouping", 4_000_000, 4_000_000)
    shown = screen.getvalue()
    for part in ("reading", "grouping", "2.0/4.0 MB", "MB/s", "0:00:0"):
        assert part in shown
