"""Releases that start from an earlier release: results, refusals, repeated requests and crashes.

Releases that start from public rows: what they state, that nothing is charged for the rows, and refusals.
"""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpca.artifacts.subspace import PrivateSubspace
from dpca.backends import atomic_files
from dpca.errors import NotFound
from dpca.registry.reader import Registry
from dpca_tasks.metrics import captured_variance
from dpca_tasks.privacy.curator import Curator
from flows.families.warm_starts import Parent, PublicRows, pinned_rows
from flows.releases import stages
from flows.releases.stages import release_directly
from flows.requests import SubspaceRequest
from storage.workspace import Workspace
from tests.flows.conftest import FIT, Command, damage, facts_of, isolate

after_a_release = pytest.mark.usefixtures("released")
LIKE = (*FIT[:-1], "next", "--like", "sub@1", "--epsilon", "0.5", "--direct", "--yes", "--json")


@after_a_release
def test_a_release_states_where_it_started_and_costs_one_gaussian_release(dpca: Command) -> None:
    report = json.loads(dpca(*LIKE).out)
    artifact = Registry.open().load("next", PrivateSubspace)
    parent = Registry.open().resolve("sub@1")
    assert report["in_rounds"].startswith("1 round")
    assert artifact.manifest["plan"]["like"] == "sub@1"
    assert artifact.manifest["plan"]["like_digest"] == parent.digest
    assert artifact.manifest["privacy"]["event"]["name"] == "gaussian"
    assert "started from  sub@1" in dpca("registry", "show", "next").out
    again = json.loads(dpca(*LIKE).out)
    assert (again["release"], again["reused"], again["spent"]) == (report["release"], True, report["spent"])


@after_a_release
def test_pages_name_the_start_and_do_not_take_it_for_an_evaluation(dpca: Command, tmp_path: Path) -> None:
    assert dpca(*LIKE).status == 0
    assert dpca("pages", "build", str(tmp_path / "site")).status == 0
    pages = {name: json.loads((tmp_path / "site" / f"versions/{name}@1.json").read_text()) for name in ("sub", "next")}
    assert pages["next"]["lineage"]["starts_from"] == "sub@1"
    assert pages["sub"]["lineage"]["starts_from"] is None
    assert pages["sub"]["lineage"]["evaluated_by"] == []


@after_a_release
def test_without_a_declared_number_every_record_counts_as_one_at_the_clip_norm(dpca: Command) -> None:
    assert dpca(*FIT[:-1], "single", "--rounds", "1", "--epsilon", "0.2", "--direct", "--yes").status == 0
    start = Parent.of("single@1").start()
    assert start.n_records == pytest.approx(max(np.trace(start.matrix) / 1.5**2, 1.0))


@after_a_release
def test_an_alias_means_the_version_that_it_points_to(dpca: Command) -> None:
    assert dpca("registry", "promote", "sub@1", "champion").status == 0
    by_alias = [word.replace("sub@1", "sub@champion") for word in LIKE]
    report = json.loads(dpca(*by_alias).out)
    assert json.loads(dpca(*LIKE).out)["release"] == report["release"]
    assert Registry.open().load("next").manifest["plan"]["like"] == "sub@1"


@after_a_release
@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (("--like", "other@1"), "does not exist"),
        (("--like", "sub@1", "--center", "private"), "center=private"),
        (("--like", "sub@1", "--mechanism", "mod_sulq"), "is for analyze_gauss"),
        (("--like", "sub@1", "--rounds", "2"), "leave out like"),
        (("--like", "bare@1"), "--keep-matrix"),
        (("--like", "open@1"), "not private"),
    ],
)
def test_an_unsuitable_earlier_release_is_refused_in_one_line(
    released: Path, dpca: Command, options: tuple[str, ...], reason: str
) -> None:
    if "bare@1" in options:
        bare = (*FIT[:-1], "bare", "--epsilon", "0.1", "--keep-matrix", "0", "--direct", "--yes")
        assert dpca(*bare).status == 0
    if "open@1" in options:
        exact = (*FIT[:4], "2", "--clip-norm", "1.5", "--publish", "open", "--mechanism", "non_private", "--direct")
        other = ("--yes", "--i-know-this-is-not-private")
        ended = dpca(*exact, *other)
        assert ended.status == 0, ended.err
    before = facts_of(released)
    assert reason in dpca(*FIT[:-1], "next", *options, "--direct", "--yes").complaint(1)
    assert facts_of(released) == before


@after_a_release
def test_other_columns_are_refused(tmp_path: Path, dpca: Command) -> None:
    np.save(tmp_path / "x.npy", np.eye(4))
    ingested = dpca(
        "dataset", "ingest", str(tmp_path / "x.npy"), "--name", "wider", "--population", "people", "--direct"
    )
    assert ingested.status == 0, ingested.err
    fit = [word.replace("people", "wider") for word in LIKE]
    assert "the same columns" in dpca(*fit).complaint(1)


@after_a_release
def test_a_damaged_earlier_release_is_refused(released: Path, dpca: Command) -> None:
    damage("sub@1")
    assert dpca(*LIKE).complaint(1)


@after_a_release
def test_a_release_resumes_after_the_earlier_release_disappeared(
    released: Path, dpca: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Crash after the noisy answer was stored, remove the earlier release, and resume.

    The bits are those of a copy of the home in which nothing happened.
    """
    request = SubspaceRequest(
        dataset="people", publish="next", components=2, epsilon=0.5, delta=1e-6, clip_norm=1.5, like="sub@1"
    )
    release_id, _ = stages.reserve_release(request)
    shutil.copytree(released, tmp_path / "copy")
    answer = Curator.release

    def crash(self: Curator, *given: object) -> object:
        answer(self, *given)  # type: ignore[arg-type]
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Curator, "release", crash)
        with pytest.raises(KeyboardInterrupt):
            stages.compute_release(release_id, "none")
    digest = Registry.open().resolve("sub@1").digest
    shutil.rmtree(next(path for path in (released / "registry").rglob(digest) if path.is_dir()))
    resumed = stages.compute_release(release_id, "none")
    assert stages.publish_release(release_id, resumed, request) == "next@1"
    isolate(monkeypatch, home=tmp_path / "copy")
    assert stages.compute_release(release_id, "none") == resumed


@after_a_release
def test_a_scheduled_run_starts_from_the_promoted_version(dpca: Command) -> None:
    """Without a promoted version, and with ``like=none``, a scheduled run starts from nothing."""
    request = SubspaceRequest(dataset="people", publish="sub", components=2, epsilon=0.1, delta=1e-6, clip_norm=1.5)

    def start(**changes: Any) -> str | None:
        found = stages.plan_request(Workspace.open(), replace(request, **changes), "2026-01-01T00:00:00Z").plan.start
        return None if found is None else found["artifact"]

    assert start() is None
    assert dpca("registry", "promote", "sub@1", "champion").status == 0
    assert start() == "sub@1"
    assert start(like="none") is None
    assert start(mechanism="mod_sulq") is None
    assert start(center="private") is None


@after_a_release
def test_a_slot_keeps_the_earlier_release_of_its_reservation(dpca: Command) -> None:
    """Promote another version between two runs of a slot: the slot has one release, which is charged once."""
    request = SubspaceRequest(dataset="people", publish="sub", components=2, epsilon=0.1, delta=1e-6, clip_norm=1.5)
    slot = "2026-01-01T00:00:00Z"
    assert dpca("registry", "promote", "sub@1", "champion").status == 0
    release_id, _ = stages.reserve_release(request, slot)
    assert dpca(*FIT, "--epsilon", "0.2", "--direct", "--yes").status == 0
    assert dpca("registry", "promote", "sub@2", "champion").status == 0
    assert stages.reserve_release(request, slot)[0] == release_id
    assert Workspace.open().ledger.release(release_id).request["like"] == "sub@1"


WIDTH = 8
FIT_PEOPLE = ("subspace", "fit", "people", "--components", "2", "--epsilon", "1", "--delta", "1e-6", "--clip-norm", "2")
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
    report = json.loads(dpca(*FIT_PEOPLE, *given, *DIRECT).out)
    artifact = Registry.open().load("sub", PrivateSubspace)
    plan = artifact.manifest["plan"]
    assert plan["like_public"] == "public rows in public.npy"
    assert len(plan["like_public_digest"]) == 64
    assert "like" not in plan
    assert artifact.manifest["privacy"]["event"]["name"] == "gaussian"
    assert artifact.outcome["rounds"]["directions"][0] > 0
    assert captured_variance(rows_of(1).T @ rows_of(1), artifact.components) > 0.99
    assert len(Workspace.read_only().ledger.statement("people").releases) == 1
    again = json.loads(dpca(*FIT_PEOPLE, *given, *DIRECT).out)
    assert (again["release"], again["reused"], again["spent"]) == (report["release"], True, report["spent"])
    moved = public.rename(public.with_name("moved.npy"))
    assert json.loads(dpca(*FIT_PEOPLE, "--like-public", moved, "--center", center, *DIRECT).out)["reused"]


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
        assert complaint in dpca(*FIT_PEOPLE, *words, *DIRECT).complaint(1)
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
    report = json.loads(dpca(*FIT_PEOPLE, *given, *DIRECT).out)
    plan = Registry.open().load("sub", PrivateSubspace).manifest["plan"]
    assert plan["like_public"] == "public rows in survey"
    assert plan["like_public_digest"] == str(pinned.like_public).partition("#snapshot=")[2]
    assert json.loads(dpca(*FIT_PEOPLE, *given, *DIRECT).out)["release"] == report["release"]
    np.save(public, rows_of(4))
    assert dpca("dataset", "ingest", public, *words).status == 0
    assert json.loads(dpca(*FIT_PEOPLE, *given, *DIRECT).out)["release"] != report["release"]
    assert len(Workspace.read_only().ledger.statement("people").releases) == 2


def test_a_public_dataset_with_other_columns_is_refused(public: Path, dpca: Command, tmp_path: Path) -> None:
    names = tmp_path / "names.txt"
    names.write_text("".join(f"c{number}\n" for number in range(WIDTH)))
    words = ("--name", "survey", "--public", "--feature-names", names, "--direct")
    assert dpca("dataset", "ingest", public, *words).status == 0
    assert "other names" in dpca(*FIT_PEOPLE, "--like-public", "survey", *DIRECT).complaint(1)


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
