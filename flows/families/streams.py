"""Terms of a stream of subspaces, and the version that each tick (one slot of the schedule) publishes.

The terms are planned from public facts when the stream is opened, and read back at each tick. They hold the plan, the
weights and everything else on which a tick's noise and grid depend. A later version of the program therefore answers
a tick of the stream in the same way.

The version of a tick is a private subspace: the estimate from all stored answers, aligned with the previous version.
It is post-processing of released answers; no row is read.
"""

import dataclasses
import hashlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from dpca.artifacts.base import canonical_json
from dpca.artifacts.subspace import PrivateSubspace
from dpca.errors import Conflict
from dpca.privacy_unit import NIGHT_ROW, PrivacyUnit, privacy_statement
from dpca.registry.pointers import check_name
from dpca.schemas.frames import meaning
from dpca_tasks.accounting.calibration import smallest_epsilon, units_of
from dpca_tasks.accounting.events import Event, gaussian
from dpca_tasks.accounting.factorisation import LONGEST, Strategy, Weights, choose_weights, extension_event
from dpca_tasks.errors import InvalidInput
from dpca_tasks.layouts import unpack_symmetric
from dpca_tasks.mechanisms.base import Center, Plan, PrivacyTarget, Problem
from dpca_tasks.mechanisms.streams.stream_estimate import (
    Contrast,
    Drift,
    align,
    coefficients,
    combined,
    contrast_of,
    measure_drift,
    streamed_subspace,
)
from dpca_tasks.mechanisms.streams.stream_maps import TickMap
from dpca_tasks.mechanisms.streams.stream_ticks import plan_stream, tick_noise, tick_query
from dpca_tasks.noise.distributions import Symmetric
from dpca_tasks.privacy.request import scale_in_steps
from dpca_tasks.queries.streamed_moment import StreamedMoment
from dpca_tasks.refinement.constrained_release import constrained_release
from dpca_tasks.refinement.refined_release import RefinedRelease, refine_release
from dpca_tasks.refinement.schema_constraints import Constraints
from flows.families.base import code_version, records_facts
from flows.families.columns import Columns
from flows.families.mapped_streams import DOUBLING, MappedEstimate, MappedStream
from flows.families.restated_subspace import state_subspace
from flows.families.warm_starts import Parent, check_start
from flows.requests import StreamRequest
from storage.datasets.catalog import Entry
from storage.ledger.stream_rows import Answers, Stream, Tick
from storage.workspace import Workspace

SLOTS: Mapping[str, str] = {"hourly": "%Y-%m-%dT%H", "daily": "%Y-%m-%d", "weekly": "%G-W%V", "monthly": "%Y-%m"}
"""The date format by which the planned time of a tick becomes the name of its slot, for each schedule."""

_EXAMPLES = {"hourly": "2026-01-05T14", "daily": "2026-01-05", "weekly": "2026-W02", "monthly": "2026-01"}

_SEPARATE = ("event", "target", "problem", "mechanism")


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamTerms:
    """The terms of a stream, which were planned when the stream was opened.

    Attributes
    ----------
    facts : mapping, the terms in their stored form
    plan : Plan
    weights : Weights
    """

    facts: Mapping[str, Any]
    plan: Plan
    weights: Weights

    @property
    def horizon(self) -> int:
        """Number of ticks for which the noise was calibrated."""
        return int(self.facts["horizon"])

    @property
    def unit(self) -> PrivacyUnit:
        """Privacy unit: the unit of the budget if rows have ids, else one row of one night (tick)."""
        if self.facts["unit"] == "rows":
            return PrivacyUnit(name=NIGHT_ROW)
        return PrivacyUnit(name=self.facts["whose"], rows=self.facts["rows_per_unit"])

    def statement(self, epsilon: float) -> str:
        """Return the guarantee in one sentence, for ticks that cost ``epsilon`` together."""
        delta, relation = float(self.facts["delta"]), self.plan.problem.relation
        return privacy_statement(epsilon=epsilon, delta=delta, relation=relation, unit=self.unit)

    @property
    def answer(self) -> dict[str, Any]:
        """Kind of estimate of each tick, as keyword arguments of the estimate functions."""
        return {name: self.facts[name] for name in ("answer", "window", "half_life")}

    @property
    def is_mapped(self) -> bool:
        """True if ticks multiply records by public maps."""
        return self.facts["like"] is not None or self.facts["maps"] == DOUBLING

    def mapped(self, answers: Answers) -> MappedStream:
        """Return an object that computes maps and estimates of the stream from these answers."""
        like = self.facts["like"]
        return MappedStream(
            plan=self.plan,
            weights=self.weights,
            horizon=self.horizon,
            answer=self.answer,
            components=int(self.facts["components"]),
            like=None if like is None else (like, self.facts["like_digest"]),
            noise_of_like=math.inf if like is None else float(self.facts["noise_of_like"]),
            doubling=self.facts["maps"] == DOUBLING,
            answers=answers,
        )

    def query(self, tick: int, arrivals: tuple[int, ...], *, inputs: TickMap | None = None) -> StreamedMoment:
        """Return the query of a tick; ``arrivals`` are the snapshot numbers of all ticks up to this one."""
        return tick_query(
            self.plan, weights=self.weights, horizon=self.horizon, tick=tick, arrivals=arrivals, inputs=inputs
        )

    def event_of(self, ticks: int, *, charged: int = 0) -> Event:
        """Return the event that charges the ticks up to ``ticks``, after the first ``charged`` were paid."""
        if self.weights.endless:
            if charged:
                raise InvalidInput(
                    f"strategy={self.weights.strategy} has one charge for any number of ticks (versions), but the "
                    f"noise of this stream was bounded for {charged} ticks when it was opened; open a new stream "
                    "with more "
                    "--ticks."
                )
            return self.plan.event
        if not charged and ticks == self.horizon:
            return self.plan.event
        multiplier = float(self.facts["noise_multiplier"])
        return extension_event(
            self.weights, horizon=self.horizon, charged=charged, to=ticks, noise_multiplier=multiplier
        )

    def epsilon_of(self, event: Event) -> float:
        """Return the epsilon of an event of the stream, at the delta of the stream."""
        if event == self.plan.event:
            return float(self.facts["epsilon"])
        return smallest_epsilon(units_of(float(event["noise_multiplier"])), float(self.facts["delta"]))

    def slot_at(self, time: datetime) -> str:
        """Return the name of the slot of a planned time.

        Days, weeks and months follow the time zone of ``time``, so each has one slot even when clocks change. Hours
        follow UTC, because a local hour occurs twice in autumn.
        """
        schedule = self.facts["schedule"]
        return (time.astimezone(UTC) if schedule == "hourly" else time).strftime(SLOTS[schedule])

    def check_slot(self, slot: str) -> str:
        """Return the name of a slot, after a check that it has the format of `slot_at`.

        Raises
        ------
        InvalidInput
            If the text has another format, or is not a calendar date.
        """
        schedule, day = self.facts["schedule"], "-1" if self.facts["schedule"] == "weekly" else ""
        try:
            time = datetime.strptime(slot + day, SLOTS[schedule] + day.replace("1", "%u"))
        except ValueError:
            time = None
        if time is None or time.strftime(SLOTS[schedule]) != slot:
            raise InvalidInput(
                f"slot {slot!r} is not the name of a slot of this {schedule} stream; write it like "
                f"{_EXAMPLES[schedule]}, with all digits and without other characters."
            )
        return slot


def plan_terms(workspace: Workspace, request: StreamRequest) -> StreamTerms:
    """Check a request for a stream against catalog and budget, and plan it. No row is read.

    Raises
    ------
    InvalidInput, Conflict
        When the request is not feasible, or the dataset belongs to another population.
    """
    check_name(request.publish)
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
            f"instalment={request.instalment} must be at most the number of ticks, and requires "
            "strategy=sqrt, whose charge depends on the number of ticks; leave it out."
        )
    problem = Problem(
        n_features=snapshot.n_features,
        clip_norm=request.clip_norm,
        center=cast(Center, request.center),
        relation=budget.relation,
        **records_facts(snapshot),
    )
    target = PrivacyTarget(epsilon=request.epsilon, delta=request.delta, allow_large_delta=request.allow_large_delta)
    like = _like(workspace, request, snapshot)
    mapped = request.like is not None or request.maps == DOUBLING
    plan = plan_stream(problem, target, weights=weights, ticks=horizon, n_components=request.components, mapped=mapped)
    first = TickMap.none(problem) if mapped else None
    query = tick_query(plan, weights=weights, horizon=horizon, tick=1, arrivals=(0,), inputs=first)
    requested = {item.name: getattr(request, item.name) for item in dataclasses.fields(request)}
    (scale,) = scale_in_steps(query, Symmetric(noise_multiplier=plan.noise_multiplier))
    facts = {
        **{name: value for name, value in requested.items() if name not in ("ticks", "instalment")},
        **{"answer": answer, "strategy": weights.strategy, "weights": weights.to_json(), "horizon": horizon},
        **{"noise_multiplier": plan.noise_multiplier, "bits": plan.bits, "noise_in_steps": scale},
        **{"query": f"{query.name} {query.version}", "features": features_of(workspace, snapshot)},
        **{"unit": workspace.catalog.arrivals_of(snapshot.snapshot), "whose": snapshot.unit},
        "rows_per_unit": budget.rows_per_unit,
        **like,
        "constraints": _constraints(workspace, snapshot) if request.schema_constraints else None,
        **{"problem": dataclasses.asdict(problem)},
        "plan": {name: fact for name, fact in dataclasses.asdict(plan).items() if name not in _SEPARATE},
    }
    return StreamTerms(facts=_as_stored(facts), plan=plan, weights=weights)


def read_terms(facts: Mapping[str, Any]) -> StreamTerms:
    """Rebuild the terms of a stream from the form stored when it was opened."""
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
    """Check that a snapshot has the columns and the privacy unit with which a stream was opened.

    Raises
    ------
    Conflict
        When the columns, or the ids that identify individuals, differ.
    Refused
        When the snapshot has more rows per individual than the budget states.
    """
    if features_of(workspace, snapshot) != terms.facts["features"]:
        raise Conflict(
            f"the columns of {snapshot.name!r} differ from those of the stream, which never change; "
            "ingest the same columns, or close the stream and open another, which is charged again."
        )
    if snapshot.unit != terms.facts["whose"]:
        raise Conflict(
            f"the individuals of {snapshot.name!r} are identified by {snapshot.unit!r}, but the "
            f"stream was opened for {terms.facts['whose']!r}; ingest the data as before, or close the stream and "
            "open another, which is charged again."
        )
    workspace.ledger.budget(snapshot.population).check_unit(snapshot.name, snapshot.privacy_unit)


def features_of(workspace: Workspace, snapshot: Entry) -> str:
    """Return a digest of the columns of a snapshot.

    It covers their number, and their names and encoder declarations if there are any.
    """
    rows = workspace.catalog.open(snapshot)
    names = rows.feature_names()
    shown = [snapshot.n_features, None if names is None else list(names), meaning(rows.encoder())]
    return hashlib.sha256(canonical_json(shown)).hexdigest()


def _like(workspace: Workspace, request: StreamRequest, snapshot: Entry) -> dict[str, Any]:
    """Return the version, digest and noise of the earlier release of a request, for the terms."""
    if request.like is None:
        return {}
    parent = Parent.of(request.like)
    check_start(Columns.of(workspace.catalog.open(snapshot)), parent.columns)
    start = parent.start(center=request.center)
    noise = start.noise_std / start.n_records / request.clip_norm**2
    return {"like": str(parent.version), "like_digest": parent.version.digest, "noise_of_like": noise}


def _constraints(workspace: Workspace, snapshot: Entry) -> dict[str, Any] | None:
    """Return the constraints of the snapshot's schema as plain JSON values; None if it has none."""
    found = Columns.of(workspace.catalog.open(snapshot)).constraints
    return None if found is None else found.facts()


def _weights(request: StreamRequest) -> tuple[Weights, str]:
    """Choose the weights of a request, and the kind of estimate of its ticks."""
    window, half_life, strategy = request.window, request.half_life, request.strategy
    if window is not None and half_life is not None:
        raise InvalidInput(
            f"window={window} and half_life={half_life} define two different estimates; state one of them."
        )
    answer = "prefix" if window is None and half_life is None else ("decay" if window is None else "window")
    if strategy == "auto":
        strategy = "decay" if answer != "prefix" else ("power" if request.ticks is None else "sqrt")
    if strategy in ("window", "decay") and answer == "prefix":
        raise InvalidInput(f"strategy={strategy} needs --window or --half-life; state one.")
    if strategy == "window" and window is None:
        raise InvalidInput("strategy=window needs --window; state its number of ticks.")
    chosen: dict[str, Any] = {}
    if strategy == "window":
        chosen["window"] = window
    elif strategy == "decay":
        chosen["half_life"] = float(window) if half_life is None and window is not None else half_life
    return choose_weights(cast(Strategy, strategy), ticks=request.ticks, **chosen), answer


def _as_stored(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the facts in the same form as the ledger returns them."""
    return dict(json.loads(canonical_json(facts)))


FIRST_TESTED = 8
"""First tick with a drift test, which needs two answers in each of the two last quarters of the ticks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Earlier:
    """Versions of a stream's earlier ticks, with which a new version is compared.

    Attributes
    ----------
    before : PrivateSubspace or None, the version of the last tick that has one
    halfway : PrivateSubspace or None, the version of tick t // 2, whose directions are tested for drift
    """

    before: PrivateSubspace | None = None
    halfway: PrivateSubspace | None = None


def state_tick(
    terms: StreamTerms,
    stream: Stream,
    ticks: Sequence[Tick],
    answers: Answers,
    *,
    earlier: Earlier,
    epsilon: float,
    feature_names: Sequence[str] | None,
) -> PrivateSubspace:
    """Build the version of the last tick in ``ticks``.

    Parameters
    ----------
    terms : StreamTerms
    stream : Stream
    ticks : sequence of Tick
        All ticks up to and including this one.
    answers : mapping
    earlier : Earlier
    epsilon : float
        Joint epsilon of all charged ticks.
    feature_names : sequence of str, optional
    """
    tick, kept = ticks[-1], [number for number in answers if number <= ticks[-1].tick]
    multipliers = coefficients(terms.weights, kept=kept, **terms.answer)
    problem, count = terms.plan.problem, int(terms.facts["components"])
    if terms.is_mapped:
        mapped = terms.mapped(answers)
        estimated = mapped.estimate(kept)
        found, drift = estimated.subspace, _mapped_drift(terms, mapped, estimated, kept, earlier.halfway)
    else:
        query = terms.query(tick.tick, tuple(each.number for each in ticks))
        energies: list[float] = []
        packed = combined(_read(answers, kept, query, energies), multipliers)
        estimate = unpack_symmetric(packed * _step(query), query.layout.order)
        noise = tick_noise(terms.plan, query)
        found = streamed_subspace(estimate, problem, noise=noise, multipliers=multipliers, n_components=count)
        drift = _drift(terms, query, answers, kept, energies, earlier.halfway, noise_std=float(noise["std"]))
    constraints = Constraints.of(terms.facts["constraints"], n_features=problem.n_features)
    found = constrained_release(found, constraints)
    refined = refine_release(found, n_components=count, method=terms.facts["refine"])
    turned, shown = _aligned(terms, refined, earlier.before)
    missing = [number for number in range(1, tick.tick + 1) if number not in kept]
    artifact = state_subspace(
        turned,
        raw=found,
        keep_matrix=0.0,
        warnings=_warnings(terms, tick, missing, shown),
        manifest={
            **({} if feature_names is None else {"feature_names": list(feature_names)}),
            "mechanism": terms.plan.mechanism,
            "parameters": _parameters(terms),
            "code_version": code_version(),
            "plan": {
                **{"noise_multiplier": terms.plan.noise_multiplier, "grid_bits": terms.plan.bits},
                **{"row_policy": terms.facts["row_policy"], "center": problem.center},
                "stream": {**lineage(terms, stream, tick), "factor": factor(terms, multipliers), "missing": missing},
            },
            "privacy": {
                **{"epsilon": epsilon, "delta": terms.facts["delta"], "relation": problem.relation},
                **terms.unit.facts,
                **{"statement": terms.statement(epsilon), "records_at_most": problem.records_at_most},
                "event": {
                    **{"name": "stream_tick", "stream": stream.id, "tick": tick.tick},
                    "noise_multiplier": terms.plan.noise_multiplier,
                },
            },
            "release": tick.release_id,
            "clip_norm": problem.clip_norm,
        },
    )
    more = {"alignment": shown, **({} if drift is None else {"drift": drift})}
    return replace(artifact, manifest={**artifact.manifest, "outcome": {**artifact.outcome, **more}})


def lineage(terms: StreamTerms, stream: Stream, tick: Tick) -> dict[str, Any]:
    """Return the facts about stream and tick that a version states, so that a restored ledger can recover the tick."""
    return {
        **{"id": stream.id, "fingerprint": stream.fingerprint, "strategy": terms.weights.strategy},
        **{"tick": tick.tick, "ticks": stream.ticks, "slot": tick.slot, "snapshot_id": tick.snapshot_id},
        **{"number": tick.number, "arrivals": tick.arrivals, "answer": tick.answer},
    }


def factor(terms: StreamTerms, multipliers: NDArray[np.float64]) -> float:
    """Return the std of an estimate, divided by the std of a single release with the guarantee of the whole stream.

    If records are replaced, the sensitivity of a single release grows by a factor of root two. The sensitivity of a
    stream whose weights have mixed signs grows by more.
    """
    weights, replaced = terms.weights, terms.plan.problem.relation == "replace_one"
    squared = weights.replaced_squared(terms.horizon) / 2 if replaced else weights.zeta_squared(terms.horizon)
    return math.sqrt(float(squared)) * float(np.linalg.norm(multipliers))


def _read(
    answers: Answers, kept: Sequence[int], query: StreamedMoment, energies: list[float]
) -> Iterator[NDArray[np.int64]]:
    """Yield the answers in order, and append the trace of each to ``energies``."""
    order = query.layout.order
    diagonal = np.concatenate([[0], np.cumsum(np.arange(order, 1, -1))])[: query.n_features]
    for tick in kept:
        answer = answers[tick]
        energies.append(float(answer[diagonal].sum()) * _step(query))
        yield answer


def _step(query: StreamedMoment) -> float:
    return float(query.unit / query.steps_per_unit)


def _aligned(
    terms: StreamTerms, refined: RefinedRelease, before: PrivateSubspace | None
) -> tuple[RefinedRelease, dict[str, Any]]:
    """Align the components of a version with the previous version; return it with the facts of the alignment."""
    method = terms.facts["align"]
    if before is None or before.components.shape != refined.subspace.components.shape:
        return refined, {"method": method, "with": None}
    found = align(refined.subspace.components, before.components, method=method)
    shown = {"method": method, "with": before.manifest["release"], "cosines": found.cosines.tolist()}
    shown |= {"rotation": found.rotation.tolist(), "broke": found.broke}
    return replace(refined, subspace=replace(refined.subspace, components=found.components)), shown


def _drift(
    terms: StreamTerms,
    query: StreamedMoment,
    answers: Answers,
    kept: Sequence[int],
    energies: Sequence[float],
    halfway: PrivateSubspace | None,
    *,
    noise_std: float,
) -> dict[str, Any] | None:
    """Test whether the rows of the last quarter of the ticks resemble the rows of the quarter before.

    The tested directions come from the version halfway, because its noise is not in the later answers. Arrivals are
    measured by their energy, which is the trace of their second moment. The noise of the traces is independent of the
    noise of the tested statistic.
    """
    counts = [energy / query.clip_norm**2 for energy in energies]
    contrast = _contrast(terms, kept, counts, before=kept[-1] // 2)
    if halfway is None or contrast is None:
        return None
    packed = combined((answers[number] for number in contrast.ticks), contrast.multipliers)
    difference = unpack_symmetric(packed * _step(query), query.layout.order)
    inner = difference[: query.n_features, : query.n_features]
    found = measure_drift(inner, halfway.components, contrast, noise_std=noise_std, clip_norm=query.clip_norm)
    return _shown_drift(found, kept, before=kept[-1] // 2)


def _mapped_drift(
    terms: StreamTerms,
    stream: MappedStream,
    estimated: MappedEstimate,
    kept: Sequence[int],
    halfway: PrivateSubspace | None,
) -> dict[str, Any] | None:
    """Run the test of `_drift` for a stream with maps, on the last ticks, which all have the same map."""
    before = max(kept[-1] // 2, estimated.first - 1)
    contrast = _contrast(terms, kept, estimated.records, before=before)
    if halfway is None or contrast is None:
        return None
    return _shown_drift(stream.drift(halfway.components, contrast), kept, before=before)


def _contrast(terms: StreamTerms, kept: Sequence[int], counts: Sequence[float], *, before: int) -> Contrast | None:
    """Return the contrast that compares the two halves of the ticks after ``before``; None if answers are too few.

    ``counts`` are the weighted numbers of records in the answers.
    """
    tick, change = kept[-1], _change(kept, before=before)
    if tick < FIRST_TESTED:
        return None
    if sum(before < number <= change for number in kept) < 2 or sum(number > change for number in kept) < 2:
        return None
    arrived = np.maximum(_arrivals(terms.weights.series, kept, counts), 0.0)
    try:
        return contrast_of(terms.weights, kept=kept, before=before, change=change, counts=arrived.tolist())
    except InvalidInput:  # too little arrived in one of the halves to distinguish them
        return None


def _change(kept: Sequence[int], *, before: int) -> int:
    return (before + kept[-1]) // 2


def _shown_drift(found: Drift, kept: Sequence[int], *, before: int) -> dict[str, Any]:
    shown = {"statistic": found.statistic, "degrees": found.degrees, "rho": found.rho, "p": found.p}
    return {**shown, "directions_of_tick": kept[-1] // 2, "change_after_tick": _change(kept, before=before)}


def _arrivals(series: NDArray[np.float64], kept: Sequence[int], energies: Sequence[float]) -> NDArray[np.float64]:
    """Return the energy (trace) of the rows that arrived at each tick.

    It is the energy of the tick's answer, minus the weighted energy of earlier arrivals.
    """
    arrived, weights = np.zeros(kept[-1]), np.zeros(kept[-1] + 1)
    weights[: min(len(series), len(weights))] = series[: len(weights)]
    for tick, energy in zip(kept, energies, strict=True):
        arrived[tick - 1] = energy - weights[1:tick][::-1] @ arrived[: tick - 1]
    return arrived


def _parameters(terms: StreamTerms) -> dict[str, Any]:
    names = ("refine", "align", "like", "maps", "strategy", "answer", "window", "half_life", "schedule")
    return {"n_components": terms.facts["components"], **{name: terms.facts[name] for name in names}}


def _warnings(terms: StreamTerms, tick: Tick, missing: Sequence[int], shown: Mapping[str, Any]) -> list[str]:
    found = list(terms.plan.warnings)
    if terms.facts["unit"] == "rows":
        found.append(
            "the privacy unit is a row of one night: rows have no ids, so a person with rows in "
            "many nights is protected for each row, not for all; ingest with ids to protect people."
        )
    if tick.arrivals == "unknown":
        found.append(
            "the arrival times of rows are lost, so all rows count as arrived at tick 1: this is "
            "equally private, but newcomers are undercounted; open a new stream to count them in full."
        )
    if missing:
        found.append(f"the noisy answers of {len(missing)} ticks are missing, and the estimate is made without them.")
    if shown.get("broke"):
        found.append(
            "the coordinates of this version are not comparable with the previous version, in which some "
            "direction has no counterpart."
        )
    return found
