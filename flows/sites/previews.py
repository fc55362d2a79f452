"""The preview of a joint release: its noise and cost, and what each site's budget says to it. Nothing is charged."""

from dataclasses import dataclass
from typing import Any

from flows.families.base import plan_statement
from flows.releases.site_plans import PlannedSites, plan_sites
from flows.releases.site_stages import check_budgets, standing_key
from flows.reports.outcome import spending
from flows.requests.sites import SitesRequest
from flows.sites.aggregation import planned_of, published_digest, quote_sites
from flows.sites.joint_plans import PlannedJoint
from storage.errors import BudgetExhausted
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
    def statement(self) -> str:
        """The guarantee of every site in one sentence."""
        return plan_statement(self.planned.plan.sites[0], self.planned.roster.unit)

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
            "statement": self.statement,
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
    def statement(self) -> str:
        """The guarantee of every site in one sentence."""
        return plan_statement(self.planned.plan.sites[0], self.planned.unit)

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
            "statement": self.statement,
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
