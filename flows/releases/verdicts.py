"""The verdict of a dry run: whether the budget admits a run, what it would charge, and how many such runs still fit.

It is made from the ledger and from plans; no row is read and nothing is charged.
"""

import dataclasses
from contextlib import suppress
from datetime import UTC, datetime

from flows.orchestration.deployment_notes import deployed_parameters, note_on_deployment
from flows.releases.planning import plan_request
from flows.releases.preview import preview_in
from flows.requests.base import Request
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
    epsilon, delta : float, what it would be charged as
    admitted : bool
    is_paid : bool, whether it is a release that was charged before
    remaining : float, the epsilon of one more release
    runs_left : int, how many such runs fit one after another, up to `COUNTED_UP_TO`
    """

    population: str
    epsilon: float
    delta: float
    admitted: bool
    is_paid: bool
    remaining: float
    runs_left: int

    @property
    def name(self) -> str:
        """The verdict as the name of a state."""
        return "Admitted" if self.admitted else "NotAdmitted"

    @property
    def text(self) -> str:
        """The verdict in words."""
        asked = f"epsilon {self.epsilon:g} at delta {self.delta:g} of budget {self.population}"
        left = f"epsilon {self.remaining:.6g} is left of it for one release"
        if self.is_paid:
            return f"Admitted: this release of {asked} is charged already, and costs nothing more; {left}."
        if not self.admitted:
            return f"Refused: a run asks for {asked}, and {left}; nothing would be charged."
        more = f"{COUNTED_UP_TO} or more" if self.runs_left == COUNTED_UP_TO else self.runs_left
        return f"Admitted: a run is charged {asked}; {left}; {more} such runs fit."


def judge_request(request: Request, slot: str | None = None) -> Verdict:
    """Return the verdict on a request, and on no slot of it unless one is given; nothing is charged, no row is read."""
    workspace = Workspace.read_only()
    found = preview_in(workspace, plan_request(workspace, request, slot))
    plan, population = found.planned.plan, found.planned.population
    return Verdict(
        population=population,
        epsilon=plan.target.epsilon,
        delta=plan.target.delta,
        admitted=found.fits,
        is_paid=found.exists,
        remaining=found.remaining,
        runs_left=workspace.ledger.repeats_that_fit(
            population, plan.event, delta=plan.target.delta, at_most=COUNTED_UP_TO
        ),
    )


def note_budget(request: Request) -> None:
    """Tell in the form of the running flow's deployment what its next run may do; a failure of it fails nothing."""
    with suppress(Exception):
        names = {option.name for option in dataclasses.fields(request)}
        parameters = {name: value for name, value in (deployed_parameters() or {}).items() if name in names}
        if not parameters:
            return
        verdict = judge_request(type(request)(**parameters), _NEXT)
        note_on_deployment(f"Next run, as of {datetime.now(UTC):%Y-%m-%d %H:%M} UTC: {verdict.text}")
