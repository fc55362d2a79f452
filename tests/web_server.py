"""Web server on loopback that serves a folder, with or without TLS, and can be made to fail.

TLS servers and clusters of tests use certificates of a test's own certificate authority.
"""

import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

from flows.clusters import certificates


@dataclass(frozen=True, slots=True)
class Files:
    """The certificate of the authority, a certificate that it signed, and the private key of the signed certificate."""

    ca: Path
    cert: Path
    key: Path

    @property
    def settings(self) -> dict[str, str]:
        """Return the environment variables that point ``dpca`` to the files."""
        return {"DPCA_TLS_CA": str(self.ca), "DPCA_TLS_CERT": str(self.cert), "DPCA_TLS_KEY": str(self.key)}

    @property
    def options(self) -> list[str]:
        """Return the options that point ``dask scheduler`` and ``dask worker`` to the files."""
        return ["--tls-ca-file", str(self.ca), "--tls-cert", str(self.cert), "--tls-key", str(self.key)]


def issue(folder: Path) -> Files:
    """Create a new authority and write its certificates to a folder."""
    folder.mkdir(parents=True)
    made = certificates.issue()
    files = Files(folder / "ca.pem", folder / "cert.pem", folder / "key.pem")
    files.ca.write_text(made.ca)
    files.cert.write_text(made.cert)
    files.key.touch(mode=0o600)
    files.key.write_text(made.key)
    return files


type Answer = Callable[[BaseHTTPRequestHandler, bytes], None]
"""Handler that answers one file request, given the request and the content of the file."""


@dataclass(kw_only=True)
class WebServer:
    """A running web server that records its requests.

    The end of a file's path selects how a request is answered.
    """

    url: str
    requested: list[tuple[str, str]] = field(default_factory=list)
    answers: dict[str, Answer] = field(default_factory=dict)


def plain(request: BaseHTTPRequestHandler, content: bytes) -> None:
    """Answer with the unchanged content of the file."""
    request.send_response(200)
    request.send_header("Content-Length", str(len(content)))
    request.end_headers()
    request.wfile.write(content)


def status(code: int, **headers: str) -> Answer:
    """Return a function that answers with a status code and headers, without content."""

    def answer(request: BaseHTTPRequestHandler, _: bytes) -> None:
        request.send_response(code)
        for name, value in headers.items():
            request.send_header(name.replace("_", "-"), value)
        request.send_header("Content-Length", "0")
        request.end_headers()

    return answer


def cut_short(request: BaseHTTPRequestHandler, content: bytes) -> None:
    """Answer with one byte less than the declared length."""
    request.send_response(200)
    request.send_header("Content-Length", str(len(content)))
    request.end_headers()
    request.wfile.write(content[:-1])
    request.close_connection = True


def flipped(request: BaseHTTPRequestHandler, content: bytes) -> None:
    """Answer with the content of the file, whose last byte is changed."""
    plain(request, content[:-1] + bytes([content[-1] ^ 1]))


def _handler(folder: Path, server: WebServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def handle_one_request(self) -> None:
            try:
                super().handle_one_request()
            except (ConnectionError, ssl.SSLError):  # the client disconnected
                self.close_connection = True

        def do_GET(self) -> None:
            server.requested.append((self.command, self.path))
            path = folder / self.path.lstrip("/")
            special = next((answer for end, answer in server.answers.items() if self.path.endswith(end)), None)
            if special is not None:
                special(self, path.read_bytes() if path.is_file() else b"")
            elif path.is_file():
                plain(self, path.read_bytes())
            else:
                status(404)(self, b"")

        def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002 - the name in the base class
            pass

    return Handler


class _Quiet(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignore clients that trust no certificate or disconnect."""


@contextmanager
def serve_folder(folder: Path, *, tls: Files | None = None) -> Iterator[WebServer]:
    """Serve the files of a folder for the duration of the context."""
    found = WebServer(url="")
    with _Quiet(("127.0.0.1", 0), _handler(folder, found)) as server:
        if tls is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(tls.cert, tls.key)
            server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
        found.url = f"{'http' if tls is None else 'https'}://127.0.0.1:{server.server_port}"
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield found
        finally:
            server.shutdown()
            thread.join()
