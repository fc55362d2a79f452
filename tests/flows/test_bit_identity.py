"""Bit identity of releases: with a fixed key, the bits are equal on any cluster and after any interruptions."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pytest
from distributed import Client, LocalCluster
from scipy import sparse

from flows.clusters.connecting import NO_CLUSTER
from flows.clusters.dask_clusters import WORKER_SETTINGS
from flows.ingest import ingest_source
from flows.orchestration.stage_calls import directly
from flows.releases.stages import make_release
from flows.requests import Request, SubspaceRequest, TensorRequest
from flows.settings import Settings
from storage.datasets.ingest_options import IngestOptions
from storage.ledger import releases
from storage.workspace import Workspace
from tests.crash.fuse import Fuse

ROOT = Path(__file__).parents[2]
KEY = bytes(range(32))
SMALL, MEDIUM, WHOLE = 512, 5_000, 1_000_000
REQUESTED: dict[str, Any] = {
    "dataset": "rows",
    "components": 3,
    "epsilon": 1.0,
    "delta": 1e-6,
    "clip_norm": 1.0,
    "publish": "found",
}
REQUESTS: dict[str, Request] = {
    "analyze_gauss": SubspaceRequest(**REQUESTED, mechanism="analyze_gauss"),
    "noisy_power": SubspaceRequest(
        **REQUESTED, mechanism="noisy_power", settings={"iterations": "3", "oversampling": "2"}
    ),
    "agn": TensorRequest(**REQUESTED, mechanism="agn", model="mixture"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """Homes with the same rows in blocks of three sizes, and a cluster with a `Fuse` that can kill a worker."""

    folder: Path
    cluster: LocalCluster
    client: Client
    fuse: Fuse

    def scale(self, workers: int) -> str:
        """Scale the cluster to a number of workers; return its address."""
        self.cluster.scale(workers)
        return self.wait_for(workers)

    def wait_for(self, workers: int) -> str:
        """Wait until the cluster has at least the given number of workers; return its address."""
        self.client.wait_for_workers(workers, timeout=300)
        return str(self.cluster.scheduler_address)


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    folder = tmp_path_factory.mktemp("bench")
    rows = np.random.default_rng(7).normal(size=(1_500, 12)) * np.geomspace(1.0, 0.1, 12)
    sparse.save_npz(folder / "rows.npz", sparse.csr_array(rows))
    with pytest.MonkeyPatch.context() as patch:
        for block_nnz in (SMALL, MEDIUM, WHOLE):
            patch.setenv("DPCA_HOME", str(folder / str(block_nnz)))
            patch.setenv("DPCA_STATE_FOLDER", str(folder / f"{block_nnz}-state"))
            Workspace.open().ledger.open_budget("people", epsilon=2.0, delta=1e-6)
            options = IngestOptions(population="people", records_at_most=10_000, block_nnz=block_nnz)
            ingest_source(str(folder / "rows.npz"), "rows", options)
    with (
        dask.config.set(WORKER_SETTINGS),
        LocalCluster(
            n_workers=1,
            threads_per_worker=1,
            host="127.0.0.1",
            dashboard_address="127.0.0.1:0",
            scheduler_kwargs={"dashboard": False},
            local_directory=str(folder / "scratch"),
            silence_logs=50,
        ) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        fuse = Fuse(folder=folder / "fuse")
        fuse.lay(client)
        yield Bench(folder=folder, cluster=cluster, client=client, fuse=fuse)


@pytest.fixture(scope="module")
def alone(bench: Bench) -> dict[str, str]:
    """Return the artifact digest of each mechanism, computed in a new process without a cluster."""
    script = "import sys; from tests.flows.test_bit_identity import print_digests; print_digests(sys.argv[1])"
    done = subprocess.run(
        [sys.executable, "-c", script, str(bench.folder)],
        cwd=ROOT,
        env=os.environ | {"DPCA_CLUSTER": NO_CLUSTER},
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    digests: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    return digests


def print_digests(folder: str) -> None:
    """Make a release with each mechanism, each in a separate home, and print the digests as JSON."""
    with pytest.MonkeyPatch.context() as patch:
        homes = {mechanism: Path(folder) / f"alone-{mechanism}" for mechanism in REQUESTS}
        print(
            json.dumps(
                {
                    mechanism: release(patch, Path(folder) / str(MEDIUM), home, mechanism)
                    for mechanism, home in homes.items()
                }
            )
        )


def release(patch: pytest.MonkeyPatch, template: Path, home: Path, mechanism: str, *, cluster: str = NO_CLUSTER) -> str:
    """Make a release in a copy of a home with a fixed key; return the artifact's digest."""
    shutil.copytree(template, home)
    patch.setenv("DPCA_HOME", str(home))
    patch.setenv("DPCA_STATE_FOLDER", f"{home}-state")
    patch.setattr(releases, "new_key", lambda: KEY)
    return str(make_release(directly, REQUESTS[mechanism], Settings(cluster=cluster))["digest"])


@pytest.mark.parametrize("mechanism", REQUESTS)
@pytest.mark.parametrize(("workers", "block_nnz"), [(1, SMALL), (2, MEDIUM), (2, WHOLE), (4, SMALL)])
def test_any_number_of_workers_and_any_blocks_give_the_same_bits(
    bench: Bench,
    alone: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    mechanism: str,
    workers: int,
    block_nnz: int,
) -> None:
    address = bench.scale(workers)
    digest = release(monkeypatch, bench.folder / str(block_nnz), tmp_path / "home", mechanism, cluster=address)
    assert digest == alone[mechanism]


@pytest.mark.parametrize("mechanism", REQUESTS)
def test_a_worker_killed_half_way_through_a_sum_changes_no_bit(
    bench: Bench, alone: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mechanism: str
) -> None:
    address = bench.wait_for(2) if len(bench.cluster.workers) > 2 else bench.scale(2)
    with bench.fuse.lit(6) as has_burnt:
        digest = release(monkeypatch, bench.folder / str(SMALL), tmp_path / "home", mechanism, cluster=address)
        assert has_burnt()
    assert digest == alone[mechanism]


@pytest.mark.audit_only
def test_another_key_gives_other_bits(
    bench: Bench, alone: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules[__name__], "KEY", bytes(32))
    digest = release(monkeypatch, bench.folder / str(MEDIUM), tmp_path / "home", "analyze_gauss")
    assert digest != alone["analyze_gauss"]
