"""Release jobs, each run as a Prefect flow or directly.

`release_flow` makes the flow of a release family from its request class. `run_release` runs a request of any family
from this process. The schedule of a stream calls `tick_stream`: a slot is one tick, however often the schedule fires.
The operator opens, extends, shows and closes streams with `flows.releases.streams`.
"""

from collections.abc import Callable
from dataclasses import fields
from typing import Any

from prefect import Flow
from prefect.client.schemas.objects import State
from prefect.states import Completed

from flows.options import DryRun, Slot, SnapshotId, StreamName, Workers, form_field, with_options
from flows.orchestration.job_flows import job
from flows.orchestration.own_server import prefect_server
from flows.orchestration.prefect_artifacts import state_refusal, state_release, state_verdict
from flows.orchestration.prefect_stages import finish, in_flow, planned_time, schedule_slot
from flows.orchestration.stage_calls import Runner, StageEnded, directly
from flows.releases.stages import Caller, insisted, make_release, release_directly, waiting
from flows.releases.streams import make_tick
from flows.releases.verdicts import Verdict, judge_request, note_budget
from flows.reports.activity import begin_step
from flows.requests import (
    NO_FORM_ASKS,
    CompletionEvaluationRequest,
    CompletionRequest,
    Request,
    SubspaceEvaluationRequest,
    SubspaceRequest,
    TensorRequest,
)
from flows.settings import cluster_settings


def run_release(
    request: Request, *, workers: int | None = None, direct: bool = False, caller: Caller | None = None
) -> dict[str, Any]:
    """Run a request of any family from this process, as the flow of its family or directly.

    Parameters
    ----------
    request : Request
    workers : int, optional
        Number of processes of a cluster that is started for the run.
    direct : bool
        Whether to run without Prefect.
    caller : Caller, optional

    Returns
    -------
    dict
        The public facts of the published version.
    """
    if direct:
        return release_directly(request, workers=workers, caller=caller)
    given = {item.name: getattr(request, item.name) for item in fields(request) if item.name not in NO_FORM_ASKS}
    with waiting(caller, request):
        return _run_flow(FLOWS[request.family], **given, workers=workers)


def run_tick(
    name: str,
    *,
    slot: str | None = None,
    snapshot: str | None = None,
    workers: int | None = None,
    direct: bool = False,
) -> dict[str, Any]:
    """Run one slot of a stream from this process, as a Prefect flow or directly."""
    if direct:
        return make_tick(directly, name, cluster_settings(workers), slot=slot, snapshot=snapshot)
    return _run_flow(tick_stream, name=name, slot=slot, snapshot=snapshot, workers=workers)


def release_flow(kind: type[Request], name: str, text: str) -> Flow[..., Any]:
    """Make the flow that releases requests of a kind; ``text`` describes the flow in a sentence.

    A dry run ends in a state named after its verdict. Both a release and a dry run note in the deployment's form what
    the next run may do.
    """

    @with_options(kind, annotation=form_field, without=NO_FORM_ASKS)
    def release(*, dry_run: DryRun = False, workers: Workers = None, **given: Any) -> dict[str, Any] | State[Any]:
        def body(run: Runner) -> dict[str, Any] | State[Any]:
            request = insisted(kind(**given))
            if dry_run:
                return dry_run_in_flow(run, request)
            try:
                report = make_release(run, request, cluster_settings(workers), slot=schedule_slot())
            except StageEnded as end:
                if end.name == "BudgetExhausted":
                    run(state_refusal, request.dataset, request.epsilon, request.delta)
                note_budget(request)
                raise
            run(state_release, report["artifact"])
            note_budget(request)
            return report

        return in_flow(body)

    release.__name__ = release.__qualname__ = name.replace("-", "_")
    release.__doc__ = (
        f"{text}\n\n`{kind.__module__}.{kind.__name__}` declares all parameters except dry_run "
        "and workers.\n\nA scheduled run is one release of its slot, even after several attempts; other runs "
        "are identified by their request."
    )
    return job(name=name)(release)


fit_subspace = release_flow(
    SubspaceRequest,
    "fit-subspace",
    "Release a private subspace of a dataset and publish it as a new version of a name.",
)
complete = release_flow(
    CompletionRequest,
    "complete",
    "Release item embeddings of a dataset of ratings and publish them as a new version of a name.",
)
decompose = release_flow(
    TensorRequest,
    "decompose",
    "Release topics of documents or centres of points and publish them as a new version of a name.",
)
evaluate_subspace = release_flow(
    SubspaceEvaluationRequest,
    "evaluate-subspace",
    "Release a private estimate of the variance that a subspace captures, as a new version of a name.",
)
evaluate_completion = release_flow(
    CompletionEvaluationRequest,
    "evaluate-completion",
    "Release a private estimate of how well item embeddings predict, as a new version of a name.",
)

FLOWS: dict[str, Flow[..., Any]] = {
    SubspaceRequest.family: fit_subspace,
    CompletionRequest.family: complete,
    TensorRequest.family: decompose,
    SubspaceEvaluationRequest.family: evaluate_subspace,
    CompletionEvaluationRequest.family: evaluate_completion,
}
"""The flow of each family."""


@job(name="tick-stream")
@with_options(annotation=form_field)
def tick_stream(
    name: StreamName, *, slot: Slot = None, snapshot: SnapshotId = None, workers: Workers = None
) -> dict[str, Any] | State[Any]:
    """Publish the version of one slot of a stream, whose ticks are already paid for.

    A scheduled run is the tick of its slot, however often it is retried. A tick that was begun for an earlier slot is
    finished first.
    """

    def body(run: Runner) -> dict[str, Any]:
        report = make_tick(run, name, cluster_settings(workers), slot=slot, planned=planned_time(), snapshot=snapshot)
        run(state_release, report["artifact"])
        return report

    return in_flow(body)


def dry_run_in_flow(run: Runner, request: Request, *, releases: int | None = None, series: str = "") -> State[Any]:
    """Return the state named after the verdict on a request, and write the verdict as a Prefect artifact.

    ``releases`` and ``series`` are passed to `judge_request`.
    """
    verdict: Verdict = run(judge_request, request, releases=releases, series=series)
    run(state_verdict, request.publish, verdict.name, verdict.text)
    note_budget(request, series=series)
    return Completed(name=verdict.name, message=verdict.text)


def _run_flow(called: Callable[..., Any], **given: Any) -> dict[str, Any]:
    """Run a flow in this process, starting a Prefect server if none is configured; return the result of its body."""
    begin_step("starting Prefect")
    with prefect_server():
        report: dict[str, Any] = finish(lambda: called(**given, return_state=True))
        return report
