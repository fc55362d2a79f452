"""All jobs as Prefect flows: ingests, releases of each family, ticks of streams, refreshes and joint releases.

`release_flow` makes the flow of a release family from its request class. `run_release` runs a request of any family
from this process. The schedule of a stream calls `tick_stream`. Each slot of the schedule gets one tick (one version of
the stream), even if its run starts several times. The operator opens, extends, shows and closes streams with
`flows.releases.streams`.

A flow refuses unknown parameters. `check_deployments` checks the parameters in a deployment file before it is deployed.

A command imports this module, and Prefect with it, unless it runs with ``--direct``.
"""

from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from difflib import get_close_matches
from inspect import signature
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import yaml  # type: ignore[import-untyped]
from prefect import Flow
from prefect.client.schemas.objects import State
from prefect.exceptions import ParameterTypeError
from prefect.states import Completed

from dpca.errors import Invalid, NotFound
from flows.ingest import given_files, ingest_by, ingest_source
from flows.options import (
    Alias,
    DriftAtMost,
    DryRun,
    InboxAddress,
    NewName,
    Releases,
    Settled,
    Slot,
    SnapshotId,
    Sources,
    StreamName,
    Workers,
    form_field,
    with_options,
)
from flows.orchestration.own_server import prefect_server
from flows.orchestration.prefect_artifacts import state_refusal, state_release, state_verdict
from flows.orchestration.prefect_stages import finish, in_flow, is_deployed, planned_time, schedule_slot
from flows.orchestration.stage_calls import Runner, StageEnded
from flows.refresh import (
    DRIFT,
    LOOP,
    SERIES,
    SETTLED,
    found_inbox,
    make_refresh,
    nobody,
    parted,
    reporting_to,
)
from flows.releases.stages import CHAMPION, Caller, insisted, make_release, waiting
from flows.releases.streams import make_tick
from flows.releases.verdicts import Verdict, check_pace, judge_request, note_budget
from flows.reports.activity import begin_step
from flows.requests import (
    NOT_IN_FORMS,
    NOT_IN_LOOPS,
    CompletionEvaluationRequest,
    CompletionRequest,
    MomentRequest,
    Request,
    SitesRequest,
    SubspaceEvaluationRequest,
    SubspaceRequest,
    TensorRequest,
)
from flows.settings import cluster_settings
from flows.sites.releases import make_sites_release
from storage.datasets.ingest_options import DEFAULTS, IngestOptions
from storage.datasets.kept_sources import FILES, INBOXES, keep_source, reference_to
from storage.datasets.whole_records import Progress
from storage.workspace import Workspace


class JobFlow[**P, T](Flow[P, T]):
    """Flow that reports an unknown parameter together with the nearest known one."""

    def validate_parameters(self, parameters: dict[str, Any]) -> dict[str, Any]:
        """Check names first, then values as Prefect does.

        Raises
        ------
        ParameterTypeError
            When a parameter is unknown, or has a wrong type.
        """
        if text := unknown_parameters(self, parameters):
            raise ParameterTypeError(text)
        return super().validate_parameters(parameters)


def job(*, name: str) -> Callable[[Callable[..., Any]], JobFlow[..., Any]]:
    """Declare a flow that stores no result and does not log printed text."""

    def declare(function: Callable[..., Any]) -> JobFlow[..., Any]:
        return JobFlow(function, name=name, persist_result=False, log_prints=False, validate_parameters=True)

    return declare


def unknown_parameters(flow: Flow[..., Any], parameters: Mapping[str, Any]) -> str:
    """Return one line that lists the given parameters that a flow does not have; empty if there are none.

    After each of these names, the line suggests the most similar name of a parameter that the flow has.
    """
    known, taken = list(flow.parameters.properties), signature(flow.fn).parameters  # forms show only the `known` ones
    wrong = []
    for name in parameters:
        if name not in taken:
            near = get_close_matches(name, known, n=1)
            wrong.append(f"{name} (did you mean {near[0]}?)" if near else name)
    return f"{flow.name} has no parameter {', '.join(wrong)}; its parameters are {', '.join(known)}" if wrong else ""


def run_release(request: Request, *, workers: int | None = None, caller: Caller | None = None) -> dict[str, Any]:
    """Run a request of any family from this process, as the flow of its family.

    Parameters
    ----------
    request : Request
    workers : int, optional
        Number of processes of a cluster that is started for the run.
    caller : Caller, optional

    Returns
    -------
    dict
        The public facts of the published version.
    """
    given = {item.name: getattr(request, item.name) for item in fields(request) if item.name not in NOT_IN_FORMS}
    with waiting(caller, request):
        report: dict[str, Any] = _run_flow(FLOWS[request.family], **given, workers=workers)
        return report


def run_tick(
    name: str, *, slot: str | None = None, snapshot: str | None = None, workers: int | None = None
) -> dict[str, Any]:
    """Publish a stream's version for one slot of its schedule from this process, as a Prefect flow."""
    report: dict[str, Any] = _run_flow(tick_stream, name=name, slot=slot, snapshot=snapshot, workers=workers)
    return report


def release_flow(kind: type[Request], name: str, text: str) -> Flow[..., Any]:
    """Make the flow that releases requests of a kind; ``text`` describes the flow in a sentence.

    A dry run ends in a Prefect state named after its verdict on whether the budget admits the release. After a release
    or a dry run, the flow writes into the deployment's form whether the budget allows the next run.
    """

    @with_options(kind, annotation=form_field, without=NOT_IN_FORMS)
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
fit_moment = release_flow(
    MomentRequest,
    "fit-moment",
    "Release the second moment of a dataset and publish it as a new version of a name.",
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
    MomentRequest.family: fit_moment,
    SubspaceEvaluationRequest.family: evaluate_subspace,
    CompletionEvaluationRequest.family: evaluate_completion,
}
"""The flow of each family."""


@job(name="tick-stream")
@with_options(annotation=form_field)
def tick_stream(
    name: StreamName, *, slot: Slot = None, snapshot: SnapshotId = None, workers: Workers = None
) -> dict[str, Any] | State[Any]:
    """Publish a stream's version for one slot of its schedule; the stream's ticks (versions) are already paid for.

    A scheduled run publishes one tick for its slot, even after retries. An unfinished tick of an earlier slot is
    finished first.
    """

    def body(run: Runner) -> dict[str, Any]:
        report = make_tick(run, name, cluster_settings(workers), slot=slot, planned=planned_time(), snapshot=snapshot)
        run(state_release, report["artifact"])
        return report

    return in_flow(body)


@job(name="ingest-dataset")
@with_options(IngestOptions, annotation=form_field)
def ingest_dataset(source: Sources, name: NewName, **options: Any) -> str | State[Any]:
    """Ingest files as a new snapshot of a dataset; return the snapshot's id.

    `storage.datasets.ingest_options.IngestOptions` declares all parameters except source and name. A run of a
    deployment is an unattended ingest, which no bad record can stop.
    """

    def body(run: Runner) -> str:
        requested = IngestOptions(**options)
        return run(ingest_source, source, name, replace(requested, unattended=requested.unattended or is_deployed()))

    return in_flow(body)


def run_ingest(
    source: str | list[str],
    *,
    name: str,
    options: IngestOptions = DEFAULTS,
    watch: Progress | None = None,
) -> dict[str, Any]:
    """Ingest from this process, as a Prefect flow, and return the curator's facts of the snapshot.

    Prefect receives a reference to the files.
    """
    return ingest_by(
        lambda reference, values: _run_flow(ingest_dataset, source=reference, name=name, **values),
        source,
        name=name,
        options=options,
        watch=watch,
    )


@job(name="refresh-subspace")
@with_options(IngestOptions, SubspaceRequest, annotation=form_field, without=NOT_IN_LOOPS)
def refresh_subspace(
    inbox: InboxAddress,
    *,
    releases: Releases = None,
    alias: Alias = CHAMPION,
    drift_at_most: DriftAtMost = DRIFT,
    settled: Settled = SETTLED,
    dry_run: DryRun = False,
    workers: Workers = None,
    **given: Any,
) -> dict[str, Any] | State[Any]:
    """Ingest the files that arrived, release each, and move an alias to each release that passes the promotion gate.

    `flows.requests.SubspaceRequest` and `storage.datasets.ingest_options.IngestOptions` declare all parameters except
    those in the signature. Each arrival has a separate run key, so it is charged once.
    """

    def body(run: Runner) -> dict[str, Any] | State[Any]:
        options, request = parted(given)
        if dry_run:
            check_pace(request.epsilon, releases)
            return dry_run_in_flow(run, request, releases=releases, series=SERIES)
        address, options = found_inbox(inbox, options)
        try:
            return make_refresh(
                run,
                address,
                request,
                options,
                cluster_settings(workers),
                releases=releases,
                alias=alias,
                drift_at_most=drift_at_most,
                settled=settled,
                on_refusal=lambda: run(state_refusal, request.dataset, request.epsilon, request.delta),
                on_release=lambda artifact: run(state_release, artifact),
            )
        finally:
            note_budget(request, series=SERIES)

    return in_flow(body)


def run_refresh(
    inbox: str,
    request: SubspaceRequest,
    options: IngestOptions = DEFAULTS,
    *,
    workers: int | None = None,
    notify: Callable[[dict[str, Any]], None] = nobody,
    **loop: Any,
) -> dict[str, Any]:
    """Process an inbox from this process, as a Prefect flow; see `flows.refresh.refresh_directly`."""
    given = {item.name: getattr(record, item.name) for record in (request, options) for item in fields(record)}
    given = {name: value for name, value in given.items() if name not in NOT_IN_LOOPS}
    files = {"source": inbox, **{what: given.pop(what) for what in FILES[1:]}}
    token = given_files.set(files)
    try:
        with reporting_to(notify):
            known = reference_to(request.dataset)
            given |= {**LOOP, **loop}
            report: dict[str, Any] = _run_flow(refresh_subspace, inbox=known, **given, workers=workers)
    finally:
        given_files.reset(token)
    keep_source(Workspace.read_only().home, request.dataset, files, INBOXES)
    return report


@job(name="fit-sites")
@with_options(SitesRequest, annotation=form_field)
def fit_sites(*, workers: Workers = None, **request: Any) -> dict[str, Any] | State[Any]:
    """Release a private subspace or components over several datasets or a roster's sites, as a version of a name.

    `flows.requests.SitesRequest` declares all parameters except workers. A repeated request returns the same release.
    """

    def body(run: Runner) -> dict[str, Any]:
        report = make_sites_release(run, SitesRequest(**request), cluster_settings(workers))
        run(state_release, report["artifact"])
        return report

    return in_flow(body)


def run_sites_fit(request: SitesRequest, *, workers: int | None = None) -> dict[str, Any]:
    """Run a joint fit from this process, as a Prefect flow."""
    requested = {item.name: getattr(request, item.name) for item in fields(request)}
    report: dict[str, Any] = _run_flow(fit_sites, **requested, workers=workers)
    return report


def dry_run_in_flow(run: Runner, request: Request, *, releases: int | None = None, series: str = "") -> State[Any]:
    """Judge whether the budget admits a request, show this verdict in Prefect, and return a state named after it.

    Nothing is charged. ``releases`` and ``series`` are passed to `judge_request`.
    """
    verdict: Verdict = run(judge_request, request, releases=releases, series=series)
    run(state_verdict, request.publish, verdict.name, verdict.text)
    note_budget(request, series=series)
    return Completed(name=verdict.name, message=verdict.text)


def _run_flow(called: Callable[..., Any], **given: Any) -> Any:
    """Run a flow in this process, starting a Prefect server if none is configured; return the result of its body."""
    begin_step("starting Prefect")
    with prefect_server():
        return finish(lambda: called(**given, return_state=True))


def check_deployments(file: str) -> dict[str, Any]:
    """Check the parameters of every deployment in a file, as the ``build`` step of ``prefect deploy``.

    Raises
    ------
    Invalid, NotFound
        Before anything is deployed, with one line that names the deployment and the parameter.
    """
    path = Path(file)
    if not path.is_file():
        raise NotFound(f"{file} is not a file; name this deployment file in its build step")
    for found in yaml.safe_load(path.read_text(encoding="utf-8"))["deployments"]:
        if text := unknown_parameters(resolve_name(found["entrypoint"]), found.get("parameters") or {}):
            raise Invalid(f"deployment {found['name']}: {text}")
    return {}
