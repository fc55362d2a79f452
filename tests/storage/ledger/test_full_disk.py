"""A reservation on a disk that is really full is charged with its key or not at all; no key is without a row."""

import os
from pathlib import Path

import pytest
import sqlalchemy as sa

from storage.backends import crash_points
from storage.database import tables
from storage.database.engine import reading
from storage.errors import Unavailable
from storage.ledger.ledger import Ledger
from storage.workspace import Workspace
from tests.namespaces import isolated, small_disk
from tests.storage.releasing import key_names, open_budget, reserve
from tests.storage.streaming import begin_tick, open_stream, register

SIZE = 2048
"""KiB of the disk."""
LEVELS = (0, 1, 2, 3, 4, 6, 8, 10, 12, 16, 24, 32)
"""Pages of 4 KiB that are free."""


def release_ids(ledger: Ledger) -> set[str]:
    table = tables.release.c
    with reading(ledger.engine) as connection:
        query = sa.select(table.id).where(table.state.in_(("reserved", "noising")), table.snapshot_id != "stream")
        return set(connection.execute(query).scalars())


def fill(home: Path, *, free: int) -> None:
    """Fill a disk up to some free pages."""
    (home / "filler").unlink(missing_ok=True)
    space = os.statvfs(home)
    with (home / "filler").open("wb") as filler:
        os.posix_fallocate(filler.fileno(), 0, max(1, space.f_bavail - free) * space.f_bsize)


def test_no_key_is_left_of_a_reservation_that_found_the_disk_full(home: Path) -> None:
    """At some levels the key cannot be written, at others the row; with a last page or two the release is charged."""

    def body() -> None:
        small_disk(home, kib=SIZE)
        ledger = Workspace.open().ledger
        open_budget(ledger, epsilon=50.0)
        register(ledger)
        open_stream(ledger, ticks=40)
        reserve(ledger, "with room")
        refused = 0
        for free in LEVELS:
            fill(home, free=free)
            for act in (lambda: reserve(ledger, f"run {free}"), lambda: begin_tick(ledger, f"night {free}")):  # noqa: B023
                try:
                    act()
                except Unavailable:
                    refused += 1
                assert key_names(ledger) == release_ids(ledger)
            (home / "filler").unlink()
            for tick in ledger.streams.show("nightly")[1][-1:]:
                ledger.streams.close_tick("nightly", tick.tick)
        assert 4 <= refused < 2 * len(LEVELS)
        assert Workspace.open().ledger.verify() > 0
        assert key_names(ledger) == release_ids(ledger)

    isolated(body)


@pytest.mark.parametrize("point", ["reserve.key_written", "reserve.row_written"])
def test_a_key_of_a_process_that_was_killed_goes_at_the_next_opening(
    sqlite_budget: Ledger, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    class Killed(BaseException):
        """What a test raises in the place of a signal."""

    def die(reached: str) -> None:
        if reached == point:
            raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(crash_points, "hook", die)
        with pytest.raises(Killed):
            reserve(sqlite_budget)
    assert len(key_names(sqlite_budget)) == 1
    Workspace.open()
    assert key_names(sqlite_budget) == set()
