"""Rounds of a joint release over sites that are processes of their own on loopback, with few rows: mostly transport.

The bars are absolute: a second for a round of d k numbers and 15 for one of d (d + 1) / 2, at d = 1000 and k = 5. Bytes
of a site are told over 8 bytes for each number of its message, and over those of 50 kept rows of directions downwards.
"""

import time
from pathlib import Path

import pytest

from benchmarks.conftest import Measurement
from flows.federation_demo import DELTA, aggregator, make_federation, running
from flows.requests.sites import SitesRequest
from flows.sites import aggregation
from flows.sites.remote_parties import RemoteParties

ROUNDS, WIDTH, KEPT = 8, 5, 50
SETTINGS = {"dps_pca": {"iterations": str(ROUNDS), "rows_kept": str(KEPT)}, "cape_pca": {}}


def bench_rounds_of_sites(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, measure: Measurement, *, toy: bool) -> None:
    monkeypatch.setenv("DPCA_STATE_FOLDER", str(tmp_path / "states" / "makers"))
    features, sites = (60, 2) if toy else (1000, 10)
    federation = make_federation(tmp_path, sites, features=features, records=20, colluders=0, timeout=300)
    seen: list[RemoteParties] = []

    def entered(parties: RemoteParties) -> RemoteParties:
        seen.append(parties)
        return parties

    monkeypatch.setattr(RemoteParties, "__enter__", entered)
    with running(federation), aggregator(federation):
        for method, settings in SETTINGS.items():
            asked = SitesRequest(
                roster=str(federation.roster),
                publish="measured",
                method=method,
                components=WIDTH,
                clip_norm=1.0,
                epsilon=1.0,
                delta=DELTA,
                settings=settings,
            )
            releases = aggregation.reserve_roster(asked)
            began = time.monotonic()
            aggregation.compute_roster(asked, releases)
            spent = time.monotonic() - began
            rounds = ROUNDS if method == "dps_pca" else 1
            numbers = features * WIDTH if method == "dps_pca" else features * (features + 1) // 2
            site = next(iter(seen[-1].callers.values()))
            measure(f"{method}-seconds-a-round", spent / rounds, at_most=1.0 if method == "dps_pca" else 15.0)
            measure(f"{method}-up", site.received / rounds / (8 * numbers), at_most=1.05)
            if method == "dps_pca":
                least = 8 * features * WIDTH + (ROUNDS - 1) * KEPT * (8 * WIDTH + 4)
                measure(f"{method}-down", site.sent / least, at_most=1.3)
