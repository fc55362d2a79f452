"""Golden homes: this version opens, verifies and continues the home of every released version, on both databases."""

import json
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psycopg
import pytest

import dpca
from storage.workspace import Workspace
from tests.flows.conftest import Command, Ending, isolate
from tests.flows.conftest import dpca as dpca_command
from tests.golden.make import FIT, HOMES, POPULATIONS, RELEASES, facts_of_home
from tests.postgres import Server

run = dpca_command  # the fixture of the ``dpca`` command, under a name that does not hide the package ``dpca``


@pytest.fixture(params=sorted(HOMES.glob("*.tar.xz")), ids=lambda path: path.name.removesuffix(".tar.xz"))
def golden(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """Unpack a golden home and set it as the current home; yield its facts."""
    with tarfile.open(request.param) as archive:
        # this filter keeps file modes, because keys must stay readable by their owner alone
        archive.extractall(tmp_path, filter="fully_trusted")
    isolate(monkeypatch, home=tmp_path / "home")
    facts: dict[str, Any] = json.loads((tmp_path / "facts.json").read_text())
    if "postgresql" not in request.param.name:
        yield facts
        return
    server: Server = request.getfixturevalue("postgres")
    with server.database() as url:
        with psycopg.connect(url.replace("postgresql+psycopg", "postgresql"), autocommit=True) as connection:
            connection.execute((tmp_path / "dump.sql").read_text().encode())
        monkeypatch.setenv("DPCA_DATABASE_URL", url)
        yield facts


def test_a_golden_home_of_every_released_version_exists() -> None:
    kinds = {path.name.split("-")[1].split(".")[0] for path in HOMES.glob("0.1.0-*.tar.xz")}
    assert kinds == {"sqlite", "postgresql"}


def test_budgets_versions_and_signatures_are_read_unchanged(golden: dict[str, Any], run: Command) -> None:
    assert facts_of_home() == golden
    for version in golden["versions"]:
        assert run("registry", "verify", version).status == 0
        assert run("registry", "show", version).status == 0
    loaded = dpca.load(f"people-map@sha256:{golden['versions']['people-map@1']}")
    rows = [[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]]
    np.testing.assert_array_equal(dpca.load("people-map@champion").transform(rows), loaded.transform(rows))
    findings = {row["check"]: row["verdict"] for row in json.loads(run("doctor", "--all", "--json").out)}
    assert (findings["ledger"], findings["registry"]) == ("ok", "ok"), findings


def test_trails_of_that_version_are_valid_and_continued(golden: dict[str, Any], run: Command, tmp_path: Path) -> None:
    for population in POPULATIONS:
        earlier, now = tmp_path / f"{population}-trail.json", tmp_path / "now.json"
        assert run("audit", "verify", earlier).status == 0
        assert run("budget", "export", population, "--output", now).status == 0
        assert run("audit", "verify", now, "--earlier", earlier).status == 0
    assert facts_of_home() == golden


def test_repeated_requests_are_the_same_releases(golden: dict[str, Any], run: Command) -> None:
    for request in RELEASES:
        report = read(run(*request, "--direct", "--yes", "--json"))
        assert report["reused"], request
    assert facts_of_home() == golden


def test_new_releases_and_ticks_continue_numbers_and_charges(golden: dict[str, Any], run: Command) -> None:
    report = read(run(*FIT, "--run-key", "second", "--direct", "--yes", "--json"))
    assert (report["artifact"], report["reused"]) == ("people-map@2", False)
    tick = read(run("stream", "tick", "nightly", "--slot", "2026-11-27", "--direct", "--json"))
    assert tick["artifact"] == "nightly@2"
    now = facts_of_home()
    assert golden["versions"].items() <= now["versions"].items()
    assert now["spent"]["people"] > golden["spent"]["people"]
    assert Workspace.read_only().ledger.verify()


def read(ended: Ending) -> dict[str, Any]:
    """Return the JSON report of a command that must have succeeded."""
    assert ended.status == 0, ended
    report: dict[str, Any] = json.loads(ended.out)
    return report
