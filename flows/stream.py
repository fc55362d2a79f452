"""Streams: a private subspace for every slot of a schedule, from one release that is charged once.

`tick_stream` is what a schedule calls: a slot is one tick, however often it fires. Opening, extending, showing and
closing are acts of the operator, from this process alone.
"""

from dataclasses import dataclass
from typing import Any

from prefect import flow
from prefect.client.schemas.objects import State

from dpca_tasks.accounting.events import Event
from flows.families.stream_terms import StreamTerms, plan_terms, read_terms
from flows.orchestration.form_fields import Slot, SnapshotId, StreamName, Workers
from flows.orchestration.own_server import prefect_server
from flows.orchestration.prefect_artifacts import state_release
from flows.orchestration.prefect_stages import Runner, directly, finish, in_flow, recorded_failures
from flows.orchestration.schedule import schedule_slot
from flows.releases.notices import warn_of_budget
from flows.releases.stream_stages import make_tick, stream_facts
from flows.reports.activity import begin_step
from flows.reports.outcome import spending
from flows.requests.stream import StreamRequest
from flows.settings import cluster_settings
from storage.errors import BudgetExhausted
from storage.ledger.stream_answers import Answers
from storage.ledger.stream_rows import Stream
from storage.ledger.streams import check_standing, fingerprint_of
from storage.workspace import Workspace


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """What opening or extending a stream would charge now.

    Attributes
    ----------
    name, population : str
    terms : StreamTerms
    ticks : int, that are paid for after it
    charged : int, that are paid for before it
    event : Event
    epsilon : float
    standing : bool, whether it is paid for already
    refusal : BudgetExhausted or None
    spent_after : float
    remaining, remaining_after : float
    """

    name: str
    population: str
    terms: StreamTerms
    ticks: int
    charged: int
    event: Event
    epsilon: float
    standing: bool
    refusal: BudgetExhausted | None
    spent_after: float
    remaining: float
    remaining_after: float

    @property
    def question(self) -> str:
        """What to ask before it is charged."""
        cost = f"epsilon {self.epsilon:.6g} at delta {self.terms.facts['delta']:g} of budget {self.population!r}"
        cost = spending(cost, remaining=self.remaining, after=self.remaining_after)
        return f"Spend once, for {self.ticks - self.charged} ticks of {self.name!r}, {cost}?"

    def facts(self) -> dict[str, Any]:
        """Return the public facts of a dry run."""
        plan, terms = self.terms.plan, self.terms
        return {
            **{"stream": self.name, "population": self.population, "strategy": terms.weights.strategy},
            **{"ticks": self.ticks, "epsilon": self.epsilon, "delta": terms.facts["delta"], "unit": terms.unit},
            **{"noise_multiplier": plan.noise_multiplier, "grid_bits": plan.bits, "spent_after": self.spent_after},
            **{"exists": self.standing, "fits": self.refusal is None, "warnings": list(plan.warnings)},
        }


def offer_stream(request: StreamRequest) -> Offer:
    """Check and plan a request for a stream, and compare it with the budget; charge nothing, read no row."""
    workspace = Workspace.read_only()
    terms = plan_terms(workspace, request)
    ticks = request.instalment or terms.horizon
    standing = next((each for each in reversed(workspace.ledger.streams.all()) if each.name == request.publish), None)
    is_open = standing is not None and standing.is_live
    if standing is not None and is_open:
        fingerprint = fingerprint_of(terms.facts)
        check_standing(standing, population=request.population, fingerprint=fingerprint, ticks=ticks)
    return _offer(workspace, request.publish, request.population, terms, ticks=ticks, charged=0, standing=is_open)


def open_stream(request: StreamRequest) -> dict[str, Any]:
    """Charge a stream and begin it, or find the live one of the same terms; return its public facts."""
    workspace = Workspace.open()
    terms = plan_terms(workspace, request)
    ticks = request.instalment or terms.horizon
    event = terms.event_of(ticks)
    stream = workspace.ledger.streams.open(
        request.population,
        name=request.publish,
        ticks=ticks,
        event=event,
        epsilon=terms.epsilon_of(event),
        delta=request.delta,
        terms=terms.facts,
    )
    warn_of_budget(workspace.ledger, stream.id, stream.population)
    return _facts(workspace, stream.name)


def offer_extension(name: str, *, ticks: int) -> Offer:
    """Compare what more ticks of a stream would cost with the budget; charge nothing."""
    workspace = Workspace.read_only()
    stream, _ = workspace.ledger.streams.show(name)
    terms, standing = read_terms(stream.terms), ticks <= stream.ticks
    charged = 0 if standing else stream.ticks
    asked = stream.ticks if standing else ticks
    return _offer(workspace, name, stream.population, terms, ticks=asked, charged=charged, standing=standing)


def extend_stream(name: str, *, ticks: int) -> dict[str, Any]:
    """Charge more ticks of a stream, up to a number in all; return its public facts."""
    workspace = Workspace.open()
    stream, _ = workspace.ledger.streams.show(name)
    if ticks > stream.ticks:
        terms = read_terms(stream.terms)
        event = terms.event_of(ticks, charged=stream.ticks)
        epsilon, after = terms.epsilon_of(event), stream.ticks
        stream = workspace.ledger.streams.extend(name, ticks=ticks, event=event, epsilon=epsilon, after=after)
    for charge in stream.charges:  # an earlier attempt may have died before it told
        warn_of_budget(workspace.ledger, charge.release_id, stream.population)
    return _facts(workspace, name)


def show_stream(name: str) -> dict[str, Any]:
    """Return the public facts of a stream."""
    return _facts(Workspace.read_only(), name)


def stream_rows() -> list[dict[str, Any]]:
    """Return one row a stream, oldest first."""
    streams = Workspace.read_only().ledger.streams
    return [_row(stream, len(streams.ticks(stream.id))) for stream in streams.all()]


def close_stream(name: str, *, tick: int | None = None) -> dict[str, Any]:
    """Close a stream for good, or give up one tick of it; return its public facts."""
    workspace = Workspace.open()
    if tick is None:
        workspace.ledger.streams.close(name)
    else:
        workspace.ledger.streams.close_tick(name, tick)
    return _facts(workspace, name)


def run_tick(
    name: str,
    *,
    slot: str | None = None,
    snapshot: str | None = None,
    workers: int | None = None,
    direct: bool = False,
) -> dict[str, Any]:
    """Run one slot of a stream from this process: as a Prefect flow, or directly."""
    if direct:
        return make_tick(directly, name, cluster_settings(workers), slot=slot, snapshot=snapshot)
    begin_step("starting Prefect")
    with prefect_server(), recorded_failures():
        # A flow's own overloads cannot tell that the function is synchronous.
        state: Any = tick_stream(name, slot=slot, snapshot=snapshot, workers=workers, return_state=True)
        report: dict[str, Any] = finish(state)
        return report


@flow(name="tick-stream", persist_result=False, log_prints=False, validate_parameters=True)
def tick_stream(
    name: StreamName, *, slot: Slot = None, snapshot: SnapshotId = None, workers: Workers = None
) -> dict[str, Any] | State[Any]:
    """Publish the version of one slot of a stream, which is paid for.

    A scheduled run is the tick of its slot, however often it is tried; what was begun for an earlier slot is finished
    first.
    """

    def body(run: Runner) -> dict[str, Any]:
        report = make_tick(run, name, cluster_settings(workers), slot=slot, planned=schedule_slot(), snapshot=snapshot)
        run(state_release, report["artifact"])
        return report

    return in_flow(body)


def _offer(
    workspace: Workspace,
    name: str,
    population: str,
    terms: StreamTerms,
    *,
    ticks: int,
    charged: int,
    standing: bool,
) -> Offer:
    event = terms.event_of(ticks, charged=charged)
    epsilon, delta = terms.epsilon_of(event), float(terms.facts["delta"])
    quote = workspace.ledger.quote(population, event, epsilon=epsilon, delta=delta)
    statement = workspace.ledger.statement(population)
    return Offer(
        name=name,
        population=population,
        terms=terms,
        ticks=ticks,
        charged=charged,
        event=event,
        epsilon=epsilon,
        standing=standing,
        refusal=None if standing else quote.refusal,
        spent_after=statement.spent if standing else quote.spent,
        remaining=statement.remaining,
        remaining_after=statement.remaining if standing else statement.after(quote),
    )


def _facts(workspace: Workspace, name: str) -> dict[str, Any]:
    stream, ticks = workspace.ledger.streams.show(name)
    facts = stream_facts(stream, ticks, Answers(place=workspace.store, ticks=ticks))
    statement = workspace.ledger.statement(stream.population)
    return {**facts, "spent": statement.spent, "remaining": statement.remaining}


def _row(stream: Stream, used: int) -> dict[str, Any]:
    told = {"stream": stream.name, "id": stream.id, "live": stream.is_live, "population": stream.population}
    return {**told, "dataset": stream.terms.get("dataset"), "ticks": stream.ticks, "used": used}
