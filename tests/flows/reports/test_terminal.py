"""What is printed where, and who may agree to spend."""

import io
import json
import sys

import pytest

from dpca_tasks.errors import Refused
from flows.reports.terminal import confirm, print_facts, print_rows


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
    with pytest.raises(Refused, match=r"\(Spend\?\); pass --yes"):
        confirm("Spend?", yes=False)
    monkeypatch.setattr(sys, "stderr", _Terminal())
    monkeypatch.setattr(sys, "stdin", _Terminal("y\n"))
    confirm("Spend?", yes=False)
    monkeypatch.setattr(sys, "stdin", _Terminal("n\n"))
    with pytest.raises(Refused, match="not confirmed; nothing was charged"):
        confirm("Spend?", yes=False)
    monkeypatch.setattr(sys, "stdin", _Terminal("\n"))
    with pytest.raises(Refused, match="not confirmed; nothing was charged"):
        confirm("Spend?", yes=False)  # no by default
