"""PostgreSQL server for the tests, on loopback and without privileges.

Debian's server programs run in a separate session. A guard process stops them when the test run ends. When the tests
run as root, the programs run as user ``postgres``, because PostgreSQL refuses to run as root. The data are in a
temporary folder.
"""

import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

import sqlalchemy as sa

PATIENCE = 30.0
GUARD = '"$@" & cat >/dev/null; kill -QUIT $!; wait $!'
"""Shell command that runs the server until its standard input closes, so that it ends with a killed test run."""
CUT_OFF = """
    SELECT pg_terminate_backend(pid) FROM pg_stat_activity
    WHERE datname = current_database() AND pid <> pg_backend_pid()
"""
"""Statement that ends all other connections to a database."""


def find_programs() -> Path | None:
    """Return the folder of the newest server programs, or None if none are installed."""
    folders = [path.parent for path in Path("/usr/lib/postgresql").glob("*/bin/initdb")]
    if folders:
        return max(folders, key=lambda folder: float(folder.parent.name))
    found = shutil.which("initdb")
    return Path(found).resolve().parent if found else None


class Server:
    """A PostgreSQL server that can be stopped and restarted.

    If it starts as a copy of another server, it is a standby of that server.
    """

    def __init__(self, programs: Path, folder: Path, *, copied: "Server | None" = None) -> None:
        self._programs, self._data = programs, folder / "data"
        self._user: dict[str, Any] = {}
        if os.geteuid() == 0:
            account = pwd.getpwnam("postgres")
            os.chown(folder, account.pw_uid, account.pw_gid)
            self._user = {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []}
        self._folder = folder
        self._log = folder.with_suffix(".log")
        self.port = _free_port()
        self._process: subprocess.Popen[bytes] | None = None
        self._emptied: list[str] = []
        if copied is None:
            options = ("-U", "dpca", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync")
            self._check([programs / "initdb", "-D", self._data, *options])
        else:
            reached = ("-d", f"host=127.0.0.1 port={copied.port} user=dpca")
            self._check([programs / "pg_basebackup", "-D", self._data, "-R", "-c", "fast", "--no-sync", *reached])

    @property
    def url(self) -> str:
        """The URL of the server, without a database."""
        return f"postgresql+psycopg://dpca@127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start the server and wait until it accepts connections."""
        settings = ["fsync=off", "listen_addresses=127.0.0.1", f"port={self.port}", "unix_socket_directories="]
        server: list[str | Path] = [
            self._programs / "postgres",
            "-D",
            self._data,
            *(part for each in settings for part in ("-c", each)),
        ]
        with self._log.open("ab") as log:
            started: subprocess.Popen[bytes] = subprocess.Popen(
                ["/bin/sh", "-c", GUARD, "guard", *server], cwd=self._folder, stdin=subprocess.PIPE, stdout=log,
                stderr=log, start_new_session=True, **self._user,
            )  # fmt: skip
        self._process = started
        deadline = time.monotonic() + PATIENCE
        while not self._answers():
            if started.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"PostgreSQL does not start:\n{self._log.read_text()}")
            time.sleep(0.05)

    def stop(self) -> None:
        """Stop the server immediately, with all its processes."""
        if self._process is not None:
            assert self._process.stdin is not None
            self._process.stdin.close()
            try:
                self._process.wait(PATIENCE)
            finally:
                _end_group(self._process.pid)
            self._process = None

    def kill(self) -> None:
        """Kill the server and all its processes, without a shutdown."""
        assert self._process is not None
        leader = int((self._data / "postmaster.pid").read_text().split()[0])
        children = Path(f"/proc/{leader}/task/{leader}/children").read_text().split()
        for process in (leader, *map(int, children)):
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        self.stop()

    def promote(self) -> None:
        """Promote a standby, and wait until it is the primary."""
        self._check([self._programs / "pg_ctl", "promote", "-w", "-D", self._data])

    def run(self, database: str, *statements: str) -> Any:
        """Execute each statement separately; return the first value of the last statement, if any."""
        engine = sa.create_engine(f"{self.url}/{database}", isolation_level="AUTOCOMMIT", poolclass=sa.NullPool)
        with engine.connect() as connection:
            for statement in statements:
                result = connection.exec_driver_sql(statement)
            return result.scalar() if result.returns_rows else None

    @contextmanager
    def database(self) -> Iterator[str]:
        """Yield the URL of an empty database; a used database is emptied and reused."""
        name = self._emptied.pop() if self._emptied else self._create()
        yield f"{self.url}/{name}"
        self.run(
            name, CUT_OFF, "DROP SCHEMA public CASCADE", "CREATE SCHEMA public", f"ALTER DATABASE {name} RESET ALL"
        )
        self._emptied.append(name)

    def _create(self) -> str:
        name = f"d{uuid4().hex}"
        self.run("postgres", f"CREATE DATABASE {name}")
        return name

    def _answers(self) -> bool:
        command: list[str | Path] = [
            self._programs / "pg_isready",
            "-q",
            "-h",
            "127.0.0.1",
            "-p",
            str(self.port),
            "-U",
            "dpca",
        ]
        return subprocess.run(command, check=False).returncode == 0

    def _check(self, command: Sequence[str | Path]) -> None:
        run = subprocess.run(
            command, cwd=self._folder, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
            **self._user,
        )  # fmt: skip
        if run.returncode:
            raise RuntimeError(f"{command[0]} failed:\n{run.stdout}{run.stderr}")


@contextmanager
def running_server(*, copied: Server | None = None) -> Iterator[Server]:
    """Run a server, or a streaming standby of a running server, for the duration of the context."""
    programs = find_programs()
    if programs is None:
        raise RuntimeError("PostgreSQL's server programs are not installed: apt-get install postgresql")
    with tempfile.TemporaryDirectory(prefix="dpca-postgres-", ignore_cleanup_errors=True) as root:
        Path(root).chmod(0o755)
        folder = Path(root) / "server"
        folder.mkdir()
        server = Server(programs, folder, copied=copied)
        try:
            server.start()
            yield server
        finally:
            server.stop()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _end_group(group: int) -> None:
    try:
        os.killpg(group, signal.SIGKILL)
    except ProcessLookupError:
        return
