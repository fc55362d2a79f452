"""Lists of published names and versions, read from the ledger's database alone.

No artifact and no manifest is read. A thousand versions of a name take three queries.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import sqlalchemy as sa

from dpca_tasks.accounting.events import is_private
from flows.reports.budget_facts import balances
from storage.database import tables
from storage.database.engine import reading
from storage.registry.agreement import alias_history, damaged_names
from storage.workspace import Workspace


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionRow:
    """One version as recorded in the ledger.

    Attributes
    ----------
    name, version, digest, date : of the published version
    release : str, the id of the release or joint release of the version
    mechanism, dataset, population, epsilon, delta : as requested; None for a joint release. For a tick of a stream,
        ``dataset`` is the dataset of the stream
    sites : int, number of datasets of a joint release; 0 for any other release
    private : bool
    """

    name: str
    version: int
    digest: str
    date: str
    release: str
    mechanism: str | None
    dataset: str | None
    population: str | None
    epsilon: float | None
    delta: float | None
    sites: int
    private: bool

    @property
    def reference(self) -> str:
        """The version in the form ``name@3``."""
        return f"{self.name}@{self.version}"

    def facts(self, aliases: Sequence[str]) -> dict[str, Any]:
        """Return the row as plain JSON values."""
        return {"artifact": self.reference, **asdict(self), "aliases": [*aliases]}


def versions_in(connection: sa.Connection, name: str | None = None, *, version: int | None = None) -> list[VersionRow]:
    """Return the versions of one name, or of all names, in order; with ``version``, only that version."""
    single, together = _released(), sa.select(tables.joint_version)
    for column, requested in (("name", name), ("version", version)):
        if requested is not None:
            single = single.where(tables.version.c[column] == requested)
            together = together.where(tables.joint_version.c[column] == requested)
    found = [_single(row) for row in connection.execute(single)]
    found += [_joint(row) for row in connection.execute(together)]
    return sorted(found, key=lambda row: (row.name, row.version))


def numbers_of(connection: sa.Connection, name: str) -> list[int]:
    """Return the version numbers of a name in increasing order."""
    table = tables.published
    return sorted(connection.execute(sa.select(table.c.version).where(table.c.name == name)).scalars())


def aliases_in(connection: sa.Connection, name: str | None = None) -> dict[tuple[str, int], list[str]]:
    """Return the aliases of each version that has one."""
    query = sa.select(tables.alias).order_by(tables.alias.c.alias)
    if name is not None:
        query = query.where(tables.alias.c.name == name)
    found: dict[tuple[str, int], list[str]] = {}
    for row in connection.execute(query):
        found.setdefault((row.name, row.version), []).append(row.alias)
    return found


def name_facts(workspace: Workspace, name: str) -> dict[str, Any]:
    """Return the versions of a name, its aliases, and every move of its aliases.

    Versions and moves are listed newest first. ``versions`` is empty if nothing was published under the name.
    """
    with reading(workspace.ledger.engine) as connection:
        rows, aliases = versions_in(connection, name), aliases_in(connection, name)
        moves = alias_history(connection, name)
    versions = [row.facts(aliases.get((name, row.version), ())) for row in reversed(rows)]
    return {
        "name": name,
        "newest": versions[0] if versions else None,
        "second": versions[1] if len(versions) > 1 else None,
        "aliases": {alias: version for (_, version), found in aliases.items() for alias in found},
        "versions": versions,
        "alias_history": [{**asdict(move), "why": dict(move.why)} for move in reversed(moves)],
    }


def overview_facts(workspace: Workspace) -> dict[str, Any]:
    """Return one row for each name, with its newest version and aliases, and one row for each budget."""
    with reading(workspace.ledger.engine) as connection:
        rows, aliases = versions_in(connection), aliases_in(connection)
    damaged = damaged_names(workspace.ledger.engine, workspace.store)
    newest: dict[str, VersionRow] = {row.name: row for row in rows}
    counted: dict[str, int] = {}
    for row in rows:
        counted[row.name] = counted.get(row.name, 0) + 1
    meant = {
        name: {alias: version for (other, version), found in aliases.items() if other == name for alias in found}
        for name in newest
    }
    return {
        "names": [
            {
                "name": name,
                "versions": counted[name],
                "aliases": meant[name],
                "newest": row.facts(()),
                "damaged": name in damaged,
            }
            for name, row in newest.items()
        ],
        "budgets": balances(workspace.ledger),
    }


def _released() -> sa.Select[Any]:
    """Return the SQL query for versions whose release was charged to this ledger, with the release's request."""
    version, release = tables.version, tables.release
    columns = (release.c.request, release.c.population, release.c.epsilon, release.c.delta, release.c.event)
    return (
        sa.select(version, *columns, tables.stream.c.terms)
        .join(release, release.c.id == version.c.release_id)
        .outerjoin(tables.tick, tables.tick.c.release_id == release.c.id)
        .outerjoin(tables.stream, tables.stream.c.id == tables.tick.c.stream)
    )


def _single(row: sa.Row[Any]) -> VersionRow:
    request = json.loads(row.request)
    terms = {} if row.terms is None else json.loads(row.terms)
    return VersionRow(
        **_of_version(row, release=row.release_id),
        mechanism=request.get("mechanism"),
        dataset=request.get("dataset", terms.get("dataset")),
        population=row.population,
        epsilon=row.epsilon,
        delta=row.delta,
        sites=0,
        private=is_private(json.loads(row.event)),
    )


def _joint(row: sa.Row[Any]) -> VersionRow:
    return VersionRow(
        **_of_version(row, release=row.joint_id),
        mechanism=None,
        dataset=None,
        population=None,
        epsilon=None,
        delta=None,
        sites=len(json.loads(row.sites)),
        private=True,
    )


def _of_version(row: sa.Row[Any], *, release: str) -> dict[str, Any]:
    return {
        "name": row.name,
        "version": row.version,
        "digest": row.digest,
        "date": row.created_at,
        "release": release,
    }
