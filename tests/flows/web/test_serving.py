"""The server answers GET and HEAD alone, with strict headers, and lives on whatever it is asked."""

import asyncio
import re
import signal
import subprocess
import sys
from functools import partialmethod
from pathlib import Path
from typing import Any

import httpx
import pytest

from flows.web.access import Access
from flows.web.pages import Site
from flows.web.serving import HEADERS, WebPages
from storage.workspace import Workspace
from tests.docs.reader import DOCS, shell_blocks
from tests.flows.conftest import Command

TOKEN = "a-token-of-24-characters"
LOCAL = "http://localhost:8410"


class Client:
    """Ask the application in this process, and keep its cookies."""

    def __init__(self, pages: WebPages) -> None:
        self._pages, self.cookies = pages, httpx.Cookies()

    def request(self, method: str, path: str, **terms: Any) -> httpx.Response:
        async def asked() -> httpx.Response:
            transport = httpx.ASGITransport(self._pages)
            async with httpx.AsyncClient(transport=transport, base_url=LOCAL, cookies=self.cookies) as inner:
                answer = await inner.request(method, path, **terms)
                self.cookies = inner.cookies
                return answer

        return asyncio.run(asked())

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
    found, asked = client().get("/names/visits-map.html"), client().head("/names/visits-map.html")
    assert (asked.status_code, asked.headers) == (200, found.headers)


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "BREW"])
def test_no_other_method_is_taken(shared: Path, method: str) -> None:
    answer = client().request(method, "/", content=b"x" * 100)
    assert (answer.status_code, answer.headers["allow"]) == (405, "GET, HEAD")
    assert answer.headers.items() >= {name.lower(): value for name, value in HEADERS.items()}.items()
    assert client().request(method, "/login").status_code == 405


def test_a_request_under_another_name_is_refused_on_loopback(shared: Path) -> None:
    answer = client().get("/index.json", headers={"host": "evil.example"})
    assert answer.status_code == 421
    assert "visits-map" not in answer.text


def test_without_the_token_nothing_but_the_form_is_shown(shared: Path) -> None:
    asked = client(token=TOKEN, loopback=False)
    for path in (
        "/",
        "/names/visits-map.html",
        "/budgets/people.json",
        "/none",
        "/compare?name=visits-map&left=1&right=2",
    ):
        answer = asked.get(path)
        assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer")
        assert not re.search("visits|people|feature", answer.text.replace(path, ""))
    assert asked.get("/", headers={"authorization": "Bearer wrong"}).status_code == 401
    found = asked.get("/index.json", headers={"authorization": f"Bearer {TOKEN}"})
    assert (found.status_code, found.json()["page"]) == (200, "overview")
    assert asked.get("/static/style.css").status_code == 200


def test_the_form_gives_a_cookie_that_scripts_and_other_sites_do_not_get(shared: Path) -> None:
    asked = client(token=TOKEN, loopback=False)
    assert 'action="login"' in asked.get("/").text
    assert 'action="../login"' in asked.get("/names/visits-map.html").text
    assert asked.post("/login", data={"token": "wrong"}).status_code == 401
    answer = asked.post("/login", data={"token": TOKEN})
    assert (answer.status_code, answer.headers["location"]) == (303, "index.html")
    cookie = answer.headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=strict" in cookie
    assert TOKEN not in cookie
    assert asked.get("/index.json").status_code == 200
    asked.cookies.clear()
    assert asked.get("/index.json").status_code == 401


def test_the_form_of_two_versions_leads_to_their_difference(shared: Path) -> None:
    asked = client()
    answer = asked.get("/compare", params={"name": "visits-map", "left": "1", "right": "3"})
    assert answer.status_code == 303
    assert asked.get("/" + answer.headers["location"]).status_code == 200
    for wrong in ({}, {"name": "visits-map", "left": "1", "right": "x"}, {"name": "../x", "left": "1", "right": "2"}):
        assert asked.get("/compare", params=wrong).status_code == 404


def test_a_failure_is_one_page_and_the_next_request_is_answered(shared: Path) -> None:
    opened = [RuntimeError("no"), MemoryError(), KeyError("x"), None]

    def fails_at_first() -> Workspace:
        if (error := opened.pop(0)) is not None:
            raise error
        return Workspace.read_only()

    asked = client(open_workspace=fails_at_first)
    assert [asked.get("/index.json").status_code for _ in range(4)] == [500, 500, 500, 200]


def test_beyond_loopback_it_does_not_start_without_a_token(dpca: Command) -> None:
    for host in ("0.0.0.0", "::", "192.0.2.1"):
        assert "DPCA_SERVE_TOKEN" in dpca("serve", "--host", host).complaint(1)


def test_a_port_that_is_taken_is_told_in_one_line(dpca: Command) -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert "free" in dpca("serve", "--port", str(taken.getsockname()[1])).complaint(1)


def test_a_real_server_starts_as_the_guide_says_answers_and_ends_when_told(sample: Path, tmp_path: Path) -> None:
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
        with httpx.Client(base_url=address, trust_env=False, timeout=60) as asked:
            assert asked.get("index.json").status_code == 401
            asked.headers.update(shown)
            assert asked.get("versions/visits-map@1.html").status_code == 200
            assert asked.get("index.json").json()["page"] == "overview"
            assert asked.get("index.html", headers={"host": "evil.example"}).status_code == 421
            assert asked.head("/").headers["content-length"]
    finally:
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=60)
    assert (out, err) == ("", "")
