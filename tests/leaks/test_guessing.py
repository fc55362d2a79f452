"""Nobody tests a guess of the whole dataset by what leaves, whatever kind of release was made of it."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import sparse

from dpca_tasks.mechanisms import completion, sites, subspace, tensors
from dpca_tasks.privacy.gate import DIGEST
from dpca_tasks.queries import tiled_sum
from flows.federate import run_sites_fit
from flows.ingest import ingest_source
from flows.orchestration.prefect_stages import directly
from flows.releases.stages import make_release
from flows.releases.stream_acts import open_stream
from flows.releases.stream_stages import make_tick
from flows.requests.base import Request
from flows.requests.completion import CompletionRequest
from flows.requests.evaluation import CompletionEvaluationRequest, SubspaceEvaluationRequest
from flows.requests.sites import SitesRequest
from flows.requests.stream import StreamRequest
from flows.requests.subspace import SubspaceRequest
from flows.requests.tensor import TensorRequest
from flows.settings import Settings
from storage.datasets.ingest_options import IngestOptions
from storage.home import key_folder
from storage.ledger import step_answers
from storage.ledger.trail_export import export_trail
from storage.workspace import Workspace
from tests.flows.conftest import isolate
from tests.leaks.guessing import (
    CLIP_NORM,
    Recorded,
    all_that_left,
    content_of,
    distinguished,
    guesses,
    plain_digest,
    recording,
)

ROWS, FEATURES, TRUE = 40, 4, 2
FEW, MANY = 4, 512
POPULATIONS = ("people", "users", "north", "south")
HERE = Settings(cluster="none")
TERMS: dict[str, Any] = {"epsilon": 1.0, "delta": 1e-6}
SUBSPACE = {**TERMS, "dataset": "people", "components": 2, "clip_norm": CLIP_NORM}
RATINGS = {**TERMS, "dataset": "users", "rank": 1, "ratings_between": "1:5", "ratings_per_user": 3}
MIXTURE = {**TERMS, "dataset": "people", "components": 2, "clip_norm": CLIP_NORM, "model": "mixture"}

PLAIN = SubspaceRequest(**SUBSPACE, publish="plain", keep_matrix=0.0)
KINDS: Mapping[str, tuple[Request, ...]] = {
    "plain": (PLAIN,),
    "kept matrix": (SubspaceRequest(**SUBSPACE, publish="kept"),),
    "laplace": (SubspaceRequest(**SUBSPACE | {"delta": 0.0}, publish="found", mechanism="laplace"),),
    "wishart": (SubspaceRequest(**SUBSPACE, publish="found", mechanism="wishart"),),
    "quantile": (SubspaceRequest(**SUBSPACE | {"clip_norm": "quantile:0.9"}, publish="found"),),
    "private centre": (SubspaceRequest(**SUBSPACE, publish="found", center="private"),),
    "evaluation": (PLAIN, SubspaceEvaluationRequest(**TERMS, artifact="plain@1", dataset="people")),
    "item means": (CompletionRequest(**RATINGS, publish="found", mechanism="item_means"),),
}
MORE: Mapping[str, tuple[Request, ...]] = {
    **{
        f"subspace {name}": (SubspaceRequest(**SUBSPACE, publish="found", mechanism=name),)
        for name in subspace.MECHANISMS
        if name != "laplace"
    },
    **{
        f"completion {name}": (CompletionRequest(**RATINGS, publish="found", mechanism=name),)
        for name in completion.MECHANISMS
    },
    **{
        f"tensor {name}": (
            TensorRequest(**MIXTURE | ({"delta": 0.0} if name == "avn" else {}), publish="found", mechanism=name),
        )
        for name in tensors.MECHANISMS
    },
    "normalised rows": (SubspaceRequest(**SUBSPACE, publish="found", row_policy="normalise"),),
    "prediction error": (
        CompletionRequest(**RATINGS, publish="means", mechanism="item_means"),
        CompletionEvaluationRequest(**TERMS, artifact="means@1", dataset="users"),
    ),
}


def table(name: str) -> NDArray[np.float64]:
    rng = np.random.default_rng([*name.encode()])
    if name == "users":
        return rng.integers(1, 6, (ROWS, FEATURES)).astype(np.float64)
    return np.round(rng.normal(size=(ROWS, FEATURES)), 3)


def candidates(name: str, count: int = FEW) -> list[str]:
    """Return the content digests of a table with other last rows; number `TRUE` is the table itself."""
    found, rows = [], table(name)
    for number in range(count):
        last = rows[-1] + (number - TRUE) * (1 if name == "users" else 0.001)
        found.append(content_of(np.vstack([rows[:-1], last])))
    return found


@pytest.fixture(scope="module")
def ready_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with four datasets of as many populations."""
    folder = tmp_path_factory.mktemp("guessing")
    with pytest.MonkeyPatch.context() as patch:
        isolate(patch, home=folder / "home")
        ledger = Workspace.open().ledger
        for name in POPULATIONS:
            relation = "zero_out" if name == "people" else "add_remove"
            ledger.open_budget(name, epsilon=40.0, delta=9e-6, relation=relation)
            sparse.save_npz(folder / f"{name}.npz", sparse.csr_array(table(name)))
            ingest_source(str(folder / f"{name}.npz"), name, IngestOptions(population=name, records_at_most=ROWS))
            entry = Workspace.open().catalog.current(name)
            assert entry.content_digest == candidates(name)[TRUE], "the attacker hashes rows as the program does"
    return folder / "home"


@pytest.fixture
def home(ready_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of that home."""
    for suffix in ("", "-state"):
        shutil.copytree(f"{ready_home}{suffix}", tmp_path / f"home{suffix}")
    isolate(monkeypatch, home=tmp_path / "home")
    return tmp_path / "home"


def left_by(home: Path, *reports: Any) -> bytes:
    """Export the trail of every population, and return all that left the home."""
    workspace, trails = Workspace.open(), []
    for name in POPULATIONS:
        with workspace.ledger.transaction() as connection:
            trails.append(export_trail(connection, name, place=workspace.store, keys=key_folder()))
    return all_that_left(home, json.dumps([*trails, *reports]).encode())


def check(left: bytes, recorded: Recorded, *names: str, found: list[int], count: int = FEW) -> None:
    """Check which candidates an attacker finds, and that the attacker rebuilt the request digest of every step."""
    assert recorded.steps
    rebuilt = {guess for name in names for guess in guesses(candidates(name)[TRUE], recorded)}
    assert all(bytes(arrays[DIGEST]) in rebuilt for arrays in recorded.steps)
    assert b"step_kept" in left
    for name in names:
        assert distinguished(left, candidates(name, count), recorded) == found


def released(home: Path, requests: tuple[Request, ...]) -> tuple[bytes, Recorded]:
    with recording() as recorded:
        reports = [make_release(directly, request, HERE) for request in requests]
    return left_by(home, *reports), recorded


@pytest.mark.parametrize("count", [FEW, pytest.param(MANY, marks=pytest.mark.audit_only)])
@pytest.mark.parametrize("kind", KINDS)
def test_no_release_tells_which_rows_it_was_made_of(home: Path, kind: str, count: int) -> None:
    left, recorded = released(home, KINDS[kind])
    check(left, recorded, KINDS[kind][0].dataset, found=[], count=count)


@pytest.mark.audit_only
@pytest.mark.parametrize(
    ("kind", "tile"),
    [*((kind, tiled_sum.TILE) for kind in MORE), *((f"completion {name}", 2) for name in completion.MECHANISMS)],
)
def test_no_mechanism_tells_which_rows_it_was_run_on(
    home: Path, kind: str, tile: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tiled_sum, "TILE", tile)
    left, recorded = released(home, MORE[kind])
    check(left, recorded, MORE[kind][0].dataset, found=[])


def test_no_tick_of_a_stream_tells_which_rows_came(home: Path) -> None:
    terms = {**SUBSPACE, "population": "people", "ticks": 4, "publish": "nightly"}
    open_stream(StreamRequest(**terms))
    with recording() as recorded:
        report = make_tick(directly, "nightly", HERE, slot="2026-11-01")
    check(left_by(home, report), recorded, "people", found=[])


@pytest.mark.parametrize(
    "method",
    [
        "cape_pca",
        *(
            pytest.param(name, marks=pytest.mark.audit_only)
            for name in {**sites.METHODS, **sites.TENSOR_METHODS}
            if name != "cape_pca"
        ),
    ],
)
def test_no_share_of_a_site_tells_which_rows_it_holds(home: Path, method: str) -> None:
    model: dict[str, Any] = {"model": "mixture"} if method in sites.TENSOR_METHODS else {}
    request = SitesRequest(
        **TERMS, **model, datasets="north,south", method=method, components=2, clip_norm=CLIP_NORM, publish="joint"
    )
    with recording() as recorded:
        report = run_sites_fit(request, direct=True)
    check(left_by(home, report), recorded, "north", "south", found=[])


@pytest.mark.parametrize(
    ("kind", "count"),
    [("kept matrix", FEW), *(pytest.param(kind, MANY, marks=pytest.mark.audit_only) for kind in KINDS)],
)
def test_the_attack_finds_the_true_rows_where_a_step_is_named_by_its_plain_digest(
    home: Path, kind: str, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Planted: exactly one candidate is found, the right one."""
    monkeypatch.setattr(step_answers, "step_digest", lambda _key, _step, arrays: plain_digest(arrays))
    left, recorded = released(home, KINDS[kind])
    check(left, recorded, KINDS[kind][0].dataset, found=[TRUE], count=count)
