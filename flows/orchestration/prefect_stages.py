"""Execution of the stages of a run as Prefect tasks, and access to the run's schedule and deployment.

A stage is a plain function of names and public numbers. `stage_calls.directly` calls it. `under_prefect` calls it as a
task whose result is never persisted and never cached. Its failure is a named state without details. The details stay
in this process, where the command prints them; in a deployment, the log of the worker keeps them. If no row was read,
the state names the parameters at fault.

The run of a deployment survives a restart of a database, store or cluster. Its stages are retried, which costs nothing,
because every stage of the same request belongs to the same release.

Other clients may write to Prefect's API, so no result is read from a state that its server returns. The result of a
flow's body, or the errors that ended it, are passed inside this process.

A note can be added to the description and form of a deployment, where Prefect shows only fixed text. It is rewritten
after each run, below the deployment's own text. The next deployment replaces it.
"""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import wraps
from typing import Any

from prefect import Task
from prefect.cache_policies import NO_CACHE
from prefect.client.orchestration import get_client
from prefect.client.schemas.actions import DeploymentUpdate
from prefect.client.schemas.objects import FlowRun, State, TaskRun
from prefect.client.schemas.responses import DeploymentResponse
from prefect.context import FlowRunContext
from prefect.exceptions import ExternalSignal
from prefect.states import Failed

from dpca.errors import NotFound, Refused, StorageError
from dpca_tasks.errors import DpcaError
from flows.orchestration.stage_calls import (
    ENDINGS,
    READ_NO_ROW,
    Runner,
    StageEnded,
    directly,
    ending,
    parameters_at_fault,
)


def is_deployed() -> bool:
    """Return whether a deployment started the running flow, on a schedule or manually."""
    run = _running()
    return run is not None and run.deployment_id is not None


def schedule_slot() -> str | None:
    """Return the planned start of the running flow in UTC, or None when no schedule planned it.

    Guarantees
    ----------
    A run that starts late, is retried, or is resumed after a crash keeps the slot with which it was created.
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
    Prefect stores the start in UTC. The idempotency key of a scheduled run ends with the local time and its UTC offset.
    The key does not change if the schedule is edited or removed later.
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
            "this scheduled run does not state the local time of its start; run `dpca stream tick` with --slot instead."
        ) from None
    return local.isoformat()


def _scheduled() -> FlowRun | None:
    """Return the running flow if a schedule planned it."""
    run = _running()
    return None if run is None or not run.auto_scheduled or run.expected_start_time is None else run


def _running() -> FlowRun | None:
    context = FlowRunContext.get()
    return None if context is None else context.flow_run


COMPANIONS = "dry_run"
"""Name of the parameter whose help text in the form ends with the note."""
_SIGN = "\n\n---\n\n"


def deployed_parameters() -> dict[str, Any] | None:
    """Return the parameters of the deployment that started the running flow; None if no deployment did."""
    found = _deployment()
    return None if found is None else dict(found.parameters)


def note_on_deployment(note: str) -> None:
    """Write a note into the description and the form of the deployment that started the running flow."""
    found = _deployment()
    if found is None:
        return
    schema = dict(found.parameter_openapi_schema or {})
    shown = dict(schema.get("properties", {}))
    if COMPANIONS in shown:
        shown[COMPANIONS] = {**shown[COMPANIONS], "description": _noted(shown[COMPANIONS].get("description"), note)}
    changed = {
        "description": _noted(found.description, note),
        "parameter_openapi_schema": {**schema, "properties": shown},
    }
    with get_client(sync_client=True) as client:
        client.update_deployment(found.id, DeploymentUpdate.model_validate(changed))


def _noted(text: str | None, note: str) -> str:
    return f"{(text or '').partition(_SIGN)[0]}{_SIGN}{note}"


def _deployment() -> DeploymentResponse | None:
    context = FlowRunContext.get()
    if context is None or context.flow_run is None or context.flow_run.deployment_id is None:
        return None
    with get_client(sync_client=True) as client:
        return client.read_deployment(context.flow_run.deployment_id)


RETRY_DELAYS = (5.0, 15.0, 30.0, 60.0)
"""Seconds between the attempts of a deployment's stage while a database, store or cluster is unavailable."""

LOG = logging.getLogger("dpca.flows")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ended:
    """Outcome of a flow in this process: the results of its body, or the errors that ended it."""

    results: list[Any] = field(default_factory=list)
    failures: list[Exception] = field(default_factory=list)


_ended: ContextVar[_Ended | None] = ContextVar("ended", default=None)


def under_prefect[**P, T](stage: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
    """Call a stage as a Prefect task of the running flow.

    Raises
    ------
    StageEnded
        When the stage failed; `finish` later raises the original error.
    """
    # The overloads of Task cannot express that the stage is synchronous.
    call: Callable[..., Any] = as_task(stage, patient=is_deployed())
    state: State[T] = call(*args, **kwargs, return_state=True)
    if state.is_completed():
        return state.result()
    if state.name in ENDINGS:
        raise StageEnded(state.name, state.message) from None
    raise StageEnded("StageFailed") from None


def as_task(stage: Callable[..., Any], *, patient: bool = False) -> Task[..., Any]:
    """Wrap a stage as a task that stores and logs nothing; a patient task is retried after an Unavailable error."""

    @wraps(stage)
    def guarded(*args: Any, **kwargs: Any) -> Any:
        try:
            return directly(stage, *args, **kwargs)
        except (KeyboardInterrupt, ExternalSignal):  # the run is being stopped; the signal holds no data
            raise
        except BaseException as error:  # noqa: BLE001 - the error stays in this process, hidden from Prefect
            return _failed(error, is_public=stage.__name__ in READ_NO_ROW or isinstance(error, NotFound))

    return Task(
        guarded,
        name=stage.__name__.replace("_", "-"),
        persist_result=False,
        cache_policy=NO_CACHE,
        log_prints=False,
        retries=len(RETRY_DELAYS) if patient else 0,
        retry_delay_seconds=list(RETRY_DELAYS),
        retry_condition_fn=_may_pass,
    )


def in_flow[T](body: Callable[[Runner], T]) -> T | State[Any]:
    """Run a job's body under Prefect; if a stage fails, end the flow in the state of that stage."""
    try:
        result = body(under_prefect)
        if (ended := _ended.get()) is not None:
            ended.results.append(result)
        return result
    except StageEnded as end:
        return Failed(name=end.name, message=str(end))
    except (KeyboardInterrupt, ExternalSignal):
        raise
    except BaseException as error:  # noqa: BLE001 - an error outside of a stage, such as a cluster that fails to start
        return _failed(error, is_public=True)


def finish(flow: Callable[[], State[Any]]) -> Any:
    """Run a flow in this process; return the result of its body, or raise the error that ended it.

    Raises
    ------
    StageEnded
        When the body never ran, whatever state Prefect's server returned.
    """
    with _recorded() as ended:
        try:
            flow()
        except Exception:
            if not ended.results and not ended.failures:
                raise  # the body never ended; otherwise only Prefect's server failed, after the body
    if ended.results:
        return ended.results[-1]
    raise ended.failures[-1] if ended.failures else StageEnded("StageFailed")


@contextmanager
def _recorded() -> Iterator[_Ended]:
    ended = _Ended()
    token = _ended.set(ended)
    try:
        yield ended
    finally:
        _ended.reset(token)


def _may_pass(_task: Task[..., Any], _run: TaskRun, state: State[Any]) -> bool:
    return state.name == "Unavailable"


def _failed(error: BaseException, *, is_public: bool) -> State[Any]:
    """Return the state in which an error ends a run; for a public error, the state names the parameters at fault."""
    ended, name = _ended.get(), ending(error)
    if ended is None:
        ours = isinstance(error, (DpcaError, StorageError))
        LOG.error("%s: %s", name, error if ours else f"unexpected {type(error).__name__}")
    else:
        ended.failures.append(error if isinstance(error, Exception) else StageEnded(name))
    context = FlowRunContext.get()
    given = context.parameters if is_public and name == "Refused" and context is not None else None
    at_fault = parameters_at_fault(error, given or {})
    message = f"The request was refused because of {at_fault}; correct it." if at_fault else ENDINGS[name]
    return Failed(name=name, message=message)
