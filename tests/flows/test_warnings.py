"""What limits a release's utility is said wherever the release is: dry run, output, JSON, manifest, statement."""

import dataclasses
import json
from pathlib import Path

import pytest

from flows.orchestration.prefect_artifacts import release_statement
from storage.artifacts.files import read_artifact, write_artifact
from storage.home import store
from storage.registry.reader import Registry
from tests.flows.conftest import FEATURES, Command

NOISY = (
    *("subspace", "fit", "people", "--components", "2", "--epsilon", "0.1", "--delta", "0"),
    *("--mechanism", "laplace", "--clip-norm", "1.5", "--publish", "sub"),
)
BEFORE, AFTER = "all components will be noise", "none of the 2 released eigenvalues is above"


@pytest.fixture
def opened(rows_file: Path, dpca: Command) -> None:
    """Sixty rows, declared as such, and a budget."""
    words = ("--name", "people", "--features", FEATURES, "--records-at-most", 60, "--direct")
    assert dpca("dataset", "ingest", rows_file, *words).status == 0
    assert dpca("budget", "open", "people", "--epsilon", "3", "--delta", "1e-4").status == 0


@pytest.mark.usefixtures("opened")
def test_noise_is_warned_of_before_and_after_it_is_released(dpca: Command) -> None:
    promised = dpca(*NOISY, "--dry-run", "--json")
    (before,) = json.loads(promised.out)["warnings"]
    assert BEFORE in before
    assert promised.err.count(BEFORE) == 1
    assert BEFORE in dpca(*NOISY, "--dry-run").out

    ending = dpca(*NOISY, "--direct", "--yes", "--json")
    assert ending.status == 0, ending.err
    told = json.loads(ending.out)["warnings"]
    assert told[0] == before
    assert AFTER in told[1]
    assert len(told) == 2
    assert [ending.err.count(text) for text in (BEFORE, AFTER)] == [1, 1]
    shown = Registry.open().show("sub@1")
    assert shown["manifest"]["warnings"] == told
    assert [
        release_statement(shown, "5 components of 400 features").count(f"**Warning:** {warning}") for warning in told
    ] == [1, 1]

    again = json.loads(dpca(*NOISY, "--direct", "--yes", "--json").out)
    assert (again["reused"], again["warnings"]) == (True, told)


@pytest.mark.usefixtures("released")
def test_a_release_with_signal_has_no_warning_and_no_such_fact_in_its_manifest() -> None:
    shown = Registry.open().show("sub@1")
    assert "warnings" not in shown["manifest"]
    assert "Warning" not in release_statement(shown, "5 components of 400 features")


@pytest.mark.usefixtures("released")
def test_warnings_outlive_a_refit_and_the_file(home: Path) -> None:
    found = Registry.open().load("sub@1")
    warned = dataclasses.replace(found, manifest={**found.manifest, "warnings": ["mostly noise"]})
    written = read_artifact(store(), write_artifact(warned, home=home, place=store()))
    assert written.refit(1, parent="0" * 64).manifest["warnings"] == ["mostly noise"]
