"""Federation of ten site processes on loopback, with and without a helper: bits equal those of one process."""

from collections.abc import Callable
from pathlib import Path

import pytest

from flows.demo import Federation, aggregator, make_federation, running
from flows.sites import releases as stages
from flows.sites.roster import MASKS
from tests.flows.sites.joint import (
    METHODS,
    SHARED,
    check_same,
    computed,
    documents,
    planned_of,
    released_alone,
    request,
)
from tests.integration.processes import check

SITES = 10


def release_together(root: Path, announce: Callable[[str], None]) -> None:
    """Make a joint release with every mechanism with shared noise, and compare it with a release by one process."""
    for masks in MASKS:
        _release_under(masks, root / masks, announce)


def _release_under(masks: str, folder: Path, announce: Callable[[str], None]) -> None:
    folder.mkdir(mode=0o700)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DPCA_STATE_FOLDER", str(folder / "states" / "makers"))
        for name in ("DPCA_DATABASE_URL", "DPCA_KEY_FOLDER", "DPCA_STORE_URL"):
            patch.delenv(name, raising=False)
        federation = make_federation(
            folder, SITES, features=12, records=150, rows_of=documents, timeout=120, masks=masks
        )
        with running(federation):
            for method in SHARED[:4]:
                _release(federation, method)
                announce(f"{SITES} sites as processes released {method} under {masks}, to the bit as one process does")


def _release(federation: Federation, method: str) -> None:
    requested = request(federation, **METHODS[method])
    releases, artifact = computed(federation, requested)
    check(len(releases) == SITES, f"{len(releases)} sites reserved {method}")
    alone = released_alone(federation, planned_of(requested), releases)
    check_same(artifact, alone)
    with aggregator(federation):
        digest = stages.compute_sites(requested, releases, "")
        published = stages.publish_sites(requested, digest)[0]
        unfinished = stages.finish_sites(requested, digest)
    check(published.startswith("joint@") and unfinished == [], f"{published} of {method} left {unfinished} unfinished")
