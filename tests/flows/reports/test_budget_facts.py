"""The rows of ``dpca budget list``: one for each budget, with every release that was charged or may still be."""

from pathlib import Path

import pytest

from flows.reports.budget_facts import balances
from storage.workspace import Workspace
from tests.storage.releasing import EPSILON, begin, commit, open_budget, reserve


def test_every_release_that_was_not_abandoned_is_counted(home: Path) -> None:
    ledger = Workspace.open().ledger
    open_budget(ledger, "people")
    open_budget(ledger, "films")
    reserve(ledger, "waiting", population="people")
    begin(ledger, "begun", population="people")
    commit(ledger, begin(ledger, "committed", population="people").release_id)
    ledger.close(begin(ledger, "closed", population="people").release_id)
    ledger.abandon(reserve(ledger, "given up", population="people").release_id)
    films, people = balances(ledger)
    assert [(row["population"], row["releases"]) for row in (films, people)] == [("films", 0), ("people", 4)]
    assert (films["spent"], films["remaining"]) == (0.0, pytest.approx(EPSILON, rel=1e-6))
    assert 0.0 < people["spent"] < EPSILON
    assert people["remaining"] < films["remaining"]
    assert home.is_dir()
