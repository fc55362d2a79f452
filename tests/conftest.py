"""Settings and fixtures shared by all tests.

Hypothesis generates the same examples in every run, and no example has a deadline.
"""

import gc
import os
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from hashlib import sha256
from typing import Any

import pytest
import sqlalchemy as sa
from hypothesis import settings

from storage.database import engine
from tests import s3
from tests.postgres import Server, find_programs, running_server

pytest_plugins = ["tests.audits.report"]

settings.register_profile("repeatable", deadline=None, derandomize=True, database=None)
settings.load_profile("repeatable")

ON_POSTGRESQL = find_programs() is not None or bool(os.environ.get("CI"))
"""Whether ledger tests also run on PostgreSQL. On CI they always do, and fail where the server programs are missing."""


def pytest_report_header() -> str:
    """Report the databases on which the ledger is tested."""
    if ON_POSTGRESQL:
        return "databases: SQLite, PostgreSQL"
    return "databases: SQLite alone, as PostgreSQL's server programs (initdb, postgres) are not installed"


def pytest_collection_finish() -> None:
    """Exclude the objects created by test collection, about a million, from later garbage collections.

    These objects live as long as the process, so scanning them costs time and frees nothing. Later collections start
    a tenth as often as usual.
    """
    gc.freeze()
    gc.set_threshold(20_000)


@pytest.fixture(scope="session", autouse=True)
def _own_state(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Use a temporary state folder in every test, so that no test changes the user's own ledger witness.

    A test that copies a home assigns another state folder to the copy.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DPCA_STATE_FOLDER", str(tmp_path_factory.mktemp("state")))
        yield


class _Keys:
    """Keys of 32 bytes that follow from the name of a test, or of a fixture that several tests share.

    Each run of a test then has the same noise, whichever tests ran before it in the same process. Unlucky noise could
    violate a bound on an estimate. Draws of other sizes, for example the 16 bytes of a UUID, and the draws of child
    processes remain random.
    """

    def __init__(self) -> None:
        self._draw, self._process = os.urandom, os.getpid()
        self._drawn = Counter[str]()
        self._fixtures: list[str] = []

    def __call__(self, size: int) -> bytes:
        if size != 32 or os.getpid() != self._process:
            return self._draw(size)
        name = self._fixtures[-1] if self._fixtures else os.environ.get("PYTEST_CURRENT_TEST", "")
        self._drawn[name] += 1
        return sha256(f"{name} {self._drawn[name]}".encode()).digest()

    @contextmanager
    def of_fixture(self, name: str) -> Iterator[None]:
        """Let the keys that are drawn inside the context follow from the name of a fixture."""
        del self._drawn[name]
        self._fixtures.append(name)
        try:
            yield
        finally:
            self._fixtures.pop()


_keys = _Keys()


@pytest.fixture(scope="session", autouse=True)
def _same_keys_in_every_run() -> Iterator[None]:
    """Replace the keys that this process draws by keys that are the same in every run of a test."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "urandom", _keys)
        yield


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef: pytest.FixtureDef[Any], request: pytest.FixtureRequest) -> Iterator[None]:
    """Set up a fixture that several tests share with keys that do not depend on the test that requests it first."""
    if fixturedef.scope == "function":
        return (yield)
    with _keys.of_fixture(f"{request.node.nodeid} {fixturedef.argname} {getattr(request, 'param', '')}"):
        return (yield)


@pytest.fixture(scope="session", autouse=True)
def _migrated_once() -> Iterator[None]:
    """Migrate the first empty SQLite database with Alembic, and replay the recorded statements for all others.

    The resulting schema is the same. Alembic takes most of the time of opening a new home, and runs only once. A
    database that already has a migration is migrated as usual.
    """
    migrate, recorded = engine.migrate, list[tuple[str, Any]]()

    def migrate_or_repeat(connection: sa.Connection) -> None:
        if connection.dialect.name != "sqlite" or engine.migration_of(connection) is not None:
            migrate(connection)
        elif recorded:
            for statement, parameters in recorded:
                connection.exec_driver_sql(statement, parameters)
        else:
            recorded.extend(_statements_of(migrate, connection))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine, "migrate", migrate_or_repeat)
        yield


def _statements_of(act: Callable[[sa.Connection], None], connection: sa.Connection) -> list[tuple[str, Any]]:
    """Run a migration, and return the SQL statements that write to the database."""
    found: list[tuple[str, Any]] = []

    def note(_: Any, cursor: Any, statement: str, parameters: Any, *others: Any) -> None:
        if not statement.startswith(("PRAGMA", "SELECT")):
            found.append((statement, parameters))

    sa.event.listen(connection, "before_cursor_execute", note)
    try:
        act(connection)
    finally:
        sa.event.remove(connection, "before_cursor_execute", note)
    return found


@pytest.fixture(scope="session")
def postgres() -> Iterator[Server]:
    """Run one PostgreSQL server for all tests."""
    with running_server() as server:
        yield server


@pytest.fixture(scope="session")
def postgres_url(postgres: Server) -> str:
    """Return the URL of the PostgreSQL server, with the database that exists on every server."""
    return f"{postgres.url}/postgres"


@pytest.fixture(scope="session")
def s3_server() -> Iterator[s3.Server]:
    """Run one S3 server for all tests that neither stop nor lock the server; each test uses a separate prefix."""
    with s3.serve() as server:
        yield server
