"""The storage fixtures, for tests of what a consumer loads."""

from tests.storage.conftest import budget, catalog, database_url, home, ledger, place, sqlite_ledger

__all__ = ["budget", "catalog", "database_url", "home", "ledger", "place", "sqlite_ledger"]
