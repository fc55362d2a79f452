"""A runner releases through `dpca ledger serve`, and nothing that it opens lies where database and keys are."""

import json
import os
import shutil
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from flows import doctor
from flows.cli import main
from flows.parties.certificates import calling_context, make_identity, read_certificate
from flows.parties.listening import CONNECTIONS
from flows.remote_ledger import workspaces
from tests.docs.reader import DOCS, shell_blocks
from tests.flows.conftest import FIT, Command, isolate
from tests.flows.remote_ledger.apart import PEOPLE, SECRET, move_away


@dataclass(frozen=True, kw_only=True)
class Served:
    """A home whose ledger another process holds, and what that holds alone."""

    home: Path
    keys: Path
    address: str
    secret: Path
    private: dict[str, str] = field(repr=False)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory, ready_home: Path) -> Iterator[Served]:
    """The service of a copy of a home with data and budget."""
    root = tmp_path_factory.mktemp("apart")
    home, keys = root / "home", root / "tls"
    shutil.copytree(ready_home, home)
    private = move_away(home, root / SECRET)
    make_identity("stranger", keys)
    making, serving, _ = shell_blocks(DOCS / "how-to" / "remote-ledger.md")
    for line in making.splitlines():
        assert main([*line.replace("--folder tls", f"--folder {keys}").split()[1:]]) == 0
    written, command = serving.split("END\n")
    config = written.partition("END'\n")[2]
    assert "127.0.0.1:8790" in config
    (keys / "ledger.yaml").write_text(config.replace(":8790", ":0"))
    environment = {name: value for name, value in os.environ.items() if not name.startswith("DPCA_")} | private
    words = [sys.executable, "-m", "flows.cli", *command.replace("tls/", f"{keys}/").split()[1:]]
    with subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, text=True) as service:
        try:
            assert service.stdout is not None
            address = service.stdout.readline().removeprefix("listening at ").strip()
            assert address, "the service did not start"
            yield Served(home=home, keys=keys, address=f"https://{address}", secret=root / SECRET, private=private)
        finally:
            service.terminate()


@pytest.fixture
def become(served: Served, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """Let this process be a client: its settings name the ledger and its own key, and nothing of the database."""
    opened = []
    connect = workspaces.connect.__wrapped__

    def remembered(*words: Any) -> Any:
        opened.append(connect(*words))
        return opened[-1]

    def be(name: str) -> None:
        isolate(monkeypatch, home=served.home)
        for setting, value in {
            **{"URL": served.address, "CERT": served.keys / "ledger.pem", "KEY": served.keys / f"{name}.key"},
        }.items():
            monkeypatch.setenv(f"DPCA_LEDGER_{setting}", str(value))

    monkeypatch.setattr(workspaces, "connect", remembered)
    monkeypatch.setattr("flows.remote_ledger.client.PAUSES", ())
    yield be
    for connection in opened:
        connection.caller.close()


_watched: list[str] = []
_where: list[str] = []


def _note(event: str, arguments: tuple[Any, ...]) -> None:
    if _where and event in ("open", "sqlite3.connect", "os.listdir", "os.scandir"):
        path = str(arguments[0])
        if path.startswith(_where[0]) or event == "sqlite3.connect":
            _watched.append(f"{event} {path}")


sys.addaudithook(_note)


def test_a_runner_holds_no_database(served: Served, become: Callable[[str], None], dpca: Command) -> None:
    become("runner")
    _where.append(str(served.secret))
    try:
        done = dpca(*FIT, "--direct", "--yes", "--json")
        shown = dpca("budget", "show", PEOPLE, "--json")
        assert _watched == []
        os.listdir(served.secret)  # noqa: PTH208 - the watch sees whoever looks
        assert _watched == [f"os.listdir {served.secret}"]
    finally:
        _where.clear()
    assert done.status == 0, done
    assert not any(name in os.environ for name in ("DPCA_DATABASE_URL", "DPCA_KEY_FOLDER"))
    report, seen = json.loads(done.out), json.loads(shown.out)
    assert (report["artifact"], report["reused"], report["spent"]) == ("sub@1", False, seen["spent"])
    assert [row["artifact"] for row in seen["releases"]] == ["sub@1"]
    with pytest.MonkeyPatch.context() as patch:
        isolate(patch, home=served.home)
        for name, value in served.private.items():
            patch.setenv(name, value)
        assert json.loads(dpca("budget", "show", PEOPLE, "--json").out) == seen
    assert not list((served.home / "staging").glob("*"))


def test_a_refusal_comes_back_as_it_was(become: Callable[[str], None], dpca: Command) -> None:
    become("runner")
    more = [word if word != "1" else "2.5" for word in FIT]
    refused = dpca(*more, "--direct", "--yes", "--run-key", "more")
    assert refused.complaint(3).startswith(f"dpca: budget {PEOPLE!r}")
    assert "nobody" in dpca("budget", "show", "nobody").complaint(1)


def test_a_reader_spends_nothing_and_a_stranger_sees_nothing(become: Callable[[str], None], dpca: Command) -> None:
    become("reader")
    assert dpca("budget", "show", PEOPLE).status == 0
    assert "may not ask that here" in dpca(*FIT, "--direct", "--yes").complaint(1)
    become("stranger")
    line = dpca("budget", "show", PEOPLE).complaint(1)
    assert "certificates" in line or "does not answer" in line  # the reason, or a closed connection


def test_doctor_asks_the_ledger_who_it_is(
    served: Served, become: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "_AFTER", ())
    become("reader")
    found = {finding.check: finding for finding in doctor.examine()}
    told = [found[check] for check in ("ledger", "certificate", "ledger's version", "clock")]
    assert [finding.verdict for finding in told] == ["ok"] * 4
    assert told[0].found.startswith(f"{served.address} answers, ledger ")
    assert told[1].found.startswith(f"reader of {PEOPLE}; ours ends in 36")
    assert not {"database", "keys", "witness", "registry"} & set(found)
    monkeypatch.setattr(workspaces, "version", lambda _: "0.0.1")
    monkeypatch.setattr(workspaces, "days_left", lambda _: 3.0)
    monkeypatch.setattr(time, "time", lambda now=time.time: now() + 60)
    assert [finding.verdict for finding in workspaces.check_remote_ledger()] == ["ok", "note", "fix", "fix"]


def test_doctor_says_in_a_line_that_the_ledger_does_not_answer(
    become: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "_AFTER", ())
    become("stranger")
    (told,) = [finding for finding in doctor.examine() if finding.check == "remote ledger"]
    assert told.verdict == "fix"
    assert "certificates" in told.found or "does not answer" in told.found


def connected(served: Served, context: ssl.SSLContext) -> ssl.SSLSocket:
    host, _, port = served.address.removeprefix("https://").rpartition(":")
    return context.wrap_socket(socket.create_connection((host, int(port)), timeout=20))


def is_closed(shown: ssl.SSLSocket, *, after: float) -> bool:
    shown.settimeout(after)
    try:
        return shown.recv(1) == b""
    except TimeoutError:
        return False
    except OSError:
        return True


def test_a_caller_without_certificate_gets_no_answer(served: Served) -> None:
    anybody = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    anybody.check_hostname, anybody.verify_mode = False, ssl.CERT_NONE
    with connected(served, anybody) as bare:
        assert is_closed(bare, after=20)
    older = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    older.check_hostname, older.verify_mode = False, ssl.CERT_NONE
    older.maximum_version = ssl.TLSVersion.TLSv1_2  # with renegotiation
    with pytest.raises(ssl.SSLError, match=r"EOF|ALERT"):
        connected(served, older)


def test_one_client_holds_so_many_connections_and_keeps_nobody_out(
    served: Served, become: Callable[[str], None], dpca: Command
) -> None:
    certificate, key = served.keys / "runner.pem", served.keys / "runner.key"
    context = calling_context(certificate=certificate, key=key, peer=read_certificate(served.keys / "ledger.pem"))
    with ExitStack() as held:
        idle = [held.enter_context(connected(served, context)) for _ in range(CONNECTIONS + 1)]
        assert is_closed(idle[-1], after=20)
        assert not is_closed(idle[0], after=0.01)
        become("reader")
        assert dpca("budget", "show", PEOPLE).status == 0
