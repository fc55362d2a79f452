"""Schedules of a Prefect deployment: activation, and waiting for the start and the end of a run."""

from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from httpx import HTTPError
from prefect.client.schemas.actions import DeploymentScheduleCreate
from prefect.client.schemas.filters import (
    ArtifactFilter,
    ArtifactFilterFlowRunId,
    DeploymentFilter,
    DeploymentFilterId,
    FlowRunFilter,
    FlowRunFilterState,
    FlowRunFilterStateType,
)
from prefect.client.schemas.objects import Artifact, FlowRun, StateType
from prefect.client.schemas.schedules import IntervalSchedule
from prefect.states import AwaitingRetry

from tests.integration.processes import check, wait_until
from tests.integration.services import Stack

# interval so long that only one run starts before the schedule is deleted, even on a slow machine
EVERY = timedelta(seconds=90)
SOON = timedelta(seconds=6)  # the first run is after the next loop of Prefect's scheduler


class Job:
    """A Prefect deployment, and the parameters that its schedule passes."""

    def __init__(self, stack: Stack, deployment: str, parameters: Mapping[str, Any]) -> None:
        self._stack, self._parameters = stack, dict(parameters)
        with stack.client() as client:
            found = client.read_deployment_by_name(deployment)
        check(found.schedules, f"{deployment} is shipped without a schedule")
        check(
            not any(shipped.active for shipped in found.schedules), f"{deployment} is shipped with an active schedule"
        )
        self._deployment = found.id
        self._seen = {run.id for run in self._started()}

    def fire(self) -> UUID:
        """Activate a schedule until one run of the deployment has started; return the run."""
        schedule = IntervalSchedule(interval=EVERY, anchor_date=datetime.now(UTC) + SOON, timezone="UTC")
        requested = DeploymentScheduleCreate(schedule=schedule, active=True, parameters=self._parameters, slug="often")
        with self._stack.client() as client:
            (made,) = client.create_deployment_schedules(self._deployment, [requested])
        run = wait_until("a scheduled run starts", self._next)
        with self._stack.client() as client:
            client.delete_deployment_schedule(self._deployment, made.id)
        self._seen.add(run.id)
        check(run.auto_scheduled, "a run was not made by the schedule")
        return run.id

    def ending(self, run: UUID) -> FlowRun:
        """Wait until a run has ended; return the run."""

        def ended() -> FlowRun | None:
            # the database of Prefect's server may be restarting
            with suppress(HTTPError), self._stack.client() as client:
                found = client.read_flow_run(run)
                return found if found.state is not None and found.state.is_final() else None
            return None

        return wait_until("a scheduled run ends", ended)

    def artifacts(self, run: UUID) -> dict[str, Artifact]:
        """Return the Prefect artifacts that a run created, by key."""
        with self._stack.client() as client:
            wanted = ArtifactFilter(flow_run_id=ArtifactFilterFlowRunId(any_=[run]))
            return {str(artifact.key): artifact for artifact in client.read_artifacts(artifact_filter=wanted)}

    def retry(self, run: UUID) -> None:
        """Retry a run whose process no longer exists, as an operator would."""
        with self._stack.client() as client:
            client.set_flow_run_state(run, AwaitingRetry(scheduled_time=datetime.now(UTC)), force=True)

    def _next(self) -> FlowRun | None:
        return next((run for run in self._started() if run.id not in self._seen), None)

    def _started(self) -> list[FlowRun]:
        early = FlowRunFilterStateType(not_any_=[StateType.SCHEDULED, StateType.PENDING])
        with self._stack.client() as client:
            return client.read_flow_runs(
                deployment_filter=DeploymentFilter(id=DeploymentFilterId(any_=[self._deployment])),
                flow_run_filter=FlowRunFilter(state=FlowRunFilterState(type=early)),
            )
