"""Services between parties: behavior under load and attack, and the frame format.

A refused caller gets one line without paths or addresses. A slow or greedy caller does not delay others: a complete
request is answered, however many other connections are silent or incomplete. Requests that no regular client sends are
refused, have no effect, and do not affect others. Frames are decoded as they were encoded, and a frame that is cut,
extended, or of another form is refused completely.
"""

import asyncio
import contextlib
import json
import logging
import os
import socket
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy.exc import IntegrityError
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.types import Receive, Scope, Send

from dpca.errors import Conflict, Corrupt, Refused, StorageError, Unavailable
from dpca_tasks.errors import InvalidInput
from dpca_tasks.errors import Refused as FramesRefused
from flows.parties import listening
from flows.parties.calling import LONGEST_HEAD, MAGIC, OVERHEAD, REFUSED, UNUSABLE, Frame, decode, encode
from flows.parties.listening import AT_ONCE, CONNECTIONS, FAILED, PEER, Listener, Route, application, bind, protocol_for
from tests.flows.parties.conftest import MOST, Party, exchanged, raw_requests, statuses
from tests.forger import forgeries

SECRET = "/srv/ledger/private"
NAMES = {"a print": "runner", "another print": "reader"}

HIDDEN: dict[str, tuple[Exception, int]] = {
    "a database": (Unavailable("the database at postgresql://dpca@ledger.private/dpca is gone."), UNUSABLE),
    "a file": (Corrupt(f"artifact {SECRET}/artifacts/00 is damaged; restore it."), REFUSED),
    "a folder": (Refused(f"{SECRET} has no witness; set DPCA_KEY_FOLDER."), REFUSED),
    "a quoted folder": (Conflict(f"the pointer '{SECRET}/x' changes."), REFUSED),
    "a store": (Refused("others publish in s3://private/registry; choose another."), REFUSED),
    "a statement": (IntegrityError("INSERT INTO private (id) VALUES (?)", ("private",), Exception("private")), 500),
    "anything else": (KeyError(SECRET), 500),
    "a system's error": (OSError(2, "no private file", SECRET), 500),
}


def client(*routes: Route, by: str = "a print") -> httpx.AsyncClient:
    """Return an HTTP client of some routes, which presents the certificate fingerprint ``by``."""
    inside = application(list(routes), names=NAMES)

    async def shown(scope: Scope, receive: Receive, send: Send) -> None:
        await inside({**scope, PEER: by}, receive, send)

    return httpx.AsyncClient(transport=httpx.ASGITransport(shown), base_url="https://service")


def failing(error: Exception) -> Route:
    def answer(caller: str, words: Mapping[str, str], frame: Frame) -> bytes:
        raise error

    return Route(path="/act", callers=frozenset({"runner"}), answer=answer)


def requested(route: Route, *, by: str = "a print") -> tuple[int, Mapping[str, Any]]:
    async def call() -> httpx.Response:
        async with client(route, by=by) as session:
            return await session.post("/act", content=encode({}))

    answer = asyncio.run(call())
    return answer.status_code, decode(answer.content, most=0).facts


@pytest.mark.parametrize("hidden", HIDDEN)
def test_a_refusal_reveals_no_path_or_address(hidden: str, caplog: pytest.LogCaptureFixture) -> None:
    error, status = HIDDEN[hidden]
    with caplog.at_level(logging.INFO, logger="dpca.flows"):
        found, message = requested(failing(error))
    assert found == status
    assert "private" not in str(message)
    assert message["line"].endswith(".")
    (line,) = [record.__dict__["facts"] for record in caplog.records]
    assert line["kind"] == type(error).__name__
    if isinstance(error, StorageError):
        assert line["reason"] == str(error)
    else:
        assert message["line"] == FAILED
        assert "private" not in str(line)
        assert line["at"].startswith("test_listening.py:")


def test_the_violated_rule_is_reported_unchanged() -> None:
    for error in (
        Refused("release 0a is closed; repeat the request with another --run-key."),
        Conflict("run key 'people/0a' belongs to another request; use another --run-key."),
        InvalidInput("epsilon=-1 must be positive; state more\nthan 0."),
    ):
        status, message = requested(failing(error))
        assert (status, message) == (REFUSED, {"kind": type(error).__name__, "line": str(error).replace("\n", " ")})


def test_a_request_with_an_unauthorized_certificate_is_refused_unread() -> None:
    for by in ("another print", "a stranger's", ""):
        status, message = requested(failing(KeyError()), by=by)
        assert (status, message["kind"]) == (REFUSED, "Refused")
        assert "this certificate may not send this request" in message["line"]


def test_a_caller_that_stops_within_a_message_frees_its_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listening, "PATIENCE", 0.05)
    done: list[str] = []

    def answer(caller: str, words: Mapping[str, str], frame: Frame) -> bytes:
        done.append(caller)
        return encode({})

    async def stuck() -> AsyncIterator[bytes]:
        yield encode({})[:3]
        await asyncio.sleep(60)

    async def call() -> list[httpx.Response]:
        async with client(Route(path="/act", callers=frozenset({"runner"}), answer=answer)) as session:
            slow = [session.post("/act", content=stuck()) for _ in range(AT_ONCE)]
            return await asyncio.wait_for(asyncio.gather(*slow, session.post("/act", content=encode({}))), 20)

    *slow, quick = asyncio.run(call())
    assert {answer.status_code for answer in slow} == {REFUSED}
    assert "stopped for" in decode(slow[0].content, most=0).facts["line"]
    assert (quick.status_code, done) == (200, ["runner"])


def test_one_caller_does_not_delay_others() -> None:
    """Send many requests from one caller at once: only as many as the caller's limit may be read."""
    route = Route(path="/act", callers=frozenset({"runner", "reader"}), answer=lambda *_: encode({}))
    inside = application([route], names=NAMES)
    begun: list[str] = []
    all_in, go_on = asyncio.Event(), asyncio.Event()

    async def call(by: str) -> None:
        async def receive() -> dict[str, Any]:
            begun.append(by)
            if begun.count("a print") == AT_ONCE:
                all_in.set()
            if by == "a print":
                await go_on.wait()
            return {"type": "http.request", "body": encode({}), "more_body": False}

        async def send(_: object) -> None:
            return None

        scope = {"type": "http", "method": "POST", "path": "/act", "headers": [], "query_string": b"", PEER: by}
        await inside(scope, receive, send)

    async def everybody() -> None:
        many = [asyncio.create_task(call("a print")) for _ in range(3 * AT_ONCE)]
        await asyncio.wait_for(all_in.wait(), 20)
        await asyncio.wait_for(call("another print"), 20)
        assert begun.count("a print") == AT_ONCE
        go_on.set()
        await asyncio.wait_for(asyncio.gather(*many), 20)

    asyncio.run(everybody())
    assert begun.count("a print") == 3 * AT_ONCE


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
def test_a_flood_of_connections_does_not_delay_clients(
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
def test_an_idle_connection_ends_at_its_deadline(
    serving: Callable[..., str],
    flood: Callable[..., list[socket.socket]],
    head: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(listening, "HEAD", 0.2)
    (made,) = flood(serving(hello), HEADS[head], count=1)
    made.settimeout(20)
    while head != "nothing" and (answer := made.recv(10_000)):
        if answer and head in ("an answered request", "a body that never ends"):
            with contextlib.suppress(OSError):
                made.sendall(b"X")  # the first byte of another request, or the next byte of the current request
    assert made.recv(1) == b""


def test_a_caller_that_does_not_read_its_answer_is_disconnected(
    serving: Callable[..., str], flood: Callable[..., list[socket.socket]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listening, "STALLED", 0.2)
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
def test_a_flood_before_the_handshake_does_not_delay_parties(
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
    address = serving(app, http=listening.PeerProtocol, **more)
    flood(address, HEADS[head])
    for _ in range(3):
        with contextlib.closing(party.caller(address)) as calling:
            assert calling.call("/act", {}).facts == {"hello": "caller 0"}


def test_the_number_of_connections_follows_the_limit_of_open_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("resource.getrlimit", lambda _: (100, 100))
    with Listener(bind("127.0.0.1:0")) as listener:
        assert vars(listener)["_most"] == 50
    assert os.sysconf("SC_OPEN_MAX") > 0


type Serve = Callable[..., str]
ANSWERED = {"many empty arrays", "half a surrogate", "one key many times", "bare line feeds", "a folded header"}
"""Unusual but valid at this layer; the tests of the services check how a route handles such facts."""


def serve_party(serving: Serve, party: Party, answer: Callable[..., bytes], *, most: int = 0) -> str:
    route = Route(path="/act", callers=frozenset(party.names.values()), answer=answer, most=lambda words: most)
    more = {"ssl_context_factory": lambda *_: party.context, "ssl_certfile": "shown by the context"}
    return serving(application([route], names=party.names), http=protocol_for(len(party.names)), **more)


def test_hostile_bytes_of_a_party_are_refused_without_effect(
    serving: Serve, parties: Callable[[int], Party], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(listening, "HEAD", 0.5)
    monkeypatch.setattr(listening, "PATIENCE", 0.5)
    monkeypatch.setattr(listening, "_IDLE", 1)
    party, done = parties(1), Counter[str]()

    def answer(caller: str, words: Mapping[str, str], frame: Frame) -> bytes:
        done[caller] += 1
        return encode({})

    address = serve_party(serving, party, answer)
    cases = raw_requests("/act")
    with caplog.at_level(logging.INFO), ThreadPoolExecutor(8) as pool:
        came = dict(
            zip(cases, pool.map(lambda sent: exchanged(address, party.shown(), sent), cases.values()), strict=True)
        )
    assert done["caller 0"] == sum(statuses(came[name]).count(200) for name in cases)
    assert {name for name in cases if 200 in statuses(came[name])} == ANSWERED
    for name, message in came.items():
        assert set(statuses(message)) <= {100, 200, 400, 404, 405, REFUSED}, name
        assert len(statuses(message)) <= (1000 if name == "a thousand requests at once" else 2), name
        assert b"Traceback" not in message
        assert b"/etc" not in message
    assert [record for record in caplog.records if record.exc_info] == []
    with contextlib.closing(party.caller(address)) as calling:
        assert calling.call("/act", {}).facts == {}


def test_a_very_slow_message_frees_its_connection(
    serving: Serve, parties: Callable[[int], Party], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Send requests byte by byte: the service must end them after a time, although each byte arrives in time.

    A whole request would take two days.
    """
    monkeypatch.setattr(listening, "PATIENCE", 0.6)
    monkeypatch.setattr(listening, "HEAD", 0.5)
    party = parties(1)
    address = serve_party(serving, party, lambda *_: encode({}), most=1 << 20)

    def trickle() -> int:
        with party.connected(address) as made:
            made.sendall(b"POST /act HTTP/1.1\r\nHost: x\r\nContent-Length: 900000\r\n\r\n")
            for sent in range(200):
                try:
                    made.sendall(b"D")
                except OSError:
                    return sent
                time.sleep(0.05)
        return 200

    with ThreadPoolExecutor(2 * listening.AT_ONCE) as pool, contextlib.closing(party.caller(address)) as calling:
        slow = [pool.submit(trickle) for _ in range(listening.AT_ONCE)]
        time.sleep(0.2)
        # this call waits until the service has ended one of the slow requests
        assert calling.call("/act", {}).facts == {}
        assert max(each.result() for each in slow) < 200


def test_callers_that_use_all_their_connections_do_not_block_another_caller(
    serving: Serve, parties: Callable[[int], Party]
) -> None:
    """Hostile callers use all their connections: another caller must still be answered.

    Active connections are never closed in favor of others, so there must be room for more than the callers' limits.
    """
    four_and_one = parties(5)
    address = serve_party(serving, four_and_one, lambda *_: encode({}), most=1 << 20)
    with contextlib.ExitStack() as stack:
        for hostile in range(4):
            for _ in range(min(CONNECTIONS, MOST)):
                with contextlib.suppress(OSError):
                    made = stack.enter_context(four_and_one.connected(address, by=hostile))
                    made.sendall(b"POST /act HTTP/1.1\r\nHost: x\r\nContent-Length: 900000\r\n\r\nD")
        began = time.monotonic()
        with contextlib.closing(four_and_one.caller(address, by=4)) as calling:
            assert calling.call("/act", {}).facts == {}
        # waiting until another request ends would take at least HEAD seconds
        assert time.monotonic() - began < listening.HEAD


MATRIX = np.zeros((1000, 5), np.int64)
MATRIX[::20] = np.arange(250).reshape(50, 5) - 100
ARRAYS = {
    "words": np.arange(7, dtype=np.uint64) + np.uint64(2**63),
    "directions": MATRIX,
    "part": np.array([[0.5, -1.5]]),
    "empty": np.zeros((0, 4)),
}


def test_facts_and_arrays_are_decoded_bit_for_bit_and_aligned() -> None:
    frame = decode(encode({"round": 3, "names": ["a"]}, ARRAYS), most=100_000)
    assert frame.facts == {"round": 3, "names": ["a"]}
    assert list(frame.arrays) == list(ARRAYS)
    for name, array in ARRAYS.items():
        np.testing.assert_array_equal(frame.arrays[name], array)
        assert (frame.arrays[name].dtype, frame.arrays[name].flags.aligned) == (array.dtype, True)


def test_only_the_nonzero_rows_of_a_sparse_matrix_are_sent() -> None:
    """Encode a matrix with few nonzero rows: s rows of k columns take 8 k s + 4 s bytes."""
    dense = encode({}, {"directions": MATRIX + 1})
    assert len(encode({}, {"directions": MATRIX})) - len(dense) == (50 * 5 * 8 + 50 * 4) - MATRIX.nbytes - 2


def changed(**others: object) -> bytes:
    entry = {"name": "words", "type": "<u8", "shape": [2], "rows": None, **others}
    head = json.dumps({"arrays": [entry]}).encode()
    return MAGIC + len(head).to_bytes(4, "big") + head + bytes(16)


FRAMES_REFUSED = {
    "nothing": b"",
    "another magic": b"PICKL" + bytes(20),
    "a pickle": b"\x80\x04\x95" + bytes(20),
    "cut in the head": encode({"round": 1})[:-1],
    "cut in an array": encode({}, {"words": ARRAYS["words"]})[:-1],
    "one byte more": encode({}, {"words": ARRAYS["words"]}) + b"\0",
    "a head that is no object": MAGIC + (2).to_bytes(4, "big") + b"[]",
    "a head that is no JSON": MAGIC + (2).to_bytes(4, "big") + b"{]",
    "a long head": MAGIC + (LONGEST_HEAD + 1).to_bytes(4, "big") + bytes(LONGEST_HEAD + 1),
    "objects": changed(type="|O"),
    "another shape": changed(shape=[3]),
    "a negative shape": changed(shape=[-2]),
    "a boolean shape": changed(shape=[True]),
    "a huge shape": changed(shape=[2**30, 2**30]),
    "rows of a vector": changed(rows=1),
    "an unknown fact": changed(order="F"),
}


def test_the_valid_form_of_each_refused_frame_is_read() -> None:
    assert decode(changed(), most=1 << 20).arrays["words"].tolist() == [0, 0]


@pytest.mark.parametrize("case", FRAMES_REFUSED)
def test_a_malformed_frame_is_refused_in_one_line_without_its_content(case: str) -> None:
    with pytest.raises(FramesRefused, match="incomplete, too long or malformed"):
        decode(FRAMES_REFUSED[case], most=1 << 20)


def opened(frame: bytes) -> tuple[dict[str, Any], bytes]:
    start = len(MAGIC) + 4
    stop = start + int.from_bytes(frame[len(MAGIC) : start], "big")
    return json.loads(frame[start:stop]), frame[stop:]


def test_a_forged_frame_head_is_refused_or_read_exactly() -> None:
    """Forge a frame's head: it must be refused, or every array is read in the form that the head states.

    No part of a head is ignored.
    """
    honest, body = opened(encode({"round": 3, "names": ["a", "b"]}, ARRAYS))
    other, _ = opened(encode({"round": 4, "names": ["c"]}, {"shares": np.ones((2, 3)), "words": np.zeros(8, np.int64)}))
    count = 0
    for variant, forged in forgeries(honest, other):
        text = json.dumps(forged).encode()
        try:
            frame = decode(MAGIC + len(text).to_bytes(4, "big") + text + body, most=1 << 20)
        except FramesRefused as refusal:
            count += "\n" not in str(refusal)
            continue
        declared = {entry["name"]: (entry["type"], entry["shape"]) for entry in forged["arrays"]}
        assert {name: (array.dtype.str, [*array.shape]) for name, array in frame.arrays.items()} == declared, variant
        assert {**frame.facts, "arrays": forged["arrays"]} == forged, variant
    assert count > 40


def test_rows_in_another_order_or_beyond_the_matrix_are_refused() -> None:
    for places in ([1, 0], [0, 9], [1, 1]):
        head = json.dumps({"arrays": [{"name": "m", "type": "<i8", "shape": [9, 1], "rows": 2}]}).encode()
        body = np.array(places, "<u4").tobytes() + np.ones(2, "<i8").tobytes()
        with pytest.raises(FramesRefused):
            decode(MAGIC + len(head).to_bytes(4, "big") + head + body, most=1 << 20)


def test_a_frame_larger_than_planned_is_refused_before_decoding() -> None:
    frame = encode({}, {"directions": MATRIX})
    assert len(frame) < MATRIX.nbytes
    with pytest.raises(FramesRefused):
        decode(frame, most=MATRIX.nbytes - 1)
    assert decode(frame, most=MATRIX.nbytes).arrays["directions"].shape == MATRIX.shape


@given(st.binary(max_size=200), st.integers(0, 100))
def test_any_bytes_are_read_or_refused(noise: bytes, at: int) -> None:
    frame = encode({"round": 1}, {"words": ARRAYS["words"]})
    try:
        decode(frame[:at] + noise + frame[at + len(noise) :], most=OVERHEAD)
    except FramesRefused as refusal:
        assert "\n" not in str(refusal)  # noqa: PT017 - decoding and refusal are both valid


def test_facts_of_another_type_are_refused() -> None:
    frame = decode(encode({"round": True, "names": "a"}), most=0)
    for name, kind in (("round", int), ("names", list), ("absent", str)):
        with pytest.raises(FramesRefused, match=f"lacks {name}"):
            frame.fact(name, kind)
    with pytest.raises(FramesRefused, match="cannot be sent"):
        encode({}, {"bits": np.zeros(2, bool)})


def test_a_frame_without_planned_arrays_is_refused_before_any_is_made() -> None:
    """Decode a frame of few bytes that declares an array of 3 GB without rows: it must be refused before allocation."""
    head = json.dumps({"line": "no", "arrays": [{"name": "m", "type": "<i8", "shape": [20_000, 20_000], "rows": 0}]})
    with pytest.raises(FramesRefused, match="malformed"):
        decode(MAGIC + len(head).to_bytes(4, "big") + head.encode(), most=0)
