"""Smooth sensitivity and propose-test-release through the command: what is charged, published and said."""

import json
from pathlib import Path

import pytest

from storage.registry.reader import Registry
from storage.workspace import Workspace
from tests.flows.conftest import FEATURES, FIT, Command

RUN = ("--direct", "--yes")


@pytest.fixture
def opened(rows_file: Path, dpca: Command) -> None:
    """A dataset, and a budget that admits releases known by epsilon and delta alone."""
    words = ("--name", "people", "--features", FEATURES, "--direct")
    assert dpca("dataset", "ingest", rows_file, *words).status == 0
    terms = ("--epsilon", "3", "--delta", "1e-4", "--failure-delta", "5e-5", "--allow-large-delta")
    ending = dpca("budget", "open", "people", *terms)
    assert ending.status == 0, ending.err


@pytest.mark.usefixtures("opened")
def test_a_smooth_release_publishes_directions_and_neither_gap_nor_scale(dpca: Command) -> None:
    ending = dpca(*FIT, "--mechanism", "smooth_sensitivity", *RUN, "--json")
    assert ending.status == 0, ending.err
    assert "eigengap behind component 2" in ending.err
    assert "failed" not in json.loads(ending.out)
    found = Registry.open().load("sub@1")
    assert found.eigenvalues is found.spectrum is None
    assert found.manifest["privacy"]["event"] == {"name": "approximate", "epsilon": 1.0, "delta": 1e-6}
    assert set(found.manifest["plan"]) == {"noise_multiplier", "grid_bits", "row_policy", "center"}
    told = {name for name, fact in found.manifest["outcome"].items() if fact is not None}
    assert told == {"refined_by", "verdict", "probes", "seed"}
    assert Workspace.open().ledger.statement("people").spent >= 1.0
    assert "none leads" in dpca("subspace", "refit", "sub@1", "--components", "1", "--publish", "other").complaint(1)


@pytest.mark.usefixtures("opened")
def test_a_failed_test_is_said_in_one_line_spent_and_published_as_failed(dpca: Command) -> None:
    """Sixty rows have no gap that a test at epsilon 0.2 could see."""
    words = (*FIT, "--mechanism", "propose_test_release", *RUN, "--json")
    ending = dpca(*words)
    assert ending.status == 0, ending.err
    assert json.loads(ending.out)["failed"] is True
    assert sum("FAILED" in line for line in ending.err.splitlines()) == 1
    outcome = Registry.open().load("sub@1").manifest["outcome"]
    assert outcome["failed"] is True
    told = {name for name, fact in outcome.items() if fact is not None}
    assert told == {"failed", "eigengap_bound", "refined_by", "verdict", "probes", "seed"}
    spent = Workspace.open().ledger.statement("people").spent
    assert spent > 0
    again = dpca(*words)
    assert json.loads(again.out)["reused"] is True
    assert "FAILED" in again.err
    assert Workspace.open().ledger.statement("people").spent == spent


@pytest.mark.usefixtures("opened")
@pytest.mark.parametrize("mechanism", ["smooth_sensitivity", "exponential"])
def test_a_mean_is_bought_within_the_epsilon_asked_for_and_published(dpca: Command, mechanism: str) -> None:
    words = (*FIT, "--mechanism", mechanism, "--center", "private", "--json")
    promised = json.loads(dpca(*words, "--dry-run").out)
    assert promised["fits"] is True
    assert 1.0 - 1e-9 <= promised["spent_after"] <= 1.0
    assert dpca(*words, *RUN).status == 0
    assert Workspace.open().ledger.statement("people").spent == promised["spent_after"]
    found = Registry.open().load("sub@1")
    assert found.mean is not None
    assert [step["name"] for step in found.manifest["privacy"]["event"]["events"]] == ["gaussian", "approximate"]


@pytest.mark.usefixtures("opened")
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--settings", "noise=laplace"), "noise"),
        (("--settings", "passes=0"), "passes"),
        (("--settings", "calibration=paper"), "below 1"),
    ],
    ids=lambda words: str(words[-1]),
)
def test_what_is_not_offered_is_refused_before_anything_is_charged(
    dpca: Command, words: tuple[str, ...], said: str
) -> None:
    assert said in dpca(*FIT, "--mechanism", "smooth_sensitivity", *words, *RUN).complaint(1)
    assert Workspace.open().ledger.statement("people").spent == 0
