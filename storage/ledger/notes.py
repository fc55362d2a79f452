"""The notes for the witness: everything needed to enter a release or a version that a restored copy lacks."""

import json
from collections.abc import Sequence
from dataclasses import asdict

import sqlalchemy as sa

from storage.database import tables
from storage.ledger.budgets import read_budget
from storage.ledger.witness import Note

_NOT_NOTED = ("state", "artifact_digest", "updated_at", "seq")


def note_release(connection: sa.Connection, release_id: str) -> list[Note]:
    """Describe a release for the witness: its row, and the terms of its budget."""
    return [_release_note(connection, row) for row in _rows(connection, tables.release.c.id == release_id)]


def note_versions(connection: sa.Connection, release_id: str) -> list[Note]:
    """Describe the versions of a release for the witness."""
    version, release = tables.version, tables.release
    query = sa.select(version, release.c.artifact_digest).join(release).where(release.c.id == release_id)
    return [
        {"version": {name: row[name] for name in ("name", "version", "digest", "release_id", "artifact_digest")}}
        for row in connection.execute(query).mappings()
    ]


def note_joint_versions(connection: sa.Connection, joint_id: str | None = None) -> list[Note]:
    """Describe the versions of a joint release, or of all of them, for the witness."""
    table = tables.joint_version
    query = sa.select(table) if joint_id is None else sa.select(table).where(table.c.joint_id == joint_id)
    return [
        {
            "version": {
                **{name: row[name] for name in ("name", "version", "digest")},
                **{"release_id": row["joint_id"], "artifact_digest": row["digest"], "sites": json.loads(row["sites"])},
            }
        }
        for row in connection.execute(query).mappings()
    ]


def note_everything(connection: sa.Connection) -> list[Note]:
    """Describe every release that began, its versions, and those of joint releases, for a new witness."""
    begun = list(_rows(connection, tables.release.c.state.in_(("noising", "committed", "closed"))))
    releases = [_release_note(connection, row) for row in begun]
    versions = [note for row in begun for note in note_versions(connection, row["id"])]
    return [*releases, *versions, *note_joint_versions(connection)]


def _rows(connection: sa.Connection, where: sa.ColumnElement[bool]) -> Sequence[sa.RowMapping]:
    query = sa.select(tables.release).where(where).order_by(tables.release.c.seq.nulls_first())
    return connection.execute(query).mappings().all()


def _release_note(connection: sa.Connection, row: sa.RowMapping) -> Note:
    facts = {name: value for name, value in row.items() if name not in _NOT_NOTED}
    budget = read_budget(connection, row["population"])
    return {"release": {**facts, "charge": bytes(row["charge"]).hex()}, "budget": asdict(budget)}
