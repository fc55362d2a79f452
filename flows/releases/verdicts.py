"""The verdict of a dry run: its preview, its pace, and whether the budget admits it.

Paced releases: each takes its share of what is left of a budget, computed once and stored with its request.

A share is `storage.ledger`'s (`Ledger.pace`), and depends on what was spent so far, which is public. A run that is
tried again finds the release of its run key, with the share that it was charged.

The preview of a request: its noise and cost, and whether the budget admits it. Nothing is charged.

The verdict of a dry run: whether the budget admits a run, what it would charge, and how many such runs still fit.

It is made from the ledger and from plans; no row is read and nothing is charged.
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
from flows.releases.stages import plan_on, plan_request
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
    workspace: Workspace, request: Request, snapshot: Entry, *, run_key: str, series: str, releases: int | None
) -> Release:
    """Charge a release of a snapshot under a run key, or find the one that stands, whatever its request; return it.

    Parameters
    ----------
    workspace : Workspace
    request : Request
        Without an epsilon where ``releases`` are given.
    snapshot : Entry
    run_key : str
        It begins with ``series``.
    series : str
        How the run keys of all releases begin that share the budget, if they are published under the same name.
    releases : int, optional
        How many there are in all.

    Raises
    ------
    BudgetExhausted
        When the budget does not admit it, or all were made. Nothing is charged.
    Refused
        When the release of this run key was given up.
    """
    ledger = workspace.ledger
    standing = ledger.find(run_key)
    if standing is None:
        epsilon = request.epsilon if releases is None else share_of(ledger, snapshot, request, series, releases)
        try:
            grant = charge_release(
                ledger, plan_on(ledger, snapshot, replace(request, epsilon=epsilon, run_key=run_key))
            )
        except Conflict:  # another process reserved it in the meantime, perhaps with another share
            standing = ledger.find(run_key)
            if standing is None:
                raise
        else:
            return ledger.release(grant.release_id)
    warn_of_budget(ledger, standing.id, standing.population)  # the process that charged it may have died before it told
    if standing.state in GIVEN_UP:
        raise Refused(
            f"release {standing.id} of this run was {standing.state} by an operator; nothing more is made of it."
        )
    return standing


def share_of(ledger: Ledger, snapshot: Entry, request: Request, series: str, releases: int) -> float:
    """Return the epsilon of the next of so many releases that share a budget equally.

    Raises
    ------
    BudgetExhausted
        When all were made, or nothing is left for the rest.
    """
    population = snapshot.population
    made = len(made_of(ledger, population, series=series, published=request.publish))
    if made >= releases:
        raise BudgetExhausted(
            f"all {releases} releases that were to share budget {population!r} are made; nothing was charged: plan "
            "more of them, or stop here."
        )
    pace = ledger.pace(population, runs=releases - made, delta=request.delta)
    if not pace.epsilon_each:
        raise BudgetExhausted(
            f"budget {population!r} is {pace.state} and has no share for {pace.runs} more releases; nothing was "
            "charged: plan fewer, or stop here."
        )
    return written_share(pace.epsilon_each)


def next_cost(workspace: Workspace, request: Request, snapshot: Entry, *, series: str, releases: int | None) -> str:
    """Say what the next release of a snapshot would be charged, and what is left of its budget now and after it.

    Raises
    ------
    BudgetExhausted
        When the budget does not admit it, or all were made.
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
    """Return a population's releases for a published name that were charged under run keys that begin so."""
    charged = [row for row in ledger.statement(population).releases if row.state != "abandoned"]
    return [row for row in charged if row.run_key.startswith(series) and row.request.get("publish") == published]


def check_pace(epsilon: float | None, releases: int | None) -> None:
    """Refuse a request with both an epsilon and a number of releases, or with neither."""
    if (epsilon is None) == (releases is None):
        raise InvalidInput(
            f"epsilon={epsilon} and releases={releases}: one of them says what a run spends; state one alone."
        )


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


COUNTED_UP_TO = 100
"""How many runs to come are counted."""
_NEXT = "the next slot"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What would become of a run.

    Attributes
    ----------
    population : str, whose budget pays
    epsilon, delta : float, what it would be charged as; no epsilon where releases share the budget and none is left
    admitted : bool
    is_paid : bool, whether it is a release that was charged before
    remaining : float, the epsilon of one more release
    statement : str, the guarantee of a run, or of the budget where none is left, in one sentence
    runs_left : int, how many such runs fit one after another, up to `COUNTED_UP_TO`
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
            return f"Refused: no share of budget {self.population} is left for a run; nothing would be charged."
        asked = f"epsilon {self.epsilon:g} at delta {self.delta:g} of budget {self.population}"
        left = f"epsilon {self.remaining:.6g} is left of it for one release"
        if self.is_paid:
            return f"Admitted: this release of {asked} is charged already, and costs nothing more; {left}."
        if not self.admitted:
            return f"Refused: a run asks for {asked}, and {left}; nothing would be charged."
        more = f"{COUNTED_UP_TO} or more" if self.runs_left == COUNTED_UP_TO else self.runs_left
        charged = f"Admitted: a run is charged {asked}; {left}; {more} such runs fit."
        return f"{charged} A run has {self.statement}."


def judge_request(
    request: Request, slot: str | None = None, *, releases: int | None = None, series: str = ""
) -> Verdict:
    """Return the verdict on a request, and on no slot of it unless one is given; nothing is charged, no row is read.

    With ``releases``, the epsilon is the next share of so many of a series that share the budget.
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
    """Tell in the form of the running flow's deployment what its next run may do; a failure of it fails nothing."""
    with suppress(Exception):
        from flows.orchestration.prefect_stages import deployed_parameters, note_on_deployment  # a flow has it loaded

        deployed = deployed_parameters()
        if deployed is None:
            return
        names = {option.name for option in dataclasses.fields(request)}
        asked = type(request)(**{name: value for name, value in deployed.items() if name in names})
        verdict = judge_request(asked, _NEXT, releases=deployed.get("releases"), series=series)
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
    """Return how many releases of a plan the budget admits, one after another, up to `COUNTED_UP_TO`."""
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
