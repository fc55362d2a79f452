"""Command ``dpca tensor``: from files of counts or points to words and weights, with refusals before any charge."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sqlalchemy as sa

from dpca.artifacts.tensor import TensorComponents
from dpca.registry.reader import Registry
from dpca_tasks.privacy.curator import Curator
from dpca_tasks.queries.base import RowSum
from flows.cli import main
from storage.database import tables
from storage.workspace import Workspace
from tests.flows.conftest import Command, facts_of, isolate

WORDS = ("bank", "rate", "loan", "corn", "rain", "crop")
CHANCES = np.array([[0.5, 0.3, 0.2, 0, 0, 0], [0, 0, 0, 0.2, 0.3, 0.5]])
SHARED = ("--epsilon", "4", "--delta", "1e-5", "--direct", "--yes", "--json")
TOPICS = (
    *("tensor", "fit", "reports", "--model", "topics", "--components", "2", "--words-at-most", "12"),
    *("--publish", "topics", *SHARED),
)
MIXTURE = (
    *("tensor", "fit", "points", "--model", "mixture", "--components", "2", "--clip-norm", "2"),
    *("--publish", "centres", *SHARED),
)


@pytest.fixture(scope="session")
def ready_tensors(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a home with 2,000 reports of 5 to 15 words, and with as many points.

    Three fifths of them belong to the first component.
    """
    rng, place, files = np.random.default_rng(3), tmp_path_factory.mktemp("tensors"), tmp_path_factory.mktemp("files")
    lines = ["report,word,count"]
    for report in range(2000):
        counts = rng.multinomial(rng.integers(5, 16), CHANCES[int(rng.random() < 0.4)])
        lines += [f"{report},{WORDS[word]},{counts[word]}" for word in np.flatnonzero(counts)]
    (files / "counts.csv").write_text("\n".join(lines) + "\n")
    (files / "words.txt").write_text("\n".join(WORDS) + "\n")
    around = np.array([[1.2, 0, 0, 0, 0], [0, 1.0, 0, 0, 0]])[(rng.random(2000) < 0.4).astype(int)]
    np.save(files / "points.npy", around + 0.2 * rng.standard_normal((2000, 5)))
    bounded = ("--records-at-most", "2000", "--direct")
    counted = ("--feature-names", files / "words.txt", "--columns", "row=report,column=word,value=count")
    with pytest.MonkeyPatch.context() as patch:
        isolate(patch, home=place)
        for name, source, options in (("reports", "counts.csv", counted), ("points", "points.npy", ())):
            words = ("dataset", "ingest", files / source, "--name", name, *options, *bounded)
            assert main([str(word) for word in words]) == 0
            assert main(["budget", "open", name, "--epsilon", "9", "--delta", "1e-5"]) == 0
    return place


@pytest.fixture
def reports(ready_tensors: Path, home: Path) -> Path:
    """Return a separate copy of the home with reports and points, set as the current home."""
    shutil.copytree(ready_tensors, home)
    return home


@pytest.mark.usefixtures("reports")
def test_documents_become_topics_with_their_words(dpca: Command, tmp_path: Path) -> None:
    shown = json.loads(dpca(*TOPICS, "--dry-run").out)
    assert (shown["model"], shown["components"], shown["words_at_most"], shown["fits"]) == ("topics", 2, 12, True)
    assert shown["room"] >= 2
    assert shown["forecast"].startswith("all 2 requested components can be above the noise")
    report = json.loads(dpca(*TOPICS).out)
    assert (report["artifact"], report["private"]) == ("topics@1", True)
    assert (report["found"], report["spent"]) == (2, pytest.approx(4.0, abs=1e-2))
    again = json.loads(dpca(*TOPICS).out)
    assert (again["release"], again["reused"]) == (report["release"], True)

    described = json.loads(dpca("registry", "show", "topics", "--json").out)
    assert (described["model"], described["n_components"], described["n_features"]) == ("topics", 2, 6)
    assert described["manifest"]["feature_names"] == list(WORDS)
    assert described["manifest"]["plan"]["words_at_most"] == 12
    found = json.loads(dpca("tensor", "show", "topics@1", "--top-words", 3, "--json").out)["components"]
    assert [{word["word"] for word in row["words"]} for row in found] == [set(WORDS[:3]), set(WORDS[3:])]
    assert [row["weight"] for row in found] == pytest.approx([0.6, 0.4], abs=0.08)
    release = Registry.open().load("topics", TensorComponents)
    np.testing.assert_allclose(np.asarray(release.components), CHANCES, atol=0.08)

    rows = np.array([[2, 1, 0, 0, 0, 0], [0, 0, 0, 1, 2, 3]])
    np.save(tmp_path / "mine.npy", rows)
    assert dpca("transform", "topics", tmp_path / "mine.npy", "--output", tmp_path / "w.npy").status == 0
    np.testing.assert_allclose(np.load(tmp_path / "w.npy"), [[1, 0], [0, 1]], atol=0.05)


@pytest.mark.usefixtures("reports")
def test_points_become_centres_with_the_variance_around_them(dpca: Command) -> None:
    ended = dpca(*MIXTURE)
    assert ended.status == 0, ended.err
    centres = Registry.open().load("centres", TensorComponents)
    assert centres.noise_variance == pytest.approx(0.04, abs=0.03)
    assert abs(np.asarray(centres.components)[0, 0]) == pytest.approx(1.2, abs=0.25)
    assert centres.transform([[1.2, 0, 0, 0, 0], [0, 1.0, 0, 0, 0]]).argmax(axis=1).tolist() == [0, 1]
    assert "feature_names" not in centres.manifest


@pytest.mark.usefixtures("reports")
def test_the_pure_mechanism_takes_no_delta(dpca: Command) -> None:
    words = [word if word != "1e-5" else "0" for word in TOPICS]
    report = json.loads(dpca(*words, "--mechanism", "avn").out)
    assert (report["mechanism"], report["delta"]) == ("avn", 0.0)


@pytest.mark.usefixtures("reports")
def test_room_follows_records_and_length_and_changes_no_release(dpca: Command) -> None:
    shown = json.loads(dpca(*TOPICS, "--dry-run").out)
    short = json.loads(dpca(*TOPICS, "--dry-run", "--component-length", "0.02").out)
    assert "(declared)" in short["forecast"]
    assert (short["room"], shown["expected_eigenvalue"]) == (0, pytest.approx(2000 / 2 * 2 / 6, rel=1e-3))
    assert short["forecast"].startswith("expect noise: no component can be above the noise")
    release = json.loads(dpca(*TOPICS).out)["release"]
    again = json.loads(dpca(*TOPICS, "--component-length", "0.02").out)
    assert (again["release"], again["reused"]) == (release, True)


def test_without_a_declared_number_of_records_nothing_is_forecast(dpca: Command, tmp_path: Path) -> None:
    source = tmp_path / "few.svm"
    source.write_text("1 1:3 2:1\n" * 20)
    assert dpca("dataset", "ingest", source, "--name", "few", "--features", 6, "--direct").status == 0
    assert dpca("budget", "open", "few", "--epsilon", "9", "--delta", "1e-6").status == 0
    requested = [{"reports": "few", "1e-5": "1e-6"}.get(word, word) for word in TOPICS]
    shown = json.loads(dpca(*requested, "--dry-run").out)
    assert shown["room"] is None
    assert "no number of records is declared" in shown["forecast"]


@pytest.mark.usefixtures("reports")
def test_a_non_private_reference_needs_an_explicit_option_and_voids_the_budget(dpca: Command) -> None:
    words = [word for word in TOPICS if word not in ("--epsilon", "4", "--delta", "1e-5")]
    requested = (*words, "--mechanism", "otd")
    assert "insist with --i-know-this-is-not-private" in dpca(*requested).complaint(1)
    insisted = (*requested, "--i-know-this-is-not-private")
    shown = json.loads(dpca(*insisted, "--dry-run").out)
    assert (shown["certified"], "room" in shown) == (False, False)
    assert json.loads(dpca(*insisted).out)["artifact"] == "topics@1"
    release = Registry.open().load("topics", TensorComponents)
    assert "NOT PRIVATE" in repr(release)
    np.testing.assert_allclose(np.asarray(release.components), CHANCES, atol=0.04)
    assert dpca(*TOPICS).status == 3  # the non-private reference has voided the budget


@pytest.mark.usefixtures("reports")
def test_components_hidden_by_noise_are_left_out_with_a_warning(dpca: Command) -> None:
    words = [{"4": "0.02", "2": "5"}.get(word, word) for word in TOPICS]
    ended = dpca(*words)
    assert ended.status == 0, ended.err
    report = json.loads(ended.out)
    assert report["found"] < 5
    assert "of the 5 requested components" in " ".join(report["warnings"])
    assert dpca("tensor", "show", "topics").status == 0


@pytest.mark.parametrize("stopped_after", [1, 2])
@pytest.mark.usefixtures("reports")
def test_a_stopped_release_continues_with_its_stored_noise(
    dpca: Command, monkeypatch: pytest.MonkeyPatch, stopped_after: int
) -> None:
    """Stop a release after one or two steps and repeat it: the stored noise must be used.

    The key comes from the operating system, so noise that is drawn again would differ.
    """
    released = Curator.release
    answers: list[np.ndarray[Any, Any]] = []

    def stopping(self: Curator, query: RowSum, distribution: Any) -> Any:
        answers.append(released(self, query, distribution))
        if len(answers) == stopped_after:
            raise RuntimeError
        return answers[-1]

    monkeypatch.setattr(Curator, "release", stopping)
    assert dpca(*TOPICS).status == 1
    stored = _answers()
    assert len(stored) == stopped_after
    report = json.loads(dpca(*TOPICS).out)
    assert (report["artifact"], report["spent"]) == ("topics@1", pytest.approx(4.0, abs=1e-2))
    for before, after in zip(answers[:stopped_after], answers[stopped_after:], strict=False):
        np.testing.assert_array_equal(before, after)
    assert len(answers) == stopped_after + 2


def _answers() -> list[Any]:
    with Workspace.open().ledger.transaction() as connection:
        return sorted(connection.execute(sa.select(tables.step.c.step)).scalars())


@pytest.mark.parametrize(
    ("changed", "left_out", "rule"),
    [
        ({"--components": "6"}, None, "below"),
        ({"--words-at-most": "2"}, None, "words_at_most=2 must be greater than 2"),
        ({}, "--words-at-most", "words_at_most=None must be at least 3 for model=topics"),
        ({"--clip-norm": "1"}, None, "clip_norm and noise_variance are for model=mixture"),
        ({"--noise-variance": "0.1"}, None, "clip_norm and noise_variance are for model=mixture"),
        ({"--model": "mixture"}, "--words-at-most", "clip_norm=None must be positive and finite for model=mixture"),
        ({"--model": "mixture", "--clip-norm": "1"}, None, "words_at_most is for model=topics"),
        ({"--model": "subspace"}, None, "model='subspace' is not one of topics, mixture"),
        ({"--delta": "0.5"}, None, "not below 1/records_at_most"),
        ({"--mechanism": "svd"}, None, "mechanism='svd' is not one of agn, "),
        ({"--settings": "speed=3"}, None, "has no setting 'speed'"),
    ],
    ids=str,
)
@pytest.mark.usefixtures("reports")
def test_an_impossible_request_is_refused_before_a_charge(
    dpca: Command, home: Path, changed: dict[str, str], left_out: str | None, rule: str
) -> None:
    before = facts_of(home)
    requested = list(TOPICS)
    if left_out is not None:
        at = requested.index(left_out)
        del requested[at : at + 2]
    assert rule in dpca(*requested, *(word for pair in changed.items() for word in pair)).complaint(1)
    assert facts_of(home) == before


@pytest.mark.parametrize(("model", "status"), [("topics", 0), ("mixture", 1)])
def test_a_document_may_have_several_rows_and_a_point_may_not(
    dpca: Command, tmp_path: Path, model: str, status: int
) -> None:
    source = tmp_path / "wide.csv"
    source.write_text("who,a,b,c\n" + "".join(f"{who},{who % 2},1,1\n" * 2 for who in range(50)))
    words = ("dataset", "ingest", source, "--name", "many", "--features", 3, "--records-at-most", 50)
    assert dpca(*words, "--unit-column", "who", "--direct").status == 0
    assert dpca("budget", "open", "many", "--epsilon", "9", "--delta", "1e-5", "--unit", "who").status == 0
    bound = ("--words-at-most", 9) if model == "topics" else ("--clip-norm", 2)
    requested = ("tensor", "fit", "many", "--model", model, "--components", 1, *bound, "--publish", "x", *SHARED)
    ended = dpca(*requested)
    assert ended.status == status, ended.err
    if status:
        assert "may have several rows, and a mixture needs one row for each point" in ended.complaint(1)
