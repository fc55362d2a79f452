"""Fixtures: a ledger whose rows can be edited manually."""

import pytest

from storage.datasets.catalog import Catalog
from storage.ledger.ledger import Ledger
from storage.registry.publishing import add_version, promote
from tests.storage.ledger.edits import drop_triggers
from tests.storage.releasing import ANSWER, begin, manifest, open_budget, reserve


@pytest.fixture
def used(ledger: Ledger) -> Ledger:
    """Return a ledger with at least one row in every table, whose database permits every edit."""
    return _used(ledger)


@pytest.fixture
def used_on_sqlite(sqlite_ledger: Ledger) -> Ledger:
    """Return the same kind of ledger on SQLite."""
    return _used(sqlite_ledger)


def _used(ledger: Ledger) -> Ledger:
    open_budget(ledger)
    catalog = Catalog(ledger.engine, ledger.home)
    admitted = catalog.admit(name="news", population="people")
    catalog.register(manifest(admitted), path="datasets/news/s")
    begun = begin(ledger)
    begun.keep(0, ANSWER)
    digest = "d" * 64
    ledger.commit(
        begun.release_id,
        artifact_digest=digest,
        record=lambda connection: add_version(connection, name="map", digest=digest, release_id=begun.release_id),
    )
    for alias in ("champion", "champion", "shadow"):
        with ledger.transaction() as connection:
            promote(connection, name="map", version=1, alias=alias)
    begin(ledger, "begun")
    reserve(ledger, "waiting")
    ledger.abandon(reserve(ledger, "given up").release_id)
    ledger.close(begin(ledger, "closed").release_id)
    with ledger.engine.begin() as connection:
        drop_triggers(connection)
    return ledger
