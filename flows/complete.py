"""Complete a matrix of ratings: the job of the family of completion, as a flow and from this process."""

from typing import Any

from prefect import flow
from prefect.client.schemas.objects import State

from flows.options import DryRun, Workers, form_field, with_options
from flows.releases.stages import Caller, release_in_flow, run_release
from flows.requests.base import NO_FORM_ASKS
from flows.requests.completion import CompletionRequest


def run_completion(
    request: CompletionRequest, *, workers: int | None = None, direct: bool = False, caller: Caller | None = None
) -> dict[str, Any]:
    """Run a completion from this process: as a Prefect flow, or directly."""
    return run_release(request, complete, workers=workers, direct=direct, caller=caller)


@flow(name="complete", persist_result=False, log_prints=False, validate_parameters=True)
@with_options(CompletionRequest, annotation=form_field, without=NO_FORM_ASKS)
def complete(*, dry_run: DryRun = False, workers: Workers = None, **request: Any) -> dict[str, Any] | State[Any]:
    """Release item embeddings of a dataset of ratings and publish them as a new version of a name.

    `flows.requests.completion.CompletionRequest` declares the parameters beside dry_run and workers.
    """
    return release_in_flow(CompletionRequest, request, workers=workers, dry_run=dry_run)
