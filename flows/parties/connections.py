"""Limits on the connections of a service before authentication: their number, and deadlines.

A service accepts a bounded number of connections. If one more arrives, the connection that has been idle longest is
closed, those without a verified certificate first. The handshake and the head of a request have a deadline of a few
seconds, and a client that stops reading its answer is disconnected. So a client that connects and sends a request
gets an answer during a flood of idle connections.
"""

import asyncio
import contextlib
import resource
import socket
import time
from typing import Any
from weakref import WeakValueDictionary

from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from flows.reports.logs import log_event

MOST = 256
"""Connections of a service; fewer where the process may have fewer than twice as many files open."""
HEAD = 10.0
"""Seconds for the handshake, and for the head of a request from its first byte on."""
STALLED = 30.0
"""Seconds that a client may leave its answer unread."""
_SILENT = 60.0  # seconds between two lines of the log that connections are closed

_accepted: WeakValueDictionary[int, "Connection"] = WeakValueDictionary()
"""The open connections by their file descriptors, by which protocols find them."""


class Connection(socket.socket):
    """An accepted connection: since when it is idle, and whether a request of it is answered now."""

    idle_since = 0.0
    is_known = False
    is_asking = False
    is_ending = False

    def expire(self) -> None:
        """End it in whatever state it is; its transport then closes it."""
        self.is_ending = True
        with contextlib.suppress(OSError):
            self.shutdown(socket.SHUT_RDWR)


def most_connections() -> int:
    """Return the connections that a service of this process may have open."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MOST if files == resource.RLIM_INFINITY else max(1, min(MOST, files // 2))


class Listener(socket.socket):
    """A listening socket with a bounded number of connections."""

    def __init__(self, at: socket.socket) -> None:
        super().__init__(at.family, at.type, at.proto, fileno=at.detach())
        self._open = list[Connection]()
        self._told = -_SILENT
        self._most = most_connections()

    def accept(self) -> tuple[socket.socket, Any]:
        """Accept a connection, and end the idlest one where there are too many."""
        number, address = self._accept()  # type: ignore[attr-defined]  # what `socket.socket.accept` calls
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
        if (now := time.monotonic()) - self._told > _SILENT:
            self._told = now
            log_event("full", connections=self._most)
        idle = [each for each in self._open if not each.is_asking]
        min(idle, key=lambda each: (each.is_known, each.idle_since), default=accepted).expire()


def _end_stranger(connection: Connection) -> None:
    if not connection.is_known and connection.fileno() >= 0:
        connection.expire()


def without_ambiguity(app: ASGIApp) -> ASGIApp:
    """Refuse requests whose length is stated in two ways, and close their connections.

    Something in between may take the other length, and what follows for a request of its own.
    """

    async def strict(scope: Scope, receive: Receive, send: Send) -> None:
        names = [name for name, _ in scope.get("headers", ())]
        if b"transfer-encoding" in names and b"content-length" in names:
            await Response(status_code=400, headers={"connection": "close"})(scope, receive, send)
        else:
            await app(scope, receive, send)

    return strict


class BoundedProtocol(H11Protocol):
    """The protocol of one connection, which ends it where a request or the reading of an answer takes too long."""

    _connection: Connection | None = None
    _head: asyncio.TimerHandle | None = None
    _stalled: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Wait for the first request."""
        super().connection_made(transport)
        self._connection = _accepted.get(transport.get_extra_info("socket").fileno())
        if self._connection is not None:
            self._connection.is_known = transport.get_extra_info("ssl_object") is not None
        self._head = self.loop.call_later(HEAD, transport.abort)

    def data_received(self, data: bytes) -> None:
        """Read a part of a request, whose head is to come soon."""
        if self._head is None:
            self._head = self.loop.call_later(HEAD, self.transport.abort)
        super().data_received(data)
        self._follow()

    def on_response_complete(self) -> None:
        """Wait for the next request."""
        super().on_response_complete()
        self._follow()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop waiting."""
        super().connection_lost(exc)
        for timer in (self._head, self._stalled):
            if timer is not None:
                timer.cancel()

    def pause_writing(self) -> None:
        """Wait until the client reads on."""
        super().pause_writing()
        self._stalled = self.loop.call_later(STALLED, self.transport.abort)

    def resume_writing(self) -> None:
        """Go on, as the client reads."""
        super().resume_writing()
        if self._stalled is not None:
            self._stalled.cancel()

    def _follow(self) -> None:
        """Note whether a request is answered now; its head has come then."""
        is_asking = self.cycle is not None and not self.cycle.response_complete
        if is_asking and self._head is not None:
            self._head.cancel()
            self._head = None
        if self._connection is not None:
            self._connection.is_asking = is_asking
            self._connection.is_known |= is_asking
            self._connection.idle_since = time.monotonic()
