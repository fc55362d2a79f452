"""Facts on web pages: lineage, lists, charts and differences are correct and public.

Lineage states where a version came from, and nothing private to a site or the ledger. A list of a thousand versions
needs the same few queries as one of three, and no artifact is read for it. Charts are drawn once, in the colors of
either theme. Differences equal a direct computation on the released arrays, on the features that both versions name.
"""

import json
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import sqlalchemy as sa

from dpca.artifacts import files
from dpca.artifacts.subspace import PrivateSubspace
from dpca.backends.local import LocalPlace
from dpca.registry.pointers import Pointer
from dpca_tasks.metrics import principal_angles
from flows.reports.budget_facts import pacing_facts, runs_that_fit
from flows.reports.release_charts import budget_chart, loadings_chart, render, scree_chart
from flows.reports.spectrum import Spectrum
from flows.web.differences import difference_facts, in_theme
from flows.web.listing import name_facts, overview_facts
from flows.web.page_facts import RUNS, Absent, address_of, budget_page, version_facts
from flows.web.pages import Site
from storage.database.engine import transaction
from storage.ledger.ledger import Ledger
from storage.workspace import Workspace
from tests.flows.conftest import Command
from tests.flows.web.conftest import FEATURES, JOINT, NAMES, SPACED, Maker, add_versions, subspace


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
def test_neither_snapshots_nor_run_keys_are_reported(site, page: str) -> None:
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


def test_future_runs_get_the_shares_that_the_ledger_admits(ledger: Ledger) -> None:
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


def test_streams_are_listed_with_their_remaining_ticks(ledger: Ledger) -> None:
    found = budget_page(Workspace.read_only(), "people")["streams"]
    assert found == [{"stream": "nightly", "live": True, "dataset": "news", "ticks": 3, "used": 1}]


def test_names_of_populations_give_distinct_paths_within_the_folder_of_budgets() -> None:
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


@pytest.fixture
def requested(monkeypatch: pytest.MonkeyPatch) -> Iterator[Counter[str]]:
    """Yield counts of the database statements and of the files read from the store."""
    counts: Counter[str] = Counter()
    read = LocalPlace.read

    def counted(place: LocalPlace, path: str, **terms: object) -> object:
        counts["file"] += 1
        return read(place, path, **terms)  # type: ignore[arg-type]

    def executed(*_: object) -> None:
        counts["statement"] += 1

    monkeypatch.setattr(LocalPlace, "read", counted)
    monkeypatch.setattr(files, "read_artifact", None)
    sa.event.listen(sa.Engine, "before_cursor_execute", executed)
    yield counts
    sa.event.remove(sa.Engine, "before_cursor_execute", executed)


@pytest.mark.parametrize("page", ["names/visits-map.html", "names/visits-map.json", "index.html"])
def test_a_thousand_versions_are_listed_with_the_queries_of_three_and_no_file(
    sample: Path, requested: Counter[str], page: str
) -> None:
    site = Site(live=True)
    add_versions("visits-map", 1)  # like the versions added below, this version leaves no stored total in the ledger
    requested.clear()
    assert site.answer(page).status == 200
    few = requested.copy()
    add_versions("visits-map", 996, after=1)
    requested.clear()
    assert site.answer(page).status == 200
    assert requested == few
    assert requested["file"] == 0
    assert 0 < requested["statement"] < 40
    assert len(name_facts(Workspace.read_only(), "visits-map")["versions"]) == 1000


def test_a_name_has_its_versions_newest_first_with_terms_dataset_and_aliases(shared: Path) -> None:
    facts = name_facts(Workspace.read_only(), "visits-map")
    assert [row["artifact"] for row in facts["versions"]] == ["visits-map@3", "visits-map@2", "visits-map@1"]
    assert facts["aliases"] == {"champion": 1, "challenger": 3}
    oldest = facts["versions"][-1]
    requested = {
        "mechanism": "analyze_gauss",
        "dataset": "visits",
        "population": "people",
        "epsilon": 0.5,
        "delta": 1e-6,
    }
    assert oldest | requested == oldest
    assert (oldest["aliases"], oldest["private"], oldest["sites"]) == (["champion"], True, 0)
    moves = [(move["alias"], move["before"], move["version"]) for move in facts["alias_history"]]
    newest_first = [("challenger", None, 3), ("champion", 2, 1), ("champion", 1, 2), ("champion", None, 1)]
    assert moves == newest_first


def test_joint_versions_ticks_and_exact_results_are_listed_separately(shared: Path) -> None:
    workspace = Workspace.read_only()
    joint, tick, exact = (name_facts(workspace, name)["versions"][0] for name in ("joint-map", "nightly", "exact"))
    assert (joint["sites"], joint["mechanism"], joint["population"]) == (2, None, None)
    assert (tick["mechanism"], tick["dataset"]) == ("stream", "news")
    assert (exact["private"], joint["private"]) == (False, True)
    assert name_facts(workspace, "none")["versions"] == []


def test_the_overview_has_each_name_once_and_each_budget_as_the_ledger_states_it(shared: Path) -> None:
    workspace = Workspace.read_only()
    facts = overview_facts(workspace)
    assert [row["name"] for row in facts["names"]] == workspace.registry.names()
    assert {row["name"]: row["versions"] for row in facts["names"]}["visits-map"] == 3
    assert [row["population"] for row in facts["budgets"]] == sorted(["people", "open", SPACED])
    for row in facts["budgets"]:
        statement = workspace.ledger.statement(row["population"])
        assert (row["spent"], row["remaining"]) == (statement.spent, statement.remaining)
    with transaction(workspace.ledger.engine) as connection:
        assert connection.exec_driver_sql("PRAGMA query_only").scalar() == 1


SPECTRUM = Spectrum(eigenvalues=(900.0, 400.0, 60.0, 50.0, 30.0), n_components=3, noise_edge=100.0)
ROWS = [{"feature": name, "loading": size} for name, size in (("#ffffff", 0.8), ("age", -0.5), ("pulse", 0.1))]
RELEASE = {"release": "r" * 32, "epsilon": 0.5, "remaining": 3.4, "state": "committed", "time": "2026-11-23T10:00:00"}
BUDGET = {"population": "people", "epsilon": 4.0, "delta": 1e-6, "remaining": 3.4, "spent": 0.5, "releases": [RELEASE]}


def without_ids(chart: bytes) -> bytes:
    """Remove element ids from a chart, which Matplotlib derives from their content, and so from their colors."""
    return re.sub(rb'(id="|url\(#|href="#)[A-Za-z0-9_]+', rb"\1", chart)


@pytest.mark.parametrize("chart", ["scree", "loadings", "budget"])
def test_a_recolored_chart_equals_one_drawn_in_its_theme(chart: str) -> None:
    def drawn(theme: str) -> bytes:
        match chart:
            case "scree":
                return render(scree_chart(SPECTRUM, name="a@1", theme=theme))
            case "loadings":
                return render(loadings_chart(ROWS, component=1, name="a@1", theme=theme))
        facts = {**BUDGET, "releases": [{**RELEASE, "artifact": "a@1", "mechanism": "analyze_gauss", "event": {}}]}
        return render(budget_chart(json.loads(json.dumps(facts)), theme=theme))

    light, dark = drawn("light"), drawn("dark")
    assert in_theme(light, "light") == light
    assert without_ids(in_theme(light, "dark")) == without_ids(dark) != without_ids(light)


def test_angles_and_shared_variance_are_those_of_the_released_arrays(shared: Path) -> None:
    workspace = Workspace.read_only()
    left, right = (workspace.registry.load(f"visits-map@{n}", PrivateSubspace) for n in (1, 2))
    facts = difference_facts(workspace, "visits-map@1", "visits-map@2")
    np.testing.assert_allclose(facts["angles"], np.degrees(principal_angles(left.components, right.components)))
    assert right.eigenvalues is not None
    projected = right.components @ left.components.T @ left.components
    expected = right.eigenvalues @ np.square(projected).sum(axis=1) / right.eigenvalues.sum()
    assert facts["held_by_left"] == pytest.approx(expected)
    assert 0.0 < facts["overlap"] < 1.0
    assert [(row["left"], row["right"]) for row in facts["eigenvalues"]] == [(900.0, 900.0), (400.0,) * 2, (150.0,) * 2]
    assert facts["features"] == FEATURES


def test_a_version_does_not_differ_from_itself(shared: Path) -> None:
    facts = difference_facts(Workspace.read_only(), "visits-map@1", "visits-map@1")
    np.testing.assert_allclose(facts["angles"], 0.0, atol=1e-5)
    assert (facts["overlap"], facts["held_by_left"], facts["held_by_right"]) == pytest.approx((1.0, 1.0, 1.0))
    assert [row["change"] for row in facts["eigenvalues"]] == [0.0] * 3


def test_versions_of_different_sizes_are_compared_on_common_components(shared: Path) -> None:
    facts = difference_facts(Workspace.read_only(), "visits-map@1", "visits-map@3")
    assert len(facts["angles"]) == 2
    assert facts["eigenvalues"][2]["right"] is None
    assert facts["eigenvalues"][2]["change"] is None


def test_features_are_matched_by_name_in_any_order_and_number(sample: Path) -> None:
    maker, order = Maker(), np.random.default_rng(0).permutation(FEATURES)
    plain = subspace(seed=1)
    turned = replace(
        plain,
        components=plain.components[:, order],
        manifest={**plain.manifest, "feature_names": [NAMES[at] for at in order]},
    )
    for made in (plain, turned):
        maker.publish("same", lambda made=made, **facts: replace(made, manifest={**made.manifest, **facts}))
    facts = difference_facts(Workspace.read_only(), "same@1", "same@2")
    np.testing.assert_allclose(facts["angles"], 0.0, atol=1e-5)
    wider = replace(
        plain,
        components=np.eye(3, 5),
        spectrum=None,
        manifest={"feature_names": [*NAMES[:2], "new", "newer", "newest"], "mechanism": "analyze_gauss"},
    )
    maker.publish("same", lambda **facts: replace(wider, manifest={**wider.manifest, **facts}))
    nameless = {name: fact for name, fact in wider.manifest.items() if name not in ("feature_names", "n_features")}
    maker.publish("same", lambda **facts: replace(wider, manifest={**nameless, **facts}))
    workspace = Workspace.read_only()
    assert difference_facts(workspace, "same@1", "same@3")["features"] == 2
    separate = difference_facts(workspace, "same@1", "same@4")
    assert (separate["comparable"], separate["angles"]) == (False, None)


def test_topics_are_matched_one_to_one_and_items_sorted_by_their_change(shared: Path) -> None:
    workspace = Workspace.read_only()
    topics = difference_facts(workspace, "report-topics@1", "report-topics@2")
    assert sorted(pair["left"] for pair in topics["pairs"]) == [1, 2]
    assert sorted(pair["right"] for pair in topics["pairs"]) == [1, 2]
    same = difference_facts(workspace, "report-topics@1", "report-topics@1")
    assert [(pair["left"], pair["right"], pair["distance"]) for pair in same["pairs"]] == [(1, 1, 0.0), (2, 2, 0.0)]
    left, right = (workspace.registry.load(f"taste@{n}") for n in (1, 2))
    items = difference_facts(workspace, "taste@1", "taste@2")
    furthest = int(np.argmax(np.abs(right.offsets - left.offsets)))
    assert items["moved"][0]["feature"] == NAMES[furthest]
    assert items["moved"][0]["change"] == pytest.approx((right.offsets - left.offsets)[furthest])


def test_estimates_are_compared_by_value_and_different_kinds_are_refused(shared: Path) -> None:
    workspace = Workspace.read_only()
    facts = difference_facts(workspace, "visits-map.evaluation@1", "visits-map.evaluation@1")
    assert {"name": "share", "left": 0.66, "right": 0.66} in facts["numbers"]
    with pytest.raises(Absent, match="compare two releases of one kind"):
        difference_facts(workspace, "visits-map@1", "taste@1")
    with pytest.raises(Absent, match="versions 1 to 3"):
        difference_facts(workspace, "visits-map@1", "visits-map@9")
