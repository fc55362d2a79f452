"""Soak of restores: each combination of database, keys, registry and whole home is restored from points of a history.

The separate witness in the state folder is never restored. Each combination is restored in two ways: by copying files,
noise keys included, and from a backup. Then the soak tries to spend and publish. If the ledger is locked, an operator
accepts the restored state, and the soak tries again. Two kinds of errors are counted: a restored ledger that states
less spending than the true history, and a version whose bytes changed.
"""

import argparse
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from uuid import uuid4

import sqlalchemy as sa

from dpca.errors import Refused, StorageError
from storage.backups.copying import Target, restore_backup
from storage.ledger.ledger import Ledger
from storage.workspace import Workspace
from tests.crash.prices import least_epsilon
from tests.crash.restored_history import PASSPHRASE, Place, Truth, live, read_truth
from tests.postgres import running_server
from tests.storage.releasing import DELTA, publish, reserve

FILES = {"database": ("dpca.sqlite*",), "keys": ("keys",), "registry": ("registry", "streams", "trail")}
BACKED_UP = {"database": "database", "keys": "keys", "registry": "store"}
COMBINATIONS = [
    *(found for size in (1, 2, 3) for found in combinations(FILES, size)),
    ("whole home",),
]
_LEAST = 1e-9  # tolerance relative to the spending, because `least_epsilon` bisects and the ledger rounds up


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """A world at the end of its history, its earlier copies, and an independent record of its final state."""

    end: Place
    copies: Path
    truth: Truth


def soak(
    history: History,
    *,
    points: Sequence[int],
    work: Path,
    new_database: Callable[[str], str],
    these: Sequence[tuple[str, ...]] = COMBINATIONS,
) -> Counter[str]:
    """Restore combinations of parts from each point of the history; return counts of restores and errors.

    ``these`` are the combinations, by default all of them.
    """
    counts: Counter[str] = Counter()
    for point in points:
        for combination in these:
            for method in ("files", "backup"):
                if history.end.url and method == "files" and {"database", "whole home"} & set(combination):
                    continue  # the database files of a PostgreSQL server cannot be copied
                world = _copied(history.end, work, new_database)
                restored = history.copies / f"{point:03d}"
                _restore(world, restored, combination, method=method, new_database=new_database)
                _try(world, history.truth, counts, label=f"{'+'.join(combination)} at {point} from {method}")
                shutil.rmtree(work)
    return counts


def _try(world: Place, truth: Truth, counts: Counter[str], *, label: str) -> None:
    """Spend and publish in a restored world, before and after an operator accepts the restored state; count errors."""
    counts["restores"] += 1
    wrong = set()
    try:
        _spend(Workspace.open().ledger)
    except Refused:
        counts["locked"] += 1
        try:
            accepted = Workspace.open(accept_restored="a soak")
        except StorageError as error:
            counts["stuck"] += 1
            print(f"{label}: {error}", file=sys.stderr)
            return
        wrong |= _wrong(world, truth)
        accepted.ledger.verify()
        _spend(Workspace.open().ledger)
    wrong |= _wrong(world, truth)
    for kind in wrong:
        counts[kind] += 1
        print(f"{kind}: {label}", file=sys.stderr)


def _spend(ledger: Ledger) -> None:
    publish(ledger, f"new {uuid4().hex}")
    ledger.begin(reserve(ledger, f"new {uuid4().hex}").release_id)


def _wrong(world: Place, truth: Truth) -> set[str]:
    """Return the kinds of errors of a world, by comparing SQL and the ledger's statements with the true history."""
    found, wrong = read_truth(world, begun_only=False), set()
    ledger = Workspace.read_only().ledger
    for population, spent in truth.spent.items():
        least = least_epsilon(spent, delta=DELTA) * (1 - _LEAST)
        if found.spent.get(population, 0) < spent or ledger.statement(population).spent < least:
            wrong.add("overspent")
    if any(found.versions.get(at, digest) != digest for at, digest in truth.versions.items()):
        wrong.add("renumbered")
    return wrong


def _restore(
    world: Place, restored: Path, combination: tuple[str, ...], *, method: str, new_database: Callable[[str], str]
) -> None:
    parts = tuple(FILES) if combination == ("whole home",) else combination
    names = ["*"] if combination == ("whole home",) else [name for part in parts for name in FILES[part]]
    for path in [path for name in names for path in world.home.glob(name)]:
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    if method == "files":
        for path in [path for name in names for path in (restored / "home").glob(name)]:
            (shutil.copytree if path.is_dir() else shutil.copy2)(path, world.home / path.name)
        return
    if world.url and "database" in parts:
        new_database(world.url)
    restore_backup(
        restored / "backup", into=Target.configured(), only=[BACKED_UP[part] for part in parts], passphrase=PASSPHRASE
    )


def _copied(end: Place, work: Path, new_database: Callable[[str], str]) -> Place:
    for name in ("home", "state"):
        shutil.copytree(end.root / name, work / name)
    world = Place(root=work, url=new_database(f"copy of {end.url}") if end.url else "")
    world.enter()
    return world


def _databases(server_url: str) -> Callable[[str], str]:
    """Return a function that creates a database: an empty database at a URL, or a copy under a new name."""
    engine = sa.create_engine(f"{server_url}/postgres", isolation_level="AUTOCOMMIT", poolclass=sa.NullPool)

    def new(requested: str) -> str:
        of = requested.removeprefix("copy of ")
        name = f"s{uuid4().hex}" if of != requested else sa.make_url(of).database
        template = f" TEMPLATE {sa.make_url(of).database}" if of != requested else ""
        with engine.connect() as connection:
            if of == requested:
                connection.exec_driver_sql(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")
            connection.exec_driver_sql(f"CREATE DATABASE {name}{template}")
        return f"{server_url}/{name}"

    return new


def _histories(folder: Path, *, steps: int, server_url: str) -> Iterator[tuple[str, History, Callable[[str], str]]]:
    for kind in ("SQLite", *(("PostgreSQL",) if server_url else ())):
        new = _databases(server_url) if kind == "PostgreSQL" else str
        end = Place(root=folder / kind, url=new(f"{server_url}/history") if kind == "PostgreSQL" else "")
        copies = folder / f"{kind} copies"
        truth = live(end, copies, steps=steps)
        yield kind, History(end=end, copies=copies, truth=truth), new


def spread(steps: int, points: int) -> list[int]:
    """Return ``points`` evenly spaced steps of a history, including the first and the last."""
    return sorted({round(at * (steps - 1) / max(1, points - 1)) for at in range(points)})


def main(arguments: list[str] | None = None) -> int:
    """Run the soak; the last line of the output has the counts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sqlite", type=int, default=50, help="number of restore points on SQLite")
    parser.add_argument("--postgres", type=int, default=6, help="number of restore points on PostgreSQL, or 0")
    parser.add_argument("--steps", type=int, default=56, help="number of steps of each history")
    parser.add_argument("--folder", default=None, help="folder for the test homes, best on a fast disk")
    requested = parser.parse_args(arguments)
    total: Counter[str] = Counter()
    with tempfile.TemporaryDirectory(prefix="dpca-soak-restore-", dir=requested.folder) as root:
        if requested.postgres:
            with running_server() as server:
                total = _run(requested, Path(root), server.url)
        else:
            total = _run(requested, Path(root), "")
    print(f"restores={total['restores']} renumbered={total['renumbered']} overspent={total['overspent']}")
    return 1 if total["renumbered"] or total["overspent"] or total["stuck"] or not total["locked"] else 0


def _run(requested: argparse.Namespace, folder: Path, server_url: str) -> Counter[str]:
    total: Counter[str] = Counter()
    for kind, history, new in _histories(folder, steps=requested.steps, server_url=server_url):
        points = spread(
            requested.steps, requested.postgres if server_url and kind == "PostgreSQL" else requested.sqlite
        )
        counts = soak(history, points=points, work=folder / "work", new_database=new)
        shown = " ".join(
            f"{name}={counts[name]}" for name in ("restores", "locked", "stuck", "renumbered", "overspent")
        )
        print(f"{kind}: {shown}, of {len(points)} points and {len(history.truth.versions)} versions", flush=True)
        total += counts
    return total


if __name__ == "__main__":
    sys.exit(main())
