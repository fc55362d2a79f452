"""The verdict of the soak: what counts as having found a planted fault; and the commands of histories.md."""

import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.docs.reader import shell_blocks
from tests.histories.soak import Report

PAGE = Path(__file__).parents[2] / "docs" / "explanation" / "histories.md"


@pytest.mark.parametrize(
    ("found", "expected"),
    [({}, False), ({-3: ["the process of job 1 ended with 9"]}, False), ({-1: ["unlike"]}, False), ({7: ["x"]}, True)],
)
def test_a_planted_fault_is_found_by_a_history_and_not_by_a_process_that_died(
    *, found: dict[int, list[str]], expected: bool
) -> None:
    report = Report(histories=1, counts=Counter(), found=found)
    assert report.is_found is expected
    assert Report.from_json(report.to_json()).is_found is expected


@pytest.mark.audit_only
def test_a_history_is_played_again_by_the_words_of_the_page(tmp_path: Path) -> None:
    lines = "\n".join(shell_blocks(PAGE)).splitlines()
    assert len(lines) == 2
    for line in lines:
        words = line.removeprefix(".venv/bin/python ").split()
        command = [sys.executable, *words, "--no-server", "--folder", str(tmp_path)]
        told = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False).stdout
        assert "seed=41 violations=" in told.splitlines()[-1]
