"""Time of a tick (one nightly version of a stream), compared with a single release and the estimate of the tick.

Both sides use the same snapshot. Compared with a single release, a tick adds only rows in the ledger and a stored copy
of the noised answer. The estimate combines the stored answers of all ticks and reads them one at a time. It needs 80 MB
of memory at 2,000 columns, regardless of the number of ticks; each tick then stores 16 MB on disk.
"""

from collections.abc import Callable, Iterator
from datetime import date, timedelta
from itertools import count
from pathlib import Path

import pytest
from scipy import sparse

from benchmarks.conftest import Comparison
from benchmarks.homes import ingested, own_ledger
from benchmarks.inputs import A9A_LIKE
from flows.families.streams import Earlier, read_terms, state_tick
from flows.orchestration.stage_calls import directly
from flows.releases.stages import make_release
from flows.releases.streams import make_tick, open_stream
from flows.requests import StreamRequest, SubspaceRequest
from flows.settings import Settings
from storage.ledger.ledger import Ledger
from storage.ledger.stream_rows import Answers
from storage.workspace import Workspace

BUDGET, EPSILON, DELTA, COMPONENTS = 100.0, 1.0, 1e-9, 10
MOST = 1.1
"""The limit of a tick's time relative to a release plus an estimate."""
ALONE = Settings(cluster="none")
FIRST = date(2026, 1, 1)


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    """Open a ledger in a temporary home folder."""
    with own_ledger(tmp_path / "home") as opened:
        yield opened


@pytest.fixture
def tick(ledger: Ledger, tmp_path: Path, *, toy: bool) -> Callable[[], str]:
    """Ingest rows, open a stream of 365 nights, and return a function that runs the next tick at each call."""
    path, slots = tmp_path / "rows.npz", count()
    sparse.save_npz(path, A9A_LIKE.rows(toy=toy), compressed=False)
    ingested(path, A9A_LIKE, ledger, name="rows")
    ledger.open_budget("rows", epsilon=BUDGET, delta=1e-6)
    open_stream(
        StreamRequest(
            dataset="rows",
            population="rows",
            publish="nightly",
            epsilon=EPSILON,
            delta=DELTA,
            clip_norm=A9A_LIKE.clip_norm,
            components=COMPONENTS,
            ticks=365,
        )
    )

    def run() -> str:
        slot = (FIRST + timedelta(days=next(slots))).isoformat()
        return str(make_tick(directly, "nightly", ALONE, slot=slot)["artifact"])

    return run


def bench_tick(compare: Comparison, tick: Callable[[], str]) -> None:
    requested = count()

    def release_and_estimate() -> None:
        request = SubspaceRequest(
            dataset="rows",
            publish="single",
            epsilon=EPSILON,
            delta=DELTA,
            clip_norm=A9A_LIKE.clip_norm,
            components=COMPONENTS,
            run_key=f"single {next(requested)}",
        )
        make_release(directly, request, ALONE)
        estimate()

    def estimate() -> None:
        workspace = Workspace.read_only()
        stream, ticks = workspace.ledger.streams.show("nightly")
        kept = Answers(place=workspace.store, ticks=ticks)
        terms = read_terms(stream.terms)
        state_tick(terms, stream, ticks, kept, earlier=Earlier(), epsilon=EPSILON, feature_names=None)

    tick()
    results = compare(tick, {"release-and-estimate": release_and_estimate}, limits={"release-and-estimate": MOST})
    assert results["ours"].startswith("nightly@")
