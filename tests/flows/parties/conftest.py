"""Fixtures: a service on loopback with few connections, and callers with certificates."""

import contextlib
import socket
import ssl
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from flows.parties import listening
from flows.parties.calling import Caller, Post
from flows.parties.certificates import (
    calling_context,
    fingerprint_of,
    listening_context,
    make_identity,
    read_certificate,
)
from flows.parties.listening import Listener, address_of, bind, server_of

MOST, FLOOD = 24, 120


@dataclass(frozen=True, slots=True, kw_only=True)
class Party:
    """The TLS context and certificate of a service, and the certificate files of its numbered callers."""

    context: ssl.SSLContext
    names: Mapping[str, str]
    certificate: str = field(repr=False)
    callers: tuple[Path, ...]

    def shown(self, by: int = 0) -> ssl.SSLContext:
        """Return the client TLS context with which caller number ``by`` connects."""
        path = self.callers[by]
        return calling_context(certificate=path, key=path.with_suffix(".key"), peer=self.certificate)

    def caller(self, address: str, *, by: int = 0) -> Caller:
        """Return a client of the service at an address, for caller number ``by``."""
        path = self.callers[by]
        post = Post(name="the service", address=f"https://{address}", certificate=self.certificate)
        return Caller(post, certificate=path, key=path.with_suffix(".key"), timeout=20)

    @contextmanager
    def connected(self, address: str, *, by: int = 0) -> Iterator[ssl.SSLSocket]:
        """Yield a TLS connection to the service at an address, for caller number ``by``."""
        host, _, port = address.rpartition(":")
        with socket.create_connection((host, int(port)), 20) as plain, self.shown(by).wrap_socket(plain) as made:
            yield made


@pytest.fixture
def parties(tmp_path: Path) -> Callable[[int], Party]:
    """Return a function that creates certificates for a service and for a number of callers."""

    def made(count: int) -> Party:
        names = [f"caller {number}" for number in range(count)]
        ours, *theirs = (make_identity(name, tmp_path) for name in ("service", *names))
        pinned = [read_certificate(path) for path in theirs]
        return Party(
            context=listening_context(certificate=ours, key=ours.with_suffix(".key"), peers=pinned),
            names={fingerprint_of(pem): name for pem, name in zip(pinned, names, strict=True)},
            certificate=read_certificate(ours),
            callers=tuple(theirs),
        )

    return made


@pytest.fixture
def serving(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., str]]:
    """Yield a function that serves an application on loopback, with few connections, and returns its address."""
    monkeypatch.setattr(listening, "MOST", MOST)
    with ExitStack() as stack:

        def serve(app: Any, **more: Any) -> str:
            at = bind("127.0.0.1:0")
            address, server = address_of(at), server_of(app, **more)
            listener = Listener(at)
            thread = Thread(target=server.run, kwargs={"sockets": [listener]})
            thread.start()
            stack.callback(thread.join)
            stack.callback(lambda: setattr(server, "should_exit", True))
            # waits until the service has ended all connections; the clients have closed theirs
            stack.callback(await_end, listener)
            return address

        yield serve


@pytest.fixture
def flood() -> Iterator[Callable[..., list[socket.socket]]]:
    """Yield a function that opens many connections to an address, and sends the same bytes on each."""
    with ExitStack() as stack:

        def opened(address: str, sent: bytes = b"", *, count: int = FLOOD) -> list[socket.socket]:
            host, port = address.split(":")
            made = [stack.enter_context(socket.create_connection((host, int(port)), 20)) for _ in range(count)]
            for each in made if sent else ():
                with contextlib.suppress(OSError):
                    each.sendall(sent)
            return made

        yield opened


def await_end(listener: Listener) -> None:
    """Wait until every connection is closed."""
    deadline = time.monotonic() + 20
    while any(each.fileno() >= 0 for each in vars(listener)["_open"]):
        assert time.monotonic() < deadline, "a connection outlives its client"
        time.sleep(0.01)
