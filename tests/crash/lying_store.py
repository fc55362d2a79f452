"""Proxy in front of the tests' S3 server that can misbehave on request.

A *lie* is a wrong answer or a lost or changed write, as real stores, caches and load balancers produce them. Examples
are a stale listing, a truncated body, and an acknowledged write that is lost. Others are an error after a write that
succeeded, a request that is delivered twice or late, the body of another object, and a false ETag. Without a lie the
proxy passes everything through.

>>> sorted(LIES)[:3]
['cut', 'doubled', 'error_after']
"""

import hashlib
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Lock, Thread
from urllib.parse import unquote, urlsplit

from tests.s3 import Server

_HOP_BY_HOP = {"connection", "content-length", "date", "keep-alive", "server", "transfer-encoding"}
_PAUSE = 0.5  # seconds that a slow response waits between two bytes of its body
_SLOW = 100  # bytes of its body that a slow response sends at most before the connection ends


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A client's request."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes

    @property
    def key(self) -> str:
        """The path of the object, as ``/bucket/path``."""
        return unquote(urlsplit(self.path).path)

    @property
    def kind(self) -> str:
        """The kind of the request, one of ``list``, ``read``, ``write`` and ``delete``."""
        query = urlsplit(self.path).query
        if self.method == "DELETE" or (self.method == "POST" and re.match("delete", query)):
            return "delete"
        if self.method in ("GET", "HEAD"):
            return "list" if "list-type=" in query else "read"
        return "write"


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A response to the client.

    Attributes
    ----------
    sent : int or None, number of body bytes after which the proxy closes the connection
    pause : float, seconds between the bytes of a slow body
    """

    status: int
    headers: Mapping[str, str]
    body: bytes
    sent: int | None = None
    pause: float = 0.0


@dataclass(kw_only=True)
class Shown:
    """What a lie can use: the real S3 server, the objects as they were before the lie, and the last writes."""

    call: Callable[[Request], Answer]
    before: dict[str, Answer] = field(default_factory=dict)
    last: dict[str, Request] = field(default_factory=dict)


type Lie = Callable[[Request, Shown], Answer]


def _stale_list(request: Request, shown: Shown) -> Answer:
    """Omit from a listing all objects written since the lie began."""

    def is_new(key: str, *, whole: bool) -> bool:
        bucket = request.key.strip("/").partition("/")[0]
        return any(
            path == f"/{bucket}/{key}" or (not whole and path.startswith(f"/{bucket}/{key}"))
            for path, before in shown.before.items()
            if before.status != 200
        )

    def kept(found: re.Match[bytes]) -> bytes:
        key = re.search(rb"<(?:Key|Prefix)>(.*?)</", found[0])
        assert key is not None
        return b"" if is_new(unquote(key[1].decode()), whole=found[0].startswith(b"<Contents")) else found[0]

    answer = shown.call(request)
    body = re.sub(rb"<(Contents|CommonPrefixes)>.*?</\1>", kept, answer.body, flags=re.DOTALL)
    return replace(answer, body=body)


def _stale_read(request: Request, shown: Shown) -> Answer:
    """Answer with the object as it was when the lie began, or with 404 if it did not exist then."""
    return shown.before.get(request.key) or shown.call(request)


def _truncated(request: Request, shown: Shown) -> Answer:
    answer = shown.call(request)
    return replace(answer, body=answer.body[: len(answer.body) // 2])


def _cut(request: Request, shown: Shown) -> Answer:
    answer = shown.call(request)
    return replace(answer, sent=len(answer.body) // 2)


def _slow(request: Request, shown: Shown) -> Answer:
    return replace(shown.call(request), pause=_PAUSE)


def _swapped(request: Request, shown: Shown) -> Answer:
    """Answer a request for a chunk with another chunk of the same array; answer all other requests correctly."""
    found = re.search(r"/c/(\d+)/", request.path)
    if found is None:
        return shown.call(request)
    other = int(found[1]) - 1 if int(found[1]) else 1
    answer = shown.call(replace(request, path=f"{request.path[: found.start(1)]}{other}{request.path[found.end(1) :]}"))
    return answer if answer.status == 200 else shown.call(request)


def _wrong_etag(request: Request, shown: Shown) -> Answer:
    answer = shown.call(request)
    false = f'"{hashlib.md5(str(time.monotonic_ns()).encode()).hexdigest()}"'
    headers = {name: false if name.lower() == "etag" else value for name, value in answer.headers.items()}
    body = (
        re.sub(rb"<ETag>.*?</ETag>", f"<ETag>{false}</ETag>".encode(), answer.body) if request.kind == "list" else b""
    )
    return replace(answer, headers=headers, body=body or answer.body)


def _error_after(request: Request, shown: Shown) -> Answer:
    """Execute the request, and report an error to the client."""
    shown.call(request)
    return Answer(status=503, headers={}, body=b"<Error><Code>ServiceUnavailable</Code></Error>")


def _lost_write(request: Request, shown: Shown) -> Answer:
    return Answer(status=200, headers={"ETag": f'"{hashlib.md5(request.body).hexdigest()}"'}, body=b"")


def _torn_write(request: Request, shown: Shown) -> Answer:
    shown.call(replace(request, body=request.body[: len(request.body) // 2]))
    return _lost_write(request, shown)


def _doubled(request: Request, shown: Shown) -> Answer:
    answer = shown.call(request)
    shown.call(request)
    return answer


def _late(request: Request, shown: Shown) -> Answer:
    """Deliver the previous write of the same object once more, after the current write."""
    earlier = shown.last.get(request.key)
    answer = shown.call(request)
    if earlier is not None:
        shown.call(earlier)
    return answer


def _lost_delete(request: Request, shown: Shown) -> Answer:
    if request.method == "DELETE":
        return Answer(status=204, headers={}, body=b"")
    keys = re.findall(rb"<Key>(.*?)</Key>", request.body)
    gone = b"".join(b"<Deleted><Key>" + key + b"</Key></Deleted>" for key in keys)
    headers = {"Content-Type": "application/xml"}
    return Answer(status=200, headers=headers, body=b"<DeleteResult>" + gone + b"</DeleteResult>")


LIES: Mapping[str, tuple[str, Lie]] = {
    "stale_list": ("list", _stale_list),
    "stale_read": ("read", _stale_read),
    "truncated": ("read", _truncated),
    "cut": ("read", _cut),
    "slow": ("read", _slow),
    "swapped": ("read", _swapped),
    "wrong_etag": ("read write list", _wrong_etag),
    "error_after": ("write delete", _error_after),
    "lost_write": ("write", _lost_write),
    "torn_write": ("write", _torn_write),
    "doubled": ("write delete", _doubled),
    "late": ("write", _late),
    "lost_delete": ("delete", _lost_delete),
}
"""Each lie by its name, with the kinds of requests to which it applies."""


class LyingStore(ThreadingHTTPServer):
    """The proxy as an HTTP server; the method `lying` makes it misbehave for a while."""

    daemon_threads = True
    block_on_close = False

    def __init__(self, server: Server) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self._upstream, self._one_at_a_time = server.host, Lock()
        self._lie: tuple[str, Lie] | None = None
        self._where, self._left, self.lies_sent = re.compile(""), 0, 0
        self._shown = Shown(call=self._call)

    @contextmanager
    def lying(self, lie: str, *, where: str = "", times: int = 1 << 30) -> Iterator[None]:
        """Misbehave for all requests whose path matches ``where``, at most ``times`` times, inside the context."""
        self._shown, self._where, self._left, self.lies_sent = Shown(call=self._call), re.compile(where), times, 0
        self._lie = LIES[lie]
        try:
            yield
        finally:
            self._lie = None

    def answer(self, request: Request) -> Answer:
        """Answer one request."""
        shown = self._shown
        if self._lie is not None and request.kind == "write" and request.key not in shown.before:
            shown.before[request.key] = self._call(replace(request, method="GET", path=request.key, body=b""))
        answer = self._answer(request, shown)
        if request.kind == "write":
            shown.last[request.key] = request
        return answer

    def _answer(self, request: Request, shown: Shown) -> Answer:
        if self._lie is None or request.kind not in self._lie[0].split() or not self._where.search(request.path):
            return self._call(request)
        with self._one_at_a_time:
            if self._left <= 0:
                return self._call(request)
            self._left -= 1
            self.lies_sent += 1
        return self._lie[1](request, shown)

    def _call(self, request: Request) -> Answer:
        upstream = HTTPConnection(self._upstream)
        try:
            upstream.request(request.method, request.path, body=request.body, headers=dict(request.headers))
            found = upstream.getresponse()
            headers = {name: value for name, value in found.getheaders() if name.lower() not in _HOP_BY_HOP}
            if request.method == "HEAD":
                headers["Content-Length"] = found.headers.get("Content-Length", "0")
            return Answer(status=found.status, headers=headers, body=found.read())
        finally:
            upstream.close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: LyingStore

    def _serve(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        headers = {name: value for name, value in self.headers.items() if name.lower() not in _HOP_BY_HOP}
        answer = self.server.answer(Request(method=self.command, path=self.path, headers=headers, body=body))
        self.send_response_only(answer.status)
        for name, value in answer.headers.items():
            self.send_header(name, value)
        if self.command != "HEAD":
            self.send_header("Content-Length", str(len(answer.body)))
        self.end_headers()
        if self.command == "HEAD":
            return
        if answer.pause:
            self._drip(answer)
        elif answer.sent is not None:
            self.wfile.write(answer.body[: answer.sent])
            self.close_connection = True
        else:
            self.wfile.write(answer.body)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _serve

    def _drip(self, answer: Answer) -> None:
        try:
            for at in range(min(len(answer.body), _SLOW)):
                self.wfile.write(answer.body[at : at + 1])
                self.wfile.flush()
                time.sleep(answer.pause)
        except OSError:  # the client disconnected
            pass
        self.close_connection = True

    def handle(self) -> None:
        """Serve a connection; a client that disconnects early is no error."""
        try:
            super().handle()
        except OSError:
            self.close_connection = True

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name in the base class
        """Suppress the log."""


@contextmanager
def lying_store(server: Server) -> Iterator[tuple[LyingStore, Server]]:
    """Run the proxy; yield it, and a description of the S3 server with the proxy's address."""
    with LyingStore(server) as proxy:
        thread = Thread(target=proxy.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        thread.start()
        try:
            yield proxy, replace(server, host=f"127.0.0.1:{proxy.server_address[1]}")
        finally:
            proxy.shutdown()
            thread.join()
