"""Processes with deadlines in separate sessions, identified by an environment variable; none is left running."""

import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

MARK, SERVICE = "DPCA_INTEGRATION_RUN", "DPCA_INTEGRATION_SERVICE"
PATIENCE = 300.0  # time limit in seconds; long, because the machine may be busy
ROOT = Path(__file__).parents[2]
BIN = ROOT / ".venv" / "bin"


class Failure(Exception):
    """Error: an unmet expectation; its text is printed as one line."""


def wait_until[T](what: str, condition: Callable[[], T | None], *, seconds: float = PATIENCE) -> T:
    """Call ``condition`` repeatedly until it returns a result; return the result, or fail at the deadline."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if answer := condition():
            return answer
        time.sleep(0.25)
    raise Failure(f"{what}: did not happen within {seconds:g} s")


def check(truth: object, what: str) -> None:
    """Raise `Failure` unless a condition holds."""
    if not truth:
        raise Failure(what)


def free_port() -> int:
    """Return an unused port of loopback."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def answers(port: int) -> bool:
    """Return whether a port of loopback accepts connections."""
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False


class Processes:
    """All processes of a run, under one folder."""

    def __init__(self, root: Path) -> None:
        self.root, self.mark = root, uuid4().hex
        self._services: list[Service] = []
        self.base = {name: value for name, value in os.environ.items() if _is_neutral(name)} | {
            MARK: self.mark,
            "HOME": str(root),
            "TMPDIR": str(root),
            "PYTHONPATH": str(ROOT),
        }

    def run(
        self, *command: str | Path, environment: Mapping[str, str], seconds: float = PATIENCE
    ) -> subprocess.CompletedProcess[str]:
        """Run a command until it ends; return its exit status and output."""
        try:
            return subprocess.run(
                command, env=self.base | dict(environment), cwd=ROOT, capture_output=True, text=True, check=False,
                timeout=seconds, stdin=subprocess.DEVNULL, start_new_session=True,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            raise Failure(f"{' '.join(map(str, command))} did not end within {seconds:g} s") from None

    def expect(self, *command: str | Path, environment: Mapping[str, str]) -> str:
        """Run a command that must succeed; return its output."""
        done = self.run(*command, environment=environment)
        shown = " ".join(map(str, command))
        check(done.returncode == 0, f"{shown} ended with {done.returncode}: {' '.join(done.stderr.split())[-600:]}")
        return done.stdout

    def service(
        self, name: str, *command: str | Path, environment: Mapping[str, str], ready: Callable[[str], object]
    ) -> "Service":
        """Start a service and wait until it is ready; ``ready`` receives the service's output."""
        made = Service(self, name, command, environment, ready)
        self._services.append(made)
        made.start()
        return made

    def stop(self) -> None:
        """Stop all services in reverse order."""
        for service in reversed(self._services):
            service.stop()

    def marked(self, service: str | None = None) -> list[int]:
        """Return the living processes of this run, or only those of one of its services.

        A process is recognized by a mark in its environment. A server that rewrites its environment is recognized by
        its folder.
        """
        wanted = [f"{MARK}={self.mark}"] + ([] if service is None else [f"{SERVICE}={service}"])
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                environment = (folder / "environ").read_bytes().decode(errors="replace").split("\0")
                below = service is None and (folder / "cwd").readlink().is_relative_to(self.root)
                if (below or set(wanted) <= set(environment)) and _lives(folder):
                    found.append(int(folder.name))
        return [process for process in found if process != os.getpid()]


class Service:
    """One long-running process with its children."""

    def __init__(
        self,
        processes: Processes,
        name: str,
        command: Sequence[str | Path],
        environment: Mapping[str, str],
        ready: Callable[[str], object],
    ) -> None:
        self.name = name
        self._processes, self._command, self._environment, self._ready = processes, command, environment, ready
        self._running: subprocess.Popen[bytes] | None = None

    @property
    def log(self) -> Path:
        """The file with the service's output."""
        return self._processes.root / f"{self.name}.log"

    def start(self) -> None:
        """Start the service and wait until it is ready."""
        environment = self._processes.base | {SERVICE: self.name} | dict(self._environment)
        before = self.log.stat().st_size if self.log.exists() else 0
        with self.log.open("ab") as log:
            started = subprocess.Popen(
                self._command, env=environment, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True,
            )  # fmt: skip
        self._running = started

        def is_ready() -> bool:
            printed = self.log.read_bytes()[before:].decode(errors="replace")
            if started.poll() is not None:
                raise Failure(f"{self.name} ended with {started.returncode}: {' '.join(printed.split())[-600:]}")
            return bool(self._ready(printed))

        wait_until(f"{self.name} is ready", is_ready)

    def ending(self) -> int:
        """Wait until the service ends by itself; return its exit status."""
        assert self._running is not None
        return self._running.wait(PATIENCE)

    def kill(self) -> None:
        """Kill the service and all its children, without a shutdown."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """Request the service to end, then kill it."""
        self._end(signal.SIGTERM)
        self._end(signal.SIGKILL)

    def _end(self, how: signal.Signals) -> None:
        deadline = time.monotonic() + 10
        for process in self._processes.marked(self.name):
            with suppress(ProcessLookupError):
                os.kill(process, how)
        while self._processes.marked(self.name) and time.monotonic() < deadline:
            if self._running is not None:
                self._running.poll()
            time.sleep(0.1)
        if self._running is not None and how is signal.SIGKILL:
            self._running.wait(10)
            self._running = None
            left = self._processes.marked(self.name)
            check(not left, f"10 s after {self.name} was killed, {len(left)} of its processes live on")


def _is_neutral(name: str) -> bool:
    return not name.startswith(("DPCA_", "PREFECT_", "DASK_", "AWS_", "PG", "PYTHON"))


def _lives(folder: Path) -> bool:
    state = (folder / "stat").read_text().rpartition(")")[2].split()[0]
    return state != "Z"
