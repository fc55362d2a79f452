"""A stream is charged once, and its ticks are releases that cost nothing more, each bound to one snapshot."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

_TAKEN = {
    "stream": "id = NEW.id",
    "stream_charge": "release_id = NEW.release_id OR (stream = NEW.stream AND ticks = NEW.ticks)",
    "tick": "release_id = NEW.release_id OR (stream = NEW.stream AND (tick = NEW.tick OR slot = NEW.slot))",
    "tick_answer": "stream = NEW.stream AND tick = NEW.tick",
}


def upgrade() -> None:
    """Add the tables of streams, of what they are charged, of their ticks and of the ticks' answers."""
    text = sa.Text
    op.create_table(
        "stream",
        sa.Column("id", text, sa.ForeignKey("release.id"), primary_key=True),
        sa.Column("name", text, nullable=False, index=True),
        sa.Column("population", text, nullable=False),
        sa.Column("fingerprint", text, nullable=False),
        sa.Column("terms", text, nullable=False),
        sa.Column("created_at", text, nullable=False),
        sa.Column("seq", sa.BigInteger, nullable=False),
    )
    op.create_table(
        "stream_charge",
        sa.Column("stream", text, sa.ForeignKey("stream.id"), primary_key=True),
        sa.Column("ticks", sa.Integer, primary_key=True),
        sa.Column("release_id", text, sa.ForeignKey("release.id"), nullable=False, unique=True),
    )
    op.create_table(
        "tick",
        sa.Column("stream", text, sa.ForeignKey("stream.id"), primary_key=True),
        sa.Column("tick", sa.Integer, primary_key=True),
        sa.Column("slot", text, nullable=False),
        sa.Column("release_id", text, sa.ForeignKey("release.id"), nullable=False, unique=True),
        sa.Column("snapshot_id", text, nullable=False),
        sa.Column("number", sa.BigInteger, nullable=False),
        sa.Column("arrivals", text, nullable=False),
        sa.UniqueConstraint("stream", "slot"),
    )
    op.create_table(
        "tick_answer",
        sa.Column("stream", text, primary_key=True),
        sa.Column("tick", sa.Integer, primary_key=True),
        sa.Column("digest", text, nullable=False),
        sa.ForeignKeyConstraint(["stream", "tick"], ["tick.stream", "tick.tick"]),
    )
    for table, taken in _TAKEN.items():
        _never_changes(table, taken)


def _never_changes(table: str, taken: str) -> None:
    if op.get_bind().dialect.name == "postgresql":
        op.execute(
            f"CREATE TRIGGER {table}_never BEFORE UPDATE OR DELETE ON {table} "
            "FOR EACH ROW EXECUTE FUNCTION dpca_never()"
        )
        op.execute(f"CREATE TRIGGER {table}_no_truncate BEFORE TRUNCATE ON {table} EXECUTE FUNCTION dpca_never()")
        return
    op.execute(
        f"CREATE TRIGGER {table}_no_replace BEFORE INSERT ON {table} "
        f"WHEN EXISTS (SELECT 1 FROM {table} WHERE {taken}) "
        f"BEGIN SELECT RAISE(ABORT, 'rows of {table} are never replaced'); END"
    )
    for verb in ("UPDATE", "DELETE"):
        op.execute(
            f"CREATE TRIGGER {table}_no_{verb.lower()} BEFORE {verb} ON {table} "
            f"BEGIN SELECT RAISE(ABORT, 'rows of {table} never change'); END"
        )
