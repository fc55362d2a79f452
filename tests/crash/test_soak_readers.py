"""The soak of readers in small, on both databases; `tests.storage.database.test_reading` plants reads of two states."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.crash.soak_readers import is_sound, soak
from tests.crash.world import World
from tests.storage.conftest import DATABASES


@pytest.fixture(params=DATABASES)
def world(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    for name in ("DPCA_HOME", "DPCA_STATE_FOLDER", "DPCA_DATABASE_URL", "DPCA_KEY_FOLDER"):
        monkeypatch.setenv(name, "")  # what it was comes back afterwards
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    if request.param == "sqlite":
        yield World(home=home)
        return
    with request.getfixturevalue("postgres").database() as url:
        yield World(home=home, url=url)


def test_readers_among_writers_raise_no_false_alarm_and_still_find_damage(world: World) -> None:
    counts = soak(world, writers=2, readers=3, seconds=2.0)
    assert is_sound(counts), counts
