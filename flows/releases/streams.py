"""Operations on streams, and the stages of a tick (one version of a stream).

The operator's actions are: open, extend, show, close. They run in the calling process and do not need Prefect.

The stages of a tick are: begin it, compute its answer, write its version, publish, report. Every stage takes and
returns names and public numbers. A slot of the schedule has one tick. If a schedule runs a slot again, the slot's tick
resumes where it stopped, on the snapshot that it began with.
"""

import dataclasses
import math
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import numpy as np

from dpca.artifacts.files import read_artifact, write_artifact
from dpca.artifacts.subspace import PrivateSubspace
from dpca.errors import BudgetExhausted, Conflict, Finished, NotFound, Refused, Unavailable
from dpca.home import WORKERS, home
from dpca_tasks.accounting.events import Event
from dpca_tasks.mechanisms.streams.stream_estimate import coefficients
from dpca_tasks.mechanisms.streams.stream_maps import ENERGY
from dpca_tasks.mechanisms.streams.stream_ticks import release_tick
from dpca_tasks.privacy.curator import Curator
from dpca_tasks.privacy.gate import ANSWER, PUBLIC
from dpca_tasks.records.blocks import BlockSource
from flows.clusters.connecting import check_address, connect, open_cluster
from flows.families.base import rows_by_policy
from flows.families.streams import Earlier, StreamTerms, check_fits, factor, plan_terms, read_terms, state_tick
from flows.orchestration.stage_calls import Runner, directly, shown_progress
from flows.releases.running import summing, warn_of_budget
from flows.releases.stages import digest_of, made_or_found, release_facts, released_digest
from flows.reports.activity import begin_step
from flows.reports.terminal import about, configure_logs, log_event, spending
from flows.requests import StreamRequest
from flows.settings import Settings, cluster_settings
from storage.datasets.catalog import Catalog
from storage.datasets.snapshot_reader import Dataset, NightRows
from storage.ledger.step_answers import Reservation
from storage.ledger.stream_rows import Answers, Stream, Tick, keep_answer
from storage.ledger.streams import check_standing, fingerprint_of
from storage.workspace import Workspace


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """Offer to open or extend a stream, with the charge and its effect on the budget.

    Attributes
    ----------
    name, population : str
    terms : StreamTerms
    ticks : int, number of ticks paid for after the charge
    charged : int, number of ticks paid for before the charge
    event : Event
    epsilon : float
    standing : bool, whether these ticks are already paid for, so that nothing would be charged
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
        """Confirmation prompt before the charge."""
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
    """Check and plan a request for a stream, and quote its charge; charge nothing, read no row."""
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
    """Charge and begin a stream, or find the live stream with the same terms; return its public facts."""
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
    """Quote the charge for more ticks of a stream; charge nothing."""
    workspace = Workspace.read_only()
    stream, _ = workspace.ledger.streams.show(name)
    terms, standing = read_terms(stream.terms), ticks <= stream.ticks
    charged = 0 if standing else stream.ticks
    requested = stream.ticks if standing else ticks
    return _offer(workspace, name, stream.population, terms, ticks=requested, charged=charged, standing=standing)


def extend_stream(name: str, *, ticks: int) -> dict[str, Any]:
    """Charge more ticks of a stream, up to ``ticks`` in total; return its public facts."""
    workspace = Workspace.open()
    stream, _ = workspace.ledger.streams.show(name)
    if ticks > stream.ticks:
        terms = read_terms(stream.terms)
        event = terms.event_of(ticks, charged=stream.ticks)
        epsilon, after = terms.epsilon_of(event), stream.ticks
        stream = workspace.ledger.streams.extend(name, ticks=ticks, event=event, epsilon=epsilon, after=after)
    for charge in stream.charges:  # an earlier attempt may have ended before it sent the warnings
        warn_of_budget(workspace.ledger, charge.release_id, stream.population)
    return _facts(workspace, name)


def show_stream(name: str) -> dict[str, Any]:
    """Return the public facts of a stream."""
    return _facts(Workspace.read_only(), name)


def stream_rows() -> list[dict[str, Any]]:
    """Return one row per stream, oldest first."""
    streams = Workspace.read_only().ledger.streams
    return [_row(stream, len(streams.ticks(stream.id))) for stream in streams.all()]


def close_stream(name: str, *, tick: int | None = None) -> dict[str, Any]:
    """Close a stream permanently, or give up one of its ticks; return the stream's public facts."""
    workspace = Workspace.open()
    if tick is None:
        workspace.ledger.streams.close(name)
    else:
        workspace.ledger.streams.close_tick(name, tick)
    return _facts(workspace, name)


def stream_facts(stream: Stream, ticks: tuple[Tick, ...], answers: Answers) -> dict[str, Any]:
    """Return the public facts of a stream.

    They include the used and remaining ticks, the noise now and at the end, and the price of more ticks.
    """
    charged = stream.ticks
    known = {"stream": stream.name, "id": stream.id, "live": stream.is_live, "population": stream.population}
    if not stream.terms:  # a restore inserted the stream again from its published versions, which lack the terms
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
    shown = {"stream": stream.name, "id": stream.id, "live": stream.is_live, "population": stream.population}
    return {**shown, "dataset": stream.terms.get("dataset"), "ticks": stream.ticks, "used": used}


def _prices(terms: StreamTerms, charged: int) -> list[dict[str, Any]]:
    """Return the prices of more ticks, up to one, two and ten times the horizon (the planned number of ticks).

    The rounded weights of short streams end early. Ticks beyond the last weight cannot be charged and have no price.
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


def unfinished_tick(name: str, slot: str | None, planned: str | None) -> str:
    """Return the release id of an unfinished tick of an earlier slot; empty where there is none."""
    streams = Workspace.open().ledger.streams
    stream, ticks = streams.show(name)
    if not ticks or ticks[-1].is_settled or not stream.is_live:
        return ""
    return "" if ticks[-1].slot == _slot(stream, slot, planned) else ticks[-1].release_id


def begin_tick(name: str, slot: str | None, planned: str | None, snapshot: str | None) -> tuple[str, str]:
    """Begin the next tick of a stream, or find the tick of this slot; return its release's id and state.

    Parameters
    ----------
    name : str
    slot : str, optional
        The name of the slot; by default the slot of the planned time.
    planned : str, optional
        The time for which a schedule planned this run, in ISO 8601 with the UTC offset; by default now, in UTC.
    snapshot : str, optional
        Require the snapshot with this id.

    Raises
    ------
    Refused
        When an operator closed the slot's tick.
    InvalidInput
        When ``slot`` does not have the format of this stream's slots.
    """
    workspace = Workspace.open()
    streams = workspace.ledger.streams
    stream, ticks = streams.show(name)
    requested, terms = _slot(stream, slot, planned), read_terms(stream.terms)
    if requested not in {tick.slot for tick in ticks}:
        check_fits(workspace, terms, workspace.catalog.current(terms.facts["dataset"]))
    fingerprint = fingerprint_of(stream.terms)
    tick = streams.begin_tick(name, slot=requested, fingerprint=fingerprint, snapshot_id=snapshot)
    if tick.state == "closed":
        raise Refused(
            f"tick {tick.tick} (the version of slot {tick.slot!r}) was closed, and a slot has one tick; wait for the "
            "next slot."
        )
    with about(release=tick.release_id):
        log_event("tick", stream=name, tick=tick.tick, slot=tick.slot, state=tick.state)
    return tick.release_id, tick.state


def compute_tick(release_id: str, address: str) -> str:
    """Compute the answer of a tick on the cluster at ``address``, and write its artifact; return the digest."""
    workspace = Workspace.open()
    return made_or_found(workspace.ledger, release_id, lambda: _compute(workspace, release_id, address))


def publish_tick(release_id: str, digest: str) -> str:
    """Commit a tick together with its version under the stream's name; return ``name@version``."""
    workspace = Workspace.open()
    stream, _ = _found(workspace, release_id)
    try:
        number = workspace.publish(release_id, name=stream.name, artifact_digest=digest)
    except Finished:
        digest = digest_of(workspace.ledger, release_id)
        number = workspace.publish(release_id, name=stream.name, artifact_digest=digest)
    return f"{stream.name}@{number}"


def report_tick(artifact: str, *, reused: bool) -> dict[str, Any]:
    """Return the public facts of a published tick, its stream and its population's budget."""
    workspace = Workspace.read_only()
    facts = release_facts(workspace, artifact, reused=reused)
    manifest = workspace.registry.show(artifact)["manifest"]
    shown, outcome = manifest["plan"]["stream"], manifest["outcome"]
    alignment = outcome.get("alignment", {})
    return {
        **facts,
        **{name: shown[name] for name in ("tick", "ticks", "slot", "factor")},
        **{name: manifest["privacy"][name] for name in ("unit", "rows_per_unit")},
        **({"least_cosine": min(alignment["cosines"])} if "cosines" in alignment else {}),
        **({"drift_p": outcome["drift"]["p"]} if "drift" in outcome else {}),
    }


def tick_directly(
    name: str, *, slot: str | None = None, snapshot: str | None = None, workers: int | None = None
) -> dict[str, Any]:
    """Publish a stream's version for one slot of its schedule in this process, without Prefect."""
    return make_tick(directly, name, cluster_settings(workers), slot=slot, snapshot=snapshot)


def make_tick(
    run: Runner,
    name: str,
    settings: Settings,
    *,
    slot: str | None = None,
    planned: str | None = None,
    snapshot: str | None = None,
) -> dict[str, Any]:
    """Run all stages for a slot; return the public facts of its version.

    A tick of an earlier slot that a crash interrupted is finished first.
    """
    configure_logs(settings.log)
    check_address(settings)
    left = run(unfinished_tick, name, slot, planned)
    if left:
        _finish(run, left, settings)
    begin_step("beginning the tick")
    release_id, state = run(begin_tick, name, slot, planned, snapshot)
    artifact = _finish(
        run, release_id, settings, digest=run(released_digest, release_id) if state == "committed" else ""
    )
    report = run(report_tick, artifact, reused=state == "committed")
    shown = ("release", "artifact", "reused", "spent", "remaining")
    log_event("published", **{name: report[name] for name in shown})
    return report


def _finish(run: Runner, release_id: str, settings: Settings, *, digest: str = "") -> str:
    if not digest:
        with open_cluster(settings, scratch=home() / WORKERS) as address:
            digest = run(compute_tick, release_id, address)
    begin_step("publishing")
    return run(publish_tick, release_id, digest)


def _compute(workspace: Workspace, release_id: str, address: str) -> str:
    ledger, catalog = workspace.ledger, workspace.catalog
    stream, ticks = _found(workspace, release_id)
    tick, terms = ticks[-1], read_terms(stream.terms)
    answers = Answers(place=workspace.store, ticks=ticks)
    with about(release=release_id):
        reservation = ledger.begin(release_id)
        began = time.monotonic()
        if tick.tick not in answers:
            tick = _answer(workspace, terms, ticks, reservation, address=address)
            ticks = (*ticks[:-1], tick)
            answers = Answers(place=workspace.store, ticks=ticks)
        log_event("computed", seconds=round(time.monotonic() - began, 3))
        artifact = state_tick(
            terms,
            stream,
            ticks,
            answers,
            earlier=_earlier(workspace, ticks),
            epsilon=ledger.release(release_id).epsilon,
            feature_names=_names(catalog, tick),
        )
        for warning in artifact.manifest.get("warnings", ()):
            log_event("warned", warning=warning)
    return write_artifact(artifact, home=workspace.home, place=workspace.store)


def _answer(
    workspace: Workspace, terms: StreamTerms, ticks: tuple[Tick, ...], reservation: Reservation, *, address: str
) -> Tick:
    """Compute the answer of a tick, copy it to the stream's store and record the copy in the ledger."""
    tick, ledger = ticks[-1], workspace.ledger
    source, reservation = _rows(workspace, terms, ticks, reservation)
    numbers = tuple(each.number for each in ticks)
    # if arrival times are lost, all rows count from tick 1
    arrivals = numbers if tick.arrivals != "unknown" else (tick.number,) * len(numbers)
    inputs = None
    if terms.is_mapped:
        inputs = terms.mapped(Answers(place=workspace.store, ticks=ticks)).map_of(tick.tick)
    query = terms.query(tick.tick, arrivals, inputs=inputs)
    begin_step("loading rows and code")
    with shown_progress(f"tick {tick.tick} of {tick.stream}") as show, connect(address) as client:
        curator = Curator(source, reservation, client=client, progress=summing(show))
        release_tick(curator, terms.plan, curator.with_stored_inputs(query))
    kept = reservation.kept(0)
    if kept is None:
        raise Unavailable(
            f"the stored answer of tick {tick.tick} was removed while in use, perhaps by a cleanup on a machine "
            "whose clock is ahead; correct the clocks and run the same request again: the answer is recomputed "
            "with the same noise."
        )
    public = {name.removeprefix(PUBLIC): array for name, array in kept.items() if name.startswith(PUBLIC)}
    if inputs is not None and inputs.energy is not None:
        public[ENERGY] = np.array([inputs.energy])
    digest = ledger.streams.answered(tick, digest=keep_answer(workspace.store, tick, kept[ANSWER], inputs=public))
    return dataclasses.replace(tick, answer=digest)


def _rows(
    workspace: Workspace, terms: StreamTerms, ticks: tuple[Tick, ...], reservation: Reservation
) -> tuple[BlockSource, Reservation]:
    """Return the rows of a tick, with the reservation for them.

    The rows come from the tick's snapshot. Where the privacy unit is one row of one night (tick), they come from all
    nights so far.
    """
    catalog, tick = workspace.catalog, ticks[-1]
    source: BlockSource
    try:
        entry = catalog.entry(tick.snapshot_id)
    except NotFound:
        raise Refused(
            f"the snapshot of tick {tick.tick} was removed, so its answer can no longer be "
            f"computed; close the tick with `dpca stream close {terms.facts['publish']} --tick {tick.tick}`."
        ) from None
    check_fits(workspace, terms, entry)
    source = catalog.open(entry)
    if tick.arrivals == "rows":
        first: dict[str, int] = {}
        for each in ticks:
            first.setdefault(each.snapshot_id, each.number)
        nights = [
            (_registered(catalog, snapshot), number) for snapshot, number in first.items() if catalog.has(snapshot)
        ]
        source = NightRows.of(nights)
        reservation = dataclasses.replace(reservation, content=source.content)
    return rows_by_policy(source, policy=terms.facts["row_policy"], clip_norm=terms.plan.problem.clip_norm), reservation


def _registered(catalog: Catalog, snapshot: str) -> Dataset:
    """Open the snapshot of one night, after a check that its rows are the registered rows."""
    entry = catalog.entry(snapshot)
    rows = catalog.open(entry)
    if rows.content != entry.content_digest:
        raise Conflict(f"the rows of snapshot {snapshot} differ from the registered rows; restore its files.")
    return rows


def _earlier(workspace: Workspace, ticks: tuple[Tick, ...]) -> Earlier:
    """Load the last version published before this tick, and the version of the tick with half its number."""

    def version_of(tick: Tick | None) -> PrivateSubspace | None:
        if tick is None or tick.artifact_digest is None:
            return None
        found: PrivateSubspace = read_artifact(workspace.store, tick.artifact_digest)
        return found

    published = [tick for tick in ticks[:-1] if tick.artifact_digest is not None]
    halfway = [tick for tick in published if tick.tick == ticks[-1].tick // 2]
    return Earlier(before=version_of(next(reversed(published), None)), halfway=version_of(next(iter(halfway), None)))


def _names(catalog: Catalog, tick: Tick) -> tuple[str, ...] | None:
    return catalog.open(catalog.entry(tick.snapshot_id)).feature_names() if catalog.has(tick.snapshot_id) else None


def _found(workspace: Workspace, release_id: str) -> tuple[Stream, tuple[Tick, ...]]:
    """Return the stream of a tick, and the stream's ticks up to this tick."""
    return workspace.ledger.streams.of_tick(release_id)


def _slot(stream: Stream, slot: str | None, planned: str | None) -> str:
    terms = read_terms(stream.terms)
    if slot is not None:
        return terms.check_slot(slot)
    return terms.slot_at(datetime.now(UTC) if planned is None else datetime.fromisoformat(planned))
