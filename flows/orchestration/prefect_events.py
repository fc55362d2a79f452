"""Events of Prefect, to which its automations react, and secrets that its blocks keep.

An event of the resource ``dpca.NAME`` says what happened to the versions of a name, one of ``dpca.budget.POPULATION``
what is left of a budget. Its facts are labels of the resource too, which automations match. The run and the deployment
that it happened in are its related resources.
"""

import sys
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from storage.errors import Unavailable


def emit_public_event(event: str, *, resource: str, facts: Mapping[str, Any]) -> None:
    """Emit an event of the running flow; nothing outside of one, and nothing where Prefect's server does not answer."""
    if not _in_run():
        return
    from prefect.events import emit_event

    labels = {f"dpca.{name}": str(value) for name, value in facts.items() if isinstance(value, (str, int, float))}
    with suppress(Exception):  # a release does not fail on who is told of it
        emit_event(event=event, resource={**labels, "prefect.resource.id": resource}, payload=dict(facts))


def stored_secret(name: str) -> str | None:
    """Return what a Secret block of Prefect holds; None outside of a run, and where there is no such block.

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
    except ValueError:  # as Prefect says that there is none
        return None
    except Exception as error:  # noqa: BLE001 - of whatever kind, it is no answer
        raise Unavailable(
            f"block {name} of Prefect cannot be read ({type(error).__name__}); see whether its server answers."
        ) from None
    return str(block.get())


def _in_run() -> bool:
    if "prefect" not in sys.modules:
        return False
    from prefect.context import FlowRunContext, TaskRunContext

    return FlowRunContext.get() is not None or TaskRunContext.get() is not None
