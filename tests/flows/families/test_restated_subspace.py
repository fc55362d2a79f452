"""Post-processing of a published release through the command: free, or refused where its artifact does not allow it."""

import json
from pathlib import Path

import numpy as np
import pytest

from flows.families.restated_subspace import restate_subspace
from storage.artifacts.subspace import PrivateSubspace
from storage.registry.reader import Registry
from storage.workspace import Workspace
from tests.flows.conftest import Command

WIDE = 24
FIT = (
    *("subspace", "fit", "wide", "--components", "2", "--epsilon", "1", "--delta", "1e-6", "--clip-norm", "3"),
    *("--direct", "--yes", "--json"),
)


def spent() -> float:
    return Workspace.open().ledger.statement("wide").spent


@pytest.fixture
def wide(tmp_path: Path, dpca: Command) -> None:
    """Six hundred rows of 24 columns, two of them strong, and a budget."""
    source = np.random.default_rng(4).normal(size=(600, WIDE)) * np.r_[2.0, 1.0, np.full(WIDE - 2, 0.05)]
    np.save(tmp_path / "wide.npy", source)
    assert dpca("dataset", "ingest", tmp_path / "wide.npy", "--name", "wide", "--direct").status == 0
    assert dpca("budget", "open", "wide", "--epsilon", "3", "--delta", "1e-6").status == 0


@pytest.mark.usefixtures("wide")
def test_a_release_is_refined_says_how_good_it_is_and_is_refined_anew_for_free(dpca: Command) -> None:
    ending = dpca(*FIT, "--publish", "sub")
    assert ending.status == 0, ending.err
    report = json.loads(ending.out)
    assert "components stand above the noise" in report["verdict"]
    found, before = Registry.open().load("sub@1"), spent()
    assert found.matrix is not None
    assert found.manifest["parameters"]["refine"] == "auto"
    assert report["share"] == pytest.approx(found.explained_variance_ratio.sum())

    for refine, name in (("none", "plain"), ("eb", "shrunk")):
        again = dpca(*FIT, "--publish", name, "--refine", refine)
        assert again.status == 0, again.err
        other = Registry.open().load(f"{name}@1")
        assert other.refined_by == refine
        assert other.manifest["release"] == found.manifest["release"]
    assert "under another name" in dpca(*FIT, "--publish", "sub", "--refine", "eb").complaint(1)
    report = json.loads(dpca("subspace", "refit", "sub", "--components", "3", "--publish", "three", "--json").out)
    assert Registry.open().load(report["artifact"]).n_components == 3
    assert spent() == before


@pytest.mark.usefixtures("wide")
def test_a_release_below_the_share_required_is_charged_kept_and_published_later(dpca: Command) -> None:
    before = spent()
    told = dpca(*FIT, "--publish", "sub", "--require-share", "1").complaint(1)
    assert "not published" in told
    charged = spent()
    assert charged > before
    assert "sub" not in Registry.open().names()
    ending = dpca(*FIT, "--publish", "sub")
    assert ending.status == 0, ending.err
    assert json.loads(ending.out)["reused"] is True
    assert spent() == charged


@pytest.mark.usefixtures("wide")
def test_without_its_matrix_an_artifact_gives_eb_with_a_warning_and_no_more(dpca: Command) -> None:
    assert dpca(*FIT, "--publish", "sub", "--keep-matrix", "0", "--refine", "eb").status == 0
    found = Registry.open().load("sub@1")
    assert found.matrix is None
    assert found.leading is not None
    words = ("subspace", "refit", "sub", "--components", "3", "--publish", "other")
    assert "did not keep" in dpca(*words, "--refine", "all").complaint(1)
    assert dpca(*words, "--refine", "eb").status == 0
    assert "without the matrix" in Registry.open().load("other@1").manifest["warnings"][-1]


@pytest.mark.usefixtures("wide")
def test_an_artifact_of_a_version_that_knew_no_refinement_gives_eb_from_its_pairs_and_says_so(dpca: Command) -> None:
    """Its manifest is that of such a version: without outcome, matrix and refinement; the plan alone has the noise."""
    assert dpca(*FIT, "--publish", "sub", "--refine", "none").status == 0
    found = Registry.open().load("sub@1", PrivateSubspace)
    facts = {name: fact for name, fact in found.manifest.items() if name != "outcome"}
    facts["parameters"] = {name: fact for name, fact in facts["parameters"].items() if name != "refine"}
    arrays = {name: getattr(found, name) for name in ("components", "eigenvalues", "spectrum", "further")}
    old = PrivateSubspace(**arrays, manifest=facts)
    made = restate_subspace(old, n_components=3, refine="eb", parent="x")
    assert made.refined_by == "eb"
    assert made.n_components == 3
    assert made.outcome["noise_std"] == pytest.approx(found.outcome["noise_std"], rel=1e-9)
    assert made.outcome["above_noise"] == found.outcome["above_noise"]
    assert made.outcome["captured_low"] is None
    assert "refined from the 24 pairs that were kept, without the matrix" in made.manifest["warnings"][-1]
    assert restate_subspace(old, n_components=2, parent="x").refined_by == "none"


@pytest.mark.usefixtures("wide")
def test_what_cannot_be_refined_is_refused_before_it_is_charged(dpca: Command) -> None:
    before = spent()
    words = (*FIT, "--publish", "sub", "--mechanism", "noisy_power")
    assert "releases none" in dpca(*words, "--refine", "eb").complaint(1)
    assert spent() == before
