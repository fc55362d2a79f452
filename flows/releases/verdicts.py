"""Previews of requests, verdicts on whether the budget admits them, and releases that share a budget equally.

A *preview* states the noise and cost of a request and whether the budget admits it. A *verdict* states whether the
budget admits a run, its charge, and how many such runs still fit. Both come from the ledger and from plans. No row is
read and nothing is charged.

A *paced* release takes its share of the remaining budget. `Ledger.pace` in `storage.ledger` computes the share once,
from the amount spent so far, which is public. The share is stored with the request. A repeated run finds the release
of its run key, with the share that was charged.
"""

import dataclasses
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from dpca.errors import BudgetExhausted, Conflict, Refused
from dpca_tasks.accounting import prices
from dpca_tasks.errors import InvalidInput
from flows.families.base import PlannedRelease, family_of, plan_statement
from flows.releases.running import charge_release, warn_of_budget
from flows.releases.stages import plan_on, plan_request, plan_started
from flows.remote_ledger.workspaces import ReleaseWorkspace, read_workspace
from flows.reports.budget_facts import written_share
from flows.reports.terminal import spending
from flows.requests import Request
from storage.datasets.catalog import Entry
from storage.ledger.balance import ReleaseLedger
from storage.ledger.journal import GIVEN_UP
from storage.ledger.ledger import Ledger
from storage.ledger.releases import Release
from storage.workspace import Workspace


def reserve_paced(
    workspace: Workspace,
    request: Request,
    snapshot: Entry,
    *,
    run_key: str,
    series: str,
    releases: int | None,
    start: str | None = None,
) -> Release:
    """Charge a release of a snapshot under a run key, or find the existing release of that key; return the release.

    An existing release is returned even if its request differs from ``request``.

    Parameters
    ----------
    workspace : Workspace
    request : Request
        Without an epsilon if ``releases`` is given.
    snapshot : Entry
    run_key : str
        Begins with ``series``.
    series : str
        Common prefix of the run keys. Releases with this prefix and the same published name share the budget.
    releases : int, optional
        Total number of releases that share the budget.
    start : str, optional
        As in `flows.releases.stages.plan_started`.

    Raises
    ------
    BudgetExhausted
        When the budget does not admit the release, or all releases were made. Nothing is charged.
    Refused
        When an operator gave up the release of this run key.
    """
    ledger = workspace.ledger
    standing = ledger.find(run_key)
    if standing is None:
        epsilon = request.epsilon if releases is None else share_of(ledger, snapshot, request, series, releases)
        try:
            keyed = replace(request, epsilon=epsilon, run_key=run_key)
            grant = charge_release(ledger, plan_started(workspace, snapshot, keyed, start=start))
        except Conflict:  # another process charged this run key in the meantime, perhaps with another epsilon
            standing = ledger.find(run_key)
            if standing is None:
                raise
        else:
            return ledger.release(grant.release_id)
    warn_of_budget(ledger, standing.id, standing.population)  # the charging process may have ended before it warned
    if standing.state in GIVEN_UP:
        raise Refused(
            f"release {standing.id} of this run was {standing.state} by an operator and cannot "
            "continue; start a run with another key."
        )
    return standing


def share_of(ledger: Ledger, snapshot: Entry, request: Request, series: str, releases: int) -> float:
    """Return the epsilon of the next of ``releases`` releases that share a budget equally.

    Raises
    ------
    BudgetExhausted
        When all releases were made, or no budget is left for the others.
    """
    population = snapshot.population
    made = len(made_of(ledger, population, series=series, published=request.publish))
    if made >= releases:
        raise BudgetExhausted(
            f"all {releases} planned releases of budget {population!r} are made; nothing was "
            "charged: plan more releases, or stop."
        )
    pace = ledger.pace(population, runs=releases - made, delta=request.delta)
    if not pace.epsilon_each:
        raise BudgetExhausted(
            f"budget {population!r} is {pace.state} and has no share for {pace.runs} more releases; "
            "nothing was charged: plan fewer releases, or stop."
        )
    return written_share(pace.epsilon_each)


def next_cost(workspace: Workspace, request: Request, snapshot: Entry, *, series: str, releases: int | None) -> str:
    """Return a line with the charge of the next release of a snapshot, and the remaining budget before and after it.

    Raises
    ------
    BudgetExhausted
        When the budget does not admit the release, or all releases were made.
    """
    ledger, population = workspace.ledger, snapshot.population
    epsilon = request.epsilon if releases is None else share_of(ledger, snapshot, request, series, releases)
    plan = plan_on(ledger, snapshot, replace(request, epsilon=epsilon)).plan
    quote = ledger.quote(population, plan.event, epsilon=plan.target.epsilon, delta=plan.target.delta)
    if quote.refusal is not None:
        raise quote.refusal
    statement = ledger.statement(population)
    cost = f"epsilon {plan.target.epsilon:g} at delta {plan.target.delta:g} of budget {population!r}"
    return spending(cost, remaining=statement.remaining, after=statement.after(quote))


def made_of(ledger: Ledger, population: str, *, series: str, published: str) -> list[Release]:
    """Return the charged releases of a population for a published name whose run keys begin with ``series``."""
    charged = [row for row in ledger.statement(population).releases if row.state != "abandoned"]
    return [row for row in charged if row.run_key.startswith(series) and row.request.get("publish") == published]


def check_pace(epsilon: float | None, releases: int | None) -> None:
    """Refuse a request with both an epsilon and a number of releases, or with neither."""
    if (epsilon is None) == (releases is None):
        raise InvalidInput(
            f"epsilon={epsilon} and releases={releases} both determine the charge of a run; state one of them."
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Preview:
    """Preview of a request, with its plan and its effect on the budget; ``exists`` is true if it was charged before."""

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
        """Confirmation prompt before the charge."""
        target, population = self.planned.plan.target, self.planned.population
        if target.i_know_this_is_not_private:
            return f"Publish without privacy, and permanently void budget {population!r}?"
        cost = f"epsilon {target.epsilon:g} at delta {target.delta:g} of budget {population!r}"
        noise = family_of(self.planned.request).expected_noise(self.planned)
        cost = spending(cost, remaining=self.remaining, after=self.remaining_after)
        return f"Spend {cost}?" if noise is None else f"{noise[0].upper()}{noise[1:]}. Despite this, spend {cost}?"

    @property
    def fits(self) -> bool:
        """True if the budget admits the release, or has paid for it already."""
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
    """Check and plan a request, and compare it with the budget; charge nothing, read no row.

    ``spent_after`` is the epsilon that the budget would have spent after the release. The budget's filter may price a
    release that is not Gaussian above its own epsilon, because the filter accounts for all releases that may follow.
    """
    workspace = read_workspace()
    return preview_in(workspace, plan_request(workspace, request))


def preview_in(workspace: ReleaseWorkspace, planned: PlannedRelease[Any]) -> Preview:
    """Compare a planned release with its budget in an open workspace, as `preview` does."""
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


COUNTED_UP_TO = 100
"""Largest number of future runs that a verdict counts."""
_NEXT = "the next slot"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Verdict of a dry run.

    Attributes
    ----------
    population : str, the population whose budget pays
    epsilon, delta : float, the charge; epsilon is None where releases share the budget and no share is left
    admitted : bool
    is_paid : bool, whether the release was charged before
    remaining : float, the epsilon that is left for one more release
    statement : str, the guarantee of a run in one sentence, or of the budget where no share is left
    runs_left : int, number of such runs that fit one after another, up to `COUNTED_UP_TO`
    """

    population: str
    epsilon: float | None
    delta: float
    admitted: bool
    is_paid: bool
    remaining: float
    runs_left: int
    statement: str

    @property
    def name(self) -> str:
        """The verdict as the name of a state."""
        return "Admitted" if self.admitted else "NotAdmitted"

    @property
    def text(self) -> str:
        """The verdict in words."""
        if self.epsilon is None:
            return f"Refused: budget {self.population} has no share left for a run; nothing would be charged."
        requested = f"epsilon {self.epsilon:g} at delta {self.delta:g} of budget {self.population}"
        left = f"the budget has epsilon {self.remaining:.6g} left for one release"
        if self.is_paid:
            return f"Admitted: this release of {requested} is charged already, and costs nothing more; {left}."
        if not self.admitted:
            return f"Refused: a run requests {requested}, and {left}; nothing would be charged."
        more = f"{COUNTED_UP_TO} or more" if self.runs_left == COUNTED_UP_TO else self.runs_left
        charged = f"Admitted: a run is charged {requested}; {left}; {more} such runs fit."
        return f"{charged} The guarantee of a run: {self.statement}."


def judge_request(
    request: Request, slot: str | None = None, *, releases: int | None = None, series: str = ""
) -> Verdict:
    """Return the verdict on a request, for a slot if one is given; nothing is charged, no row is read.

    With ``releases``, the epsilon is the next share of a budget that this many releases of a series share.
    """
    if releases is not None:
        whole = Workspace.read_only()
        snapshot = whole.catalog.current(request.dataset)
        try:
            share = share_of(whole.ledger, snapshot, request, series, releases)
        except BudgetExhausted:
            return _nothing_left(whole.ledger, snapshot.population, request)
        request = dataclasses.replace(request, epsilon=share)
    workspace = read_workspace()
    found = preview_in(workspace, plan_request(workspace, request, slot))
    plan, population = found.planned.plan, found.planned.population
    return Verdict(
        population=population,
        epsilon=plan.target.epsilon,
        delta=plan.target.delta,
        admitted=found.fits,
        is_paid=found.exists,
        remaining=found.remaining,
        runs_left=_runs_left(workspace.ledger, found.planned),
        statement=found.statement,
    )


def note_budget(request: Request, *, series: str = "") -> None:
    """Write the verdict on the next run into the form of the running flow's deployment; a failure is ignored."""
    with suppress(Exception):
        from flows.orchestration.prefect_stages import deployed_parameters, note_on_deployment

        deployed = deployed_parameters()
        if deployed is None:
            return
        names = {option.name for option in dataclasses.fields(request)}
        requested = type(request)(**{name: value for name, value in deployed.items() if name in names})
        verdict = judge_request(requested, _NEXT, releases=deployed.get("releases"), series=series)
        note_on_deployment(f"Next run, as of {datetime.now(UTC):%Y-%m-%d %H:%M} UTC: {verdict.text}")


def _nothing_left(ledger: ReleaseLedger, population: str, request: Request) -> Verdict:
    return Verdict(
        population=population,
        epsilon=None,
        delta=request.delta or 0.0,
        admitted=False,
        is_paid=False,
        remaining=ledger.statement(population).remaining,
        runs_left=0,
        statement=ledger.budget(population).statement(),
    )


def _runs_left(ledger: ReleaseLedger, planned: PlannedRelease[Any]) -> int:
    """Return the number of releases of a plan that the budget admits one after another, up to `COUNTED_UP_TO`."""
    event, target = planned.plan.event, planned.plan.target
    quote = ledger.quote(planned.population, event, epsilon=target.epsilon, delta=target.delta)
    if quote.refusal is not None:
        return 0
    rules, total = ledger.budget(planned.population).build_filter(), quote.total
    for count in range(1, COUNTED_UP_TO):
        total = prices.add(total, rules.charge_after(total, event, delta=target.delta))
        if not rules.admits(total):
            return count
    return COUNTED_UP_TO
