"""Releases that start from public rows: what they state, that nothing is charged for the rows, and refusals."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpca.artifacts.subspace import PrivateSubspace
from dpca.backends import atomic_files
from dpca.errors import NotFound
from dpca.registry.reader import Registry
from dpca_tasks.metrics import captured_variance
from flows.families.warm_starts import PublicRows, pinned_rows
from flows.releases.stages import release_directly
from flows.requests import SubspaceRequest
from storage.workspace import Workspace
from tests.flows.conftest import Command, facts_of, isolate

WIDTH = 8
FIT = ("subspace", "fit", "people", "--components", "2", "--epsilon", "1", "--delta", "1e-6", "--clip-norm", "2")
DIRECT = ("--publish", "sub", "--direct", "--yes", "--json")


def rows_of(seed: int) -> Any:
    return np.random.default_rng(seed).normal(size=(2_000, WIDTH)) * ([1.0, 0.7] + (WIDTH - 2) * [0.02])


@pytest.fixture
def public(tmp_path: Path, dpca: Command) -> Path:
    """Return a file of public rows, in a home with the dataset ``people`` of similar rows and a budget."""
    np.save(tmp_path / "people.npy", rows_of(1))
    np.save(tmp_path / "public.npy", rows_of(2))
    words = ("--name", "people", "--records-at-most", "4000", "--direct")
    assert dpca("dataset", "ingest", tmp_path / "people.npy", *words).status == 0
    assert dpca("budget", "open", "people", "--epsilon", "9", "--delta", "1e-5").status == 0
    return tmp_path / "public.npy"


@pytest.mark.parametrize("center", ["none", "private"])
def test_a_release_states_its_public_rows_and_is_charged_alone(public: Path, dpca: Command, center: str) -> None:
    given = ("--like-public", public, "--center", center)
    report = json.loads(dpca(*FIT, *given, *DIRECT).out)
    artifact = Registry.open().load("sub", PrivateSubspace)
    plan = artifact.manifest["plan"]
    assert plan["like_public"] == "public rows in public.npy"
    assert len(plan["like_public_digest"]) == 64
    assert "like" not in plan
    assert artifact.manifest["privacy"]["event"]["name"] == "gaussian"
    assert artifact.outcome["rounds"]["directions"][0] > 0
    assert captured_variance(rows_of(1).T @ rows_of(1), artifact.components) > 0.99
    assert len(Workspace.read_only().ledger.statement("people").releases) == 1
    again = json.loads(dpca(*FIT, *given, *DIRECT).out)
    assert (again["release"], again["reused"], again["spent"]) == (report["release"], True, report["spent"])
    moved = public.rename(public.with_name("moved.npy"))
    assert json.loads(dpca(*FIT, "--like-public", moved, "--center", center, *DIRECT).out)["reused"]


def test_unfit_public_rows_are_refused_in_one_line_and_charge_nothing(
    public: Path, dpca: Command, home: Path, tmp_path: Path
) -> None:
    np.save(tmp_path / "narrow.npy", rows_of(3)[:, :5])
    np.save(tmp_path / "zero.npy", np.zeros((20, WIDTH)))
    before = facts_of(home)
    for words, complaint in (
        (("--like-public", tmp_path / "none.npy"), "neither a file nor a dataset"),
        (("--like-public", tmp_path / "narrow.npy"), "5"),
        (("--like-public", tmp_path / "zero.npy"), "do not differ from zero"),
        (("--like-public", public, "--like", "sub@1"), "leave out one"),
        (("--like-public", "people"), "was not declared public"),
        (("--like-public", public, "--mechanism", "mod_sulq"), "is for analyze_gauss"),
    ):
        assert complaint in dpca(*FIT, *words, *DIRECT).complaint(1)
    assert facts_of(home) == before
    with pytest.raises(NotFound):
        Registry.open().resolve("sub")


@pytest.mark.parametrize("center", ["none", "private"])
def test_a_public_dataset_gives_the_start_that_its_file_gives(public: Path, dpca: Command, center: str) -> None:
    """The dataset has no budget, and is pinned to its snapshot: a later snapshot is another release."""
    words = ("--name", "survey", "--public", "--records-at-most", "4000", "--direct")
    assert dpca("dataset", "ingest", public, *words).status == 0
    assert json.loads(dpca("dataset", "show", "survey", "--json").out)["public"] is True
    from_file = PublicRows.of(_request(str(public), center), n_features=WIDTH).start
    pinned = _request("survey", center)
    from_dataset = PublicRows.of(pinned, n_features=WIDTH).start
    np.testing.assert_allclose(from_dataset.matrix, from_file.matrix, rtol=0, atol=1e-9)
    given = ("--like-public", "survey", "--center", center)
    report = json.loads(dpca(*FIT, *given, *DIRECT).out)
    plan = Registry.open().load("sub", PrivateSubspace).manifest["plan"]
    assert plan["like_public"] == "public rows in survey"
    assert plan["like_public_digest"] == str(pinned.like_public).partition("#snapshot=")[2]
    assert json.loads(dpca(*FIT, *given, *DIRECT).out)["release"] == report["release"]
    np.save(public, rows_of(4))
    assert dpca("dataset", "ingest", public, *words).status == 0
    assert json.loads(dpca(*FIT, *given, *DIRECT).out)["release"] != report["release"]
    assert len(Workspace.read_only().ledger.statement("people").releases) == 2


def test_a_public_dataset_with_other_columns_is_refused(public: Path, dpca: Command, tmp_path: Path) -> None:
    names = tmp_path / "names.txt"
    names.write_text("".join(f"c{number}\n" for number in range(WIDTH)))
    words = ("--name", "survey", "--public", "--feature-names", names, "--direct")
    assert dpca("dataset", "ingest", public, *words).status == 0
    assert "other names" in dpca(*FIT, "--like-public", "survey", *DIRECT).complaint(1)


def _request(named: str, center: str) -> SubspaceRequest:
    terms: dict[str, Any] = {"components": 2, "epsilon": 1.0, "delta": 1e-6, "clip_norm": 2.0, "publish": "sub"}
    return pinned_rows(SubspaceRequest(dataset="people", like_public=named, center=center, **terms))


class Stopped(Exception):
    """Exception that simulates a killed process."""


def test_a_release_resumes_after_a_crash_with_the_same_bits(
    public: Path, dpca: Command, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(reached: str) -> None:
        if reached == "keep.file_written":  # the answer is written, but not yet recorded
            raise Stopped

    terms: dict[str, Any] = {"components": 2, "epsilon": 1.0, "delta": 1e-6, "clip_norm": 2.0, "publish": "sub"}
    request = SubspaceRequest(dataset="people", like_public=str(public), **terms)
    monkeypatch.setattr(atomic_files, "hook", stop)
    with pytest.raises(Stopped):
        release_directly(request)
    monkeypatch.setattr(atomic_files, "hook", None)
    twin = tmp_path / "twin"
    shutil.copytree(home, twin)
    calm = release_directly(request)
    isolate(monkeypatch, home=twin)
    found = release_directly(request)
    assert (found["digest"], found["spent"]) == (calm["digest"], calm["spent"])
