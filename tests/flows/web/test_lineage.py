"""Lineage says where a version came from, and nothing that a site or the ledger keeps to itself."""

from pathlib import Path

import pytest

from flows.web.versions import version_facts
from storage.workspace import Workspace
from tests.flows.web.sample_home import JOINT


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
