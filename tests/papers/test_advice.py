"""The advisor compared with runs, on data that ship: a9a and rows in random directions."""

from pathlib import Path

import pytest

from papers import advice


def test_warnings_choices_and_expectations_hold_and_missing_data_are_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(advice, "EPSILONS", (0.1,))
    monkeypatch.setattr(advice, "_SMALL_RUNS", 1)
    found = advice.reproduce(data=tmp_path)
    assert [check for check in found["checks"] if not check["holds"]] == []
    assert len(found["grid"]) == 2 * 5
    assert [each.partition(":")[0] for each in found["left_out"]] == ["mnist", "reuters", "text of 20,958 columns"]
    warned = {row["data"] for row in found["grid"] if row["expects_noise"]}
    assert warned == {"flat"}
