"""The page of a budget says what the ledger says, for every population whatever its name."""

from pathlib import Path

import pytest

from flows.reports.pacing_facts import pacing_facts, runs_that_fit
from flows.web.absent import Absent
from flows.web.budgets import RUNS, address_of, budget_page
from storage.ledger.ledger import Ledger
from storage.workspace import Workspace
from tests.flows.web.sample_home import SPACED


@pytest.fixture
def ledger(shared: Path) -> Ledger:
    return Workspace.read_only().ledger


@pytest.mark.parametrize("population", ["people", SPACED])
def test_the_page_states_what_the_ledger_does(ledger: Ledger, population: str) -> None:
    facts = budget_page(Workspace.read_only(), address_of(population))
    statement = ledger.statement(population)
    assert (facts["spent"], facts["remaining"]) == (statement.spent, statement.remaining)
    assert [row["release"] for row in facts["releases"]] == [row.id for row in statement.releases]
    assert [row["spent"] for row in facts["history"]] == [row["spent"] for row in ledger.history(population)]
    assert facts["voided"] is False


def test_runs_to_come_get_the_shares_that_the_ledger_admits(ledger: Ledger) -> None:
    facts = budget_page(Workspace.read_only(), "people")
    assert [row["runs_left"] for row in facts["pacing"]] == [*RUNS]
    for row in facts["pacing"]:
        assert row == pacing_facts(ledger, "people", runs=row["runs_left"])
    shares = [row["epsilon_each"] for row in facts["pacing"]]
    assert shares == sorted(shares, reverse=True)
    assert shares[0] == pytest.approx(facts["remaining"], rel=1e-6)
    again = facts["same_again"]
    assert again["runs"] == runs_that_fit(ledger, "people", epsilon=again["epsilon"], delta=again["delta"])
    assert again["runs"] > 0


def test_a_void_budget_is_shown_as_one(ledger: Ledger) -> None:
    assert budget_page(Workspace.read_only(), "open")["voided"] is True


def test_streams_are_listed_with_the_ticks_that_are_left(ledger: Ledger) -> None:
    found = budget_page(Workspace.read_only(), "people")["streams"]
    assert found == [{"stream": "nightly", "live": True, "dataset": "news", "ticks": 3, "used": 1}]


def test_no_name_of_a_population_leaves_the_folder_of_budgets_or_meets_another() -> None:
    names = ["people", "People", "../people", "a/b", "a b", ".", "..", "x" * 101, "~abc", "é", SPACED]
    found = [address_of(name) for name in names]
    assert found[0] == "people"
    assert len(set(found)) == len(names)
    assert all(set(address) <= set("abcdefghijklmnopqrstuvwxyz0123456789._-~") for address in found)
    assert not any(address.startswith(".") for address in found)


def test_an_unknown_population_is_absent(ledger: Ledger) -> None:
    with pytest.raises(Absent):
        budget_page(Workspace.read_only(), "nobody")
