"""The verdict of a dry run: whether the budget admits a run, what it would charge, and how many such runs still fit.

It is made from the ledger and from plans; no row is read and nothing is charged.
"""

import dataclasses
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from dpca_tasks.accounting import charges
from flows.families.base import PlannedRelease
from flows.orchestration.deployment_notes import deployed_parameters, note_on_deployment
from flows.releases.paced import share_of
from flows.releases.planning import plan_request
from flows.releases.preview import preview_in
from flows.remote_ledger.workspaces import read_workspace
from flows.requests.base import Request
from storage.errors import BudgetExhausted
from storage.ledger.protocol import ReleaseLedger
from storage.workspace import Workspace

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
        total = charges.add(total, rules.charge_after(total, event, delta=target.delta))
        if not rules.admits(total):
            return count
    return COUNTED_UP_TO
