"""A note in a deployment's description and form, where Prefect shows nothing but fixed text.

It is written anew after each run, below what the deployment itself says, and replaced with the next deployment.
"""

from typing import Any

from prefect.client.orchestration import get_client
from prefect.client.schemas.actions import DeploymentUpdate
from prefect.client.schemas.responses import DeploymentResponse
from prefect.context import FlowRunContext

BESIDE = "dry_run"
"""The parameter whose help text in the form ends with the note."""
_SIGN = "\n\n---\n\n"


def deployed_parameters() -> dict[str, Any] | None:
    """Return the parameters of the deployment that started the running flow; None where none did."""
    found = _deployment()
    return None if found is None else dict(found.parameters)


def note_on_deployment(note: str) -> None:
    """Put a note into the description and the form of the deployment that started the running flow."""
    found = _deployment()
    if found is None:
        return
    schema = dict(found.parameter_openapi_schema or {})
    shown = dict(schema.get("properties", {}))
    if BESIDE in shown:
        shown[BESIDE] = {**shown[BESIDE], "description": _noted(shown[BESIDE].get("description"), note)}
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
