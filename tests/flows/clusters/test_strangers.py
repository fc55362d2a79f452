"""Another user of this machine gets nowhere: neither into the local cluster nor into Prefect's server of a command."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.flows.clusters.local_clusters import in_process
from tests.strangers import NEEDS_ROOT, ROOT, Stranger, family, listening, stranger

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes and ports are read from /proc")

HARMLESS = {f"GET http {path}" for path in ("/api/health", "/api/ready", "/docs", "/openapi.json", "/ui-settings")}
"""Whether Prefect's server runs, the manual of its version, and where a browser would find its API."""
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
    """A program that runs Prefect's server and a local cluster, and its processes."""

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


def test_the_stranger_of_these_tests_gets_into_a_cluster_in_clear_text(somebody: Stranger) -> None:
    with in_process(n_workers=1):
        ways = somebody.ways_in(processes=[os.getpid()])
    assert sum(way.startswith("dask in clear text") for way in ways) >= 2  # scheduler and worker
    assert "GET http /health" in ways
    assert "GET http /info/main/workers.html" in ways


def test_no_port_file_or_process_of_a_command_lets_a_stranger_in(program: Program, somebody: Stranger) -> None:
    ports = listening(program.processes)
    assert len(ports) >= 5, "scheduler, nanny, worker, Prefect's server, HTTP of scheduler and worker"
    assert set(ports.values()) == {"0100007F"}, "loopback alone"
    ways = somebody.ways_in(processes=program.processes, paths=[program.scratch])
    assert "GET http /api/health" in ways, "nobody had time to answer"
    assert set(ways) - HARMLESS == set()


def test_a_killed_command_leaves_no_process(program: Program) -> None:
    assert len(program.processes) >= 3, "the command, a worker, Prefect's server"
    os.kill(program.main, signal.SIGKILL)
    with suppress(ChildProcessError):
        os.waitpid(program.main, 0)
    deadline = time.monotonic() + 10
    while (left := [pid for pid in program.processes if Path(f"/proc/{pid}").exists()]) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert left == []
