"""Snapshots and releases know their place in the journal, so that no clock decides which is newer."""

import json

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

_EVENT = sa.table("event", *map(sa.column, ("seq", "name", "release_id", "detail")))
_TABLES = {
    name: sa.table(name, sa.column("id", sa.Text), sa.column("seq", sa.BigInteger)) for name in ("snapshot", "release")
}


def upgrade() -> None:
    """Add the places, as the journal tells them; a row that it does not know counts as older than all."""
    for name in _TABLES:
        op.add_column(name, sa.Column("seq", sa.BigInteger))
    connection = op.get_bind()
    told = sa.select(_EVENT).where(_EVENT.c.name.in_(("snapshot_registered", "release_reserved")))
    places: dict[str, list[dict[str, str | int]]] = {name: [] for name in _TABLES}
    for event in connection.execute(told):
        kind, _, _ = event.name.partition("_")
        subject = event.release_id if kind == "release" else json.loads(event.detail)["snapshot"]
        places[kind].append({"subject": subject, "place": event.seq})
    for name, table in _TABLES.items():
        if places[name]:
            here = table.c.id == sa.bindparam("subject")
            connection.execute(table.update().where(here).values(seq=sa.bindparam("place")), places[name])
