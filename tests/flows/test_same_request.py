"""The same request from several processes, and restored ledgers.

Each process returns the one release, even if another process overtakes it at any point. A restored ledger is locked,
states the reason in one line, and continues with its charges when an operator accepts it.
"""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpca.backends import atomic_files
from dpca.backends.local import LocalPlace
from dpca.errors import Corrupt
from dpca.registry.reader import Registry
from dpca.registry.roots import PUBLISHERS_KEY
from dpca_tasks.mechanisms.subspace import noisy_power
from flows.families.subspace import SubspaceFamily
from flows.jobs import run_release
from flows.orchestration.stage_calls import directly
from flows.releases.stages import make_release, release_directly
from flows.requests import SubspaceRequest
from flows.settings import Settings
from storage.workspace import Workspace
from tests.flows.conftest import FIT, Command, facts_of

REQUEST = SubspaceRequest(
    dataset="people",
    components=2,
    epsilon=1.0,
    delta=1e-6,
    clip_norm=1.5,
    publish="sub",
    mechanism="noisy_power",
    settings={"iterations": "3"},
)


class Stopped(Exception):
    """Exception that simulates a killed process."""


def overtaken(monkeypatch: pytest.MonkeyPatch, point: str, act: Callable[[], object]) -> None:
    """Call ``act`` once, when this process reaches a crash point, as if another process overtook it."""

    def hook(reached: str) -> None:
        if reached == point:
            monkeypatch.setattr(atomic_files, "hook", None)
            act()

    monkeypatch.setattr(atomic_files, "hook", hook)


def release_of(found: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(found[name] for name in ("artifact", "digest", "release", "spent", "remaining"))


def assert_overtaken_at(point: str, home: Path, monkeypatch: pytest.MonkeyPatch, *, direct: bool) -> None:
    others: list[dict[str, Any]] = []
    overtaken(monkeypatch, point, lambda: others.append(release_directly(REQUEST)))
    found = (release_directly if direct else run_release)(REQUEST)
    (other,) = others
    assert release_of(found) == release_of(other)
    assert found["artifact"] == "sub@1"
    assert not list((home / "staging").glob("*"))
    assert {path.name for path in (home / "keys").glob("[!.]*")} == {"witness.json", PUBLISHERS_KEY}
    Workspace.open().ledger.verify()


@pytest.mark.parametrize(
    "point",
    [
        *("reserve.row_committed", "begin.row_committed", "keep.file_written", "keep.row_committed"),
        *("artifact.staged", "artifact.written", "commit.row_committed", "commit.key_erased"),
    ],
)
def test_an_overtaken_process_returns_the_release_that_another_finished(
    ready: Path, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    assert_overtaken_at(point, ready, monkeypatch, direct=True)


@pytest.mark.usefixtures("ready")
def test_each_stage_opens_the_workspace_once(monkeypatch: pytest.MonkeyPatch) -> None:
    openings: list[str] = []

    def counting(name: str, original: Callable[[], Workspace]) -> Callable[[], Workspace]:
        def call() -> Workspace:
            openings.append(name)
            return original()

        return call

    for name in ("open", "read_only"):
        monkeypatch.setattr(Workspace, name, counting(name, getattr(Workspace, name)))
    opened: dict[str, list[str]] = {}

    def run[**P, T](stage: Callable[P, T], /, *given: P.args, **named: P.kwargs) -> T:
        openings.clear()
        result = directly(stage, *given, **named)
        opened[stage.__name__] = list(openings)
        return result

    writing, reading = ["open"], ["read_only"]
    for _ in range(2):
        make_release(run, REQUEST, Settings(cluster="none"))
    assert opened == {
        "reserve_release": writing,
        "compute_release": writing,
        "publish_release": writing,
        "report_release": reading,
        "released_digest": reading,
    }


@pytest.mark.usefixtures("prefect")
def test_an_overtaken_flow_completes(ready: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert_overtaken_at("keep.file_written", ready, monkeypatch, direct=False)


def test_a_step_answered_by_another_process_is_used(ready: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let another process answer one step with different directions, as on another machine: its answer is used."""
    orthonormal = vars(noisy_power)["orthonormal"]

    def stop(reached: str) -> None:
        if reached == "keep.row_committed":
            raise Stopped

    def answer_one_step() -> None:
        monkeypatch.setattr(noisy_power, "orthonormal", lambda product: orthonormal(product)[:, ::-1].copy())
        monkeypatch.setattr(atomic_files, "hook", stop)
        with pytest.raises(Stopped):
            release_directly(REQUEST)
        monkeypatch.setattr(noisy_power, "orthonormal", orthonormal)
        monkeypatch.setattr(atomic_files, "hook", None)

    written = 0

    def hook(reached: str) -> None:
        nonlocal written
        written += reached == "keep.file_written"
        if written == 2:
            answer_one_step()

    monkeypatch.setattr(atomic_files, "hook", hook)
    assert release_directly(REQUEST)["artifact"] == "sub@1"
    _, rows = facts_of(ready)
    names = [row[3] for row in rows["event"]]
    assert (names.count("step_kept"), names.count("step_conflict"), names.count("release_reserved")) == (3, 1, 1)


def test_a_committed_artifact_replaces_one_with_other_last_bits(ready: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    others: list[dict[str, Any]] = []

    def commit_another() -> None:
        state = SubspaceFamily.state

        def moved(*facts: Any, **others: Any) -> Any:
            made = state(*facts, **others)
            return type(made)(**{**_fields(made), "components": np.nextafter(made.components, 2.0)})

        monkeypatch.setattr(SubspaceFamily, "state", moved)
        others.append(release_directly(REQUEST))
        monkeypatch.setattr(SubspaceFamily, "state", state)

    overtaken(monkeypatch, "artifact.written", commit_another)
    found = release_directly(REQUEST)
    assert release_of(found) == release_of(others[0])
    assert len(list((ready / "registry" / "artifacts").iterdir())) == 2


def _fields(made: Any) -> dict[str, Any]:
    names = ("components", "eigenvalues", "spectrum", "further", "mean", "manifest")
    return {name: getattr(made, name) for name in names}


@pytest.mark.parametrize("refine", [None, "none"])
def test_a_release_verifies_its_artifact_once_and_each_repetition_again(
    ready: Path, monkeypatch: pytest.MonkeyPatch, refine: str | None
) -> None:
    read: list[str] = []
    original = LocalPlace.read_folder

    def reading(place: LocalPlace, folder: str, *, most: int) -> dict[str, bytes]:
        read.append(folder)
        return original(place, folder, most=most)

    monkeypatch.setattr(LocalPlace, "read_folder", reading)
    request = replace(REQUEST, mechanism="analyze_gauss", settings={}, refine=refine)
    made = make_release(directly, request, Settings(cluster="none"))
    folder = f"registry/artifacts/{made['digest']}"
    assert read == [folder]
    found = make_release(directly, request, Settings(cluster="none"))
    assert found == {**made, "reused": True}
    assert set(read[1:]) == {folder}
    (ready / folder / "manifest.json").write_text("{}")
    with pytest.raises(Corrupt):
        make_release(directly, request, Settings(cluster="none"))


@pytest.mark.parametrize("parts", [("dpca.sqlite",), ("dpca.sqlite", "keys", "registry")])
def test_a_restored_home_is_charged_again_for_lost_releases(ready: Path, dpca: Command, parts: tuple[str, ...]) -> None:
    shutil.copytree(ready, ready.with_name("copy"))
    made = json.loads(dpca(*FIT, "--direct", "--yes", "--json").out)
    for name in parts:
        for path in ready.glob(f"{name}*"):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        for path in ready.with_name("copy").glob(f"{name}*"):
            (shutil.copytree if path.is_dir() else shutil.copy)(path, ready / path.name)
    for words in (("budget", "show", "people"), (*FIT, "--direct", "--yes")):
        assert "counts less than was spent; restore the newest copy" in dpca(*words).complaint(1)
    assert "fix   database" in dpca("doctor").out
    accepted = dpca("budget", "accept-restored", "--reason", "the disk died", "--yes", "--json")
    (row,) = json.loads(accepted.out)
    assert (row["release"], row["versions"], row["epsilon"]) == (made["release"], "sub@1", 1.0)
    assert "1 release is charged again" in accepted.err
    repeated = dpca("budget", "accept-restored", "--reason", "no answer came", "--yes", "--json")
    assert json.loads(repeated.out) == []
    assert "no release is missing, and the charges added when this ledger was accepted before, at 20" in repeated.err
    shown = json.loads(dpca("budget", "show", "people", "--json").out)
    assert shown["spent"] == made["spent"]
    assert [item["release"] for item in shown["releases"]] == [made["release"]]
    assert Registry.open().resolve("sub@1").digest == made["digest"]
    if "registry" not in parts:
        again = json.loads(dpca(*FIT, "--direct", "--yes", "--json").out)
        assert (again["artifact"], again["digest"], again["reused"]) == ("sub@1", made["digest"], True)
    other = json.loads(dpca(*FIT, "--run-key", "another", "--direct", "--yes", "--json").out)
    assert other["artifact"] == "sub@2"


def test_a_lost_ledger_is_locked_until_an_operator_accepts_the_charges(released: Path, dpca: Command) -> None:
    before = Registry.open().resolve("sub@1").digest
    shutil.rmtree(released / "keys")
    for path in released.glob("dpca.sqlite*"):
        path.unlink()
    terms = ("budget", "open", "people", "--epsilon", "2", "--delta", "1e-6")
    accept = ("budget", "accept-restored", "--reason", "lost", "--yes")
    assert "shows sub, which this ledger did not publish" in dpca(*terms).complaint(1)
    assert "use --charge POPULATION" in dpca(*accept).complaint(1)
    assert dpca(*terms, "--even-locked").status == 0
    assert "shows sub" in dpca("budget", "show", "people").complaint(1)
    (row,) = json.loads(dpca(*accept, "--charge", "people", "--json").out)
    assert (row["population"], row["versions"]) == ("people", "sub@1")
    assert json.loads(dpca("budget", "show", "people", "--json").out)["spent"] > 0.99
    assert Registry.open().resolve("sub@1").digest == before
