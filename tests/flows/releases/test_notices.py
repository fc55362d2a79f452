"""Notices: told once, sent until they are taken, signed, and to nobody but the webhook."""

import errno
import hashlib
import hmac
import json
import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from dpca_tasks.errors import InvalidInput
from flows.releases import notices
from flows.releases.notices import deliver_notices, give_notice
from flows.settings import cluster_settings
from storage.backends.claims import claim_file
from storage.errors import Unavailable
from tests.flows.arriving import listening


def give(home: Path, key: str = "one") -> bool:
    return give_notice(home, "release.held", key=key, about="people-map", facts={"artifact": "people-map@1"})


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notices, "PAUSES", (0.0, 0.0))


def test_a_notice_is_told_once_and_signed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with listening() as hook:
        monkeypatch.setenv("DPCA_WEBHOOK_URL", hook.url)
        monkeypatch.setenv("DPCA_WEBHOOK_SECRET", "key of the hook")
        assert (give(tmp_path), give(tmp_path), give(tmp_path, "two")) == (True, False, True)
    assert hook.told[0].items() >= {"event": "dpca.release.held", "artifact": "people-map@1"}.items()
    assert len(hook.told) == 2
    payload = json.dumps(hook.told[0]).encode()
    signed = hmac.new(b"key of the hook", payload, hashlib.sha256).hexdigest()
    assert hook.headers[0]["X-Dpca-Signature"] == f"sha256={signed}"
    assert hook.headers[0]["Idempotency-Key"] == hook.told[0]["id"] != hook.told[1]["id"]


def test_a_webhook_that_is_down_is_called_again_with_the_same_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with listening() as hook:
        monkeypatch.setenv("DPCA_WEBHOOK_URL", hook.url)
        hook.failures = 5
        assert give(tmp_path)
        assert (hook.told, len(hook.headers)) == ([], 3)
        assert deliver_notices(tmp_path) == 0
        assert deliver_notices(tmp_path) == 0
    assert len(hook.told) == 1
    assert len({headers["Idempotency-Key"] for headers in hook.headers}) == 1


def test_a_notice_that_is_refused_holds_back_none_of_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with listening() as hook:
        monkeypatch.setenv("DPCA_WEBHOOK_URL", hook.url)
        hook.failures = 100
        for key in "abcd":
            assert give(tmp_path, key)
        hook.failures = 0
        assert hook.told == []
        hook.refuses = refused = json.loads(hook.bodies[0])["id"]
        assert deliver_notices(tmp_path) == 1
        assert len(hook.told) == 3
        assert refused not in {told["id"] for told in hook.told}
        hook.refuses = None
        assert deliver_notices(tmp_path) == 0
    assert len(hook.told) == 4


def test_a_webhook_that_is_down_keeps_nobody_for_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with listening() as hook:
        monkeypatch.setenv("DPCA_WEBHOOK_URL", hook.url)
        hook.failures = 100
        for key in "abc":
            give(tmp_path, key)
        calls = len(hook.headers)
        monkeypatch.setattr(notices, "LONGEST", 0.0)
        assert deliver_notices(tmp_path) == 3
        assert len(hook.headers) == calls


def test_processes_that_deliver_at_once_call_the_webhook_once_for_a_notice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with listening() as hook:
        monkeypatch.setenv("DPCA_WEBHOOK_URL", hook.url)
        hook.failures = 3
        assert give(tmp_path)
        hook.seconds = 0.2
        with ThreadPoolExecutor(max_workers=4) as pool:
            [*pool.map(lambda _: deliver_notices(tmp_path), range(4))]
            [*pool.map(lambda _: give(tmp_path), range(4))]
    assert len(hook.told) == 1


def test_a_notice_that_was_told_and_taken_is_never_told_again_by_one_who_was_slow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    faster = list[bool]()

    def slow(path: Path, payload: bytes) -> bool:
        """Let another process tell the same just before."""
        monkeypatch.setattr(notices, "claim_file", claim_file)
        faster.append(give(tmp_path))
        return claim_file(path, payload)

    with listening() as hook:
        monkeypatch.setenv("DPCA_WEBHOOK_URL", hook.url)
        (tmp_path / notices.FOLDER).mkdir()
        monkeypatch.setattr(notices, "claim_file", slow)
        assert (give(tmp_path), faster) == (False, [True])
    assert len(hook.told) == 1


def test_of_many_that_tell_the_same_one_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with listening() as hook:
        monkeypatch.setenv("DPCA_WEBHOOK_URL", hook.url)
        with ThreadPoolExecutor(max_workers=8) as pool:
            assert sum(pool.map(lambda _: give(tmp_path), range(16))) == 1
        assert len(hook.told) == 1


def test_without_a_webhook_a_notice_is_told_and_none_is_left(tmp_path: Path) -> None:
    assert give(tmp_path)
    assert deliver_notices(tmp_path) == 0
    assert len([*tmp_path.rglob("*.taken")]) == 1


@pytest.mark.parametrize("url", ["http://hooks.example.com/secret-path", "ftp://127.0.0.1/secret-path", "secret-path"])
def test_an_address_that_others_could_read_is_refused_without_quoting_it(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DPCA_WEBHOOK_URL", url)
    with pytest.raises(InvalidInput, match="must begin with https://") as refused:
        cluster_settings()
    assert "secret-path" not in str(refused.value)


@pytest.mark.parametrize("answer", [b"no HTTP at all\r\n\r\n", b"HTTP/1.1 banana\r\n\r\n", b""])
def test_a_webhook_that_answers_no_http_fails_nothing_and_is_called_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: bytes
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor(max_workers=1) as pool:

        def babble() -> None:
            for _ in range(3):
                caller, _ = server.accept()
                with caller:
                    caller.recv(1 << 16)
                    caller.sendall(answer)

        server.settimeout(20)
        calls = pool.submit(babble)
        monkeypatch.setenv("DPCA_WEBHOOK_URL", f"http://127.0.0.1:{server.getsockname()[1]}/")
        assert give(tmp_path)
        calls.result(timeout=20)
    assert not [*tmp_path.rglob("*.taken")]


def test_an_unsafe_address_in_a_block_fails_no_release_and_keeps_the_notice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notices, "stored_secret", lambda _: "http://hooks.example.com/secret-path")
    assert give(tmp_path)
    assert not [*tmp_path.rglob("*.taken")]


def test_a_block_that_cannot_be_read_keeps_the_notice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def down(_: str) -> str:
        raise Unavailable("block dpca-webhook-url of Prefect cannot be read")

    monkeypatch.setattr(notices, "stored_secret", down)
    assert give(tmp_path)
    assert deliver_notices(tmp_path) == 1


def test_a_full_disk_that_cannot_note_a_delivery_is_named_and_the_notice_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses(*_: object) -> bool:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.delenv("DPCA_WEBHOOK_URL", raising=False)
    monkeypatch.setattr(notices, "_webhook", lambda: (None, None))
    with monkeypatch.context() as patch:
        patch.setattr(notices, "_taken", refuses)
        with pytest.raises(Unavailable, match="notices cannot be written"):
            give(tmp_path)
    assert len(list((tmp_path / "notices").glob("*.told"))) == 1
    assert deliver_notices(tmp_path) == 0
    assert len(list((tmp_path / "notices").glob("*.taken"))) == 1
