"""Home folders with a long history: many published releases of many populations.

`release_each` performs every step of every release. `release_at_once` writes the same database rows and files directly,
which is much faster. `record_of` reads all rows of a home, without the values that differ between any two homes, such
as times. So a benchmark can check that both functions give equal homes.
"""

import json
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sqlalchemy as sa

from dpca.artifacts.base import canonical_json
from dpca.artifacts.files import write_artifact
from dpca.artifacts.subspace import PrivateSubspace
from dpca.backends.atomic_files import digest_files, read_tree
from dpca.home import store
from dpca_tasks.accounting import filters, prices
from storage.database import tables
from storage.database.engine import transaction
from storage.ledger import journal
from storage.ledger.budgets import read_budget
from storage.ledger.journal import Head
from storage.trail.checkpoints import hash_entry
from storage.workspace import Workspace

EVENT = {"name": "gaussian", "noise_multiplier": 5_000.0}
EPSILON, DELTA = 1.0, 1e-6
LARGEST, LARGEST_NAME = "people-000", "map-000"
RULES = filters.build_filter("gdp", epsilon=EPSILON, delta=DELTA)
CHARGE = RULES.charge(EVENT, delta=DELTA)
_NOT_NOTED = ("state", "artifact_digest", "updated_at", "seq")
_OF_ONE_HOME = {"pointer", "signed_pointer", "charged_total", "ledger"}
_MOMENTS = {"created_at", "updated_at", "at", "hash", "prev_hash", "actor"}


def population_of(number: int, populations: int) -> str:
    """Return the population to which the release with this number belongs; every fourth belongs to the largest."""
    return LARGEST if number % 4 == 0 else f"people-{1 + number % (populations - 1):03d}"


def request_of(number: int, population: str) -> dict[str, Any]:
    """Return the arguments with which a release is reserved in the ledger, except the population."""
    return {
        **{"run_key": f"run {number}", "fingerprint": "f" * 64, "event": EVENT, "epsilon": EPSILON, "delta": DELTA},
        **{"snapshot_id": "s" * 32, "request": {"mechanism": "analyze_gauss", "dataset": population, "components": 2}},
    }


def open_budgets(workspace: Workspace, populations: int) -> None:
    """Open a budget for each population."""
    for number in range(populations):
        workspace.ledger.open_budget(f"people-{number:03d}", epsilon=EPSILON, delta=DELTA, failure_delta=0.0)


def subspace_of(release_id: str) -> PrivateSubspace:
    """Return a small subspace that is published as the artifact of a release."""
    privacy = {"epsilon": EPSILON, "delta": DELTA, "relation": "add_remove", "event": EVENT}
    facts = {"mechanism": "analyze_gauss", "privacy": privacy, "release": release_id}
    return PrivateSubspace(components=np.eye(2, 6), eigenvalues=np.array([2.0, 1.0]), manifest=facts)


def release_each(workspace: Workspace, count: int, *, populations: int) -> None:
    """Make many releases in sequence, with every step that the flows perform."""
    for number in range(count):
        population = population_of(number, populations)
        release_id = workspace.ledger.reserve(population, **request_of(number, population)).release_id
        workspace.ledger.begin(release_id)
        digest = write_artifact(subspace_of(release_id), home=workspace.home, place=store())
        workspace.publish(release_id, name=name_of(population), artifact_digest=digest)


def release_at_once(workspace: Workspace, count: int, *, populations: int) -> None:
    """Write the ledger rows, journal entries, witness notes, artifacts and pointers of many releases directly."""
    ledger = workspace.ledger
    rows: dict[str, list[dict[str, Any]]] = {"release": [], "event": [], "version": []}
    notes: list[Any] = []
    with without_waiting():
        artifacts = _Artifacts(workspace.home)
        with ledger.transaction() as connection:
            chain = _Chain(journal.head(connection), rows["event"])
            versions: dict[str, int] = {}
            counts: dict[str, int] = {}
            budget = asdict(read_budget(connection, LARGEST))
            for number in range(count):
                population, release_id = population_of(number, populations), secrets.token_hex(16)
                digest, name = artifacts.write(release_id), name_of(population)
                versions[name] = versions.get(name, 0) + 1
                release = _release_row(release_id, number, population, digest, seq=chain.seq + 1)
                counts[population] = counts.get(population, 0) + 1
                total = {"total": [counts[population] * part for part in CHARGE], "releases": counts[population]}
                shown = {**request_of(number, population), **total, "charge": CHARGE}
                version = {"name": name, "version": versions[name], "digest": digest}
                chain.append("release_reserved", population, release_id, shown)
                chain.append("release_begun", population, release_id, {})
                chain.append("release_committed", population, release_id, {"artifact": digest})
                chain.append("version_published", None, release_id, version)
                rows["release"].append(release)
                rows["version"].append({**version, "release_id": release_id, "created_at": journal.now()})
                facts = {name: value for name, value in release.items() if name not in _NOT_NOTED}
                facts |= {"charge": release["charge"].hex()}
                notes.append({"release": facts, "budget": {**budget, "population": population}})
                notes.append({"version": {**version, "release_id": release_id, "artifact_digest": digest}})
            for table, written in rows.items():
                connection.execute(tables.metadata.tables[table].insert(), written)
            ledger._witness.note(notes)
        workspace.rebuild_pointers()


def name_of(population: str) -> str:
    """Return the name under which a population's releases are published."""
    return population.replace("people", "map")


@contextmanager
def without_waiting() -> Iterator[None]:
    """Disable file syncs while the context is open, so that no write waits for the disk."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda _: None)
        yield


def record_of(workspace: Workspace) -> dict[str, list[str]]:
    """Return every database row of a home, without times and with random ids replaced by numbered words."""
    found: dict[str, list[str]] = {}
    with transaction(workspace.ledger.engine) as connection:
        order = connection.execute(sa.select(tables.release).order_by(tables.release.c.seq)).all()
        spoken = {row.id: f"release {at}" for at, row in enumerate(order)}
        spoken |= {str(row.artifact_digest): f"artifact {at}" for at, row in enumerate(order)}
        spoken[workspace.ledger.id] = "ledger"
        for table in tables.metadata.sorted_tables:
            if table.name not in _OF_ONE_HOME:
                rows = connection.execute(sa.select(table)).mappings()
                lines = (json.dumps({n: str(v) for n, v in row.items() if n not in _MOMENTS}) for row in rows)
                found[table.name] = sorted(_spoken(line, spoken) for line in lines)
    found["notes"] = [_spoken(json.dumps(_timeless(note)), spoken) for note in workspace.ledger._witness.noted()]
    return found


def _release_row(release_id: str, number: int, population: str, digest: str, *, seq: int) -> dict[str, Any]:
    requested = request_of(number, population)
    written = {name: json.dumps(requested[name], sort_keys=True) for name in ("event", "request")}
    paid = {"charge": prices.encode(CHARGE), "accounting": RULES.accounting, "seq": seq}
    then = {"created_at": journal.now(), "updated_at": journal.now()}
    row = {**requested, **written, **paid, **then, "id": release_id, "population": population}
    return {**row, "state": "committed", "artifact_digest": digest}


class _Chain:
    """A chain of new journal entries that continues from the last entry of the journal."""

    def __init__(self, head: Head, rows: list[dict[str, Any]]) -> None:
        self.seq, self._hash, self._rows = head.seq, head.hash, rows

    def append(self, name: str, population: str | None, release_id: str, detail: dict[str, Any]) -> None:
        self.seq += 1
        row = {"seq": self.seq, "population": population, "release_id": release_id, "name": name}
        row |= {"detail": json.dumps(detail, sort_keys=True), "at": journal.now(), "actor": "benchmark"}
        row["prev_hash"] = self._hash
        self._hash = hash_entry(row)
        self._rows.append({**row, "hash": self._hash})


class _Artifacts:
    """A writer of copies of one artifact, each with the id of another release in its manifest."""

    def __init__(self, home: Path) -> None:
        digest = write_artifact(subspace_of("none"), home=home, place=store())
        self._folder = home / "registry" / "artifacts"
        self._files = read_tree(self._folder / digest, most=1 << 20)
        self._manifest = json.loads(self._files["manifest.json"])

    def write(self, release_id: str) -> str:
        files = self._files | {"manifest.json": canonical_json({**self._manifest, "release": release_id})}
        digest = digest_files(files)
        for path, payload in files.items():
            target = self._folder / digest / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(payload)
        return digest


def _timeless(note: Any) -> Any:
    if isinstance(note, dict):
        return {name: _timeless(value) for name, value in note.items() if name not in _MOMENTS}
    return note


def _spoken(line: str, spoken: dict[str, str]) -> str:
    for name, word in spoken.items():
        if name in line:
            line = line.replace(name, word)
    return line
