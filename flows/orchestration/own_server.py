"""Temporary Prefect server of one process, and detection of orphaned servers.

The temporary server is used if no permanent server is configured. Only its process has access, and it ends with this
process. Prefect itself would start a server without a password that outlives a killed process. The temporary server
uses a socket that was bound before the server started, so that no other program can answer in its place. It requires a
password that is in no file, no command line and no inherited environment.

Orphaned servers, which have outlived the command that started them, are found in ``/proc``.
"""

import atexit
import os
import secrets
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import httpx
from prefect.settings import (
    PREFECT_API_AUTH_STRING,
    PREFECT_API_URL,
    PREFECT_SERVER_ALLOW_EPHEMERAL_MODE,
    get_current_settings,
    temporary_settings,
)

from dpca.errors import Unavailable
from flows.reports.activity import activity

_MARK = b"PREFECT__SERVER_EPHEMERAL=1"
_SERVER_APP = b"prefect.server.api.server:create_app"


def left_servers() -> Iterator[tuple[int, int]]:
    """Yield the process id and the resident bytes of each orphaned server of this user."""
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError, ValueError):
            ours = folder.stat().st_uid == os.geteuid()
            if ours and _SERVER_APP in (folder / "cmdline").read_bytes() and _is_left(folder):
                pages = int((folder / "statm").read_text().split()[1])
                yield int(folder.name), pages * os.sysconf("SC_PAGE_SIZE")


def _is_left(folder: Path) -> bool:
    """Return whether a temporary server is orphaned.

    A server starts as a child of a process that runs the same Python interpreter. If its parent runs another program,
    the process that started the server has ended.
    """
    if _MARK not in (folder / "environ").read_bytes().split(b"\0"):
        return False
    parent = (folder / "stat").read_text().rpartition(")")[2].split()[1]
    try:
        return (folder / "exe").readlink() != Path(f"/proc/{parent}/exe").readlink()
    except PermissionError:  # the parent belongs to another user
        return True


SERVER = "flows.orchestration.server_process"
_GRACE = 5.0  # seconds after which a server that does not terminate is killed
_SERVED = {"PREFECT_UI_ENABLED": "0", "PREFECT__SERVER_EPHEMERAL": "1", "PREFECT__SERVER_FINAL": "1"}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Server:
    """A running server, with the id of the process that owns it."""

    url: str
    password: str = field(repr=False)
    process: subprocess.Popen[bytes]
    owner: int


_running: list[_Server] = []


@contextmanager
def prefect_server() -> Iterator[None]:
    """Provide a Prefect server to the flows in a ``with`` block.

    It is the server of ``PREFECT_API_URL``, or else a temporary server of this process. The temporary server is started
    at the first use, and serves until the process ends.

    Raises
    ------
    Unavailable
        When the temporary server does not start.
    """
    if (server := begin_server()) is None:
        yield
        return
    _await(server, seconds=get_current_settings().server.ephemeral.startup_timeout_seconds)
    found = {PREFECT_API_URL: server.url, PREFECT_API_AUTH_STRING: server.password}
    with temporary_settings({**found, PREFECT_SERVER_ALLOW_EPHEMERAL_MODE: False}):
        yield


def begin_server() -> _Server | None:
    """Start the temporary server unless it runs; return it, or None if a permanent server is configured.

    The server loads in its own process, so a command begins it before it plans a release.
    """
    if get_current_settings().api.url:
        return None
    if not _running or _running[-1].owner != os.getpid() or _running[-1].process.poll() is not None:
        _running.append(_start())
    return _running[-1]


def _start() -> _Server:
    settings = get_current_settings()
    password = f"dpca:{secrets.token_urlsafe(32)}"
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/api"
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", SERVER, str(listener.fileno()), str(os.getpid())],
            env={**os.environ, **settings.to_environment_variables(exclude_unset=True), **_SERVED},
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            pass_fds=[listener.fileno()],
        )
    server = _Server(url=url, password=password, process=process, owner=os.getpid())
    atexit.register(_stop, server)
    assert process.stdin is not None
    with suppress(BrokenPipeError):  # `_await` reports a server that has ended already
        process.stdin.write(f"{password}\n".encode())
        process.stdin.flush()  # the pipe stays open, so that the server ends with this process
    return server


def _await(server: _Server, *, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and server.process.poll() is None:
        with suppress(httpx.TransportError):
            if httpx.get(f"{server.url}/health", timeout=2, trust_env=False).status_code == httpx.codes.OK:
                return
        time.sleep(0.1)
    _stop(server)
    raise Unavailable(
        f"Prefect's server did not start within {seconds:g} s; set PREFECT_API_URL to a "
        "permanent server, or pass --direct, and run the same request again."
    )


def _stop(server: _Server) -> None:
    """End a server; in a process that was forked from its owner, do nothing."""
    if os.getpid() != server.owner:
        return
    with activity("stopping Prefect"):
        server.process.terminate()
        try:
            server.process.wait(_GRACE)
        except subprocess.TimeoutExpired:
            server.process.kill()
            server.process.wait()
    assert server.process.stdin is not None
    server.process.stdin.close()
