"""One subspace of several datasets: all budgets are charged once, or none is; refusals have one line."""

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

from dpca.artifacts.subspace import PrivateSubspace
from dpca.errors import BudgetExhausted
from dpca.registry.reader import Registry
from dpca_tasks.mechanisms.sites import METHODS
from flows import federate
from flows.cli import main
from flows.federate import fit_sites_directly
from flows.requests import SitesRequest
from flows.sites.releases import preview_sites
from storage.ledger.ledger import Ledger
from storage.workspace import Workspace
from tests.flows.conftest import Command, facts_of, isolate
from tests.flows.loaded_modules import loaded_by

PEOPLE, FEATURES, RECORDS = ("north", "east", "south"), 5, 200
FIT = (
    *("sites", "fit", "--datasets", "north,east,south", "--components", 2, "--clip-norm", 2, "--publish", "joint"),
    *("--delta", "1e-4", "--direct", "--yes", "--json"),
)


def ingest(folder: Path, name: str, *words: str, features: int = FEATURES) -> None:
    rng = np.random.default_rng(list(name.encode()))
    rows = np.round(rng.standard_normal((RECORDS, features)) * np.geomspace(1.0, 0.1, features), 4)
    source = folder / f"{name}.npy"
    np.save(source, rows)
    given = ("--name", name, "--records-at-most", str(RECORDS), *words)
    assert main(["dataset", "ingest", str(source), *given, "--direct"]) == 0


@pytest.fixture(scope="module")
def ready_sites(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a home with three datasets of three populations, each with a budget of epsilon 3.

    Three more datasets do not match the others.
    """
    place, folder = tmp_path_factory.mktemp("sites"), tmp_path_factory.mktemp("sources")
    with pytest.MonkeyPatch.context() as patch:
        isolate(patch, home=place)
        for name in (*PEOPLE, "poor"):
            ingest(folder, name)
        ingest(folder, "twin", "--population", "north")
        ingest(folder, "wide", features=FEATURES + 1)
        for name in (*PEOPLE, "wide"):
            assert main(["budget", "open", name, "--epsilon", "3", "--delta", "1e-4"]) == 0
    return place


@pytest.fixture
def sites(ready_sites: Path, home: Path) -> Path:
    """Return a separate copy of the home with datasets of sites, set as the current home."""
    shutil.copytree(ready_sites, home)
    return home


def spent(*people: str) -> list[float]:
    ledger = Workspace.read_only().ledger
    return [round(ledger.statement(name).spent, 3) for name in people]


def request(**others: object) -> SitesRequest:
    given = {"datasets": "north,east,south", "method": "conv", "components": 2, "clip_norm": 2.0, "delta": 1e-4}
    return SitesRequest(**{**given, "epsilon": 1.0, "publish": "joint", **others})  # type: ignore[arg-type]


@pytest.mark.parametrize("method", sorted(METHODS))
@pytest.mark.usefixtures("sites")
def test_every_site_that_takes_part_pays_once_and_the_artifact_names_their_releases(dpca: Command, method: str) -> None:
    words = (*FIT, "--method", method, "--epsilon", "2")
    shown = json.loads(dpca(*words, "--dry-run").out)
    assert (shown["fits"], shown["exists"], spent(*PEOPLE)) == (True, False, [0, 0, 0])
    ended = dpca(*words)
    assert ended.status == 0, ended.err
    report = json.loads(ended.out)
    paid = [2.0, 0.0, 0.0] if method == "local" else [2.0] * 3
    assert spent(*PEOPLE) == pytest.approx(paid, abs=0.01)
    subspace = Registry.open().load("joint@1", PrivateSubspace)
    lineage = [site["release"] for site in subspace.manifest["plan"]["sites"]]
    assert lineage == [site["release"] for site in report["sites"]]
    assert subspace.manifest["release"] == lineage[0]
    states = {Workspace.read_only().ledger.release(each).state for each in lineage}
    assert states == {"committed"}
    again = json.loads(dpca(*words).out)
    assert (again["digest"], again["reused"], again["artifact"]) == (report["digest"], True, "joint@1")
    assert spent(*PEOPLE) == pytest.approx(paid, abs=0.01)


@pytest.mark.usefixtures("sites")
def test_a_dry_run_loads_no_orchestrator() -> None:
    shown, loaded = loaded_by(*FIT, "--method", "conv", "--epsilon", 1, "--dry-run", heavy=("prefect",))
    assert (json.loads(shown)["fits"], loaded) == (True, [])


@pytest.mark.usefixtures("sites")
def test_the_confirmation_states_each_remaining_budget_before_and_after() -> None:
    of = r"of budget '{}', with epsilon 3 left before and 2\.\d+ after"
    budgets = ", and ".join(of.format(name) for name in PEOPLE)
    assert re.fullmatch(rf"Spend epsilon 1 at delta 0\.0001 {budgets}\?", preview_sites(request()).question)


@pytest.mark.usefixtures("sites")
def test_no_budget_is_charged_if_one_budget_refuses_its_part(dpca: Command) -> None:
    assert dpca(*FIT, "--datasets", "south,east", "--method", "local", "--epsilon", "2").status == 0
    ended = dpca(*FIT, "--method", "conv", "--epsilon", "2.5")
    assert ended.status == 3
    assert "budget 'south'" in ended.err
    assert spent("north", "east") == [0, 0]


@pytest.mark.usefixtures("sites")
def test_reservations_are_undone_if_a_later_budget_refuses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Spend the last site's budget between the quote and the charge: the reservations of the others are undone."""

    def refuse_south(ledger, population, **others):
        if population == "south":
            raise BudgetExhausted("budget 'south' was spent by another release.")
        return reserve(ledger, population, **others)

    reserve = Ledger.reserve
    with monkeypatch.context() as patch:
        patch.setattr(Ledger, "reserve", refuse_south)
        with pytest.raises(BudgetExhausted):
            fit_sites_directly(request())
    assert spent(*PEOPLE) == [0, 0, 0]
    assert fit_sites_directly(request())["artifact"] == "joint@1", "the same request is not lost"
    assert spent(*PEOPLE) == pytest.approx([1.0] * 3, abs=0.01)


@pytest.mark.parametrize("stage", ["compute_sites", "publish_sites", "finish_sites", "report_sites"])
@pytest.mark.usefixtures("sites")
def test_a_killed_run_continues_and_is_charged_once(monkeypatch: pytest.MonkeyPatch, stage: str) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(federate, stage, lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            fit_sites_directly(request())
    charged = spent(*PEOPLE)
    assert charged == pytest.approx([1.0] * 3, abs=0.01)
    report = fit_sites_directly(request())
    assert (report["artifact"], spent(*PEOPLE)) == ("joint@1", charged)


@pytest.mark.usefixtures("sites")
def test_missing_commits_are_made_by_repeating_the_request(monkeypatch: pytest.MonkeyPatch) -> None:
    def commit_lead(ledger, release_id, **others):
        if ledger.release(release_id).population != "north":
            raise ZeroDivisionError
        return commit(ledger, release_id, **others)

    commit = Ledger.commit
    with monkeypatch.context() as patch:
        patch.setattr(Ledger, "commit", commit_lead)
        with pytest.raises(ZeroDivisionError):
            fit_sites_directly(request())
    report = fit_sites_directly(request())
    ledger = Workspace.read_only().ledger
    assert [ledger.release(site["release"]).state for site in report["sites"]] == ["committed"] * 3


REFUSED = {
    ("--datasets", "north"): "has one dataset",
    ("--datasets", "north,north"): "both belong to population 'north'",
    ("--datasets", "north,twin"): "datasets north, twin both belong to population 'north'",
    ("--datasets", "north,wide"): "has 6 columns and 'north' has 5",
    ("--datasets", "north,poor"): "population 'poor' has no budget",
    ("--datasets", "north,nobody"): "dataset 'nobody' does not exist",
    ("--method", "best"): "method='best' is not one of",
    ("--settings", "speed=2"): "conv has no setting 'speed'",
    ("--clip-norm", "0"): "clip_norm=0",
    ("--components", "5"): "n_components=5",
}


def test_incompatible_datasets_are_refused_in_one_line_before_any_charge(sites: Path, dpca: Command) -> None:
    before = facts_of(sites)
    for words, text in REFUSED.items():
        assert text in dpca(*FIT, "--method", "conv", "--epsilon", "1", *words).complaint(1)
    assert facts_of(sites) == before


@pytest.mark.usefixtures("sites")
def test_a_run_key_names_one_request(dpca: Command) -> None:
    words = (*FIT, "--method", "conv", "--run-key", "spring")
    assert dpca(*words, "--epsilon", "1").status == 0
    assert "run key" in dpca(*words, "--epsilon", "0.5").complaint(1)
    assert spent(*PEOPLE) == pytest.approx([1.0] * 3, abs=0.01)
