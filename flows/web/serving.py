"""HTTP server of the pages, with access control and strict headers.

If the server listens on loopback, the host of a request must be a loopback name. If it listens on any other address, a
request needs the token. If a token is set, requests on loopback need the token too.

The host is checked because of DNS rebinding: a page of another site can make a browser send requests to loopback under
a name that resolves to loopback. The host of such a request is that name, so the request is refused. A client sends the
token as ``Authorization: Bearer``, or once in a form, which returns a cookie that is valid until this process ends.

Except for that form, only GET and HEAD are answered. The headers admit no other origin and no script. Nothing that a
request contains is written anywhere. Every page is made in a thread, so that a slow page does not block other requests.
"""

import asyncio
import hmac
import ipaddress
import os
import secrets
import stat
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from urllib.parse import parse_qs, quote

from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from dpca.backends.atomic_files import read_with_status
from dpca.errors import Corrupt, Invalid, Refused
from dpca.registry.pointers import Reference
from flows.parties.listening import HEAD, address_of, bind, run_app
from flows.reports.terminal import configure_logs
from flows.settings import cluster_settings
from flows.web.pages import CSS, HTML, SVG, Answer, Site, render

VARIABLE = "DPCA_SERVE_TOKEN"
COOKIE = "dpca_session"
GUESSES, WINDOW = 10, 60.0
"""Number of wrong tokens after which a client is throttled, and the seconds for which a wrong token counts."""
_CLIENTS = 4096  # largest number of remembered clients
_SHORTEST = 16
_LONGEST = 4096


class Access:
    """Access control of requests.

    Parameters
    ----------
    token : str, optional
        Without a token, everyone who can reach the port is admitted.
    loopback : bool
        Whether the server listens on loopback; then the host of a request must be a loopback name.
    """

    def __init__(self, *, token: str | None, loopback: bool) -> None:
        self._token, self._loopback = token, loopback
        self._session = secrets.token_urlsafe(32)
        self._wrong: dict[str, list[float]] = {}

    @property
    def needs_token(self) -> bool:
        """True if requests need a token."""
        return self._token is not None

    def accepts_host(self, request: Request) -> bool:
        """Return whether the host of a request is accepted; on loopback, only a loopback name is."""
        host = request.headers.get("host", "")
        name = host.rpartition("]")[0].removeprefix("[") if host.startswith("[") else host.partition(":")[0]
        return not self._loopback or is_loopback(name)

    def admits(self, request: Request) -> bool:
        """Return whether a request has the token or the session cookie, or no token is set."""
        if self._token is None:
            return True
        if _same(request.cookies.get(COOKIE, ""), self._session):
            return True
        scheme, _, shown = request.headers.get("authorization", "").partition(" ")
        return bool(scheme) and self._accepts(request, shown.strip() if scheme.lower() == "bearer" else "")

    async def session(self, request: Request) -> str | None:
        """Return the value of the session cookie if the form contains the token; else None."""
        body = b""
        try:
            async with asyncio.timeout(HEAD):
                async for part in request.stream():
                    body += part
                    if len(body) > _LONGEST:
                        return None
        except TimeoutError:
            return None
        try:
            shown = parse_qs(body.decode("ascii"), max_num_fields=4).get("token", [""])[0]
        except ValueError:
            return None
        return self._session if self._accepts(request, shown.strip()) else None

    def is_throttled(self, request: Request) -> bool:
        """Return whether a client recently sent `GUESSES` wrong tokens, so that its tokens are not checked for now."""
        return len(self._recent(_client(request))) >= GUESSES

    def _accepts(self, request: Request, shown: str) -> bool:
        if self._token is None or self.is_throttled(request):
            return False
        if _same(shown, self._token):
            return True
        client = _client(request)
        self._wrong[client] = [*self._recent(client), time.monotonic()]
        while len(self._wrong) > _CLIENTS:
            del self._wrong[next(iter(self._wrong))]
        return False

    def _recent(self, client: str) -> list[float]:
        return [at for at in self._wrong.get(client, ()) if time.monotonic() - at < WINDOW]


def _client(request: Request) -> str:
    """Return the IPv4 address of a client, or its IPv6 /64 network, because one client may use a whole /64 network."""
    host = request.client.host if request.client is not None else ""
    try:
        return str(ipaddress.ip_network((host, 64), strict=False)) if ":" in host else host
    except ValueError:
        return host


def is_loopback(host: str) -> bool:
    """Return whether a host name or address is a loopback address."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def read_token(path: Path | None) -> str | None:
    """Return the token from a file, else from ``DPCA_SERVE_TOKEN``; None if neither is given.

    Raises
    ------
    Invalid
        If the file cannot be read, or the token is too short to be secret or not printable.
    Refused
        If other users can read or write the file, or it is not a short regular file.
    """
    if path is None:
        token = os.environ.get(VARIABLE) or None
    else:
        try:
            content, status = read_with_status(path, most=_LONGEST)  # mode and content are read from the same open file
            if status.st_mode & 0o077:
                raise Refused(
                    f"token file {path} has mode {stat.S_IMODE(status.st_mode):04o}, but must be a "
                    f"file that no other user can read; run `chmod 600 {path}`."
                )
            token = content.decode()
        except (Corrupt, IsADirectoryError):
            raise Refused(f"token file {path} must be a file of one line; write random characters into it.") from None
        except OSError as error:
            raise Invalid(
                f"token file {path} cannot be read ({error.strerror}); name a readable one with --token-file."
            ) from None
        except ValueError:
            raise Invalid(f"token file {path} is not text; write one line of random characters into it.") from None
    if token is not None and (len(token.strip()) < _SHORTEST or not token.strip().isprintable()):
        raise Invalid(
            f"the token has fewer than {_SHORTEST} characters, or unprintable ones; use a random "
            "token, such as from `openssl rand -hex 24`."
        )
    return None if token is None else token.strip()


def _same(shown: str, expected: str) -> bool:
    return hmac.compare_digest(shown.encode("utf-8", "replace"), expected.encode())


HEADERS: Mapping[str, str] = {
    "Content-Security-Policy": (
        "default-src 'none'; style-src 'self'; img-src 'self' data:; form-action 'self'; base-uri 'none'; "
        "frame-ancestors 'none'"
    ),
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
"""Headers of every answer, so that a browser loads nothing from other origins, runs nothing, and allows no frame."""
_LASTING = (CSS, SVG)
_LONGEST_QUERY = 200  # largest number of characters of a search text


class WebPages:
    """The ASGI application that serves the pages.

    Parameters
    ----------
    site : Site
    access : Access
    """

    def __init__(self, site: Site, access: Access) -> None:
        self._site, self._access = site, access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            return
        request = Request(scope, receive)
        try:
            response = await self._respond(request)
        except ClientDisconnect:
            return
        response.headers.update(HEADERS)
        if request.method == "HEAD":
            response.body = b""
        await response(scope, receive, send)

    async def _respond(self, request: Request) -> Response:
        path = str(request.scope["path"]).removeprefix("/")
        if not self._access.accepts_host(request):
            return _response(
                self._site.trouble(path, status=421, text="This server does not serve the requested host name.")
            )
        if path == "login" and self._access.needs_token:
            return await self._log_in(request)
        if request.method not in ("GET", "HEAD"):
            answer = self._site.trouble(path, status=405, text="This page is read-only.")
            return _response(answer, Allow="GET, HEAD")
        if not path.startswith("static/") and not self._access.admits(request):
            return self._refusal(request, path, "This page requires a token.")
        if path == "compare":
            return self._compare(request)
        find, order = (request.query_params.get(part, "")[:_LONGEST_QUERY] for part in ("find", "order"))
        return _response(await run_in_threadpool(self._site.answer, path, find=find, order=order))

    async def _log_in(self, request: Request) -> Response:
        if request.method != "POST":
            return self._login_page("login", status=200, text="This page requires a token.")
        session = await self._access.session(request)
        if session is None:
            return self._refusal(request, "login", "Wrong token.")
        response = _sent_to("index.html")
        secure = request.scope["scheme"] == "https"
        response.set_cookie(COOKIE, session, httponly=True, samesite="strict", secure=secure, path="/")
        return response

    def _refusal(self, request: Request, path: str, text: str) -> Response:
        if self._access.is_throttled(request):
            return self._login_page(path, status=429, text="Too many wrong tokens; try again in a minute.")
        return self._login_page(path, status=401, text=text)

    def _login_page(self, path: str, *, status: int, text: str) -> Response:
        if path.endswith(".json"):
            answer = self._site.trouble(path, status=status, text=text, then="Send the token as Authorization: Bearer.")
        else:
            about = {"root": "../" * path.count("/"), "live": True, "curator": False, "page": "login"}
            answer = Answer(status=status, content=render("login", {"text": text}, **about), media=HTML)
        return _response(answer, **({"WWW-Authenticate": "Bearer"} if status == 401 else {}))

    def _compare(self, request: Request) -> Response:
        """Redirect to the page of the difference of two versions, each given as a number or as NAME@VERSION."""
        name, *sides = (request.query_params.get(part, "") for part in ("name", "left", "right"))
        try:
            pair = [side if "@" in side else f"{name}@{int(side)}" for side in sides]
            if any(Reference.parse(reference).version is None for reference in pair):
                raise ValueError(pair)
        except ValueError:
            return _response(self._site.trouble("compare", status=404, text="These two versions do not exist."))
        return _sent_to("/".join(["differences", *map(quote, pair)]) + ".html")


def serve_pages(*, host: str, port: int, token_file: Path | None, curator: bool, ready: Callable[[str], None]) -> None:
    """Serve the pages of this process's workspace until the process is terminated.

    ``ready`` is called with the address.

    Raises
    ------
    Refused
        If ``host`` is not loopback and there is no token.
    Invalid, InvalidInput
        If the token is not usable, or the port is not free.
    """
    configure_logs(cluster_settings().log)
    token, loopback = read_token(token_file), is_loopback(host)
    if not loopback and token is None:
        raise Refused(
            f"host={host} is not loopback, so everyone who reaches the port could read these pages; "
            f"set {VARIABLE}, or name a file of mode 0600 with --token-file."
        )
    at = bind(f"[{host}]:{port}" if ":" in host else f"{host}:{port}")
    ready(f"http://{address_of(at)}/")
    run_app(WebPages(Site(live=True, curator=curator), Access(token=token, loopback=loopback)), at=at)


def _response(answer: Answer, **headers: str) -> Response:
    caching = "private, max-age=300" if answer.status == 200 and answer.media in _LASTING else "no-store"
    made = Response(answer.content, status_code=answer.status, headers={"Cache-Control": caching, **headers})
    made.headers["Content-Type"] = answer.media
    return made


def _sent_to(address: str) -> Response:
    """Redirect a browser to a relative address, which is valid if a proxy adds a prefix to all addresses."""
    return Response(status_code=303, headers={"Location": address, "Cache-Control": "no-store"})
