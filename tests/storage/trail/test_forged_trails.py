"""Every part of an exported trail counts: dropped, changed, duplicated, reordered, or taken from another ledger."""

from pathlib import Path

import pytest

from storage.errors import Corrupt
from storage.trail.verification import verify_trail
from tests.forger import forgeries
from tests.storage.trail.forging import Trail, exported, two_populations


def made(folder: Path) -> Trail:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DPCA_HOME", str(folder / "home"))
        patch.setenv("DPCA_STATE_FOLDER", str(folder / "state"))
        return exported(two_populations())


def is_refused(trail: Trail, key: str) -> bool:
    """Tell whether it is refused in one line."""
    try:
        verify_trail(trail, key=key)
    except Corrupt as refused:
        return "\n" not in str(refused)
    return False


def test_every_forged_part_of_a_trail_is_refused_in_one_line(tmp_path: Path) -> None:
    trail, other = made(tmp_path / "one"), made(tmp_path / "other")
    key = trail["checkpoints"][0]["key"]
    verify_trail(trail, key=key)
    accepted: list[str] = []
    count = 0
    for way, forged in forgeries(trail, other):
        count += 1
        accepted += [] if is_refused(forged, key) else [way]
    assert count > 300
    assert accepted == []
