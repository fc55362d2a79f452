"""A workspace is opened with a listing or two, whatever it holds; to read it, nothing is written and nothing locked."""

from collections import Counter
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import sqlalchemy as sa

from storage.backends import crash_points
from storage.backends.local import LocalPlace
from storage.backends.s3 import ObjectPlace
from storage.database import tables
from storage.database.engine import transaction
from storage.errors import NotFound, Refused
from storage.home import key_folder
from storage.ledger.ledger import Ledger
from storage.registry.pointers import Pointer
from storage.registry.publishing import add_version, promote, rebuild_pointers
from storage.registry.signing import Signer
from storage.workspace import Workspace
from tests.s3 import Server
from tests.storage.releasing import POPULATION, commit, open_budget, reserve


@pytest.fixture(params=["folder", "objects"])
def opened(
    request: pytest.FixtureRequest, home: Path, tmp_path: Path, s3_server: Server, monkeypatch: pytest.MonkeyPatch
) -> Workspace:
    """Return a workspace with a budget, whose store is of either kind."""
    if request.param == "objects":
        monkeypatch.setenv("DPCA_STORE_URL", s3_server.url(tmp_path.name))
        s3_server.enter(monkeypatch)
    workspace = Workspace.open()
    open_budget(workspace.ledger)
    return workspace


def name_often(workspace: Workspace, names: Collection[str], *, written: bool = True) -> None:
    """Publish one release under many names; their pointer files are written or, as after a crash, are not."""
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
    """Count what is asked of the store, and the statements of the database."""
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


def asked_of_the_store(counts: Counter[str]) -> dict[str, int]:
    return {method: count for method, count in counts.items() if method != "statements"}


def files_of(folder: Path) -> dict[Path, tuple[int, bytes]]:
    return {path: (path.stat().st_mtime_ns, path.read_bytes() if path.is_file() else b"") for path in folder.rglob("*")}


class TestOpening:
    def test_reads_no_pointer_file_and_lists_each_folder_once_however_many_names_there_are(
        self, opened: Workspace
    ) -> None:
        statements = []
        for count in (2, 40):
            name_often(opened, [f"name-{number}" for number in range(count)])
            with counted() as reading:
                Workspace.read_only()
            with counted() as writing:
                Workspace.open()
            assert asked_of_the_store(reading) == {"names": 1}
            assert asked_of_the_store(writing) == {"tags": 2}
            statements.append((reading["statements"], writing["statements"]))
        assert statements[0] == statements[1]
        assert max(statements[0]) <= 25

    def test_writes_the_pointer_files_that_a_crash_left_and_reads_no_other(self, opened: Workspace) -> None:
        name_often(opened, ["told", "moved"])
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
        assert asked_of_the_store(counts) == {"tags": 2}

    @pytest.mark.parametrize("point", ["record.committed", "pointer.signed", "pointer.written", "pointer.row_written"])
    def test_finishes_what_a_crash_at_a_point_of_publishing_left(
        self, opened: Workspace, point: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        name_often(opened, ["news", "other"])

        def die(reached: str) -> None:
            if reached == point:
                raise KeyboardInterrupt

        with monkeypatch.context() as crash:
            crash.setattr(crash_points, "hook", die)
            with pytest.raises(KeyboardInterrupt):
                opened.promote("news", version=1, alias="champion")
        with counted() as counts:
            assert Workspace.open().registry.resolve("news@champion").version == 1
        assert counts["write"] == {"record.committed": 2, "pointer.signed": 1}.get(point, 0)
        with counted() as counts:
            Workspace.open()
        assert asked_of_the_store(counts) == {"tags": 2}

    def test_writes_a_pointer_file_anew_that_is_lost_or_changed(self, opened: Workspace) -> None:
        name_often(opened, ["news", "other"])
        sound = {name: opened.store.read(Pointer.path(name)) for name in ("news", "other")}
        opened.store.remove("registry/names", marker="news.json")
        opened.store.write(Pointer.path("other"), b"{", over=None)
        Workspace.open()
        assert {name: opened.store.read(Pointer.path(name)).payload for name in sound} == {
            name: stored.payload for name, stored in sound.items()
        }

    def test_of_a_restored_home_reads_every_pointer_file_once(self, opened: Workspace) -> None:
        name_often(opened, ["news", "other"])
        with opened.ledger.engine.begin() as connection:
            connection.exec_driver_sql("DELETE FROM pointer")  # a backup leaves the tags out
        with counted() as counts:
            Workspace.read_only()
        assert asked_of_the_store(counts) == {"names": 1}
        for asked in ({"tags": 2, "read": 4}, {"tags": 2}):
            with counted() as counts:
                Workspace.open()
            assert asked_of_the_store(counts) == asked


class TestReadOnly:
    def test_sees_what_open_sees(self, opened: Workspace) -> None:
        name_often(opened, ["news"])
        reading = Workspace.read_only()
        assert reading.ledger.id == opened.ledger.id
        assert reading.ledger.statement(POPULATION) == opened.ledger.statement(POPULATION)
        assert reading.registry.list() == opened.registry.list()
        assert list(reading.catalog.entries()) == []

    def test_waits_for_no_writer(self, budget: Ledger) -> None:
        with budget.transaction() as connection:  # holds the one lock of SQLite
            if connection.dialect.name == "postgresql":
                connection.exec_driver_sql("LOCK TABLE ledger, pointer IN EXCLUSIVE MODE")
            reading = Workspace.read_only()
            assert reading.ledger.statement(POPULATION).spent == 0

    def test_cannot_write(self, sqlite_budget: Ledger) -> None:
        reading = Workspace.read_only()
        with transaction(reading.ledger.engine) as seen, pytest.raises(sa.exc.OperationalError, match="readonly"):
            seen.execute(tables.alias.insert().values(name="n", alias="a", version=1))

    def test_leaves_every_file_as_it_is(self, sqlite_budget: Ledger, home: Path) -> None:
        name_often(Workspace.open(), ["news"], written=False)
        before = files_of(home)
        assert Workspace.read_only().registry.names() == []
        assert files_of(home) == before

    def test_is_empty_where_there_is_no_home_and_makes_none(self, home: Path, tmp_path: Path) -> None:
        home.rmdir()
        workspace = Workspace.read_only()
        assert not workspace.catalog.entries()
        assert not workspace.registry.names()
        with pytest.raises(NotFound, match="people"):
            workspace.ledger.statement(POPULATION)
        assert not home.exists()

    def test_refuses_a_registry_without_its_database(self, sqlite_budget: Ledger, home: Path) -> None:
        name_often(Workspace.open(), ["news"])
        (home / "dpca.sqlite").unlink()
        with pytest.raises(Refused, match="of one ledger together"):
            Workspace.read_only()
