"""Fit a private subspace: the job of the family of subspaces, as a flow and from this process."""

from typing import Any

from prefect import flow
from prefect.client.schemas.objects import State

from flows.families.subspace import SubspaceRequest
from flows.orchestration import form_fields
from flows.releases.stages import Caller, release_in_flow, run_release


def run_fit(
    request: SubspaceRequest, *, workers: int | None = None, direct: bool = False, caller: Caller | None = None
) -> dict[str, Any]:
    """Run a fit from this process: as a Prefect flow, or directly."""
    return run_release(request, fit_subspace, workers=workers, direct=direct, caller=caller)


@flow(name="fit-subspace", persist_result=False, log_prints=False, validate_parameters=True)
def fit_subspace(
    dataset: form_fields.DatasetName,
    components: form_fields.Components,
    epsilon: form_fields.Epsilon,
    delta: form_fields.Delta,
    clip_norm: form_fields.ClipNorm,
    publish: form_fields.Publish,
    mechanism: form_fields.Mechanism = "analyze_gauss",
    settings: form_fields.MechanismSettings = None,
    run_key: form_fields.RunKey = None,
    workers: form_fields.Workers = None,
    *,
    allow_large_delta: form_fields.LargeDelta = False,
    row_policy: form_fields.RowPolicy = "clip",
    center: form_fields.Center = "none",
    i_know_this_is_not_private: form_fields.NotPrivate = False,
) -> dict[str, Any] | State[Any]:
    """Release a private subspace of a dataset and publish it as a new version of a name.

    `flows.orchestration.form_fields` describes the parameters.

    A scheduled run is one release of its slot, however often it is tried; any other is the one of its request.
    """
    request = SubspaceRequest(
        dataset=dataset,
        components=components,
        epsilon=epsilon,
        delta=delta,
        clip_norm=clip_norm,
        publish=publish,
        mechanism=mechanism,
        settings=settings or {},
        run_key=run_key,
        allow_large_delta=allow_large_delta,
        row_policy=row_policy,
        center=center,
        i_know_this_is_not_private=i_know_this_is_not_private,
    )
    return release_in_flow(request, workers)
