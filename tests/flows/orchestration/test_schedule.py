"""Slots of a schedule: each is one release, however often, late, or after whatever news it is tried."""

import dataclasses
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from prefect.context import FlowRunContext

from flows.orchestration.schedule import is_deployed, schedule_slot
from flows.releases.stages import reserve_release
from flows.requests.subspace import SubspaceRequest
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
