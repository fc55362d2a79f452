"""Slots of a schedule: each is one release, however often, late, or after whatever news it is tried."""

import asyncio
import dataclasses
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import AsyncMock, MagicMock
from uuid import uuid4
from zoneinfo import ZoneInfo

import pytest
from prefect.context import FlowRunContext
from prefect.server.database import provide_database_interface
from prefect.server.models import deployments
from prefect.server.schemas.schedules import CronSchedule, IntervalSchedule, RRuleSchedule

from dpca_tasks.errors import InvalidInput
from flows.families.stream_terms import StreamTerms
from flows.orchestration.schedule import is_deployed, planned_time, schedule_slot
from flows.releases.stages import reserve_release
from flows.requests.subspace import SubspaceRequest
from storage.errors import Refused
from storage.workspace import Workspace
from tests.flows.conftest import FEATURES, Command

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


def test_a_run_that_somebody_started_has_no_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    assert (schedule_slot(), is_deployed()) == (None, False)
    _run(monkeypatch, auto_scheduled=False, expected_start_time=datetime.now(UTC), deployment_id=None)
    assert (schedule_slot(), is_deployed()) == (None, False)
    _run(monkeypatch, auto_scheduled=False, expected_start_time=datetime.now(UTC), deployment_id="some")
    assert (schedule_slot(), is_deployed()) == (None, True)


def test_a_slot_is_one_release_and_another_slot_another(ready: Path) -> None:
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


def test_a_slot_tells_requests_and_datasets_apart(ready: Path, dpca: Command, rows_file: Path) -> None:
    words = ("dataset", "ingest", rows_file, "--name", "others", "--population", "people", "--features", FEATURES)
    assert dpca(*words, "--direct").status == 0
    asked = [REQUEST, dataclasses.replace(REQUEST, components=3), dataclasses.replace(REQUEST, dataset="others")]
    assert len({reserve_release(request, FIRST)[0] for request in asked}) == 3


def test_a_key_of_ones_own_wins_over_the_slot(ready: Path) -> None:
    named = dataclasses.replace(REQUEST, run_key="mine")
    assert reserve_release(named, FIRST)[0] == reserve_release(named, SECOND)[0]
    assert Workspace.open().ledger.find("mine") is not None


def _slots(patch: pytest.MonkeyPatch, schedule: Any, *, name: str, start: datetime, count: int) -> list[str]:
    """Return the slots of the runs that a schedule of Prefect plans, each as its run derives it."""
    terms, found = StreamTerms(facts={"schedule": name}, plan=cast(Any, None), weights=cast(Any, None)), []
    for date in schedule._get_dates_generator(n=count, start=start):
        key = f"scheduled {uuid4()} {uuid4()} {date}"  # as the scheduler of Prefect names a run
        stored = date.astimezone(UTC)
        _run(patch, auto_scheduled=True, expected_start_time=stored, deployment_id="some", idempotency_key=key)
        found.append(terms.slot_at(datetime.fromisoformat(planned_time() or "")))
    return found


ZONES = ("Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Asia/Kolkata", "UTC")


@pytest.mark.parametrize("zone", ZONES)
@pytest.mark.parametrize("clock", ["0 0", "30 0", "30 1", "30 2", "30 3", "30 19", "30 20", "59 23"])
def test_each_local_day_has_one_slot_when_clocks_change(monkeypatch: pytest.MonkeyPatch, zone: str, clock: str) -> None:
    local = ZoneInfo(zone)
    for month in (2, 9):  # 75 days hold the change of the clocks of every zone here
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
    """The server builds the key; a version that builds it otherwise fails here, and `planned_time` refuses its runs."""
    planned = CronSchedule(cron="30 1 * * *", timezone="Europe/Berlin")
    stub = SimpleNamespace(id=uuid4(), schedule=planned, slug="nightly", parameters={})
    monkeypatch.setattr(deployments, "read_deployment_schedules", AsyncMock(return_value=[stub]))
    monkeypatch.setattr(deployments, "with_system_labels_for_deployment_flow_run", AsyncMock(return_value={}))
    deployment = MagicMock(id=uuid4(), tags=[], parameters={})
    session: Any = SimpleNamespace(get=AsyncMock(return_value=deployment))
    asked: dict[str, Any] = {
        "start_time": datetime(2026, 3, 27, 12, tzinfo=UTC),
        "end_time": datetime(2027, 1, 1, tzinfo=UTC),
    }
    made = asyncio.run(
        deployments._generate_scheduled_flow_runs(
            db=provide_database_interface(),
            session=session,
            deployment_id=uuid4(),
            **asked,
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
    with pytest.raises(Refused, match="its slot by name"):
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
def test_a_slot_has_one_way_to_be_written(schedule: str) -> None:
    terms = StreamTerms(facts={"schedule": schedule}, plan=cast(Any, None), weights=cast(Any, None))
    right, wrong = SLOTS[schedule]
    assert [terms.check_slot(slot) for slot in right] == right
    blanks = [blank for slot in right for blank in (f"{slot} ", f" {slot}", f"{slot}\n", f"{slot}\u00a0", f"{slot}\t")]
    for slot in (*wrong, *WRONG, *blanks):
        with pytest.raises(InvalidInput, match="write it like"):
            terms.check_slot(slot)
