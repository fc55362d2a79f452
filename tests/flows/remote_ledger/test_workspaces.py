"""Releases through `dpca ledger serve`: they equal releases with a local ledger.

The runner opens no file next to the database and the keys. Releases are equal, whatever answers are lost and wherever a
release is interrupted.
"""

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

from dpca import errors
from dpca.backends import atomic_files
from dpca.errors import BudgetExhausted, Corrupt, Finished, NotFound, Refused, Unavailable
from flows import doctor
from flows.cli import main
from flows.parties.calling import REFUSED
from flows.parties.certificates import calling_context, make_identity, read_certificate
from flows.parties.listening import CONNECTIONS
from flows.remote_ledger import remote_workspace
from flows.remote_ledger.messages import PROTOCOL, written
from flows.remote_ledger.remote_workspace import RemoteKeys, refusal_of
from tests.docs.reader import DOCS, shell_blocks
from tests.flows.conftest import FIT, Command, isolate
from tests.flows.remote_ledger.conftest import PEOPLE, SECRET, RemoteHome, move_away


@dataclass(frozen=True, kw_only=True)
class Served:
    """A home, the address of the process that serves its ledger, and that process's private settings."""

    home: Path
    keys: Path
    address: str
    secret: Path
    private: dict[str, str] = field(repr=False)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory, ready_home: Path) -> Iterator[Served]:
    """Yield a service for the ledger of a copied home with data and budget."""
    root = tmp_path_factory.mktemp("remote")
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
    """Return a function that configures this process as a client, with the ledger's address and no database."""
    opened = []
    connect = remote_workspace.connect.__wrapped__

    def remembered(*words: Any) -> Any:
        opened.append(connect(*words))
        return opened[-1]

    def be(name: str) -> None:
        isolate(monkeypatch, home=served.home)
        for setting, value in {
            **{"URL": served.address, "CERT": served.keys / "ledger.pem", "KEY": served.keys / f"{name}.key"},
        }.items():
            monkeypatch.setenv(f"DPCA_LEDGER_{setting}", str(value))

    monkeypatch.setattr(remote_workspace, "connect", remembered)
    monkeypatch.setattr("flows.remote_ledger.remote_workspace.PAUSES", ())
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


def test_a_runner_opens_no_database(served: Served, become: Callable[[str], None], dpca: Command) -> None:
    become("runner")
    _where.append(str(served.secret))
    try:
        done = dpca(*FIT, "--direct", "--yes", "--json")
        shown = dpca("budget", "show", PEOPLE, "--json")
        assert _watched == []
        os.listdir(served.secret)  # noqa: PTH208 - tests that the audit hook records accesses
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


def test_a_refusal_is_returned_unchanged(become: Callable[[str], None], dpca: Command) -> None:
    become("runner")
    more = [word if word != "1" else "2.5" for word in FIT]
    refused = dpca(*more, "--direct", "--yes", "--run-key", "more")
    assert refused.complaint(3).startswith(f"dpca: budget {PEOPLE!r}")
    assert "nobody" in dpca("budget", "show", "nobody").complaint(1)


def test_a_reader_cannot_spend_and_an_unknown_client_cannot_read(become: Callable[[str], None], dpca: Command) -> None:
    become("reader")
    assert dpca("budget", "show", PEOPLE).status == 0
    assert "may not send this request" in dpca(*FIT, "--direct", "--yes").complaint(1)
    become("stranger")
    line = dpca("budget", "show", PEOPLE).complaint(1)
    # the client reports the service's reason, or a closed connection
    assert "certificates" in line or "does not answer" in line


def test_doctor_reports_the_identity_of_the_remote_ledger(
    served: Served, become: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "_AFTER", ())
    become("reader")
    found = {finding.check: finding for finding in doctor.examine()}
    reported = [found[check] for check in ("ledger", "certificate", "ledger's version", "clock")]
    assert [finding.verdict for finding in reported] == ["ok"] * 4
    assert reported[0].found.startswith(f"{served.address} answers, ledger ")
    assert reported[1].found.startswith(f"reader of {PEOPLE}; this certificate expires in 36")
    assert not {"database", "keys", "witness", "registry"} & set(found)
    monkeypatch.setattr(remote_workspace, "version", lambda _: "0.0.1")
    monkeypatch.setattr(remote_workspace, "days_left", lambda _: 3.0)
    monkeypatch.setattr(time, "time", lambda now=time.time: now() + 60)
    assert [finding.verdict for finding in remote_workspace.check_remote_ledger()] == ["ok", "note", "fix", "fix"]


def test_doctor_reports_an_unreachable_ledger_in_one_line(
    become: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "_AFTER", ())
    become("stranger")
    (reported,) = [finding for finding in doctor.examine() if finding.check == "remote ledger"]
    assert reported.verdict == "fix"
    assert "certificates" in reported.found or "does not answer" in reported.found


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


def test_the_connections_of_one_client_are_limited(
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


ROUTES = (
    *("identify", "budget", "statement", "quote", "find", "current", "snapshot", "alerts", "reserve", "release"),
    *("begin", "key", "step", "keep", "publish"),
)


class Stopped(Exception):
    """Exception that simulates a killed process."""


def test_a_release_succeeds_if_every_answer_is_lost_once(remote: RemoteHome, dpca: Command) -> None:
    remote.caller.cut = set(ROUTES)
    done = dpca(*FIT, "--direct", "--yes", "--json")
    assert done.status == 0, done
    assert sorted(remote.caller.lost) == sorted(ROUTES)
    (release,) = remote.ledger.statement(PEOPLE).releases
    assert release.state == "committed"
    names = remote.journal()
    for name in ("release_reserved", "release_begun", "release_committed", "version_published"):
        assert names.count(name) == 1, name
    assert names.count("step_kept") == 3, "one for each round"
    remote.ledger.verify()
    assert "nothing was spent" in dpca(*FIT, "--direct", "--yes").err
    shown = dpca("budget", "show", PEOPLE, "--json").out
    assert release.id in shown
    assert '"sub@1"' in shown
    assert dpca("budget", "history", PEOPLE).status == 0


@pytest.mark.parametrize("point", ["keep.row_committed", "commit.row_written"])
def test_a_stopped_release_is_resumed(
    remote: RemoteHome, dpca: Command, home: Path, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    def stop(reached: str) -> None:
        if reached == point:
            raise Stopped

    monkeypatch.setattr(atomic_files, "hook", stop)
    assert dpca(*FIT, "--direct", "--yes").status == 1
    monkeypatch.setattr(atomic_files, "hook", None)
    (release,) = remote.ledger.statement(PEOPLE).releases
    assert release.state == "noising"
    assert list((home / "staging" / release.id).iterdir())
    again = dpca(*FIT, "--direct", "--yes")
    assert again.status == 0, again
    (release,) = remote.ledger.statement(PEOPLE).releases
    assert (release.state, remote.journal().count("step_kept")) == ("committed", 3)
    assert not (home / "staging" / release.id).exists()


def test_leftover_steps_of_an_ended_release_are_removed(remote: RemoteHome, dpca: Command, home: Path) -> None:
    assert dpca(*FIT, "--direct", "--yes").status == 0
    (release,) = remote.ledger.statement(PEOPLE).releases
    ours, others = home / "staging" / release.id, home / "staging" / ("0" * 32)
    for folder in (ours, others):
        folder.mkdir(parents=True)
    assert dpca(*FIT, "--direct", "--yes").status == 0
    assert (ours.exists(), others.exists()) == (False, True)


def test_a_release_without_privacy_is_refused_on_a_remote_ledger(remote: RemoteHome, dpca: Command) -> None:
    words = [word for word in FIT if word not in ("--epsilon", "1", "--delta", "1e-6")]
    line = dpca(*words, "--mechanism", "non_private", "--i-know-this-is-not-private", "--direct", "--yes").complaint(1)
    assert "a remote ledger does not accept it" in line
    assert remote.ledger.statement(PEOPLE).releases == ()


def test_commands_that_need_the_database_are_refused_and_create_none(
    remote: RemoteHome, dpca: Command, home: Path
) -> None:
    assert dpca(*FIT, "--direct", "--yes").status == 0
    for words in (
        ("dataset", "list"),
        ("budget", "open", PEOPLE, "--epsilon", "9", "--delta", "1e-6"),
        ("budget", "abandon", "0" * 32),
        ("stream", "list"),
        ("registry", "promote", "sub@1", "champion"),
        ("backup", "create", "copy"),
    ):
        ended = dpca(*words)
        assert ended.status == 1, ended
        assert "run it where `dpca ledger serve` runs" in ended.err
    assert not list(home.glob("*.sqlite*"))


def test_settings_that_contradict_a_remote_ledger_are_refused(
    remote: RemoteHome, dpca: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DPCA_DATABASE_URL", "sqlite:////somewhere")
    assert "are both set" in dpca("budget", "show", PEOPLE).complaint(1)
    monkeypatch.delenv("DPCA_DATABASE_URL")
    monkeypatch.setenv("DPCA_LEDGER_URL", "http://127.0.0.1:1")
    assert "must be https" in dpca("budget", "show", PEOPLE).complaint(1)
    monkeypatch.setenv("DPCA_LEDGER_URL", "https://127.0.0.1:1")
    monkeypatch.delenv("DPCA_LEDGER_KEY")
    assert "needs DPCA_LEDGER_CERT" in dpca("budget", "show", PEOPLE).complaint(1)


def test_refusals_keep_their_type_and_text() -> None:
    for kind in (BudgetExhausted, Finished, NotFound, Refused, Unavailable, errors.Conflict, errors.Invalid):
        found = refusal_of(REFUSED, written({"kind": kind.__name__, "line": "what, why, next."}))
        assert (type(found), str(found)) == (kind, "what, why, next.")
    for failed in (
        refusal_of(500, b"its log names the kind of failure"),
        refusal_of(REFUSED, written({"kind": "SystemExit", "line": "its log names the kind of failure"})),
    ):
        assert type(failed) is Refused
        assert "its log names the kind of failure" in str(failed)


def test_another_version_and_another_key_are_refused(
    remote: RemoteHome, dpca: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Other:
        def call(self, name: str, kind: object, **_: object) -> str:
            return bytes(32).hex()

    with pytest.raises(Corrupt, match="does not belong to release"):
        RemoteKeys(Other()).read("0" * 32)  # type: ignore[arg-type]
    monkeypatch.setattr(remote_workspace, "PROTOCOL", PROTOCOL + 1)
    assert "another version" in dpca("budget", "show", PEOPLE).complaint(1)


def test_a_ledger_that_stays_silent_is_unavailable(remote: RemoteHome, dpca: Command) -> None:
    remote.caller.cut, remote.caller.for_good = {"statement"}, True
    assert "does not answer" in dpca("budget", "show", PEOPLE).complaint(1)


@pytest.mark.parametrize(
    "more",
    [
        ("--clip-norm", "quantile:0.9"),
        ("--center", "private", "--row-policy", "normalise", "--components", "auto"),
        ("--refine", "eb"),
    ],
    ids=" ".join,
)
def test_requests_of_every_form_are_published_under_another_name_too(
    remote: RemoteHome, dpca: Command, more: tuple[str, ...]
) -> None:
    """Publish requests of several forms under another name: the ledger must accept the facts that artifacts state."""
    done = dpca(*FIT, *more, "--direct", "--yes")
    assert done.status == 0, done
    again = dpca(*FIT, *more, "--publish", "other", "--direct", "--yes")
    assert "nothing was spent" in again.err, again
    assert remote.journal().count("version_published") == 2
