"""Settings shared by all tests.

Hypothesis generates the same examples in every run, and no example has a deadline.
"""

import os
from collections.abc import Iterator

import pytest
from hypothesis import settings

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


@pytest.fixture(scope="session", autouse=True)
def _own_state(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Redirect the witness of every test away from the user's own state folder.

    A test that copies a home assigns the copy another folder.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DPCA_STATE_FOLDER", str(tmp_path_factory.mktemp("state")))
        yield


@pytest.fixture(scope="session")
def postgres() -> Iterator[Server]:
    """Run one PostgreSQL server for all tests."""
    with running_server() as server:
        yield server


@pytest.fixture(scope="session")
def postgres_url(postgres: Server) -> str:
    """Return the URL of the PostgreSQL server, with the database that always exists."""
    return f"{postgres.url}/postgres"


@pytest.fixture(scope="session")
def s3_server() -> Iterator[s3.Server]:
    """Run one S3 server for all tests that neither stop nor lock it; each test has its own prefix."""
    with s3.serve() as server:
        yield server
