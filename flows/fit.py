"""Fit a private subspace: the job of the family of subspaces, as a flow and from this process."""

from typing import Any

from prefect import flow
from prefect.client.schemas.objects import State

from flows.options import DryRun, Workers, form_field, with_options
from flows.releases.stages import Caller, release_in_flow, run_release
from flows.requests.base import NO_FORM_ASKS
from flows.requests.subspace import SubspaceRequest


def run_fit(
    request: SubspaceRequest, *, workers: int | None = None, direct: bool = False, caller: Caller | None = None
) -> dict[str, Any]:
    """Run a fit from this process: as a Prefect flow, or directly."""
    return run_release(request, fit_subspace, workers=workers, direct=direct, caller=caller)


@flow(name="fit-subspace", persist_result=False, log_prints=False, validate_parameters=True)
@with_options(SubspaceRequest, annotation=form_field, without=NO_FORM_ASKS)
def fit_subspace(*, dry_run: DryRun = False, workers: Workers = None, **request: Any) -> dict[str, Any] | State[Any]:
    """Release a private subspace of a dataset and publish it as a new version of a name.

    `flows.requests.subspace.SubspaceRequest` declares the parameters beside dry_run and workers.

    A scheduled run is one release of its slot, however often it is tried; any other is the one of its request.
    """
    return release_in_flow(SubspaceRequest, request, workers=workers, dry_run=dry_run)
