"""Fixtures for the tests of ``dpca``: storage, a separate state folder for each test, and a signed registry."""

from tests.storage.conftest import budget, catalog, database_url, home, ledger, place, sqlite_ledger
from tests.storage.registry.conftest import made, publishers_home, state

__all__ = [
    "budget",
    "catalog",
    "database_url",
    "home",
    "ledger",
    "made",
    "place",
    "publishers_home",
    "sqlite_ledger",
    "state",
]
