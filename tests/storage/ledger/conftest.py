"""Fixtures: a ledger whose rows can be edited manually.

`EDITS` are manual edits of ledger rows, each with the row and the columns that then contradict the journal.
"""

from collections.abc import Mapping

import pytest
import sqlalchemy as sa

from storage.database import tables
from storage.datasets.catalog import Catalog
from storage.ledger.ledger import Ledger
from storage.registry.publishing import add_version, promote
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


EDITS: Mapping[str, tuple[str, str, str]] = {
    "a larger budget": ("UPDATE budget SET epsilon = 100", "budget 'people'", "epsilon"),
    "an older snapshot": ("UPDATE snapshot SET seq = 1", "snapshot ", "seq"),
    "an older release": ("UPDATE release SET seq = 1 WHERE run_key = 'run'", "release ", "seq"),
    "other people": ("UPDATE snapshot SET population = 'nobody'", "snapshot ", "population"),
    "a smaller charge": ("UPDATE release SET charge = :zero WHERE run_key = 'run'", "release ", "charge"),
    "less noise": ("UPDATE release SET event = '{}' WHERE run_key = 'run'", "release ", "event"),
    "a delta": ("UPDATE release SET delta = 0.5 WHERE run_key = 'run'", "release ", "delta"),
    "another request": ("UPDATE release SET request = '{\"k\": 4}' WHERE run_key = 'run'", "release ", "request"),
    "other rows": ("UPDATE release SET snapshot_id = 'x' WHERE run_key = 'run'", "release ", "snapshot_id"),
    "another key": ("UPDATE release SET run_key = 'mine' WHERE run_key = 'run'", "release ", "run_key"),
    "another question": ("UPDATE release SET fingerprint = 'x' WHERE run_key = 'run'", "release ", "fingerprint"),
    "a refund": (
        "UPDATE release SET state = 'abandoned', artifact_digest = NULL WHERE run_key = 'run'",
        "release ",
        "state, artifact_digest",
    ),
    "a release taken back": ("UPDATE release SET state = 'reserved' WHERE run_key = 'begun'", "release ", "state"),
    "an end": ("UPDATE release SET state = 'closed' WHERE run_key = 'waiting'", "release ", "state"),
    "another artifact": (
        "UPDATE release SET artifact_digest = 'x' WHERE state = 'committed'",
        "release ",
        "artifact_digest",
    ),
    "another answer": ("UPDATE step SET digest = 'x'", "step 0 of release ", "digest"),
    "another version": ("UPDATE version SET digest = 'x'", "map@1 ", "digest"),
    "another champion": ("UPDATE alias SET version = 7 WHERE alias = 'champion'", "map@champion ", "version"),
}


def drop_triggers(connection: sa.Connection) -> None:
    """Drop the database triggers, so that all rows can be edited."""
    if connection.dialect.name == "postgresql":
        for table in tables.metadata.tables:
            connection.exec_driver_sql(f"ALTER TABLE {table} DISABLE TRIGGER ALL")
    else:
        names = "SELECT name FROM sqlite_master WHERE type = 'trigger'"
        for name in connection.exec_driver_sql(names).scalars().all():
            connection.exec_driver_sql(f"DROP TRIGGER {name}")
