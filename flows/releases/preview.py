"""The preview of a request: its noise and cost, and whether the budget admits it. Nothing is charged."""

from dataclasses import dataclass
from typing import Any

from flows.families.base import PlannedRelease, plan_statement
from flows.families.table import family_of
from flows.releases.planning import plan_request
from flows.remote_ledger.workspaces import ReleaseWorkspace, read_workspace
from flows.reports.outcome import spending
from flows.requests.base import Request
from storage.errors import BudgetExhausted


@dataclass(frozen=True, slots=True, kw_only=True)
class Preview:
    """What a request would do now: its noise, and whether it was made before or fits."""

    planned: PlannedRelease[Any]
    exists: bool
    refusal: BudgetExhausted | None
    spent: float
    remaining: float
    spent_after: float
    remaining_after: float

    @property
    def statement(self) -> str:
        """The guarantee of the release in one sentence."""
        return plan_statement(self.planned.plan, self.planned.unit)

    @property
    def question(self) -> str:
        """What to ask before it is charged."""
        target, population = self.planned.plan.target, self.planned.population
        if target.i_know_this_is_not_private:
            return f"Publish without privacy, and void budget {population!r} for good?"
        cost = f"epsilon {target.epsilon:g} at delta {target.delta:g} of budget {population!r}"
        noise = family_of(self.planned.request).expected_noise(self.planned)
        cost = spending(cost, remaining=self.remaining, after=self.remaining_after)
        return f"Spend {cost}?" if noise is None else f"{noise[0].upper()}{noise[1:]}. Still spend {cost}?"

    @property
    def fits(self) -> bool:
        """Whether the budget admits it, or has paid for it already."""
        return self.refusal is None

    def facts(self) -> dict[str, Any]:
        """Return the public facts of a dry run."""
        plan = self.planned.plan
        return {
            "mechanism": plan.mechanism,
            "relation": plan.problem.relation,
            "epsilon": plan.target.epsilon,
            "delta": plan.target.delta,
            "statement": self.statement,
            **family_of(self.planned.request).facts(self.planned),
            "noise_multiplier": plan.noise_multiplier,
            "real_epsilon_at_most": plan.epsilon_at_most,
            "grid_bits": plan.bits,
            "certified": plan.certified,
            "population": self.planned.population,
            "spent": self.spent,
            "remaining": self.remaining,
            "spent_after": self.spent_after,
            "exists": self.exists,
            "fits": self.fits,
            "warnings": list(plan.warnings),
        }


def preview(request: Request) -> Preview:
    """Check and plan a request and compare it with the budget; charge nothing, read no row.

    ``spent_after`` is what the budget would have spent with it: a budget's filter may price a release that is not
    Gaussian above its own epsilon, because it holds it against all that may follow.
    """
    workspace = read_workspace()
    return preview_in(workspace, plan_request(workspace, request))


def preview_in(workspace: ReleaseWorkspace, planned: PlannedRelease[Any]) -> Preview:
    """Compare a planned release with the budget of an open workspace, as `preview` does."""
    ledger = workspace.ledger
    begun = ledger.find(planned.run_key, population=planned.population)
    statement = ledger.statement(planned.population, newest=0)
    target = planned.plan.target
    quote = ledger.quote(
        planned.population,
        planned.plan.event,
        epsilon=target.epsilon,
        delta=target.delta,
        void=target.i_know_this_is_not_private,
    )
    return Preview(
        planned=planned,
        exists=begun is not None,
        refusal=None if begun is not None else quote.refusal,
        spent=statement.spent,
        remaining=statement.remaining,
        spent_after=statement.spent if begun is not None else quote.spent,
        remaining_after=statement.remaining if begun is not None else statement.after(quote),
    )
