"""Rounds of a joint release over sites in separate processes on loopback.

The sites have few rows, so a round is mostly transport. With d = 1000 features and k = 5 components, the bars are one
second for a round of d k numbers or of a core tensor, and 15 seconds for a round of d (d + 1) / 2 numbers. The same
bars apply to masks from a helper and to masks of a secure sum. Times are medians of eight rounds. The first round is
reported separately, because the sites then load the code for their sums.

Bytes sent by a site are divided by the bytes of the numbers in its message. Bytes sent to a site are divided by the
bytes of the directions that it needs: 50 rows of the directions, or all rows. The other messages of a secure sum do not
grow with d.
"""

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from benchmarks.conftest import Measurement
from flows.demo import FEDERATION_DELTA, Federation, aggregator, make_federation, running
from flows.requests import SitesRequest
from flows.sites import releases as stages
from flows.sites.parties import RosterSites
from flows.sites.roster import HELPER, MASKS

ROUNDS, WIDTH, KEPT = 8, 5, 50
REQUESTED: dict[str, dict[str, Any]] = {
    "dps_pca": {"settings": {"iterations": str(ROUNDS), "rows_kept": str(KEPT)}},
    "cape_pca": {},
    "cape_agn": {"model": "mixture", "noise_variance": 1e-6, "epsilon": 50.0},
}


@dataclass
class Watch:
    """The seconds of every round, and the bytes that the first site sent (``up``) and received (``down``) in it."""

    seconds: list[float] = field(default_factory=list)
    up: list[int] = field(default_factory=list)
    down: list[int] = field(default_factory=list)


@contextmanager
def watched(monkeypatch: pytest.MonkeyPatch) -> Iterator[Watch]:
    """Measure the time and the transferred bytes of every round while the context is open."""
    watch, opened = Watch(), RosterSites.open

    def timed(sites: RosterSites, *given: Any, **named: Any) -> Any:
        site = next(iter(sites.parties.values())).caller
        began, received, sent = time.monotonic(), site.received, site.sent
        total = opened(sites, *given, **named)
        watch.seconds.append(time.monotonic() - began)
        watch.up.append(site.received - received)
        watch.down.append(site.sent - sent)
        return total

    with monkeypatch.context() as patch:
        patch.setattr(RosterSites, "open", timed)
        yield watch


@pytest.mark.parametrize("masks", MASKS)
def bench_rounds_of_sites(
    masks: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, measure: Measurement, *, toy: bool
) -> None:
    monkeypatch.setenv("DPCA_STATE_FOLDER", str(tmp_path / "states" / "makers"))
    features, sites = (60, 2) if toy else (1000, 10)
    shape: dict[str, Any] = {"features": features, "records": 20, "rows_of": centres, "masks": masks}
    federation = make_federation(tmp_path, sites, **shape, colluders=0, timeout=300)
    product, moment = features * WIDTH, features * (features + 1) // 2
    with running(federation), aggregator(federation):
        for method in REQUESTED:
            with watched(monkeypatch) as watch:
                released(federation, method)
            if method == "dps_pca":
                measure("dps_pca-seconds-a-round", statistics.median(watch.seconds), at_most=1.0)
                measure("dps_pca-seconds-of-the-first", watch.seconds[0])  # in round 1 the sites also load their code
                measure("dps_pca-up", sum(watch.up) / ROUNDS / (8 * product), at_most=1.1)
                least = 8 * product + (ROUNDS - 1) * KEPT * (8 * WIDTH + 4)
                measure("dps_pca-down", sum(watch.down) / least, at_most=1.3 if masks == HELPER else 2.2)
                continue
            measure(f"{method}-moment-seconds", watch.seconds[0], at_most=15.0)
            measure(f"{method}-moment-up", watch.up[0] / (8 * moment), at_most=1.05)
            if method == "cape_agn":
                measure("cape_agn-core-seconds", watch.seconds[1], at_most=1.0)
                core = 4 / 3 * WIDTH * (WIDTH + 1) * (WIDTH + 2)
                measure("cape_agn-core-bytes-beyond", watch.up[1] - core, at_most=8192.0)
                measure("cape_agn-core-down", watch.down[1] / (8 * product), at_most=1.3)


def centres(rng: np.random.Generator, records: int, features: int) -> Callable[[], NDArray[np.float64]]:
    """Return a function that draws a site's rows, each of which is one of `WIDTH` unit vectors."""
    return lambda: np.eye(features)[rng.choice(WIDTH, records)]


def released(federation: Federation, method: str) -> None:
    """Reserve budget for a joint release over the sites, and compute it."""
    given: dict[str, Any] = {"clip_norm": 1.0, "epsilon": 1.0, "delta": FEDERATION_DELTA, **REQUESTED[method]}
    requested = SitesRequest(
        roster=str(federation.roster), publish="measured", method=method, components=WIDTH, **given
    )
    stages.compute_sites(requested, stages.reserve_sites(requested), "")
