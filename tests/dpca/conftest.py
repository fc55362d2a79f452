"""Storage fixtures for the tests of the public package ``dpca``."""

from tests.storage.conftest import budget, catalog, database_url, home, ledger, place, sqlite_ledger

__all__ = ["budget", "catalog", "database_url", "home", "ledger", "place", "sqlite_ledger"]
