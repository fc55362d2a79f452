"""Fit one private subspace or model over several datasets, each with its budget: a flow, and from this process.

Over datasets the sites are parts of this one process, each with its own rows, reservation and curator. Over a roster
they are processes of their own, which plan and charge by themselves; this one opens the totals, and reads no row.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

from prefect import flow
from prefect.client.schemas.objects import State

from flows.clusters.connecting import check_address, open_cluster
from flows.orchestration.form_fields import Workers, form_field
from flows.orchestration.option_parameters import with_options
from flows.orchestration.own_server import prefect_server
from flows.orchestration.prefect_artifacts import state_release
from flows.orchestration.prefect_stages import Runner, directly, finish, in_flow, recorded_failures
from flows.releases.site_plans import PlannedSites, plan_sites
from flows.releases.site_stages import (
    check_budgets,
    compute_sites,
    publish_sites,
    released_by_sites,
    report_sites,
    reserve_sites,
    standing_key,
)
from flows.reports.activity import begin_step
from flows.reports.logs import configure_logs, log_event
from flows.reports.outcome import spending
from flows.requests.sites import SitesRequest
from flows.settings import Settings, cluster_settings
from flows.sites.aggregation import (
    compute_roster,
    finish_roster,
    planned_of,
    publish_roster,
    published_digest,
    quote_sites,
    report_roster,
    reserve_roster,
)
from flows.sites.joint_plans import PlannedJoint
from storage.errors import BudgetExhausted
from storage.home import home
from storage.workspace import Workspace


@dataclass(frozen=True, slots=True, kw_only=True)
class RosterPreview:
    """What a joint release over a roster would do now, as far as its sites say so."""

    planned: PlannedJoint
    quoted: dict[str, bool | None]
    refusal: BudgetExhausted | None
    published: bool

    @property
    def exists(self) -> bool:
        """Whether nothing more will be charged."""
        return self.published or all(self.quoted.values())

    @property
    def question(self) -> str:
        """What to ask before it is charged."""
        request = self.planned.request
        sites = ", ".join(self.planned.names)
        cost = f"epsilon {request.epsilon:g} at delta {request.delta:g} of a budget of each of the sites {sites}"
        return f"Spend {cost}, of which their operators alone see what is left?"

    def facts(self) -> dict[str, Any]:
        """Return the public facts of a dry run."""
        plan, request = self.planned.plan.total, self.planned.request
        return {
            "method": self.planned.mechanism.name,
            "relation": plan.problem.relation,
            "epsilon": request.epsilon,
            "delta": request.delta,
            **({} if request.model is None else {"model": request.model}),
            **request.bounds,
            "row_policy": request.row_policy,
            "noise_multiplier_of_the_total": plan.noise_multiplier,
            "roster": self.planned.roster.digest,
            "exists": self.exists,
            "fits": self.refusal is None,
            "sites": [
                {"site": name, "answers": answer is not None, "exists": bool(answer)}
                for name, answer in self.quoted.items()
            ],
            "warnings": list(plan.warnings),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class SitesPreview:
    """What a joint release would do now: its noise, and what every site's budget says to it."""

    planned: PlannedSites
    exists: bool
    refusal: BudgetExhausted | None
    sites: list[dict[str, Any]]

    @property
    def question(self) -> str:
        """What to ask before it is charged."""
        request = self.planned.request
        budgets = ", and ".join(
            spending(f"of budget {site['population']!r}", remaining=site["remaining"], after=site["remaining_after"])
            for site in self.sites
        )
        return f"Spend epsilon {request.epsilon:g} at delta {request.delta:g} {budgets}?"

    def facts(self) -> dict[str, Any]:
        """Return the public facts of a dry run."""
        plan, request = self.planned.plan.total, self.planned.request
        return {
            "method": self.planned.mechanism.name,
            "relation": plan.problem.relation,
            "epsilon": request.epsilon,
            "delta": request.delta,
            **({} if request.model is None else {"model": request.model}),
            **request.bounds,
            "row_policy": request.row_policy,
            "noise_multiplier_of_the_total": plan.noise_multiplier,
            "exists": self.exists,
            "fits": self.refusal is None,
            "sites": self.sites,
            "warnings": list(plan.warnings),
        }


def preview_sites(request: SitesRequest) -> SitesPreview | RosterPreview:
    """Check and plan a joint release, and compare it with every budget; charge nothing, read no row."""
    if request.roster is not None:
        planned, published = planned_of(request), bool(published_digest(request))
        try:
            quoted = {} if published else quote_sites(request)
        except BudgetExhausted as refused:
            return RosterPreview(planned=planned, quoted={}, refusal=refused, published=published)
        return RosterPreview(planned=planned, quoted=quoted, refusal=None, published=published)
    return _preview_datasets(request)


def _preview_datasets(request: SitesRequest) -> SitesPreview:
    workspace = Workspace.read_only()
    ledger, planned = workspace.ledger, plan_sites(workspace, request)
    sites, found, refusal = [], [], None
    try:
        check_budgets(ledger, planned)
    except BudgetExhausted as refused:
        refusal = refused
    for key, entry, plan in zip(planned.run_keys, planned.charged, planned.plan.sites, strict=True):
        statement = ledger.statement(entry.population, newest=0)
        quote = ledger.quote(entry.population, plan.event, epsilon=plan.target.epsilon, delta=plan.target.delta)
        found.append(ledger.find(standing_key(ledger, key)) is not None)
        sites.append(
            {
                "dataset": entry.name,
                "population": entry.population,
                "noise_multiplier": plan.noise_multiplier,
                "spent": statement.spent,
                "remaining": statement.remaining,
                "remaining_after": statement.remaining if found[-1] else statement.after(quote),
                "exists": found[-1],
            }
        )
    return SitesPreview(planned=planned, exists=all(found), refusal=refusal, sites=sites)


def make_sites_release(run: Runner, request: SitesRequest, settings: Settings) -> dict[str, Any]:
    """Run all stages; return the public facts of what was published."""
    configure_logs(settings.log)
    if request.roster is not None:
        return _make_roster_release(run, request)
    check_address(settings)
    begin_step("reserving the budgets")
    releases = run(reserve_sites, request)
    digest = run(released_by_sites, releases)
    reused = bool(digest)
    if not reused:
        with open_cluster(settings, scratch=home() / "scratch") as address:
            digest = run(compute_sites, releases, address)
    begin_step("publishing")
    artifact = run(publish_sites, releases, digest, request.publish)
    report = run(report_sites, artifact, releases, reused)
    log_event("published", artifact=artifact, reused=reused, sites=len(releases))
    return report


def _make_roster_release(run: Runner, request: SitesRequest) -> dict[str, Any]:
    """Run all stages over sites that are processes of their own."""
    reused = bool(run(published_digest, request))
    begin_step("asking the sites")
    releases = [] if reused else run(reserve_roster, request)
    begin_step("the sites compute")
    digest = run(compute_roster, request, releases)
    begin_step("publishing")
    artifact = run(publish_roster, request, digest)
    unfinished = run(finish_roster, request, digest)
    report = run(report_roster, request, artifact, unfinished, reused)
    log_event("published", artifact=artifact, reused=reused, sites=len(report["sites"]))
    return report


def run_sites_fit(request: SitesRequest, *, workers: int | None = None, direct: bool = False) -> dict[str, Any]:
    """Run a joint fit from this process: as a Prefect flow, or directly."""
    if direct:
        return make_sites_release(directly, request, cluster_settings(workers))
    begin_step("starting Prefect")
    with prefect_server(), recorded_failures():
        asked = {item.name: getattr(request, item.name) for item in fields(request)}
        # A flow's own overloads cannot tell that the function is synchronous.
        call: Callable[..., Any] = fit_sites
        report: dict[str, Any] = finish(call(**asked, workers=workers, return_state=True))
        return report


@flow(name="fit-sites", persist_result=False, log_prints=False, validate_parameters=True)
@with_options(SitesRequest, annotation=form_field)
def fit_sites(*, workers: Workers = None, **request: Any) -> dict[str, Any] | State[Any]:
    """Release a private subspace, or components, over several datasets or a roster's sites as a version of a name.

    `flows.requests.sites.SitesRequest` declares the parameters beside workers. The same request is the same release.
    """

    def body(run: Runner) -> dict[str, Any]:
        report = make_sites_release(run, SitesRequest(**request), cluster_settings(workers))
        run(state_release, report["artifact"])
        return report

    return in_flow(body)
