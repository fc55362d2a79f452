"""Whoever connects and asks is answered, however many others connect and say nothing, or only begin to."""

import contextlib
import logging
import os
import socket
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.types import Receive, Scope, Send

from flows.parties import connections, listening
from flows.parties.connections import Listener
from flows.parties.frames import Frame, encode
from flows.parties.listening import Route, application, bind
from tests.flows.parties.conftest import MOST, Party


async def hello(scope: Scope, receive: Receive, send: Send) -> None:
    request = Request(scope, receive)
    size = int(request.query_params.get("size", "5"))
    await PlainTextResponse("h" * size)(scope, receive, send)


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


HEADS = {
    "nothing": b"",
    "a part of a head": b"GET / HTTP/1.1\r\nHost: x\r\nX-",
    "a handshake's first byte": b"\x16",
    "no HTTP": b"\x00" * 100,
    "an answered request": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "a body that never ends": b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 99\r\n\r\nx",
}


@pytest.mark.parametrize("head", HEADS)
def test_a_flood_of_connections_keeps_no_client_waiting(
    serving: Callable[..., str],
    flood: Callable[..., list[socket.socket]],
    head: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    address, before = serving(hello), open_files()
    with caplog.at_level(logging.INFO):
        flooding = flood(address, HEADS[head])
        for _ in range(3):
            assert httpx.get(f"http://{address}/", timeout=20).text == "hhhhh"
    assert open_files() - before <= len(flooding) + MOST + 5
    assert len([record for record in caplog.records if record.name != "httpx"]) <= 1


@pytest.mark.parametrize("head", ["nothing", "a part of a head", "a body that never ends", "an answered request"])
def test_a_connection_that_asks_nothing_ends_at_its_deadline(
    serving: Callable[..., str],
    flood: Callable[..., list[socket.socket]],
    head: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connections, "HEAD", 0.2)
    (made,) = flood(serving(hello), HEADS[head], count=1)
    made.settimeout(20)
    while head != "nothing" and (answer := made.recv(10_000)):
        if answer and head in ("an answered request", "a body that never ends"):
            with contextlib.suppress(OSError):
                made.sendall(b"X")  # the first byte of another request, or of the rest of this one
    assert made.recv(1) == b""


def test_who_does_not_read_its_answer_is_cut_off(
    serving: Callable[..., str], flood: Callable[..., list[socket.socket]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "STALLED", 0.2)
    (made,) = flood(serving(hello), b"GET /?size=100000000 HTTP/1.1\r\nHost: x\r\n\r\n", count=1)
    time.sleep(1.0)
    size = 0
    with contextlib.suppress(ConnectionError):
        while part := made.recv(1 << 20):
            size += len(part)
    assert size < 100_000_000


def test_a_request_that_is_answered_slowly_is_not_ended_for_others(
    serving: Callable[..., str], flood: Callable[..., list[socket.socket]]
) -> None:
    async def slow(scope: Scope, receive: Receive, send: Send) -> None:
        from anyio import sleep

        if scope["path"] == "/slow":
            await sleep(1.0)
        await hello(scope, receive, send)

    address = serving(slow)
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(httpx.get, f"http://{address}/slow", timeout=20)
        time.sleep(0.3)
        flood(address)
        assert answer.result().status_code == 200


@pytest.mark.parametrize("head", ["nothing", "a handshake's first byte", "a part of a head"])
def test_a_flood_before_the_handshake_keeps_no_party_waiting(
    serving: Callable[..., str],
    flood: Callable[..., list[socket.socket]],
    parties: Callable[[int], Party],
    head: str,
) -> None:
    party = parties(1)

    def answer(caller: str, words: Mapping[str, str], frame: Frame) -> bytes:
        return encode({"hello": caller})

    app = application([Route(path="/act", callers=frozenset({"caller 0"}), answer=answer)], names=party.names)
    more = {"ssl_context_factory": lambda *_: party.context, "ssl_certfile": "shown by the context"}
    address = serving(app, http=listening.KnowsPeer, **more)
    flood(address, HEADS[head])
    for _ in range(3):
        with contextlib.closing(party.caller(address)) as calling:
            assert calling.ask("/act", {}).facts == {"hello": "caller 0"}


def test_the_number_of_connections_follows_the_limit_of_open_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("resource.getrlimit", lambda _: (100, 100))
    with Listener(bind("127.0.0.1:0")) as listener:
        assert vars(listener)["_most"] == 50
    assert os.sysconf("SC_OPEN_MAX") > 0
