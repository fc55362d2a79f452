"""Non-private references, mechanisms with data-dependent noise, and read-only commands.

A reference result needs confirmation, is marked permanently, and voids its budget. Smooth sensitivity and
propose-test-release are tested for charges, publication and messages. Read-only commands work on a read-only home
folder and on a full disk; others report the problem.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from prefect.client.orchestration import SyncPrefectClient

from dpca.artifacts.subspace import PrivateSubspace
from dpca.errors import Invalid
from dpca.registry.reader import Registry
from flows.jobs import run_release
from flows.requests import SubspaceRequest
from storage.workspace import Workspace
from tests.flows.conftest import FEATURES, FIT, Command, facts_of, newest_run

REFERENCE = (
    *("subspace", "fit", "people", "--components", "2", "--clip-norm", "1.5", "--publish", "ref"),
    *("--mechanism", "non_private", "--direct", "--yes", "--json"),
)
INSIST = "--i-know-this-is-not-private"


@pytest.mark.parametrize("manner", [(), ("--dry-run",), ("--epsilon", "1", "--delta", "1e-6")], ids=len)
def test_the_reference_is_refused_without_its_option_and_not_charged(
    ready: Path, dpca: Command, manner: tuple[str, ...]
) -> None:
    before = facts_of(ready)
    assert INSIST in dpca(*REFERENCE, *manner).complaint(1)
    assert facts_of(ready) == before


def test_a_private_mechanism_refuses_the_option_for_non_private_results(ready: Path, dpca: Command) -> None:
    assert "analyze_gauss' is private" in dpca(*FIT, INSIST, "--direct", "--yes").complaint(1)
    assert "private histogram" in dpca(*REFERENCE, INSIST, "--clip-norm", "quantile:0.9").complaint(1)


@pytest.mark.parametrize("missing", ["--epsilon", "--delta"])
def test_a_private_mechanism_needs_epsilon_and_delta(ready: Path, dpca: Command, missing: str) -> None:
    at = FIT.index(missing)
    assert missing in dpca(*FIT[:at], *FIT[at + 2 :], "--direct", "--yes").complaint(2)


def test_a_reference_result_is_marked_permanently_and_voids_the_budget(released: Path, dpca: Command) -> None:
    ending = dpca(*REFERENCE, INSIST)
    report = json.loads(ending.out)
    assert "not private" in ending.err
    assert (report["artifact"], report["private"], report["epsilon"], report["spent"]) == ("ref@1", False, None, None)
    assert dpca("subspace", "refit", "ref", "--components", "1", "--publish", "smaller").status == 0
    assert dpca(*REFERENCE, INSIST, "--publish", "again").status == 0
    listed = {row["artifact"]: row["private"] for row in json.loads(dpca("registry", "list", "--json").out)}
    assert listed == {"sub@1": True, "ref@1": False, "smaller@1": False, "again@1": False}
    for name in ("ref", "smaller", "again"):
        subspace = Registry.open().load(name)
        assert subspace.manifest["privacy"]["private"] is False
        assert not subspace.is_private
        assert "NOT PRIVATE" in repr(subspace)
        assert json.loads(dpca("registry", "show", name, "--json").out)["private"] is False
    assert "NOT PRIVATE" in dpca("registry", "list").out
    assert Registry.open().load("sub").is_private
    statement = Workspace.open().ledger.statement("people")
    assert (statement.spent, statement.remaining) == (float("inf"), 0.0)
    shown = json.loads(dpca("budget", "show", "people", "--json").out)
    assert (shown["spent"], shown["remaining"], shown["voided"]) == (None, 0.0, True)
    assert "voided" in dpca(*FIT, "--epsilon", "0.01", "--direct", "--yes", "--json").complaint(3)


def test_a_manifest_without_the_non_private_mark_is_refused() -> None:
    facts = {"mechanism": "non_private", "privacy": {"epsilon": 1.0}}
    with pytest.raises(Invalid, match="not private"):
        PrivateSubspace(components=np.eye(1, 3), manifest=facts)


def test_a_flow_needs_an_explicit_option_that_no_form_offers(ready: Path, prefect: SyncPrefectClient) -> None:
    request = SubspaceRequest(
        dataset="people",
        components=2,
        epsilon=None,
        delta=None,
        clip_norm=1.5,
        publish="ref",
        mechanism="non_private",
        i_know_this_is_not_private=True,
    )
    assert run_release(request)["private"] is False
    run = newest_run(prefect, "fit-subspace")
    assert run.state_name == "Completed"
    assert "i_know_this_is_not_private" not in run.parameters
    kept = {item.key: item for item in prefect.read_artifacts() if item.flow_run_id == run.id}
    assert "WITHOUT PRIVACY" in str(kept["release-ref"].data)
    assert "infinite" in str(kept["budget-people"].data)


RUN = ("--direct", "--yes")


@pytest.fixture
def opened(rows_file: Path, dpca: Command) -> None:
    """Ingest a dataset, and open a budget that admits releases whose cost is known only as (epsilon, delta)."""
    words = ("--name", "people", "--features", FEATURES, "--direct")
    assert dpca("dataset", "ingest", rows_file, *words).status == 0
    terms = ("--epsilon", "3", "--delta", "1e-4", "--failure-delta", "5e-5", "--allow-large-delta")
    ending = dpca("budget", "open", "people", *terms)
    assert ending.status == 0, ending.err


@pytest.mark.usefixtures("opened")
def test_a_smooth_release_publishes_directions_and_neither_gap_nor_scale(dpca: Command) -> None:
    ending = dpca(*FIT, "--mechanism", "smooth_sensitivity", *RUN, "--json")
    assert ending.status == 0, ending.err
    assert "eigengap after component 2" in ending.err
    assert "failed" not in json.loads(ending.out)
    found = Registry.open().load("sub@1")
    assert found.eigenvalues is found.spectrum is None
    assert found.manifest["privacy"]["event"] == {"name": "approximate", "epsilon": 1.0, "delta": 1e-6}
    assert set(found.manifest["plan"]) == {"noise_multiplier", "grid_bits", "row_policy", "center"}
    reported = {name for name, fact in found.manifest["outcome"].items() if fact is not None}
    assert reported == {"refined_by", "verdict", "probes", "seed"}
    assert Workspace.open().ledger.statement("people").spent >= 1.0
    assert "so they have no order" in dpca(
        "subspace", "refit", "sub@1", "--components", "1", "--publish", "other"
    ).complaint(1)


@pytest.mark.usefixtures("opened")
def test_a_failed_test_is_reported_in_one_line_spent_and_published_as_failed(dpca: Command) -> None:
    """Run propose-test-release on sixty rows: the failed test is reported in one line, charged and published.

    The eigengap of the rows is too small to be detected at epsilon 0.2.
    """
    words = (*FIT, "--mechanism", "propose_test_release", *RUN, "--json")
    ending = dpca(*words)
    assert ending.status == 0, ending.err
    assert json.loads(ending.out)["failed"] is True
    assert sum("FAILED" in line for line in ending.err.splitlines()) == 1
    outcome = Registry.open().load("sub@1").manifest["outcome"]
    assert outcome["failed"] is True
    reported = {name for name, fact in outcome.items() if fact is not None}
    assert reported == {"failed", "eigengap_bound", "refined_by", "verdict", "probes", "seed"}
    spent = Workspace.open().ledger.statement("people").spent
    assert spent > 0
    again = dpca(*words)
    assert json.loads(again.out)["reused"] is True
    assert "FAILED" in again.err
    assert Workspace.open().ledger.statement("people").spent == spent


@pytest.mark.usefixtures("opened")
@pytest.mark.parametrize("mechanism", ["smooth_sensitivity", "exponential"])
def test_a_private_mean_is_charged_within_the_requested_epsilon_and_published(dpca: Command, mechanism: str) -> None:
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
    ("words", "text"),
    [
        (("--settings", "noise=laplace"), "noise"),
        (("--settings", "passes=0"), "passes"),
        (("--settings", "calibration=paper"), "below 1"),
    ],
    ids=lambda words: str(words[-1]),
)
def test_unsupported_requests_are_refused_before_a_charge(dpca: Command, words: tuple[str, ...], text: str) -> None:
    assert text in dpca(*FIT, "--mechanism", "smooth_sensitivity", *words, *RUN).complaint(1)
    assert Workspace.open().ledger.statement("people").spent == 0


# On a full disk, files cannot grow. A read-only folder restricts root, too, if root has dropped the capabilities that
# override file modes.
FULL = "import resource, signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
FULL += "resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))\n"
READ_ONLY = """
import ctypes, os, sys
if os.getuid() == 0 and len(sys.argv) > 1:
    for capability in (1, 2):  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH
        assert ctypes.CDLL(None).prctl(24, capability, 0, 0, 0) == 0
    os.execv(sys.executable, [sys.executable, "-c", sys.orig_argv[-2]])
"""
COMMANDS = """
import contextlib, io, json
from flows.cli import main
told = {}
for words in (
    "budget show people", "budget history people", "registry list", "registry show sub", "registry verify sub",
    "dataset list", "dataset show people", "budget open others --epsilon 1 --delta 1e-6",
):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = main([*words.split(), "--json"])
    told[words] = [status, out.getvalue()]
os.write(1, json.dumps(told).encode())
"""


def run(script: str) -> dict[str, tuple[int, str]]:
    found = subprocess.run([sys.executable, "-c", "import os\n" + script, "drop"], capture_output=True, check=False)
    assert found.returncode == 0, found.stderr.decode()
    return {words: (status, out) for words, (status, out) in json.loads(found.stdout).items()}


def made_read_only(home: Path) -> Callable[[], None]:
    paths = [home, *home.rglob("*")]
    modes = [path.stat().st_mode for path in paths]
    for path in paths:
        path.chmod(path.stat().st_mode & ~0o222)

    def undo() -> None:
        for path, mode in zip(paths, modes, strict=True):
            path.chmod(mode)

    return undo


@pytest.mark.parametrize("trouble", ["full", "read-only"])
def test_reading_commands_work_on_full_and_read_only_disks(released: Path, trouble: str) -> None:
    before = facts_of(released)
    undo = made_read_only(released) if trouble == "read-only" else (lambda: None)
    try:
        reported = run((FULL if trouble == "full" else READ_ONLY) + COMMANDS)
    finally:
        undo()
    *reading, writing = reported
    assert {words: reported[words][0] for words in reading} == dict.fromkeys(reading, 0)
    assert reported[writing] == (1, "")
    assert json.loads(reported["budget show people"][1])["spent"] == pytest.approx(1.0, abs=1e-9)
    history = json.loads(reported["budget history people"][1])
    assert [row["spent"] for row in history] == pytest.approx([1.0], abs=1e-9)
    assert [row["artifact"] for row in json.loads(reported["registry list"][1])] == ["sub@1"]
    assert json.loads(reported["registry verify sub"][1])["verified"] is True
    assert [row["dataset"] for row in json.loads(reported["dataset list"][1])] == ["people"]
    assert json.loads(reported["dataset show people"][1])["records"] == 60
    assert facts_of(released) == before
    assert os.access(released, os.W_OK)
