"""A row that was changed, removed or put in by hand does not agree with the journal, and is found."""

from dataclasses import asdict

import pytest
import sqlalchemy as sa

from storage.database import tables
from storage.errors import Corrupt
from storage.ledger import journal
from storage.ledger.budgets import read_budget
from storage.ledger.journal_check import compare
from storage.ledger.ledger import Ledger
from storage.workspace import Workspace
from tests.storage.ledger.edits import EDITS


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
