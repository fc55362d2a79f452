"""One subspace of several datasets: all budgets are charged once, or none is; refusals have one line."""

import json
import re
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpca.artifacts.subspace import PrivateSubspace
from dpca.errors import BudgetExhausted
from dpca.registry.reader import Registry
from dpca_tasks.mechanisms.sites import METHODS
from dpca_tasks.mechanisms.sites.joint_plan import LocalParties
from flows.cli import main
from flows.requests import SitesRequest
from flows.sites import releases
from flows.sites.releases import fit_sites_directly, preview_sites
from storage.ledger.ledger import Ledger
from storage.workspace import Workspace
from tests.flows.conftest import Command, damage, facts_of, isolate, loaded_by

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
        patch.setattr(releases, stage, lambda *_: 1 / 0)
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
    ("--datasets", "north,wide"): "has 6 columns, but dataset 'north' has 5",
    ("--datasets", "north,poor"): "population 'poor' has no budget",
    ("--datasets", "north,nobody"): "dataset 'nobody' does not exist",
    ("--method", "best"): "method='best' is not one of",
    ("--settings", "speed=2"): "conv has no setting 'speed'",
    ("--clip-norm", "0"): "clip_norm=0",
    ("--components", "5"): "n_components=5",
    ("--rounds", "3"): "rounds=3 is for cape_pca, but method=conv",
    ("--method", "cape_pca", "--rounds", "4"): "rounds=4 must be less than or equal to 3",
    ("--like", "joint@1"): "like=joint@1 is for cape_pca, but method=conv",
    ("--method", "cape_pca", "--like", "joint"): "does not name a version as NAME@VERSION",
    ("--method", "cape_pca", "--like", "joint@champion"): "does not name a version as NAME@VERSION",
    ("--method", "cape_pca", "--like", "joint@1"): "joint",
    ("--method", "cape_pca", "--like", "joint@1", "--rounds", "2"): "like needs one round, but rounds=2",
}


def test_incompatible_datasets_are_refused_in_one_line_before_any_charge(sites: Path, dpca: Command) -> None:
    before = facts_of(sites)
    for words, text in REFUSED.items():
        assert text in dpca(*FIT, "--method", "conv", "--epsilon", "1", *words).complaint(1)
    assert facts_of(sites) == before


CAPE: dict[str, Any] = {"method": "cape_pca", "clip_norm": 2.0}


@pytest.mark.usefixtures("sites")
def test_datasets_of_one_home_have_rounds_by_default_and_later_a_start() -> None:
    first = fit_sites_directly(request(**CAPE))
    before = spent(*PEOPLE)
    second = fit_sites_directly(request(**CAPE, like="joint@1"))
    assert (first["artifact"], second["artifact"]) == ("joint@1", "joint@2")
    assert len({*before}) == len({*spent(*PEOPLE)}) == 1
    assert before[0] < spent("north")[0] < 2 * before[0]
    rounds, warm = (Registry.open().load(f"joint@{version}", PrivateSubspace) for version in (1, 2))
    assert (rounds.manifest["plan"]["rounds"], len(rounds.outcome["rounds"]["noise_std"])) == (3, 3)
    assert rounds.manifest["plan"]["shares"] == [0.1, 0.3, 0.6]
    assert [warm.manifest["plan"][name] for name in ("like", "like_digest")] == ["joint@1", first["digest"]]
    assert len(warm.outcome["rounds"]["noise_std"]) == 1
    assert fit_sites_directly(request(**CAPE, like="joint@1"))["reused"]
    assert preview_sites(request(**CAPE, like="joint@2")).facts()["like"] == "joint@2"
    assert preview_sites(request(**CAPE, epsilon=0.5)).facts()["rounds"] == 3


@pytest.mark.usefixtures("sites")
def test_an_unusable_earlier_release_is_refused_before_any_charge(dpca: Command) -> None:
    """Refuse a release of other columns, one without a moment, a damaged one, and one that does not exist."""
    words = (*FIT, "--method", "cape_pca", "--epsilon", "1")
    fitted = ("--epsilon", 1, "--delta", "1e-4", "--clip-norm", 2, "--components", 2, "--direct", "--yes", "--json")
    assert dpca("subspace", "fit", "wide", "--publish", "wide", *fitted).status == 0
    assert dpca(*FIT, "--method", "dps_pca", "--epsilon", "0.5", "--publish", "products").status == 0
    assert dpca(*FIT, "--method", "cape_pca", "--epsilon", "0.5").status == 0
    damage("joint@1")
    before = spent(*PEOPLE)
    for like, text in (
        ("wide@1", "has 5 columns, but wide@1 has 6"),
        ("products@1", "contains no released second moment"),
        ("joint@1", "restore that folder from a copy"),
        ("joint@9", "joint has no version 9"),
    ):
        for dry in ((), ("--dry-run",)):
            ended = dpca(*words, "--like", like, *dry)
            assert text in ended.complaint(ended.status)
    assert spent(*PEOPLE) == before


@pytest.mark.parametrize("crash", [1, 2, 3])
def test_rounds_that_were_cut_continue_with_the_stored_maps(
    sites: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, crash: int
) -> None:
    """Cut a release in rounds before its second or third round, or after all: the result is that of an uncut run."""

    def run(*, until: int) -> str:
        """Run the request until it opens a round with this index; return the digest of a release that is not cut."""

        def cut(self: Any, query: Any, *, roster: Any, index: int) -> Any:
            if index == until:
                raise KeyboardInterrupt
            return opened(self, query, roster=roster, index=index)

        with monkeypatch.context() as patch:
            patch.setattr(LocalParties, "open", cut)
            if until == 3:
                patch.setattr(releases, "publish_sites", lambda *_: 1 / 0)
            with suppress(KeyboardInterrupt, ZeroDivisionError):
                found: str = fit_sites_directly(request(**CAPE))["digest"]
                return found
        return ""

    opened, calm = LocalParties.open, tmp_path / "calm"
    assert run(until=0) == ""
    shutil.copytree(sites, calm)
    assert run(until=crash) == ""
    charged, cut_digest = spent(*PEOPLE), run(until=9)
    assert spent(*PEOPLE) == charged
    isolate(monkeypatch, home=calm)
    assert run(until=9) == cut_digest != ""


@pytest.mark.usefixtures("sites")
def test_a_run_key_names_one_request(dpca: Command) -> None:
    words = (*FIT, "--method", "conv", "--run-key", "spring")
    assert dpca(*words, "--epsilon", "1").status == 0
    assert "run key" in dpca(*words, "--epsilon", "0.5").complaint(1)
    assert spent(*PEOPLE) == pytest.approx([1.0] * 3, abs=0.01)
