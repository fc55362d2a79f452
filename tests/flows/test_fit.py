"""Fits through the command and the flow: refusals, charges, free repetitions, and what Prefect shows."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.sorting import FlowRunSort

from dpca.errors import BudgetExhausted, Unavailable
from dpca.registry.reader import Registry
from flows.jobs import run_release
from flows.releases import running, stages
from flows.requests import SubspaceRequest
from storage.datasets.catalog import Catalog, Entry
from storage.workspace import Workspace
from tests.flows.conftest import FIT, Command, facts_of, kept_by, newest_run

REQUEST: dict[str, Any] = {
    **{"dataset": "people", "components": 2, "epsilon": 1.0, "delta": 1e-6},
    **{"clip_norm": 1.5, "publish": "sub"},
}
PROMISED = {
    *("artifact", "digest", "release", "mechanism", "relation", "epsilon", "delta"),
    *("noise_multiplier", "spent", "remaining"),
}
BAD = {
    "k-is-d": (("--components", "6"), "n_components=6 must be"),
    "k-beyond-d": (("--components", "7"), "n_components=7 must be"),
    "epsilon-0": (("--epsilon", "0"), "epsilon=0.0 must be"),
    "epsilon-negative": (("--epsilon", "-1"), "epsilon=-1.0 must be"),
    "epsilon-nan": (("--epsilon", "nan"), "epsilon=nan must be"),
    "epsilon-inf": (("--epsilon", "inf"), "epsilon=inf must be"),
    "delta-0": (("--delta", "0"), "delta=0.0 must lie"),
    "delta-1": (("--delta", "1"), "delta=1.0 must be less than 1"),
    "delta-negative": (("--delta", "-1e-6"), "delta=-1e-06 must be greater than or equal to 0"),
    "delta-nan": (("--delta", "nan"), "delta=nan must be less than 1"),
    "delta-at-1/n": (("--delta", "1e-5"), "is not below 1/records_at_most=1e-05"),
    "delta-above-1/n": (("--delta", "1e-3"), "is not below 1/records_at_most=1e-05"),
    "clip-norm-0": (("--clip-norm", "0"), "clip_norm=0.0 must be"),
    "clip-norm-negative": (("--clip-norm", "-1"), "clip_norm=-1.0 must be"),
    "clip-norm-nan": (("--clip-norm", "nan"), "clip_norm=nan must be"),
    "clip-norm-inf": (("--clip-norm", "inf"), "clip_norm=inf must be"),
    "clip-norm-huge": (("--clip-norm", "1e160"), "clip_norm=1e+160 must be"),
    "clip-norm-tiny": (("--clip-norm", "1e-200"), "clip_norm=1e-200 must be"),
    "clip-norm-word": (("--clip-norm", "wide"), "clip_norm='wide' must be"),
    "mechanism": (("--mechanism", "magic"), "mechanism='magic' is not one of auto, analyze_gauss, "),
    "set-unknown": (("--settings", "wings=2"), "analyze_gauss has no setting 'wings'"),
    "set-components": (("--settings", "n_components=3"), "has no setting 'n_components'"),
    "set-text": (("--mechanism", "noisy_power", "--settings", "iterations=many"), "iterations='many' is refused"),
    "set-fraction": (("--mechanism", "noisy_power", "--settings", "iterations=2.5"), "iterations='2.5' is refused"),
    "set-0": (("--mechanism", "noisy_power", "--settings", "iterations=0"), "it must be greater than or equal to 1"),
    "publish-empty": (("--publish", ""), "publish='' must match pattern"),
    "publish-space": (("--publish", "my sub"), "publish='my sub' must match pattern"),
    "publish-upper": (("--publish", "Sub"), "publish='Sub' must match pattern"),
    "publish-path": (("--publish", "../sub"), "publish='../sub' must match pattern"),
    "publish-reference": (("--publish", "sub@1"), "publish='sub@1' must match pattern"),
    "run-key-empty": (("--run-key", ""), "run key '' must be"),
    "run-key-lines": (("--run-key", "a\nb"), r"run key 'a\nb' must be"),
    "run-key-long": (("--run-key", "k" * 201), "1 to 200 characters"),
}


@pytest.mark.parametrize("case", sorted(BAD))
@pytest.mark.parametrize("manner", ["--yes", "--dry-run"])
def test_a_bad_request_is_refused_in_one_line_and_charges_nothing(
    ready: Path, dpca: Command, case: str, manner: str
) -> None:
    words, complaint = BAD[case]
    before = facts_of(ready)
    assert complaint in dpca(*FIT, *words, "--direct", manner, "--json").complaint(1)
    assert facts_of(ready) == before


def test_an_unknown_dataset_or_one_without_budget_is_refused(ready: Path, dpca: Command, rows_file: Path) -> None:
    words = ("--name", "others", "--features", "6", "--allow-shared-rows", "--direct")
    assert dpca("dataset", "ingest", rows_file, *words).status == 0
    before = facts_of(ready)
    for dataset, complaint in (
        ("nobody", "dataset 'nobody' does not exist"),
        ("others", "population 'others' has no budget; open one with `dpca budget open others"),
    ):
        assert complaint in dpca(*FIT[:2], dataset, *FIT[3:], "--direct", "--yes", "--json").complaint(1)
    assert facts_of(ready) == before


def test_the_declared_bound_on_records_guards_delta(ready: Path, dpca: Command, rows_file: Path) -> None:
    words = ("--name", "few", "--population", "people", "--features", "6", "--records-at-most", "1000", "--direct")
    assert dpca("dataset", "ingest", rows_file, *words).status == 0
    fit = (*FIT[:2], "few", *FIT[3:], "--epsilon", "0.1", "--dry-run", "--json")
    assert "1/records_at_most=0.001" in dpca(*fit, "--delta", "1e-3").complaint(1)
    assert dpca(*fit, "--delta", "9e-4").status == 0
    assert dpca(*fit, "--delta", "1e-3", "--allow-large-delta").status == 0


def test_without_yes_and_without_terminal_nothing_is_spent(ready: Path, dpca: Command) -> None:
    before = facts_of(ready)
    assert "pass --yes" in dpca(*FIT, "--direct", "--json").complaint(1)
    assert facts_of(ready) == before


def test_a_dry_run_shows_noise_and_cost_without_changes(ready: Path, dpca: Command) -> None:
    before = facts_of(ready)
    ending = dpca(*FIT, "--dry-run", "--json")
    shown = json.loads(ending.out)
    assert (ending.status, ending.err) == (0, "")
    assert shown["noise_multiplier"] == pytest.approx(4.224679, abs=1e-6)
    assert (shown["fits"], shown["exists"], shown["spent"], shown["remaining"]) == (True, False, 0.0, 2.0)
    assert facts_of(ready) == before


def test_a_dry_run_beyond_the_budget_reports_this_and_exits_3(ready: Path, dpca: Command) -> None:
    before = facts_of(ready)
    ending = dpca(*FIT, "--epsilon", "2.5", "--dry-run", "--json")
    assert (ending.status, json.loads(ending.out)["fits"]) == (3, False)
    assert ending.err.startswith(
        "dpca: budget 'people' has epsilon 2 left for one release, and 2.5 at delta 1e-06 was requested"
    )
    assert facts_of(ready) == before


@pytest.mark.parametrize("epsilon", ["1.9", "1000", "1e9"])
def test_a_request_over_budget_exits_3_and_states_the_remaining_budget(
    released: Path, dpca: Command, epsilon: str
) -> None:
    before = facts_of(released)
    left = json.loads(dpca("budget", "show", "people", "--json").out)["remaining"]
    complaint = dpca(*FIT, "--epsilon", epsilon, "--publish", "other", "--direct", "--yes", "--json").complaint(3)
    assert f"epsilon {left:.6g} left" in complaint
    assert f"{float(epsilon):g} at delta 1e-06 was requested; nothing was charged" in complaint
    assert facts_of(released) == before


def test_a_fit_reports_what_it_released_and_leaves_no_key_or_step(ready: Path, dpca: Command) -> None:
    ending = dpca(*FIT, "--direct", "--yes", "--json")
    report = json.loads(ending.out)
    assert (ending.status, ending.err) == (0, "")
    assert set(report) >= PROMISED
    assert (report["artifact"], report["mechanism"], report["relation"]) == ("sub@1", "analyze_gauss", "add_remove")
    assert (report["epsilon"], report["delta"], report["reused"]) == (1.0, 1e-6, False)
    assert report["spent"] == pytest.approx(1.0, rel=1e-6)
    assert [path.name for path in (ready / "keys").iterdir() if len(path.name) == 32] == []
    assert not list((ready / "staging").rglob("*.npz"))
    subspace = Registry.open().load("sub@1")
    assert subspace.components.shape == (2, 6)
    assert subspace.manifest["release"] == report["release"]


def test_an_artifact_contains_neither_snapshot_nor_digest_nor_size_of_the_data(released: Path) -> None:
    ledger = Workspace.open().ledger
    entry = Catalog(ledger.engine, ledger.home).current("people")
    for path in released.glob("registry/**/*"):
        if path.is_file():
            content = path.read_bytes()
            assert entry.snapshot.encode() not in content
            assert entry.content_digest.encode() not in content
    private = {"snapshot", "content", "content_digest", "records", "n_records", "rows", "n_rows", "nnz", "blocks"}
    assert private.isdisjoint(_names_in(dict(Registry.open().load("sub").manifest)))


def _names_in(facts: dict[str, Any]) -> set[str]:
    inner = (_names_in(value) for value in facts.values() if isinstance(value, dict))
    return set(facts).union(*inner)


def test_the_same_request_again_is_the_same_release_and_free(released: Path, dpca: Command) -> None:
    before = facts_of(released)
    for words in ((), ("--workers", "1")):
        ending = dpca(*FIT, *words, "--direct", "--yes", "--json")
        assert (ending.status, json.loads(ending.out)["artifact"], json.loads(ending.out)["reused"]) == (
            0,
            "sub@1",
            True,
        )
        assert "nothing was spent" in ending.err
    assert facts_of(released) == before


def test_a_second_name_is_a_version_there_free_of_charge(released: Path, dpca: Command) -> None:
    first = json.loads(dpca("registry", "show", "sub", "--json").out)
    report = json.loads(dpca(*FIT, "--publish", "second", "--direct", "--yes", "--json").out)
    assert (report["artifact"], report["digest"]) == ("second@1", first["digest"])
    assert (report["reused"], report["spent"]) == (True, pytest.approx(1.0, rel=1e-6))
    assert len(json.loads(dpca("budget", "show", "people", "--json").out)["releases"]) == 1


def test_a_repeated_release_needs_neither_consent_nor_budget(released: Path, dpca: Command) -> None:
    """Use up the budget and repeat an earlier release: it is returned without consent or charge."""
    left = json.loads(dpca("budget", "show", "people", "--json").out)["remaining"]
    rest = (*FIT, "--epsilon", left, "--publish", "rest", "--direct", "--json")
    assert dpca(*rest, "--yes").status == 0
    assert json.loads(dpca("budget", "show", "people", "--json").out)["remaining"] == pytest.approx(0, abs=1e-3)
    assert json.loads(dpca(*rest).out)["reused"]
    dpca(*FIT, "--epsilon", "0.5", "--direct", "--yes", "--json").complaint(3)


def test_the_whole_budget_can_be_requested(ready: Path, dpca: Command) -> None:
    report = json.loads(dpca(*FIT, "--epsilon", "2", "--direct", "--yes", "--json").out)
    assert report["spent"] == pytest.approx(2.0, rel=1e-9)
    assert report["remaining"] == pytest.approx(0, abs=1e-3)
    dpca(*FIT, "--epsilon", "0.1", "--direct", "--yes", "--json").complaint(3)


def test_a_run_key_names_one_request_for_ever(ready: Path, dpca: Command) -> None:
    key = ("--epsilon", "0.5", "--run-key", "monday", "--direct", "--yes", "--json")
    first = json.loads(dpca(*FIT, *key).out)
    again = json.loads(dpca(*FIT, *key).out)
    assert (again["release"], again["reused"], again["spent"]) == (first["release"], True, first["spent"])
    before = facts_of(ready)
    for other in (("--components", "3"), ("--clip-norm", "1"), ("--delta", "1e-7"), ("--epsilon", "0.4")):
        assert "run key 'monday' belongs to another request" in dpca(*FIT, *key, *other).complaint(1)
    assert facts_of(ready) == before
    tuesday = json.loads(dpca(*FIT, *key, "--run-key", "tuesday").out)
    assert (tuesday["artifact"], tuesday["reused"]) == ("sub@2", False)
    assert tuesday["release"] != first["release"]
    assert tuesday["spent"] > first["spent"]


def test_the_relation_is_the_budgets_and_settings_reach_the_mechanism(
    home: Path, dpca: Command, rows_file: Path
) -> None:
    assert dpca("dataset", "ingest", rows_file, "--name", "people", "--features", "6", "--direct").status == 0
    terms = ("--epsilon", "3", "--delta", "1e-6", "--relation", "replace_one")
    assert dpca("budget", "open", "people", *terms).status == 0
    words = (
        "--mechanism",
        "noisy_power",
        "--settings",
        "iterations=2",
        "--settings",
        "oversampling=1",
        "--direct",
        "--yes",
    )
    report = json.loads(dpca(*FIT, *words, "--json").out)
    assert (report["mechanism"], report["relation"]) == ("noisy_power", "replace_one")
    manifest = Registry.open().load("sub").manifest
    assert {"n_components": 2, "iterations": 2, "oversampling": 1}.items() <= manifest["parameters"].items()
    assert manifest["privacy"]["event"]["count"] == 2


def test_a_fit_that_stopped_after_it_began_is_resumed_without_a_second_charge(
    ready: Path, dpca: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> str:
        raise Unavailable("the disk is full; make room.")

    with monkeypatch.context() as patch:
        patch.setattr(running, "write_artifact", full)
        assert "the disk is full" in dpca(*FIT, "--direct", "--yes", "--json").complaint(1)
    (row,) = json.loads(dpca("budget", "show", "people", "--json").out)["releases"]
    assert (row["state"], row["artifact"]) == ("noising", None)
    assert not list((ready / "registry").glob("names/*"))
    report = json.loads(dpca(*FIT, "--direct", "--yes", "--json").out)
    assert (report["release"], report["artifact"]) == (row["release"], "sub@1")
    assert report["spent"] == pytest.approx(1.0, rel=1e-6)


def _stopped(*_: object) -> str:
    raise Unavailable("the disk is full; make room.")


def test_a_flow_completes_and_attaches_statement_and_budget(ready: Path, prefect: SyncPrefectClient) -> None:
    report = run_release(SubspaceRequest(**REQUEST, run_key="flow"))
    run = newest_run(prefect, "fit-subspace")
    assert (run.state_name, run.parameters["run_key"]) == ("Completed", "flow")
    kept = {item.key: item for item in prefect.read_artifacts() if item.flow_run_id == run.id}
    assert set(kept) == {"release-sub", "budget-people"}
    assert (kept["release-sub"].type, kept["budget-people"].type) == ("markdown", "table")
    assert report["release"] in str(kept["release-sub"].data)
    assert "(1, 1e-6)-differential privacy when one row is added or removed." in str(kept["release-sub"].data)
    (row,) = json.loads(str(kept["budget-people"].data))
    assert (row["release"], row["artifact"], row["state"]) == (report["release"], "sub@1", "committed")
    assert "epsilon 2 at delta 1e-06" in str(kept["budget-people"].description)
    ledger = Workspace.open().ledger
    entry = Catalog(ledger.engine, ledger.home).current("people")
    everything = kept_by(prefect)
    assert entry.content_digest not in everything
    assert entry.snapshot not in everything


def test_a_direct_run_does_not_contact_prefect(released: Path, prefect: SyncPrefectClient, dpca: Command) -> None:
    before = [run.id for run in prefect.read_flow_runs(sort=FlowRunSort.START_TIME_DESC)]
    assert json.loads(dpca(*FIT, "--direct", "--yes", "--json").out)["reused"]
    assert [run.id for run in prefect.read_flow_runs(sort=FlowRunSort.START_TIME_DESC)] == before


def test_a_flow_over_budget_ends_as_budget_exhausted(ready: Path, prefect: SyncPrefectClient) -> None:
    before = facts_of(ready)
    with pytest.raises(BudgetExhausted, match=r"epsilon 2 left for one release, and 2\.5 at delta 1e-06 was requested"):
        run_release(SubspaceRequest(**{**REQUEST, "epsilon": 2.5}))
    run = newest_run(prefect, "fit-subspace")
    state = run.state
    assert state is not None
    assert (state.type.value, state.name) == ("FAILED", "BudgetExhausted")
    assert state.message == "The budget does not admit this release; nothing was charged."
    assert facts_of(ready) == before
    shown = {artifact.key: artifact for artifact in prefect.read_artifacts() if artifact.flow_run_id == run.id}
    assert "Requested: epsilon 2.5 at delta 1e-06. Left for one release: epsilon 2 " in str(
        shown["refusal-people"].data
    )
    assert shown["budget-people"].type == "table"


def test_a_refused_flow_ends_as_refused(ready: Path, prefect: SyncPrefectClient) -> None:
    before = facts_of(ready)
    with pytest.raises(ValueError, match="n_components=6 must be"):
        run_release(SubspaceRequest(**{**REQUEST, "components": 6}))
    state = newest_run(prefect, "fit-subspace").state
    assert state is not None
    assert (state.type.value, state.name) == ("FAILED", "Refused")
    assert facts_of(ready) == before


class _Odd(BaseException):
    """An exception that derives from `BaseException` and not from `Exception`."""


@pytest.mark.parametrize("kind", [RuntimeError, KeyError, OSError, SystemExit, _Odd])
def test_prefect_stores_the_text_of_no_error(
    ready: Path, prefect: SyncPrefectClient, monkeypatch: pytest.MonkeyPatch, kind: type[BaseException]
) -> None:
    def compute_release(_release: str, _address: str) -> str:
        sums = [0.7390851332, 42]
        raise kind(f"row 7 holds {sums}", sums)

    monkeypatch.setattr(stages, "compute_release", compute_release)
    with pytest.raises(Exception, match=r"739|stage failed"):
        run_release(SubspaceRequest(**REQUEST))
    state = newest_run(prefect, "fit-subspace").state
    assert state is not None
    assert (state.type.value, state.name) == ("FAILED", "StageFailed")
    everything = kept_by(prefect)
    assert "7390851332" not in everything
    assert kind.__name__ not in everything


def test_a_lost_dataset_folder_is_reported_in_one_line(released: Path, dpca: Command) -> None:
    shutil.rmtree(next(released.glob("datasets/people/*")))
    dpca(*FIT, "--run-key", "again", "--epsilon", "0.5", "--direct", "--yes", "--json").complaint(1)


def test_files_of_an_uncharged_snapshot_are_refused_without_their_digests(
    ready: Path, dpca: Command, rows_file: Path, tmp_path: Path
) -> None:
    """Put files of another snapshot under the charged one's name: they are refused, and no digest is shown.

    The digest of the other snapshot is in the catalog, too.
    """
    other = tmp_path / "other.svm"
    other.write_text(rows_file.read_text().replace("3:0.5", "3:0.75"))
    entry = current(ready)
    ingest = ("dataset", "ingest", other, "--name", "other", "--population", "people", "--features", "6", "--direct")
    assert dpca(*ingest).status == 0
    (found,) = (ready / "datasets/other").glob("*/zarr.json")
    described = json.loads(found.read_text())
    digest = described["attributes"]["content_digest"]
    described["attributes"] |= {"snapshot": entry.snapshot, "dataset": "people"}
    found.write_text(json.dumps(described))
    shutil.rmtree(ready / entry.path)
    shutil.copytree(found.parent, ready / entry.path)
    for words in ((), ("--row-policy", "normalise")):
        line = dpca(*FIT, *words, "--direct", "--yes").complaint(1)
        assert "the files of dataset 'people' differ from the registered snapshot; restore them" in line
        assert not any(secret[:8] in line for secret in (digest, entry.content_digest))


def current(home: Path) -> Entry:
    ledger = Workspace.open().ledger
    return Catalog(ledger.engine, home).current("people")
