"""The terms of a stream: planned from public facts when it is opened, and read back at each tick.

They hold the plan, the weights and everything else on which a tick's noise and grid depend, so that no later version
of the program answers a tick of it otherwise.
"""

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, cast

from dpca_tasks.accounting.events import Event, gaussian
from dpca_tasks.accounting.factorisation import LONGEST, Weights, choose_weights, extension_event
from dpca_tasks.accounting.gaussian import smallest_epsilon, units_of
from dpca_tasks.accounting.power_series import Strategy
from dpca_tasks.errors import InvalidInput
from dpca_tasks.mechanisms.base import Center, Plan, PrivacyTarget, Problem
from dpca_tasks.mechanisms.streams.stream_ticks import plan_stream, tick_query
from dpca_tasks.noise.distributions import Symmetric
from dpca_tasks.privacy.request import scale_in_steps
from dpca_tasks.queries.streamed_moment import StreamedMoment
from flows.families.base import records_facts
from flows.requests.stream import StreamRequest
from storage.artifacts.manifest import canonical_json
from storage.datasets.catalog import Entry
from storage.errors import Conflict
from storage.options import check_options
from storage.privacy_unit import NIGHT_ROW, PrivacyUnit, privacy_statement
from storage.registry.references import check_name
from storage.schemas.matching import meaning
from storage.workspace import Workspace

SLOTS: Mapping[str, str] = {"hourly": "%Y-%m-%dT%H", "daily": "%Y-%m-%d", "weekly": "%G-W%V", "monthly": "%Y-%m"}
"""How a slot of a schedule is named, by the time at which it was planned."""

_EXAMPLES = {"hourly": "2026-01-05T14", "daily": "2026-01-05", "weekly": "2026-W02", "monthly": "2026-01"}

_APART = ("event", "target", "problem", "mechanism")


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamTerms:
    """The terms of a stream, as objects.

    Attributes
    ----------
    facts : mapping, the terms as they are stored
    plan : Plan
    weights : Weights
    """

    facts: Mapping[str, Any]
    plan: Plan
    weights: Weights

    @property
    def horizon(self) -> int:
        """The ticks for which the noise was calibrated."""
        return int(self.facts["horizon"])

    @property
    def unit(self) -> PrivacyUnit:
        """The unit of privacy: that of the budget, where ids tell the individuals of all nights, or a row of one."""
        if self.facts["unit"] == "rows":
            return PrivacyUnit(name=NIGHT_ROW)
        return PrivacyUnit(name=self.facts["whose"], rows=self.facts["rows_per_unit"])

    def statement(self, epsilon: float) -> str:
        """Return the guarantee of ticks that have an epsilon together, in one sentence."""
        delta, relation = float(self.facts["delta"]), self.plan.problem.relation
        return privacy_statement(epsilon=epsilon, delta=delta, relation=relation, unit=self.unit)

    @property
    def answer(self) -> dict[str, Any]:
        """What each tick estimates, as the functions of estimates take it."""
        return {name: self.facts[name] for name in ("answer", "window", "half_life")}

    def query(self, tick: int, arrivals: tuple[int, ...]) -> StreamedMoment:
        """Return the query of a tick; ``arrivals`` are the numbers of the snapshots of all ticks up to it."""
        return tick_query(self.plan, weights=self.weights, horizon=self.horizon, tick=tick, arrivals=arrivals)

    def event_of(self, ticks: int, *, charged: int = 0) -> Event:
        """Return the event by which ticks up to a number are charged, after others were."""
        if self.weights.endless:
            if charged:
                raise InvalidInput(
                    f"strategy={self.weights.strategy} has one charge for any number of ticks, and the noise of this "
                    f"stream was bounded for {charged} when it was opened; open a new stream, with --ticks for more."
                )
            return self.plan.event
        if not charged and ticks == self.horizon:
            return self.plan.event
        multiplier = float(self.facts["noise_multiplier"])
        return extension_event(
            self.weights, horizon=self.horizon, charged=charged, to=ticks, noise_multiplier=multiplier
        )

    def epsilon_of(self, event: Event) -> float:
        """Return the epsilon of an event of the stream at its delta."""
        if event == self.plan.event:
            return float(self.facts["epsilon"])
        return smallest_epsilon(units_of(float(event["noise_multiplier"])), float(self.facts["delta"]))

    def slot_at(self, time: datetime) -> str:
        """Name the slot of a time that a schedule planned.

        Days, weeks and months are those of the time's own zone, so each has one slot when clocks change. Hours are
        those of UTC, because a local hour comes twice in autumn.
        """
        schedule = self.facts["schedule"]
        return (time.astimezone(UTC) if schedule == "hourly" else time).strftime(SLOTS[schedule])

    def check_slot(self, slot: str) -> str:
        """Return the name of a slot if it is written as `slot_at` writes it.

        Raises
        ------
        InvalidInput
            If it is another text, or no date of the calendar.
        """
        schedule, day = self.facts["schedule"], "-1" if self.facts["schedule"] == "weekly" else ""
        try:
            time = datetime.strptime(slot + day, SLOTS[schedule] + day.replace("1", "%u"))
        except ValueError:
            time = None
        if time is None or time.strftime(SLOTS[schedule]) != slot:
            raise InvalidInput(
                f"slot {slot!r} names no slot of this {schedule} stream; write it like {_EXAMPLES[schedule]}, with all "
                "digits and nothing around it."
            )
        return slot


def plan_terms(workspace: Workspace, request: StreamRequest) -> StreamTerms:
    """Check a request for a stream against catalog and budget, and plan it. No row is read.

    Raises
    ------
    InvalidInput, Conflict
        When it asks for what cannot be, or the dataset belongs to other people.
    """
    check_name(request.publish)
    check_options(request)
    snapshot = workspace.catalog.current(request.dataset)
    if snapshot.population != request.population:
        raise Conflict(
            f"dataset {request.dataset!r} belongs to population {snapshot.population!r}, not {request.population!r}; "
            "name that population."
        )
    budget = workspace.ledger.budget(request.population)
    budget.check_unit(snapshot.name, snapshot.privacy_unit)
    weights, answer = _weights(request)
    horizon = max(request.ticks or LONGEST, LONGEST) if weights.endless else int(request.ticks or 1)
    if request.instalment is not None and (weights.endless or request.instalment > horizon):
        raise InvalidInput(
            f"instalment={request.instalment} must be part of a number of ticks, and of the strategy sqrt, which is "
            "charged by them; leave it out."
        )
    problem = Problem(
        n_features=snapshot.n_features,
        clip_norm=request.clip_norm,
        center=cast(Center, request.center),
        relation=budget.relation,
        **records_facts(snapshot),
    )
    target = PrivacyTarget(epsilon=request.epsilon, delta=request.delta, allow_large_delta=request.allow_large_delta)
    plan = plan_stream(problem, target, weights=weights, ticks=horizon, n_components=request.components)
    query = tick_query(plan, weights=weights, horizon=horizon, tick=1, arrivals=(0,))
    asked = {item.name: getattr(request, item.name) for item in dataclasses.fields(request)}
    (scale,) = scale_in_steps(query, Symmetric(noise_multiplier=plan.noise_multiplier))
    facts = {
        **{name: value for name, value in asked.items() if name not in ("ticks", "instalment")},
        **{"answer": answer, "strategy": weights.strategy, "weights": weights.to_json(), "horizon": horizon},
        **{"noise_multiplier": plan.noise_multiplier, "bits": plan.bits, "noise_in_steps": scale},
        **{"query": f"{query.name} {query.version}", "features": features_of(workspace, snapshot)},
        **{"unit": workspace.catalog.arrivals_of(snapshot.snapshot), "whose": snapshot.unit},
        "rows_per_unit": budget.rows_per_unit,
        **{"problem": dataclasses.asdict(problem)},
        "plan": {name: fact for name, fact in dataclasses.asdict(plan).items() if name not in _APART},
    }
    return StreamTerms(facts=_as_stored(facts), plan=plan, weights=weights)


def read_terms(facts: Mapping[str, Any]) -> StreamTerms:
    """Return the terms of a stream as they were stored when it was opened."""
    problem, plan = Problem(**facts["problem"]), dict(facts["plan"])
    plan["notes"] = tuple(plan["notes"])
    target = PrivacyTarget(epsilon=facts["epsilon"], delta=facts["delta"], allow_large_delta=facts["allow_large_delta"])
    event = gaussian(facts["noise_multiplier"])
    return StreamTerms(
        facts=facts,
        plan=Plan(mechanism="stream", problem=problem, target=target, event=event, **plan),
        weights=Weights.from_json(facts["weights"]),
    )


def check_fits(workspace: Workspace, terms: StreamTerms, snapshot: Entry) -> None:
    """Check that a snapshot has the columns and the individuals that a stream was opened for.

    Raises
    ------
    Conflict
        When it has others.
    Refused
        When it has more rows of an individual than the budget states.
    """
    if features_of(workspace, snapshot) != terms.facts["features"]:
        raise Conflict(
            f"the columns of {snapshot.name!r} are not those with which the stream was opened, and they never change; "
            "ingest those columns, or close the stream and open another, which is charged anew."
        )
    if snapshot.unit != terms.facts["whose"]:
        raise Conflict(
            f"the individuals of {snapshot.name!r} are told by {snapshot.unit!r} now, and the stream was opened for "
            f"{terms.facts['whose']!r}; ingest the data as before, or close the stream and open another, which is "
            "charged anew."
        )
    workspace.ledger.budget(snapshot.population).check_unit(snapshot.name, snapshot.privacy_unit)


def features_of(workspace: Workspace, snapshot: Entry) -> str:
    """Return a digest of the columns of a snapshot: their number, names and declarations, where they have any."""
    rows = workspace.catalog.open(snapshot)
    names = rows.feature_names()
    told = [snapshot.n_features, None if names is None else list(names), meaning(rows.encoder())]
    return hashlib.sha256(canonical_json(told)).hexdigest()


def _weights(request: StreamRequest) -> tuple[Weights, str]:
    """Choose the weights of a request, and what its ticks estimate."""
    window, half_life, strategy = request.window, request.half_life, request.strategy
    if window is not None and half_life is not None:
        raise InvalidInput(f"window={window} and half_life={half_life} are two estimates; state one of them.")
    answer = "prefix" if window is None and half_life is None else ("decay" if window is None else "window")
    if strategy == "auto":
        strategy = "decay" if answer != "prefix" else ("power" if request.ticks is None else "sqrt")
    if strategy in ("window", "decay") and answer == "prefix":
        raise InvalidInput(f"strategy={strategy} needs --window or --half-life; state one.")
    if strategy == "window" and window is None:
        raise InvalidInput("strategy=window needs --window; state the ticks that count.")
    chosen: dict[str, Any] = {}
    if strategy == "window":
        chosen["window"] = window
    elif strategy == "decay":
        chosen["half_life"] = float(window) if half_life is None and window is not None else half_life
    return choose_weights(cast(Strategy, strategy), ticks=request.ticks, **chosen), answer


def _as_stored(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return facts as they are read back from the ledger."""
    return dict(json.loads(canonical_json(facts)))
