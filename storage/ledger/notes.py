"""The notes for the witness: everything needed to enter a release or a version that a restored copy lacks."""

import json
from dataclasses import asdict
from typing import Any

import sqlalchemy as sa

from storage.database import tables
from storage.ledger.budgets import read_budget
from storage.ledger.witness import Note

_NOT_NOTED = ("state", "artifact_digest", "updated_at", "seq")
_ROW = sa.select(tables.release).order_by(tables.release.c.seq.nulls_first())
_OF_RELEASE = _ROW.where(tables.release.c.id == sa.bindparam("id"))
_VERSIONS = (
    sa.select(tables.version, tables.release.c.artifact_digest)
    .join(tables.release)
    .where(tables.release.c.id == sa.bindparam("id"))
)
_STREAM_FACTS = {
    column.table.name: sa.select(column.table).where(column == sa.bindparam("id"))
    for column in (tables.stream.c.id, tables.stream_charge.c.release_id, tables.tick.c.release_id)
}


def note_release(connection: sa.Connection, release_id: str) -> list[Note]:
    """Describe a release for the witness: its row, and the terms of its budget."""
    rows = connection.execute(_OF_RELEASE, {"id": release_id}).mappings().all()
    return [_release_note(connection, row) for row in rows]


def note_answer(*, stream: str, tick: int, digest: str) -> list[Note]:
    """Describe the answer of a tick for the witness."""
    return [{"answer": {"stream": stream, "tick": tick, "digest": digest}}]


def note_versions(connection: sa.Connection, release_id: str) -> list[Note]:
    """Describe the versions of a release for the witness."""
    return [
        {"version": {name: row[name] for name in ("name", "version", "digest", "release_id", "artifact_digest")}}
        for row in connection.execute(_VERSIONS, {"id": release_id}).mappings()
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
    has_begun = tables.release.c.state.in_(("noising", "committed", "closed"))
    begun = connection.execute(_ROW.where(has_begun)).mappings().all()
    releases = [_release_note(connection, row) for row in begun]
    versions = [note for row in begun for note in note_versions(connection, row["id"])]
    table = tables.tick_answer
    answers = [note for row in connection.execute(sa.select(table)).mappings() for note in note_answer(**row)]
    return [*releases, *versions, *note_joint_versions(connection), *answers]


def _release_note(connection: sa.Connection, row: sa.RowMapping) -> Note:
    facts = {name: value for name, value in row.items() if name not in _NOT_NOTED}
    budget = read_budget(connection, row["population"])
    note = {"release": {**facts, "charge": bytes(row["charge"]).hex()}, "budget": asdict(budget)}
    return {**note, **_stream_facts(connection, row["id"])}


def _stream_facts(connection: sa.Connection, release_id: str) -> dict[str, Any]:
    """Return the rows by which a release opens a stream, pays for its ticks, or is one of them."""
    found = {
        name: connection.execute(query, {"id": release_id}).mappings().first() for name, query in _STREAM_FACTS.items()
    }
    return {
        name: {column: value for column, value in row.items() if column != "seq"}
        for name, row in found.items()
        if row is not None
    }
