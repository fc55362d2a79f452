"""A deployment on a real server: its form, runs with parameters of before, dry runs, and what its form then tells."""

import re
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from prefect import Flow
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.objects import FlowRun
from prefect.client.schemas.responses import DeploymentResponse
from prefect.exceptions import PrefectHTTPStatusError
from prefect.flow_engine import run_flow
from prefect.states import Scheduled

from flows.fit import fit_subspace
from flows.orchestration import deployment_notes
from flows.refresh import refresh_subspace
from flows.releases import verdicts
from flows.reports.budget_facts import written_share
from storage.ledger.ledger import Ledger
from storage.privacy_unit import PrivacyUnit, privacy_statement
from storage.workspace import Workspace
from tests.flows.conftest import facts_of

PARAMETERS: dict[str, Any] = {
    **{"dataset": "people", "components": 2, "epsilon": 0.5, "delta": 1e-6},
    **{"clip_norm": 1.5, "publish": "sub"},
}
SAID = "Release a private subspace."
OF_BEFORE: dict[str, Any] = {
    **{"settings": {"calibration": "tight"}, "allow_large_delta": False, "run_key": None},
    **{"mechanism": "analyze_gauss", "workers": None},
}
"""Parameters as deployments gave them before settings had types, and when forms offered more."""


@pytest.fixture
def deployment(ready: Path, prefect: SyncPrefectClient) -> UUID:
    return _deploy(prefect)


def _deploy(prefect: SyncPrefectClient, **others: Any) -> UUID:
    flow: Flow[..., Any] = fit_subspace
    found: UUID = prefect.create_deployment(
        flow_id=prefect.create_flow(flow),
        name="weekly",
        parameters={**PARAMETERS, **others},
        description=SAID,
        tags=["dpca", "release"],
        parameter_openapi_schema=flow.parameters.model_dump_for_openapi(),
        enforce_parameter_schema=True,
    )
    return found


def _run(prefect: SyncPrefectClient, deployment: UUID, **parameters: Any) -> FlowRun:
    """Run a deployment as a worker would, with parameters given in its form."""
    made = prefect.create_flow_run_from_deployment(deployment, parameters=parameters, state=Scheduled())
    run_flow(fit_subspace, flow_run=made, parameters=made.parameters, return_type="state")
    return prefect.read_flow_run(made.id)


def _ledger() -> Ledger:
    return Workspace.read_only().ledger


def _shown(found: DeploymentResponse) -> str:
    return str((found.parameter_openapi_schema or {})["properties"]["dry_run"]["description"])


def test_a_server_takes_typed_settings_and_text_of_before_and_refuses_the_rest(
    deployment: UUID, prefect: SyncPrefectClient
) -> None:
    wrong: list[Any] = [
        {"dp_spca": {"steps": 0}},
        {"dp_spca": {"stepz": 1}},
        {"analyze_gauss": {"form": "round"}},
        {"a": 1},
    ]
    for settings in wrong:
        with pytest.raises(PrefectHTTPStatusError, match=r"422|409"):
            prefect.create_flow_run_from_deployment(deployment, parameters={"settings": settings})
    right: list[Any] = [{"dp_spca": {"steps": 5, "rate": 0.5}, "dps_pca": None}, {"steps": "5"}, {}, None]
    for settings in right:
        made = prefect.create_flow_run_from_deployment(deployment, parameters={"settings": settings})
        assert made.parameters["settings"] == settings


def test_a_run_takes_the_settings_of_the_form(deployment: UUID, prefect: SyncPrefectClient) -> None:
    run = _run(prefect, deployment, settings={"analyze_gauss": {"form": "operator"}})
    assert run.state_name == "Completed"
    (release,) = _ledger().statement("people").releases
    assert release.request["settings"] == {"form": "operator"}
    other = _run(prefect, deployment, settings={"dp_spca": {"steps": 5}})
    assert other.state_name == "Refused"
    assert len(_ledger().statement("people").releases) == 1


def test_parameters_of_before_make_the_same_release(ready: Path, prefect: SyncPrefectClient) -> None:
    old = _deploy(prefect, **OF_BEFORE)
    assert _run(prefect, old).state_name == "Completed"
    assert _run(prefect, _deploy(prefect)).state_name == "Completed"
    assert len(_ledger().statement("people").releases) == 1


def test_a_dry_run_ends_in_its_verdict_and_charges_nothing(
    deployment: UUID, prefect: SyncPrefectClient, ready: Path
) -> None:
    before = facts_of(ready)
    admitted = _run(prefect, deployment, dry_run=True)
    assert admitted.state is not None
    assert (admitted.state.type.value, admitted.state.name) == ("COMPLETED", "Admitted")
    fitting = _ledger().runs_that_fit("people", epsilon=0.5, delta=1e-6)
    assert admitted.state.message == (
        "Admitted: a run is charged epsilon 0.5 at delta 1e-06 of budget people; "
        f"epsilon 2 is left of it for one release; {fitting} such runs fit. "
        "A run has (0.5, 1e-6)-differential privacy when one row is added or removed."
    )
    refused = _run(prefect, deployment, dry_run=True, epsilon=2.5)
    assert refused.state is not None
    assert (refused.state.type.value, refused.state.name) == ("COMPLETED", "NotAdmitted")
    assert "Refused: a run asks for epsilon 2.5 at delta 1e-06 of budget people" in str(refused.state.message)
    (card,) = (item for item in prefect.read_artifacts() if item.flow_run_id == refused.id)
    assert (card.key, str(refused.state.message) in str(card.data)) == ("dry-run-sub", True)
    assert facts_of(ready) == before


def test_a_dry_run_of_what_is_refused_for_another_reason_ends_as_refused(
    deployment: UUID, prefect: SyncPrefectClient
) -> None:
    assert _run(prefect, deployment, dry_run=True, components=60).state_name == "Refused"


def test_form_and_description_tell_what_the_next_run_may_do_after_each_release_refusal_and_dry_run(
    deployment: UUID, prefect: SyncPrefectClient
) -> None:
    plain = _shown(prefect.read_deployment(deployment))
    notes = []
    for parameters in (
        {},
        {"dry_run": True},
        {"epsilon": 1.9, "run_key": "large"},
        {"epsilon": 1.9, "run_key": "more"},
    ):
        run = _run(prefect, deployment, **parameters)
        found = prefect.read_deployment(deployment)
        base, _, note = str(found.description).partition("\n\n---\n\n")
        assert base == SAID
        assert _shown(found) == f"{plain}\n\n---\n\n{note}"
        assert re.match(r"Next run, as of \d{4}-\d\d-\d\d \d\d:\d\d UTC: ", note)
        notes.append((run.state_name, note.partition("UTC: ")[2]))
        assert (found.tags, found.parameters) == (["dpca", "release"], PARAMETERS)
    left = _ledger().statement("people").remaining
    assert [state for state, _ in notes] == ["Completed", "Admitted", "Completed", "BudgetExhausted"]
    assert notes[0][1] == notes[1][1]
    assert notes[0][1].startswith("Admitted: a run is charged epsilon 0.5 at delta 1e-06 of budget people; epsilon 1.9")
    expected = f"a run asks for epsilon 0.5 at delta 1e-06 of budget people, and epsilon {left:.6g} is left of it"
    assert notes[2][1] == notes[3][1] == f"Refused: {expected} for one release; nothing would be charged."


def test_a_note_that_cannot_be_made_fails_no_release(
    deployment: UUID, prefect: SyncPrefectClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    def breaks(*_: Any, **__: Any) -> None:
        raise OSError("no server")

    monkeypatch.setattr(verdicts, "note_on_deployment", breaks)
    assert _run(prefect, deployment).state_name == "Completed"
    monkeypatch.setattr(deployment_notes, "get_client", breaks)
    assert _run(prefect, deployment).state_name == "Completed"
    assert prefect.read_deployment(deployment).description == SAID


def test_a_dry_run_of_the_loop_tells_the_share_of_its_next_release(ready: Path, prefect: SyncPrefectClient) -> None:
    flow: Flow[..., Any] = refresh_subspace
    asked = {name: value for name, value in PARAMETERS.items() if name != "epsilon"}
    asked |= {"inbox": "@people", "epsilon": None}
    share = written_share(_ledger().pace("people", runs=4, delta=1e-6).epsilon_each)
    state: Any = flow(**asked, releases=4, dry_run=True, return_state=True)
    assert (state.name, state.message) == (
        "Admitted",
        f"Admitted: a run is charged epsilon {share:g} at delta 1e-06 of budget people; "
        "epsilon 2 is left of it for one release; 4 such runs fit. A run has "
        f"{privacy_statement(epsilon=share, delta=1e-6, relation='add_remove', unit=PrivacyUnit())}.",
    )
    for others, name in (({"epsilon": 3.0}, "NotAdmitted"), ({}, "Refused")):
        ended: Any = flow(**{**asked, **others}, dry_run=True, return_state=True)
        assert ended.name == name
    assert _ledger().statement("people").releases == ()
