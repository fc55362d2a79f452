"""HTTPS server of one party, with certificates on both sides, connection limits and client-safe error messages.

The function of a route receives the caller's name, found by its certificate, and a frame of limited length. If it
fails, the caller receives one line, which never contains a path or a database address of this process. The log names
the route and the caller of a refused request, but never its content.

The number of connections is limited. If too many are open, the connection that has been idle longest is closed;
connections without a verified certificate are closed first. The TLS handshake and the head of a request have a deadline
of a few seconds. A client that stops reading its answer is disconnected. So a flood of idle connections does not block
a client that connects and sends a request.
"""

import asyncio
import contextlib
import logging
import re
import resource
import socket
import ssl
import time
import traceback
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar
from weakref import WeakValueDictionary

import uvicorn
from anyio import CapacityLimiter
from anyio.to_thread import run_sync
from starlette import routing
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from dpca.errors import BudgetExhausted, Corrupt, StorageError, Unavailable
from dpca_tasks.errors import DpcaError, InvalidInput, Refused
from flows.parties.calling import FRAME, OVERHEAD, REFUSED, REFUSED_BY_BUDGET, UNUSABLE, Frame, decode, encode
from flows.parties.certificates import fingerprint_of_der
from flows.reports.terminal import log_event

LONGEST_LINE = 2000
FAILED = "the request failed; see the log."
_ADDRESS = re.compile(r"""(?:^|[\s'"(=,;:])(?:~?/|[A-Za-z]:\\)[^\s'"]|\w://""")


def reported(error: Exception) -> str:
    """Return the client-safe message of an error."""
    match error:
        case Unavailable():
            return (
                "this service cannot use its database, key or store; its log states which; run the same request again."
            )
        case Corrupt():
            return "stored data is missing or damaged; the log states which; restore it."
        case DpcaError() | StorageError():
            line = " ".join(str(error).split())[:LONGEST_LINE]
            return line if not _ADDRESS.search(line) else "the request was refused; the log states the reason."
    return FAILED


def logged(error: Exception) -> dict[str, str]:
    """Return the facts of an error for the log: its type, and its message if callers do not receive this message.

    The message of an error that dpca did not raise may contain private data, so it is not logged.
    """
    facts = {"kind": type(error).__name__}
    if not isinstance(error, DpcaError | StorageError):
        (last,) = traceback.extract_tb(error.__traceback__)[-1:] or (None,)
        return facts if last is None else facts | {"at": f"{last.filename.rpartition('/')[2]}:{last.lineno}"}
    line = " ".join(str(error).split())
    return facts if line == reported(error) else facts | {"reason": line}


MOST = 256
"""Largest number of open connections of a service; at most half of the process's limit of open files is used."""
HEAD = 10.0
"""Seconds for the handshake, and for the head of a request after its first byte."""
STALLED = 30.0
"""Seconds for which a client may leave its answer unread."""
_SILENT = 60.0  # least seconds between two log lines about closed connections

_accepted: WeakValueDictionary[int, "Connection"] = WeakValueDictionary()
"""Open connections by file descriptor, so that a protocol finds the connection of its transport."""


class Connection(socket.socket):
    """An accepted connection.

    Attributes
    ----------
    idle_since : float, seconds
        Time of the last activity, by the monotonic clock.
    is_known : bool
        Whether the TLS handshake is complete, or the head of a request arrived.
    is_waiting : bool
        Whether the peer waits for the answer to a request.
    is_ending : bool
        Whether `expire` was called.
    """

    idle_since = 0.0
    is_known = False
    is_waiting = False
    is_ending = False

    def expire(self) -> None:
        """Shut the connection down; its transport then closes the socket."""
        self.is_ending = True
        with contextlib.suppress(OSError):
            self.shutdown(socket.SHUT_RDWR)


def most_connections() -> int:
    """Return the maximal number of open connections of a service in this process."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MOST if files == resource.RLIM_INFINITY else max(1, min(MOST, files // 2))


class Listener(socket.socket):
    """A listening socket with a bounded number of connections."""

    def __init__(self, at: socket.socket) -> None:
        super().__init__(at.family, at.type, at.proto, fileno=at.detach())
        self._open = list[Connection]()
        self._shown = -_SILENT
        self._most = most_connections()

    def accept(self) -> tuple[socket.socket, Any]:
        """Accept a connection; if too many are open, end the connection that has been idle longest."""
        number, address = self._accept()  # type: ignore[attr-defined]  # called by `socket.socket.accept`
        accepted = Connection(self.family, self.type, self.proto, fileno=number)
        accepted.idle_since = time.monotonic()
        self._open = [each for each in self._open if each.fileno() >= 0 and not each.is_ending]
        if len(self._open) >= self._most:
            self._end_one(accepted)
        self._open.append(accepted)
        _accepted[number] = accepted
        asyncio.get_running_loop().call_later(HEAD, _end_stranger, accepted)
        return accepted, address

    def _end_one(self, accepted: Connection) -> None:
        if (now := time.monotonic()) - self._shown > _SILENT:
            self._shown = now
            log_event("full", connections=self._most)
        idle = [each for each in self._open if not each.is_waiting]
        min(idle, key=lambda each: (each.is_known, each.idle_since), default=accepted).expire()


def _end_stranger(connection: Connection) -> None:
    if not connection.is_known and connection.fileno() >= 0:
        connection.expire()


def without_ambiguity(app: ASGIApp) -> ASGIApp:
    """Wrap an application to refuse requests with both Content-Length and Transfer-Encoding.

    A proxy may use the other of the two lengths, and treat the rest as a second request (request smuggling). The
    connection of such a request is closed.
    """

    async def strict(scope: Scope, receive: Receive, send: Send) -> None:
        names = [name for name, _ in scope.get("headers", ())]
        if b"transfer-encoding" in names and b"content-length" in names:
            await Response(status_code=400, headers={"connection": "close"})(scope, receive, send)
        else:
            await app(scope, receive, send)

    return strict


class BoundedProtocol(H11Protocol):
    """HTTP protocol that closes a connection if the head of a request, or reading the answer, takes too long."""

    _connection: Connection | None = None
    _head: asyncio.TimerHandle | None = None
    _stalled: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the deadline for the head of the first request."""
        super().connection_made(transport)
        self._connection = _accepted.get(transport.get_extra_info("socket").fileno())
        if self._connection is not None:
            self._connection.is_known = transport.get_extra_info("ssl_object") is not None
        self._head = self.loop.call_later(HEAD, transport.abort)

    def data_received(self, data: bytes) -> None:
        """Read a part of a request; the first part starts the deadline for the head."""
        if self._head is None:
            self._head = self.loop.call_later(HEAD, self.transport.abort)
        super().data_received(data)
        self._follow()

    def on_response_complete(self) -> None:
        """Record that the connection is idle again."""
        super().on_response_complete()
        self._follow()

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the deadlines."""
        super().connection_lost(exc)
        for timer in (self._head, self._stalled):
            if timer is not None:
                timer.cancel()

    def pause_writing(self) -> None:
        """Start the deadline by which the client must continue to read."""
        super().pause_writing()
        self._stalled = self.loop.call_later(STALLED, self.transport.abort)

    def resume_writing(self) -> None:
        """Cancel the deadline, as the client continues to read."""
        super().resume_writing()
        if self._stalled is not None:
            self._stalled.cancel()

    def _follow(self) -> None:
        """Update whether a request is being answered; if so, its head has arrived and the deadline is cancelled."""
        is_waiting = self.cycle is not None and not self.cycle.response_complete
        if is_waiting and self._head is not None:
            self._head.cancel()
            self._head = None
        if self._connection is not None:
            self._connection.is_waiting = is_waiting
            self._connection.is_known |= is_waiting
            self._connection.idle_since = time.monotonic()


PEER = "dpca.peer"
"""Key of the ASGI scope under which a request has the fingerprint of the peer's certificate."""
AT_ONCE = 4
"""Number of requests of one caller that are processed concurrently; further requests of this caller wait."""
CONNECTIONS = 64
"""Largest number of open connections of one certificate; `protocol_for` lowers it if there are many callers."""
PATIENCE = 30.0
"""Seconds within which the next part of a request must arrive."""
SLOWEST = 1 << 14
"""Minimal average bytes per second of a request, after `PATIENCE` seconds."""
_IDLE = 75  # seconds for which a connection is kept open between two requests

type Answer = Callable[[str, Mapping[str, str], Frame], bytes]
"""Function of a route: takes the caller's name, the path's variable parts and a frame; returns the answer's bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """A route with its path, allowed callers and function.

    ``most`` takes the variable parts of the path, and returns the largest accepted bytes of a request's arrays.
    """

    path: str
    callers: frozenset[str]
    answer: Answer
    most: Callable[[Mapping[str, str]], int] = lambda words: 0


class PeerProtocol(BoundedProtocol):
    """HTTP protocol that passes the fingerprint of the peer's certificate to the application."""

    _most: ClassVar[int] = CONNECTIONS
    _open: ClassVar[Counter[str | None]] = Counter()
    _peer: str | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Identify the caller; close the connection if the caller has too many open connections."""
        super().connection_made(transport)
        shown = transport.get_extra_info("ssl_object").getpeercert(binary_form=True)
        inner, peer = self.app, None if shown is None else fingerprint_of_der(shown)
        self._peer = peer
        self._open[peer] += 1
        if self._open[peer] > self._most:
            transport.abort()
            return

        async def with_peer(scope: Any, receive: Any, send: Any) -> None:
            await inner({**scope, PEER: peer}, receive, send)

        self.app = with_peer

    def connection_lost(self, exc: Exception | None) -> None:
        """Decrease the number of the caller's connections."""
        super().connection_lost(exc)
        self._open[self._peer] -= 1


def protocol_for(callers: int) -> type[PeerProtocol]:
    """Return the protocol class of a service with this many callers.

    Its connection limit per caller is so low that all callers together cannot use up the connections of the service.
    """
    each = max(1, min(CONNECTIONS, most_connections() // (callers + 1)))
    return type("PeerProtocol", (PeerProtocol,), {"_most": each, "_open": Counter[str | None]()})


def bind(listen: str) -> socket.socket:
    """Return a socket that listens at ``host:port``; port 0 selects a free port.

    Raises
    ------
    InvalidInput
        When the address is malformed or in use.
    """
    host, _, port = listen.rpartition(":")
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host.strip("[]"), int(port)), family=family, backlog=128)
    except (OSError, ValueError, OverflowError):
        raise InvalidInput(f"listen={listen!r} is not a free host:port on this machine; choose another.") from None


def address_of(at: socket.socket) -> str:
    """Return ``host:port`` of a socket."""
    host, port = at.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def serve(app: ASGIApp, *, names: Mapping[str, str], context: ssl.SSLContext, at: socket.socket) -> None:
    """Serve an application until the process is terminated; ``names`` are the callers' names by fingerprint."""
    run_app(
        app,
        at=at,
        http=protocol_for(len(names)),
        ssl_context_factory=lambda _config, _default: context,
        ssl_certfile="shown by the context",
    )


def application(routes: list[Route], *, names: Mapping[str, str]) -> Starlette:
    """Return an application of these routes; the ASGI scope of a request needs the fingerprint under `PEER`."""
    callers = Callers(names)
    paths = [routing.Route(each.path, _handler(each, callers), methods=["POST"]) for each in routes]
    return Starlette(routes=paths)


def run_app(app: ASGIApp, *, at: socket.socket, **more: Any) -> None:
    """Run an application at a socket until the process is terminated, without logging its requests or callers."""
    server_of(app, **more).run(sockets=[Listener(at)])


def server_of(app: ASGIApp, **more: Any) -> uvicorn.Server:
    """Return the server of an application, which logs nothing."""
    for logger in ("uvicorn.error", "asyncio"):
        logging.getLogger(logger).setLevel(logging.CRITICAL)
    config = uvicorn.Config(
        without_ambiguity(app),
        loop="asyncio",
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        date_header=False,
        timeout_keep_alive=_IDLE,
        timeout_graceful_shutdown=2,
        **{"http": BoundedProtocol, **more},
    )
    return uvicorn.Server(config)


class Callers:
    """The permitted callers of a service; each may have the same number of concurrent requests.

    Parameters
    ----------
    names : mapping
        Names of the callers, by the fingerprint of their certificates.
    """

    def __init__(self, names: Mapping[str, str]) -> None:
        self._names = names
        self._places: Mapping[str, asyncio.Semaphore] = defaultdict(lambda: asyncio.Semaphore(AT_ONCE))
        # enough threads for the concurrent requests of all callers
        self.threads = CapacityLimiter(AT_ONCE * max(1, len(names)))

    async def answer(
        self,
        request: Request,
        act: Callable[[str], Awaitable[Response]],
        *,
        route: str,
        allowed: Collection[str],
        refusal: Callable[[Mapping[str, str], int], Response],
    ) -> Response:
        """Answer a request of an allowed caller; return a client-safe line for any other caller and for errors.

        Parameters
        ----------
        request : Request
        act : callable
            Reads and answers the request of a caller.
        route : str
            Name of the route in the log.
        allowed : collection of str
            Names of the callers that may send the request.
        refusal : callable
            Returns the response for an error, from its type name and line, and a status code.
        """
        caller = self._names.get(request.scope.get(PEER) or "", "")
        try:
            if caller not in allowed:
                raise Refused(
                    "this certificate may not send this request; the configuration of this service lists the "
                    "permitted ones."
                )
            async with self._places[caller]:
                return await act(caller)
        except ClientDisconnect:
            log_event("cut", route=route, caller=caller)
            return Response(status_code=400)
        except (DpcaError, StorageError) as error:
            log_event("refused", route=route, caller=caller or "a stranger", **logged(error))
            return refusal({"kind": type(error).__name__, "line": reported(error)}, _status(error))
        except Exception as error:  # noqa: BLE001 - its message may contain private data, so callers receive a general line
            log_event("failed", route=route, caller=caller, **logged(error))
            return refusal({"kind": "Failed", "line": reported(error)}, 500)


def _handler(route: Route, callers: Callers) -> Callable[[Request], Awaitable[Response]]:
    async def handle(request: Request) -> Response:
        async def act(caller: str) -> Response:
            words = {name: str(word) for name, word in request.path_params.items()}
            most = await run_sync(route.most, words, limiter=callers.threads)
            frame = decode(await read_body(request, most=OVERHEAD + most), most=most)
            answer = await run_sync(route.answer, caller, words, frame, limiter=callers.threads)
            return Response(answer, media_type=FRAME)

        return await callers.answer(request, act, route=route.path, allowed=route.callers, refusal=_refused_frame)

    return handle


def _refused_frame(text: Mapping[str, str], status: int) -> Response:
    return Response(encode(text), status, media_type=FRAME)


async def read_body(request: Request, *, most: int) -> bytes:
    """Read the body of a request.

    Raises
    ------
    Refused
        When the body is longer than ``most`` bytes, or arrives too slowly.
    """
    parts, size, stream, began = [], 0, aiter(request.stream()), time.monotonic()
    while True:
        left = began + PATIENCE + size / SLOWEST - time.monotonic()
        try:
            async with asyncio.timeout(min(left, PATIENCE)):
                part = await anext(stream)
        except StopAsyncIteration:
            break
        except TimeoutError:
            raise Refused(
                f"a message stopped for {PATIENCE:g} seconds, or arrived at less than {SLOWEST} bytes per second; it "
                "was discarded: send it again."
            ) from None
        size += len(part)
        if size > most:
            raise Refused(f"a message has more than the {most} bytes that the plan allows; it was not read.")
        parts.append(part)
    return b"".join(parts)


def _status(error: Exception) -> int:
    if isinstance(error, Unavailable):
        return UNUSABLE
    return REFUSED_BY_BUDGET if isinstance(error, BudgetExhausted) else REFUSED
