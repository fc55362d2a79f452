"""Fixture: a federation of three sites and a helper, each a process on loopback, started once for all tests.

Helpers access the sites' homes, which only a test has.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from dpca.artifacts.files import read_artifact
from dpca.home import store
from dpca_tasks.errors import SiteSilent
from dpca_tasks.mechanisms.base import Components, Subspace
from dpca_tasks.mechanisms.sites.joint_plan import LocalParties
from dpca_tasks.privacy.curator import Curator
from dpca_tasks.privacy.gate import InMemoryReservation
from flows.demo import FEDERATION_DELTA, Federation, aggregator, make_federation, own_home, running
from flows.families.restated_subspace import packed_rounds
from flows.parties.calling import Caller
from flows.requests import SitesRequest
from flows.sites import releases as stages
from flows.sites.plans import PlannedJoint, plan_over_roster
from flows.sites.roster import read_roster
from storage.workspace import Workspace

FEATURES, RECORDS = 12, 150


@pytest.fixture(scope="session")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    folder = tmp_path_factory.mktemp("federation")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DPCA_STATE_FOLDER", str(folder / "states" / "makers"))
        for name in ("DPCA_DATABASE_URL", "DPCA_KEY_FOLDER", "DPCA_STORE_URL"):
            patch.delenv(name, raising=False)
        made = make_federation(
            folder,
            3,
            features=FEATURES,
            records=RECORDS,
            rows_of=documents,
            colluders=0,
            dropouts=1,
            attempts=2,
            timeout=20,
        )
    with running(made):
        yield made


TRUNCATED = {"rows_kept": "5", "iterations": "4", "burn_in": "2"}
_AGN = {"method": "cape_agn", "epsilon": 10.0}
METHODS: dict[str, dict[str, Any]] = {
    "cape_pca": {"method": "cape_pca"},
    "cape_pca in rounds": {"method": "cape_pca", "rounds": 3},
    "dps_pca": {"method": "dps_pca", "settings": TRUNCATED},
    "cape_agn of topics": {**_AGN, "model": "topics", "words_at_most": 5, "clip_norm": None},
    "cape_agn of a mixture": {**_AGN, "model": "mixture", "clip_norm": 3.0},
    "cape_agn of a known variance": {**_AGN, "model": "mixture", "clip_norm": 3.0, "noise_variance": 0.25},
    "conv": {"method": "conv"},
    "dp_dis": {"method": "dp_dis"},
    "local": {"method": "local"},
}
"""Requests by their name in tests; the first ones share noise."""
TOPICS = METHODS["cape_agn of topics"] | {"epsilon": 30.0}
"""A request that finds the topics of three sites of 150 documents."""
SHARED = tuple(METHODS)[:6]


def documents(rng: np.random.Generator, records: int, features: int) -> Callable[[], NDArray[np.float64]]:
    """Return a function that draws a site's rows: counts of six words, each row of one of two disjoint topics."""
    topics = np.kron(np.eye(2), np.ones(features // 2) / (features // 2))

    def draw() -> NDArray[np.float64]:
        return rng.multinomial(6, topics[rng.choice(2, records, p=[0.6, 0.4])]).astype(np.float64)

    return draw


def request(federation: Federation, **others: Any) -> SitesRequest:
    given = {"method": "cape_pca", "components": 2, "clip_norm": 1.0, "epsilon": 1.0, "delta": FEDERATION_DELTA}
    return SitesRequest(**{**given, "roster": str(federation.roster), "publish": "joint", **others})


@contextmanager
def at_home(federation: Federation, name: str) -> Iterator[Workspace]:
    """Open the workspace of one party's home in this process."""
    with own_home(federation.home(name)), pytest.MonkeyPatch.context() as patch:
        patch.setenv("DPCA_STATE_FOLDER", str(federation.folder / "states" / name))
        yield Workspace.open()


def released_alone(federation: Federation, planned: PlannedJoint, releases: dict[str, str]) -> Subspace | Components:
    """Return the same joint release computed in one process, with the noise keys that the sites drew.

    A ``planned`` release that starts from an earlier release must know it (`flows.sites.plans.with_parent`).
    """
    curators = []
    for (name, release), plan in zip(releases.items(), planned.plan.sites, strict=True):
        with at_home(federation, name) as workspace:
            reservation = workspace.ledger.begin(release)
            entry = workspace.catalog.current("rows")
            kept = InMemoryReservation(event=plan.event, relation="replace_one", key=reservation.key)
            curators.append(Curator(workspace.catalog.open(entry), kept))
    parties = LocalParties(curators=curators, roster=planned.plan.roster)
    found: Subspace | Components = planned.mechanism.run(parties, planned.plan)
    return found


def planned_of(requested: SitesRequest) -> PlannedJoint:
    """Return the plan of a request over its roster, which every party computes in the same way."""
    assert requested.roster is not None
    return plan_over_roster(read_roster(requested.roster), requested)


def computed(federation: Federation, requested: SitesRequest) -> tuple[dict[str, str], Any]:
    """Reserve and compute a joint release; return the ids of the sites' unfinished releases, and the artifact."""
    with aggregator(federation):
        releases = stages.reserve_sites(requested)
        digest = stages.compute_sites(requested, releases, "")
        return releases, read_artifact(store(), digest)


def silent(name: str, *, first: int = 0) -> Callable[..., Any]:
    """Return a replacement for `Caller.call` with which a site sends no message from round ``first`` on."""
    call = Caller.call

    def answer(caller: Caller, path: str, facts: Any, *others: Any, **more: Any) -> Any:
        sends = path.endswith(("/message", "/agree")) and facts["round"] >= first
        if caller.name == name and sends:
            raise SiteSilent(f"{name} did not answer.")
        return call(caller, path, facts, *others, **more)

    return answer


def check_topics(found: Any) -> None:
    """Check that each found topic has most of its weight on the words of one topic of `documents`."""
    in_halves = found.components.reshape(2, 2, -1).sum(axis=2)
    np.testing.assert_allclose(in_halves[np.argsort(in_halves[:, 1])], np.eye(2), atol=0.3)


def check_same(artifact: Any, alone: Subspace | Components) -> None:
    """Check that the artifact's arrays equal those of the one-process release, bit for bit."""
    if isinstance(alone, Subspace) and alone.rounds is not None:
        for name, array in packed_rounds(alone.rounds, keep_matrix=32.0).items():
            np.testing.assert_array_equal(getattr(artifact, name), array)
        return
    for name in ("components", "spectrum", "weights", "eigenvalues", "noise_variance"):
        expected = getattr(alone, name, None)
        if expected is not None:
            np.testing.assert_array_equal(getattr(artifact, name), expected)


def logs(federation: Federation) -> str:
    return "".join(path.read_text() for path in Path(federation.folder).glob("*.log"))
