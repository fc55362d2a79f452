"""Ten sites as processes on loopback, with a helper and without, release what one process releases, to the bit."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from flows.federation_demo import Federation, aggregator, make_federation, running
from flows.sites import aggregation
from flows.sites.roster_file import MASKS
from tests.flows.sites.joint import computed, released_alone, request
from tests.integration.processes import check

SITES = 10
METHODS: dict[str, dict[str, str]] = {"cape_pca": {}, "dps_pca": {"rows_kept": "5", "iterations": "4", "burn_in": "2"}}


def release_together(root: Path, say: Callable[[str], None]) -> None:
    """Release by every method with shared noise, compare with one process, and finish."""
    for masks in MASKS:
        _release_under(masks, root / masks, say)


def _release_under(masks: str, folder: Path, say: Callable[[str], None]) -> None:
    folder.mkdir(mode=0o700)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DPCA_STATE_FOLDER", str(folder / "states" / "makers"))
        for name in ("DPCA_DATABASE_URL", "DPCA_KEY_FOLDER", "DPCA_STORE_URL"):
            patch.delenv(name, raising=False)
        federation = make_federation(folder, SITES, features=12, records=150, timeout=120, masks=masks)
        with running(federation):
            for method, settings in METHODS.items():
                _release(federation, method, settings)
                say(f"{SITES} sites as processes released {method} under {masks}, to the bit as one process does")


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
