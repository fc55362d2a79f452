"""An ingest killed at any moment leaves a consistent catalog, and the next one completes; two at once do no harm."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest


def run(folder: Path, *kind: str) -> list[dict[str, Any]]:
    ended = subprocess.run(
        [sys.executable, "-m", "tests.flows.killing", str(folder), *kind],
        capture_output=True,
        text=True,
        env={**os.environ, "DPCA_CLUSTER": "none"},
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    return [json.loads(line) for line in ended.stdout.splitlines()]


@pytest.mark.parametrize("moments", [8, pytest.param(12, marks=pytest.mark.audit_only)])
def test_an_ingest_killed_at_random_moments_is_invisible_and_the_next_is_right(tmp_path: Path, moments: int) -> None:
    """Two moments or three of each kind and action; others in `make audit`."""
    found = run(tmp_path, "kill", str(moments))
    assert len(found) == moments
    assert all(ending["right"] for ending in found)
    for ending in found:
        before, after = ending["before"], ending["after"]
        assert before["listed"] == len(before["digests"]) <= 1
        assert after["listed"] == 1
        assert set(after["digests"]) == {ending["digest"]}
        assert (after["hidden"], after["unregistered"], after["scratch"], after["notes"]) == ([], [], [], [])
    assert any(ending["before"]["hidden"] for ending in found if ending["resume"])
    assert any(ending["before"]["hidden"] for ending in found if not ending["resume"])


def test_two_processes_that_ingest_one_name_at_once_do_not_harm_each_other(tmp_path: Path) -> None:
    afresh, resumed, contrary = run(tmp_path, "race")
    for found in (afresh, resumed, contrary):
        assert found["right"]
        assert found["listed"] == 1
        assert (found["hidden"], found["unregistered"], found["notes"]) == ([], [], [])
    assert afresh["statuses"] == resumed["statuses"] == [0, 0]
    assert (afresh["new"], resumed["new"]) == (2, 2)
    assert (contrary["statuses"], contrary["new"]) == ([0, 1], 1)
