"""The stages of a tick of a stream: begin it, compute its answer, state its version, publish, report.

Every stage takes and returns names and public numbers. A slot is one tick: fired again, it is found by its slot, and
goes on where it stopped, on the snapshot that it began with.
"""

import dataclasses
import time
from datetime import UTC, datetime
from typing import Any

from dpca_tasks.mechanisms.streams.stream_ticks import release_tick
from dpca_tasks.privacy.curator import Curator
from dpca_tasks.privacy.gate import ANSWER
from dpca_tasks.records.blocks import BlockSource
from flows.clusters.connecting import check_address, connect, open_cluster
from flows.families.base import rows_by_policy
from flows.families.stream_terms import StreamTerms, check_fits, read_terms
from flows.families.streamed_subspace import Earlier, state_tick
from flows.orchestration.prefect_stages import Runner
from flows.orchestration.progress_card import progress_card
from flows.releases.partitions import summing
from flows.releases.publish import digest_of, made_or_found, release_facts, released_digest
from flows.reports.activity import begin_step
from flows.reports.logs import about, configure_logs, log_event
from flows.settings import Settings
from storage.artifacts.files import read_artifact, write_artifact
from storage.artifacts.subspace import PrivateSubspace
from storage.datasets.catalog import Catalog
from storage.datasets.night_rows import NightRows
from storage.datasets.snapshot_reader import Dataset
from storage.errors import Conflict, Finished, NotFound, Refused, Unavailable
from storage.home import WORKERS, home
from storage.ledger.reservation import Reservation
from storage.ledger.stream_answers import Answers, keep_answer
from storage.ledger.stream_rows import Stream, Tick
from storage.ledger.streams import fingerprint_of
from storage.workspace import Workspace


def unfinished_tick(name: str, slot: str | None, planned: str | None) -> str:
    """Return the release of a tick that began for an earlier slot and did not end; empty where there is none."""
    streams = Workspace.open().ledger.streams
    stream, ticks = streams.show(name)
    if not ticks or ticks[-1].is_settled or not stream.is_live:
        return ""
    return "" if ticks[-1].slot == _slot(stream, slot, planned) else ticks[-1].release_id


def begin_tick(name: str, slot: str | None, planned: str | None, snapshot: str | None) -> tuple[str, str]:
    """Begin the next tick of a stream, or find the one of this slot; return its release's id and state.

    Parameters
    ----------
    name : str
    slot : str, optional
        Names the slot; by default it is that of the planned time.
    planned : str, optional
        When a schedule planned this run, in ISO 8601 with the offset of its zone; by default now, in UTC.
    snapshot : str, optional
        Insist on the snapshot of this id.

    Raises
    ------
    Refused
        When an operator closed the slot's tick.
    InvalidInput
        When ``slot`` is not written as slots of this stream are.
    """
    workspace = Workspace.open()
    streams = workspace.ledger.streams
    stream, ticks = streams.show(name)
    asked, terms = _slot(stream, slot, planned), read_terms(stream.terms)
    if asked not in {tick.slot for tick in ticks}:
        check_fits(workspace, terms, workspace.catalog.current(terms.facts["dataset"]))
    fingerprint = fingerprint_of(stream.terms)
    tick = streams.begin_tick(name, slot=asked, fingerprint=fingerprint, snapshot_id=snapshot)
    if tick.state == "closed":
        raise Refused(f"tick {tick.tick} of slot {tick.slot!r} was closed, and a slot has one tick; wait for the next.")
    with about(release=tick.release_id):
        log_event("tick", stream=name, tick=tick.tick, slot=tick.slot, state=tick.state)
    return tick.release_id, tick.state


def compute_tick(release_id: str, address: str) -> str:
    """Release the answer of a tick on the cluster at ``address``, and write its version; return the digest."""
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
    """State a published tick, its stream and its population's budget, from public facts alone."""
    workspace = Workspace.read_only()
    facts = release_facts(workspace, artifact, reused=reused)
    manifest = workspace.registry.show(artifact)["manifest"]
    told, outcome = manifest["plan"]["stream"], manifest["outcome"]
    alignment = outcome.get("alignment", {})
    return {
        **facts,
        **{name: told[name] for name in ("tick", "ticks", "slot", "factor")},
        **{name: manifest["privacy"][name] for name in ("unit", "rows_per_unit")},
        **({"least_cosine": min(alignment["cosines"])} if "cosines" in alignment else {}),
        **({"drift_p": outcome["drift"]["p"]} if "drift" in outcome else {}),
    }


def make_tick(
    run: Runner,
    name: str,
    settings: Settings,
    *,
    slot: str | None = None,
    planned: str | None = None,
    snapshot: str | None = None,
) -> dict[str, Any]:
    """Run all stages for a slot; return the public facts of its version. A tick that a crash left is finished first."""
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
    told = ("release", "artifact", "reused", "spent", "remaining")
    log_event("published", **{name: report[name] for name in told})
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
    """Release the answer of a tick, copy it to the stream's store and note the copy."""
    tick, ledger = ticks[-1], workspace.ledger
    source, reservation = _rows(workspace, terms, ticks, reservation)
    numbers = tuple(each.number for each in ticks)
    arrivals = numbers if tick.arrivals != "unknown" else (tick.number,) * len(numbers)  # then all count from tick 1
    query = terms.query(tick.tick, arrivals)
    begin_step("loading rows and code")
    with progress_card(f"tick {tick.tick} of {tick.stream}") as show, connect(address) as client:
        release_tick(Curator(source, reservation, client=client, progress=summing(show)), terms.plan, query)
    kept = reservation.kept(0)
    if kept is None:
        raise Unavailable(
            f"the stored answer of tick {tick.tick} was removed while it was used, as a sweep does whose clock is far "
            "ahead; correct the clocks and run the same request again: it is computed again, with the same noise."
        )
    digest = ledger.streams.answered(tick, digest=keep_answer(workspace.store, tick, kept[ANSWER]))
    return dataclasses.replace(tick, answer=digest)


def _rows(
    workspace: Workspace, terms: StreamTerms, ticks: tuple[Tick, ...], reservation: Reservation
) -> tuple[BlockSource, Reservation]:
    """Return the rows of a tick: those of its snapshot, or of every night so far where a row of a night is the unit."""
    catalog, tick = workspace.catalog, ticks[-1]
    source: BlockSource
    try:
        entry = catalog.entry(tick.snapshot_id)
    except NotFound:
        raise Refused(
            f"the snapshot of tick {tick.tick} was removed, so its answer cannot be computed any more; close the tick "
            f"with `dpca stream close {terms.facts['publish']} --tick {tick.tick}`."
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
    """Open the rows of one night, if they are those that were registered."""
    entry = catalog.entry(snapshot)
    rows = catalog.open(entry)
    if rows.content != entry.content_digest:
        raise Conflict(f"the rows of snapshot {snapshot} are not those registered; restore its files.")
    return rows


def _earlier(workspace: Workspace, ticks: tuple[Tick, ...]) -> Earlier:
    """Load the versions of the tick before, and of the one halfway."""

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
    """Return the stream of a tick, and its ticks up to that one."""
    return workspace.ledger.streams.of_tick(release_id)


def _slot(stream: Stream, slot: str | None, planned: str | None) -> str:
    terms = read_terms(stream.terms)
    if slot is not None:
        return terms.check_slot(slot)
    return terms.slot_at(datetime.now(UTC) if planned is None else datetime.fromisoformat(planned))
