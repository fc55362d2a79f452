"""The pages over HTTP: GET and HEAD alone, strict headers, no other origin, no script.

Nothing that a request holds is written anywhere. Every answer is made in a thread, so that a slow one holds up no
other.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from urllib.parse import quote

from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from flows.parties.listening import address_of, bind, run_app
from flows.reports.logs import configure_logs
from flows.settings import cluster_settings
from flows.web.access import COOKIE, VARIABLE, Access, is_loopback, read_token
from flows.web.pages import CSS, HTML, SVG, Answer, Site, render
from storage.errors import Refused
from storage.registry.references import Reference

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
"""What every answer says, so that a browser loads nothing from elsewhere, runs nothing, and shows it in no frame."""
_LASTING = (CSS, SVG)


class WebPages:
    """The ASGI application.

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
        if not self._access.knows_host(request):
            return _response(self._site.trouble(path, status=421, text="This address does not belong to this page."))
        if path == "login" and self._access.asks:
            return await self._log_in(request)
        if request.method not in ("GET", "HEAD"):
            answer = self._site.trouble(path, status=405, text="This page only shows, and takes nothing.")
            return _response(answer, Allow="GET, HEAD")
        if not path.startswith("static/") and not self._access.admits(request):
            return self._refusal(request, path, "This page asks for its token.")
        if path == "compare":
            return self._compare(request)
        return _response(await run_in_threadpool(self._site.answer, path))

    async def _log_in(self, request: Request) -> Response:
        if request.method != "POST":
            return self._login_page("login", status=200, text="This page asks for its token.")
        session = await self._access.session(request)
        if session is None:
            return self._refusal(request, "login", "That is not the token.")
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
            answer = self._site.trouble(path, status=status, text=text, then="Send it as Authorization: Bearer.")
        else:
            about = {"root": "../" * path.count("/"), "live": True, "curator": False, "page": "login"}
            answer = Answer(status=status, content=render("login", {"text": text}, **about), media=HTML)
        return _response(answer, **({"WWW-Authenticate": "Bearer"} if status == 401 else {}))

    def _compare(self, request: Request) -> Response:
        """Send the form of two numbers on to the page of their difference."""
        name, left, right = (request.query_params.get(part, "") for part in ("name", "left", "right"))
        try:
            pair = [f"{name}@{int(number)}" for number in (left, right)]
            for reference in pair:
                Reference.parse(reference)
        except ValueError:
            return _response(self._site.trouble("compare", status=404, text="There are no such two versions."))
        return _sent_to("/".join(["differences", *map(quote, pair)]) + ".html")


def serve_pages(*, host: str, port: int, token_file: Path | None, curator: bool, ready: Callable[[str], None]) -> None:
    """Serve the pages of this process's workspace until it is told to end; ``ready`` is called with the address.

    Raises
    ------
    Refused
        When it shall listen beyond loopback without a token.
    Invalid, InvalidInput
        When the token is not usable, or the port is not free.
    """
    configure_logs(cluster_settings().log)
    token, loopback = read_token(token_file), is_loopback(host)
    if not loopback and token is None:
        raise Refused(
            f"host={host} is beyond loopback, where everybody who reaches the port would read these pages; set "
            f"{VARIABLE}, or name a file of mode 0600 with --token-file."
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
    """Send a browser on to a page, by an address that is right under any prefix."""
    return Response(status_code=303, headers={"Location": address, "Cache-Control": "no-store"})
