"""Helpers that make streams and their ticks in tests of the ledger."""

from dataclasses import replace
from typing import Any

import numpy as np

from dpca.artifacts.files import write_artifact
from dpca.artifacts.subspace import PrivateSubspace
from dpca.home import store
from storage.datasets.catalog import Catalog
from storage.ledger.ledger import Ledger
from storage.ledger.stream_rows import Stream, Tick, keep_answer
from storage.ledger.streams import fingerprint_of
from storage.registry.publishing import add_version, rebuild_pointers
from tests.storage.releasing import DELTA, EPSILON, POPULATION, TENTH, manifest

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
