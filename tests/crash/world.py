"""World for crash tests: a home with one small dataset, and a budget that its requests use up."""

import hashlib
import os
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import psycopg
from psycopg import sql
from scipy import sparse
from sqlalchemy.engine import make_url
from zarr.core.sync import cleanup_resources

from dpca.backends import atomic_files
from dpca_tasks.mechanisms.base import PrivacyTarget, Problem
from flows.families.base import build_mechanism
from flows.families.subspace import SUBSPACE
from flows.ingest import ingest_source
from flows.orchestration.stage_calls import directly
from flows.releases.stages import make_release
from flows.requests import SubspaceRequest
from flows.settings import cluster_settings
from storage.datasets.ingest_options import IngestOptions
from storage.ledger import releases
from storage.ledger.releases import ORPHAN_AFTER
from storage.workspace import Workspace
from tests.crash.prices import least_epsilon, mu_squared
from tests.crash.processes import forked

DATASET, POPULATION = "rows", "people"
EPSILON, DELTA, FEATURES = 1.0, 1e-7, 12
MECHANISMS: tuple[tuple[str, dict[str, str]], ...] = (
    ("analyze_gauss", {}),
    ("noisy_power", {"iterations": "3", "oversampling": "1"}),
)

Hook = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """One ledger with its home folder.

    ``url`` is the address of a PostgreSQL database, or empty if the ledger is the SQLite file of the home.
    """

    home: Path
    url: str = field(default="", repr=False)

    @property
    def state(self) -> Path:
        """The folder of the ledger's separate witness; each copy of a world has another one."""
        return self.home.with_name(f"{self.home.name}-state")

    def enter(self) -> None:
        """Set the environment variables of this process to this world."""
        os.environ["DPCA_HOME"] = str(self.home)
        os.environ["DPCA_STATE_FOLDER"] = str(self.state)
        os.environ.pop("DPCA_KEY_FOLDER", None)
        os.environ.pop("DPCA_DATABASE_URL", None)
        if self.url:
            os.environ["DPCA_DATABASE_URL"] = self.url

    def copy(self, name: str) -> "World":
        """Return a copy of the world; no process may be using the original."""
        home = self.home.with_name(name)
        shutil.copytree(self.home, home)
        if not self.url:
            return World(home=home)
        standing, copied = make_url(self.url), make_url(self.url).set(database=name)
        _administer(standing, "CREATE DATABASE {} TEMPLATE {}", name, str(standing.database))
        return World(home=home, url=copied.render_as_string(hide_password=False))

    def destroy(self) -> None:
        """Delete the world's files and its database."""
        shutil.rmtree(self.home)
        shutil.rmtree(self.state, ignore_errors=True)
        if self.url:
            url = make_url(self.url)
            _administer(url, "DROP DATABASE {} WITH (FORCE)", str(url.database))


def found_world(home: Path, *, server: str = "") -> World:
    """Return a world with a new home and the ingested dataset.

    If a PostgreSQL server is given, the ledger is a new database on this server with the name of the home.
    """
    url = ""
    if server:
        _administer(make_url(server), "CREATE DATABASE {}", home.name)
        url = make_url(server).set(database=home.name).render_as_string(hide_password=False)
    world = World(home=home, url=url)

    def body() -> None:
        world.enter()
        ingest_rows(home)

    assert forked(body) == 0
    return world


def ingest_rows(home: Path) -> None:
    """Ingest the same rows in every call, in this process; ``home`` must be the current home."""
    source = home.with_name(f"{home.name}.npz")
    rows = np.random.default_rng(20250101).normal(size=(2_000, FEATURES)) * np.geomspace(1.0, 0.1, FEATURES)
    sparse.save_npz(source, sparse.csr_array(rows))
    ingest_source(str(source), DATASET, IngestOptions(population=POPULATION, records_at_most=100_000, block_nnz=4_000))


def warm_up(world: World) -> None:
    """Run each mechanism once, so that everything that child processes will need is loaded and compiled."""
    open_budget(world, range(len(MECHANISMS)))
    for run in range(len(MECHANISMS)):
        attempt(world, run, 0)
    cleanup_resources()  # no thread may be running when this process forks


def request_of(run: int) -> SubspaceRequest:
    """Return the request of a run; all runs have different requests."""
    mechanism, settings = MECHANISMS[run % 2]
    return SubspaceRequest(
        dataset=DATASET,
        components=3,
        epsilon=EPSILON,
        delta=DELTA,
        clip_norm=1 + run / 64,
        publish=f"subspace-{run % 5}",
        mechanism=mechanism,
        settings=settings,
    )


def key_of(run: int, attempt: int) -> bytes:
    """Return the noise key of a run: one key for its first attempt, and another for all later attempts."""
    return hashlib.sha256(f"run {run}, {'first' if attempt == 0 else 'later'} attempt".encode()).digest()


def open_budget(world: World, runs: Sequence[int]) -> None:
    """Open a budget that exactly fits these runs, so that the ledger must refuse a second charge of any run."""
    problem, target = Problem(n_features=FEATURES, clip_norm=1.0), PrivacyTarget(epsilon=EPSILON, delta=DELTA)
    built = [build_mechanism(SUBSPACE, name, settings, n_components=3) for name, settings in MECHANISMS]
    events = [mechanism.plan(problem, target).event for mechanism in built]
    unit = Fraction(1, 2**56)  # the ledger rounds each charge up to this unit
    epsilon = least_epsilon(sum((mu_squared(events[run % 2]) + unit for run in runs), unit), delta=DELTA)

    def body() -> None:
        world.enter()
        Workspace.open().ledger.open_budget(POPULATION, epsilon=epsilon, delta=DELTA, failure_delta=0.0)

    assert forked(body) == 0


def attempt(world: World, run: int, number: int, *, hook: Hook | None = None, cluster: str = "none") -> None:
    """Make one attempt at a run's request, through all stages of a fit, in this process."""

    def injected() -> bytes:
        return key_of(run, number)

    world.enter()
    replaced: dict[Any, Any] = vars(releases)
    replaced["new_key"] = injected
    atomic_files.hook = hook
    make_release(directly, request_of(run), cluster_settings().model_copy(update={"cluster": cluster}))


def recover(world: World) -> None:
    """Make files look old enough to count as orphans of a crash, then open the ledger as any command does."""
    then = time.time() - 2 * ORPHAN_AFTER
    for name in ("keys", "staging", "registry/names", "registry/signed"):
        for path in (world.home / name).rglob("*"):
            if path.name != "witness.json":
                os.utime(path, (then, then))

    def body() -> None:
        world.enter()
        Workspace.open()

    assert forked(body) == 0


def connect_from_outside(url: str) -> psycopg.Connection[Any]:
    """Connect to a PostgreSQL database without using the product's code."""
    return psycopg.connect(
        make_url(url).set(drivername="postgresql").render_as_string(hide_password=False), autocommit=True
    )


def _administer(url: Any, statement: str, *names: str) -> None:
    with connect_from_outside(url.set(database="postgres").render_as_string(hide_password=False)) as connection:
        if "TEMPLATE" in statement:  # the server may still have the database session of an ended child
            connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", (names[-1],)
            )
        connection.execute(sql.SQL(statement).format(*map(sql.Identifier, names)))
