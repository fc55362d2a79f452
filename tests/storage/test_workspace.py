"""Workspaces: fast opening, retained parts of releases, and refused ledgers.

A workspace of any size is opened with one or two listings; reading it writes and locks nothing. Directions beyond k, a
released mean, and fractions of a released total are kept. A ledger restored from a copy, moved without its keys, or
edited, is refused.
"""

import json
import shutil
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import sqlalchemy as sa

from dpca.artifacts.subspace import PrivateSubspace
from dpca.backends import atomic_files
from dpca.backends.local import LocalPlace
from dpca.backends.s3 import ObjectPlace
from dpca.errors import Corrupt, Invalid, NotFound, Refused
from dpca.home import key_folder
from dpca.registry.pointers import Pointer
from storage.database import tables
from storage.database.engine import transaction
from storage.ledger.ledger import Ledger
from storage.registry.publishing import add_version, promote, rebuild_pointers
from storage.registry.signing import Signer
from storage.workspace import Workspace
from tests.s3 import Server
from tests.storage.releasing import (
    ANSWER,
    POPULATION,
    begin,
    commit,
    event_names,
    open_budget,
    reserve,
)


@pytest.fixture(params=["folder", "objects"])
def opened(
    request: pytest.FixtureRequest, home: Path, tmp_path: Path, s3_server: Server, monkeypatch: pytest.MonkeyPatch
) -> Workspace:
    """Return a workspace with a budget, once with a local store and once with an object store."""
    if request.param == "objects":
        monkeypatch.setenv("DPCA_STORE_URL", s3_server.url(tmp_path.name))
        s3_server.enter(monkeypatch)
    workspace = Workspace.open()
    open_budget(workspace.ledger)
    return workspace


def name_often(workspace: Workspace, names: Collection[str], *, written: bool = True) -> None:
    """Publish one release under many names.

    Pointer files are written, or missing as after a crash.
    """
    ledger = workspace.ledger
    release_id = reserve(ledger).release_id
    if ledger.release(release_id).state == "reserved":
        ledger.begin(release_id)
        commit(ledger, release_id)
    with ledger.transaction() as connection:
        for name in names:
            add_version(connection, name=name, digest="d" * 64, release_id=release_id)
    if written:
        with ledger.transaction() as connection:
            rebuild_pointers(connection, workspace.store, names, signer=Signer(keys=key_folder()))


@contextmanager
def counted() -> Iterator[Counter[str]]:
    """Yield counts of requests to the store and of database statements."""
    counts: Counter[str] = Counter()

    def counting(method: str, original: Callable[..., object]) -> Callable[..., object]:
        def call(*args: object, **options: object) -> object:
            counts[method] += 1
            return original(*args, **options)

        return call

    def count_statement(*_: object) -> None:
        counts["statements"] += 1

    sa.event.listen(sa.Engine, "before_cursor_execute", count_statement)
    try:
        with pytest.MonkeyPatch.context() as patch:
            for place in (LocalPlace, ObjectPlace):
                for method in ("read", "write", "names", "tags", "holds", "read_folder"):
                    patch.setattr(place, method, counting(method, getattr(place, method)))
            yield counts
    finally:
        sa.event.remove(sa.Engine, "before_cursor_execute", count_statement)


def store_calls(counts: Counter[str]) -> dict[str, int]:
    return {method: count for method, count in counts.items() if method != "statements"}


def files_of(folder: Path) -> dict[Path, tuple[int, bytes]]:
    return {path: (path.stat().st_mtime_ns, path.read_bytes() if path.is_file() else b"") for path in folder.rglob("*")}


class TestOpening:
    def test_opening_lists_each_folder_once_and_reads_no_pointer_file(self, opened: Workspace) -> None:
        statements = []
        for count in (2, 40):
            name_often(opened, [f"name-{number}" for number in range(count)])
            with counted() as reading:
                Workspace.read_only()
            with counted() as writing:
                Workspace.open()
            assert store_calls(reading) == {"names": 1}
            assert store_calls(writing) == {"tags": 2}
            statements.append((reading["statements"], writing["statements"]))
        assert statements[0] == statements[1]
        assert max(statements[0]) <= 25

    def test_opening_writes_pointer_files_missing_after_a_crash_and_reads_no_other(self, opened: Workspace) -> None:
        name_often(opened, ["shown", "moved"])
        name_often(opened, ["left"], written=False)
        with opened.ledger.transaction() as connection:
            promote(connection, name="moved", version=1, alias="champion")
        with counted() as counts:
            workspace = Workspace.open()
        assert (counts["tags"], counts["write"]) == (2, 4)
        assert workspace.registry.resolve("left").version == 1
        assert workspace.registry.resolve("moved@champion").version == 1
        with counted() as counts:
            Workspace.open()
        assert store_calls(counts) == {"tags": 2}

    @pytest.mark.parametrize("point", ["record.committed", "pointer.signed", "pointer.written", "pointer.row_written"])
    def test_opening_finishes_a_publication_that_crashed(
        self, opened: Workspace, point: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        name_often(opened, ["news", "other"])

        def die(reached: str) -> None:
            if reached == point:
                raise KeyboardInterrupt

        with monkeypatch.context() as crash:
            crash.setattr(atomic_files, "hook", die)
            with pytest.raises(KeyboardInterrupt):
                opened.promote("news", version=1, alias="champion")
        with counted() as counts:
            assert Workspace.open().registry.resolve("news@champion").version == 1
        assert counts["write"] == {"record.committed": 2, "pointer.signed": 1}.get(point, 0)
        with counted() as counts:
            Workspace.open()
        assert store_calls(counts) == {"tags": 2}

    def test_opening_rewrites_a_lost_or_changed_pointer_file(self, opened: Workspace) -> None:
        name_often(opened, ["news", "other"])
        sound = {name: opened.store.read(Pointer.path(name)) for name in ("news", "other")}
        opened.store.remove("registry/names", marker="news.json")
        opened.store.write(Pointer.path("other"), b"{", over=None)
        Workspace.open()
        assert {name: opened.store.read(Pointer.path(name)).payload for name in sound} == {
            name: stored.payload for name, stored in sound.items()
        }

    def test_opening_a_restored_home_reads_every_pointer_file_once(self, opened: Workspace) -> None:
        name_often(opened, ["news", "other"])
        with opened.ledger.engine.begin() as connection:
            # as after restoring a backup, which does not contain this table
            connection.exec_driver_sql("DELETE FROM pointer")
        with counted() as counts:
            Workspace.read_only()
        assert store_calls(counts) == {"names": 1}
        for requested in ({"tags": 2, "read": 4}, {"tags": 2}):
            with counted() as counts:
                Workspace.open()
            assert store_calls(counts) == requested


class TestReadOnly:
    def test_a_read_only_workspace_has_the_same_facts(self, opened: Workspace) -> None:
        name_often(opened, ["news"])
        reading = Workspace.read_only()
        assert reading.ledger.id == opened.ledger.id
        assert reading.ledger.statement(POPULATION) == opened.ledger.statement(POPULATION)
        assert reading.registry.list() == opened.registry.list()
        assert list(reading.catalog.entries()) == []

    def test_a_read_only_workspace_does_not_wait_for_a_writer(self, budget: Ledger) -> None:
        with budget.transaction() as connection:  # on SQLite, this transaction has the only lock
            if connection.dialect.name == "postgresql":
                connection.exec_driver_sql("LOCK TABLE ledger, pointer IN EXCLUSIVE MODE")
            reading = Workspace.read_only()
            assert reading.ledger.statement(POPULATION).spent == 0

    def test_a_read_only_workspace_cannot_write(self, sqlite_budget: Ledger) -> None:
        reading = Workspace.read_only()
        with transaction(reading.ledger.engine) as seen, pytest.raises(sa.exc.OperationalError, match="readonly"):
            seen.execute(tables.alias.insert().values(name="n", alias="a", version=1))

    def test_a_read_only_workspace_changes_no_file(self, sqlite_budget: Ledger, home: Path) -> None:
        name_often(Workspace.open(), ["news"], written=False)
        before = files_of(home)
        assert Workspace.read_only().registry.names() == []
        assert files_of(home) == before

    def test_a_read_only_workspace_without_home_is_empty_and_creates_none(self, home: Path, tmp_path: Path) -> None:
        home.rmdir()
        workspace = Workspace.read_only()
        assert not workspace.catalog.entries()
        assert not workspace.registry.names()
        with pytest.raises(NotFound, match="people"):
            workspace.ledger.statement(POPULATION)
        assert not home.exists()

    def test_a_read_only_workspace_refuses_a_registry_without_its_database(
        self, sqlite_budget: Ledger, home: Path
    ) -> None:
        name_often(Workspace.open(), ["news"])
        (home / "dpca.sqlite").unlink()
        with pytest.raises(Refused, match="of one ledger together"):
            Workspace.read_only()


BASIS = np.linalg.qr(np.random.default_rng(0).standard_normal((5, 5)))[0]
MEAN = np.arange(5.0)


def subspace(**changes):
    fields = {
        "components": BASIS[:2],
        "eigenvalues": np.array([4.0, 2.0]),
        "spectrum": np.array([4.0, 2.0, 1.0, -1.0]),
        "further": BASIS[2:4],
        "manifest": {"total_variance": 8.0},
    }
    return PrivateSubspace(**{**fields, **changes})


def test_a_refit_keeps_every_direction():
    three = subspace().refit(3, parent="p")
    np.testing.assert_array_equal(three.components, BASIS[:3])
    np.testing.assert_array_equal(three.further, BASIS[3:4])
    np.testing.assert_array_equal(three.refit(2, parent="p").spectrum, subspace().spectrum)
    assert three.refit(4, parent="p").further is None
    assert three.manifest["n_components"] == 3


def test_a_subspace_without_further_directions_can_be_made_smaller_only():
    plain = subspace(further=None, spectrum=None)
    np.testing.assert_array_equal(plain.refit(1, parent="p").components, BASIS[:1])
    with pytest.raises(Invalid, match="has 2 directions"):
        plain.refit(3, parent="p")


def test_directions_without_eigenvalues_cannot_be_refitted():
    alone = subspace(eigenvalues=None, spectrum=None, further=None)
    assert alone.explained_variance_ratio is None
    with pytest.raises(Invalid, match="so they have no order"):
        alone.refit(1, parent="p")


def test_ratios_are_those_that_the_release_assessed():
    assessed = subspace(manifest={"outcome": {"explained_variance_ratio": [0.5, 0.25]}})
    np.testing.assert_array_equal(assessed.explained_variance_ratio, [0.5, 0.25])
    assert subspace().explained_variance_ratio is None


def test_a_mean_is_subtracted_and_added_back():
    centred = subspace(mean=MEAN)
    rows = np.random.default_rng(1).standard_normal((3, 5))
    scores = centred.transform(rows)
    np.testing.assert_allclose(scores, (rows - MEAN) @ BASIS[:2].T)
    np.testing.assert_allclose(centred.inverse_transform(scores), scores @ BASIS[:2] + MEAN)


@pytest.mark.parametrize(
    "changes",
    [
        {"further": BASIS[1:3]},
        {"further": BASIS[2:4, :4]},
        {"spectrum": None},
        {"spectrum": np.array([4.0, 2.0, 1.0])},
        {"mean": np.zeros(4)},
    ],
)
def test_inconsistent_parts_of_a_subspace_are_refused(changes):
    with pytest.raises(Invalid):
        subspace(**changes)


@pytest.fixture
def restored(sqlite_budget: Ledger) -> Ledger:
    """Return a ledger whose SQLite file was restored to the time before a release began and was answered."""
    waiting = reserve(sqlite_budget)
    file = sqlite_budget.home / "dpca.sqlite"
    shutil.copy(file, file.with_suffix(".copy"))
    sqlite_budget.begin(waiting.release_id).keep(0, ANSWER)
    file.with_suffix(".copy").rename(file)
    return sqlite_budget


def test_a_restored_ledger_is_refused_until_it_is_accepted(restored: Ledger) -> None:
    with pytest.raises(Refused, match="counts less than was spent"):
        Workspace.open()
    with pytest.raises(Refused, match="counts less than was spent"):
        restored.verify()
    accepted = Workspace.open(accept_restored="the disk died").ledger
    assert event_names(accepted)[-1] == "ledger_accepted"
    with accepted.transaction() as connection:
        details = connection.exec_driver_sql("SELECT detail FROM event WHERE name = 'ledger_accepted'").scalars().all()
    (release,) = accepted.statement(POPULATION).releases
    assert [json.loads(detail) for detail in details] == [{"reason": "the disk died", "begun": [release.id]}]
    assert Workspace.open().ledger.verify() == len(event_names(accepted))


def test_releases_possibly_begun_after_the_copy_cannot_be_abandoned(restored: Ledger) -> None:
    accepted = Workspace.open(accept_restored="the disk died").ledger
    (release,) = accepted.statement(POPULATION).releases
    with pytest.raises(Refused, match="is noising"):
        accepted.abandon(release.id)
    accepted.begin(release.id).keep(0, ANSWER)


def test_a_restored_ledger_detects_a_missing_step_answer(sqlite_budget: Ledger) -> None:
    begun = begin(sqlite_budget)
    file = sqlite_budget.home / "dpca.sqlite"
    shutil.copy(file, file.with_suffix(".copy"))
    begun.keep(0, ANSWER)
    file.with_suffix(".copy").rename(file)
    with pytest.raises(Refused, match="counts less than was spent"):
        Workspace.open()


def test_a_key_folder_of_another_ledger_is_refused_and_cannot_be_accepted(
    ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_budget(ledger)
    monkeypatch.setenv("DPCA_DATABASE_URL", f"sqlite:///{tmp_path / 'another.sqlite'}")
    for reason in (None, "they look alike"):
        with pytest.raises(Refused, match="of one ledger together"):
            Workspace.open(accept_restored=reason)


def test_a_ledger_without_its_key_folder_is_refused(
    ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_budget(ledger)
    monkeypatch.setenv("DPCA_KEY_FOLDER", str(tmp_path / "empty"))
    with pytest.raises(Refused, match="no witness"):
        Workspace.open()
    Workspace.open(accept_restored="keys were lost")
    Workspace.open()


def test_a_tampered_journal_is_found(budget: Ledger) -> None:
    reserve(budget)
    assert budget.verify() == 3
    with budget.engine.begin() as connection:
        if connection.dialect.name == "postgresql":
            connection.exec_driver_sql("ALTER TABLE event DISABLE TRIGGER ALL")
        else:
            connection.exec_driver_sql("DROP TRIGGER event_no_update")
        connection.exec_driver_sql("UPDATE event SET actor = 'somebody else' WHERE seq = 2")
    with pytest.raises(Corrupt, match="entry 2 of the journal was changed"):
        budget.verify()


@pytest.mark.parametrize("earlier", [0, 1, 3])
def test_a_running_process_stops_after_its_database_is_restored(sqlite_budget: Ledger, earlier: int) -> None:
    file = sqlite_budget.home / "dpca.sqlite"
    shutil.copy(file, file.with_suffix(".copy"))
    for number in range(earlier):
        begin(sqlite_budget, f"before {number}")
    waiting = reserve(sqlite_budget, "waiting")
    file.with_suffix(".copy").rename(file)
    for act in (lambda: reserve(sqlite_budget, "after"), lambda: sqlite_budget.begin(waiting.release_id)):
        with pytest.raises(Refused, match="counts less than was spent"):
            act()
    with pytest.raises(Refused, match="counts less than was spent"):
        Workspace.open()
    accepted = Workspace.open(accept_restored="the disk died").ledger
    noted = {f"before {number}" for number in range(earlier)}
    assert {row.run_key for row in accepted.statement(POPULATION).releases} == noted


def test_releases_begun_by_an_acceptance_are_charged_after_the_next_restore(sqlite_budget: Ledger) -> None:
    home, copies = sqlite_budget.home, [sqlite_budget.home / name for name in ("none.copy", "reserved.copy")]
    shutil.copy(home / "dpca.sqlite", copies[0])
    waiting = reserve(sqlite_budget, "waiting")
    shutil.copy(home / "dpca.sqlite", copies[1])
    begin(sqlite_budget, "noted")
    shutil.copy(copies[1], home / "dpca.sqlite")
    accepted = Workspace.open(accept_restored="the disk died").ledger
    accepted.begin(waiting.release_id).keep(0, ANSWER)
    shutil.copy(copies[0], home / "dpca.sqlite")
    again = Workspace.open(accept_restored="the disk died again").ledger
    assert {row.run_key for row in again.statement(POPULATION).releases} == {"waiting", "noted"}
