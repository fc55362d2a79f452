"""A history of actions in a home, copied after every step, and an independent record of its final state.

Every step runs real storage code; some steps are cut short by a simulated crash. The record does not rely on the
restored ledger: plain SQL reads it from the last database, and the cost of releases is computed in exact fractions.
"""

import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from dpca.backends import atomic_files
from dpca.home import store
from dpca_tasks.accounting.events import is_tick
from flows.ingest import ingest_source
from storage.backups.copying import create_backup
from storage.datasets.ingest_options import IngestOptions
from storage.ledger.ledger import Ledger
from storage.ledger.trail_export import export_trail
from storage.workspace import Workspace
from tests.crash.prices import mu_squared
from tests.storage import releasing
from tests.storage.releasing import POPULATION, begin, open_budget, publish, reserve

PASSPHRASE = "a dozen words or so"
NAMES = ("map", "other", "third")
ROOM = 40.0  # epsilon of each budget, large enough that a restored ledger which forgot charges could spend more
_FAULTS = ("begin.row_committed", "keep.file_written", "commit.row_written", "commit.row_committed", "pointer.written")


class Cut(BaseException):
    """Exception that simulates the end of the process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """The home, the state folder and the database URL of one copy of the world.

    ``url`` is empty if the database is the SQLite file of the home.
    """

    root: Path
    url: str = ""

    @property
    def home(self) -> Path:
        """The home folder."""
        return self.root / "home"

    @property
    def database_url(self) -> str:
        """The URL of the database."""
        return self.url or f"sqlite:///{self.home / 'dpca.sqlite'}"

    def enter(self) -> None:
        """Set the environment variables of this process to this copy of the world."""
        for name in ("DPCA_DATABASE_URL", "DPCA_KEY_FOLDER", "DPCA_STORE_URL"):
            os.environ.pop(name, None)
        os.environ["DPCA_HOME"], os.environ["DPCA_STATE_FOLDER"] = str(self.home), str(self.root / "state")
        if self.url:
            os.environ["DPCA_DATABASE_URL"] = self.url


@dataclass(frozen=True, slots=True, kw_only=True)
class Truth:
    """Spending and published versions by an independent count.

    ``spent`` has mu squared by population, and ``versions`` has digests by name and version.
    """

    spent: dict[str, Fraction]
    versions: dict[tuple[str, int], str]


def live(place: Place, copies: Path, *, steps: int) -> Truth:
    """Run a history of ``steps`` actions, with a copy and a backup of the home after each; return the final state."""
    place.enter()
    place.home.mkdir(parents=True, mode=0o700)
    acts = _acts()
    for step in range(steps):
        next(acts)(Workspace.open().ledger, step)
        copy = copies / f"{step:03d}"
        shutil.copytree(place.home, copy / "home")
        create_backup(copy / "backup", passphrase=PASSPHRASE)
    Workspace.open()
    return read_truth(place, begun_only=True)


def read_truth(place: Place, *, begun_only: bool) -> Truth:
    """Read spending and versions from a database by plain SQL.

    With ``begun_only``, a reserved release counts only if it has begun, because only then noised answers may exist.
    """
    engine = sa.create_engine(place.database_url, poolclass=sa.NullPool)
    with engine.connect() as connection:
        releases = connection.exec_driver_sql("SELECT population, event, state FROM release").all()
        shown = connection.exec_driver_sql("SELECT name, version, digest FROM version").all()
    free = ("abandoned", "reserved") if begun_only else ("abandoned",)
    spent: dict[str, Fraction] = {}
    for population, event, state in releases:
        decoded = json.loads(event)
        if state not in free and not is_tick(decoded):
            spent[population] = spent.get(population, Fraction(0)) + mu_squared(decoded)
    versions = {(name, version): digest for name, version, digest in shown}
    # versions as consumers see them, in the pointer files
    for path in (place.home / "registry" / "names").glob("*.json"):
        for version, digest in json.loads(path.read_text())["versions"].items():
            if versions.setdefault((path.stem, int(version)), digest) != digest:
                versions[path.stem, int(version)] = "two digests"
    return Truth(spent=spent, versions=versions)


def _acts() -> Iterator[Callable[[Ledger, int], Any]]:
    """Yield the actions of a history without end, one for each step."""
    yield lambda ledger, _: open_budget(ledger, epsilon=ROOM)
    yield lambda ledger, _: open_budget(ledger, "others", epsilon=ROOM)
    yield lambda ledger, _: releasing.register(ledger)
    yield lambda ledger, _: releasing.open_stream(ledger, ticks=9)
    for around in range(1_000):
        yield lambda ledger, step: publish(ledger, f"run {step}", name=NAMES[step % 3])
        yield lambda ledger, step: reserve(ledger, f"waiting {step}")
        yield lambda ledger, step: begin(ledger, f"waiting {step - 1}")  # remains in progress
        yield lambda ledger, step: _cut(ledger, step, point=_FAULTS[step % len(_FAULTS)])
        yield lambda ledger, step: publish(ledger, f"run {step}", name=NAMES[step % 2])
        yield lambda _, step: Workspace.open().promote(NAMES[1], version=1, alias=f"alias{step % 3}")
        yield lambda ledger, step: _ingest(ledger, step)
        yield lambda ledger, step: releasing.publish_tick(ledger, f"night {step}")
        yield lambda ledger, step: ledger.begin(reserve(ledger, f"theirs {step}", population="others").release_id)
        yield lambda ledger, step: ledger.abandon(reserve(ledger, f"given up {step}").release_id)
        yield lambda ledger, step: ledger.close(begin(ledger, f"closed {step}").release_id)
        yield lambda ledger, step: publish(ledger, f"evaluated {step}", name="map.evaluation")
        yield lambda ledger, step: _export(ledger)
        if around == 0:
            yield lambda ledger, step: open_budget(ledger, "late", epsilon=ROOM)
        yield lambda ledger, step: ledger.begin(reserve(ledger, f"late {step}", population="late").release_id)


def _cut(ledger: Ledger, step: int, *, point: str) -> None:
    """Publish, and simulate a crash at a crash point; in odd steps, repeat the same request afterwards."""
    with suppress(Cut), _ending_at(point):
        publish(ledger, f"cut {step}", name=NAMES[step % 3])
    if step % 2:
        with suppress(Exception):
            publish(Workspace.open().ledger, f"cut {step}", name=NAMES[step % 3])


@contextmanager
def _ending_at(point: str) -> Iterator[None]:
    def end(reached: str) -> None:
        if reached == point:
            raise Cut

    atomic_files.hook = end
    try:
        yield
    finally:
        atomic_files.hook = None


def _ingest(ledger: Ledger, step: int) -> None:
    """Ingest rows of individuals with ids, some of them new."""
    source = ledger.home.with_name("people.csv")
    source.write_text("who,a\n" + "".join(f"{who},{who}\n" for who in range(step, step + 4)))
    options = IngestOptions(features=1, population="people", unit_column="who", allow_shared_rows=True)
    ingest_source(str(source), "people", options)


def _export(ledger: Ledger) -> None:
    with ledger.transaction() as connection:
        export_trail(connection, POPULATION, place=store(), keys=ledger.home / "keys")
