"""A caller is told one line of a refusal, not where things are; one that is slow or greedy keeps nobody waiting."""

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping
from typing import Any

import httpx
import pytest
from sqlalchemy.exc import IntegrityError
from starlette.types import Receive, Scope, Send

from dpca_tasks.errors import InvalidInput
from flows.parties import listening
from flows.parties.calling import REFUSED, UNUSABLE
from flows.parties.frames import Frame, decode, encode
from flows.parties.listening import AT_ONCE, PEER, Route, application
from flows.parties.refusals import FAILED
from storage.errors import Conflict, Corrupt, Refused, StorageError, Unavailable

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
    """Return who asks at some routes, with a certificate."""
    inside = application(list(routes), names=NAMES)

    async def shown(scope: Scope, receive: Receive, send: Send) -> None:
        await inside({**scope, PEER: by}, receive, send)

    return httpx.AsyncClient(transport=httpx.ASGITransport(shown), base_url="https://service")


def failing(error: Exception) -> Route:
    def answer(caller: str, words: Mapping[str, str], frame: Frame) -> bytes:
        raise error

    return Route(path="/act", callers=frozenset({"runner"}), answer=answer)


def asked(route: Route, *, by: str = "a print") -> tuple[int, Mapping[str, Any]]:
    async def ask() -> httpx.Response:
        async with client(route, by=by) as asking:
            return await asking.post("/act", content=encode({}))

    answer = asyncio.run(ask())
    return answer.status_code, decode(answer.content, most=0).facts


@pytest.mark.parametrize("hidden", HIDDEN)
def test_nobody_is_told_where_things_are(hidden: str, caplog: pytest.LogCaptureFixture) -> None:
    error, status = HIDDEN[hidden]
    with caplog.at_level(logging.INFO, logger="dpca.flows"):
        found, said = asked(failing(error))
    assert found == status
    assert "private" not in str(said)
    assert said["line"].endswith(".")
    (line,) = [record.__dict__["facts"] for record in caplog.records]
    assert line["kind"] == type(error).__name__
    if isinstance(error, StorageError):
        assert line["reason"] == str(error)
    else:
        assert said["line"] == FAILED
        assert "private" not in str(line)
        assert line["at"].startswith("test_listening.py:")


def test_a_rule_is_told_as_it_is() -> None:
    for error in (
        Refused("release 0a is closed; ask again under another --run-key."),
        Conflict("run key 'people/0a' stands for another request; use another --run-key."),
        InvalidInput("epsilon=-1 must be positive; state more\nthan 0."),
    ):
        status, said = asked(failing(error))
        assert (status, said) == (REFUSED, {"kind": type(error).__name__, "line": str(error).replace("\n", " ")})


def test_a_certificate_that_may_not_ask_is_refused_before_it_is_read() -> None:
    for by in ("another print", "a stranger's", ""):
        status, said = asked(failing(KeyError()), by=by)
        assert (status, said["kind"]) == (REFUSED, "Refused")
        assert "this certificate may not ask that" in said["line"]


def test_who_stops_in_a_message_gives_the_place_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listening, "PATIENCE", 0.05)
    done: list[str] = []

    def answer(caller: str, words: Mapping[str, str], frame: Frame) -> bytes:
        done.append(caller)
        return encode({})

    async def stuck() -> AsyncIterator[bytes]:
        yield encode({})[:3]
        await asyncio.sleep(60)

    async def ask() -> list[httpx.Response]:
        async with client(Route(path="/act", callers=frozenset({"runner"}), answer=answer)) as asking:
            slow = [asking.post("/act", content=stuck()) for _ in range(AT_ONCE)]
            return await asyncio.wait_for(asyncio.gather(*slow, asking.post("/act", content=encode({}))), 20)

    *slow, quick = asyncio.run(ask())
    assert {answer.status_code for answer in slow} == {REFUSED}
    assert "stopped for" in decode(slow[0].content, most=0).facts["line"]
    assert (quick.status_code, done) == (200, ["runner"])


def test_one_caller_keeps_no_other_waiting() -> None:
    """However much one asks at once, no more of it is read than its places."""
    route = Route(path="/act", callers=frozenset({"runner", "reader"}), answer=lambda *_: encode({}))
    inside = application([route], names=NAMES)
    begun: list[str] = []
    all_in, go_on = asyncio.Event(), asyncio.Event()

    async def ask(by: str) -> None:
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
        many = [asyncio.create_task(ask("a print")) for _ in range(3 * AT_ONCE)]
        await asyncio.wait_for(all_in.wait(), 20)
        await asyncio.wait_for(ask("another print"), 20)
        assert begun.count("a print") == AT_ONCE
        go_on.set()
        await asyncio.wait_for(asyncio.gather(*many), 20)

    asyncio.run(everybody())
    assert begun.count("a print") == 3 * AT_ONCE
