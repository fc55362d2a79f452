"""The same request from several processes: each of them returns the one release, wherever it was overtaken."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpca_tasks.mechanisms.subspace import noisy_power
from flows.families.subspace import SubspaceFamily
from flows.fit import run_fit
from flows.orchestration.prefect_stages import directly
from flows.releases.stages import make_release
from flows.requests.subspace import SubspaceRequest
from flows.settings import Settings
from storage.backends import crash_points
from storage.backends.local import LocalPlace
from storage.errors import Corrupt
from storage.registry.signed_pointers import PUBLISHERS_KEY
from storage.workspace import Workspace
from tests.flows.conftest import facts_of

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
    """A process of the tests ends here."""


def overtaken(monkeypatch: pytest.MonkeyPatch, point: str, act: Callable[[], object]) -> None:
    """Let something happen once, when this process reaches a point."""

    def hook(reached: str) -> None:
        if reached == point:
            monkeypatch.setattr(crash_points, "hook", None)
            act()

    monkeypatch.setattr(crash_points, "hook", hook)


def release_of(found: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(found[name] for name in ("artifact", "digest", "release", "spent", "remaining"))


def assert_overtaken_at(point: str, home: Path, monkeypatch: pytest.MonkeyPatch, *, direct: bool) -> None:
    others: list[dict[str, Any]] = []
    overtaken(monkeypatch, point, lambda: others.append(run_fit(REQUEST, direct=True)))
    found = run_fit(REQUEST, direct=direct)
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
def test_whoever_is_overtaken_returns_the_release_that_another_finished(
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
def test_a_flow_that_is_overtaken_ends_well(ready: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert_overtaken_at("keep.file_written", ready, monkeypatch, direct=False)


def test_a_step_that_another_answered_from_other_directions_is_taken_over(
    ready: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other's directions differ, as those of another machine may; it answers one step from them, and stops."""
    orthonormal = vars(noisy_power)["orthonormal"]

    def stop(reached: str) -> None:
        if reached == "keep.row_committed":
            raise Stopped

    def answer_one_step() -> None:
        monkeypatch.setattr(noisy_power, "orthonormal", lambda product: orthonormal(product)[:, ::-1].copy())
        monkeypatch.setattr(crash_points, "hook", stop)
        with pytest.raises(Stopped):
            run_fit(REQUEST, direct=True)
        monkeypatch.setattr(noisy_power, "orthonormal", orthonormal)
        monkeypatch.setattr(crash_points, "hook", None)

    written = 0

    def hook(reached: str) -> None:
        nonlocal written
        written += reached == "keep.file_written"
        if written == 2:
            answer_one_step()

    monkeypatch.setattr(crash_points, "hook", hook)
    assert run_fit(REQUEST, direct=True)["artifact"] == "sub@1"
    _, rows = facts_of(ready)
    names = [row[3] for row in rows["event"]]
    assert (names.count("step_kept"), names.count("step_conflict"), names.count("release_reserved")) == (3, 1, 1)


def test_an_artifact_whose_last_bits_differ_gives_way_to_the_committed_one(
    ready: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    others: list[dict[str, Any]] = []

    def commit_another() -> None:
        state = SubspaceFamily.state

        def moved(*facts: Any, **others: Any) -> Any:
            made = state(*facts, **others)
            return type(made)(**{**_fields(made), "components": np.nextafter(made.components, 2.0)})

        monkeypatch.setattr(SubspaceFamily, "state", moved)
        others.append(run_fit(REQUEST, direct=True))
        monkeypatch.setattr(SubspaceFamily, "state", state)

    overtaken(monkeypatch, "artifact.written", commit_another)
    found = run_fit(REQUEST, direct=True)
    assert release_of(found) == release_of(others[0])
    assert len(list((ready / "registry" / "artifacts").iterdir())) == 2


def _fields(made: Any) -> dict[str, Any]:
    names = ("components", "eigenvalues", "spectrum", "further", "mean", "manifest")
    return {name: getattr(made, name) for name in names}


@pytest.mark.parametrize("refine", [None, "none"])
def test_a_release_reads_its_artifact_back_once_and_whoever_finds_it_reads_it_again(
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
