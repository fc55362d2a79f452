"""Fit a private subspace: plan, reserve, release, publish.

Every stage takes and returns names and public numbers. The same request is the same release: run again, it is found
by its run key, resumed where it stopped or returned when finished, and costs nothing.
"""

import dataclasses
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from contextvars import ContextVar, copy_context
from importlib.metadata import version
from typing import Any

from prefect import flow
from prefect.client.schemas.objects import State

from dpca_tasks.accounting.events import without_whole_samples
from dpca_tasks.errors import StepMismatch, StepTaken
from dpca_tasks.mechanisms.base import Plan
from dpca_tasks.mechanisms.parts.noise_level import release_warnings
from dpca_tasks.mechanisms.parts.quantile_clip import QuantileClip, histogram_epsilon
from dpca_tasks.mechanisms.results import Subspace
from dpca_tasks.privacy.curator import Curator
from dpca_tasks.privacy.disclosure import DisclosingCurator
from dpca_tasks.privacy.reservation import Reservation
from dpca_tasks.records.blocks import BlockSource
from dpca_tasks.records.sources import NormalisedBlocks
from flows.clusters.connecting import check_address, connect, open_cluster, reach_cluster
from flows.orchestration import form_fields
from flows.orchestration.own_server import prefect_server
from flows.orchestration.prefect_artifacts import show_progress, state_refusal, state_release
from flows.orchestration.prefect_stages import Runner, StageEnded, directly, finish, in_flow, recorded_failures
from flows.orchestration.schedule import schedule_slot
from flows.releases.planning import PlannedRelease, SubspaceRequest, plan_on, plan_subspace
from flows.releases.publish import digest_of, publish_release, released_digest, report_release
from flows.reports.logs import about, configure_logs, log_event
from flows.settings import Settings, cluster_settings
from storage.artifacts.files import write_artifact
from storage.artifacts.subspace import PrivateSubspace
from storage.errors import BudgetExhausted, Finished
from storage.home import home
from storage.workspace import Workspace

watch_progress: ContextVar[Callable[[int, int], None] | None] = ContextVar("watch_progress", default=None)


def reserve_release(request: SubspaceRequest, slot: str | None = None) -> tuple[str, str]:
    """Charge the budget for a request, or find its release; return the release's id and state.

    A cluster that runs already is reached first, so that nothing is charged for one that is missing.
    """
    workspace = Workspace.open()
    ledger, planned = workspace.ledger, plan_subspace(workspace, request, slot)
    if ledger.find(planned.run_key) is None:
        reach_cluster(cluster_settings())
    with about(run_key=planned.run_key, population=planned.population, mechanism=planned.plan.mechanism):
        try:
            grant = ledger.reserve(
                planned.population,
                run_key=planned.run_key,
                fingerprint=planned.fingerprint,
                event=planned.plan.event,
                epsilon=planned.plan.target.epsilon,
                delta=planned.plan.target.delta,
                void=request.i_know_this_is_not_private,
                snapshot_id=planned.snapshot_id,
                request=dataclasses.asdict(request),
            )
        except BudgetExhausted:
            log_event("refused", remaining=ledger.statement(planned.population).remaining)
            raise
        log_event("reserved", release=grant.release_id, state=grant.state)
    return grant.release_id, grant.state


def compute_release(release_id: str, address: str) -> str:
    """Release what was reserved, on the cluster at ``address``, and write the artifact; return its digest.

    When another process finishes the release first, its artifact is the one: nothing more is computed.

    Raises
    ------
    StepMismatch
        When this version of the program plans another event for the request than the one reserved.
    """
    workspace = Workspace.open()
    try:
        return _compute(workspace, release_id, address)
    except Finished:
        log_event("finished_by_another", release=release_id)
        return digest_of(workspace.ledger, release_id)


def fit(run: Runner, request: SubspaceRequest, settings: Settings, *, slot: str | None = None) -> dict[str, Any]:
    """Run the stages of a fit; return the public facts of what was published."""
    configure_logs(settings.log)
    check_address(settings)
    release_id, state = run(reserve_release, request, slot)
    if state == "committed":
        digest = run(released_digest, release_id)
    else:
        with open_cluster(settings, scratch=home() / "scratch") as address:
            digest = run(compute_release, release_id, address)
    artifact = run(publish_release, release_id, digest, request.publish)
    report = run(report_release, artifact, reused=state == "committed")
    log_event("published", **{name: report[name] for name in ("release", "artifact", "reused", "spent", "remaining")})
    return report


def run_fit(
    request: SubspaceRequest,
    *,
    workers: int | None = None,
    direct: bool = False,
    watch: Callable[[int, int], None] | None = None,
) -> dict[str, Any]:
    """Run a fit from this process: as a Prefect flow, or directly."""
    token = watch_progress.set(watch)
    try:
        if direct:
            return fit(directly, request, cluster_settings(workers))
        with prefect_server(), recorded_failures():
            arguments = {item.name: getattr(request, item.name) for item in dataclasses.fields(request)}
            report: dict[str, Any] = finish(fit_subspace(**arguments, workers=workers, return_state=True))
            return report
    finally:
        watch_progress.reset(token)


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

    def body(run: Runner) -> dict[str, Any]:
        try:
            report = fit(run, request, cluster_settings(workers), slot=schedule_slot())
        except StageEnded as end:
            if end.name == "BudgetExhausted" and epsilon is not None and delta is not None:
                run(state_refusal, dataset, epsilon, delta)
            raise
        run(state_release, report["artifact"])
        return report

    return in_flow(body)


def _compute(workspace: Workspace, release_id: str, address: str) -> str:
    ledger, catalog = workspace.ledger, workspace.catalog
    row = ledger.release(release_id)
    snapshot = catalog.entry(row.snapshot_id)
    planned = plan_on(ledger, snapshot, SubspaceRequest(**row.request))
    if row.event not in (planned.plan.event, without_whole_samples(planned.plan.event)):
        raise StepMismatch("the plan is not the one reserved; finish this release with the version that reserved it.")
    planned = dataclasses.replace(planned, plan=dataclasses.replace(planned.plan, event=row.event))
    source: BlockSource = catalog.open(snapshot)
    if planned.row_policy == "normalise":
        source = NormalisedBlocks(source, length=planned.plan.problem.clip_norm)
    with about(release=release_id, run_key=row.run_key), connect(address) as client:
        reservation = ledger.begin(release_id)
        log_event("began", mechanism=planned.plan.mechanism)
        began = time.monotonic()
        subspace = _run(planned, source, reservation, client=client, progress=_progress(release_id))
        log_event("computed", seconds=round(time.monotonic() - began, 3))
        artifact = _artifact(planned, subspace, release_id, catalog.open(snapshot).feature_names())
        for warning in artifact.manifest.get("warnings", ()):
            log_event("warned", warning=warning)
    return write_artifact(artifact, home=workspace.home, place=workspace.store)


def _run(planned: PlannedRelease, source: BlockSource, reservation: Reservation, **others: Any) -> Subspace:
    """Run the mechanism, again after each step that another process answered first, from what it asked and got."""
    while True:
        with suppress(StepTaken):
            return planned.mechanism.run(_curator(planned, source, reservation, **others), planned.plan)


def _progress(release_id: str) -> Callable[[int, int], None]:
    """Return what is told the partitions done: the terminal's bar, Prefect's, and the log.

    A cluster tells it from threads of its own; each call runs in the context of the stage, as Prefect and the log want.
    """
    watch, show, context = watch_progress.get(), show_progress(f"release {release_id}"), copy_context()

    def tell(done: int, total: int) -> None:
        if watch is not None:
            watch(done, total)
        show(done, total)
        if done == total:
            log_event("summed", partitions=total)

    return lambda done, total: context.copy().run(tell, done, total)


def _curator(planned: PlannedRelease, source: BlockSource, reservation: Reservation, **others: Any) -> Curator:
    """Return a curator, which answers without noise only in a release that was planned to be not private."""
    if planned.plan.target.i_know_this_is_not_private:
        return DisclosingCurator(source, reservation, i_know_this_is_not_private=True, **others)
    return Curator(source, reservation, **others)


def _artifact(
    planned: PlannedRelease, subspace: Subspace, release_id: str, names: Sequence[str] | None
) -> PrivateSubspace:
    """State a result with its public facts, and nothing else; names are those that the dataset's owner declared."""
    plan = planned.plan
    noise: dict[str, Any] = {"noise_multiplier": plan.noise_multiplier, "grid_bits": plan.bits}
    if plan.real_epsilon is not None:
        noise["real_epsilon_at_most"] = plan.real_epsilon
    if not plan.certified:
        noise["certified"] = False
    if isinstance(planned.mechanism, QuantileClip):
        noise |= {"clip_quantile": planned.mechanism.quantile, "clip_epsilon": histogram_epsilon(plan.target)}
    facts = {
        "total_variance": subspace.total_variance,
        "outcome": subspace.outcome,
        "feature_names": None if names is None else list(names),
        "warnings": list(release_warnings(plan, subspace)) or None,
    }
    stated = {name: fact for name, fact in facts.items() if fact is not None}
    return PrivateSubspace(
        components=subspace.components,
        eigenvalues=subspace.eigenvalues,
        spectrum=subspace.spectrum,
        further=subspace.further,
        mean=subspace.mean,
        manifest={
            **stated,
            "mechanism": plan.mechanism,
            "parameters": planned.parameters,
            "clip_norm": plan.problem.clip_norm if subspace.clip_norm is None else subspace.clip_norm,
            "code_version": version("dpca-pipeline"),
            "plan": {**noise, "row_policy": planned.row_policy, "center": plan.problem.center},
            "privacy": {
                **_guarantee(plan),
                "relation": plan.problem.relation,
                "unit": "record",
                "records_at_most": plan.problem.records_at_most,
                "event": plan.event,
            },
            "release": release_id,
        },
    )


def _guarantee(plan: Plan) -> dict[str, Any]:
    """State what was promised, or that nothing was; JSON has no infinity."""
    if plan.target.i_know_this_is_not_private:
        return {"private": False, "epsilon": None, "delta": None}
    return {"epsilon": plan.target.epsilon, "delta": plan.target.delta}
