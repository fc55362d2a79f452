"""A service of one party: HTTPS with mutual certificates, frames in and out, one line for what is refused.

A route gets the name of the party that called, known by its certificate, and a request no longer than the route says.
Refusals are logged with the name of the route and the caller, never with content.
"""

import asyncio
import logging
import socket
import ssl
import time
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import uvicorn
from anyio import CapacityLimiter
from anyio.to_thread import run_sync
from starlette import routing
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp

from dpca_tasks.errors import DpcaError, InvalidInput, Refused
from flows.parties.calling import REFUSED, REFUSED_BY_BUDGET, UNUSABLE
from flows.parties.certificates import fingerprint_of_der
from flows.parties.connections import BoundedProtocol, Listener, most_connections, without_ambiguity
from flows.parties.frames import OVERHEAD, Frame, decode, encode
from flows.parties.refusals import logged, told
from flows.reports.logs import log_event
from storage.errors import BudgetExhausted, StorageError, Unavailable

FRAME = "application/x-dpca-frame"
PEER = "dpca.peer"
"""The entry of a request's scope with the fingerprint of the certificate that its connection shows."""
AT_ONCE = 4
"""Requests of one caller that are read and answered at once; its others wait, and nobody else's do."""
CONNECTIONS = 64
"""Open connections of one certificate at most; fewer where callers that ask at once could fill the service together."""
PATIENCE = 30.0
"""Seconds that the next part of a request may take."""
SLOWEST = 1 << 14
"""Bytes a second that a request must come at on average, once `PATIENCE` is over."""
_IDLE = 75  # seconds that a connection is kept open between two requests

type Answer = Callable[[str, Mapping[str, str], Frame], bytes]
"""What a route does: from the caller's name, the words of its path and a frame, to the bytes of the answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """One route: its path, who may call, what it does, and the most bytes of its arrays, by the words of its path."""

    path: str
    callers: frozenset[str]
    answer: Answer
    most: Callable[[Mapping[str, str]], int] = lambda words: 0


class KnowsPeer(BoundedProtocol):
    """The protocol of one connection, which tells the application whose certificate it shows."""

    _most: ClassVar[int] = CONNECTIONS
    _open: ClassVar[Counter[str | None]] = Counter()
    _peer: str | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Identify the caller, and close the connection where it has too many."""
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
        """Count one connection less."""
        super().connection_lost(exc)
        self._open[self._peer] -= 1


def protocol_for(callers: int) -> type[KnowsPeer]:
    """Return the protocol of a service with so many callers, who cannot take all of its connections together."""
    each = max(1, min(CONNECTIONS, most_connections() // (callers + 1)))
    return type("KnowsPeer", (KnowsPeer,), {"_most": each, "_open": Counter[str | None]()})


def bind(listen: str) -> socket.socket:
    """Return a socket that listens at ``host:port``; port 0 takes any that is free.

    Raises
    ------
    InvalidInput
        When the address is malformed, or not free.
    """
    host, _, port = listen.rpartition(":")
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host.strip("[]"), int(port)), family=family, backlog=128)
    except (OSError, ValueError, OverflowError):
        raise InvalidInput(f"listen={listen!r} is no host:port that is free here; name another.") from None


def address_of(at: socket.socket) -> str:
    """Return ``host:port`` of a socket."""
    host, port = at.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def serve(routes: list[Route], *, names: Mapping[str, str], context: ssl.SSLContext, at: socket.socket) -> None:
    """Serve until the process is told to end; ``names`` are those of the callers by their fingerprints."""
    run_app(
        application(routes, names=names),
        at=at,
        http=protocol_for(len(names)),
        ssl_context_factory=lambda _config, _default: context,
        ssl_certfile="shown by the context",
    )


def application(routes: list[Route], *, names: Mapping[str, str]) -> Starlette:
    """Return an application of these routes; each request's scope has the caller's certificate under `PEER`."""
    places: Mapping[str, asyncio.Semaphore] = defaultdict(lambda: asyncio.Semaphore(AT_ONCE))
    threads = CapacityLimiter(AT_ONCE * max(1, len(names)))  # so many are answered at once: no caller waits for another
    paths = [routing.Route(each.path, _handler(each, names, places, threads), methods=["POST"]) for each in routes]
    return Starlette(routes=paths)


def run_app(app: ASGIApp, *, at: socket.socket, **more: Any) -> None:
    """Run an application at a socket until the process is told to end, and say nothing of it or of its callers."""
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


def _handler(
    route: Route, names: Mapping[str, str], places: Mapping[str, asyncio.Semaphore], threads: CapacityLimiter
) -> Callable[[Request], Awaitable[Response]]:
    async def answered(request: Request, caller: str) -> Response:
        words = {name: str(word) for name, word in request.path_params.items()}
        most = await run_sync(route.most, words, limiter=threads)
        frame = decode(await _body(request, most=OVERHEAD + most), most=most)
        return Response(await run_sync(route.answer, caller, words, frame, limiter=threads), media_type=FRAME)

    async def handle(request: Request) -> Response:
        caller = names.get(request.scope.get(PEER) or "", "")
        try:
            if caller not in route.callers:
                raise Refused("this certificate may not ask that here; its configuration names who may.")
            async with places[caller]:
                return await answered(request, caller)
        except ClientDisconnect:
            log_event("cut", route=route.path, caller=caller)
            return Response(status_code=400)
        except (DpcaError, StorageError) as error:
            log_event("refused", route=route.path, caller=caller or "a stranger", **logged(error))
            said = {"kind": type(error).__name__, "line": told(error)}
            return Response(encode(said), _status(error), media_type=FRAME)
        except Exception as error:  # noqa: BLE001 - its text may hold anything, so it stays here
            log_event("failed", route=route.path, caller=caller, **logged(error))
            return Response(encode({"kind": "Failed", "line": told(error)}), 500, media_type=FRAME)

    return handle


async def _body(request: Request, *, most: int) -> bytes:
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
                f"a message stopped for {PATIENCE:g} seconds, or came at less than {SLOWEST} bytes a second; nothing "
                "was done of it: send it whole."
            ) from None
        size += len(part)
        if size > most:
            raise Refused(f"a message has more than the {most} bytes that the plan allows; nothing was read of it.")
        parts.append(part)
    return b"".join(parts)


def _status(error: Exception) -> int:
    if isinstance(error, Unavailable):
        return UNUSABLE
    return REFUSED_BY_BUDGET if isinstance(error, BudgetExhausted) else REFUSED
