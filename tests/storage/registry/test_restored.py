"""Restored, copied and lost state of a home: spending is never undone silently, and versions never change.

No version ever gets other bytes. A stream continues in a restored ledger only when every answered tick is known again;
otherwise it is closed.
"""

import shutil
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from dpca.errors import Conflict, Corrupt, Refused
from dpca.home import store
from dpca.registry.pointers import Pointer
from dpca.registry.reader import Registry
from storage.database import tables
from storage.database.engine import connect
from storage.ledger.ledger import Ledger
from storage.registry.agreement import compare_artifacts
from storage.registry.publishing import promote, rebuild_pointers
from storage.workspace import Workspace
from tests.s3 import Server
from tests.storage.releasing import (
    NAME,
    POPULATION,
    TENTH,
    answer_tick,
    begin,
    begin_tick,
    event_names,
    open_budget,
    open_stream,
    publish,
    publish_tick,
    register,
    reserve,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """A home, its separate witness, and an older copy of the home in a neighboring folder."""

    home: Path
    state: Path

    @property
    def copy(self) -> Path:
        """A copy of the home, made when one release was published and a second one reserved."""
        return self.home.with_name("copy")


def before_the_copy() -> Ledger:
    """Publish ``map@1``, and reserve another release."""
    ledger = Workspace.open().ledger
    open_budget(ledger)
    publish(ledger, "first")
    reserve(ledger, "second")
    return ledger


def after_the_copy(ledger: Ledger) -> None:
    """Publish ``map@2`` and ``other@1``, move an alias, and begin a release in each of two populations."""
    publish(ledger, "second")
    publish(ledger, "third", name="other")
    with ledger.transaction() as connection:
        promote(connection, name="map", version=2, alias="champion")
        rebuild_pointers(connection, store(), ["map"])
    begin(ledger, "waiting")
    open_budget(ledger, "others")
    ledger.begin(reserve(ledger, "theirs", population="others").release_id)


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Create a home, its separate witness, and a copy of the home, once for all tests."""
    folder = tmp_path_factory.mktemp("histories")
    with pytest.MonkeyPatch.context() as patch:
        for name in ("DPCA_DATABASE_URL", "DPCA_KEY_FOLDER", "DPCA_STORE_URL"):
            patch.delenv(name, raising=False)
        patch.setenv("DPCA_HOME", str(folder / "home"))
        patch.setenv("DPCA_STATE_FOLDER", str(folder / "state"))
        ledger = before_the_copy()
        shutil.copytree(folder / "home", folder / "copy")
        after_the_copy(ledger)
    return folder


@pytest.fixture
def world(template: Path, tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    """Return a separate world for this test, whose home is the current home."""
    shutil.copytree(template, tmp_path, dirs_exist_ok=True)
    monkeypatch.setenv("DPCA_STATE_FOLDER", str(tmp_path / "state"))
    return World(home=home, state=tmp_path / "state")


def restore(world: World, *names: str) -> None:
    """Restore parts of the home from the copy; a database is restored together with its log files."""
    for name in names:
        for path in world.home.glob(f"{name}*"):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        for path in world.copy.glob(f"{name}*"):
            (shutil.copytree if path.is_dir() else shutil.copy)(path, world.home / path.name)


def lose(world: World, *names: str) -> None:
    for name in names:
        for path in world.home.glob(f"{name}*"):
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def shown() -> dict[str, str]:
    """Return the artifact digests that consumers see, by name and version."""
    return {str(row): row.digest for row in Registry.open().list()}


def spent(ledger: Ledger) -> list[str]:
    return [row.run_key for row in ledger.statement(POPULATION).releases if row.state != "abandoned"]


ALL = ["first", "second", "third", "waiting"]
LOCKED: Mapping[str, tuple[Callable[[World], None], str]] = {
    "the database": (lambda world: restore(world, "dpca.sqlite"), "counts less than was spent"),
    "the database and the keys": (lambda world: restore(world, "dpca.sqlite", "keys"), "counts less than was spent"),
    "the whole home": (
        lambda world: restore(world, "dpca.sqlite", "keys", "registry", "staging"),
        "counts less than was spent",
    ),
    "the database and the registry": (
        lambda world: restore(world, "dpca.sqlite", "registry"),
        "counts less than was spent",
    ),
}


@pytest.mark.parametrize("kind", LOCKED)
def test_a_restored_ledger_is_locked_until_accepted_and_then_charged_again(world: World, kind: str) -> None:
    before = shown()
    act, reason = LOCKED[kind]
    act(world)
    for _ in range(2):
        with pytest.raises(Refused, match=reason):
            Workspace.open()
    accepted = Workspace.open(accept_restored="the disk died")
    ledger = accepted.ledger
    assert sorted(spent(ledger)) == ALL
    charged = [(item.population, item.versions) for item in accepted.recharged]
    assert charged == [(POPULATION, ("other@1",)), (POPULATION, ()), ("others", ())]
    assert shown() == before
    assert ledger.verify() == len(event_names(ledger))
    new = publish(Workspace.open().ledger, "fourth")
    assert shown() == before | {"map@3": new}
    if "home" not in kind and "registry" not in kind:
        assert Registry.open().resolve("map@champion").version == 2
        with ledger.transaction() as connection:
            assert compare_artifacts(connection, store()) == 4


def test_events_in_the_notes_are_entered_unchanged(world: World) -> None:
    with closing(connect(f"sqlite:///{world.home / 'dpca.sqlite'}").connect()) as connection:
        query = sa.select(tables.release).where(tables.release.c.run_key == "third")
        before = dict(connection.execute(query).mappings().one())
    restore(world, "dpca.sqlite", "keys")
    ledger = Workspace.open(accept_restored="the disk died").ledger
    with ledger.transaction() as connection:
        after = dict(connection.execute(query).mappings().one())
    assert {name for name in before if before[name] != after[name]} == {"updated_at", "seq"}
    assert not reserve(ledger, "third").is_new, "the same request is the same release"
    assert ledger.budget("others").epsilon == 1.0


def test_a_copied_home_is_locked_after_the_original_was_used(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DPCA_HOME", str(world.copy))
    with pytest.raises(Refused, match="another copy is in use"):
        Workspace.open()


def test_only_one_of_two_used_copies_can_continue(tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DPCA_STATE_FOLDER", str(tmp_path / "state"))
    ledger = Workspace.open().ledger
    open_budget(ledger)
    shutil.copytree(home, tmp_path / "copied")
    monkeypatch.setenv("DPCA_HOME", str(tmp_path / "copied"))
    copied = Workspace.open().ledger
    reserve(ledger)
    with pytest.raises(Refused, match="another copy is in use"):
        reserve(copied)
    monkeypatch.setenv("DPCA_HOME", str(home))
    begin(Workspace.open().ledger).keep(0, {})


@pytest.mark.parametrize("names", [("dpca.sqlite", "keys"), ("dpca.sqlite", "keys", "staging", "datasets")])
def test_a_lost_database_next_to_a_full_registry_is_locked(world: World, names: tuple[str, ...]) -> None:
    before = shown()
    lose(world, *names)
    for _ in range(2):
        with pytest.raises(Refused, match=r"shows map, other, which this ledger did not publish"):
            Workspace.open()
    assert not (world.home / "keys").exists(), "the newest copy can still be restored"
    with pytest.raises(Refused, match=r"which budget paid for map@1, map@2, other@1; use --charge"):
        Workspace.open(accept_restored="lost")
    open_budget(Workspace.open(even_locked=True).ledger)
    accepted = Workspace.open(accept_restored="lost", charge_to=POPULATION)
    ledger = accepted.ledger
    assert [(item.epsilon, item.versions) for item in accepted.recharged] == [
        (1.0, ("map@1",)),
        (1.0, ("map@2",)),
        (1.0, ("other@1",)),
    ]
    assert [row.event for row in ledger.statement(POPULATION).releases] == [TENTH] * 3
    assert [row.state for row in ledger.statement(POPULATION).releases] == ["committed"] * 3
    new = publish(Workspace.open().ledger, "fourth")
    assert shown() == before | {"map@3": new}
    assert ledger.verify() == len(event_names(ledger))


def test_names_of_another_ledger_are_refused_without_charges(world: World) -> None:
    before = shown()
    lose(world, "dpca.sqlite", "keys")
    accepted = Workspace.open(accept_restored="they publish here too", another_ledger=True)
    ledger = accepted.ledger
    assert accepted.recharged == ()
    open_budget(Workspace.open().ledger)
    new = publish(Workspace.open().ledger, "mine", name="mine")
    with pytest.raises(Conflict, match="another ledger publishes 'map'"):
        publish(Workspace.open().ledger, "theirs")
    assert shown() == before | {"mine@1": new}
    assert ledger.verify() == len(event_names(ledger))


def test_a_deleted_database_with_remaining_keys_has_a_separate_message(world: World) -> None:
    lose(world, "dpca.sqlite")
    with pytest.raises(Refused, match="of one ledger together"):
        Workspace.open()


@pytest.mark.parametrize("names", [("registry/names",), ("keys",), ("staging",)])
def test_files_that_are_older_than_the_database_lock_nothing(world: World, names: tuple[str, ...]) -> None:
    before = shown()
    restore(world, *names)
    ledger = Workspace.open().ledger
    assert shown() == before
    assert sorted(spent(ledger)) == ALL


def test_a_home_moved_to_another_machine_opens_and_gets_a_new_witness(world: World) -> None:
    shutil.rmtree(world.state)
    assert sorted(spent(Workspace.open().ledger)) == ALL
    restore(world, "dpca.sqlite", "keys", "registry")
    with pytest.raises(Refused, match="counts less than was spent"):
        Workspace.open()
    assert sorted(spent(Workspace.open(accept_restored="the disk died").ledger)) == ALL


def test_without_any_witness_the_registry_alone_locks_and_is_charged(world: World) -> None:
    before = shown()
    shutil.rmtree(world.state)
    restore(world, "dpca.sqlite", "keys")
    with pytest.raises(Refused, match="shows other, which this ledger did not publish"):
        Workspace.open()
    (world.home / Pointer.path("other")).unlink()
    with pytest.raises(Refused, match="shows a map@2 that this ledger did not publish"):
        Workspace.open()
    ledger = Workspace.open(accept_restored="the disk died").ledger
    assert sorted(spent(ledger)) == ["first", "second"]
    assert shown() == {name: digest for name, digest in before.items() if name != "other@1"}
    assert publish(Workspace.open().ledger, "fourth") == shown()["map@3"]


def test_a_release_is_charged_also_over_its_budget(world: World) -> None:
    restore(world, "dpca.sqlite", "keys")
    lose(world, "dpca.sqlite", "keys")
    ledger = Workspace.open(even_locked=True).ledger
    ledger.open_budget(POPULATION, epsilon=0.3, delta=1e-6)
    accepted = Workspace.open(accept_restored="lost", charge_to=POPULATION).ledger
    statement = accepted.statement(POPULATION)
    assert statement.spent > 0.3
    assert statement.remaining == 0


def test_other_bytes_under_a_used_version_are_refused_and_not_overwritten(world: World) -> None:
    path = world.home / Pointer.path("map")
    pointer = Pointer.read(store(), "map")
    digest = pointer.versions[1]
    forged = Pointer(name="map", versions={1: digest, 2: digest}, aliases={}).encode()
    path.write_bytes(forged)
    with pytest.raises(Refused, match="shows a map@2 that this ledger did not publish"):
        Workspace.open()
    with pytest.raises(Corrupt, match="other bytes for map@2 than this ledger published"):
        Workspace.open(accept_restored="why not")
    assert path.read_bytes() == forged


def test_a_crash_between_commit_and_pointer_locks_nothing(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as crash:
        crash.setattr("tests.storage.releasing.rebuild_pointers", _die)
        with pytest.raises(KeyboardInterrupt):
            publish(Workspace.open().ledger, "fourth", name="new")
    assert "new@1" not in shown()
    Workspace.open()
    assert "new@1" in shown()


def test_a_crash_between_note_and_row_is_charged_once_at_most(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = Workspace.open().ledger
    with monkeypatch.context() as crash:
        crash.setattr("storage.ledger.ledger.reached", lambda point: _die() if point == "begin.row_written" else None)
        with pytest.raises(KeyboardInterrupt):
            begin(ledger, "fourth")
    begin(Workspace.open().ledger, "fourth")
    restore(world, "dpca.sqlite", "keys")
    accepted = Workspace.open(accept_restored="the disk died").ledger
    assert sorted(spent(accepted)) == sorted([*ALL, "fourth"])


def test_an_artifact_that_cannot_be_read_keeps_the_lock(world: World) -> None:
    shutil.rmtree(world.state)
    shutil.rmtree(world.home / "registry" / "artifacts" / shown()["map@2"])
    restore(world, "dpca.sqlite", "keys")
    with pytest.raises(Corrupt, match="cannot be read"):
        Workspace.open(accept_restored="the disk died")
    with pytest.raises(Refused):
        Workspace.open()


def test_an_explicit_check_compares_every_manifest(world: World) -> None:
    ledger = Workspace.open().ledger
    with ledger.transaction() as connection:
        assert compare_artifacts(connection, store()) == 3
    path = world.home / "registry" / "artifacts" / shown()["map@2"] / "manifest.json"
    path.write_text(path.read_text().replace('"epsilon": 1.0', '"epsilon": 0.1'))
    with (
        pytest.raises(Corrupt, match="map@2 states another release, event or epsilon"),
        ledger.transaction() as open_,
    ):
        compare_artifacts(open_, store())


def test_a_restored_database_is_charged_for_releases_in_the_registry(
    ledger: Ledger, tmp_path: Path, s3_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DPCA_STATE_FOLDER", str(tmp_path / "state"))
    monkeypatch.setenv("DPCA_STORE_URL", s3_server.url(tmp_path.name))
    s3_server.enter(monkeypatch)
    copied = before_the_copy()
    rows = _rows(copied)
    after_the_copy(Workspace.open().ledger)
    before = shown()
    for forget in ((), ("state",), ("state", "home/keys")):
        for name in forget:
            shutil.rmtree(tmp_path / name)
        _put_back(copied, rows)
        with pytest.raises(Refused, match=r"counts less than was spent|no witness of this ledger"):
            Workspace.open()
        opened = Workspace.open(accept_restored="the disk died", charge_to=POPULATION)
        accepted = opened.ledger
        assert [version for item in opened.recharged for version in item.versions] == ["other@1"]
        assert {"first", "second"} < set(spent(accepted))
        assert shown() == before
        assert accepted.verify() == len(event_names(accepted))
    assert publish(Workspace.open().ledger, "fourth") == shown()["map@3"]


def _rows(ledger: Ledger) -> dict[str, list[dict[str, Any]]]:
    with ledger.engine.connect() as connection:
        return {
            table.name: [dict(row) for row in connection.execute(sa.select(table)).mappings()]
            for table in tables.metadata.sorted_tables
        }


def _put_back(ledger: Ledger, rows: Mapping[str, list[dict[str, Any]]]) -> None:
    """Replace all rows of a database by older ones, as the database's owner can."""
    with ledger.engine.begin() as connection:
        if ledger.engine.dialect.name == "postgresql":
            connection.exec_driver_sql("SET session_replication_role = replica")
        else:
            for name in connection.exec_driver_sql("SELECT name FROM sqlite_master WHERE type = 'trigger'").scalars():
                connection.exec_driver_sql(f"DROP TRIGGER {name}")
        for table in reversed(tables.metadata.sorted_tables):
            connection.execute(table.delete())
        for table in tables.metadata.sorted_tables:
            if rows[table.name]:
                connection.execute(table.insert(), rows[table.name])


def _die(*_: object) -> None:
    raise KeyboardInterrupt


WHY = "a disk failed"


@pytest.fixture
def ledger_of_restored_streams(state: Path, home: Path) -> Ledger:
    """Return a ledger with a budget and a snapshot, on SQLite."""
    ledger = Workspace.open().ledger
    open_budget(ledger)
    register(ledger)
    return ledger


def save(home: Path) -> None:
    shutil.copy(home / "dpca.sqlite", home.with_name("copy"))


def restore_of_restored_streams(home: Path, *, forget: Path | None = None) -> None:
    """Restore the database from a copy; with ``forget``, also delete this folder.

    Without both witnesses, the database looks like that of another machine.
    """
    for path in home.glob("dpca.sqlite*"):
        path.unlink()
    shutil.copy(home.with_name("copy"), home / "dpca.sqlite")
    if forget is not None:
        shutil.rmtree(forget)


def accepted() -> Ledger:
    with pytest.raises(Refused):
        Workspace.open()
    workspace = Workspace.open(accept_restored=WHY)
    workspace.ledger.verify()
    return workspace.ledger


@pytest.mark.parametrize("knows", ["witness", "registry"])
def test_lost_ticks_are_entered_again_and_the_stream_continues(
    ledger_of_restored_streams: Ledger, home: Path, state: Path, knows: str
) -> None:
    open_stream(ledger_of_restored_streams, ticks=5)
    publish_tick(ledger_of_restored_streams, "night 1")
    save(home)
    for slot in ("night 2", "night 3"):
        publish_tick(ledger_of_restored_streams, slot)
    stream, ticks = ledger_of_restored_streams.streams.show(NAME)
    spent = ledger_of_restored_streams.statement(POPULATION).spent
    restore_of_restored_streams(home, forget=state if knows == "registry" else None)
    again = accepted()
    assert again.streams.show(NAME) == (stream, ticks)
    assert again.statement(POPULATION).spent == spent
    assert publish_tick(again, "night 2") == ticks[1]
    assert publish_tick(again, "night 4").tick == 4
    again.verify()


def test_a_lost_stream_is_charged_again_with_its_ticks(ledger_of_restored_streams: Ledger, home: Path) -> None:
    save(home)
    stream = open_stream(ledger_of_restored_streams)
    ticks = [publish_tick(ledger_of_restored_streams, "night 1")]
    ledger_of_restored_streams.streams.close_tick(NAME, begin_tick(ledger_of_restored_streams, "night 2").tick)
    ticks.append(ledger_of_restored_streams.streams.show(NAME)[1][1])
    ticks.append(begin_tick(ledger_of_restored_streams, "night 3"))
    digest = answer_tick(ledger_of_restored_streams, ticks[2])
    spent = ledger_of_restored_streams.statement(POPULATION).spent
    restore_of_restored_streams(home)
    again = accepted()
    assert again.statement(POPULATION).spent == spent
    assert again.streams.show(NAME)[0] == stream
    found = again.streams.show(NAME)[1]
    assert [tick.state for tick in found] == ["committed", "closed", "noising"]
    assert found[2].answer == digest
    assert begin_tick(again, "night 3").release_id == ticks[2].release_id


def test_a_stream_with_only_published_versions_is_charged_in_full_and_closed(
    ledger_of_restored_streams: Ledger, home: Path, state: Path
) -> None:
    stream = open_stream(ledger_of_restored_streams)
    for slot in ("night 1", "night 2"):
        publish_tick(ledger_of_restored_streams, slot)
    spent = ledger_of_restored_streams.statement(POPULATION).spent
    for path in home.glob("dpca.sqlite*"):
        path.unlink()
    for folder in (state, home / "keys"):
        shutil.rmtree(folder)
    open_budget(Workspace.open(even_locked=True).ledger)
    workspace = Workspace.open(accept_restored=WHY, charge_to=POPULATION)
    assert workspace.ledger.statement(POPULATION).spent == spent
    found, ticks = workspace.ledger.streams.show(NAME)
    assert (found.id, found.is_live) == (stream.id, False)
    assert [tick.state for tick in ticks] == ["committed", "committed"]
    workspace.ledger.verify()


def test_an_answer_without_a_tick_closes_the_stream(
    ledger_of_restored_streams: Ledger, home: Path, state: Path
) -> None:
    open_stream(ledger_of_restored_streams)
    publish_tick(ledger_of_restored_streams, "night 1")
    save(home)
    answer_tick(ledger_of_restored_streams, begin_tick(ledger_of_restored_streams, "night 2"))
    restore_of_restored_streams(home, forget=state)
    again = accepted()
    assert not again.streams.show(NAME)[0].is_live
    with pytest.raises(Refused, match="closed permanently"):
        begin_tick(again, "night 2")


def test_a_lost_tick_between_published_ones_closes_the_stream(
    ledger_of_restored_streams: Ledger, home: Path, state: Path
) -> None:
    stream = open_stream(ledger_of_restored_streams)
    publish_tick(ledger_of_restored_streams, "night 1")
    save(home)
    ledger_of_restored_streams.streams.close_tick(NAME, begin_tick(ledger_of_restored_streams, "night 2").tick)
    third = publish_tick(ledger_of_restored_streams, "night 3")
    restore_of_restored_streams(home, forget=state)
    again = accepted()
    found, ticks = again.streams.show(NAME)
    assert (found.id, found.is_live) == (stream.id, False)
    assert [tick.state for tick in ticks] == ["committed", "closed", "committed"]
    assert ticks[2].release_id == third.release_id
