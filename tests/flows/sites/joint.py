"""Short ways to ask a federation, and to look into the homes of its sites as only a test can."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from dpca_tasks.mechanisms.results import Subspace
from dpca_tasks.mechanisms.sites.parties import LocalParties
from dpca_tasks.privacy.curator import Curator
from dpca_tasks.privacy.reservation import InMemoryReservation
from flows.demo import own_home
from flows.federation_demo import DELTA, Federation, aggregator
from flows.requests.sites import SitesRequest
from flows.sites import aggregation
from flows.sites.joint_plans import PlannedJoint
from storage.artifacts.files import read_artifact
from storage.home import store
from storage.workspace import Workspace


def request(federation: Federation, **others: Any) -> SitesRequest:
    given = {"method": "cape_pca", "components": 2, "clip_norm": 1.0, "epsilon": 1.0, "delta": DELTA}
    return SitesRequest(**{**given, "roster": str(federation.roster), "publish": "joint", **others})


@contextmanager
def at_home(federation: Federation, name: str) -> Iterator[Workspace]:
    """Open the workspace of one party in this process."""
    with own_home(federation.home(name)), pytest.MonkeyPatch.context() as patch:
        patch.setenv("DPCA_STATE_FOLDER", str(federation.folder / "states" / name))
        yield Workspace.open()


def released_alone(federation: Federation, planned: PlannedJoint, releases: list[str]) -> Subspace:
    """Return what the one-process form releases of the same rows, under the keys that the sites drew."""
    curators = []
    for (name, release), plan in zip((each.split(":") for each in releases), planned.plan.sites, strict=True):
        with at_home(federation, name) as workspace:
            reservation = workspace.ledger.begin(release)
            entry = workspace.catalog.current("rows")
            kept = InMemoryReservation(event=plan.event, relation="replace_one", key=reservation.key)
            curators.append(Curator(workspace.catalog.open(entry), kept))
    found: Subspace = planned.mechanism.run(LocalParties(curators=curators, roster=planned.plan.roster), planned.plan)
    return found


def computed(federation: Federation, asked: SitesRequest) -> tuple[list[str], Any]:
    """Reserve and compute; return the sites' releases, which are not finished yet, and the artifact."""
    with aggregator(federation):
        releases = aggregation.reserve_roster(asked)
        digest = aggregation.compute_roster(asked, releases)
        return releases, read_artifact(store(), digest)


def logs(federation: Federation) -> str:
    return "".join(path.read_text() for path in Path(federation.folder).glob("*.log"))
