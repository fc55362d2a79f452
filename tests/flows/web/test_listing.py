"""Lists come from rows: a thousand versions cost the same few queries as three, and no artifact is read for them."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from flows.web.listing import name_facts, overview_facts
from flows.web.pages import Site
from storage.artifacts import files
from storage.backends.local import LocalPlace
from storage.database.engine import transaction
from storage.workspace import Workspace
from tests.flows.web.sample_home import SPACED, add_versions


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Iterator[Counter[str]]:
    """Count statements of the database and files of the store that are read."""
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
    sample: Path, asked: Counter[str], page: str
) -> None:
    site = Site(live=True)
    add_versions("visits-map", 1)  # which leaves no note of the total, as those below
    asked.clear()
    assert site.answer(page).status == 200
    few = asked.copy()
    add_versions("visits-map", 996, after=1)
    asked.clear()
    assert site.answer(page).status == 200
    assert asked == few
    assert asked["file"] == 0
    assert 0 < asked["statement"] < 40
    assert len(name_facts(Workspace.read_only(), "visits-map")["versions"]) == 1000


def test_a_name_has_its_versions_newest_first_with_terms_dataset_and_aliases(shared: Path) -> None:
    facts = name_facts(Workspace.read_only(), "visits-map")
    assert [row["artifact"] for row in facts["versions"]] == ["visits-map@3", "visits-map@2", "visits-map@1"]
    assert facts["aliases"] == {"champion": 1, "challenger": 3}
    oldest = facts["versions"][-1]
    asked = {"mechanism": "analyze_gauss", "dataset": "visits", "population": "people", "epsilon": 0.5, "delta": 1e-6}
    assert oldest | asked == oldest
    assert (oldest["aliases"], oldest["private"], oldest["sites"]) == (["champion"], True, 0)
    moves = [(move["alias"], move["before"], move["version"]) for move in facts["alias_history"]]
    newest_first = [("challenger", None, 3), ("champion", 2, 1), ("champion", 1, 2), ("champion", None, 1)]
    assert moves == newest_first


def test_joint_versions_ticks_and_exact_results_are_told_apart(shared: Path) -> None:
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
