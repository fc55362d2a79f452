"""Fixtures: a new ledger for each test, on SQLite and on PostgreSQL."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from dpca.backends.base import Place
from dpca.home import store
from storage.database import tables
from storage.database.engine import connect, transaction
from storage.datasets.catalog import Catalog
from storage.ledger.ledger import Ledger
from storage.workspace import Workspace
from tests.conftest import ON_POSTGRESQL
from tests.postgres import Server
from tests.s3 import Server as ObjectServer
from tests.storage.releasing import open_budget

DATABASES = ("sqlite", "postgresql") if ON_POSTGRESQL else ("sqlite",)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an empty home, configured as the home of `Workspace.open()`, with a SQLite database."""
    folder = tmp_path / "home"
    folder.mkdir(mode=0o700)
    monkeypatch.setenv("DPCA_HOME", str(folder))
    monkeypatch.delenv("DPCA_DATABASE_URL", raising=False)
    monkeypatch.delenv("DPCA_KEY_FOLDER", raising=False)
    return folder


@pytest.fixture(params=DATABASES)
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """Yield the URL of an empty database, once on SQLite and once on PostgreSQL."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'dpca.sqlite'}"
        return
    server: Server = request.getfixturevalue("postgres")
    with server.database() as url:
        yield url


@pytest.fixture
def place(tmp_path: Path, s3_server: ObjectServer, monkeypatch: pytest.MonkeyPatch) -> Place:
    """Return an empty prefix of an object store, configured as the store of this process."""
    s3_server.enter(monkeypatch)
    monkeypatch.setenv("DPCA_STORE_URL", s3_server.url(tmp_path.name))
    return store()


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[Catalog]:
    """Return an empty catalog of a separate home with a SQLite database."""
    engine = connect(f"sqlite:///{tmp_path / 'dpca.sqlite'}")
    with transaction(engine) as connection:
        connection.execute(tables.ledger.insert().values(id="a" * 32, created_at="2026-01-01"))
    yield Catalog(engine, tmp_path / "home")
    engine.dispose()


@pytest.fixture
def ledger(home: Path, database_url: str, monkeypatch: pytest.MonkeyPatch) -> Ledger:
    """Open a new ledger in `database_url`."""
    monkeypatch.setenv("DPCA_DATABASE_URL", database_url)
    return Workspace.open().ledger


@pytest.fixture
def sqlite_ledger(home: Path) -> Ledger:
    """Open a new ledger on SQLite, for tests that do not depend on the database."""
    return Workspace.open().ledger


@pytest.fixture
def budget(ledger: Ledger) -> Ledger:
    """Return a ledger with a budget for ten releases of the event `TENTH`."""
    open_budget(ledger)
    return ledger


@pytest.fixture
def sqlite_budget(sqlite_ledger: Ledger) -> Ledger:
    """Return a ledger on SQLite with the same budget."""
    open_budget(sqlite_ledger)
    return sqlite_ledger


class Interrupted:
    """Interrupts an ingest after a given number of batches."""

    def __init__(self, after: int) -> None:
        self.left = after

    def __call__(self, phase: str, done: int, size: int, rows: int) -> None:
        self.left -= 1
        if self.left == 0:
            raise KeyboardInterrupt
