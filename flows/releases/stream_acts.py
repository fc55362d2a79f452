"""What the operator of a stream does, from this process alone: open, extend, show, close; none of it needs Prefect."""

import math
from dataclasses import dataclass
from typing import Any

from dpca_tasks.accounting.events import Event
from dpca_tasks.mechanisms.streams.stream_estimate import coefficients
from flows.families.stream_terms import StreamTerms, plan_terms, read_terms
from flows.families.streamed_subspace import factor
from flows.releases.notices import warn_of_budget
from flows.reports.outcome import spending
from flows.requests.stream import StreamRequest
from storage.errors import BudgetExhausted
from storage.ledger.stream_answers import Answers
from storage.ledger.stream_rows import Stream, Tick
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
            **{"ticks": self.ticks, "epsilon": self.epsilon, "delta": terms.facts["delta"], **terms.unit.facts},
            "statement": terms.statement(self.epsilon),
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


def stream_facts(stream: Stream, ticks: tuple[Tick, ...], answers: Answers) -> dict[str, Any]:
    """Return the public facts of a stream: what is used and left, its noise now and at the end, and what more costs."""
    charged = stream.ticks
    known = {"stream": stream.name, "id": stream.id, "live": stream.is_live, "population": stream.population}
    if not stream.terms:  # entered again from its versions alone
        return {**known, "ticks": charged, "used": len(ticks), "left": 0}
    terms = read_terms(stream.terms)
    kept, weights = list(answers), terms.weights
    closed = [tick.tick for tick in ticks if tick.state == "closed"]
    whole = coefficients(weights, kept=range(1, charged + 1), **terms.answer)
    now = factor(terms, coefficients(weights, kept=kept, **terms.answer)) if kept else None
    return {
        **known,
        **{"dataset": terms.facts["dataset"], "strategy": weights.strategy, "estimate": terms.facts["answer"]},
        **{**terms.unit.facts, "relation": terms.plan.problem.relation, "clip_norm": terms.facts["clip_norm"]},
        **{"epsilon": terms.facts["epsilon"], "delta": terms.facts["delta"]},
        "epsilon_charged": terms.epsilon_of(terms.event_of(charged)),
        "statement": terms.statement(terms.epsilon_of(terms.event_of(charged))),
        **{"ticks": charged, "used": len(ticks), "left": charged - len(ticks) if stream.is_live else 0},
        **{"last_slot": ticks[-1].slot if ticks else None, "closed_ticks": closed},
        "missing_answers": [tick.tick for tick in ticks if tick.tick not in kept and tick.is_settled],
        "noise_multiplier": terms.facts["noise_multiplier"],
        **{"factor_now": now, "factor_at_the_end": factor(terms, whole)},
        **{"factor_of_single_release": 1.0, "factor_of_independent_releases": math.sqrt(charged)},
        "stopping_gives_back": 0.0,
        "extending": _prices(terms, charged) if stream.is_live else [],
    }


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
    statement = workspace.ledger.statement(population, newest=0)
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
    statement = workspace.ledger.statement(stream.population, newest=0)
    return {**facts, "spent": statement.spent, "remaining": statement.remaining}


def _row(stream: Stream, used: int) -> dict[str, Any]:
    told = {"stream": stream.name, "id": stream.id, "live": stream.is_live, "population": stream.population}
    return {**told, "dataset": stream.terms.get("dataset"), "ticks": stream.ticks, "used": used}


def _prices(terms: StreamTerms, charged: int) -> list[dict[str, Any]]:
    """Return what more ticks would cost: the rest of instalments, then twice and ten times as many.

    Rounded weights of short streams end early; ticks beyond them cannot be charged, so they have no price.
    """
    weights = terms.weights
    if weights.endless:
        return []
    horizon, longest, paid = terms.horizon, weights.longest or 0, weights.zeta_squared(charged)
    wanted = {number for number in (horizon, 2 * horizon, 10 * horizon) if charged < number <= longest}
    found = []
    for ticks in sorted(number for number in wanted if weights.zeta_squared(number) > paid):
        event = terms.event_of(ticks, charged=charged)
        whole = terms.event_of(ticks)
        found.append({"ticks": ticks, "epsilon": terms.epsilon_of(event), "in_all": terms.epsilon_of(whole)})
    return found
