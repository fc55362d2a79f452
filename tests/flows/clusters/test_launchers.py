"""Launched clusters: each serves one run and ends with it, and no other user has access.

A launched cluster neither spills to disk nor communicates in clear text. Another user of the machine has no access to
the local cluster or to Prefect's server of a command.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar

import dask
import pytest
from distributed import Client

from dpca.errors import Unavailable
from dpca_tasks.errors import InvalidInput, Refused
from flows.clusters.connecting import check_address, connect, open_cluster
from flows.clusters.dask_clusters import ALLOCATOR, LAUNCHERS, WORKER_SETTINGS
from flows.settings import Settings
from tests.flows.clusters.test_cluster import in_process, under_tls
from tests.strangers import NEEDS_ROOT, ROOT, Stranger, family, listening, stranger
from tests.web_server import Files


class _Started:
    """Stub of a launcher library's cluster class: it starts real workers in this process and records its arguments."""

    requested: ClassVar[dict[str, Any]] = {}
    name = "a-cluster"
    stopped = False

    def __init__(self, **requested: Any) -> None:
        type(self).requested, type(self).stopped = requested, False
        self._cluster = in_process(n_workers=1)
        self.scheduler_address = self._cluster.scheduler_address

    def __enter__(self) -> "_Started":
        return self

    def __exit__(self, *_: object) -> None:
        self._cluster.close()
        type(self).stopped = True

    def scale(self, n: int) -> None:
        type(self).requested = {"n_workers": n}

    def get_client(self, *, set_as_default: bool) -> Client:
        return Client(self.scheduler_address, set_as_default=set_as_default)


class _Gateway:
    """Stub of a Dask Gateway that creates one cluster."""

    standing: _Started

    def __enter__(self) -> "_Gateway":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def new_cluster(self, *, shutdown_on_close: bool) -> _Started:
        assert shutdown_on_close
        type(self).standing = _Started()
        return self.standing

    @contextmanager
    def connect(self, name: str) -> Iterator[_Started]:
        assert name == self.standing.name
        yield self.standing


FAKES = {
    "kubernetes": ("dask_kubernetes.operator", SimpleNamespace(KubeCluster=_Started)),
    "gateway": ("dask_gateway", SimpleNamespace(Gateway=_Gateway)),
    "slurm": ("dask_jobqueue", SimpleNamespace(SLURMCluster=_Started)),
}


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Install a stub for every launcher library."""
    for module, fake in FAKES.values():
        monkeypatch.setitem(sys.modules, module.partition(".")[0], ModuleType(module))
        monkeypatch.setitem(sys.modules, module, fake)


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("kind", sorted(LAUNCHERS))
def test_a_launched_cluster_serves_one_run_and_ends_with_it(kind: str, tmp_path: Path) -> None:
    settings = Settings(cluster=kind, workers=3, allow_plaintext=True)
    with dask.config.set(WORKER_SETTINGS):
        with open_cluster(settings, scratch=tmp_path) as address, connect(address, settings) as client:
            assert client is not None
            assert client.submit(sum, [1, 2], pure=False).result() == 3
        assert _Started.requested["n_workers"] == 3
        assert _Started.stopped


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("kind", sorted(LAUNCHERS))
def test_a_launched_cluster_whose_workers_may_spill_is_stopped_and_refused(kind: str, tmp_path: Path) -> None:
    settings = Settings(cluster=kind, allow_plaintext=True)
    with (
        pytest.raises(Refused, match="may spill"),
        open_cluster(settings, scratch=tmp_path) as address,
        connect(address, settings),
    ):
        pass
    assert _Started.stopped


@pytest.mark.usefixtures("installed")
def test_kubernetes_and_slurm_workers_get_settings_that_forbid_spilling(tmp_path: Path) -> None:
    with (
        dask.config.set({**WORKER_SETTINGS, "kubernetes.env": {"AWS_REGION": "here"}}),
        open_cluster(Settings(cluster="kubernetes", allow_plaintext=True), scratch=tmp_path),
    ):
        reported = {item["name"]: item["value"] for item in _Started.requested["env"]}
    assert reported["AWS_REGION"] == "here"
    assert dask.config.collect_env(reported)["distributed"]["worker"]["memory"]["spill"] is False
    with (
        dask.config.set({**WORKER_SETTINGS, "jobqueue.slurm.job-script-prologue": ["module load python"]}),
        open_cluster(Settings(cluster="slurm", allow_plaintext=True), scratch=tmp_path),
    ):
        first, *exports = _Started.requested["job_script_prologue"]
        assert _Started.requested["protocol"] == "tcp://"
    assert first == "module load python"
    script = "; ".join([*exports, "env"])
    shown = subprocess.check_output(["/bin/sh", "-c", script], env={"PATH": os.environ["PATH"]}, text=True)
    seen = dict(line.partition("=")[::2] for line in shown.splitlines())
    assert ALLOCATOR.items() <= seen.items()
    seen = dask.config.collect_env({name: value for name, value in seen.items() if name.startswith("DASK_")})
    assert {name: dask.config.get(name, config=seen) for name in WORKER_SETTINGS} == dict(WORKER_SETTINGS)


@pytest.mark.usefixtures("installed")
def test_slurm_uses_the_configured_certificate(files: Files) -> None:
    settings = under_tls("slurm", files)
    check_address(settings)
    with LAUNCHERS["slurm"](settings):
        assert _Started.requested["protocol"] == "tls://"
        assert _Started.requested["security"].get_tls_config_for_role("worker")["cert"] == str(files.cert)


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("kind", ["kubernetes", "slurm"])
def test_a_launched_cluster_in_clear_text_is_refused(kind: str) -> None:
    with pytest.raises(Refused, match=r"unencrypted; .*DPCA_ALLOW_PLAINTEXT"):
        check_address(Settings(cluster=kind))


@pytest.mark.parametrize("kind", sorted(LAUNCHERS))
def test_a_missing_extra_is_one_clear_line(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, FAKES[kind][0], None)
    with pytest.raises(InvalidInput, match=rf"needs the extra `{kind}`; install it"):
        check_address(Settings(cluster=kind, allow_plaintext=True))


@pytest.mark.usefixtures("installed")
def test_a_cluster_that_cannot_be_started_is_one_clear_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def refuse(**_: Any) -> None:
        raise ValueError("you must\nset cores")

    monkeypatch.setattr(FAKES["slurm"][1], "SLURMCluster", refuse)
    complaint = r"no slurm cluster could be started \(ValueError: you must set cores\)"
    with (
        pytest.raises(Unavailable, match=complaint),
        open_cluster(Settings(cluster="slurm", allow_plaintext=True), scratch=tmp_path),
    ):
        pass


HARMLESS = {f"GET http {path}" for path in ("/api/health", "/api/ready", "/docs", "/openapi.json", "/ui-settings")}
"""Public requests: health of Prefect's server, its API documentation, and the API address for a browser."""
_PROGRAM = """
import sys
from pathlib import Path
from flows.clusters.connecting import connect, open_cluster
from flows.orchestration.own_server import prefect_server
from flows.settings import Settings

if __name__ == "__main__":
    settings = Settings(cluster="local", workers=1)
    with prefect_server(), open_cluster(settings, scratch=Path(sys.argv[1])) as address, connect(address):
        print("ready", flush=True)
        sys.stdin.read()
"""


@dataclass(frozen=True, slots=True)
class Program:
    """A running program with Prefect's server and a local cluster: its process ids and its scratch folder."""

    main: int
    processes: set[int]
    scratch: Path


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Program]:
    folder = tmp_path_factory.mktemp("program")
    script = folder / "program.py"
    script.write_text(_PROGRAM)
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("DPCA_", "PREFECT_"))}
    environment |= {"PYTHONPATH": str(ROOT), "PREFECT_HOME": str(folder / "prefect"), "DPCA_HOME": str(folder / "home")}
    environment |= {"PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "180", "DO_NOT_TRACK": "1"}
    with subprocess.Popen(
        [sys.executable, script, folder / "scratch"], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
            yield Program(process.pid, family(process.pid), folder / "scratch")
        finally:
            process.kill()


@pytest.fixture(scope="module")
def somebody() -> Iterator[Stranger]:
    if os.geteuid() != 0:
        pytest.skip(NEEDS_ROOT)
    with stranger() as found:
        yield found


@pytest.mark.skipif(sys.platform != "linux", reason="processes and ports are read from /proc")
def test_the_other_user_of_these_tests_gets_access_to_a_cluster_without_tls(somebody: Stranger) -> None:
    with in_process(n_workers=1):
        kinds = somebody.open_entries(processes=[os.getpid()])
    assert sum(variant.startswith("dask in clear text") for variant in kinds) >= 2  # scheduler and worker
    assert "GET http /health" in kinds
    assert "GET http /info/main/workers.html" in kinds


@pytest.mark.skipif(sys.platform != "linux", reason="processes and ports are read from /proc")
def test_no_port_file_or_process_of_a_command_is_open_to_another_user(program: Program, somebody: Stranger) -> None:
    ports = listening(program.processes)
    assert len(ports) >= 5, "scheduler, nanny, worker, Prefect's server, HTTP of scheduler and worker"
    assert set(ports.values()) == {"0100007F"}, "loopback alone"
    kinds = somebody.open_entries(processes=program.processes, paths=[program.scratch])
    assert "GET http /api/health" in kinds, "nobody had time to answer"
    assert set(kinds) - HARMLESS == set()


@pytest.mark.skipif(sys.platform != "linux", reason="processes and ports are read from /proc")
def test_a_killed_command_leaves_no_process(program: Program) -> None:
    assert len(program.processes) >= 3, "the command, a worker, Prefect's server"
    os.kill(program.main, signal.SIGKILL)
    with suppress(ChildProcessError):
        os.waitpid(program.main, 0)
    deadline = time.monotonic() + 10
    while (left := [pid for pid in program.processes if Path(f"/proc/{pid}").exists()]) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert left == []
