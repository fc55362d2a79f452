"""Components of a model over several datasets: each budget is charged once, and every refusal has one line."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from dpca.artifacts.tensor import TensorComponents
from dpca.registry.reader import Registry
from flows.cli import main
from flows.requests import SitesRequest
from flows.sites.releases import fit_sites_directly
from tests.flows.conftest import Command, facts_of, isolate
from tests.flows.test_federate import spent

PEOPLE, WORDS, RECORDS, BLOCKS = ("north", "east", "south"), 6, 400, np.kron(np.eye(2), np.ones(3) / 3)
FIT = (
    *("sites", "fit", "--datasets", "north,east,south", "--components", 2, "--publish", "joint"),
    *("--delta", "1e-4", "--direct", "--yes", "--json"),
)
TOPICS = ("--model", "topics", "--words-at-most", 5)
MIXTURE = ("--model", "mixture", "--clip-norm", 4)


@pytest.fixture(scope="module")
def ready_documents(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a home with three datasets of documents on two topics, and one whose documents have several rows."""
    place, folder = tmp_path_factory.mktemp("documents"), tmp_path_factory.mktemp("sources")
    with pytest.MonkeyPatch.context() as patch:
        isolate(patch, home=place)
        for name in (*PEOPLE, "lines"):
            rng = np.random.default_rng(list(name.encode()))
            rows = rng.multinomial(4, BLOCKS[rng.choice(2, RECORDS, p=[0.6, 0.4])]).astype(float)
            np.save(folder / f"{name}.npy", rows)
            np.save(folder / "units.npy", np.repeat(np.arange(RECORDS // 2), 2))
            units = ("--units", str(folder / "units.npy")) if name == "lines" else ()
            given = ("--name", name, "--records-at-most", str(RECORDS), *units)
            assert main(["dataset", "ingest", str(folder / f"{name}.npy"), *given, "--direct"]) == 0
            unit = ("--unit", "unit") if name == "lines" else ()
            assert main(["budget", "open", name, "--epsilon", "60", "--delta", "1e-4", *unit]) == 0
    return place


@pytest.fixture
def documents(ready_documents: Path, home: Path) -> Path:
    """Return a separate copy of the home with documents, set as the current home."""
    shutil.copytree(ready_documents, home)
    return home


@pytest.mark.parametrize("model", [TOPICS, MIXTURE], ids=["topics", "mixture"])
@pytest.mark.usefixtures("documents")
def test_every_site_pays_once_for_both_rounds_and_the_artifact_names_their_releases(
    dpca: Command, model: tuple[object, ...]
) -> None:
    words = (*FIT, "--method", "cape_agn", *model, "--epsilon", "50")
    shown = json.loads(dpca(*words, "--dry-run").out)
    assert (shown["fits"], shown["exists"], shown["model"], spent(*PEOPLE)) == (True, False, model[1], [0, 0, 0])
    ended = dpca(*words)
    assert ended.status == 0, ended.err
    report = json.loads(ended.out)
    paid = pytest.approx([50.0] * 3, rel=0.02)
    assert spent(*PEOPLE) == paid
    found = Registry.open().load("joint@1", TensorComponents)
    lineage = [site["release"] for site in found.manifest["plan"]["sites"]]
    assert lineage == [site["release"] for site in report["sites"]]
    assert found.components is not None
    assert found.weights is not None
    if model is TOPICS:
        np.testing.assert_allclose(found.components, BLOCKS, atol=0.1)
        np.testing.assert_allclose(found.weights, [0.6, 0.4], atol=0.1)
    again = json.loads(dpca(*words).out)
    assert (again["digest"], again["reused"]) == (report["digest"], True)
    assert spent(*PEOPLE) == paid


@pytest.mark.usefixtures("documents")
def test_a_run_killed_between_rounds_continues_with_the_first_total(monkeypatch: pytest.MonkeyPatch) -> None:
    request = SitesRequest(
        datasets="north,east,south",
        method="cape_agn",
        components=2,
        model="topics",
        words_at_most=5,
        epsilon=50.0,
        delta=1e-4,
        publish="joint",
    )
    with monkeypatch.context() as patch:
        patch.setattr("dpca_tasks.mechanisms.sites.cape_agn.CapeAgn.run", killed_after_the_first_round)
        with pytest.raises(ZeroDivisionError):
            fit_sites_directly(request)
    charged = spent(*PEOPLE)
    assert charged == pytest.approx([50.0] * 3, rel=0.02)
    assert fit_sites_directly(request)["artifact"] == "joint@1"
    assert spent(*PEOPLE) == charged


def killed_after_the_first_round(mechanism, parties, plan):
    parties.open(mechanism.query(plan, index=0, public={}), roster=plan.roster, index=0)
    raise ZeroDivisionError


REFUSED = {
    ("--method", "cape_agn"): "give --model",
    ("--method", "cape_agn", "--model", "topics"): "words_at_most=None",
    ("--method", "cape_agn", "--model", "topics", "--words-at-most", 2): "words_at_most=2",
    ("--method", "cape_agn", *TOPICS, "--components", 6): "components=6",
    ("--method", "cape_agn", *TOPICS, "--clip-norm", 2): "clip_norm",
    ("--method", "cape_agn", *TOPICS, "--row-policy", "normalise"): "scales counts",
    ("--method", "cape_agn", "--model", "mixture"): "clip_norm=None",
    ("--method", "cape_agn", *MIXTURE, "--datasets", "north,lines"): "one row per record",
    ("--method", "cape_agn", *TOPICS, "--datasets", "north,lines"): "a joint release needs one unit",
    ("--method", "cape_pca", *TOPICS, "--clip-norm", 2): "finds a subspace",
    ("--method", "cape_pca"): "give --clip-norm",
}


def test_incompatible_datasets_are_refused_in_one_line_before_any_charge(documents: Path, dpca: Command) -> None:
    before = facts_of(documents)
    for words, text in REFUSED.items():
        assert text in dpca(*FIT, "--epsilon", "1", *words).complaint(1)
    assert facts_of(documents) == before
