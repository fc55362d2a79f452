"""World of simulated histories: a home with one small dataset, one stream, and a budget too small for all requests.

A world is created once. Every history then starts with the same bytes at the same place. The world's folder and
database are refilled, so that this process's caches about a database stay valid.
"""

import json
import os
import shutil
import sqlite3
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from psycopg import sql
from scipy import sparse
from zarr.core.sync import cleanup_resources

from dpca_tasks.mechanisms.base import PrivacyTarget, Problem
from flows.families.base import build_mechanism
from flows.families.subspace import SUBSPACE
from flows.ingest import ingest_source
from flows.orchestration.stage_calls import directly
from flows.releases.stages import make_release
from flows.releases.streams import make_tick, open_stream
from flows.requests import StreamRequest, SubspaceRequest
from flows.settings import Settings
from storage.datasets.ingest_options import IngestOptions
from storage.workspace import Workspace
from tests.crash.prices import least_epsilon, mu_squared
from tests.crash.recount import query
from tests.crash.world import World, connect_from_outside
from tests.histories.objects import ADDRESS, in_memory
from tests.histories.scheduler import Scheduler
from tests.histories.surroundings import Surroundings

DATASET, POPULATION, STREAM = "rows", "people", "nightly"
DELTA, FEATURES, RECORDS, TICKS = 1e-7, 3, 60, 12
NAMES = ("north", "south")
REQUESTS = 6
FITTING = 3.5
"""Number of the more expensive requests that fit into the budget, in addition to the stream."""
SETTINGS = Settings(cluster="none")


def request_of(number: int, *, name: str = NAMES[0]) -> SubspaceRequest:
    """Return request ``number``; requests that differ only in the name to publish belong to the same release."""
    settings = {"iterations": "2", "oversampling": "1"} if number % 3 == 2 else {}
    return SubspaceRequest(
        dataset=DATASET,
        components=1,
        epsilon=1.0 if number % 2 == 0 else 0.6,
        delta=DELTA,
        clip_norm=1 + number / 64,
        publish=name,
        mechanism="noisy_power" if settings else "analyze_gauss",
        settings=settings,
    )


@cache
def cost_of(number: int) -> Fraction:
    """Return the cost of a request, as mu squared."""
    request = request_of(number)
    assert request.epsilon is not None
    problem = Problem(n_features=FEATURES, clip_norm=float(request.clip_norm))
    target = PrivacyTarget(epsilon=request.epsilon, delta=DELTA)
    mechanism = build_mechanism(SUBSPACE, request.mechanism, request.settings, n_components=1)
    return mu_squared(mechanism.plan(problem, target).event)


@dataclass(frozen=True, slots=True, kw_only=True)
class Template:
    """The initial state of every history.

    Attributes
    ----------
    world : World, created once and then unchanged
    tables : mapping of table name to its rows, for a world on PostgreSQL
    stream : Fraction, the cost of the stream as mu squared
    epsilon : float, the epsilon of the budget
    """

    world: World
    tables: Mapping[str, bytes] = field(repr=False)
    stream: Fraction
    epsilon: float

    @property
    def objects(self) -> bool:
        """Whether the world keeps datasets and artifacts in an object store."""
        return (self.world.home / "objects").is_dir()


def found_template(home: Path, *, url: str = "", objects: bool = False) -> Template:
    """Create a world, and run each kind of release once in another world to load and compile all code."""
    world = World(home=home, url=url)
    home.parent.mkdir(exist_ok=True)
    enter(world, objects=objects)
    scheduler = Scheduler(seed=0, switching=0.0)
    nobody = Surroundings(home.parent, seed=0, scheduler=scheduler, recorded=lambda _name: frozenset())
    with nobody.installed(), in_memory(home / "objects" if objects else None):
        source = home.with_name(f"{home.name}.npz")
        rows = np.random.default_rng(7).normal(size=(RECORDS, FEATURES)) * np.geomspace(1.0, 0.3, FEATURES)
        sparse.save_npz(source, sparse.csr_array(rows))
        ingest_source(str(source), DATASET, IngestOptions(population=POPULATION, records_at_most=100_000))
        stream = StreamRequest(
            dataset=DATASET,
            population=POPULATION,
            publish=STREAM,
            epsilon=1.0,
            delta=DELTA,
            clip_norm=1.0,
            components=1,
            ticks=TICKS,
        )
        dearest = max(cost_of(number) for number in range(REQUESTS))
        epsilon = least_epsilon(int(1 + FITTING) * dearest + dearest / 2, delta=DELTA)
        Workspace.open().ledger.open_budget(POPULATION, epsilon=epsilon, delta=DELTA, failure_delta=0.0)
        open_stream(stream)
        Workspace.open()
    (event,) = (event for (event,) in query(world, "SELECT event FROM release"))
    return Template(
        world=world,
        tables=dump(world) if url else {},
        stream=mu_squared(json.loads(event)),
        epsilon=epsilon,
    )


def warm_up(world: World, *, objects: bool = False) -> None:
    """Load and compile in this process everything that histories need."""
    enter(world, objects=objects)
    with in_memory(world.home / "objects" if objects else None):
        for number in (0, 2):
            make_release(directly, request_of(number), SETTINGS)
        for slot in ("2026-11-01", "2026-11-02"):
            make_tick(directly, STREAM, SETTINGS, slot=slot)
    cleanup_resources()  # no thread may be running when this process forks


def enter(world: World, *, objects: bool) -> None:
    """Set the environment variables of this process to a world."""
    world.enter()
    os.environ.pop("DPCA_STORE_URL", None)
    if objects:
        os.environ["DPCA_STORE_URL"] = ADDRESS


def renew(template: Template, world: World) -> None:
    """Reset a world to the state of the template."""
    for kept, used in ((template.world.home, world.home), (template.world.state, world.state)):
        shutil.rmtree(used, ignore_errors=True)
        shutil.copytree(kept, used)
    if world.url:
        load(world, template.tables)


# --- copies of a database ---


def dump(world: World) -> Mapping[str, bytes]:
    """Return a consistent copy of a world's database, even while other processes write."""
    if not world.url:
        with closing(sqlite3.connect(world.home / "dpca.sqlite")) as file, closing(sqlite3.connect(":memory:")) as copy:
            file.backup(copy)
            return {"": copy.serialize()}
    found = {}
    with connect_from_outside(world.url) as server, server.transaction():
        server.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        for table in _tables(server):
            with server.cursor().copy(sql.SQL("COPY {} TO STDOUT").format(sql.Identifier(table))) as copy:
                found[table] = b"".join(bytes(piece) for piece in copy)
    return found


def load(world: World, tables: Mapping[str, bytes]) -> None:
    """Replace a world's database by a copy; no other process may be using the database."""
    if not world.url:
        for path in world.home.glob("dpca.sqlite*"):
            path.unlink()
        path = world.home / "dpca.sqlite"
        path.touch(mode=0o600)
        path.write_bytes(tables[""])
        return
    with connect_from_outside(world.url) as server, server.transaction():
        # disables the ledger's triggers and foreign keys
        server.execute("SET LOCAL session_replication_role = replica")
        for table in tables:
            server.execute(sql.SQL("DELETE FROM {}").format(sql.Identifier(table)))
        for table, payload in tables.items():
            with server.cursor().copy(sql.SQL("COPY {} FROM STDIN").format(sql.Identifier(table))) as copy:
                copy.write(payload)


def _tables(server: Any) -> list[str]:
    found = server.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public' ORDER BY tablename")
    return [name for (name,) in found.fetchall()]
