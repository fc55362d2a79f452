"""Ten sites and a helper as processes on loopback release together what one process releases, to the bit."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from flows.federation_demo import Federation, aggregator, make_federation, running
from flows.sites import aggregation
from tests.flows.sites.joint import computed, released_alone, request
from tests.integration.processes import check

SITES = 10
METHODS: dict[str, dict[str, str]] = {"cape_pca": {}, "dps_pca": {"rows_kept": "5", "iterations": "4", "burn_in": "2"}}


def release_together(root: Path, say: Callable[[str], None]) -> None:
    """Release by every method with shared noise, compare with one process, and finish."""
    folder = root / "federation"
    folder.mkdir(mode=0o700)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DPCA_STATE_FOLDER", str(folder / "states" / "makers"))
        for name in ("DPCA_DATABASE_URL", "DPCA_KEY_FOLDER", "DPCA_STORE_URL"):
            patch.delenv(name, raising=False)
        federation = make_federation(folder, SITES, features=12, records=150, timeout=120)
        with running(federation):
            for method, settings in METHODS.items():
                _release(federation, method, settings)
                say(f"{SITES} sites as processes released {method}, to the bit as one process does")


def _release(federation: Federation, method: str, settings: dict[str, str]) -> None:
    asked = request(federation, method=method, settings=settings)
    releases, artifact = computed(federation, asked)
    check(len(releases) == SITES, f"{len(releases)} sites reserved {method}")
    alone = released_alone(federation, aggregation.planned_of(asked), releases)
    check(np.array_equal(artifact.components, alone.components), f"{method} of processes has other bits than of one")
    with aggregator(federation):
        digest = aggregation.compute_roster(asked, releases)
        published = aggregation.publish_roster(asked, digest)
        unfinished = aggregation.finish_roster(asked, digest)
    check(published.startswith("joint@") and unfinished == [], f"{published} of {method} left {unfinished} unfinished")
