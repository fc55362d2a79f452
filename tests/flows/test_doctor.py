"""Command ``dpca doctor``: it finds problems that would stop a run, states how to fix them, and changes nothing."""

import importlib.metadata
import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import pytest

from dpca.registry.pointers import Pointer
from flows.cli import main
from flows.doctor import examine, shown_address
from flows.reports.terminal import Finding
from storage.ledger import checks
from storage.workspace import Workspace
from tests.storage.releasing import open_budget, publish
from tests.web_server import issue, serve_folder


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "home"
    folder.mkdir(mode=0o700)
    monkeypatch.setenv("DPCA_HOME", str(folder))
    monkeypatch.setenv("DPCA_CLUSTER", "none")
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name in ("DPCA_STORE_URL", "DPCA_DATABASE_URL", "DPCA_KEY_FOLDER", "PREFECT_API_URL"):
        monkeypatch.delenv(name, raising=False)
    return folder


def verdicts() -> dict[str, Finding]:
    return {finding.check: finding for finding in examine()}


def test_a_valid_home_has_no_finding(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--json"]) == 0
    found = {row["check"]: row["verdict"] for row in json.loads(capsys.readouterr().out)}
    assert found.pop("prefect") in ("note", "ok")
    assert set(found.values()) == {"ok"}
    assert not list(home.glob("staging/*"))
    assert not list(home.glob("doctor*"))


@pytest.mark.parametrize(
    ("name", "value", "check"),
    [
        ("DPCA_WORKERS", "none", "settings"),
        ("DPCA_STORE_URL", "http://store", "store"),
        ("DPCA_DATABASE_URL", "postgresql+psycopg://x@127.0.0.1:1/x", "database"),
        ("DPCA_STORE_URL", "s3://bucket/prefix", "store"),
        ("DPCA_HOME", "/dev/null/home", "home"),
        ("DPCA_KEY_FOLDER", "/dev/null/keys", "database"),
        ("DPCA_STATE_FOLDER", "/dev/null/state", "database"),
        ("DPCA_CLUSTER", "tcp://198.51.100.7:8786", "cluster"),
        ("DPCA_CLUSTER", "tsl://scheduler:8786", "cluster"),
        ("DPCA_CLUSTER", "slurm", "cluster"),
        ("PREFECT_LOGGING_EXTRA_LOGGERS", "numpy,dpca.flows", "logging"),
        ("PREFECT_API_URL", "http://127.0.0.1:1/api", "prefect"),
    ],
)
def test_problems_that_would_stop_a_run_are_named_with_their_fix(
    name: str, value: str, check: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(name, value)
    finding = verdicts()[check]
    assert finding.verdict == "fix"
    assert finding.found
    assert finding.advice
    assert main(["doctor"]) == 1
    printed = capsys.readouterr().out
    assert f"fix   {check}" in printed
    assert sum(line.startswith("fix ") for line in printed.splitlines()) == 1, "a cause is told once"


@pytest.mark.parametrize(
    ("name", "value", "noted"),
    [
        ("DPCA_DATABASE_URL", "postgresql+psycopg://x@db.invalid:1/x?hostaddr=127.0.0.1", True),
        ("DPCA_DATABASE_URL", "postgresql+psycopg://x@db.invalid:1/x?hostaddr=127.0.0.1&sslmode=require", True),
        (
            "DPCA_DATABASE_URL",
            "postgresql+psycopg://x@/x?host=127.0.0.1:1&host=db.invalid:1&hostaddr=127.0.0.1,127.0.0.1",
            True,
        ),
        ("DPCA_DATABASE_URL", "postgresql+psycopg://x@/x?host=127.0.0.1:1&host=[::1]:1", False),
        ("DPCA_DATABASE_URL", "postgresql+psycopg://x@/x?host=/var/run/none", False),
        ("DPCA_DATABASE_URL", "postgresql+psycopg://x@127.0.0.1:1/x", False),
        ("DPCA_DATABASE_URL", "postgresql+psycopg://x@db.invalid:1/x?hostaddr=127.0.0.1&sslmode=verify-full", False),
        ("DPCA_DATABASE_URL", "postgresql+psycopg://x@db.invalid:port/x", False),
        ("AWS_ENDPOINT_URL", "http://s3.invalid:9000", True),
        ("AWS_ENDPOINT", "http://127.0.0.1.invalid", True),
        ("AWS_ENDPOINT_URL", "http://127.0.0.1:9000", False),
        ("AWS_ENDPOINT_URL", "https://s3.invalid:9000", False),
    ],
)
def test_a_database_or_store_that_may_be_reached_in_clear_text_is_noted(
    name: str, value: str, *, noted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, value)
    finding = verdicts().get("transport")
    assert (finding is not None) == noted
    assert finding is None or (finding.verdict, bool(finding.advice)) == ("note", True)


def test_a_witness_inside_the_home_is_reported(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "separate witness" not in verdicts()
    monkeypatch.setenv("DPCA_STATE_FOLDER", str(home / "state"))
    finding = verdicts()["separate witness"]
    assert finding.verdict == "note"
    assert "DPCA_STATE_FOLDER" in finding.advice
    assert main(["doctor"]) == 0


def test_a_ledger_without_a_rehearsed_backup_is_noted(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DPCA_STATE_FOLDER", str(tmp_path / "state"))
    ledger = Workspace.open().ledger
    open_budget(ledger)
    assert "backup" not in verdicts(), "nothing was spent yet"
    publish(ledger)
    assert verdicts()["backup"].verdict == "note"
    assert main(["backup", "create", str(tmp_path / "backup")]) == 0
    assert (verdicts()["backup"].verdict, "rehearse" in verdicts()["backup"].advice) == ("note", True)
    assert main(["backup", "rehearse", str(tmp_path / "backup")]) == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith("restored on sqlite in ")
    assert verdicts()["backup"].verdict == "ok"
    (tmp_path / "backup" / "backup.json").unlink()
    assert main(["backup", "verify", str(tmp_path / "backup")]) == 1
    assert capsys.readouterr().err.startswith("dpca: ")


def test_a_registry_that_contradicts_the_ledger_is_named(home: Path) -> None:
    ledger = Workspace.open().ledger
    open_budget(ledger)
    digest = publish(ledger)
    assert verdicts()["registry"].verdict == "ok"
    path = home / "registry" / "artifacts" / digest / "manifest.json"
    path.write_text(path.read_text().replace('"delta"', '"Delta"').replace("1.0", "2.0"))
    assert verdicts()["registry"].verdict == "fix"


def test_doctor_states_which_old_entries_it_checked_and_all_checks_everything(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checks, "PART", 8)
    ledger = Workspace.open().ledger
    open_budget(ledger)
    for run in range(3):
        publish(ledger, f"run {run}")
    assert "every row agrees with it" in verdicts()["ledger"].found
    found = verdicts()["ledger"].found
    assert "events 1 to 8 agree" in found
    assert "dpca doctor --all" in found
    assert main(["doctor", "--all"]) == 0
    assert {finding.check: finding for finding in examine(everything=True)}["ledger"].found.endswith(
        "every row agrees with it"
    )


def test_damaged_pointer_files_of_any_form_are_rewritten(home: Path) -> None:
    ledger = Workspace.open().ledger
    open_budget(ledger)
    publish(ledger)
    pointer = home / Pointer.path("map")
    sound, status = pointer.read_bytes(), pointer.stat()
    pointer.write_bytes(sound.replace(b"1", b"2", 1))
    os.utime(pointer, ns=(status.st_atime_ns, status.st_mtime_ns))
    Workspace.open()
    assert pointer.read_bytes() != sound, "an opening goes by size and time"
    assert verdicts()["registry"].verdict == "ok"
    assert pointer.read_bytes() == sound


def test_a_server_that_refuses_the_password_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with answering(401) as address:
        monkeypatch.setenv("PREFECT_API_URL", address)
        finding = verdicts()["prefect"]
    assert (finding.verdict, finding.found) == ("fix", f"{address} answers 401")
    assert "PREFECT_API_AUTH_STRING" in finding.advice


def test_prefects_server_is_checked_with_the_certificate_authority_of_its_clients(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = issue(tmp_path / "tls")
    (tmp_path / "admin").mkdir()
    (tmp_path / "admin" / "version").touch()
    with serve_folder(tmp_path, tls=files) as server:
        monkeypatch.setenv("PREFECT_API_URL", server.url)
        assert verdicts()["prefect"].verdict == "fix"
        monkeypatch.setenv("PREFECT_API_SSL_CERT_FILE", str(files.ca))
        assert verdicts()["prefect"].verdict == "ok"


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("postgresql+psycopg://host/db?user=me&password=s3cret&sslmode=require", "postgresql+psycopg://host/db"),
        ("postgresql+psycopg://me:s3cret@host:5432/db", "postgresql+psycopg://me:***@host:5432/db"),
        ("postgresql+psycopg:///db?host=/run&passfile=s3cret", "postgresql+psycopg:///db"),
        ("https://me:s3cret@prefect:4200/api?token=s3cret#s3cret", "https://me:***@prefect:4200/api"),
        ("sqlite:////home/dpca.sqlite", "sqlite:////home/dpca.sqlite"),
    ],
)
def test_no_password_of_an_address_is_shown(address: str, shown: str) -> None:
    assert shown_address(address) == shown


def test_no_password_of_a_query_is_printed(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DPCA_DATABASE_URL", f"sqlite:///{home / 'dpca.sqlite'}?password=s3cret")
    with answering(200) as address:
        monkeypatch.setenv("PREFECT_API_URL", f"{address}?password=s3cret")
        main(["doctor"])
    printed = capsys.readouterr()
    assert f"{home / 'dpca.sqlite'} can be read and written" in printed.out
    assert f"{address} answers 200" in printed.out
    assert "s3cret" not in printed.out + printed.err


@contextmanager
def answering(status: int) -> Iterator[str]:
    """Run a server that returns the same HTTP status to every request; yield its address."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/api"
        finally:
            server.shutdown()
            thread.join()


def test_folders_that_others_may_read_are_named(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = home / "keys"
    keys.mkdir(mode=0o750, exist_ok=True)
    keys.chmod(0o750)
    found = verdicts()
    assert (found["home"].verdict, found["keys"].verdict) == ("ok", "fix")
    assert f"`chmod 700 {keys}`" in found["keys"].advice
    home.chmod(0o755)
    found = verdicts()
    assert found["home"].verdict == "fix"
    assert f"`chmod 700 {home}`" in found["home"].advice
    monkeypatch.setenv("DPCA_ALLOW_SHARED_HOME", "true")
    found = verdicts()
    assert {found[check].verdict for check in ("home", "keys")} == {"note"}


def test_a_row_that_was_edited_by_hand_is_found(home: Path) -> None:
    ledger = Workspace.open().ledger
    ledger.open_budget("people", epsilon=1.0, delta=1e-6)
    assert verdicts()["ledger"].verdict == "ok"
    with ledger.engine.begin() as connection:
        connection.exec_driver_sql("DROP TRIGGER budget_no_update")
        connection.exec_driver_sql("UPDATE budget SET epsilon = 9")
    finding = verdicts()["ledger"]
    assert finding.verdict == "fix"
    assert finding.found == "the row of budget 'people' differs from the journal (epsilon)"
    assert finding.advice.startswith("restore the database from a copy")


@pytest.mark.skipif(sys.platform != "linux", reason="processes are read from /proc")
def test_servers_that_killed_commands_left_are_named() -> None:
    assert "servers" not in verdicts()
    server = "import time; time.sleep(600)", "-m", "uvicorn", "--factory", "prefect.server.api.server:create_app"
    words = " ".join(map(shlex.quote, (sys.executable, "-c", *server)))
    command = f"PREFECT__SERVER_EPHEMERAL=1 {words} >/dev/null 2>&1 & echo $!"
    left = int(subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=True).stdout)
    try:
        finding = verdicts()["servers"]
    finally:
        os.kill(left, signal.SIGKILL)
    assert finding.verdict == "fix"
    assert str(left) in finding.advice.split()


def test_a_misspelt_setting_is_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DPCA_CLUSTR", "local")
    assert "DPCA_CLUSTR is not a setting" in verdicts()["settings"].found


def test_a_version_that_stops_schedules_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    right = importlib.metadata.version
    monkeypatch.setattr("flows.doctor.version", lambda name: "2.1.0" if name == "sqlalchemy" else right(name))
    finding = verdicts()["versions"]
    assert finding.verdict == "fix"
    assert "sqlalchemy 2.1.0" in finding.found


def test_a_read_only_disk_is_named_and_readable_parts_are_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    Workspace.open()

    class ReadOnly:
        f_flag = os.ST_RDONLY

    access = os.access
    monkeypatch.setattr(os, "statvfs", lambda _: ReadOnly)
    monkeypatch.setattr(os, "access", lambda path, mode, **how: not mode & os.W_OK and access(path, mode, **how))
    found = verdicts()
    assert (found["home"].verdict, found["ledger"].verdict) == ("fix", "ok")
    assert "because its disk is read-only" in found["home"].found
    assert "mount the disk for writing" in found["home"].advice
    assert "every row agrees with it" in found["ledger"].found
    assert found["keys"].advice in ("", "mount its disk for writing")
