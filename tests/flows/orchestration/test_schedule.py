"""Scheduled runs and deployments under Prefect: each scheduled slot is one release, and Prefect sees names alone.

A slot is one release for any number of attempts, delays or data changes. Names and displays of a run in Prefect depend
only on the dataset, the population and the published name. On a real server, a deployment's form, runs with old
parameters, dry runs, and the form's text are checked.
"""

import asyncio
import dataclasses
import json
import re
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import AsyncMock, MagicMock
from uuid import UUID, uuid4
from zoneinfo import ZoneInfo

import pytest
from prefect import Flow
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterId
from prefect.client.schemas.objects import FlowRun
from prefect.client.schemas.responses import DeploymentResponse
from prefect.context import FlowRunContext
from prefect.exceptions import PrefectHTTPStatusError
from prefect.flow_engine import run_flow
from prefect.server.database import provide_database_interface
from prefect.server.models import deployments
from prefect.server.schemas.schedules import CronSchedule, IntervalSchedule, RRuleSchedule
from prefect.states import Scheduled

from dpca.errors import Invalid, NotFound, Refused
from dpca.privacy_unit import PrivacyUnit, privacy_statement
from dpca_tasks.errors import InvalidInput
from flows.families.streams import StreamTerms
from flows.jobs import check_deployments, fit_subspace, refresh_subspace
from flows.orchestration import prefect_stages
from flows.orchestration.prefect_stages import is_deployed, planned_time, schedule_slot
from flows.releases.stages import reserve_release
from flows.reports.budget_facts import written_share
from flows.requests import SubspaceRequest
from storage.ledger.ledger import Ledger
from storage.workspace import Workspace
from tests.flows.conftest import FEATURES, FIT, Command, facts_of

REQUEST = SubspaceRequest(
    dataset="people", components=2, epsilon=0.5, delta=1e-6, clip_norm=1.5, publish="sub", run_key=None
)
FIRST, SECOND = "2030-01-01T00:00:00+00:00", "2030-01-08T00:00:00+00:00"


def _run(monkeypatch: pytest.MonkeyPatch, **facts: Any) -> None:
    context = SimpleNamespace(flow_run=SimpleNamespace(**facts))
    monkeypatch.setattr(FlowRunContext, "get", lambda: context)


def test_a_slot_is_the_planned_start_in_utc(monkeypatch: pytest.MonkeyPatch) -> None:
    start = datetime(2030, 1, 1, 2, 0, tzinfo=timezone(timedelta(hours=2)))
    _run(monkeypatch, auto_scheduled=True, expected_start_time=start, deployment_id="some")
    assert (schedule_slot(), is_deployed()) == (FIRST, True)


def test_a_manually_started_run_has_no_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    assert (schedule_slot(), is_deployed()) == (None, False)
    _run(monkeypatch, auto_scheduled=False, expected_start_time=datetime.now(UTC), deployment_id=None)
    assert (schedule_slot(), is_deployed()) == (None, False)
    _run(monkeypatch, auto_scheduled=False, expected_start_time=datetime.now(UTC), deployment_id="some")
    assert (schedule_slot(), is_deployed()) == (None, True)


def test_each_slot_is_a_separate_release(ready: Path) -> None:
    release, _ = reserve_release(REQUEST, FIRST)
    assert reserve_release(REQUEST, FIRST)[0] == release
    others = {reserve_release(REQUEST, SECOND)[0], reserve_release(REQUEST)[0]}
    assert len(others | {release}) == 3
    assert len(Workspace.open().ledger.statement("people").releases) == 3


def test_a_slot_keeps_the_snapshot_that_it_began_with(ready: Path, dpca: Command, rows_file: Path) -> None:
    release, _ = reserve_release(REQUEST, FIRST)
    snapshot = Workspace.open().ledger.release(release).snapshot_id
    words = ("dataset", "ingest", rows_file, "--name", "people", "--features", FEATURES, "--direct")
    assert dpca(*words).status == 0
    assert reserve_release(REQUEST, FIRST)[0] == release
    later = Workspace.open().ledger.release(reserve_release(REQUEST, SECOND)[0])
    assert later.snapshot_id != snapshot


def test_different_requests_and_datasets_have_separate_slots(ready: Path, dpca: Command, rows_file: Path) -> None:
    words = ("dataset", "ingest", rows_file, "--name", "others", "--population", "people", "--features", FEATURES)
    assert dpca(*words, "--direct").status == 0
    requested = [REQUEST, dataclasses.replace(REQUEST, components=3), dataclasses.replace(REQUEST, dataset="others")]
    assert len({reserve_release(request, FIRST)[0] for request in requested}) == 3


def test_an_explicit_run_key_overrides_the_slot(ready: Path) -> None:
    named = dataclasses.replace(REQUEST, run_key="mine")
    assert reserve_release(named, FIRST)[0] == reserve_release(named, SECOND)[0]
    assert Workspace.open().ledger.find("mine") is not None


def _slots(patch: pytest.MonkeyPatch, schedule: Any, *, name: str, start: datetime, count: int) -> list[str]:
    """Return the slot that each run of a Prefect schedule derives from its planned time."""
    terms, found = StreamTerms(facts={"schedule": name}, plan=cast(Any, None), weights=cast(Any, None)), []
    for date in schedule._get_dates_generator(n=count, start=start):
        key = f"scheduled {uuid4()} {uuid4()} {date}"  # run key in the form that Prefect's scheduler uses
        stored = date.astimezone(UTC)
        _run(patch, auto_scheduled=True, expected_start_time=stored, deployment_id="some", idempotency_key=key)
        found.append(terms.slot_at(datetime.fromisoformat(planned_time() or "")))
    return found


ZONES = ("Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Asia/Kolkata", "UTC")


@pytest.mark.parametrize("zone", ZONES)
@pytest.mark.parametrize("clock", ["0 0", "30 0", "30 1", "30 2", "30 3", "30 19", "30 20", "59 23"])
def test_each_local_day_has_one_slot_when_clocks_change(monkeypatch: pytest.MonkeyPatch, zone: str, clock: str) -> None:
    local = ZoneInfo(zone)
    for month in (2, 9):  # 75 days of schedule include a clock change in every time zone tested here
        start = datetime(2026, month, 20, tzinfo=local)
        planned = CronSchedule(cron=f"{clock} * * *", timezone=zone)
        found = _slots(monkeypatch, planned, name="daily", start=start, count=75)
        assert found == [(start.date() + timedelta(days=day)).isoformat() for day in range(75)]


@pytest.mark.parametrize("zone", ZONES)
@pytest.mark.parametrize("clock", ["30 0", "30 1", "30 20", "59 23"])
def test_each_local_week_and_month_has_one_slot(monkeypatch: pytest.MonkeyPatch, zone: str, clock: str) -> None:
    for weekday in (1, 0):
        planned = CronSchedule(cron=f"{clock} * * {weekday}", timezone=zone)
        start = datetime(2026, 1, 1, tzinfo=ZoneInfo(zone))
        found = _slots(monkeypatch, planned, name="weekly", start=start, count=60)
        first = 2 if weekday == 1 else 1
        weeks = [f"2026-W{week:02}" for week in range(first, 54)] + [f"2027-W{week:02}" for week in range(1, 10)]
        assert found == weeks[:60]
    for day in ("1", "L"):
        planned = CronSchedule(cron=f"{clock} {day} * *", timezone=zone)
        found = _slots(
            monkeypatch, planned, name="monthly", start=datetime(2026, 1, 1, tzinfo=ZoneInfo(zone)), count=14
        )
        assert found == [f"{2026 + month // 12}-{month % 12 + 1:02}" for month in range(14)]


def _every(interval: timedelta, anchor: Any, zone: str) -> IntervalSchedule:
    return IntervalSchedule(interval=interval, anchor_date=anchor, timezone=zone)


@pytest.mark.parametrize("zone", ZONES)
def test_other_schedules_of_prefect_have_one_slot_a_day(monkeypatch: pytest.MonkeyPatch, zone: str) -> None:
    local = ZoneInfo(zone)
    for month in (2, 9):
        start = datetime(2026, month, 20, tzinfo=local)
        kinds: list[Any] = [
            RRuleSchedule(rrule="FREQ=DAILY;BYHOUR=1;BYMINUTE=30;BYSECOND=0", timezone=zone),
            _every(timedelta(days=1), start.replace(hour=12), zone),
        ]
        for planned in kinds:
            found = _slots(monkeypatch, planned, name="daily", start=start, count=75)
            assert found == [(start.date() + timedelta(days=day)).isoformat() for day in range(75)]


def test_every_hour_has_one_slot_when_clocks_change(monkeypatch: pytest.MonkeyPatch) -> None:
    for month, day in ((3, 28), (10, 24)):
        start = datetime(2026, month, day, tzinfo=ZoneInfo("Europe/Berlin"))
        planned = _every(timedelta(hours=1), start, "Europe/Berlin")
        assert len(set(_slots(monkeypatch, planned, name="hourly", start=start, count=72))) == 72


def test_the_scheduler_of_prefect_states_the_local_time_in_the_key_of_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compare the run key of Prefect's scheduler with the form that `planned_time` reads.

    If a Prefect version builds the key differently, this test fails and `planned_time` refuses its runs.
    """
    planned = CronSchedule(cron="30 1 * * *", timezone="Europe/Berlin")
    stub = SimpleNamespace(id=uuid4(), schedule=planned, slug="nightly", parameters={})
    monkeypatch.setattr(deployments, "read_deployment_schedules", AsyncMock(return_value=[stub]))
    monkeypatch.setattr(deployments, "with_system_labels_for_deployment_flow_run", AsyncMock(return_value={}))
    deployment = MagicMock(id=uuid4(), tags=[], parameters={})
    session: Any = SimpleNamespace(get=AsyncMock(return_value=deployment))
    requested: dict[str, Any] = {
        "start_time": datetime(2026, 3, 27, 12, tzinfo=UTC),
        "end_time": datetime(2027, 1, 1, tzinfo=UTC),
    }
    made = asyncio.run(
        deployments._generate_scheduled_flow_runs(
            db=provide_database_interface(),
            session=session,
            deployment_id=uuid4(),
            **requested,
            min_time=timedelta(0),
            min_runs=3,
            max_runs=3,
        )
    )
    found = []
    for run in made:
        facts = {name: run[name] for name in ("auto_scheduled", "expected_start_time", "idempotency_key")}
        _run(monkeypatch, deployment_id="some", **facts)
        found.append(planned_time())
    assert found == ["2026-03-28T01:30:00+01:00", "2026-03-29T01:30:00+01:00", "2026-03-30T01:30:00+02:00"]


@pytest.mark.parametrize("key", [None, "mine", "scheduled a b 2026-01-01", "scheduled a b 2030-01-01 00:00:01+00:00"])
def test_a_scheduled_run_without_its_local_time_is_refused(monkeypatch: pytest.MonkeyPatch, key: str | None) -> None:
    start = datetime(2030, 1, 1, tzinfo=UTC)
    _run(monkeypatch, auto_scheduled=True, expected_start_time=start, deployment_id="some", idempotency_key=key)
    with pytest.raises(Refused, match="does not state the local time"):
        planned_time()
    _run(monkeypatch, auto_scheduled=False, expected_start_time=start, deployment_id="some", idempotency_key=key)
    assert planned_time() is None


SLOTS = {
    "hourly": (["2026-01-05T14", "2024-02-29T00"], ["2026-01-05T24", "2026-01-05", "2026-1-05T14", "2026-01-05T1"]),
    "daily": (["2026-01-05", "2024-02-29"], ["2026-11-31", "2026-02-29", "2026-01-05T14"]),
    "weekly": (["2026-W02", "2026-W53"], ["2026-W2", "2025-W53", "2026-W00", "2026-W54", "2026-02", "2026-w02"]),
    "monthly": (["2026-01", "2026-12"], ["2026-1", "2026-13", "2026-00", "2026-01-01", "26-01"]),
}
WRONG = ("2026-1-5", "24.11.2026", "2026/11/24", "20261124", "tonight", "", " ", "2026-11-24Z", "\uff12026-11-24")


@pytest.mark.parametrize("schedule", SLOTS)
def test_a_slot_has_one_canonical_spelling(schedule: str) -> None:
    terms = StreamTerms(facts={"schedule": schedule}, plan=cast(Any, None), weights=cast(Any, None))
    right, wrong = SLOTS[schedule]
    assert [terms.check_slot(slot) for slot in right] == right
    blanks = [blank for slot in right for blank in (f"{slot} ", f" {slot}", f"{slot}\n", f"{slot}\u00a0", f"{slot}\t")]
    for slot in (*wrong, *WRONG, *blanks):
        with pytest.raises(InvalidInput, match="write it like"):
            terms.check_slot(slot)


NAMES_OF_RUNS_REQUEST: dict[str, Any] = {
    **{"components": 2, "epsilon": 0.5, "delta": 1e-6},
    **{"clip_norm": 1.5},
}


@pytest.fixture
def homes(ready: Path, dpca: Command, rows_file: Path) -> Path:
    """Return a home with two populations, each with a dataset, a budget and a published release."""
    words = (
        "--name",
        "rows-two",
        "--population",
        "folk-two",
        "--features",
        FEATURES,
        "--direct",
        "--allow-shared-rows",
    )
    assert dpca("dataset", "ingest", rows_file, *words).status == 0
    assert dpca("budget", "open", "folk-two", "--epsilon", "2", "--delta", "1e-6").status == 0
    fit = [{"people": "rows-two", "sub": "map-two"}.get(word, word) for word in FIT]
    assert dpca(*fit, "--direct", "--yes").status == 0
    assert dpca(*FIT, "--direct", "--yes").status == 0
    return ready


@pytest.mark.usefixtures("homes")
@pytest.mark.parametrize(
    ("own", "others"),
    [
        ({"dataset": "people", "publish": "sub"}, ("rows-two", "folk-two", "map-two")),
        ({"dataset": "rows-two", "publish": "map-two"}, ("people", "sub@", "release-sub")),
    ],
    ids=["people", "folk-two"],
)
def test_names_tags_cards_and_limits_of_a_run_name_no_other_population(
    prefect: SyncPrefectClient, own: dict[str, str], others: tuple[str, ...]
) -> None:
    limits = [limit.tag for limit in prefect.read_concurrency_limits(limit=200, offset=0)]
    for requested, ends in (
        ({"dry_run": True}, "Admitted"),
        ({"run_key": f"next of {own['dataset']}"}, "Completed"),
        ({"epsilon": 3.0}, "BudgetExhausted"),
        ({"components": 60}, "Refused"),
    ):
        before = {run.id for run in prefect.read_flow_runs()}
        fit_subspace(**{**NAMES_OF_RUNS_REQUEST, **own, **requested}, return_state=True)
        (run,) = (found for found in prefect.read_flow_runs() if found.id not in before)
        assert run.state_name == ends
        assert run.tags == []
        shown = _shown(prefect, run)
        assert own["dataset"] in shown
        assert [word for word in others if word in shown] == []
    assert [limit.tag for limit in prefect.read_concurrency_limits(limit=200, offset=0)] == limits


def _shown(prefect: SyncPrefectClient, run: FlowRun) -> str:
    """Return all that Prefect stores about a run, its tasks and its artifacts, as JSON text."""
    of_run = FlowRunFilter(id=FlowRunFilterId(any_=[run.id]))
    artifacts = prefect.read_artifacts(flow_run_filter=of_run)
    found = [run, *prefect.read_task_runs(flow_run_filter=of_run), *artifacts]
    return json.dumps([item.model_dump_json() for item in found])


PARAMETERS: dict[str, Any] = {
    **{"dataset": "people", "components": 2, "epsilon": 0.5, "delta": 1e-6},
    **{"clip_norm": 1.5, "publish": "sub"},
}
TEXT = "Release a private subspace."
OF_BEFORE: dict[str, Any] = {
    **{"settings": {"calibration": "tight"}, "allow_large_delta": False, "run_key": None},
    **{"mechanism": "analyze_gauss", "workers": None},
}
"""Parameters of deployments from before settings had types, when forms had more fields."""


@pytest.fixture
def deployment(ready: Path, prefect: SyncPrefectClient) -> UUID:
    return _deploy(prefect)


def _deploy(prefect: SyncPrefectClient, **others: Any) -> UUID:
    flow: Flow[..., Any] = fit_subspace
    found: UUID = prefect.create_deployment(
        flow_id=prefect.create_flow(flow),
        name="weekly",
        parameters={**PARAMETERS, **others},
        description=TEXT,
        tags=["dpca", "release"],
        parameter_openapi_schema=flow.parameters.model_dump_for_openapi(),
        enforce_parameter_schema=True,
    )
    return found


def _run_of_deployment_notes(prefect: SyncPrefectClient, deployment: UUID, **parameters: Any) -> FlowRun:
    """Run a deployment as a worker does, with parameters as entered in its form."""
    made = prefect.create_flow_run_from_deployment(deployment, parameters=parameters, state=Scheduled())
    run_flow(fit_subspace, flow_run=made, parameters=made.parameters, return_type="state")
    return prefect.read_flow_run(made.id)


def _ledger() -> Ledger:
    return Workspace.read_only().ledger


def _shown_of_deployment_notes(found: DeploymentResponse) -> str:
    return str((found.parameter_openapi_schema or {})["properties"]["dry_run"]["description"])


def test_a_server_accepts_typed_settings_and_older_text_and_refuses_others(
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


@pytest.mark.parametrize(
    ("given", "name", "message"),
    [
        (
            {"epsilonn": 1.0},
            "Failed",
            "fit-subspace has no parameter epsilonn (did you mean epsilon?); its parameters are dataset, publish, ",
        ),
        ({"dataset": "vists"}, "Refused", "The request was refused because of dataset='vists'; correct it."),
        ({"clip_norm": "quantile:2"}, "Refused", "clip_norm='quantile:2'"),
        ({"delta": 0.5}, "Refused", "delta=0.5"),
    ],
    ids=str,
)
def test_a_wrong_public_parameter_is_named_in_the_state_and_nothing_is_charged(
    deployment: UUID, prefect: SyncPrefectClient, given: dict[str, Any], name: str, message: str
) -> None:
    state = _run_of_deployment_notes(prefect, deployment, **given).state
    assert state is not None
    assert (state.type.value, state.name) == ("FAILED", name)
    assert message in str(state.message)
    assert "Traceback" not in str(state.message)
    assert "\n" not in str(state.message)
    assert not _ledger().statement("people").releases


def test_an_unknown_parameter_is_refused_before_anything_is_deployed(tmp_path: Path) -> None:
    shipped = Path("deployments/prefect.yaml").read_text(encoding="utf-8")
    assert "check_deployments: {file: deployments/prefect.yaml}" in shipped
    assert check_deployments("deployments/prefect.yaml") == {}
    file = tmp_path / "prefect.yaml"
    file.write_text(shipped.replace("components: 20, epsilon: 0.5", "componentz: 20, epsilon: 0.5"))
    with pytest.raises(Invalid, match=r"deployment release-weekly: .*componentz \(did you mean components\?\)"):
        check_deployments(str(file))
    with pytest.raises(NotFound):
        check_deployments(str(tmp_path / "none.yaml"))


def test_a_run_takes_the_settings_of_the_form(deployment: UUID, prefect: SyncPrefectClient) -> None:
    run = _run_of_deployment_notes(prefect, deployment, settings={"analyze_gauss": {"form": "operator"}})
    assert run.state_name == "Completed"
    (release,) = _ledger().statement("people").releases
    assert release.request["settings"] == {"form": "operator"}
    other = _run_of_deployment_notes(prefect, deployment, settings={"dp_spca": {"steps": 5}})
    assert other.state_name == "Refused"
    assert len(_ledger().statement("people").releases) == 1


def test_parameters_of_an_earlier_version_give_the_same_release(ready: Path, prefect: SyncPrefectClient) -> None:
    old = _deploy(prefect, **OF_BEFORE)
    assert _run_of_deployment_notes(prefect, old).state_name == "Completed"
    assert _run_of_deployment_notes(prefect, _deploy(prefect)).state_name == "Completed"
    assert len(_ledger().statement("people").releases) == 1


def test_a_dry_run_ends_in_its_verdict_and_charges_nothing(
    deployment: UUID, prefect: SyncPrefectClient, ready: Path
) -> None:
    before = facts_of(ready)
    admitted = _run_of_deployment_notes(prefect, deployment, dry_run=True)
    assert admitted.state is not None
    assert (admitted.state.type.value, admitted.state.name) == ("COMPLETED", "Admitted")
    fitting = _ledger().runs_that_fit("people", epsilon=0.5, delta=1e-6)
    assert admitted.state.message == (
        "Admitted: a run is charged epsilon 0.5 at delta 1e-06 of budget people; "
        f"the budget has epsilon 2 left for one release; {fitting} such runs fit. "
        "The guarantee of a run: (0.5, 1e-6)-differential privacy when one row is added or removed."
    )
    refused = _run_of_deployment_notes(prefect, deployment, dry_run=True, epsilon=2.5)
    assert refused.state is not None
    assert (refused.state.type.value, refused.state.name) == ("COMPLETED", "NotAdmitted")
    assert "Refused: a run requests epsilon 2.5 at delta 1e-06 of budget people" in str(refused.state.message)
    (card,) = (item for item in prefect.read_artifacts() if item.flow_run_id == refused.id)
    assert (card.key, str(refused.state.message) in str(card.data)) == ("dry-run-sub", True)
    assert facts_of(ready) == before


def test_a_dry_run_of_an_invalid_request_ends_as_refused(deployment: UUID, prefect: SyncPrefectClient) -> None:
    assert _run_of_deployment_notes(prefect, deployment, dry_run=True, components=60).state_name == "Refused"


def test_form_and_description_state_the_remaining_budget_after_each_run(
    deployment: UUID, prefect: SyncPrefectClient
) -> None:
    plain = _shown_of_deployment_notes(prefect.read_deployment(deployment))
    notes = []
    for parameters in (
        {},
        {"dry_run": True},
        {"epsilon": 1.9, "run_key": "large"},
        {"epsilon": 1.9, "run_key": "more"},
    ):
        run = _run_of_deployment_notes(prefect, deployment, **parameters)
        found = prefect.read_deployment(deployment)
        base, _, note = str(found.description).partition("\n\n---\n\n")
        assert base == TEXT
        assert _shown_of_deployment_notes(found) == f"{plain}\n\n---\n\n{note}"
        assert re.match(r"Next run, as of \d{4}-\d\d-\d\d \d\d:\d\d UTC: ", note)
        notes.append((run.state_name, note.partition("UTC: ")[2]))
        assert (found.tags, found.parameters) == (["dpca", "release"], PARAMETERS)
    left = _ledger().statement("people").remaining
    assert [state for state, _ in notes] == ["Completed", "Admitted", "Completed", "BudgetExhausted"]
    assert notes[0][1] == notes[1][1]
    assert notes[0][1].startswith(
        "Admitted: a run is charged epsilon 0.5 at delta 1e-06 of budget people; the budget has epsilon 1.9"
    )
    expected = f"a run requests epsilon 0.5 at delta 1e-06 of budget people, and the budget has epsilon {left:.6g} left"
    assert notes[2][1] == notes[3][1] == f"Refused: {expected} for one release; nothing would be charged."


def test_a_release_succeeds_if_its_description_cannot_be_updated(
    deployment: UUID, prefect: SyncPrefectClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    def breaks(*_: Any, **__: Any) -> None:
        raise OSError("no server")

    monkeypatch.setattr(prefect_stages, "note_on_deployment", breaks)
    assert _run_of_deployment_notes(prefect, deployment).state_name == "Completed"
    monkeypatch.setattr(prefect_stages, "get_client", breaks)
    assert _run_of_deployment_notes(prefect, deployment).state_name == "Completed"
    assert prefect.read_deployment(deployment).description == TEXT


def test_a_dry_run_of_the_loop_states_the_epsilon_of_the_next_release(ready: Path, prefect: SyncPrefectClient) -> None:
    flow: Flow[..., Any] = refresh_subspace
    requested = {name: value for name, value in PARAMETERS.items() if name != "epsilon"}
    requested |= {"inbox": "@people", "epsilon": None}
    share = written_share(_ledger().pace("people", runs=4, delta=1e-6).epsilon_each)
    state: Any = flow(**requested, releases=4, dry_run=True, return_state=True)
    assert (state.name, state.message) == (
        "Admitted",
        f"Admitted: a run is charged epsilon {share:g} at delta 1e-06 of budget people; "
        "the budget has epsilon 2 left for one release; 4 such runs fit. The guarantee of a run: "
        f"{privacy_statement(epsilon=share, delta=1e-6, relation='add_remove', unit=PrivacyUnit())}.",
    )
    for others, name in (({"epsilon": 3.0}, "NotAdmitted"), ({}, "Refused")):
        ended: Any = flow(**{**requested, **others}, dry_run=True, return_state=True)
        assert ended.name == name
    assert _ledger().statement("people").releases == ()
