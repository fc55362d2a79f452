"""Independent count of a ledger's errors after crashes, by plain SQL and files, without the code under test.

Budgets are recomputed from the stored events, in exact fractions, and digests from the files. No charge or total that
the ledger stores is trusted.
"""

import hashlib
import json
import sqlite3
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import zarr

from flows.requests import SubspaceRequest
from tests.crash.prices import is_private, mu_squared
from tests.crash.world import World, connect_from_outside

Row = tuple[Any, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """Numbers of ledger errors found in a world, and of artifacts that equal those of runs without faults."""

    overspent: int = 0
    double: int = 0
    lost: int = 0
    digests_equal: int = 0

    def __add__(self, other: "Tally") -> "Tally":
        """Add field by field."""
        return Tally(**{name: count + getattr(other, name) for name, count in asdict(self).items()})


def recount(world: World, requests: Sequence[SubspaceRequest], expected: Mapping[str, str]) -> Tally:
    """Count the errors in the ledger and files of a world in which no process is running.

    Parameters
    ----------
    world : World
    requests : sequence
        All requests that were made in the world.
    expected : mapping
        Release id to the digest of the artifact that a run without faults publishes.
    """
    tables = {name: query(world, statement) for name, statement in STATEMENTS.items()}
    made = Counter(_request_of(request) for request, *_ in tables["releases"])
    charged = Counter(release for _, release, _ in tables["charges"])
    published = Counter((name, release) for name, _, _, release in tables["versions"])
    digests = Counter((name, digest) for name, _, digest, _ in tables["versions"])
    equal = sum(
        expected.get(release) == digest
        for _, release, _, state, digest, *_ in tables["releases"]
        if state == "committed"
    )
    return Tally(
        overspent=sum(_is_overspent(row, tables) for row in tables["budgets"]),
        double=sum(count > 1 for counts in (made, charged, published, digests) for count in counts.values())
        + len(tables["conflicts"]),
        lost=sum(not _stands(world.home, request, tables) for request in requests) + len(leftovers(world.home)),
        digests_equal=equal,
    )


STATEMENTS = {
    "budgets": "SELECT population, epsilon, delta FROM budget",
    "releases": "SELECT request, id, population, state, artifact_digest, event FROM release",
    "charges": "SELECT population, release_id, detail FROM event WHERE name = 'release_reserved'",
    "conflicts": "SELECT seq FROM event WHERE name = 'step_conflict'",
    "versions": "SELECT name, version, digest, release_id FROM version",
}


def query(world: World, statement: str) -> list[Row]:
    """Run one statement on a world's database."""
    if world.url:
        with connect_from_outside(world.url) as server:
            return server.execute(statement.encode()).fetchall()
    with closing(sqlite3.connect(world.home / "dpca.sqlite")) as file:
        return file.execute(statement).fetchall()


def leftovers(home: Path) -> list[Path]:
    """Return keys, steps and temporary files that releases left behind; `dpca doctor` removes unused signatures."""
    kept = {"witness.json", ".witness.lock", "publisher-signing.key"}
    keys = [path for path in (home / "keys").iterdir() if path.name not in kept]
    staged = [*(home / "staging").iterdir()] if (home / "staging").exists() else []
    half_written = [path for path in (home / "registry").rglob(".*") if path.parent.name != "signatures"]
    return [*keys, *staged, *half_written]


def digest_of(folder: Path) -> str:
    """Recompute the digest of an artifact: SHA-256 over the sorted (path, size, SHA-256) of its files."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    entries = sorted(
        (path.relative_to(folder).as_posix(), path.stat().st_size, hashlib.sha256(path.read_bytes()).hexdigest())
        for path in files
    )
    return hashlib.sha256(json.dumps(entries, separators=(",", ":")).encode()).hexdigest()


def _is_overspent(budget: Row, tables: Mapping[str, list[Row]]) -> bool:
    population, epsilon, delta = budget
    rows = [row[5] for row in tables["releases"] if row[2] == population and row[3] != "abandoned"]
    charges = [json.dumps(json.loads(row[2])["event"]) for row in tables["charges"] if row[0] == population]
    totals = (sum((mu_squared(json.loads(event)) for event in events), Fraction(0)) for events in (rows, charges))
    return any(not is_private(total, epsilon=epsilon, delta=delta) for total in totals)


def _request_of(stored: str) -> str:
    """Return the JSON of a stored request without its family and its plan."""
    kept = {name: fact for name, fact in json.loads(stored).items() if name not in ("family", "plan")}
    return json.dumps(kept, sort_keys=True)


def _stands(home: Path, request: SubspaceRequest, tables: Mapping[str, list[Row]]) -> bool:
    """Return whether a request has one committed release, with a version that a consumer can find and load."""
    requested = json.dumps(asdict(request), sort_keys=True)
    rows = [row for row in tables["releases"] if _request_of(row[0]) == requested]
    if len(rows) != 1 or rows[0][3] != "committed":
        return False
    _, release, _, _, digest, _ = rows[0]
    versions = [row for row in tables["versions"] if (row[0], row[2], row[3]) == (request.publish, digest, release)]
    pointer = home / "registry" / "names" / f"{request.publish}.json"
    if len(versions) != 1 or not pointer.exists():
        return False
    if json.loads(pointer.read_text())["versions"].get(str(versions[0][1])) != digest:
        return False
    folder = home / "registry" / "artifacts" / digest
    return folder.is_dir() and digest_of(folder) == digest and _holds_a_subspace(folder, int(request.components))


def _holds_a_subspace(folder: Path, n_components: int) -> bool:
    components = np.asarray(zarr.open_array(folder / "subspace.zarr" / "components", mode="r")[:])
    return len(components) == n_components and bool(
        np.allclose(components @ components.T, np.eye(n_components), atol=1e-9)
    )
