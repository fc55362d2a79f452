"""The fixed cost of a release on SQLite without a cluster: ledger, durable files and publishing.

The dataset has few rows, so the sum and the noise take almost no time. Each bar (the bound that a result must meet) is
a constant in this file.
"""

import os
import statistics
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sqlalchemy as sa

from benchmarks.conftest import Measurement
from benchmarks.homes import own_ledger
from flows.orchestration.stage_calls import directly
from flows.releases.stages import make_release
from flows.requests import SubspaceRequest
from flows.settings import Settings
from storage.datasets.ingest import ingest
from storage.datasets.ingest_options import IngestOptions
from storage.ledger.ledger import Ledger

ROWS, COLUMNS = 100, 7
ROUNDS = 25
MILLISECONDS = 60.0
CONNECTIONS = 2  # one database connection for all stages of a release, and a read-only one for reading its records


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    """Open a ledger in a temporary home folder, ingest a few rows, and open a budget for them."""
    path = tmp_path / "rows.npy"
    np.save(path, np.random.default_rng(1).standard_normal((ROWS, COLUMNS)))
    with own_ledger(tmp_path / "home") as opened:
        ingest(path, name="rows", home=opened.home, engine=opened.engine, options=IngestOptions())
        opened.open_budget("rows", epsilon=100.0, delta=1e-9)
        yield opened


@pytest.mark.usefixtures("ledger")
def bench_fixed_cost(measure: Measurement, monkeypatch: pytest.MonkeyPatch, *, toy: bool) -> None:
    """Release a few rows; measure wall and processor time, and count database operations and file syncs."""
    numbers = count(1)

    def release() -> None:
        request = SubspaceRequest(
            dataset="rows",
            components=2,
            epsilon=0.1,
            delta=1e-12,
            clip_norm=1.0,
            publish="directions",
            run_key=f"release {next(numbers)}",
        )
        make_release(directly, request, Settings(cluster="none"))

    release()
    taken, worked = [], []
    for _ in range(1 if toy else ROUNDS):
        start, begun = time.perf_counter(), time.process_time()
        release()
        taken.append(time.perf_counter() - start)
        worked.append(time.process_time() - begun)
    measure("milliseconds", 1e3 * statistics.median(taken), at_most=MILLISECONDS)
    measure("processor-milliseconds", 1e3 * statistics.median(worked))
    synced, sync = count(), os.fsync
    monkeypatch.setattr(os, "fsync", lambda file: (next(synced), sync(file)))
    with _counting("connect", "begin", "before_cursor_execute") as requested:
        release()
    measure("connections", requested["connect"], at_most=CONNECTIONS)
    measure("transactions", requested["begin"])
    measure("statements", requested["before_cursor_execute"])
    measure("synced-files-and-folders", next(synced))


@contextmanager
def _counting(*events: str) -> Iterator[Counter[str]]:
    """Count the named SQLAlchemy events of every database engine while the context is open."""
    counted: Counter[str] = Counter()
    listeners = {event: partial(_count, counted, event) for event in events}
    for event, listener in listeners.items():
        sa.event.listen(sa.Engine, event, listener)
    try:
        yield counted
    finally:
        for event, listener in listeners.items():
            sa.event.remove(sa.Engine, event, listener)


def _count(counted: Counter[str], event: str, *_: Any) -> None:
    counted[event] += 1
