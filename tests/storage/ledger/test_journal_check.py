"""A row that was changed, removed or put in by hand does not agree with the journal, and is found."""

from collections.abc import Mapping
from dataclasses import asdict

import pytest
import sqlalchemy as sa

from storage.database import tables
from storage.datasets.catalog import Catalog
from storage.errors import Corrupt
from storage.ledger import journal
from storage.ledger.budgets import read_budget
from storage.ledger.journal_check import compare
from storage.ledger.ledger import Ledger
from storage.registry.publishing import add_version, promote
from storage.workspace import Workspace
from tests.storage.releasing import ANSWER, begin, manifest, open_budget, reserve

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


@pytest.fixture
def used(ledger: Ledger) -> Ledger:
    """Return a ledger in which something of every kind happened; its database lets everything be edited."""
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
        if connection.dialect.name == "postgresql":
            for table in tables.metadata.tables:
                connection.exec_driver_sql(f"ALTER TABLE {table} DISABLE TRIGGER ALL")
        else:
            names = "SELECT name FROM sqlite_master WHERE type = 'trigger'"
            for name in connection.exec_driver_sql(names).scalars().all():
                connection.exec_driver_sql(f"DROP TRIGGER {name}")
    return ledger


def found(ledger: Ledger, statement: str) -> str:
    """Edit a row, return what is said to it, and put the row back."""
    with ledger.engine.connect() as connection:
        assert connection.execute(sa.text(statement), {"zero": bytes(64)} if ":zero" in statement else {}).rowcount == 1
        with pytest.raises(Corrupt) as caught:
            compare(connection)
        connection.rollback()
    text = str(caught.value)
    assert text.endswith("; restore the database from a copy, and accept it with `dpca budget accept-restored`.")
    assert "\n" not in text
    return text


def test_what_happened_agrees_also_after_it_was_accepted_as_restored(used: Ledger) -> None:
    count = used.verify()
    assert Workspace.open(accept_restored="a drill").ledger.verify() == count + 1


def test_a_row_that_was_edited_is_found(used: Ledger) -> None:
    for statement, name, columns in EDITS.values():
        text = found(used, statement)
        assert text.startswith(f"the row of {name}")
        assert f"does not say what the journal says ({columns});" in text


def test_a_row_that_was_removed_is_missed(used: Ledger) -> None:
    for row, name in {
        "step": "step 0 of release ",
        "alias WHERE alias = 'shadow'": "map@shadow",
        "version": "map@1",
    }.items():
        text = found(used, f"DELETE FROM {row}")
        assert text.startswith(f"the journal tells of {name}")
        assert "whose row is gone" in text


def test_a_row_that_was_put_in_is_found(used: Ledger) -> None:
    columns = ", ".join(column.name for column in tables.release.c if column.name not in ("id", "run_key"))
    text = found(used, f"INSERT INTO release (id, run_key, {columns}) SELECT 'x', 'x', {columns} FROM release LIMIT 1")
    assert text.startswith("the journal knows nothing of release x, which has a row;")


def test_the_ledger_says_so_when_it_is_verified(used: Ledger) -> None:
    with used.engine.begin() as connection:
        connection.exec_driver_sql("UPDATE budget SET epsilon = 100")
    with pytest.raises(Corrupt, match=r"the row of budget 'people' .* \(epsilon\)"):
        used.verify()


def test_a_budget_that_is_opened_twice_is_refused(budget: Ledger) -> None:
    with budget.transaction() as connection:
        terms = asdict(read_budget(connection, "people"))
        del terms["population"]
        journal.append(connection, "budget_opened", population="people", detail=terms)
    with pytest.raises(Corrupt, match="the journal opens budget 'people' twice, and terms never change"):
        budget.verify()
