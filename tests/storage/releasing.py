"""Helpers that make releases, streams and their ticks in tests of the ledger."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from dpca.artifacts.files import write_artifact
from dpca.artifacts.subspace import PrivateSubspace
from dpca.home import store
from dpca_tasks.accounting.calibration import gaussian_noise_multiplier
from storage.datasets.catalog import Catalog
from storage.datasets.content_digest import Manifest
from storage.ledger.ledger import Grant, Ledger
from storage.ledger.step_answers import Reservation
from storage.ledger.stream_rows import Stream, Tick, keep_answer
from storage.ledger.streams import fingerprint_of
from storage.registry.publishing import add_version, rebuild_pointers

POPULATION, EPSILON, DELTA = "people", 1.0, 1e-6
ANSWER = {"sum": np.arange(6.0).reshape(2, 3)}


def gaussian(multiplier: float) -> dict[str, Any]:
    return {"name": "gaussian", "noise_multiplier": multiplier}


def calibrated(epsilon: float) -> dict[str, Any]:
    """Return the event of a Gaussian release that costs epsilon at the usual delta."""
    return gaussian(gaussian_noise_multiplier(epsilon=epsilon, delta=DELTA))


TENTH = gaussian((1 + 1e-12) * gaussian_noise_multiplier(epsilon=EPSILON, delta=DELTA, releases=10))
"""An event that fits the usual budget exactly ten times, with each charge rounded up separately."""


def open_budget(ledger: Ledger, population: str = POPULATION, **terms: Any) -> None:
    """Open a budget with all of its delta available to Gaussian releases."""
    ledger.open_budget(population, **{"epsilon": EPSILON, "delta": DELTA, "failure_delta": 0.0, **terms})


def reserve(
    ledger: Ledger,
    run_key: str = "run",
    *,
    event: Mapping[str, Any] | None = None,
    fingerprint: str = "f",
    population: str = POPULATION,
    delta: float = DELTA,
    snapshot_id: str = "s" * 32,
) -> Grant:
    return ledger.reserve(
        population,
        run_key=run_key,
        fingerprint=fingerprint,
        event=event or TENTH,
        epsilon=EPSILON,
        delta=delta,
        snapshot_id=snapshot_id,
        request={"k": 3},
    )


def begin(ledger: Ledger, run_key: str = "run", **requested: Any) -> Reservation:
    return ledger.begin(reserve(ledger, run_key, **requested).release_id)


def commit(ledger: Ledger, release_id: str, digest: str = "d" * 64) -> None:
    ledger.commit(release_id, artifact_digest=digest, record=lambda connection: None)


def publish(
    ledger: Ledger, run_key: str = "run", *, name: str = "map", event: Mapping[str, Any] = TENTH, **requested: Any
) -> str:
    """Make a release, and publish a matching artifact under the next version of a name; return the digest."""
    release_id = begin(ledger, run_key, event=event, **requested).release_id
    ledger.begin(release_id).keep(0, ANSWER)
    privacy = {"epsilon": EPSILON, "delta": DELTA, "relation": "add_remove", "event": dict(event)}
    facts = {"mechanism": "analyze_gauss", "privacy": privacy, "release": release_id}
    subspace = PrivateSubspace(components=np.eye(2, 6), eigenvalues=np.array([2.0, 1.0]), manifest=facts)
    digest = write_artifact(subspace, home=ledger.home, place=store())
    ledger.commit(
        release_id,
        artifact_digest=digest,
        record=lambda connection: add_version(connection, name=name, digest=digest, release_id=release_id),
    )
    with ledger.transaction() as connection:
        rebuild_pointers(connection, store(), [name])
    return digest


def event_names(ledger: Ledger) -> list[str]:
    """Return the names of the journal's entries, oldest first."""
    with ledger.transaction() as connection:
        return list(connection.exec_driver_sql("SELECT name FROM event ORDER BY seq").scalars())


def key_names(ledger: Ledger) -> set[str]:
    """Return the ids of releases for which a key exists."""
    return {path.name for path in (ledger.home / "keys").iterdir() if "witness" not in path.name}


def manifest(ledger: str, *, snapshot: str = "s" * 32) -> Manifest:
    """Return the manifest of an ingest of one row into dataset ``news``."""
    return Manifest(
        snapshot=snapshot,
        dataset="news",
        ledger=ledger,
        populations=["people"],
        privacy_unit="row",
        rows_digest="",
        n_features=3,
        n_records=1,
        n_rows=1,
        nnz=1,
        n_blocks=1,
        dtype="float64",
        content_digest="c" * 64,
        records_at_most=None,
        source="npy",
        code_version="0",
        quarantined=0,
    )


NAME = "nightly"
TERMS: dict[str, Any] = {"dataset": "news", "noise_multiplier": TENTH["noise_multiplier"], "clip_norm": 1.0}
STREAMED = np.arange(6, dtype=np.int64)


def register(ledger: Ledger, letter: str = "s") -> str:
    """Register a snapshot of dataset ``news`` whose id repeats a letter; return the id."""
    snapshot = letter * 32
    made = replace(manifest(ledger.id, snapshot=snapshot), content_digest=letter * 64)
    Catalog(ledger.engine, ledger.home).register(made, path=f"datasets/news/{snapshot}")
    return snapshot


def open_stream(ledger: Ledger, *, ticks: int = 3, name: str = NAME, **terms: Any) -> Stream:
    """Open a stream whose event fits the usual budget ten times."""
    return ledger.streams.open(
        POPULATION,
        name=name,
        ticks=ticks,
        event=TENTH,
        epsilon=EPSILON,
        delta=DELTA,
        terms={**TERMS, **terms},
    )


def begin_tick(ledger: Ledger, slot: str = "night 1", **facts: Any) -> Tick:
    """Begin a tick of the stream that `open_stream` opens by default."""
    requested = {"fingerprint": fingerprint_of(TERMS), **facts}
    return ledger.streams.begin_tick(NAME, slot=slot, **requested)


def answer_tick(ledger: Ledger, tick: Tick) -> str:
    """Answer the one step of a tick, and copy the answer to the stream's store."""
    kept = ledger.begin(tick.release_id).keep(0, {"answer": STREAMED + tick.tick})
    return ledger.streams.answered(tick, digest=keep_answer(store(), tick, kept["answer"]))


def publish_tick(ledger: Ledger, slot: str = "night 1", **facts: Any) -> Tick:
    """Begin, answer, commit and publish a tick, unless the tick of this slot is already published."""
    tick = begin_tick(ledger, slot, **facts)
    if tick.is_settled:
        return tick
    answer_tick(ledger, tick)
    row = ledger.release(tick.release_id)
    privacy = {"epsilon": row.epsilon, "delta": row.delta, "relation": "add_remove", "event": row.event}
    declared: dict[str, Any] = {
        "snapshot_id": tick.snapshot_id,
        "slot": slot,
        "number": tick.number,
        "arrivals": tick.arrivals,
    }
    declared |= {"ticks": ledger.streams.show(NAME)[0].ticks}
    facts = {"mechanism": "stream", "privacy": privacy, "release": row.id, "plan": {"stream": declared}}
    made = PrivateSubspace(components=np.eye(2, 6), eigenvalues=np.array([2.0, 1.0]), manifest=facts)
    digest = write_artifact(made, home=ledger.home, place=store())
    ledger.commit(
        row.id,
        artifact_digest=digest,
        record=lambda connection: add_version(connection, name=NAME, digest=digest, release_id=row.id),
    )
    with ledger.transaction() as connection:
        rebuild_pointers(connection, store(), [NAME])
    return ledger.streams.show(NAME)[1][tick.tick - 1]
