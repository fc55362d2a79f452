"""How a stage runs: called plainly, or as one Prefect task. Prefect is put on here, from outside, and nowhere else.

A stage is a plain function of names and public numbers. `directly` calls it. `under_prefect` calls it as a task
whose result is never persisted and never cached, and whose failure is a named state that holds no detail: details
stay in this process, where the command prints them, or where nobody waits the worker's log keeps them.

A deployment's run outlives a restart of a database, store or cluster: its stages are tried again, which costs nothing,
because every stage of the same request is the same release.

Others may write to Prefect's API, so nothing is read from a state that its server returns: what a flow's body returned,
or the errors that ended it, are handed over in this process.
"""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import wraps
from typing import Any, Protocol

from prefect import Task
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State, TaskRun
from prefect.exceptions import ExternalSignal
from prefect.states import Failed

from dpca_tasks.errors import DpcaError, IncompleteSum, WorkerFailed
from flows.orchestration.schedule import is_deployed
from storage.database.connections import one_connection
from storage.errors import BudgetExhausted, StorageError, Unavailable

RETRY_DELAYS = (5.0, 15.0, 30.0, 60.0)
"""Seconds between the attempts of a deployment's stage that met an unusable place."""

LOG = logging.getLogger("dpca.flows")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ended:
    """How the flow that runs in this process ended: what its body returned, or its errors."""

    results: list[Any] = field(default_factory=list)
    failures: list[Exception] = field(default_factory=list)


_ended: ContextVar[_Ended | None] = ContextVar("ended", default=None)

ENDINGS = {
    "BudgetExhausted": "The budget does not admit this release; nothing was charged.",
    "Refused": "The request was refused; the output of the command, or of the worker, states the reason.",
    "Unavailable": "A database, store or cluster could not be used; the same request resumes what was begun.",
    "StageFailed": "A stage failed; nothing un-noised was kept, and the same request resumes it.",
}


class StageEnded(DpcaError):
    """A stage under Prefect ended in a named state, of which this process knows no more."""

    def __init__(self, name: str) -> None:
        super().__init__(ENDINGS[name])
        self.name = name


class Runner(Protocol):
    """Calls a stage and returns its result."""

    def __call__[**P, T](self, stage: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T: ...  # noqa: D102


def directly[**P, T](stage: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
    """Call a stage as a plain function, with one connection to the database."""
    with one_connection():
        return stage(*args, **kwargs)


def under_prefect[**P, T](stage: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
    """Call a stage as a Prefect task of the running flow.

    Raises
    ------
    StageEnded
        When the stage failed; the cause is kept for `finish`.
    """
    # A task's own overloads cannot tell that the stage is synchronous.
    call: Callable[..., Any] = as_task(stage, patient=is_deployed())
    state: State[T] = call(*args, **kwargs, return_state=True)
    if state.is_completed():
        return state.result()
    raise StageEnded(state.name if state.name in ENDINGS else "StageFailed") from None


def as_task(stage: Callable[..., Any], *, patient: bool = False) -> Task[..., Any]:
    """Wrap a stage as a task that stores and logs nothing; a patient one retries while storage is unavailable."""

    @wraps(stage)
    def guarded(*args: Any, **kwargs: Any) -> Any:
        try:
            return directly(stage, *args, **kwargs)
        except (KeyboardInterrupt, ExternalSignal):  # somebody stops the run; the signal holds no data
            raise
        except BaseException as error:  # noqa: BLE001 - kept for this process, hidden from Prefect
            return _failed(error)

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


def ending(error: BaseException) -> str:
    """Name the state in which an error ends a run."""
    if isinstance(error, BudgetExhausted):
        return "BudgetExhausted"
    if isinstance(error, (Unavailable, WorkerFailed, IncompleteSum)):
        return "Unavailable"
    return "Refused" if isinstance(error, (DpcaError, StorageError)) else "StageFailed"


def in_flow[T](body: Callable[[Runner], T]) -> T | State[Any]:
    """Run a job's body under Prefect and end the flow in the state that its stage ended in."""
    try:
        result = body(under_prefect)
        if (ended := _ended.get()) is not None:
            ended.results.append(result)
        return result
    except StageEnded as end:
        return Failed(name=end.name, message=ENDINGS[end.name])
    except (KeyboardInterrupt, ExternalSignal):
        raise
    except BaseException as error:  # noqa: BLE001 - as for a stage: a cluster that fails to start, say
        return _failed(error)


def finish(flow: Callable[[], State[Any]]) -> Any:
    """Run a flow in this process; return what its body returned, or raise the error that ended it.

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
                raise  # else the server failed, or forgot the run, after the body had ended
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


def _failed(error: BaseException) -> State[Any]:
    ended, name = _ended.get(), ending(error)
    if ended is None:
        ours = isinstance(error, (DpcaError, StorageError))
        LOG.error("%s: %s", name, error if ours else f"unexpected {type(error).__name__}")
    else:
        ended.failures.append(error if isinstance(error, Exception) else StageEnded(name))
    return Failed(name=name, message=ENDINGS[name])
