"""Published subspaces: exact and charged evaluation, refits, and fits prepared from a published version."""

import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpca.artifacts.estimate import PrivateEstimate
from dpca.errors import Unavailable
from dpca.registry.reader import Registry
from flows.jobs import run_release
from flows.releases import running
from flows.requests import SubspaceEvaluationRequest
from storage.workspace import Workspace
from tests.flows.conftest import FEATURES, FIT, ROWS, Command

EVALUATE = ("subspace", "evaluate", "sub@1", "people")
BUY = (*EVALUATE, "--release", "--epsilon", "0.5", "--delta", "1e-6", "--direct", "--yes", "--json")


def dense_rows() -> Any:
    rows = np.zeros((ROWS, FEATURES))
    rows[:, 0] = 1 + np.arange(ROWS) % 3
    rows[:, 2] = 0.5
    rows[:, 5] = np.arange(ROWS) % 2 + 0.25
    return rows * np.minimum(1.0, 1.5 / np.linalg.norm(rows, axis=1))[:, None]


def contents(home: Path) -> dict[str, bytes]:
    return {str(path.relative_to(home)): path.read_bytes() for path in sorted(home.rglob("*")) if path.is_file()}


def test_diagnostics_are_those_of_dense_arithmetic_and_leave_no_trace(
    released: Path, dpca: Command, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DPCA_LOG", "json")
    caplog.set_level(logging.DEBUG)
    before = contents(released)
    ended = dpca(*EVALUATE, "--json")
    assert ended.status == 0, ended.err
    assert "NOT private" in ended.err
    assert "must not be published" in ended.err
    found = json.loads(ended.out)
    assert (found["private"], found["evaluated"], found["dataset"]) == (False, "sub@1", "people")
    components, rows = Registry.open().load("sub@1").components, dense_rows()
    values = np.linalg.svd(rows, compute_uv=False) ** 2
    held, total = ((rows @ components.T) ** 2).sum(), (rows**2).sum()
    assert found["captured_variance"] == pytest.approx(held / values[:2].sum(), rel=1e-3)
    assert found["share"] == pytest.approx(held / total, rel=1e-3)
    assert found["reconstruction_error_per_record"] == pytest.approx((total - held) / ROWS, rel=1e-2)
    assert len(found["principal_angles"]) == 2

    assert contents(released) == before, "nothing is stored: no artifact, no ledger row, no file"
    message = caplog.text + ended.err
    numbers = [value for value in found.values() if isinstance(value, float)] + found["principal_angles"]
    texts = [f"{value:.6g}" for value in numbers]
    assert not [text for text in texts if len(text) > 5 and text in message]  # a short text may be part of a digest
    text = dpca(*EVALUATE).out
    assert "captured_variance" in text
    assert "NOT private" in text


def test_an_estimate_is_charged_once_and_published(released: Path, dpca: Command) -> None:
    spent = Workspace.read_only().ledger.statement("people").spent
    shown = json.loads(dpca(*BUY, "--dry-run").out)
    assert (shown["evaluated"], shown["fits"], shown["epsilon"]) == ("sub@1", True, 0.5)
    assert Workspace.read_only().ledger.statement("people").spent == spent, released
    ended = dpca(*BUY)
    assert ended.status == 0, ended.err
    report = json.loads(ended.out)
    assert (report["artifact"], report["private"], report["reused"]) == ("sub.evaluation@1", True, False)
    assert report["spent"] > spent
    estimate = Registry.open().load("sub.evaluation", PrivateEstimate)
    assert estimate.manifest["plan"]["evaluated"] == "sub@1"
    assert report["total_variance"] == pytest.approx(estimate.sums.sum())
    for same in (BUY, [word if word != "sub@1" else "sub" for word in BUY]):
        again = json.loads(dpca(*same).out)
        assert (again["reused"], again["release"]) == (True, report["release"])
        assert (again["spent"], again["total_variance"]) == (report["spent"], report["total_variance"])
    pure = json.loads(dpca(*[word for word in BUY if word not in ("--delta", "1e-6")], "--dry-run").out)
    assert (pure["delta"], pure["noise_multiplier"]) == (0.0, 2.0)


def test_an_estimate_that_was_interrupted_is_resumed_with_the_same_noise_and_charged_once(
    released: Path, dpca: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(artifact: PrivateEstimate, **_: object) -> str:
        tried.append(artifact)
        raise Unavailable("the disk is full; make room.")

    tried: list[PrivateEstimate] = []
    with monkeypatch.context() as patch:
        patch.setattr(running, "write_artifact", full)
        assert "the disk is full" in dpca(*BUY).complaint(1), released
    spent = Workspace.read_only().ledger.statement("people").spent
    report = json.loads(dpca(*BUY).out)
    assert report["spent"] == spent
    assert np.array_equal(Registry.open().load("sub.evaluation").sums, tried[0].sums)
    assert len(Workspace.read_only().ledger.statement("people").releases) == 2


@pytest.mark.usefixtures("prefect")
def test_the_flow_releases_what_the_command_does(released: Path, dpca: Command) -> None:
    request = SubspaceEvaluationRequest(dataset="people", artifact="sub", epsilon=0.5, delta=1e-6)
    report = run_release(request)
    assert report["artifact"] == "sub.evaluation@1", released
    again = json.loads(dpca(*BUY).out)
    assert (again["reused"], again["release"]) == (True, report["release"])


def test_a_centred_and_a_normalised_release_are_evaluated_on_their_own_rows(ready: Path, dpca: Command) -> None:
    assert dpca(*FIT, "--center", "private", "--row-policy", "normalise", "--direct", "--yes").status == 0, ready
    found = json.loads(dpca(*EVALUATE, "--json").out)
    rows = dense_rows()
    rows *= 1.5 / np.linalg.norm(rows, axis=1, keepdims=True)
    rows -= rows.mean(axis=0)
    components = Registry.open().load("sub@1").components
    held = ((rows @ components.T) ** 2).sum()
    assert found["share"] == pytest.approx(held / (rows**2).sum(), rel=1e-2)
    ended = dpca(*BUY)
    assert ended.status == 0, ended.err


def test_an_impossible_evaluation_is_refused_in_one_line_without_a_charge(
    released: Path, dpca: Command, tmp_path: Path
) -> None:
    before = contents(released)
    other = ("subspace", "evaluate", "sub@1")
    for words, status, rule in (
        (("subspace", "evaluate", "nobody", "people"), 1, "nobody"),
        (("subspace", "evaluate", "sub@7", "people"), 1, "sub"),
        ((*other, "strangers"), 1, "strangers"),
        ((*EVALUATE, "--release", "--epsilon", "0", "--yes"), 1, "epsilon=0.0 must be greater than 0"),
        ((*EVALUATE, "--release", "--epsilon", "-1", "--yes"), 1, "epsilon=-1.0 must be greater than 0"),
        ((*EVALUATE, "--release", "--epsilon", "50", "--delta", "1e-6", "--yes"), 3, "nothing was charged"),
        ((*EVALUATE, "--release", "--epsilon", "1", "--delta", "0.5", "--yes"), 1, "smaller delta"),
        ((*EVALUATE, "--release", "--epsilon", "1", "--settings", "rounds=2", "--yes"), 1, "has no setting"),
        ((*EVALUATE, "--release"), 2, "--epsilon"),
        ((*EVALUATE, "--epsilon", "1"), 2, "--release"),
        ((*EVALUATE, "--dry-run"), 2, "--release"),
    ):
        assert rule in dpca(*words, "--direct").complaint(status), words
    assert contents(released) == before

    wide = tmp_path / "wide.svm"
    wide.write_text("1 1:1 7:1\n" * 5)
    assert dpca("dataset", "ingest", wide, "--name", "wide", "--features", "7", "--direct").status == 0
    assert "has 7 columns, but sub@1 has 6" in dpca(*other, "wide").complaint(1)
    assert "no budget" in dpca(*other, "wide", "--release", "--epsilon", "1", "--direct", "--yes").complaint(1)
    assert dpca("budget", "open", "wide", "--epsilon", "2", "--delta", "1e-6").status == 0
    assert "has 7 columns" in dpca(*other, "wide", "--release", "--epsilon", "1", "--direct", "--yes").complaint(1)
    assert Workspace.read_only().ledger.statement("wide").spent == 0


def test_estimates_are_refused_as_subspaces_and_for_non_private_results(ready: Path, dpca: Command) -> None:
    assert dpca(*FIT, "--direct", "--yes").status == 0, ready
    assert dpca(*BUY).status == 0
    assert "a subspace is needed" in dpca("subspace", "evaluate", "sub.evaluation", "people").complaint(1)
    words = ("subspace", "fit", "people", "--components", "2", "--clip-norm", "1.5", "--mechanism", "non_private")
    assert dpca(*words, "--publish", "bare", "--i-know-this-is-not-private", "--direct", "--yes").status == 0
    assert dpca("subspace", "evaluate", "bare", "people").status == 0
    refused = dpca("subspace", "evaluate", "bare", "people", "--release", "--epsilon", "0.1", "--direct", "--yes")
    assert "bare@1 is not private" in refused.complaint(1)


def test_data_with_other_column_names_is_refused(dpca: Command, tmp_path: Path) -> None:
    for name in ("here", "there"):
        source, names = tmp_path / f"{name}.svm", tmp_path / f"{name}.txt"
        source.write_text("1 1:1 3:1\n1 2:1 3:1\n" * 10 + f"1 1:{len(name)}\n")
        names.write_text(f"{name}-a\n{name}-b\n{name}-c\n")
        ingested = dpca("dataset", "ingest", source, "--name", name, "--feature-names", names, "--direct")
        assert ingested.status == 0, ingested.err
    assert dpca("budget", "open", "here", "--epsilon", "2", "--delta", "1e-6").status == 0
    words = ("--components", "1", "--clip-norm", "2", "--epsilon", "1", "--delta", "1e-6", "--publish", "sub")
    assert dpca("subspace", "fit", "here", *words, "--direct", "--yes").status == 0
    assert dpca("subspace", "evaluate", "sub", "here").status == 0
    assert "have other names" in dpca("subspace", "evaluate", "sub", "there").complaint(1)


def spent() -> float:
    return Workspace.open().ledger.statement("people").spent


@pytest.mark.usefixtures("ready")
@pytest.mark.parametrize("components", [1, 4, 6])
def test_another_number_of_components_is_free_and_exact(dpca: Command, components: int) -> None:
    assert dpca(*FIT, "--rounds", "1", "--direct", "--yes").status == 0
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


def test_more_components_than_are_stored_are_refused(released: Path, dpca: Command) -> None:
    words = ("subspace", "refit", "sub@1", "--components", "7", "--publish", "other")
    assert "contains 6 directions" in dpca(*words).complaint(1)


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
    assert "so they have no order" in again.complaint(1)


def test_a_sampler_without_certificate_is_refused_or_marked(ready: Path, dpca: Command) -> None:
    chain = (*FIT, *DRAWN, "--settings", "sampler=gibbs")
    assert "no certificate" in dpca(*chain).complaint(1)
    ending = dpca(*chain, "--settings", "allow_uncertified=true")
    assert ending.status == 0, ending.err
    assert "not certified" in ending.err
    assert Registry.open().load("sub@1").manifest["plan"]["certified"] is False


def test_a_refit_cannot_be_published_under_the_name_of_its_release(released: Path, dpca: Command) -> None:
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
        # with so few records, noise decides the chosen clip norm, so only its sign is tested
        assert subspace.manifest["clip_norm"] > 0.0


def test_an_export_centres_as_the_artifact_does_and_names_the_features(
    ready: Path, dpca: Command, rows_file: Path, tmp_path: Path
) -> None:
    declared = [f"gene {feature}" for feature in range(FEATURES)]
    (tmp_path / "names").write_text("\n".join(declared))
    words = ("--feature-names", tmp_path / "names", "--direct")
    assert dpca("dataset", "ingest", rows_file, "--name", "people", *words).status == 0
    assert dpca(*FIT, "--center", "private", "--rounds", "1", "--direct", "--yes").status == 0
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
        (("--clip-norm", "quantile:1.5"), "must be a number, or quantile:Q"),
        (("--clip-norm", "quantile:x"), "must be a number, or quantile:Q"),
        (("--clip-norm", "median"), "must be a number, or quantile:Q"),
        (("--clip-norm", "quantile:0.5", "--row-policy", "normalise"), "state a clip_norm"),
        (("--row-policy", "drop"), "row_policy='drop' is not one of clip, normalise; choose one of them"),
        (("--center", "median"), "center='median' is not one of none, private; choose one of them"),
    ],
)
def test_meaningless_refits_are_refused(ready: Path, dpca: Command, words: tuple[str, ...], complaint: str) -> None:
    assert complaint in dpca(*FIT, *words, "--direct", "--yes").complaint(1)
