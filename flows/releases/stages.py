"""The stages of a release of any family: plan, reserve, compute, publish, report.

Every stage takes and returns names and public numbers. The same request is the same release: run again, it is found
by its run key, resumed where it stopped or returned when finished, and costs nothing.
"""

from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, fields, replace
from typing import Any

from prefect.client.schemas.objects import State
from prefect.states import Completed

from flows.clusters.connecting import check_address, connect, open_cluster, reach_cluster
from flows.families.base import PlannedRelease
from flows.families.table import family_of
from flows.orchestration.own_server import prefect_server
from flows.orchestration.prefect_artifacts import state_refusal, state_release, state_verdict
from flows.orchestration.prefect_stages import Runner, StageEnded, directly, finish, in_flow
from flows.orchestration.progress_card import progress_card
from flows.orchestration.schedule import schedule_slot
from flows.releases.partitions import summing
from flows.releases.planning import plan_request
from flows.releases.publish import made_or_found, publish_release, released_digest, report_release
from flows.releases.running import charge_release, finish_release
from flows.releases.verdicts import Verdict, judge_request, note_budget
from flows.remote_ledger.workspaces import ReleaseWorkspace, open_workspace
from flows.reports.activity import begin_step
from flows.reports.logs import about, configure_logs, log_event
from flows.requests.base import NO_FORM_ASKS, Request
from flows.settings import Settings, cluster_settings
from storage.artifacts.files import remembered_artifacts
from storage.database.connections import one_connection
from storage.home import WORKERS, home


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """What somebody who waits in this process gives to the stages, and Prefect never sees.

    ``planned`` is the release that was shown and agreed to, which is then not planned again; ``insists`` is that a
    result need not be private, which no form offers.
    """

    insists: bool = False
    planned: PlannedRelease[Any] | None = None


_NOBODY = Caller()
_caller: ContextVar[Caller] = ContextVar("caller", default=_NOBODY)


def reserve_release(request: Request, slot: str | None = None) -> tuple[str, str]:
    """Charge the budget for a request, or find its release; return the release's id and state.

    A cluster that runs already is reached first, so that nothing is charged for one that is missing.
    """
    workspace, agreed = open_workspace(), _caller.get().planned
    ledger, planned = workspace.ledger, plan_request(workspace, request, slot) if agreed is None else agreed
    if ledger.find(planned.run_key, population=planned.population) is None:
        _forecast(planned)
        reach_cluster(cluster_settings())
    grant = charge_release(ledger, planned)
    return grant.release_id, grant.state


def compute_release(release_id: str, address: str) -> str:
    """Release what was reserved, on the cluster at ``address``, and write the artifact; return its digest.

    When another process finishes the release first, its artifact is the one: nothing more is computed.

    Raises
    ------
    StepMismatch
        When the request plans another event than the one that was reserved.
    """
    workspace = open_workspace()
    return made_or_found(workspace.ledger, release_id, lambda: _compute(workspace, release_id, address))


def make_release(run: Runner, request: Request, settings: Settings, *, slot: str | None = None) -> dict[str, Any]:
    """Run all stages; return the public facts of what was published."""
    configure_logs(settings.log)
    check_address(settings)
    begin_step("reserving the budget")
    with one_connection(), remembered_artifacts():
        release_id, state = run(reserve_release, request, slot)
        return make_reserved(run, request, settings, release_id, state)


def make_reserved(run: Runner, request: Request, settings: Settings, release_id: str, state: str) -> dict[str, Any]:
    """Run the stages after the reservation; return the public facts of what was published."""
    if state == "committed":
        digest = run(released_digest, release_id)
    else:
        with open_cluster(settings, scratch=home() / WORKERS) as address:
            digest = run(compute_release, release_id, address)
    begin_step("publishing")
    artifact = run(publish_release, release_id, digest, request)
    report = run(report_release, artifact, reused=state == "committed")
    log_event("published", **{name: report[name] for name in ("release", "artifact", "reused", "spent", "remaining")})
    return report


def run_release(
    request: Request,
    flow: Callable[..., State[Any]],
    *,
    workers: int | None = None,
    direct: bool = False,
    caller: Caller | None = None,
) -> dict[str, Any]:
    """Run the stages from this process: as the flow of the family, or directly."""
    token = _caller.set(replace(caller or _NOBODY, insists=request.i_know_this_is_not_private))
    try:
        if direct:
            return make_release(directly, request, cluster_settings(workers))
        asked = [item for item in fields(request) if item.name not in NO_FORM_ASKS]
        begin_step("starting Prefect")
        with prefect_server():
            given = {item.name: getattr(request, item.name) for item in asked}
            report: dict[str, Any] = finish(lambda: flow(**given, workers=workers, return_state=True))
            return report
    finally:
        _caller.reset(token)


def release_in_flow(
    kind: type[Request], given: dict[str, Any], *, workers: int | None, dry_run: bool = False
) -> dict[str, Any] | State[Any]:
    """Run the stages as the tasks of the running flow, whose body this is.

    A scheduled run is one release of its slot, however often it is tried; any other is the one of its request. A dry
    run ends in the state that names its verdict. Either notes in the deployment's form what its next run may do.
    """

    def body(run: Runner) -> dict[str, Any] | State[Any]:
        request = replace(kind(**given), i_know_this_is_not_private=_caller.get().insists)
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


def dry_run_in_flow(run: Runner, request: Request, *, releases: int | None = None, series: str = "") -> State[Any]:
    """Return the state that names the verdict on a request, with its artifact beside it; options of `judge_request`."""
    verdict: Verdict = run(judge_request, request, releases=releases, series=series)
    run(state_verdict, request.publish, verdict.name, verdict.text)
    note_budget(request, series=series)
    return Completed(name=verdict.name, message=verdict.text)


def _forecast(planned: PlannedRelease[Any]) -> None:
    """Log that a release will be noise, or refuse it as its request says."""
    family = family_of(planned.request)
    family.refuse_noise(planned)
    noise = family.expected_noise(planned)
    if noise is not None:
        log_event("expects_noise", run_key=planned.run_key, forecast=noise)


def _compute(workspace: ReleaseWorkspace, release_id: str, address: str) -> str:
    row = workspace.ledger.release(release_id)
    card = progress_card(f"release {release_id}")
    with about(release=release_id, run_key=row.run_key), card as show, connect(address) as client:
        return finish_release(workspace, row, client=client, progress=summing(show))
