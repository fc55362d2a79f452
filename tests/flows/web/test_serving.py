"""Access to the web pages, and the server's robustness.

Access is restricted: on loopback by the host name of the request, elsewhere by a token. A token file that others can
read is refused. The server answers GET and HEAD alone, with strict headers, and survives any request.
"""

import asyncio
import os
import re
import signal
import subprocess
import sys
import time
from functools import partialmethod
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.requests import Request

from dpca.errors import Invalid, Refused
from flows.web import serving as subject
from flows.web.pages import Site
from flows.web.serving import HEADERS, Access, WebPages, is_loopback, read_token
from storage.workspace import Workspace
from tests.docs.reader import DOCS, shell_blocks
from tests.flows.conftest import Command

TOKEN = "0123456789abcdef"


def request(*, body: bytes = b"", **headers: str) -> Request:
    async def receive():
        return {"type": "http.request", "body": body, "more_body": False}

    named = [(name.encode(), value.encode()) for name, value in headers.items()]
    return Request({"type": "http", "method": "GET", "path": "/", "headers": named}, receive)


@pytest.mark.parametrize("host", ["localhost", "localhost:8410", "127.0.0.1:1", "127.9.9.9", "[::1]:8410", "LOCALHOST"])
def test_loopback_is_recognized_by_its_names_and_addresses(host: str) -> None:
    assert Access(token=None, loopback=True).accepts_host(request(host=host))


@pytest.mark.parametrize(
    "host", ["", "evil.example", "127.0.0.1.evil.example", "localhost.evil", "10.0.0.1", "[::2]", "["]
)
def test_a_foreign_host_name_that_resolves_to_loopback_is_refused(host: str) -> None:
    assert not Access(token=None, loopback=True).accepts_host(request(host=host))
    assert Access(token=TOKEN, loopback=False).accepts_host(request(host=host))


@pytest.mark.parametrize(
    ("header", "admitted"),
    [
        (f"Bearer {TOKEN}", True),
        (f"bearer  {TOKEN}", True),
        (f"Basic {TOKEN}", False),
        (f"Bearer {TOKEN}x", False),
        ("Bearer ", False),
        ("Bearer \xe9", False),
        ("", False),
    ],
)
def test_only_the_complete_token_is_accepted(header: str, *, admitted: bool) -> None:
    assert Access(token=TOKEN, loopback=False).admits(request(authorization=header)) is admitted


def test_without_a_token_every_request_is_accepted() -> None:
    assert Access(token=None, loopback=True).admits(request())


def test_a_form_with_the_token_gives_a_cookie_of_this_process_alone() -> None:
    access, other = Access(token=TOKEN, loopback=False), Access(token=TOKEN, loopback=False)

    def session(body: bytes) -> str | None:
        return asyncio.run(access.session(request(body=body)))

    cookie = session(f"token={TOKEN}".encode())
    assert cookie is not None
    assert TOKEN not in cookie
    assert access.admits(request(cookie=f"dpca_session={cookie}"))
    assert not other.admits(request(cookie=f"dpca_session={cookie}"))
    assert not access.admits(request(cookie=f"dpca_session={TOKEN}"))
    for body in (b"", b"token=", b"token=wrong", b"\xff\xfe", b"a=1&b=2&c=3&d=4&e=5", b"token=" + b"x" * 5000):
        assert session(body) is None


def test_a_token_file_that_others_can_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text(f"{TOKEN}\n")
    for mode in (0o644, 0o640, 0o604):
        path.chmod(mode)
        with pytest.raises(Refused, match="chmod 600"):
            read_token(path)
    path.chmod(0o600)
    assert read_token(path) == TOKEN
    path.write_text("short\n")
    with pytest.raises(Invalid, match="fewer than 16"):
        read_token(path)
    path.write_bytes(b"\xff" * 32)
    with pytest.raises(Invalid, match="not text"):
        read_token(path)
    with pytest.raises(Refused, match="must be a file"):
        read_token(tmp_path)
    with pytest.raises(Invalid, match="cannot be read"):
        read_token(tmp_path / "none")


def test_the_token_variable_is_used_if_no_file_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DPCA_SERVE_TOKEN", raising=False)
    assert read_token(None) is None
    monkeypatch.setenv("DPCA_SERVE_TOKEN", TOKEN)
    assert read_token(None) == TOKEN
    monkeypatch.setenv("DPCA_SERVE_TOKEN", "short")
    with pytest.raises(Invalid, match="fewer than 16"):
        read_token(None)


def test_loopback_addresses_are_distinguished_from_others() -> None:
    assert all(map(is_loopback, ("localhost", "127.0.0.1", "::1")))
    assert not any(map(is_loopback, ("0.0.0.0", "::", "192.168.0.1", "example.org", "")))


def test_wrong_tokens_of_one_client_are_throttled_and_no_other_client_is(monkeypatch: pytest.MonkeyPatch) -> None:
    access, now = Access(token=TOKEN, loopback=False), [1_000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])

    def shown(token: str, client: str, *, by_form: bool = False) -> bool:
        requested = request(body=f"token={token}".encode(), **({} if by_form else {"authorization": f"Bearer {token}"}))
        requested.scope["client"] = (client, 1)
        return asyncio.run(access.session(requested)) is not None if by_form else access.admits(requested)

    cookie = asyncio.run(access.session(request(body=f"token={TOKEN}".encode())))
    assert not any(shown("wrong", "2001:db8::1", by_form=number % 2 == 0) for number in range(subject.GUESSES))
    # refused without comparing the token, because the address is in the network of the failed attempts
    assert not shown(TOKEN, "2001:db8::2")
    assert not shown(TOKEN, "2001:db8::1", by_form=True)
    assert shown(TOKEN, "2001:db8:1::1")
    assert shown(TOKEN, "192.0.2.1", by_form=True)
    signed_in = request(cookie=f"dpca_session={cookie}")
    signed_in.scope["client"] = ("2001:db8::1", 1)
    assert access.admits(signed_in)
    assert access.is_throttled(signed_in)
    now[0] += subject.WINDOW
    assert shown(TOKEN, "2001:db8::1")


@pytest.mark.parametrize("by_form", [False, True])
def test_right_tokens_are_never_throttled(*, by_form: bool) -> None:
    access = Access(token=TOKEN, loopback=False)
    for _ in range(3 * subject.GUESSES):
        if by_form:
            assert asyncio.run(access.session(request(body=f"token={TOKEN}".encode()))) is not None
        else:
            assert access.admits(request(authorization=f"Bearer {TOKEN}"))


def test_a_token_file_is_read_once_and_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe", 0o600)
    with pytest.raises(Refused, match="must be a file"):
        read_token(tmp_path / "pipe")
    (tmp_path / "token").write_text(TOKEN)
    (tmp_path / "token").chmod(0o600)
    (tmp_path / "link").symlink_to("token")
    assert read_token(tmp_path / "link") == TOKEN


SERVING_TOKEN = "a-token-of-24-characters"
LOCAL = "http://localhost:8410"


class Client:
    """HTTP client that calls the web application in this process, and keeps its cookies."""

    def __init__(self, pages: WebPages) -> None:
        self._pages, self.cookies = pages, httpx.Cookies()

    def request(self, method: str, path: str, **terms: Any) -> httpx.Response:
        async def requested() -> httpx.Response:
            transport = httpx.ASGITransport(self._pages)
            async with httpx.AsyncClient(transport=transport, base_url=LOCAL, cookies=self.cookies) as inner:
                answer = await inner.request(method, path, **terms)
                self.cookies = inner.cookies
                return answer

        return asyncio.run(requested())

    get = partialmethod(request, "GET")
    head = partialmethod(request, "HEAD")
    post = partialmethod(request, "POST")


def client(*, token: str | None = None, loopback: bool = True, **site: Any) -> Client:
    return Client(WebPages(Site(live=True, **site), Access(token=token, loopback=loopback)))


@pytest.mark.parametrize(
    "path", ["/", "/index.json", "/names/none.html", "/static/style.css", "/compare", "/%2e%2e/%00"]
)
@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_every_answer_has_the_strict_headers(shared: Path, path: str, method: str) -> None:
    answer = client().request(method, path)
    assert answer.headers.items() >= {name.lower(): value for name, value in HEADERS.items()}.items()
    assert "script-src" not in answer.headers["content-security-policy"]
    assert answer.headers["cache-control"] == ("private, max-age=300" if "static" in path else "no-store")
    assert (method == "HEAD") == (answer.content == b"")
    assert int(answer.headers["content-length"]) > 0


def test_head_is_get_without_its_content(shared: Path) -> None:
    found, requested = client().get("/names/visits-map.html"), client().head("/names/visits-map.html")
    assert (requested.status_code, requested.headers) == (200, found.headers)


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "BREW"])
def test_other_methods_are_refused(shared: Path, method: str) -> None:
    answer = client().request(method, "/", content=b"x" * 100)
    assert (answer.status_code, answer.headers["allow"]) == (405, "GET, HEAD")
    assert answer.headers.items() >= {name.lower(): value for name, value in HEADERS.items()}.items()
    assert client().request(method, "/login").status_code == 405


def test_a_request_under_another_name_is_refused_on_loopback(shared: Path) -> None:
    answer = client().get("/index.json", headers={"host": "evil.example"})
    assert answer.status_code == 421
    assert "visits-map" not in answer.text


def test_without_the_token_only_the_login_form_is_shown(shared: Path) -> None:
    requested = client(token=SERVING_TOKEN, loopback=False)
    for path in (
        "/",
        "/names/visits-map.html",
        "/budgets/people.json",
        "/none",
        "/compare?name=visits-map&left=1&right=2",
    ):
        answer = requested.get(path)
        assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer")
        assert not re.search("visits|people|feature", answer.text.replace(path, ""))
    assert requested.get("/", headers={"authorization": "Bearer wrong"}).status_code == 401
    found = requested.get("/index.json", headers={"authorization": f"Bearer {SERVING_TOKEN}"})
    assert (found.status_code, found.json()["page"]) == (200, "overview")
    assert requested.get("/static/style.css").status_code == 200


def test_the_form_gives_a_cookie_that_scripts_and_other_sites_do_not_get(shared: Path) -> None:
    requested = client(token=SERVING_TOKEN, loopback=False)
    assert 'action="login"' in requested.get("/").text
    assert 'action="../login"' in requested.get("/names/visits-map.html").text
    assert requested.post("/login", data={"token": "wrong"}).status_code == 401
    answer = requested.post("/login", data={"token": SERVING_TOKEN})
    assert (answer.status_code, answer.headers["location"]) == (303, "index.html")
    cookie = answer.headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=strict" in cookie
    assert SERVING_TOKEN not in cookie
    assert requested.get("/index.json").status_code == 200
    requested.cookies.clear()
    assert requested.get("/index.json").status_code == 401


@pytest.mark.parametrize(("scheme", "secure"), [("http", False), ("https", True)])
def test_a_cookie_of_an_encrypted_page_is_never_sent_unencrypted(shared: Path, *, scheme: str, secure: bool) -> None:
    requested = client(token=SERVING_TOKEN)
    address = LOCAL.replace("http", scheme) + "/login"
    answer = requested.post(address, data={"token": SERVING_TOKEN})
    assert answer.status_code == 303
    assert ("; secure" in answer.headers["set-cookie"].lower()) == secure


def test_the_form_of_two_versions_leads_to_their_difference(shared: Path) -> None:
    requested = client()
    answer = requested.get("/compare", params={"name": "visits-map", "left": "1", "right": "3"})
    assert answer.status_code == 303
    assert requested.get("/" + answer.headers["location"]).status_code == 200
    for wrong in ({}, {"name": "visits-map", "left": "1", "right": "x"}, {"name": "../x", "left": "1", "right": "2"}):
        assert requested.get("/compare", params=wrong).status_code == 404


def test_a_failure_is_one_page_and_the_next_request_is_answered(shared: Path) -> None:
    opened = [RuntimeError("no"), MemoryError(), KeyError("x"), None]

    def fails_at_first() -> Workspace:
        if (error := opened.pop(0)) is not None:
            raise error
        return Workspace.read_only()

    requested = client(open_workspace=fails_at_first)
    assert [requested.get("/index.json").status_code for _ in range(4)] == [500, 500, 500, 200]


def test_beyond_loopback_the_server_does_not_start_without_a_token(dpca: Command) -> None:
    for host in ("0.0.0.0", "::", "192.0.2.1"):
        assert "DPCA_SERVE_TOKEN" in dpca("serve", "--host", host).complaint(1)


def test_a_port_in_use_is_reported_in_one_line(dpca: Command) -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert "free" in dpca("serve", "--port", str(taken.getsockname()[1])).complaint(1)


def test_a_real_server_starts_as_documented_answers_and_stops_on_a_signal(sample: Path, tmp_path: Path) -> None:
    guide = DOCS / "how-to" / "web-page.md"
    plain, network, _ = shell_blocks(guide)
    assert plain == "dpca serve\n"
    *before, words = network.splitlines()
    typed = words.replace("--host 0.0.0.0 --port 8410", "--port 0")
    assert typed == "dpca serve --port 0 --token-file token"
    subprocess.run(["sh", "-ec", "\n".join(before)], cwd=tmp_path, check=True)
    command = [sys.executable, "-c", "import sys; from flows.cli import main; sys.exit(main(sys.argv[1:]))"]
    process = subprocess.Popen(
        [*command, *typed.split()[1:]], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        address = process.stdout.readline().removeprefix("listening at ").strip()
        shown = {"authorization": f"Bearer {(tmp_path / 'token').read_text().strip()}"}
        with httpx.Client(base_url=address, trust_env=False, timeout=60) as requested:
            assert requested.get("index.json").status_code == 401
            requested.headers.update(shown)
            assert requested.get("versions/visits-map@1.html").status_code == 200
            assert requested.get("index.json").json()["page"] == "overview"
            assert requested.get("index.html", headers={"host": "evil.example"}).status_code == 421
            assert requested.head("/").headers["content-length"]
    finally:
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=60)
    assert (out, err) == ("", "")
