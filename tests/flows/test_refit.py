"""What a PCA user expects: other k for free, private clip norms and means, normalised rows; all through the command."""

import json
from pathlib import Path

import numpy as np
import pytest

from storage.registry.reader import Registry
from storage.workspace import Workspace
from tests.flows.conftest import FEATURES, FIT, Command


def spent() -> float:
    return Workspace.open().ledger.statement("people").spent


@pytest.mark.parametrize("components", [1, 4, 6])
def test_another_number_of_components_is_free_and_exact(released: Path, dpca: Command, components: int) -> None:
    before = spent()
    report = json.loads(
        dpca("subspace", "refit", "sub@1", "--components", components, "--publish", "other", "--json").out
    )
    old, new = Registry.open().load("sub@1"), Registry.open().load(report["artifact"])
    shared = min(components, 2)
    assert new.n_components == components
    np.testing.assert_array_equal(new.components[:shared], old.components[:shared])
    assert old.spectrum is not None
    np.testing.assert_array_equal(new.eigenvalues, old.spectrum[:components])
    assert report["reused"] is False
    again = dpca("subspace", "refit", "sub@1", "--components", components, "--publish", "other", "--json")
    assert json.loads(again.out)["reused"] is True
    assert new.manifest["parent"] == Registry.open().resolve("sub@1").digest
    assert spent() == before
    back = new.refit(2, parent="x")
    np.testing.assert_array_equal(back.components, old.components)


def test_more_components_than_were_kept_are_refused(released: Path, dpca: Command) -> None:
    words = ("subspace", "refit", "sub@1", "--components", "7", "--publish", "other")
    assert "kept 6 directions" in dpca(*words).complaint(1)


DRAWN = ("--mechanism", "exponential", "--epsilon", "0.1", "--delta", "0", "--direct", "--yes", "--json")


def test_directions_without_eigenvalues_are_published_and_not_refitted(ready: Path, dpca: Command) -> None:
    before = spent()
    ending = dpca(*FIT, *DRAWN)
    assert ending.status == 0, ending.err
    assert spent() > before
    found = Registry.open().load("sub@1")
    assert found.eigenvalues is found.spectrum is found.explained_variance_ratio is None
    assert found.manifest["privacy"]["event"] == {"name": "approximate", "epsilon": 0.1, "delta": 0.0}
    assert "certified" not in found.manifest["plan"]
    assert json.loads(dpca("registry", "show", "sub@1", "--json").out)["eigenvalues"] is None
    again = dpca("subspace", "refit", "sub@1", "--components", "1", "--publish", "other")
    assert "none leads the others" in again.complaint(1)


def test_a_sampler_without_certificate_is_refused_or_marked(ready: Path, dpca: Command) -> None:
    chain = (*FIT, *DRAWN, "--settings", "sampler=gibbs")
    assert "no certificate" in dpca(*chain).complaint(1)
    ending = dpca(*chain, "--settings", "allow_uncertified=true")
    assert ending.status == 0, ending.err
    assert "not certified" in ending.err
    assert Registry.open().load("sub@1").manifest["plan"]["certified"] is False


def test_a_refit_is_not_another_version_of_the_same_name(released: Path, dpca: Command) -> None:
    assert "never changes" in dpca("subspace", "refit", "sub@1", "--components", "1", "--publish", "sub").complaint(1)


@pytest.mark.parametrize(
    "words",
    [("--center", "private"), ("--row-policy", "normalise"), ("--clip-norm", "quantile:0.9")],
    ids=lambda words: words[0],
)
def test_a_prepared_fit_is_published_within_its_epsilon(ready: Path, dpca: Command, words: tuple[str, str]) -> None:
    before = spent()
    ending = dpca(*FIT, *words, "--direct", "--yes", "--json")
    assert ending.status == 0, ending.err
    subspace = Registry.open().load("sub@1")
    plan = subspace.manifest["plan"]
    assert spent() - before <= 1.0
    assert (subspace.mean is not None) == (words[0] == "--center")
    assert plan["row_policy"] == ("normalise" if words[0] == "--row-policy" else "clip")
    if words[0] == "--clip-norm":
        assert plan["clip_epsilon"] == 1 / 32
        steps = np.log2(subspace.manifest["clip_norm"]) * 4
        assert steps == pytest.approx(round(steps), abs=1e-9)


def test_an_export_centres_as_the_artifact_does_and_names_the_features(
    ready: Path, dpca: Command, rows_file: Path, tmp_path: Path
) -> None:
    declared = [f"gene {feature}" for feature in range(FEATURES)]
    (tmp_path / "names").write_text("\n".join(declared))
    words = ("--feature-names", tmp_path / "names", "--direct")
    assert dpca("dataset", "ingest", rows_file, "--name", "people", *words).status == 0
    assert dpca(*FIT, "--center", "private", "--direct", "--yes").status == 0
    assert dpca("registry", "export", "sub", "--output", tmp_path / "sub.npz").status == 0
    assert json.loads(dpca("registry", "show", "sub", "--json").out)["manifest"]["feature_names"] == declared
    subspace = Registry.open().load("sub@1")
    rows = np.random.default_rng(5).standard_normal((4, FEATURES))
    with np.load(tmp_path / "sub.npz", allow_pickle=False) as archive:
        assert {"components", "eigenvalues", "spectrum", "further", "mean", "matrix", "manifest"} == set(archive)
        scores = (rows - archive["mean"]) @ archive["components"].T
        kept = np.vstack([archive["components"], archive["further"]])
        assert json.loads(archive["manifest"].item())["feature_names"] == declared
    np.testing.assert_allclose(scores, subspace.transform(rows), atol=1e-12)
    np.testing.assert_array_equal(kept, subspace.refit(len(kept), parent="x").components)


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("--clip-norm", "quantile:1.5"), "must be a number or quantile:Q"),
        (("--clip-norm", "quantile:x"), "must be a number or quantile:Q"),
        (("--clip-norm", "median"), "must be a number or quantile:Q"),
        (("--clip-norm", "quantile:0.5", "--row-policy", "normalise"), "state a clip_norm"),
        (("--row-policy", "drop"), "row_policy='drop' must be one of clip, normalise"),
        (("--center", "median"), "center='median' must be one of none, private"),
    ],
)
def test_what_makes_no_sense_is_refused(ready: Path, dpca: Command, words: tuple[str, ...], complaint: str) -> None:
    assert complaint in dpca(*FIT, *words, "--direct", "--yes").complaint(1)
