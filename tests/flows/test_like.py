"""Releases that start from an earlier release: results, refusals, repeated requests and crashes."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpca.artifacts.subspace import PrivateSubspace
from dpca.registry.reader import Registry
from dpca_tasks.privacy.curator import Curator
from flows.families.warm_starts import Parent
from flows.releases import stages
from flows.requests import SubspaceRequest
from storage.workspace import Workspace
from tests.flows.conftest import FIT, Command, damage, facts_of, isolate

pytestmark = pytest.mark.usefixtures("released")
LIKE = (*FIT[:-1], "next", "--like", "sub@1", "--epsilon", "0.5", "--direct", "--yes", "--json")


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


def test_pages_name_the_start_and_do_not_take_it_for_an_evaluation(dpca: Command, tmp_path: Path) -> None:
    assert dpca(*LIKE).status == 0
    assert dpca("pages", "build", str(tmp_path / "site")).status == 0
    pages = {name: json.loads((tmp_path / "site" / f"versions/{name}@1.json").read_text()) for name in ("sub", "next")}
    assert pages["next"]["lineage"]["starts_from"] == "sub@1"
    assert pages["sub"]["lineage"]["starts_from"] is None
    assert pages["sub"]["lineage"]["evaluated_by"] == []


def test_without_a_declared_number_every_record_counts_as_one_at_the_clip_norm(dpca: Command) -> None:
    assert dpca(*FIT[:-1], "single", "--rounds", "1", "--epsilon", "0.2", "--direct", "--yes").status == 0
    start = Parent.of("single@1").start()
    assert start.n_records == pytest.approx(max(np.trace(start.matrix) / 1.5**2, 1.0))


def test_an_alias_means_the_version_that_it_points_to(dpca: Command) -> None:
    assert dpca("registry", "promote", "sub@1", "champion").status == 0
    by_alias = [word.replace("sub@1", "sub@champion") for word in LIKE]
    report = json.loads(dpca(*by_alias).out)
    assert json.loads(dpca(*LIKE).out)["release"] == report["release"]
    assert Registry.open().load("next").manifest["plan"]["like"] == "sub@1"


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


def test_other_columns_are_refused(tmp_path: Path, dpca: Command) -> None:
    np.save(tmp_path / "x.npy", np.eye(4))
    ingested = dpca(
        "dataset", "ingest", str(tmp_path / "x.npy"), "--name", "wider", "--population", "people", "--direct"
    )
    assert ingested.status == 0, ingested.err
    fit = [word.replace("people", "wider") for word in LIKE]
    assert "the same columns" in dpca(*fit).complaint(1)


def test_a_damaged_earlier_release_is_refused(released: Path, dpca: Command) -> None:
    damage("sub@1")
    assert dpca(*LIKE).complaint(1)


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
