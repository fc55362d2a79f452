"""Make the golden home of this version: ``python -m tests.golden.make``, once, before the version is tagged.

The home has every kind of result: a promoted subspace, its evaluation, embeddings, topics, a joint release, a stream
after one tick, a signing key delegated by a root, and an exported audit trail. All rows are made up. The home contains
its ledger's keys, so it must never hold real data.
"""

import json
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest

from flows.cli import main
from storage.workspace import Workspace
from tests.flows.conftest import isolate
from tests.postgres import find_programs, running_server

HOMES = Path(__file__).parent / "homes"
COMMON = ("--epsilon", "1", "--delta", "1e-6")
FIT = ("subspace", "fit", "people", "--components", "2", *COMMON, "--clip-norm", "8", "--publish", "people-map")
RELEASES: tuple[tuple[str, ...], ...] = (
    (*FIT, "--run-key", "first"),
    ("subspace", "evaluate", "people-map@1", "people", *COMMON, "--release", "--run-key", "judged"),
    (
        *("completion", "fit", "films", "--rank", "2", "--ratings-between", "0:5", "--ratings-per-user", "4"),
        *(*COMMON, "--publish", "taste", "--run-key", "rated"),
    ),
    (
        *("tensor", "fit", "reports", "--model", "topics", "--components", "2", "--words-at-most", "12"),
        *(*COMMON, "--publish", "topics", "--run-key", "read"),
    ),
)
"""Requests that every later version must recognise: repeated, each is the same release, and nothing is charged."""
POPULATIONS = ("people", "films", "reports")


def write_sources(folder: Path) -> None:
    """Write made-up files of rows, ratings and documents."""
    rng = np.random.default_rng(20261127)
    directions = np.linalg.qr(rng.normal(size=(6, 6)))[0][:2]
    np.save(
        folder / "people.npy", rng.normal(size=(900, 2)) * [3.0, 2.0] @ directions + 0.1 * rng.normal(size=(900, 6))
    )
    items = ("alien", "brazil", "casablanca", "dune", "eraserhead", "fargo")
    films = [f"{user},{film},{rng.integers(0, 6)}" for user in range(80) for film in rng.permutation(items)[:5]]
    (folder / "films.csv").write_text("\n".join(["user,film,stars", *films, ""]))
    (folder / "films.txt").write_text("\n".join([*items, ""]))
    words = ("bank", "rate", "loan", "corn", "rain", "crop")
    chances = np.array([[0.5, 0.3, 0.2, 0, 0, 0], [0, 0, 0, 0.2, 0.3, 0.5]])
    lines = ["report,word,count"]
    for report in range(600):
        counts = rng.multinomial(rng.integers(5, 13), chances[int(rng.random() < 0.4)])
        lines += [f"{report},{words[word]},{counts[word]}" for word in np.flatnonzero(counts)]
    (folder / "reports.csv").write_text("\n".join([*lines, ""]))
    (folder / "reports.txt").write_text("\n".join([*words, ""]))


def fill_home(folder: Path) -> None:
    """Fill the configured home with one result of every kind."""
    write_sources(folder)
    tables: dict[str, tuple[str, ...]] = {
        "people": ("people.npy",),
        "films": ("films.csv", "--columns", "row=user,column=film,value=stars", "--duplicates", "last", "--keep-zeros"),
        "reports": ("reports.csv", "--columns", "row=report,column=word,value=count"),
    }
    for name, (file, *options) in tables.items():
        names = ("--feature-names", f"{folder / name}.txt") if options else ()
        _run(
            "dataset",
            "ingest",
            f"{folder / file}",
            "--name",
            name,
            *options,
            *names,
            "--records-at-most",
            "2000",
            "--direct",
        )
        _run("budget", "open", name, "--epsilon", "8", "--delta", "1e-5")
    for request in RELEASES:
        _run(*request, "--direct", "--yes")
    _run("registry", "promote", "people-map@1", "champion")
    _run("registry", "root", "init", "--out", f"{folder / 'root.key'}")
    _run("registry", "resign")
    stream = ("stream", "open", "people", "--population", "people", *COMMON, "--clip-norm", "8", "--components", "2")
    _run(*stream, "--publish", "nightly", "--ticks", "8", "--yes")
    _run("stream", "tick", "nightly", "--slot", "2026-11-26", "--direct")
    for population in POPULATIONS:
        _run("budget", "export", population, "--output", f"{folder / population}-trail.json")


def facts_of_home() -> dict[str, Any]:
    """Return the facts that a later version must read from the configured home."""
    workspace = Workspace.read_only()
    versions = {f"{row.name}@{row.version}": row.digest for row in workspace.registry.list()}
    spent = {name: workspace.ledger.statement(name).spent for name in POPULATIONS}
    releases = {name: [row.id for row in workspace.ledger.statement(name).releases] for name in POPULATIONS}
    return {"versions": dict(sorted(versions.items())), "spent": spent, "releases": releases}


@contextmanager
def configured(folder: Path, database_url: str | None) -> Iterator[None]:
    """Set the environment of this process to the home below a folder, inside the context."""
    with pytest.MonkeyPatch.context() as patch:
        isolate(patch, home=folder / "home")
        if database_url is not None:
            patch.setenv("DPCA_DATABASE_URL", database_url)
        yield


def _run(*words: str) -> None:
    if main([*words]):
        sys.exit(f"the golden home is incomplete: dpca {' '.join(words)}")


def _write(kind: str, folder: Path, database_url: str | None) -> None:
    with configured(folder, database_url):
        fill_home(folder)
        facts = facts_of_home()
    for source in (*folder.glob("*.csv"), *folder.glob("*.txt"), *folder.glob("*.npy")):
        source.unlink()
    if database_url is not None:
        programs = find_programs()
        assert programs is not None
        plain = database_url.replace("postgresql+psycopg", "postgresql")
        command = [str(programs / "pg_dump"), "--no-owner", "--no-privileges", "--inserts", plain]
        dump = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        kept = [line for line in dump.splitlines() if not line.startswith("\\")]  # psql's own commands
        (folder / "dump.sql").write_text("\n".join([*kept, ""]))
    (folder / "facts.json").write_text(json.dumps(facts, indent=1) + "\n")
    HOMES.mkdir(exist_ok=True)
    with tarfile.open(HOMES / f"{version('dpca-pipeline')}-{kind}.tar.xz", "w:xz") as archive:
        archive.add(folder, arcname=".")


def write_homes() -> None:
    """Write the golden homes of this version on both databases."""
    with TemporaryDirectory() as folder:
        _write("sqlite", Path(folder), None)
    with TemporaryDirectory() as folder, running_server() as server, server.database() as url:
        _write("postgresql", Path(folder), url)


if __name__ == "__main__":
    write_homes()
