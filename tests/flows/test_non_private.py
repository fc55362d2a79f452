"""A reference result through the command and the flow: insisted on, marked for ever, and the end of a budget."""

import json
from pathlib import Path

import numpy as np
import pytest
from prefect.client.orchestration import SyncPrefectClient

from flows.fit import run_fit
from flows.requests.subspace import SubspaceRequest
from storage.artifacts.subspace import PrivateSubspace
from storage.errors import Invalid
from storage.registry.reader import Registry
from storage.workspace import Workspace
from tests.flows.conftest import FIT, Command, facts_of, newest_run

REFERENCE = (
    *("subspace", "fit", "people", "--components", "2", "--clip-norm", "1.5", "--publish", "ref"),
    *("--mechanism", "non_private", "--direct", "--yes", "--json"),
)
INSIST = "--i-know-this-is-not-private"


@pytest.mark.parametrize("manner", [(), ("--dry-run",), ("--epsilon", "1", "--delta", "1e-6")], ids=len)
def test_it_is_refused_without_insisting_and_nothing_is_charged(
    ready: Path, dpca: Command, manner: tuple[str, ...]
) -> None:
    before = facts_of(ready)
    assert INSIST in dpca(*REFERENCE, *manner).complaint(1)
    assert facts_of(ready) == before


def test_a_private_mechanism_takes_no_such_insistence(ready: Path, dpca: Command) -> None:
    assert "analyze_gauss' is private" in dpca(*FIT, INSIST, "--direct", "--yes").complaint(1)
    assert "private histogram" in dpca(*REFERENCE, INSIST, "--clip-norm", "quantile:0.9").complaint(1)


@pytest.mark.parametrize("missing", ["--epsilon", "--delta"])
def test_a_private_mechanism_needs_epsilon_and_delta(ready: Path, dpca: Command, missing: str) -> None:
    at = FIT.index(missing)
    assert missing in dpca(*FIT[:at], *FIT[at + 2 :], "--direct", "--yes").complaint(2)


def test_it_is_marked_for_ever_and_voids_the_budget(released: Path, dpca: Command) -> None:
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


def test_its_mark_cannot_be_left_out_of_a_manifest() -> None:
    facts = {"mechanism": "non_private", "privacy": {"epsilon": 1.0}}
    with pytest.raises(Invalid, match="not private"):
        PrivateSubspace(components=np.eye(1, 3), manifest=facts)


def test_a_flow_of_who_insists_says_so_and_no_form_offers_it(ready: Path, prefect: SyncPrefectClient) -> None:
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
    assert run_fit(request)["private"] is False
    run = newest_run(prefect, "fit-subspace")
    assert run.state_name == "Completed"
    assert "i_know_this_is_not_private" not in run.parameters
    kept = {item.key: item for item in prefect.read_artifacts() if item.flow_run_id == run.id}
    assert "WITHOUT PRIVACY" in str(kept["release-ref"].data)
    assert "infinite" in str(kept["budget-people"].data)
