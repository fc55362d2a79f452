"""Soak of one home: sixty releases cost as much at the end as at the start, and a planted difference is detected."""

import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest

from tests.crash.soak_home import found, soak
from tests.crash.world import World

ROOT = Path(__file__).parents[2]
RELEASES, FEW = 60, 15


@pytest.mark.audit_only
def test_sixty_releases_leave_nothing_and_have_constant_cost(tmp_path: Path) -> None:
    """Run `check` in a separate process without other threads, because `check` starts a Dask cluster."""
    run = [sys.executable, "-m", "tests.crash.test_soak_home", str(tmp_path / "home")]
    done = subprocess.run(run, cwd=ROOT, capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, done.stderr


def check(home: Path) -> None:
    """Make sixty releases and check their samples; then check samples changed for the worse, which must be reported."""
    world, temporary = World(home=home), home.with_name("temporary")
    for folder in (world.home, temporary):
        folder.mkdir(mode=0o700)
    tempfile.tempdir = str(temporary)  # a temporary folder in which no other process leaves files
    samples = soak(world, releases=RELEASES, few=FEW)
    assert found(world, samples, releases=RELEASES, few=FEW) == []
    *others, last = samples
    slow = replace(last, seconds=2 * last.seconds)
    left = replace(last, files=last.files + 1)
    large = replace(last, sizes={part: 2 * size for part, size in last.sizes.items()})
    for worse in (slow, left, large):
        assert found(world, [*others, worse], releases=RELEASES, few=FEW), worse
    (world.home / "staging" / "left").mkdir(parents=True)
    assert found(world, samples, releases=RELEASES, few=FEW) == [f"left: {world.home / 'staging' / 'left'}"]


if __name__ == "__main__":
    check(Path(sys.argv[1]))
