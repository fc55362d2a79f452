"""Small versions of the soaks, each with planted errors that the soak must detect.

- The soak of readers runs on both databases; `tests.storage.database.test_reading` plants reads of two states.
- The error count of the soak of restores detects planted errors.
- No wrong answer is accepted in the soak of a lying store; a client that accepts one is detected.

In the soak of one home, sixty releases cost as much at the end as at the start.
"""

import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from dpca.backends.s3 import ObjectPlace
from storage.datasets import snapshot_reader, snapshot_writer
from storage.ledger import witness
from storage.registry import restored
from tests.crash.lying_store import lying_store
from tests.crash.restored_history import Place, live
from tests.crash.soak_home import found
from tests.crash.soak_home import soak as soak_home_soak
from tests.crash.soak_readers import is_sound, soak
from tests.crash.soak_restore import COMBINATIONS, History, spread
from tests.crash.soak_restore import soak as soak_restore_soak
from tests.crash.soak_store import soak as soak_store_soak
from tests.crash.world import World
from tests.s3 import Server
from tests.storage.conftest import DATABASES


@pytest.fixture(params=DATABASES)
def world(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    for name in ("DPCA_HOME", "DPCA_STATE_FOLDER", "DPCA_DATABASE_URL", "DPCA_KEY_FOLDER"):
        monkeypatch.setenv(name, "")  # monkeypatch restores the old value of the variable after the test
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


STEPS, POINT = 13, 6


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> History:
    """Run a short history on SQLite, once for all tests of this module."""
    folder = tmp_path_factory.mktemp("history")
    with pytest.MonkeyPatch.context() as patch:
        for name in ("DPCA_HOME", "DPCA_STATE_FOLDER", "DPCA_DATABASE_URL", "DPCA_KEY_FOLDER", "DPCA_STORE_URL"):
            patch.setenv(name, "")  # the context restores the old value of the variable at its end
        truth = live(Place(root=folder / "world"), folder / "copies", steps=STEPS)
    return History(end=Place(root=folder / "world"), copies=folder / "copies", truth=truth)


def counted(history: History, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *these: tuple[str, ...]) -> Counter[str]:
    for name in ("DPCA_HOME", "DPCA_STATE_FOLDER", "DPCA_DATABASE_URL", "DPCA_KEY_FOLDER", "DPCA_STORE_URL"):
        monkeypatch.setenv(name, "")
    return soak_restore_soak(history, points=[POINT], work=tmp_path / "work", new_database=str, these=these)


@pytest.mark.audit_only
def test_no_restore_loses_spending_or_changes_a_version(
    history: History, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    these = (("database",), ("registry",), ("database", "registry"), ("whole home",))
    assert set(these) <= set(COMBINATIONS)
    assert len(COMBINATIONS) == 8
    counts = counted(history, tmp_path, monkeypatch, *these)
    assert {name: count for name, count in counts.items() if count} == {"restores": 8, "locked": 6}
    assert set(history.truth.spent) == {"people", "others"}
    assert {("map", 1), ("other", 2), ("nightly", 1)} <= history.truth.versions.keys()


def test_a_missing_comparison_with_the_witness_is_detected(
    history: History, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(witness.Witness, "check", lambda *_, **__: None)
    monkeypatch.setattr(witness, "_require", lambda *_: None)
    assert counted(history, tmp_path, monkeypatch, ("whole home",))["overspent"] > 0
    assert "overspent: whole home" in capsys.readouterr().err


def test_an_acceptance_without_charges_is_detected(
    history: History, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    enter = vars(restored)["_enter"]

    def for_free(connection: object, row: dict[str, object], **facts: object) -> object:
        faint = {"name": "gaussian", "noise_multiplier": 1e6}
        return enter(connection, {**row, "event": faint, "charge": None}, **facts)

    monkeypatch.setattr(restored, "_enter", for_free)
    assert counted(history, tmp_path, monkeypatch, ("database",))["overspent"] > 0


def test_reused_version_numbers_are_detected(history: History, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    noted = witness.Witnesses.noted
    monkeypatch.setattr(
        witness.Witnesses, "noted", lambda self: [note for note in noted(self) if "version" not in note]
    )
    counts = counted(history, tmp_path, monkeypatch, ("database", "registry"))
    assert (counts["renumbered"] > 0, counts["overspent"]) == (True, 0)


def test_points_are_spread_over_the_history() -> None:
    assert spread(56, 50)[::49] == [0, 55]
    assert len(spread(56, 50)) == 50
    assert spread(9, 1) == [0]


def _believe_acknowledgements(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ObjectPlace, "_missing", lambda *_: [])


def _believe_chunks(patch: pytest.MonkeyPatch) -> None:
    for module in (snapshot_reader, snapshot_writer):
        patch.setattr(module, "checksum_of", lambda _: 0)


@pytest.mark.audit_only
@pytest.mark.parametrize(("lie", "blind"), [("lost_write", _believe_acknowledgements), ("swapped", _believe_chunks)])
def test_each_lie_is_detected_by_the_client_or_by_the_soak(
    s3_server: Server,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    lie: str,
    blind: Callable[[pytest.MonkeyPatch], None],
) -> None:
    with lying_store(s3_server) as (proxy, server):
        report = soak_store_soak(tmp_path, server, proxy, [lie], is_brief=True)
        assert (report.wrong, report.counts["lies"] > 0) == ([], True)
        blind(monkeypatch)
        believer = tmp_path / f"believer-of-{lie}"
        believer.mkdir()
        assert soak_store_soak(believer, server, proxy, [lie], is_brief=True).wrong


ROOT = Path(__file__).parents[2]
RELEASES, FEW = 60, 15


@pytest.mark.audit_only
def test_sixty_releases_leave_nothing_and_have_constant_cost(tmp_path: Path) -> None:
    """Run `check` in a separate process without other threads, because `check` starts a Dask cluster."""
    run = [sys.executable, "-m", "tests.crash.test_soaks", str(tmp_path / "home")]
    done = subprocess.run(run, cwd=ROOT, capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, done.stderr


def check(home: Path) -> None:
    """Make sixty releases and check their samples; then check samples changed for the worse, which must be reported."""
    world, temporary = World(home=home), home.with_name("temporary")
    for folder in (world.home, temporary):
        folder.mkdir(mode=0o700)
    tempfile.tempdir = str(temporary)  # a temporary folder in which no other process leaves files
    samples = soak_home_soak(world, releases=RELEASES, few=FEW)
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
