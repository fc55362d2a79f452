"""Fixtures: a service on loopback with few connections, and callers with certificates.

`raw_requests` are hostile requests that no regular client sends: broken HTTP, other protocols, and frames that grow
when read. Each is sent over a connection with a valid certificate.
"""

import contextlib
import json
import re
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
from flows.parties.calling import LONGEST_HEAD, MAGIC, Caller, Post
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


_HOST = b"Host: x\r\n"


def _post(path: bytes, *heads: bytes, body: bytes = b"") -> bytes:
    return b"POST " + path + b" HTTP/1.1\r\n" + _HOST + b"".join(head + b"\r\n" for head in heads) + b"\r\n" + body


def _framed(head: bytes) -> bytes:
    return MAGIC + len(head).to_bytes(4, "big") + head


def _sized(path: bytes, body: bytes) -> bytes:
    return _post(path, b"Content-Length: %d" % len(body), body=body)


def raw_requests(path: str) -> Mapping[str, bytes]:
    """Return the bytes of all hostile requests, by name, for a service at a path."""
    at, sound, chunked = path.encode(), _framed(b"{}"), b"Transfer-Encoding: chunked"
    smuggled = b"POST " + at + b" HTTP/1.1\r\n" + _HOST + b"Content-Length: 11\r\n\r\n" + sound
    entries = [{"name": str(number), "type": "<i8", "shape": [0], "rows": None} for number in range(1000)]
    huge = {"name": "a", "type": "<f8", "shape": [2**31 - 1, 2**31 - 1], "rows": 0}
    negative = {**huge, "shape": [-1, -1]}
    return {
        # requests that end early, or never
        "half a request line": b"POS",
        "a head without an end": b"POST " + at + b" HTTP/1.1\r\n" + _HOST + b"X-Half: ",
        "a body that is cut": _post(at, b"Content-Length: 500", body=b"DPCA1"),
        "chunks without an end": _post(at, chunked, body=b"5\r\nDPCA1\r\n" * 20),
        "a chunk that is cut": _post(at, chunked, body=b"ffff\r\nDPCA1"),
        "a wait for 100": _post(at, b"Expect: 100-continue", b"Content-Length: 11"),
        # request heads that are too long
        "a long address": b"POST /" + b"a" * 300_000 + b" HTTP/1.1\r\n" + _HOST + b"\r\n",
        "a long header": _post(at, b"X-Long: " + b"a" * 1_000_000),
        "many headers": _post(at, *(b"X-%d: 1" % number for number in range(50_000))),
        "a long chunk extension": _post(at, chunked, body=b"5;" + b"a" * 300_000 + b"\r\nDPCA1"),
        "long trailers": _post(at, chunked, body=b"0\r\nX-T: " + b"a" * 300_000),
        # content lengths that contradict each other
        "two lengths": _post(at, b"Content-Length: 11", b"Content-Length: 12", body=sound),
        "a list of lengths": _post(at, b"Content-Length: 11, 12", body=sound),
        "a length and chunks": _post(at, b"Content-Length: 11", chunked, body=b"0\r\n\r\n" + smuggled),
        "chunks and a length": _post(
            at, b"Transfer-Encoding: chunked", b"Content-Length: 5", body=b"0\r\n\r\n" + smuggled
        ),
        "chunks of another kind": _post(at, b"Transfer-Encoding: xchunked", body=b"0\r\n\r\n" + smuggled),
        "chunks twice": _post(at, b"Transfer-Encoding: chunked, chunked", body=b"0\r\n\r\n" + smuggled),
        "a blank before the colon": _post(at, b"Transfer-Encoding : chunked", body=b"0\r\n\r\n" + smuggled),
        "a negative length": _post(at, b"Content-Length: -1", body=sound),
        "a signed length": _post(at, b"Content-Length: +11", body=sound),
        "a length beyond 64 bits": _post(at, b"Content-Length: " + b"9" * 40, body=sound),
        "a length of many digits": _post(at, b"Content-Length: " + b"1" * 20_000, body=sound),
        "a chunk beyond 64 bits": _post(at, chunked, body=b"f" * 40 + b"\r\nDPCA1"),
        "a negative chunk": _post(at, chunked, body=b"-5\r\nDPCA1\r\n0\r\n\r\n"),
        # other protocols, and other forms of HTTP
        "HTTP/0.9": b"GET " + at + b"\r\n",
        "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(64),
        "HTTP/1.0 without a host": b"POST " + at + b" HTTP/1.0\r\n\r\n",
        "another version": b"POST " + at + b" HTTP/9.9\r\n" + _HOST + b"\r\n",
        "a websocket": b"GET " + at + b" HTTP/1.1\r\n" + _HOST + b"Upgrade: websocket\r\nConnection: Upgrade\r\n"
        b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n",
        "HTTP/2 by upgrade": b"GET " + at + b" HTTP/1.1\r\n" + _HOST + b"Connection: Upgrade, HTTP2-Settings\r\n"
        b"Upgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n\r\n",
        "a tunnel": b"CONNECT 127.0.0.1:5432 HTTP/1.1\r\n" + _HOST + b"\r\n",
        "a trace": b"TRACE " + at + b" HTTP/1.1\r\n" + _HOST + b"\r\n",
        "bare line feeds": _sized(at, sound).replace(b"\r\n", b"\n"),
        "bare carriage returns": _sized(at, sound).replace(b"\r\n", b"\r"),
        "a folded header": _post(at, b"X-A: 1\r\n  2", b"Content-Length: 11", body=sound),
        "a zero byte in a header": _post(at, b"X-A: \x00", b"Content-Length: 11", body=sound),
        "two hosts": _post(at, b"Host: y", b"Content-Length: 11", body=sound),
        "noise": bytes(range(256)) * 64,
        "a handshake inside the connection": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(512),
        # request paths that other servers interpret specially
        "a path upwards": _sized(b"/v1/../../etc/passwd", sound),
        "an encoded path upwards": _sized(b"/v1/%2e%2e/%2e%2e/etc/passwd", sound),
        "a zero byte in a path": _sized(at + b"%00", sound),
        "a whole address": _sized(b"http://169.254.169.254" + at + b"x", sound),
        "a star": b"OPTIONS * HTTP/1.1\r\n" + _HOST + b"\r\n",
        "bytes that are no text": _sized(b"/\xff\xfe", sound),
        # frames that grow
        "deeply nested JSON": _sized(at, _framed(b"[" * LONGEST_HEAD)),
        "deeply nested objects": _sized(at, _framed(b'{"a":' * 10_000 + b"1" + b"}" * 10_000)),
        "a number of many digits": _sized(at, _framed(b'{"round":' + b"9" * 60_000 + b"}")),
        "one key many times": _sized(at, _framed(b"{" + b'"arrays":[],' * 5_000 + b'"a":1}')),
        "many empty arrays": _sized(at, _framed(json.dumps({"arrays": entries}).encode()[:LONGEST_HEAD])),
        "an array beyond memory": _sized(at, _framed(json.dumps({"arrays": [huge]}).encode())),
        "an array of a negative side": _sized(at, _framed(json.dumps({"arrays": [negative]}).encode())),
        "a length of the head beyond it": _sized(at, MAGIC + b"\xff\xff\xff\xff" + bytes(64)),
        "half a surrogate": _sized(at, _framed(b'{"dealing":"\\ud800","names":["\\udfff"]}')),
        "compressed bytes": _post(at, b"Content-Encoding: gzip", b"Content-Length: 10", body=b"\x1f\x8b" + bytes(8)),
        "a pickle": _sized(at, b"\x80\x04\x95\x10\x00\x00\x00\x00\x00\x00\x00\x8c\x05posix\x94."),
        # many requests in one write
        "a thousand requests at once": _sized(at + b"x", sound) * 1000,
    }


def exchanged(address: str, context: ssl.SSLContext, sent: bytes, *, patience: float = 20.0) -> bytes:
    """Send bytes; return all that the service sends until it closes the connection or is silent for ``patience``."""
    host, _, port = address.removeprefix("https://").rpartition(":")
    came = b""
    with (
        socket.create_connection((host, int(port)), 20) as plain,
        contextlib.suppress(ConnectionError, TimeoutError, ssl.SSLError),
        context.wrap_socket(plain) as made,
    ):
        made.settimeout(patience)
        # the service may close the connection before it has read everything
        with contextlib.suppress(ConnectionError, ssl.SSLError):
            made.sendall(sent)
        while part := made.recv(1 << 16):
            came += part
    return came


def statuses(came: bytes) -> list[int]:
    """Return the HTTP status codes in a response."""
    return [int(status) for status in re.findall(rb"HTTP/1\.1 (\d{3})", came)]
