"""Recovery of a ledger that was restored from an older copy, or lost: its missing releases are charged again.

Two sources contain what an older copy of the database lacks. The notes of the witness in the state folder contain the
whole row of every release that began, and every version. The registry lists every version, and the manifest of each
artifact states the release, event and epsilon. Missing releases and versions are inserted again from these sources.
Releases are charged again, and versions keep the numbers that consumers know.

A stream may continue only if all its ticks are known. Otherwise, a tick that was answered, but is missing from the
ledger, would be answered a second time with new noise, although it is paid for only once. Three sources show which
ticks began: the notes of the witness contain the whole row of each, the manifest of a published tick names the tick,
and the answer store of a stream has a file for each answered tick. A stream is closed if one of these sources shows a
tick that could not be inserted again.
"""

import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import sqlalchemy as sa

from dpca.artifacts.files import read_artifact
from dpca.backends.base import Place
from dpca.errors import Corrupt, Refused, StorageError
from dpca.privacy_unit import NIGHT_ROW, PrivacyUnit
from dpca.registry.pointers import Pointer
from dpca.registry.reader import Registry
from dpca_tasks.accounting import prices
from dpca_tasks.accounting.events import (
    Event,
    checked,
    gaussian,
    is_private,
    is_tick,
    parts_of,
    shown_event,
    stream_tick,
)
from storage.database import tables
from storage.ledger import journal
from storage.ledger.arrivals import lose_every_epoch
from storage.ledger.budgets import Budget, charged_to, find_budget, open_budget, read_budget
from storage.ledger.releases import enter_release, move_release, read_release
from storage.ledger.stream_rows import (
    Tick,
    enter_answer,
    enter_stream,
    enter_stream_charge,
    enter_tick,
    kept_answers,
    stream_of,
    streams_in,
    ticks_of,
)
from storage.ledger.streams import close_stream, fingerprint_of
from storage.ledger.witness import Note
from storage.registry.agreement import others_of
from storage.registry.publishing import JOINT, promote, record_version

_LOST = "lost with the ledger"


def enter_stream_facts(connection: sa.Connection, note: Note) -> None:
    """Insert the stream that a missing release opened, and its payment for ticks, if its note contains them.

    The release itself is already inserted. ``note`` is from the witness in the state folder.
    """
    if "stream" in note:
        enter_stream(connection, {**note["stream"], "terms": json.loads(note["stream"]["terms"])})
    if "stream_charge" in note:
        enter_stream_charge(connection, **note["stream_charge"])


def make_room(
    connection: sa.Connection,
    event: Event,
    *,
    population: str,
    digests: Mapping[str, str],
    name: str,
    facts: Mapping[str, Any],
) -> None:
    """Prepare the insertion of a tick that a restored ledger lacks: insert its stream, charge and all earlier ticks.

    Only what the ledger lacks is inserted. If the last tick of the stream in the ledger is unfinished, it is committed
    if its version was published, and otherwise closed.

    Parameters
    ----------
    connection : Connection
    event : Event
        The DP event of the tick.
    population : str
    digests : mapping of str to str
        For versions that the ledger lacks, the digest of the artifact, by release id.
    name : str
        The name under which the stream publishes, used if the ledger lacks the stream.
    facts : mapping
        The known facts about the tick; ``ticks`` is the number of ticks that were paid for when the tick began.
    """
    stream_id, at, multiplier = str(event["stream"]), int(event["tick"]), float(event["noise_multiplier"])
    known = connection.execute(sa.select(tables.stream.c.id).where(tables.stream.c.id == stream_id)).first()
    if known is None or stream_of(connection, stream_id).ticks < at:
        payer = stream_id if known is None else secrets.token_hex(16)
        paid = max(at, int(facts.get("ticks") or at))
        _pay(connection, stream_id, paid, multiplier, population=population, name=name, release_id=payer)
    ticks = ticks_of(connection, stream_id)
    if ticks:
        _settle(connection, ticks[-1], digests)
    for missing in range(len(ticks) + 1, at):
        _fill(connection, stream_id, missing, multiplier, population=population)


def enter_lost_tick(connection: sa.Connection, release_id: str, event: Event, facts: Mapping[str, Any]) -> None:
    """Insert the row of a tick (version) that a restored ledger lacks; the tick's release is already inserted.

    ``facts`` are from a note of the witness, or from the manifest of the tick's artifact.
    """
    enter_tick(
        connection,
        {
            "stream": event["stream"],
            "tick": event["tick"],
            "slot": str(facts.get("slot") or f"tick {event['tick']}, {_LOST}"),
            "release_id": release_id,
            "snapshot_id": str(facts.get("snapshot_id") or "unknown"),
            "number": int(facts.get("number") or 0),
            "arrivals": str(facts.get("arrivals") or "unknown"),
        },
    )


def finish_streams(connection: sa.Connection, place: Place, noted: Sequence[Note]) -> None:
    """After a restore, record the missing answers of ticks, and close every live stream that cannot continue.

    A stream can continue if its terms and all its ticks are known, and if every file in its answer store is the
    recorded answer of a tick.
    """
    reported = {
        (note["answer"]["stream"], note["answer"]["tick"]): note["answer"]["digest"]
        for note in noted
        if "answer" in note
    }
    for stream in streams_in(connection):
        ticks = ticks_of(connection, stream.id)
        kept = kept_answers(place, stream.id)
        for tick in ticks:
            digest = reported.get((stream.id, tick.tick)) or _only(kept.get(tick.tick, set()))
            if tick.answer is None and digest is not None:
                at, release_id = tick.tick, tick.release_id
                enter_answer(connection, stream=stream.id, tick=at, release_id=release_id, digest=digest)
        known = {tick.tick: tick.answer for tick in ticks_of(connection, stream.id)}
        strange = any(known.get(at) is None or digests - {known[at]} for at, digests in kept.items())
        lost = any(_LOST in tick.slot for tick in ticks) or not stream.terms
        if stream.is_live and (strange or lost):
            close_stream(connection, stream)


def _only(digests: set[str]) -> str | None:
    return next(iter(digests)) if len(digests) == 1 else None


def _settle(connection: sa.Connection, tick: Tick, digests: Mapping[str, str]) -> None:
    """End the tick (version) before a missing one: commit it if its artifact is published, otherwise close it."""
    if tick.is_settled:
        return
    row = read_release(connection, tick.release_id, lock=True)
    digest = digests.get(tick.release_id)
    if digest is None:
        move_release(connection, row, "closed", "release_closed")
    else:
        move_release(connection, row, "committed", "release_committed", artifact_digest=digest)


def _fill(connection: sa.Connection, stream_id: str, tick: int, multiplier: float, *, population: str) -> None:
    """Insert and close a tick (version) of which nothing is known, except that later ticks of the stream began."""
    release_id, event = secrets.token_hex(16), stream_tick(stream_id, tick, multiplier)
    _enter_tick(
        connection, release_id, event, population=population, run_key=f"stream {stream_id} tick {tick}", charge=None
    )
    enter_lost_tick(connection, release_id, event, {})
    move_release(connection, read_release(connection, release_id, lock=True), "closed", "release_closed")


def _pay(
    connection: sa.Connection,
    stream_id: str,
    ticks: int,
    multiplier: float,
    *,
    population: str,
    name: str,
    release_id: str,
) -> None:
    """Insert a missing release that opened or extended a stream, and charge it for the stream's whole Gaussian event.

    The original charge was never larger: an extension to at most ten times as many ticks costs less than the stream
    itself.
    """
    budget, event = read_budget(connection, population), gaussian(multiplier)
    charge = budget.build_filter().charge_after(charged_to(connection, budget), event, delta=budget.delta)
    _enter_tick(
        connection, release_id, event, population=population, run_key=f"stream restored {release_id}", charge=charge
    )
    if release_id == stream_id:
        row = {"id": stream_id, "name": name, "population": population, "terms": {}, "fingerprint": fingerprint_of({})}
        enter_stream(connection, row)
    enter_stream_charge(connection, stream=stream_id, ticks=ticks, release_id=release_id)


def _enter_tick(
    connection: sa.Connection,
    release_id: str,
    event: Event,
    *,
    population: str,
    run_key: str,
    charge: tuple[int, ...] | None,
) -> None:
    budget = read_budget(connection, population)
    rules = budget.build_filter()
    row = {
        **{"id": release_id, "population": population, "run_key": run_key, "fingerprint": "unknown"},
        **{"snapshot_id": "unknown", "request": {"mechanism": "stream"}, "event": event},
        **{"epsilon": budget.epsilon, "delta": budget.delta, "accounting": rules.accounting},
    }
    enter_release(connection, row, charge=rules.zero if charge is None else charge, state="noising")
    subject = {"population": population, "release_id": release_id}
    journal.append(connection, "release_begun", **subject, detail={"found_in": "stream"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Recharged:
    """A release that the restored ledger lacked and that was charged again, with its published versions."""

    release: str
    population: str
    epsilon: float
    delta: float
    versions: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Lost:
    """A published version that a restored ledger lacks, found in the registry or in the notes of the witness."""

    name: str
    version: int
    digest: str
    release_id: str | None
    artifact_digest: str
    manifest: Mapping[str, Any] = field(repr=False)
    # sites of a joint release, which is charged in their ledgers; otherwise None
    sites: Sequence[Mapping[str, Any]] | None = None

    def __str__(self) -> str:
        """Return the version as a reference, such as ``news@3``."""
        return f"{self.name}@{self.version}"


def accept(
    connection: sa.Connection,
    place: Place,
    noted: Sequence[Note],
    *,
    reason: str,
    charge_to: str | None = None,
    another_ledger: bool = False,
) -> tuple[Recharged, ...]:
    """Accept a restored ledger: insert what it lacks, and return the releases that were charged again.

    A release that is only reserved in the restored copy may have begun since, so it counts as begun. Ids of new
    individuals may have been recorded since, so every table of first-seen ids (arrival epoch) counts as lost.

    Parameters
    ----------
    connection : Connection
        A connection in one transaction, so that everything or nothing is committed.
    place : Place
        The store of the registry.
    noted : sequence
        The notes of releases, versions and answers from the witness in the state folder.
    reason : str
        The operator's reason, for the journal.
    charge_to : str, optional
        The population to charge for releases in the registry whose population is unknown.
    another_ledger : bool
        Whether such releases are ignored, because another ledger publishes under their names. This ledger then never
        publishes under these names.

    Raises
    ------
    Refused
        When there is a release of an unknown population, and neither ``charge_to`` nor ``another_ledger`` was given.
    Corrupt
        When a version has another digest in the registry than in the ledger, or an artifact cannot be read.
    """
    journal.lock(connection)
    pointers = _pointers(connection, place)
    lost = _lost(connection, place, pointers, noted)
    payers = _populations(connection, noted)
    others = _explain(connection, lost, payers, charge_to=charge_to, another_ledger=another_ledger)
    detail = {"reason": reason, "begun": _begin_reserved(connection)}
    journal.append(connection, "ledger_accepted", detail=detail | ({"others": sorted(others)} if others else {}))
    lose_every_epoch(connection)
    present = set(connection.execute(sa.select(tables.release.c.id)).scalars())
    entered: dict[str, Recharged] = {}
    digests = {str(version.release_id): version.artifact_digest for version in lost}
    for note in noted:
        if "release" in note and (release_id := note["release"]["id"]) not in present | set(entered):
            row = _from_note(connection, note)
            entered[release_id] = _enter(connection, row, found_in="witness", digests=digests, facts=note.get("tick"))
            enter_stream_facts(connection, note)
    for version in (version for version in lost if version.name not in others):
        release_id = str(version.release_id)
        if version.sites is not None:
            reported: dict[str, Any] = {"name": version.name, "version": version.version, "digest": version.digest}
            record_version(connection, **reported, release_id=release_id, sites=version.sites)
            continue
        if release_id not in present | set(entered):
            row = _from_manifest(connection, version, payers[release_id])
            entered[release_id] = _enter(
                connection, row, found_in="registry", digests=digests, facts=_tick_facts(version), name=version.name
            )
        _commit(connection, release_id, digest=version.artifact_digest)
        number, digest = version.version, version.digest
        record_version(connection, name=version.name, version=number, digest=digest, release_id=release_id)
        if release_id in entered:
            shown = (*entered[release_id].versions, str(version))
            entered[release_id] = replace(entered[release_id], versions=shown)
    for pointer in pointers:
        for alias, target in pointer.aliases.items() if pointer.name not in others else ():
            promote(connection, name=pointer.name, version=target, alias=alias)
    finish_streams(connection, place, noted)
    ticks = set(connection.execute(sa.select(tables.tick.c.release_id)).scalars())
    return tuple(recharged for release_id, recharged in entered.items() if release_id not in ticks)


def accepted_before(connection: sa.Connection) -> str | None:
    """Return the UTC time at which a restored ledger was accepted before the latest acceptance; None if never."""
    table = tables.event
    times = sa.select(table.c.at).where(table.c.name == "ledger_accepted").order_by(table.c.seq.desc())
    return connection.execute(times.offset(1).limit(1)).scalar()


def _pointers(connection: sa.Connection, place: Place) -> list[Pointer]:
    """Return the pointers (versions and aliases of names) in the registry, except names of another ledger."""
    names = set(Registry(place).names()) - others_of(connection)
    try:
        return [Pointer.read(place, name) for name in sorted(names)]
    except Corrupt as error:
        found = str(error).partition(";")[0]
        raise Corrupt(
            f"{found}, so its versions cannot be charged; restore that file from a copy, or remove it to continue "
            "without these versions."
        ) from None


def _lost(connection: sa.Connection, place: Place, pointers: Sequence[Pointer], noted: Sequence[Note]) -> list[Lost]:
    """Return the versions that a restored ledger lacks, from the registry or else from the witness's notes.

    Versions derived from a release's artifact come after versions with this artifact itself.
    """
    rows = connection.execute(sa.select(tables.published)).all()
    standing = {(row.name, row.version): row.digest for row in rows}
    released = {(row.name, row.origin) for row in rows}
    lost: dict[tuple[str, int], Lost] = {}
    for pointer in pointers:
        for version, digest in pointer.versions.items():
            known = standing.get((pointer.name, version))
            found = _shown(place, pointer.name, version, digest) if known is None else None
            twice = found is not None and (pointer.name, found.release_id) in released
            if found is not None and not twice:
                lost[pointer.name, version] = found
                released.add((pointer.name, str(found.release_id)))
            elif twice or known != digest:
                raise Corrupt(
                    f"{place.at('registry')} has other bytes for {pointer.name}@{version} than this ledger published; "
                    "a version never changes, so two ledgers publish there: give this ledger a separate store."
                )
    remembered = {(note["version"]["name"], note["version"]["version"]): note for note in noted if "version" in note}
    # of several notes about a version, the last one counts, because earlier transactions failed
    for at, note in remembered.items():
        if at not in standing and at not in lost and (at[0], note["version"]["release_id"]) not in released:
            lost[at] = Lost(**note["version"], manifest={})
    return sorted(lost.values(), key=lambda item: (item.digest != item.artifact_digest, item.name, item.version))


def _shown(place: Place, name: str, version: int, digest: str) -> Lost:
    manifest = read_artifact(place, digest).manifest
    release_id, parent = manifest.get("release"), manifest.get("parent", digest)
    plan = manifest.get("plan")
    joint = isinstance(release_id, str) and release_id.startswith(JOINT) and isinstance(plan, dict)
    return Lost(
        name=name,
        version=version,
        digest=digest,
        release_id=release_id if isinstance(release_id, str) else None,
        artifact_digest=str(parent),
        manifest=manifest,
        sites=plan.get("sites") if joint and isinstance(plan, dict) else None,
    )


def _populations(connection: sa.Connection, noted: Sequence[Note]) -> dict[str, str]:
    """Return the population of each known release, by id.

    Releases are known from database rows, and from notes of the witness in the state folder.
    """
    table = tables.release
    known = {note["release"]["id"]: str(note["release"]["population"]) for note in noted if "release" in note}
    return known | {row.id: row.population for row in connection.execute(sa.select(table.c.id, table.c.population))}


def _explain(
    connection: sa.Connection,
    lost: Sequence[Lost],
    payers: dict[str, str],
    *,
    charge_to: str | None,
    another_ledger: bool,
) -> set[str]:
    """Find the population of each release that a restored ledger lacks, and add it to ``payers``.

    Return the published names that another ledger uses.
    """
    version, release = tables.version, tables.release
    owners: dict[str, set[str]] = {}
    for row in connection.execute(sa.select(version.c.name, release.c.population).join(release).distinct()):
        owners.setdefault(row.name, set()).add(row.population)
    for item in lost:
        if item.release_id in payers:
            owners.setdefault(item.name, set()).add(payers[item.release_id])
    others, unexplained = set(), []
    for item in lost:
        people = owners.get(item.name, set())
        payer = next(iter(people)) if len(people) == 1 else charge_to
        if item.release_id in payers or item.sites is not None:
            continue
        if payer is not None and item.release_id is not None:
            payers[item.release_id] = payer
        elif another_ledger and not people:
            others.add(item.name)
        else:
            unexplained.append(str(item))
    if unexplained:
        shown = ", ".join(unexplained[:3]) + (", ..." if len(unexplained) > 3 else "")
        raise Refused(
            f"no record here states which budget paid for {shown}; use --charge POPULATION to charge these releases "
            "to its budget, or --another-ledger if another ledger published them."
        )
    return others


def _begin_reserved(connection: sa.Connection) -> list[str]:
    table = tables.release
    reserved = sa.select(table.c.id).where(table.c.state == "reserved").order_by(table.c.id).with_for_update()
    begun = list(connection.execute(reserved).scalars())
    moved = table.update().where(table.c.id.in_(begun))
    connection.execute(moved.values(state="noising", updated_at=journal.now()))
    return begun


def _from_note(connection: sa.Connection, note: Note) -> dict[str, Any]:
    """Return the row of a release from its note in the state folder; open the release's budget if it is missing.

    The row contains the charge in the note. If the terms of the budget have changed, the charge is None.
    """
    terms = Budget(**note["budget"])
    standing = find_budget(connection, terms.population)
    if standing is None:
        open_budget(
            connection,
            terms.population,
            epsilon=terms.epsilon,
            delta=terms.delta,
            failure_delta=terms.failure_delta,
            relation=terms.relation,
            filter=terms.filter,
            unit=terms.privacy_unit,
            allow_large_delta=True,
        )
    columns = {column.name for column in tables.release.c}
    row = {name: value for name, value in note["release"].items() if name in columns}
    same = standing in (None, terms) and row["accounting"] == terms.build_filter().accounting
    decoded = {name: json.loads(row[name]) for name in ("request", "event")}
    return {**row, **decoded, "charge": bytes.fromhex(row["charge"]) if same else None}


def _from_manifest(connection: sa.Connection, shown: Lost, population: str) -> dict[str, Any]:
    """Return the row of a release, computed from the manifest of the release's artifact."""
    privacy = shown.manifest.get("privacy", {})
    try:
        event = privacy["event"]
        parts_of(shown_event(checked(event)))
        private = is_private(event)
        epsilon, delta = (float(privacy["epsilon"]), float(privacy["delta"])) if private else (float("inf"), 0.0)
        relation, unit = privacy["relation"], PrivacyUnit.of(privacy)
        if private and not (0 < epsilon < float("inf") and 0 <= delta < 1):
            raise ValueError
    except (StorageError, KeyError, TypeError, ValueError, RecursionError):
        raise Corrupt(
            f"the manifest of {shown} does not state its event and guarantee; restore its artifact."
        ) from None
    budget = read_budget(connection, population)
    if budget.relation != relation:
        raise Refused(
            f"{shown} was released under the relation {relation}, but budget {population!r} uses "
            f"{budget.relation}; give the population of its records."
        )
    if not budget.privacy_unit.covers(PrivacyUnit() if unit.name == NIGHT_ROW else unit):
        raise Refused(
            f"{shown} was released with {unit} as the privacy unit, but budget {population!r} protects "
            f"{budget.privacy_unit}; give the population of its records."
        )
    return {
        "id": shown.release_id,
        "population": population,
        "snapshot_id": "unknown",
        "run_key": f"restored {shown.release_id}",
        "fingerprint": "unknown",
        "request": {"mechanism": shown.manifest.get("mechanism")},
        "event": event,
        "epsilon": epsilon,
        "delta": delta,
        "charge": None,
    }


def _tick_facts(version: Lost) -> Mapping[str, Any]:
    """Return what a version's manifest states about its tick of a stream, or an empty mapping if it has none."""
    plan = version.manifest.get("plan")
    declared = plan.get("stream") if isinstance(plan, dict) else None
    return declared if isinstance(declared, dict) else {}


def _enter(
    connection: sa.Connection,
    row: dict[str, Any],
    *,
    found_in: str,
    digests: Mapping[str, str],
    facts: Mapping[str, Any] | None,
    name: str = "restored",
) -> Recharged:
    """Insert and charge a missing release, even beyond the budget, because the release has taken place.

    A tick of a stream is charged nothing; its stream and earlier ticks are inserted first if they are missing.
    """
    if is_tick(row["event"]):
        people = row["population"]
        make_room(connection, row["event"], population=people, digests=digests, name=name, facts=facts or {})
    table, budget = tables.release, read_budget(connection, row["population"])
    rules, stored = budget.build_filter(), row.pop("charge")
    if is_tick(row["event"]):
        charge, row["accounting"] = rules.zero, rules.accounting
    elif stored is None:
        charge = rules.charge_after(charged_to(connection, budget), row["event"], delta=row["delta"])
        row["accounting"] = rules.accounting
    else:
        charge = prices.total_of([stored], zero=rules.zero)
    if connection.execute(sa.select(table.c.id).where(table.c.run_key == row["run_key"])).first():
        row["run_key"] = f"{row['run_key'][:400]} (restored {row['id']})"
    enter_release(connection, row, charge=charge, state="noising")
    subject = {"population": row["population"], "release_id": row["id"]}
    journal.append(connection, "release_begun", **subject, detail={"found_in": found_in})
    if is_tick(row["event"]):
        enter_lost_tick(connection, row["id"], row["event"], facts or {})
    return Recharged(release=row["id"], population=row["population"], epsilon=row["epsilon"], delta=row["delta"])


def _commit(connection: sa.Connection, release_id: str, *, digest: str) -> None:
    """Commit a release whose artifact is published, if it is not committed yet."""
    row = read_release(connection, release_id, lock=True)
    if row.state == "abandoned":
        raise Corrupt(
            f"the registry shows release {release_id}, which was abandoned before it began, so one of the two records "
            "is forged: restore the registry and the database of the same ledger."
        )
    if row.state == "noising":
        move_release(connection, row, "committed", "release_committed", artifact_digest=digest)
