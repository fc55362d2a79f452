"""What no client of ours sends gets no answer but a refusal, does nothing, and leaves others answered."""

import contextlib
import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor

import pytest

from flows.parties import connections, listening
from flows.parties.calling import REFUSED
from flows.parties.frames import Frame, encode
from flows.parties.listening import CONNECTIONS, Route, application, protocol_for
from tests.flows.parties.conftest import MOST, Party
from tests.flows.parties.raw_requests import exchanged, raw_requests, statuses

type Serve = Callable[..., str]
ANSWERED = {"many empty arrays", "half a surrogate", "one key many times", "bare line feeds", "a folded header"}
"""Odd, but sound at this layer: what a route does with such facts is tested at the services."""


def serve_party(serving: Serve, party: Party, answer: Callable[..., bytes], *, most: int = 0) -> str:
    route = Route(path="/act", callers=frozenset(party.names.values()), answer=answer, most=lambda words: most)
    more = {"ssl_context_factory": lambda *_: party.context, "ssl_certfile": "shown by the context"}
    return serving(application([route], names=party.names), http=protocol_for(len(party.names)), **more)


def test_no_bytes_of_a_party_do_anything_but_be_refused(
    serving: Serve, parties: Callable[[int], Party], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(connections, "HEAD", 0.5)
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
    for name, said in came.items():
        assert set(statuses(said)) <= {100, 200, 400, 404, 405, REFUSED}, name
        assert len(statuses(said)) <= (1000 if name == "a thousand requests at once" else 2), name
        assert b"Traceback" not in said
        assert b"/etc" not in said
    assert [record for record in caplog.records if record.exc_info] == []
    with contextlib.closing(party.caller(address)) as calling:
        assert calling.ask("/act", {}).facts == {}


def test_a_message_that_trickles_gives_its_place_back(
    serving: Serve, parties: Callable[[int], Party], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each byte comes in time, and the whole would take two days."""
    monkeypatch.setattr(listening, "PATIENCE", 0.6)
    monkeypatch.setattr(connections, "HEAD", 0.5)
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
        assert calling.ask("/act", {}).facts == {}  # waits until a place is free again
        assert max(each.result() for each in slow) < 200


def test_callers_who_ask_at_all_their_connections_leave_room_for_another(
    serving: Serve, parties: Callable[[int], Party]
) -> None:
    """No connection that is answered is ended for another one, so all callers together may not hold every place."""
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
            assert calling.ask("/act", {}).facts == {}
        assert time.monotonic() - began < 5
