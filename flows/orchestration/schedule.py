"""What Prefect knows of a run that nobody waits for: that a deployment started it, and when it was planned."""

from datetime import UTC, datetime

from prefect.client.schemas.objects import FlowRun
from prefect.context import FlowRunContext

from storage.errors import Refused


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
    run = _scheduled()
    if run is None or run.expected_start_time is None:
        return None
    return str(run.expected_start_time.astimezone(UTC).isoformat())


def planned_time() -> str | None:
    """Return the planned start of the running flow in its schedule's time zone, or None when no schedule planned it.

    Raises
    ------
    Refused
        If the run does not state its local time.

    Notes
    -----
    Prefect stores the start in UTC. The key with which a schedule creates a run ends with the local time and its offset
    from UTC; it stays as it is where the schedule is edited or removed later.
    """
    run = _scheduled()
    if run is None:
        return None
    try:
        local = datetime.fromisoformat(str(run.idempotency_key).split(" ", 3)[3])
        if local != run.expected_start_time:
            raise ValueError
    except (ValueError, IndexError):
        raise Refused(
            "this scheduled run does not state the local time of its start; run the tick with its slot by name."
        ) from None
    return local.isoformat()


def _scheduled() -> FlowRun | None:
    """Return the running flow if a schedule planned it."""
    run = _running()
    return None if run is None or not run.auto_scheduled or run.expected_start_time is None else run


def _running() -> FlowRun | None:
    context = FlowRunContext.get()
    return None if context is None else context.flow_run
