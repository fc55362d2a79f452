"""Paced releases: each takes its share of what is left of a budget, computed once and stored with its request.

A share is `storage.ledger`'s (`Ledger.pace`), and depends on what was spent so far, which is public. A run that is
tried again finds the release of its run key, with the share that it was charged.
"""

from dataclasses import replace

from dpca_tasks.errors import InvalidInput
from flows.releases.notices import warn_of_budget
from flows.releases.planning import plan_on
from flows.releases.running import charge_release
from flows.reports.budget_facts import written_share
from flows.reports.outcome import spending
from flows.requests.base import Request
from storage.datasets.catalog import Entry
from storage.errors import BudgetExhausted, Conflict, Refused
from storage.ledger.ledger import Ledger
from storage.ledger.releases import Release
from storage.ledger.replay import GIVEN_UP
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
