"""Lineage says where a version came from, and nothing that a site or the ledger keeps to itself."""

from pathlib import Path

import pytest

from flows.reports.budget_facts import pacing_facts, runs_that_fit
from flows.web.listing import overview_facts
from flows.web.page_facts import RUNS, Absent, address_of, budget_page, version_facts
from flows.web.pages import Site
from storage.ledger.ledger import Ledger
from storage.registry.pointers import Pointer
from storage.workspace import Workspace
from tests.flows.conftest import Command
from tests.flows.web.sample_home import JOINT, SPACED, Maker, subspace


def lineage(name: str, version: int = 1):
    return version_facts(Workspace.read_only(), name, version)["lineage"]


def test_a_restated_release_names_its_parent_and_both_are_of_one_release(shared: Path) -> None:
    made, source = lineage("visits-two"), lineage("visits-map")
    assert made["made_from"] == ["visits-map@1"]
    assert made["parent"] == Workspace.read_only().registry.resolve("visits-map@1").digest
    assert (made["same_release"], source["same_release"]) == (["visits-map@1"], ["visits-two@1"])
    assert source["made_from"] == []


def test_an_estimate_and_what_it_evaluates_name_each_other(shared: Path) -> None:
    assert lineage("visits-map.evaluation")["evaluates"] == "visits-map@1"
    assert lineage("visits-map", 1)["evaluated_by"] == ["visits-map.evaluation@1"]
    assert lineage("visits-map", 2)["evaluated_by"] == []


def test_a_tick_names_its_stream_and_its_slot(shared: Path) -> None:
    assert lineage("nightly")["stream"] == {"name": "nightly", "tick": 1, "slot": "night 1", "ticks": 3}
    assert lineage("visits-map")["stream"] is None


def test_sites_are_listed_by_a_closed_list_of_facts(shared: Path) -> None:
    found = lineage("joint-map")
    assert found["sites"] == [{"site": "north", "release": 32 * "1"}, {"site": "south", "release": 32 * "2"}]
    assert found["release"] == JOINT


@pytest.mark.parametrize("page", ["versions/visits-map@1", "versions/nightly@1"])
def test_neither_snapshots_nor_run_keys_are_told(site, page: str) -> None:
    for ending in (".html", ".json"):
        content = site.answer(page + ending).content
        for hidden in (b"5" * 32, b"s" * 32, b"people-0", b"fingerprint"):
            assert hidden not in content


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


def test_a_damaged_pointer_is_marked_in_the_rows_of_its_own_name_alone(sample: Path, dpca: Command) -> None:
    Maker().publish("broken", lambda **facts: subspace(seed=7, **facts), request={"publish": "broken"})
    pointer = sample / Pointer.path("broken")
    pointer.write_bytes(pointer.read_bytes()[:-9])
    facts = budget_page(Workspace.read_only(), "people")
    assert [(row["damaged"], row["artifact"]) for row in facts["releases"] if row["damaged"]] == [("broken", None)]
    assert any(row["artifact"] for row in facts["releases"])
    assert not any(row["damaged"] for row in budget_page(Workspace.read_only(), "open")["releases"])
    assert [row["name"] for row in overview_facts(Workspace.read_only())["names"] if row["damaged"]] == ["broken"]
    chart = "charts/budgets/people/burn-down-light.svg"
    for page in ("index.html", "budgets/people.html", "names/broken.html", "names/visits-map.html", chart):
        answer = Site(live=True).answer(page)
        assert answer.status == 200
        assert (b"pointer file damaged" in answer.content) == (page in ("index.html", "budgets/people.html"))
    shown = dpca("budget", "show", "people")
    assert shown.status == 0
    assert "broken (pointer file damaged)" in shown.out
