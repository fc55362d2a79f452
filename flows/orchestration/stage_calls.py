"""Direct calls of stages, their end states and the events emitted to Prefect.

A stage is a plain function of names and public numbers. `prefect_stages` calls it as a Prefect task. This module does
not load Prefect.

An event of the resource ``dpca.NAME`` reports a change of the versions of a name. An event of the resource
``dpca.budget.POPULATION`` reports the remaining budget. The facts of an event are also labels of its resource, so that
automations can match them. The run and the deployment of the event are its related resources.
"""

import re
import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Any, Protocol

from dpca.errors import BudgetExhausted, StorageError, Unavailable
from dpca_tasks.errors import DpcaError, IncompleteSum, WorkerFailed
from storage.database.engine import one_connection

ENDINGS = {
    "BudgetExhausted": "The budget does not admit this release; nothing was charged.",
    "Refused": "The request was refused; the output of the command, or of the worker, states the reason.",
    "Unavailable": "A database, store or cluster could not be used; the same request resumes the work.",
    "StageFailed": "A stage failed; no value without noise was kept, and the same request resumes it.",
}


class StageEnded(DpcaError):
    """Failure of a stage under Prefect, identified only by the name of the state in which the stage ended."""

    def __init__(self, name: str, message: str | None = None) -> None:
        super().__init__(message or ENDINGS[name])
        self.name = name


class Runner(Protocol):
    """Callable that calls a stage and returns its result."""

    def __call__[**P, T](self, stage: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T: ...  # noqa: D102


def directly[**P, T](stage: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
    """Call a stage as a plain function, with one connection to the database."""
    with one_connection():
        return stage(*args, **kwargs)


def ending(error: BaseException) -> str:
    """Return the name of the state in which an error ends a run."""
    if isinstance(error, BudgetExhausted):
        return "BudgetExhausted"
    if isinstance(error, (Unavailable, WorkerFailed, IncompleteSum)):
        return "Unavailable"
    return "Refused" if isinstance(error, (DpcaError, StorageError)) else "StageFailed"


READ_NO_ROW = (
    *("reserve_release", "judge_request", "reserve_sites", "released_before", "begin_tick", "unfinished_tick"),
    *("begun_request", "state_release"),
)
"""Names of the stages that read only public facts. Their error messages may therefore name parameters."""


def parameters_at_fault(error: BaseException, parameters: Mapping[str, Any]) -> str:
    """Return the parameters of a run that an error message mentions, with their values, which Prefect shows anyway.

    >>> parameters_at_fault(ValueError("no dataset is named 'vists'"), {"dataset": "vists", "delta": 1e-6})
    "dataset='vists'"
    """
    text, found = str(error), []
    for name, value in parameters.items():
        spelled = (f"{name}={value!r}", f"{name}={value}", f"--{name.replace('_', '-')} {value}")
        quoted = isinstance(value, str) and len(value) > 1 and repr(value) in text
        if value is not None and (quoted or any(_states(text, each) for each in spelled)):
            found.append(f"{name}={value!r}")
    return ", ".join(found)


def _states(text: str, spelled: str) -> bool:
    """Return whether a text contains ``spelled`` as separate words, not within a longer word, as 0.1 is within 0.15."""
    return re.search(rf"(?<![\w-]){re.escape(spelled)}(?![\w.]*\w)", text) is not None


def shown_progress(label: str) -> AbstractContextManager[Callable[[int, int], None]]:
    """Show the progress of a sum on a Prefect card; show nothing in a process that has not loaded Prefect."""
    if "prefect" not in sys.modules:
        return nullcontext(lambda done, total: None)
    from flows.orchestration.prefect_artifacts import progress_card

    return progress_card(label)


def emit_public_event(event: str, *, resource: str, facts: Mapping[str, Any]) -> None:
    """Emit an event of the running flow; do nothing outside of a flow or if Prefect's server does not answer."""
    if not _in_run():
        return
    from prefect.events import emit_event

    labels = {f"dpca.{name}": str(value) for name, value in facts.items() if isinstance(value, (str, int, float))}
    with suppress(Exception):  # a release does not fail because an event cannot be sent
        emit_event(event=event, resource={**labels, "prefect.resource.id": resource}, payload=dict(facts))


def stored_secret(name: str) -> str | None:
    """Return the value of a Prefect Secret block; None outside of a run, and if there is no such block.

    Raises
    ------
    Unavailable
        When Prefect's server does not answer.
    """
    if not _in_run():
        return None
    from prefect.blocks.system import Secret

    try:
        block: Any = Secret.load(name)
    except ValueError:  # Prefect's error for a missing block
        return None
    except Exception as error:  # noqa: BLE001 - any error means that there is no answer
        raise Unavailable(
            f"block {name} of Prefect cannot be read ({type(error).__name__}); check that its server answers."
        ) from None
    return str(block.get())


def _in_run() -> bool:
    if "prefect" not in sys.modules:
        return False
    from prefect.context import FlowRunContext, TaskRunContext

    return FlowRunContext.get() is not None or TaskRunContext.get() is not None
