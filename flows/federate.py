"""Joint releases over several datasets or the sites of a roster, as a Prefect flow or directly.

Over datasets, the sites are parts of this process, each with its own rows, reservation and curator. Over a roster, the
sites are separate processes that plan and charge by themselves. This process then opens only the totals, and reads no
row.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import fields
from typing import Any

from prefect.client.schemas.objects import State

from dpca.home import WORKERS, home
from flows.clusters.connecting import check_address, open_cluster
from flows.options import Workers, form_field, with_options
from flows.orchestration.job_flows import job
from flows.orchestration.own_server import prefect_server
from flows.orchestration.prefect_artifacts import state_release
from flows.orchestration.prefect_stages import finish, in_flow
from flows.orchestration.stage_calls import Runner, directly
from flows.reports.activity import begin_step
from flows.reports.terminal import configure_logs, log_event
from flows.requests import SitesRequest
from flows.settings import Settings, cluster_settings
from flows.sites.releases import (
    compute_sites,
    finish_sites,
    publish_sites,
    released_before,
    report_sites,
    reserve_sites,
)


def make_sites_release(run: Runner, request: SitesRequest, settings: Settings) -> dict[str, Any]:
    """Run all stages, and return the public facts of the published version."""
    configure_logs(settings.log)
    if request.roster is None:
        check_address(settings)
    begin_step("checking the budgets of all sites")
    digest = run(released_before, request)
    reused = bool(digest)
    if not reused:
        releases = run(reserve_sites, request)
        begin_step("computing at the sites")
        with _cluster(request, settings) as address:
            digest = run(compute_sites, request, releases, address)
    begin_step("publishing")
    artifact, digest = run(publish_sites, request, digest)
    unfinished = run(finish_sites, request, digest)
    report = run(report_sites, request, artifact, unfinished, reused)
    log_event("published", artifact=artifact, reused=reused, sites=len(report["sites"]))
    return report


def _cluster(request: SitesRequest, settings: Settings) -> AbstractContextManager[str]:
    """Return a context with the cluster address for this home's sites; a roster's sites have their own clusters."""
    return nullcontext("") if request.roster is not None else open_cluster(settings, scratch=home() / WORKERS)


def run_sites_fit(request: SitesRequest, *, workers: int | None = None, direct: bool = False) -> dict[str, Any]:
    """Run a joint fit from this process, as a Prefect flow or directly."""
    if direct:
        return make_sites_release(directly, request, cluster_settings(workers))
    begin_step("starting Prefect")
    with prefect_server():
        asked = {item.name: getattr(request, item.name) for item in fields(request)}
        # The overloads of a Prefect flow do not recognize that the function is synchronous.
        call: Callable[..., Any] = fit_sites
        report: dict[str, Any] = finish(lambda: call(**asked, workers=workers, return_state=True))
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
