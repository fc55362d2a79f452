"""``dpca doctor`` finds what would stop a run, says what to mend, and leaves nothing behind."""

import importlib.metadata
import json
from pathlib import Path

import pytest

from flows.cli import main
from flows.doctor import Finding, examine


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "home"
    folder.mkdir(mode=0o700)
    monkeypatch.setenv("DPCA_HOME", str(folder))
    monkeypatch.setenv("DPCA_CLUSTER", "none")
    for name in ("DPCA_STORE_URL", "DPCA_DATABASE_URL", "DPCA_KEY_FOLDER", "PREFECT_API_URL"):
        monkeypatch.delenv(name, raising=False)
    return folder


def verdicts() -> dict[str, Finding]:
    return {finding.check: finding for finding in examine()}


def test_a_sound_home_needs_nothing(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
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
        ("DPCA_CLUSTER", "tcp://198.51.100.7:8786", "cluster"),
        ("PREFECT_API_URL", "http://127.0.0.1:1/api", "prefect"),
    ],
)
def test_what_would_stop_a_run_is_named_with_what_to_do(
    name: str, value: str, check: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(name, value)
    finding = verdicts()[check]
    assert finding.verdict == "fix"
    assert finding.found
    assert finding.advice
    assert main(["doctor"]) == 1
    assert f"fix   {check}" in capsys.readouterr().out


def test_folders_that_others_may_read_are_named(home: Path) -> None:
    home.chmod(0o755)
    keys = home / "keys"
    keys.mkdir(mode=0o750, exist_ok=True)
    keys.chmod(0o750)
    found = verdicts()
    assert (found["home"].verdict, found["home"].advice) == ("fix", f"chmod 700 {home}")
    assert (found["keys"].verdict, found["keys"].advice) == ("fix", f"chmod 700 {keys}")


def test_a_misspelt_setting_is_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DPCA_CLUSTR", "local")
    assert "DPCA_CLUSTR is read by nothing" in verdicts()["settings"].found


def test_a_version_that_stops_schedules_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    right = importlib.metadata.version
    monkeypatch.setattr("flows.doctor.version", lambda name: "2.1.0" if name == "sqlalchemy" else right(name))
    finding = verdicts()["versions"]
    assert finding.verdict == "fix"
    assert "sqlalchemy 2.1.0" in finding.found
