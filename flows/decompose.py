"""Decompose records into components: the job of the family of tensors, as a flow and from this process."""

from typing import Any

from prefect import flow
from prefect.client.schemas.objects import State

from flows.options import DryRun, Workers, form_field, with_options
from flows.releases.stages import Caller, release_in_flow, run_release
from flows.requests.base import NO_FORM_ASKS
from flows.requests.tensor import TensorRequest


def run_decomposition(
    request: TensorRequest, *, workers: int | None = None, direct: bool = False, caller: Caller | None = None
) -> dict[str, Any]:
    """Run a decomposition from this process: as a Prefect flow, or directly."""
    return run_release(request, decompose, workers=workers, direct=direct, caller=caller)


@flow(name="decompose", persist_result=False, log_prints=False, validate_parameters=True)
@with_options(TensorRequest, annotation=form_field, without=NO_FORM_ASKS)
def decompose(*, dry_run: DryRun = False, workers: Workers = None, **request: Any) -> dict[str, Any] | State[Any]:
    """Release topics of documents or centres of points and publish them as a new version of a name.

    `flows.requests.tensor.TensorRequest` declares the parameters beside dry_run and workers.
    """
    return release_in_flow(TensorRequest, request, workers=workers, dry_run=dry_run)
