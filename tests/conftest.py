"""Settings shared by all tests: examples are the same in every run, and no test is a stopwatch."""

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
"""Whether tests are collected for PostgreSQL too; on CI they are, and fail where its programs are missing."""


def pytest_report_header() -> str:
    """Say which databases the record is tested on."""
    if ON_POSTGRESQL:
        return "databases: SQLite, PostgreSQL"
    return "databases: SQLite alone, as PostgreSQL's server programs (initdb, postgres) are not installed"


@pytest.fixture(scope="session", autouse=True)
def _own_state(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep every witness apart from this user's own; a test that copies a home gives the copy another folder."""
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
    """Return the address of that server, with the database that is always there."""
    return f"{postgres.url}/postgres"


@pytest.fixture(scope="session")
def s3_server() -> Iterator[s3.Server]:
    """Run one server of the S3 protocol for all tests that neither stop nor lock it; each has a prefix of its own."""
    with s3.serve() as server:
        yield server
