"""Streams with public maps, through the stages of a tick: maps from an earlier release, and from the ticks before."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpca.artifacts.subspace import PrivateSubspace
from dpca.registry.reader import Registry
from dpca_tasks.metrics import captured_variance
from flows.releases.stages import release_directly
from flows.requests import SubspaceRequest
from storage.ledger.stream_rows import Answers
from storage.workspace import Workspace
from tests.flows.conftest import Command
from tests.flows.test_stream import dying_at, spent, tick

D, K = 8, 2
SCALES = np.array([1.0, 0.7, *(D - 2) * (0.05,)])
TERMS: dict[str, Any] = {"components": K, "epsilon": 0.5, "delta": 1e-6, "clip_norm": 2.0}
OPEN = (
    *("stream", "open", "people", "--population", "people", "--epsilon", "1", "--delta", "1e-6", "--ticks", "20"),
    *("--clip-norm", "2", "--components", str(K), "--publish", "nightly", "--yes"),
)


def rows_of(night: int) -> Any:
    return 0.3 + np.random.default_rng(night).normal(size=(2_000, D)) * SCALES


@pytest.fixture
def ready(tmp_path: Path, dpca: Command, home: Path) -> Path:
    """Ingest the first night and open a budget."""
    ingest(tmp_path, dpca, 1)
    assert dpca("budget", "open", "people", "--epsilon", "9", "--delta", "1e-6").status == 0
    return tmp_path


def ingest(folder: Path, dpca: Command, night: int) -> None:
    np.save(folder / f"{night}.npy", rows_of(night))
    assert dpca("dataset", "ingest", folder / f"{night}.npy", "--name", "people", "--direct").status == 0


def earlier(center: str = "none") -> None:
    """Publish ``map@1``, from which streams start."""
    release_directly(SubspaceRequest(dataset="people", publish="map", center=center, rounds=1, **TERMS))


def version(number: int) -> PrivateSubspace:
    return Registry.open().load(f"nightly@{number}", PrivateSubspace)


def inputs_of(number: int) -> dict[str, Any]:
    workspace = Workspace.read_only()
    _, ticks = workspace.ledger.streams.show("nightly")
    return Answers(place=workspace.store, ticks=ticks).read(number)[1]


@pytest.mark.parametrize("center", ["none", "private"])
@pytest.mark.parametrize("maps", ["first", "doubling"])
@pytest.mark.parametrize("like", ["", "map"])
def test_each_tick_uses_the_map_of_its_terms(ready: Path, dpca: Command, center: str, maps: str, like: str) -> None:
    """Publish five ticks of arriving rows. With doubling, ticks 2 and 4 change the map, and others do not."""
    if like:
        earlier(center)
    words = ("--like", "map") if like else ()
    before = spent()
    assert dpca(*OPEN, "--center", center, "--maps", maps, *words).status == 0
    charged = spent()
    assert charged > before
    for number in range(1, 6):
        ingest(ready, dpca, number)
        tick(f"2026-11-0{number}")
    assert spent() == charged
    found = version(5)
    rows = np.vstack([rows_of(night) for night in range(1, 6)])
    rows = rows - rows.mean(axis=0) * (center == "private")
    assert captured_variance(rows.T @ rows, found.components) > 0.98
    assert found.outcome["captured_low"] < np.square(rows @ found.components.T).sum()
    assert found.manifest["parameters"]["maps"] == maps
    if not like and maps == "first":
        assert inputs_of(1) == {}
        return
    assert found.outcome["rounds"]["like"] == ("map@1" if like else "earlier ticks")
    norms = [float(inputs_of(number)["norm"][0]) for number in range(1, 6)]
    assert norms[4] == norms[3]
    assert norms[2] == norms[1]
    if maps == "first":
        assert len(set(norms)) == 1
        assert norms[0] < 1.0
    else:
        assert norms[3] < 1.0


def test_an_interrupted_tick_resumes_with_the_same_bits(ready: Path, dpca: Command) -> None:
    """The map of tick 2 is computed again after the crash, but the stored one is used."""
    assert dpca(*OPEN, "--maps", "doubling").status == 0
    tick("2026-11-01")
    with dying_at("answer.row_committed"):
        tick("2026-11-02")
    before = inputs_of(2)
    tick("2026-11-02")
    after = inputs_of(2)
    assert before.keys() == after.keys() == {"directions", "energy", "norm", "reductions"}
    assert all(np.array_equal(before[name], after[name]) for name in before)


def test_an_earlier_release_that_does_not_suit_is_refused_and_nothing_is_charged(ready: Path, dpca: Command) -> None:
    earlier()
    before = spent()
    assert "center=private" in dpca(*OPEN, "--like", "map@1", "--center", "private").complaint(1)
    assert "does not exist" in dpca(*OPEN, "--like", "other@1").complaint(1)
    np.save(ready / "narrow.npy", rows_of(1)[:, :5])
    assert dpca("dataset", "ingest", ready / "narrow.npy", "--name", "narrow", "--direct").status == 0
    assert dpca("budget", "open", "narrow", "--epsilon", "9", "--delta", "1e-6").status == 0
    words = ["narrow" if word == "people" else word for word in OPEN]
    assert "columns" in dpca(*words, "--like", "map@1").complaint(1)
    assert spent() == before


def test_the_drift_test_uses_the_ticks_of_one_map(ready: Path, dpca: Command) -> None:
    """Publish 15 ticks of equal rows: tick 15 tests the ticks from 8 on, which share a map."""
    assert dpca(*OPEN, "--maps", "doubling").status == 0
    for number in range(1, 16):
        ingest(ready, dpca, number)
        tick(f"2026-11-{number:02}")
    drift = version(15).outcome["drift"]
    assert (drift["directions_of_tick"], drift["change_after_tick"]) == (7, 11)
    assert drift["p"] > 1e-3
    assert "drift" not in version(9).outcome  # two ticks of the new map are too few
