"""Time to reserve budget for one more release on SQLite after 10,000 earlier releases; the limit is 0.1 seconds."""

import json
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from benchmarks.conftest import Comparison
from benchmarks.homes import own_home
from dpca_tasks.accounting import filters, prices
from storage.database import tables
from storage.database.engine import transaction
from storage.ledger import journal
from storage.ledger.budgets import ChargedTotal, facts_of
from storage.ledger.ledger import Grant, Ledger
from storage.workspace import Workspace

N_RELEASES = 10_000
N_TOY = 20
EVENT = {"name": "gaussian", "noise_multiplier": 5_000.0}
EPSILON, DELTA = 1.0, 1e-6


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    """Set a temporary home folder for the benchmark, and return its path."""
    with own_home(tmp_path) as place:
        yield place


def fill(ledger: Ledger, kind: str, releases: int) -> None:
    """Insert the database rows of all earlier releases at once, without running the releases."""
    rules = filters.build_filter(kind, epsilon=EPSILON, delta=DELTA)
    row = {
        **{"population": "people", "snapshot_id": "s", "fingerprint": "f", "request": "{}"},
        **{"epsilon": EPSILON, "delta": DELTA, "event": json.dumps(EVENT)},
        **{"charge": prices.encode(rules.charge(EVENT, delta=DELTA))},
        **{"accounting": rules.accounting, "state": "reserved", "created_at": journal.now(), "updated_at": "now"},
    }
    rows = [{**row, "id": f"{number:032x}", "run_key": f"{number}"} for number in range(releases)]
    charge = tuple(releases * part for part in rules.charge(EVENT, delta=DELTA))
    total = ChargedTotal(population="people", charge=charge, accounting=rules.accounting, releases=releases)
    with transaction(ledger.engine) as connection:
        connection.execute(tables.release.insert(), rows)
        named = {"population": "people", "release_id": f"{releases - 1:032x}"}
        journal.append(connection, "release_reserved", **named, detail=facts_of(total))


@pytest.mark.parametrize("kind", ["gdp", "renyi"])
def bench_admission(kind: str, compare: Comparison, home: Path, *, toy: bool) -> None:
    ledger, requested = Workspace.open().ledger, count()
    ledger.open_budget("people", epsilon=EPSILON, delta=DELTA, filter=kind, failure_delta=0.0)
    releases = N_TOY if toy else N_RELEASES
    fill(ledger, kind, releases)

    def reserve() -> Grant:
        run_key = f"asked {next(requested)}"
        return ledger.reserve(
            "people",
            run_key=run_key,
            fingerprint="f",
            event=EVENT,
            epsilon=EPSILON,
            delta=DELTA,
            snapshot_id="s",
            request={},
        )

    results = compare(reserve, {"tenth-of-a-second": lambda: time.sleep(0.1)}, bars={"tenth-of-a-second": 1.0})
    assert results["ours"].is_new
    assert len(ledger.statement("people").releases) == releases + next(requested)
