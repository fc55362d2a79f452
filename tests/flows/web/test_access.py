"""Only who may is let in: by host on loopback, by token elsewhere, and a token that others can read is none."""

import asyncio
import os
import time
from pathlib import Path

import pytest
from starlette.requests import Request

from flows.web import access as subject
from flows.web.access import Access, is_loopback, read_token
from storage.errors import Invalid, Refused

TOKEN = "0123456789abcdef"


def request(*, body: bytes = b"", **headers: str) -> Request:
    async def receive():
        return {"type": "http.request", "body": body, "more_body": False}

    named = [(name.encode(), value.encode()) for name, value in headers.items()]
    return Request({"type": "http", "method": "GET", "path": "/", "headers": named}, receive)


@pytest.mark.parametrize("host", ["localhost", "localhost:8410", "127.0.0.1:1", "127.9.9.9", "[::1]:8410", "LOCALHOST"])
def test_loopback_is_known_by_its_names_and_numbers(host: str) -> None:
    assert Access(token=None, loopback=True).knows_host(request(host=host))


@pytest.mark.parametrize(
    "host", ["", "evil.example", "127.0.0.1.evil.example", "localhost.evil", "10.0.0.1", "[::2]", "["]
)
def test_a_host_that_was_made_to_resolve_to_loopback_is_not(host: str) -> None:
    assert not Access(token=None, loopback=True).knows_host(request(host=host))
    assert Access(token=TOKEN, loopback=False).knows_host(request(host=host))


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
def test_a_token_is_admitted_as_a_whole(header: str, *, admitted: bool) -> None:
    assert Access(token=TOKEN, loopback=False).admits(request(authorization=header)) is admitted


def test_without_a_token_everybody_who_reaches_the_port_is_admitted() -> None:
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
    with pytest.raises(Invalid, match="no text"):
        read_token(path)
    with pytest.raises(Refused, match="must be a file"):
        read_token(tmp_path)
    with pytest.raises(Invalid, match="cannot be read"):
        read_token(tmp_path / "none")


def test_the_variable_is_taken_where_no_file_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DPCA_SERVE_TOKEN", raising=False)
    assert read_token(None) is None
    monkeypatch.setenv("DPCA_SERVE_TOKEN", TOKEN)
    assert read_token(None) == TOKEN
    monkeypatch.setenv("DPCA_SERVE_TOKEN", "short")
    with pytest.raises(Invalid, match="fewer than 16"):
        read_token(None)


def test_loopback_is_told_from_everything_else() -> None:
    assert all(map(is_loopback, ("localhost", "127.0.0.1", "::1")))
    assert not any(map(is_loopback, ("0.0.0.0", "::", "192.168.0.1", "example.org", "")))


def test_wrong_tokens_of_one_client_are_throttled_and_no_other_client_is(monkeypatch: pytest.MonkeyPatch) -> None:
    access, now = Access(token=TOKEN, loopback=False), [1_000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])

    def shown(token: str, client: str, *, by_form: bool = False) -> bool:
        asked = request(body=f"token={token}".encode(), **({} if by_form else {"authorization": f"Bearer {token}"}))
        asked.scope["client"] = (client, 1)
        return asyncio.run(access.session(asked)) is not None if by_form else access.admits(asked)

    cookie = asyncio.run(access.session(request(body=f"token={TOKEN}".encode())))
    assert not any(shown("wrong", "2001:db8::1", by_form=number % 2 == 0) for number in range(subject.GUESSES))
    assert not shown(TOKEN, "2001:db8::2")  # not compared: it is of the same network
    assert not shown(TOKEN, "2001:db8::1", by_form=True)
    assert shown(TOKEN, "2001:db8:1::1")
    assert shown(TOKEN, "192.0.2.1", by_form=True)
    signed_in = request(cookie=f"dpca_session={cookie}")
    signed_in.scope["client"] = ("2001:db8::1", 1)
    assert access.admits(signed_in)
    assert access.is_throttled(signed_in)
    now[0] += subject.WINDOW
    assert shown(TOKEN, "2001:db8::1")


def test_a_token_file_is_read_once_and_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe", 0o600)
    with pytest.raises(Refused, match="must be a file"):
        read_token(tmp_path / "pipe")
    (tmp_path / "token").write_text(TOKEN)
    (tmp_path / "token").chmod(0o600)
    (tmp_path / "link").symlink_to("token")
    assert read_token(tmp_path / "link") == TOKEN
