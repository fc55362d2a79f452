"""Joint releases over several datasets of this home, or over the sites that a roster file lists.

With datasets, this process plays every site; each site has its own rows and its own charge. With a roster, the sites
are separate processes that plan and charge by themselves. This process then unmasks only the totals over all sites, and
reads no row.
"""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

from dpca.home import WORKERS, home
from flows.clusters.connecting import check_address, open_cluster
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
    """Run all stages of a joint release, and return the public facts of the published version."""
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


def fit_sites_directly(request: SitesRequest, *, workers: int | None = None) -> dict[str, Any]:
    """Run all stages of a joint release in this process, without Prefect."""
    return make_sites_release(directly, request, cluster_settings(workers))
