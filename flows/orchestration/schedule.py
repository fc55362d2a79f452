"""What Prefect knows of a run that nobody waits for: that a deployment started it, and when it was planned."""

from datetime import UTC

from prefect.client.schemas.objects import FlowRun
from prefect.context import FlowRunContext


def is_deployed() -> bool:
    """Return whether a deployment started the running flow, on a schedule or at somebody's request."""
    run = _running()
    return run is not None and run.deployment_id is not None


def schedule_slot() -> str | None:
    """Return the planned start of the running flow in UTC, or None when no schedule planned it.

    Guarantees
    ----------
    A run that starts late, is retried, or is resumed after a crash has the slot that it was created with.
    """
    run = _running()
    if run is None or not run.auto_scheduled or run.expected_start_time is None:
        return None
    return str(run.expected_start_time.astimezone(UTC).isoformat())


def _running() -> FlowRun | None:
    context = FlowRunContext.get()
    return None if context is None else context.flow_run
