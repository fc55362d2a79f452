"""Fixtures: a home with versions of every family, and a copy of it for each test.

The sample home has versions of every family, streams, sites and a void budget: made-up released numbers, no rows.
"""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpca.artifacts.base import Artifact
from dpca.artifacts.embeddings import ItemEmbeddings
from dpca.artifacts.estimate import PrivateEstimate
from dpca.artifacts.files import write_artifact
from dpca.artifacts.subspace import PrivateSubspace
from dpca.artifacts.tensor import TensorComponents
from flows.web.pages import Site
from storage.database import tables
from storage.ledger import budgets, journal
from storage.ledger.budgets import read_budget
from storage.workspace import Workspace
from tests.flows.conftest import isolate
from tests.storage.releasing import calibrated, gaussian, open_stream, publish_tick, register


@pytest.fixture(scope="session")
def sample_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Create the sample home once for all tests."""
    place = tmp_path_factory.mktemp("sample") / "home"
    with pytest.MonkeyPatch.context() as patch:
        isolate(patch, home=place)
        make_sample()
    return place


@pytest.fixture
def sample(sample_home: Path, home: Path) -> Path:
    """Return a copy of the sample home that this test may modify."""
    shutil.copytree(sample_home, home)
    shutil.copytree(f"{sample_home}-state", f"{home}-state")
    return home


@pytest.fixture
def shared(sample_home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the sample home itself, for tests that only read."""
    isolate(monkeypatch, home=sample_home)
    return sample_home


@pytest.fixture
def site(shared: Path) -> Site:
    """Return the web pages of the sample home, as the server generates them."""
    return Site(live=True)


DELTA, FEATURES = 1e-6, 12
NAMES = [f"feature-{column}" for column in range(FEATURES)]
JOINT = "joint-" + 32 * "a"
SITES = [{"site": "north", "release": 32 * "1", "key": "not shown"}, {"site": "south", "release": 32 * "2"}]
SPACED = "people of the west / <b>ward</b> 3"


def subspace(*, seed: int, n_components: int = 3, **manifest: Any) -> PrivateSubspace:
    """Return a made-up subspace with a spectrum, of which three values exceed the stated noise edge."""
    stream = np.random.default_rng(seed)
    basis = np.linalg.qr(np.eye(FEATURES) + 0.1 * stream.normal(size=(FEATURES, FEATURES)))[0].T
    spectrum = np.sort(np.r_[900.0, 400.0, 150.0, 20.0 + 60.0 * stream.random(5)])[::-1]
    outcome = {
        "noise_edge": 100.0,
        "above_noise": 3,
        "share": 0.71,
        "verdict": f"3 of {n_components} components stand.",
    }
    outcome |= {"seed": 20261122}
    return PrivateSubspace(
        components=basis[:n_components],
        eigenvalues=spectrum[:n_components],
        spectrum=spectrum,
        manifest={
            "mechanism": "analyze_gauss",
            "feature_names": NAMES,
            "clip_norm": 2.0,
            "outcome": outcome,
            **manifest,
        },
    )


def topics(*, seed: int, **manifest: Any) -> TensorComponents:
    words = np.random.default_rng(seed).dirichlet(np.full(FEATURES, 0.3), size=2)
    return TensorComponents(
        components=words,
        weights=np.array([0.6, 0.4]),
        eigenvalues=np.array([9.0, 5.0]),
        model="topics",
        n_features=FEATURES,
        manifest={"mechanism": "agn", "feature_names": NAMES, "outcome": {"requested": 2, "found": 2}, **manifest},
    )


def items(*, seed: int, **manifest: Any) -> ItemEmbeddings:
    stream = np.random.default_rng(seed)
    step = {"centre": 3.0, "prior": 0.0, "ridge": 1.0, "rating_bound": 4.0}
    return ItemEmbeddings(
        factors=stream.normal(size=(FEATURES, 2)),
        offsets=stream.normal(size=FEATURES),
        low=1.0,
        high=5.0,
        manifest={"mechanism": "dpals", "feature_names": NAMES, "user_step": step, **manifest},
    )


def estimate(*, evaluated: str, **manifest: Any) -> PrivateEstimate:
    facts = {"mechanism": "captured_share", "outcome": {"share": 0.66, "share_std": 0.02}}
    return PrivateEstimate(
        sums=np.array([6.0, 3.0, 1.0]), manifest={**facts, "plan": {"evaluated": evaluated}, **manifest}
    )


class Maker:
    """Publisher of made-up artifacts in the current home, each with a separate charge."""

    def __init__(self) -> None:
        self.workspace = Workspace.open()

    def publish(
        self,
        name: str,
        make: Any,
        *,
        population: str = "people",
        event: Mapping[str, Any] | None = None,
        epsilon: float = 0.5,
        request: Mapping[str, Any] | None = None,
        **facts: Any,
    ) -> str:
        """Publish an artifact as a new release; return its digest."""
        ledger, event = self.workspace.ledger, calibrated(epsilon) if event is None else event
        rows = len(ledger.statement(population).releases)
        requested = {"dataset": "visits", "mechanism": "analyze_gauss", **(request or {})}
        void = event["name"] == "non_private"
        terms: dict[str, Any] = {"epsilon": epsilon, "delta": DELTA, "event": event, "fingerprint": "f"}
        terms |= {"snapshot_id": "5" * 32, "request": requested, "void": void}
        grant = ledger.reserve(population, run_key=f"{population}-{rows}", **terms)
        ledger.begin(grant.release_id)
        privacy = {"epsilon": epsilon, "delta": DELTA, "relation": "add_remove", "unit": "record", "event": event}
        if void:
            privacy = {"private": False, "event": event}
        artifact = make(release=grant.release_id, privacy=privacy, **facts)
        digest = self.written(artifact)
        self.workspace.publish(grant.release_id, name=name, artifact_digest=digest)
        return digest

    def written(self, artifact: Artifact) -> str:
        return write_artifact(artifact, home=self.workspace.home, place=self.workspace.store)


def make_sample() -> None:
    """Publish the sample artifacts, streams and budgets in the current home."""
    maker = Maker()
    ledger = maker.workspace.ledger
    for population in ("people", SPACED, "open"):
        ledger.open_budget(population, epsilon=8.0, delta=DELTA, failure_delta=0.0)
    first = maker.publish("visits-map", lambda **facts: subspace(seed=1, **facts))
    maker.publish("visits-map", lambda **facts: subspace(seed=2, **facts))
    maker.publish("visits-map", lambda **facts: subspace(seed=3, n_components=2, **facts))
    for version in (1, 2, 1):
        maker.workspace.promote("visits-map", version=version, alias="champion")
    maker.workspace.promote("visits-map", version=3, alias="challenger")
    release = maker.workspace.registry.show("visits-map@1")["release"]
    refit = subspace(seed=1, n_components=2, release=release, parent=first, privacy={"epsilon": 0.5, "delta": DELTA})
    maker.workspace.publish(release, name="visits-two", artifact_digest=first, made=maker.written(refit))
    about = {"family": "subspace_evaluation", "artifact": "visits-map@1", "mechanism": "captured_share"}
    maker.publish(
        "visits-map.evaluation",
        lambda **facts: estimate(evaluated="visits-map@1", **facts),
        event=gaussian(9.0),
        request=about,
    )
    for seed in (1, 2):
        maker.publish("report-topics", lambda seed=seed, **facts: topics(seed=seed, **facts), population=SPACED)
        maker.publish("taste", lambda seed=seed, **facts: items(seed=seed, **facts), population=SPACED)
    maker.publish(
        "exact",
        lambda **facts: subspace(seed=5, **facts),
        population="open",
        event={"name": "non_private"},
        epsilon=1.0,
    )
    joint = subspace(seed=4, release=JOINT, plan={"sites": SITES}, privacy={"epsilon": 1.0, "delta": DELTA})
    maker.workspace.publish_joint(JOINT, name="joint-map", artifact_digest=maker.written(joint), sites=SITES)
    register(ledger)
    open_stream(ledger)
    publish_tick(ledger)


def add_versions(name: str, count: int, *, after: int = 0) -> None:
    """Add versions to a name, each a separate release with the artifact of the first version.

    The journal's last entry states the total charge, as after a real release.
    """
    ledger = Workspace.open().ledger
    release, version = tables.release, tables.version
    with ledger.engine.begin() as connection:
        here = version.c.name == name
        model = connection.execute(version.select().where(here).order_by(version.c.version)).mappings().first()
        assert model is not None
        made = connection.execute(release.select().where(release.c.id == model["release_id"])).mappings().one()
        last = max(row.version for row in connection.execute(version.select().where(here)))
        releases = [{**made, "id": f"{at:032x}", "run_key": f"copy-{at}"} for at in range(after, after + count)]
        versions = [{**model, "version": last + 1 + at, "release_id": row["id"]} for at, row in enumerate(releases)]
        connection.execute(release.insert(), releases)
        connection.execute(version.insert(), versions)
        added_up = vars(budgets)["_added_up"]
        total = budgets.facts_of(added_up(connection, read_budget(connection, made["population"])))
        facts = {"population": made["population"], "release_id": releases[-1]["id"]}
        journal.append(connection, "release_reserved", **facts, detail=total)
