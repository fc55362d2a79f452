"""A second run on equal rows and on rows of which one is changed: versions, charges and entries are the same."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sqlalchemy as sa

from flows.federate import run_sites_fit
from flows.fit import run_fit
from flows.orchestration.prefect_stages import directly
from flows.refresh import run_refresh
from flows.releases.stages import make_release
from flows.releases.stream_stages import make_tick
from flows.requests.sites import SitesRequest
from flows.requests.subspace import SubspaceRequest
from flows.settings import Settings
from storage.database import tables
from storage.datasets.ingest import ingest
from storage.datasets.ingest_options import IngestOptions
from storage.workspace import Workspace
from tests.flows.conftest import isolate

ROWS = np.round(np.random.default_rng(3).normal(size=(60, 6)) / 4, 6)
CHANGED = ROWS.copy()
CHANGED[17] = 0.25
PEOPLE = ("people", "north", "south")
FIT = SubspaceRequest(dataset="people", components=2, epsilon=0.5, delta=1e-6, clip_norm=1.5, publish="sub")
SITES = SitesRequest(
    datasets="north,south", method="conv", components=2, clip_norm=2.0, epsilon=0.5, delta=1e-6, publish="joint"
)
COMPUTED_HERE = Settings(cluster="none")


def store(rows: np.ndarray, name: str) -> None:
    """Ingest rows; the other site has others, as two populations with equal rows are refused."""
    workspace, source = Workspace.open(), Workspace.open().home / "source.npy"
    np.save(source, -rows if name == "south" else rows)
    ingest(source, name=name, home=workspace.home, engine=workspace.ledger.engine)


def fit(rows: np.ndarray, number: int) -> Any:
    store(rows, "people")
    return run_fit(FIT, direct=True)["artifact"]


def scheduled_fit(rows: np.ndarray, number: int) -> Any:
    """Run one slot twice."""
    store(rows, "people")
    return make_release(directly, FIT, COMPUTED_HERE, slot="night")["artifact"]


def tick(rows: np.ndarray, number: int) -> Any:
    store(rows, "people")
    if number == 0:
        from flows.cli import main

        terms = ("--epsilon", "0.5", "--delta", "1e-6", "--clip-norm", "2", "--components", "2", "--ticks", "4")
        words = ("stream", "open", "people", "--population", "people", *terms, "--publish", "nightly", "--yes")
        assert main([*words]) == 0
    return make_tick(directly, "nightly", COMPUTED_HERE, slot=f"2026-11-{number + 1:02}")["artifact"]


def sites(rows: np.ndarray, number: int) -> Any:
    store(rows, "north")
    store(ROWS, "south")
    return run_sites_fit(SITES, direct=True)["artifact"]


def refresh(rows: np.ndarray, number: int) -> Any:
    """Put a file of one name into an inbox again, of one time each, which is public."""
    inbox = Workspace.open().home / "inbox-of-people"
    inbox.mkdir(exist_ok=True)
    np.save(inbox / "rows.npy", rows)
    os.utime(inbox / "rows.npy", (1_000_000 + number, 1_000_000 + number))
    report = run_refresh(str(inbox), FIT, IngestOptions(), direct=True)
    return [each["artifact"] for each in report["decisions"]]


def public_facts(act: Callable[[np.ndarray, int], Any], second: np.ndarray, home: Path) -> list[Any]:
    """Return what two runs publish, what every budget states, and the names of the journal's entries.

    Moves of aliases are left out, which follow from noised answers.
    """
    with pytest.MonkeyPatch.context() as patch:
        isolate(patch, home=home)
        for population in PEOPLE:
            Workspace.open().ledger.open_budget(population, epsilon=4.0, delta=5e-6)
        published = [act(rows, number) for number, rows in enumerate((ROWS, second))]
        workspace = Workspace.read_only()
        statements = [workspace.ledger.statement(population) for population in PEOPLE]
        with workspace.ledger.transaction() as connection:
            event = tables.event.c
            written = connection.scalars(sa.select(event.name).order_by(event.seq))
            entries = [name for name in written if not name.startswith("alias")]
    states = [[(release.state, release.charge) for release in each.releases] for each in statements]
    names = sorted(workspace.registry.names())
    return [published, [(each.spent, each.remaining) for each in statements], states, names, entries]


@pytest.mark.parametrize("act", [fit, scheduled_fit, tick, sites, refresh])
def test_whether_the_second_rows_are_equal_changes_no_public_fact(
    act: Callable[[np.ndarray, int], Any], tmp_path: Path
) -> None:
    same, changed = (public_facts(act, rows, tmp_path / name) for name, rows in (("same", ROWS), ("changed", CHANGED)))
    assert same == changed
    assert any(spent > 0 for spent, _ in same[1])
