"""Sixty releases in one home cost as much at the end as at the beginning; the count would notice if they did not."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.crash.processes import forked
from tests.crash.soak_home import found, soak
from tests.crash.world import World

RELEASES, FEW = 60, 15


@pytest.mark.audit_only
def test_sixty_releases_leave_nothing_and_cost_the_same(tmp_path: Path) -> None:
    world = World(home=tmp_path / "home")
    world.home.mkdir(mode=0o700)

    def body() -> None:
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

    assert forked(body) == 0
