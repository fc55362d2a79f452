"""Sums on workers behind an unreliable network, missing clusters, and releases through an object store.

Over a network that is cut, restored, stays cut or is slow, a sum has the same bits or ends with one clear error.
Scheduler and workers are in two network namespaces of the test, joined by one link. The link is taken down without a
message to either side, so no connection is reset. A missing cluster is detected before anything is charged. With
``DPCA_STORE_URL``, rows are ingested, workers read the store, and the release is served over S3 alone.
"""

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pytest
from distributed import Client

from dpca.registry.reader import Registry
from dpca_tasks.errors import WorkerFailed
from dpca_tasks.queries.second_moment import SecondMoment
from dpca_tasks.records.blocks import ArrayBlocks
from dpca_tasks.sums import cluster_sum
from dpca_tasks.sums.exact_sum import exact_sum
from storage.workspace import Workspace
from tests.flows.conftest import FEATURES, FIT, Command
from tests.namespaces import isolated, run
from tests.s3 import ACCESS_KEY, SECRET_KEY, Server, serve

HERE, THERE, PORT = "10.77.0.1", "10.77.0.2", 8786
ROWS = np.random.default_rng(8).standard_normal((3000, 7))
MOMENT = SecondMoment(relation="add_remove", n_features=7, clip_norm=1.5, bits=12)
JOIN = f"""
ip link set lo up
until ip link set there up 2>/dev/null; do sleep 0.05; done
ip addr add {THERE}/24 dev there
exec "$@"
"""
SOON = {
    "distributed.comm.timeouts.connect": "4s",
    "distributed.comm.timeouts.tcp": "12s",
    "distributed.scheduler.worker-ttl": "6s",
}


class SlowBlocks(ArrayBlocks):
    """Rows whose blocks take long to read, so that a sum lasts for some seconds."""

    def read(self, block, /):
        time.sleep(0.2)
        return super().read(block)


@contextmanager
def cluster() -> Iterator[tuple[Client, Callable[[str], None]]]:
    """Start a scheduler in this network namespace, and a worker in another one.

    Yield a client, and a function that sets the link between the namespaces up or down.
    """
    run("ip", "link", "set", "lo", "up")
    run("ip", "link", "add", "here", "type", "veth", "peer", "name", "there")
    run("ip", "addr", "add", f"{HERE}/24", "dev", "here")
    run("ip", "link", "set", "here", "up")
    names = {f"DASK_{name.upper().replace('.', '__').replace('-', '_')}": value for name, value in SOON.items()}
    settings: dict[str, Any] = {
        "env": {**os.environ, **names},
        "stdout": subprocess.DEVNULL,
        "stderr": subprocess.DEVNULL,
    }
    dask_at = (sys.executable, "-m", "dask")
    started = [
        subprocess.Popen([*dask_at, "scheduler", "--host", HERE, "--port", str(PORT), "--no-dashboard"], **settings)
    ]
    try:
        worker = (*dask_at, "worker", f"tcp://{HERE}:{PORT}", "--host", THERE, "--no-nanny", "--no-dashboard")
        options = ("--nworkers", "1", "--nthreads", "2", "--death-timeout", "60")
        beyond = subprocess.Popen(["unshare", "-n", "sh", "-c", JOIN, "join", *worker, *options], **settings)
        started.append(beyond)
        time.sleep(0.5)  # waits until the worker process has entered its network namespace
        run("ip", "link", "set", "there", "netns", beyond.pid)
        with dask.config.set(SOON), Client(f"tcp://{HERE}:{PORT}", timeout=30, set_as_default=False) as client:
            client.wait_for_workers(1, timeout=60)

            def set_link(state: str) -> None:
                run("nsenter", "-t", beyond.pid, "-n", "ip", "link", "set", "there", state)

            yield client, set_link
    finally:
        for process in started:
            process.kill()
            process.wait()


def summed(client: Client) -> np.ndarray:
    source = SlowBlocks(ROWS, block_records=100)
    return exact_sum(source, MOMENT, client=client)


def during(act: Callable[[], None], *, after: float) -> threading.Thread:
    timer = threading.Timer(after, act)
    timer.start()
    return timer


@pytest.mark.audit_only
@pytest.mark.timeout(240)
def test_a_link_that_is_cut_and_restored_changes_no_bit() -> None:
    def body() -> None:
        with cluster() as (client, set_link):

            def cut() -> None:
                set_link("down")
                time.sleep(2.0)
                set_link("up")

            cutting = during(cut, after=1.0)
            found = summed(client)
            cutting.join()
            np.testing.assert_array_equal(found, exact_sum(ArrayBlocks(ROWS, block_records=100), MOMENT))

    isolated(body, network=True)


@pytest.mark.audit_only
@pytest.mark.timeout(240)
def test_a_link_that_stays_cut_is_one_clear_error_in_bounded_time() -> None:
    def body() -> None:
        vars(cluster_sum)["PATIENCE"] = 5.0
        with cluster() as (client, set_link):
            cutting = during(lambda: set_link("down"), after=1.0)
            began = time.monotonic()
            with pytest.raises(WorkerFailed):
                summed(client)
            cutting.join()
            assert time.monotonic() - began < 60

    isolated(body, network=True)


@pytest.mark.audit_only
@pytest.mark.timeout(240)
def test_a_link_of_a_megabit_changes_no_bit() -> None:
    def body() -> None:
        with cluster() as (client, _):
            run(
                *[
                    "tc",
                    "qdisc",
                    "add",
                    "dev",
                    "here",
                    "root",
                    "tbf",
                    "rate",
                    "1mbit",
                    "burst",
                    "16kbit",
                    "latency",
                    "400ms",
                ]
            )
            found = summed(client)
            np.testing.assert_array_equal(found, exact_sum(ArrayBlocks(ROWS, block_records=100), MOMENT))

    isolated(body, network=True)


NOBODY = "tcp://127.0.0.1:1"


def test_a_missing_cluster_is_detected_before_a_charge(
    ready: Path, dpca: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DPCA_CLUSTER", NOBODY)
    with dask.config.set({"distributed.comm.timeouts.connect": "1s"}):
        complaint = dpca(*FIT, "--direct", "--yes").complaint(1)
    assert f"no Dask scheduler answers at {NOBODY}" in complaint
    statement = Workspace.open().ledger.statement("people")
    assert (statement.spent, statement.releases) == (0.0, ())
    assert not list((ready / "keys").glob("*.key"))


def test_a_release_that_was_published_needs_no_cluster(
    released: Path, dpca: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DPCA_CLUSTER", NOBODY)
    ending = dpca(*FIT, "--direct", "--yes")
    assert ending.status == 0, ending.err
    assert "was released before" in ending.err
    assert released.is_dir()


CONSUMER = """
import sys
from dpca.registry.reader import Registry
subspace = Registry.open().load("sub@champion")
print(subspace.components.tolist())
assert not {"sqlalchemy", "dask", "prefect", "flows"} & set(sys.modules)
"""


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """Yield an S3 server for this test; ``DPCA_STORE_URL`` is the only setting that names it."""
    with serve() as server:
        server.enter(monkeypatch)
        monkeypatch.setenv("DPCA_STORE_URL", server.url("some/prefix"))
        yield server


@pytest.mark.audit_only
def test_a_release_is_made_from_and_served_by_an_object_store(
    server: Server, home: Path, rows_file: Path, dpca: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    ingested = dpca(
        *("dataset", "ingest", rows_file, "--name", "people", "--features", FEATURES),
        *("--block-nnz", FEATURES, "--direct", "--json"),
    )
    assert ingested.status == 0, ingested
    snapshot = json.loads(ingested.out)
    assert snapshot["blocks"] > 10
    assert snapshot["path"].startswith("s3://a-bucket/some/prefix/datasets/people/")
    assert dpca("budget", "open", "people", "--epsilon", 2, "--delta", 1e-6).status == 0
    monkeypatch.setenv("DPCA_CLUSTER", "local")
    fitted = dpca(*FIT, "--direct", "--yes", "--json")
    assert fitted.status == 0, fitted
    assert dpca("registry", "promote", "sub@1", "champion").status == 0
    assert not [path for path in home.rglob("*") if path.name in ("zarr.json", "manifest.json", "sub.json")]

    environment = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": os.pathsep.join(sys.path),
        "HOME": str(tmp_path / "nobody"),
    }
    environment |= {"DPCA_STORE_URL": server.url("some/prefix"), **server.environment}
    consumed = subprocess.run(
        [sys.executable, "-c", CONSUMER], env=environment, capture_output=True, text=True, check=False
    )
    assert consumed.returncode == 0, consumed.stderr
    assert not (tmp_path / "nobody").exists()
    np.testing.assert_array_equal(json.loads(consumed.stdout), Registry.open().load("sub").components)

    assert json.loads(dpca(*FIT, "--direct", "--yes", "--json").out)["reused"] is True
    for path in home.rglob("*"):
        if path.is_file():
            assert SECRET_KEY.encode() not in path.read_bytes()
            assert ACCESS_KEY.encode() not in path.read_bytes()


def test_commands_report_an_unusable_store_in_one_line(
    server: Server, ready: Path, dpca: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "there is no snapshot at s3://a-bucket/some/prefix" in dpca("dataset", "verify", "people").complaint(1)
    monkeypatch.setenv("DPCA_STORE_URL", "s3://no-such-bucket/x")
    for words in (("dataset", "verify", "people"), ("registry", "list"), (*FIT, "--direct", "--yes")):
        assert "s3://no-such-bucket/x" in (line := dpca(*words).complaint(1))
        assert "cannot be used: the bucket does not exist; create it" in line
    monkeypatch.setenv("DPCA_STORE_URL", "https://example.org/x")
    assert "DPCA_STORE_URL must be s3://bucket/prefix" in dpca("registry", "list").complaint(1)
    monkeypatch.setenv("DPCA_STORE_URL", server.url("x"))
    server.check_credentials()
    assert "the credentials are not accepted" in dpca("registry", "list").complaint(1)
