"""Crash tests of releases: faults of every kind cost nothing and lose nothing, and planted ledger errors are counted.

`make integration` crashes at every point, in every way, on both databases. A release is charged once, and its bytes are
the same, if the home becomes read-only or the clock jumps during the release.
"""

import ctypes
import json
import os
import re
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sqlalchemy as sa

from dpca.artifacts.files import write_artifact
from dpca.artifacts.subspace import PrivateSubspace
from dpca.backends.atomic_files import POINTS
from storage.database import tables
from storage.ledger import journal, releases
from storage.workspace import Workspace
from tests.crash.faults import Place, Undisturbed, recorder, trace
from tests.crash.processes import UNAVAILABLE, forked
from tests.crash.recount import Tally, recount
from tests.crash.soak import OTHERS, plan_kinds
from tests.crash.world import POPULATION, Hook, World, attempt, found_world, open_budget, recover, request_of, warm_up

_OVERRIDE, _READ_SEARCH, _VERSION_3 = 1, 2, 0x20080522
UNLOCKED = ("reserve.row_committed", "keep.file_written", "artifact.staged")
"""Crash points with no open transaction, where a second process need not wait and files may be incomplete."""
LONGEST = timedelta(hours=400)
JUMPS = tuple(timedelta(hours=hours) for hours in (-72, 3, -1, 30, -400, 399, 0))


def obey_modes() -> None:
    """Drop the capabilities by which root bypasses the modes of files and folders."""
    header, sets = (ctypes.c_uint32 * 2)(_VERSION_3, 0), (ctypes.c_uint32 * 6)()
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.capget(header, sets) == 0
    for place in range(3):  # clears capabilities 0 to 31 of the process: effective, permitted and inheritable ones
        sets[place] &= ~(1 << _OVERRIDE | 1 << _READ_SEARCH)
    assert libc.capset(header, sets) == 0


def lock_folders(root: Path) -> None:
    """Remove the write permission from a folder and from all folders below it."""
    for folder in (*(path for path in root.rglob("*") if path.is_dir()), root):
        folder.chmod(0o500)


def unlock_folders(root: Path) -> None:
    """Restore the write permission."""
    for folder in (root, *(path for path in root.rglob("*") if path.is_dir())):
        folder.chmod(0o700)


def jumping(world: World, jumps: Sequence[timedelta] = JUMPS) -> Hook:
    """Return a crash hook that moves the clock by the next offset, and may let a second process open the home.

    At crash points without an open transaction, the second process opens the home with its clock far ahead. On opening,
    the second process finishes or removes files that look like leftovers of an old crash. It must not touch a file that
    the running process is still writing, although the file looks old to it.
    """
    reached = 0

    def hook(point: str) -> None:
        nonlocal reached
        offset, reached = jumps[reached % len(jumps)], reached + 1
        real: Callable[[], float] = time.time

        def check_changes() -> None:
            vars(journal)["now"] = lambda: stamp(LONGEST)
            vars(time)["time"] = lambda: real() + LONGEST.total_seconds()
            world.enter()
            Workspace.open()

        vars(journal)["now"] = lambda: stamp(offset)
        if point in UNLOCKED:
            assert forked(check_changes) == 0

    return hook


def stamp(offset: timedelta) -> str:
    """Return the time of a clock with an offset, in the format of the journal."""
    return (datetime.now(UTC) + offset).isoformat(timespec="microseconds")


ROOT = Path(__file__).parents[2]


KINDS = ("kill", *(kind for kind in OTHERS if kind != "crowd"))
"""Faults of this test. A crowd is eight rivals of one run, and is left to `make integration`."""
_OF_DASK = re.compile(r"[\d-]{10} [\d:,]{12} - distributed\.\w+ - (WARNING|ERROR) - Couldn't gather ")
"""A log line of Dask about workers that were killed on purpose."""


@pytest.mark.audit_only
def test_every_kind_of_fault_costs_and_loses_nothing() -> None:
    """Run the crash soak with one fault of each kind, and check its counts of ledger errors.

    So few faults do not reach all crash points, so the soak itself exits with an error.
    """
    done = subprocess.run(
        [sys.executable, "-m", "tests.crash.soak", "--even", "--sqlite", str(len(KINDS)), "--postgres", "0"],
        cwd=ROOT,
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=400,
        start_new_session=True,
    )
    assert [line for line in done.stderr.splitlines() if not _OF_DASK.match(line)] == []
    verdict = f"crashes={len(KINDS)} overspent=0 double=0 lost=0 digests_equal={len(KINDS)}"
    kinds = ", ".join(f"1 {kind}" for kind in KINDS)
    assert done.stdout.splitlines()[0] == f"SQLite: {verdict} ({kinds})", done.stdout
    assert done.stdout.splitlines()[-1] == verdict, done.stdout


def test_the_integration_soak_has_every_kind_of_fault_and_a_kill_at_every_crash_point() -> None:
    (requested,) = re.findall(r"soak --even --sqlite (\d+) --postgres (\d+)", (ROOT / "Makefile").read_text())
    here, there = (
        Counter(plan_kinds(int(count), is_even=True, on_server=on_server))
        for count, on_server in zip(requested, (False, True), strict=True)
    )
    assert set(here) == {"kill", *OTHERS}
    assert set(there) == {*here} - {"restored"}
    assert here["kill"] >= len(POINTS)


class TestRecount:
    """Tests of `recount`: one error at a time is planted in a hand-made ledger with one release and no triggers."""

    def test_a_correct_world_has_no_errors(self, tmp_path: Path) -> None:
        assert _counted(_world_of_one(tmp_path)) == Tally(digests_equal=1)

    @pytest.mark.parametrize(
        ("statement", "found"),
        [
            pytest.param("UPDATE budget SET epsilon = 0.9", Tally(overspent=1, digests_equal=1), id="budget-passed"),
            pytest.param(
                "INSERT INTO event SELECT 2, population, release_id, name, detail, at, actor, hash, 'x' FROM event",
                Tally(overspent=1, double=1, digests_equal=1),
                id="charged-twice",
            ),
            pytest.param(
                "INSERT INTO event SELECT 2, population, release_id, 'step_conflict', detail, at, actor, hash, 'x'"
                " FROM event",
                Tally(double=1, digests_equal=1),
                id="two-answers-to-one-step",
            ),
            pytest.param(
                "INSERT INTO version SELECT name, 2, digest, 'other', created_at FROM version",
                Tally(double=1, digests_equal=1),
                id="two-versions-of-one-release",
            ),
            pytest.param(
                "INSERT INTO release SELECT 'other', population, snapshot_id, 'other', fingerprint, request, event,"
                " epsilon, delta, charge, accounting, state, artifact_digest, created_at, updated_at, seq FROM release",
                Tally(overspent=1, double=1, lost=1, digests_equal=1),
                id="two-releases-of-one-request",
            ),
            pytest.param("UPDATE release SET state = 'noising'", Tally(lost=1), id="not-committed"),
            pytest.param("DELETE FROM version", Tally(lost=1, digests_equal=1), id="no-version"),
            pytest.param(
                "UPDATE release SET artifact_digest = 'other'", Tally(lost=1), id="committed-with-another-artifact"
            ),
        ],
    )
    def test_a_wrong_row_of_the_ledger_is_counted(self, tmp_path: Path, statement: str, found: Tally) -> None:
        world = _world_of_one(tmp_path)
        with closing(sqlite3.connect(world.home / "dpca.sqlite")) as file, file:
            file.execute(statement)
        assert _counted(world) == found

    @pytest.mark.parametrize(
        "spoil",
        [
            pytest.param(lambda home: (home / "keys" / "left").write_bytes(b"key"), id="key-left"),
            pytest.param(lambda home: (home / "staging" / "left").mkdir(), id="step-left"),
            pytest.param(lambda home: (home / "registry" / "names" / ".left.tmp").touch(), id="half-a-pointer-left"),
            pytest.param(lambda home: next((home / "registry" / "names").iterdir()).unlink(), id="no-pointer"),
            pytest.param(
                lambda home: next((home / "registry").rglob("c/0/0")).write_bytes(bytes(8)), id="artifact-damaged"
            ),
        ],
    )
    def test_a_wrong_file_is_counted(self, tmp_path: Path, spoil: Callable[[Path], Any]) -> None:
        world = _world_of_one(tmp_path)
        spoil(world.home)
        assert _counted(world) == Tally(lost=1, digests_equal=1)


def _counted(world: World) -> Tally:
    return recount(world, [request_of(0)], {"release": _digest(world)})


def _digest(world: World) -> str:
    (folder,) = (world.home / "registry" / "artifacts").iterdir()
    return folder.name


def _world_of_one(home: Path) -> World:
    request = request_of(0)
    for name in ("keys", "staging", "registry/names"):
        (home / name).mkdir(parents=True)
    subspace = PrivateSubspace(components=np.eye(3, 12), eigenvalues=np.array([3.0, 2.0, 1.0]), manifest={})
    digest = write_artifact(subspace, home=home)
    pointer = {"versions": {"1": digest}, "aliases": {}}
    (home / "registry" / "names" / f"{request.publish}.json").write_text(json.dumps(pointer))
    event = {"name": "gaussian", "noise_multiplier": 5.0}  # this Gaussian event costs epsilon 0.93 at delta 1e-7
    engine = sa.create_engine(f"sqlite:///{home / 'dpca.sqlite'}", poolclass=sa.NullPool)
    tables.metadata.create_all(engine)
    terms = {"epsilon": 1.0, "delta": 1e-7}
    rows: list[tuple[sa.Table, dict[str, Any]]] = [
        (tables.budget, {"population": POPULATION, **terms}),
        (
            tables.release,
            {
                "id": "release",
                "population": POPULATION,
                "run_key": "run",
                "request": json.dumps(asdict(request)),
                "event": json.dumps(event),
                **terms,
                "charge": b"",
                "state": "committed",
                "artifact_digest": digest,
            },
        ),
        (
            tables.event,
            {
                "seq": 1,
                "population": POPULATION,
                "release_id": "release",
                "name": "release_reserved",
                "detail": json.dumps({"event": event}),
            },
        ),
        (tables.version, {"name": request.publish, "version": 1, "digest": digest, "release_id": "release"}),
    ]
    with engine.begin() as connection:
        for table, values in rows:
            missing = {column.name: "" for column in table.c if not column.nullable and column.default is None}
            connection.execute(table.insert().values(**{**missing, **values}))
    return World(home=home)


@pytest.fixture(scope="module")
def calm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """Ingest rows into a home once, and compile everything that releases in the home need."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("DPCA_HOME", "DPCA_STATE_FOLDER", "DPCA_DATABASE_URL", "DPCA_KEY_FOLDER", "DPCA_STORE_URL"):
            patch.setenv(name, "")  # the context restores the old environment and the function that draws keys
        patch.setattr(releases, "new_key", releases.new_key)
        made = found_world(tmp_path_factory.mktemp("midway") / "calm")
        warm_up(made.copy("warm"))
        yield made


@pytest.fixture(scope="module")
def undisturbed(calm: World) -> Undisturbed:
    return Undisturbed(calm=calm, name="peace")


def disturbed(calm: World, name: str, hook: Callable[[World], Hook], undisturbed: Undisturbed) -> int:
    """Make a request in a copy of a world with a crash hook, repeat it without, and check the ledger.

    Return the exit status of the first attempt.
    """
    world = calm.copy(name)
    open_budget(world, [0])

    def first() -> None:
        obey_modes()
        attempt(world, 0, 0, hook=hook(world))

    status = forked(first)
    unlock_folders(world.home)
    assert forked(lambda: attempt(world, 0, 1)) == 0
    recover(world)
    found = recount(world, [request_of(0)], undisturbed.digests(world, [0]))
    assert found == Tally(digests_equal=1), found
    world.destroy()
    return status


def locking(place: Place) -> Callable[[World], Hook]:
    """Return a function that makes, for a world, a crash hook; the hook makes the home read-only at a crash point."""

    def made(world: World) -> Hook:
        seen: list[Place] = []
        note = recorder(seen)

        def hook(point: str) -> None:
            note(point)
            if seen[-1] == place:
                lock_folders(world.home)

        return hook

    return made


def test_a_home_that_becomes_read_only_costs_and_loses_nothing(calm: World, undisturbed: Undisturbed) -> None:
    """Make the home read-only just before a noised step is stored; `make audit` tries every crash point."""
    place = Place(point="keep.file_written", occurrence=1)
    assert disturbed(calm, "read-only", locking(place), undisturbed) == UNAVAILABLE


@pytest.mark.audit_only
@pytest.mark.timeout(900)
def test_a_home_that_becomes_read_only_anywhere_costs_and_loses_nothing(calm: World, undisturbed: Undisturbed) -> None:
    places = trace(calm)[0]
    ends = [disturbed(calm, f"read-only-{number}", locking(place), undisturbed) for number, place in enumerate(places)]
    assert set(ends) <= {0, UNAVAILABLE}
    assert ends.count(UNAVAILABLE) > len(places) // 2


def test_a_clock_that_jumps_by_hours_and_weeks_changes_no_charge_and_no_byte(
    calm: World, undisturbed: Undisturbed
) -> None:
    """Move the clock forward and backward between any two durable writes, and open the home in a second process."""
    assert disturbed(calm, "jumping", jumping, undisturbed) in (0, UNAVAILABLE)
