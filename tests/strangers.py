"""Another user of the machine, who tries to access every port, file and process of a running program.

``Stranger`` runs as a separate process. The process imports its modules, drops its privileges, and then reports which
accesses succeed. The tests list the successful accesses that are harmless by the threat model.
"""

import asyncio
import json
import os
import re
import ssl
import subprocess
import sys
import tempfile
from collections.abc import Awaitable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx
import websockets
from distributed.comm.core import connect

from tests.web_server import issue

UID = 65_534
PATIENCE, LEISURE = 2.5, 20.0
"""Timeouts in seconds: for a connection that hangs when access is closed, and for a request that is always answered."""
OWN = ssl._create_unverified_context()
"""TLS context that trusts every server; later it also presents a certificate of another authority."""
NEEDS_ROOT = "only root can act as a second user"
SECRETS = re.compile(r"PRIVATE KEY|dpca:[\w-]{40}")
REFUSED = {401, 403, 404, 405}
DASK_PATHS = ("/health", "/metrics", "/info/main/workers.html", "/json/counts.json", "/api/v1/get_workers", "/status")
PREFECT_PATHS = ("/api/health", "/api/ready", "/api/admin/version", "/api/admin/settings", "/api/flows/", "/docs",
                 "/openapi.json", "/api/openapi.json", "/api/docs", "/ui-settings")  # fmt: skip
POSTED = ("/api/flow_runs/filter", "/api/v1/retire_workers", "/api/admin/database/clear", "/api/block_documents/filter")
SOCKETS = ("/api/events/in", "/api/events/out", "/api/logs/out")
ROOT = Path(__file__).parents[1]


class Stranger:
    """A process with another user's privileges; `open_entries` sends it a request."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    def open_entries(self, *, processes: Iterable[int], paths: Iterable[Path] = ()) -> list[str]:
        """Try all ports and the internals of some processes, and some paths; return the accesses that succeeded."""
        pids = sorted(set(processes) - {self.pid})
        requested = {"ports": sorted(listening(pids)), "pids": pids, "paths": [str(path) for path in paths]}
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(requested) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        assert answer, "the stranger has died"
        return list(json.loads(answer))


@contextmanager
def stranger() -> Iterator[Stranger]:
    """Start a process with another user's privileges, and end it with the context."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("DPCA_", "PREFECT_"))}
    with subprocess.Popen(
        [sys.executable, "-m", "tests.strangers"], cwd=ROOT, env=environment | {"PYTHONPATH": str(ROOT)}, text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    ) as process:  # fmt: skip
        assert process.stdin is not None
        try:
            yield Stranger(process)
        finally:
            process.stdin.close()


def family(ancestor: int) -> set[int]:
    """Return a process and all its descendants."""
    parents: dict[int, int] = {}
    for status in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            parents[int(status.parent.name)] = int(status.read_text().rpartition(")")[2].split()[1])
    found, grown = {ancestor}, True
    while grown:
        more = {child for child, parent in parents.items() if parent in found} - found
        found, grown = found | more, bool(more)
    return found


def listening(processes: Iterable[int]) -> dict[int, str]:
    """Return the ports on which some processes listen, with the hexadecimal address of each."""
    inodes = set()
    for process in processes:
        for descriptor in Path(f"/proc/{process}/fd").glob("*"):
            with suppress(OSError):
                inodes.add(str(descriptor.readlink()).removeprefix("socket:[").rstrip("]"))
    found = {}
    for table in ("tcp", "tcp6"):
        with suppress(OSError):
            for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
                fields = line.split()
                address, _, port = fields[1].rpartition(":")
                if fields[3] == "0A" and fields[9] in inodes:
                    found[int(port, 16)] = address
    return found


async def _all(ports: Iterable[int]) -> list[str]:
    """Try to connect to all ports in all ways at the same time; return the ways that succeeded, without the port."""
    waits = httpx.Timeout(LEISURE, connect=PATIENCE)  # a server without TLS never answers a TLS handshake
    client = httpx.AsyncClient(verify=OWN, trust_env=False, timeout=waits, limits=httpx.Limits())
    kinds: list[tuple[str, Awaitable[bool]]] = []
    for port in ports:
        for how, (scheme, context) in _dask_contexts().items():
            kinds.append((f"dask {how}", _joins(f"{scheme}://127.0.0.1:{port}", context)))
        for scheme in ("http", "https"):
            url = f"{scheme}://127.0.0.1:{port}"
            requested = [
                *(("GET", path) for path in (*DASK_PATHS, *PREFECT_PATHS)),
                *(("POST", path) for path in POSTED),
            ]
            kinds += [(f"{method} {scheme} {path}", _calls(client, method, url + path)) for method, path in requested]
        kinds += [(f"websocket {path}", _speaks(f"ws://127.0.0.1:{port}{path}")) for path in SOCKETS]
    async with client:
        answers = await asyncio.gather(*(_in_time(kind) for _, kind in kinds))
    return [name for (name, _), answer in zip(kinds, answers, strict=True) if answer]


async def _in_time(kind: Awaitable[bool]) -> bool:
    try:
        return await asyncio.wait_for(kind, LEISURE)
    except TimeoutError:
        return False


async def _warm_up() -> None:
    """Import all modules that `_all` needs, before the process loses access to the interpreter's files."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        found = await _all([server.sockets[0].getsockname()[1]])
    assert found == []


def _dask_contexts() -> dict[str, tuple[str, ssl.SSLContext | None]]:
    bare = ssl._create_unverified_context()
    return {"in clear text": ("tcp", None), "without a certificate": ("tls", bare), "of its own": ("tls", OWN)}


async def _joins(address: str, context: ssl.SSLContext | None) -> bool:
    """Return whether a Dask client can connect to an address and gets the server's identity."""
    arguments = {} if context is None else {"ssl_context": context}
    try:
        async with asyncio.timeout(PATIENCE):
            comm = await connect(address, timeout=2, **arguments)
            await comm.write({"op": "identity", "reply": True})
            answer = await comm.read()
        comm.abort()
    # these errors are raised if the port belongs to an HTTP server
    except (OSError, TypeError, AssertionError, ValueError, MemoryError):
        return False
    return bool(answer)


async def _calls(client: httpx.AsyncClient, method: str, url: str) -> bool:
    try:
        answer = await client.request(method, url, json={} if method == "POST" else None)
    except (httpx.TransportError, OSError):
        return False
    return answer.status_code not in REFUSED


async def _speaks(url: str) -> bool:
    try:
        async with asyncio.timeout(PATIENCE), websockets.connect(url, subprotocols=["prefect"]) as socket:  # type: ignore[list-item]
            await socket.send('{"type": "auth", "token": "a guess"}')
            return b"success" in str(await socket.recv()).encode()
    except (OSError, TimeoutError, websockets.WebSocketException):
        return False


def _opened(paths: Iterable[str]) -> Iterator[str]:
    for path in paths:
        with suppress(OSError):
            if Path(path).is_dir():
                list(Path(path).iterdir())
            else:
                with open(path, "rb") as file:  # noqa: PTH123
                    file.read(1)
            yield path


def _insides(pids: Iterable[int]) -> Iterator[str]:
    for pid in pids:
        yield from _opened(f"/proc/{pid}/{name}" for name in ("environ", "mem", "maps", "fd", "root", "cwd"))
        with suppress(OSError):
            if SECRETS.search(Path(f"/proc/{pid}/cmdline").read_text()):
                yield f"a secret in the command line of {pid}"


def _serve() -> None:
    with tempfile.TemporaryDirectory() as folder:
        files = issue(Path(folder) / "own")
        OWN.load_cert_chain(files.cert, files.key)
    asyncio.run(_warm_up())
    os.setgroups([])
    os.setgid(UID)
    os.setuid(UID)
    for line in sys.stdin:
        requested = json.loads(line)
        found = [*asyncio.run(_all(requested["ports"])), *_opened(requested["paths"]), *_insides(requested["pids"])]
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    _serve()
