"""Ingests are numbered, and the ledger knows the tables that tell which ingest saw an individual first.

A snapshot of an earlier version has no number: when its people came is not known.
"""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

_RULES = {
    "arrival_epoch": "OLD.lost_at IS NULL AND NEW.id = OLD.id AND NEW.population = OLD.population",
    "arrival_segment": "OLD.number IS NULL AND NEW.id = OLD.id AND NEW.epoch = OLD.epoch",
}
"""The updates that are allowed: an epoch is lost once, and a segment gets its number once."""


def upgrade() -> None:
    """Add the numbers of snapshots, and the tables of epochs and segments, whose rows are never removed."""
    op.add_column("snapshot", sa.Column("number", sa.BigInteger))
    op.add_column("snapshot", sa.Column("epoch", sa.Text))
    op.create_index("ix_snapshot_number", "snapshot", ["number"], unique=True)
    op.create_table(
        "arrival_epoch",
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("population", sa.Text, nullable=False, index=True),
        sa.Column("created_at", sa.Text, nullable=False),
        sa.Column("lost_at", sa.Text),
    )
    op.create_table(
        "arrival_segment",
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("epoch", sa.Text, sa.ForeignKey("arrival_epoch.id"), nullable=False, index=True),
        sa.Column("number", sa.BigInteger, unique=True),
        sa.Column("digest", sa.Text),
    )
    for table, rule in _RULES.items():
        if op.get_bind().dialect.name == "postgresql":
            _postgresql_rules(table, rule)
        else:
            _sqlite_rules(table, rule)


def _postgresql_rules(table: str, rule: str) -> None:
    op.execute(
        f"CREATE TRIGGER {table}_once BEFORE UPDATE ON {table} FOR EACH ROW WHEN (NOT ({rule})) "
        "EXECUTE FUNCTION dpca_never()"
    )
    op.execute(f"CREATE TRIGGER {table}_never BEFORE DELETE ON {table} FOR EACH ROW EXECUTE FUNCTION dpca_never()")
    op.execute(f"CREATE TRIGGER {table}_no_truncate BEFORE TRUNCATE ON {table} EXECUTE FUNCTION dpca_never()")


def _sqlite_rules(table: str, rule: str) -> None:
    op.execute(
        f"CREATE TRIGGER {table}_no_replace BEFORE INSERT ON {table} "
        f"WHEN EXISTS (SELECT 1 FROM {table} WHERE id = NEW.id) "
        f"BEGIN SELECT RAISE(ABORT, 'rows of {table} are never replaced'); END"
    )
    op.execute(
        f"CREATE TRIGGER {table}_once BEFORE UPDATE ON {table} WHEN NOT ({rule}) "
        f"BEGIN SELECT RAISE(ABORT, 'rows of {table} change once'); END"
    )
    op.execute(
        f"CREATE TRIGGER {table}_no_delete BEFORE DELETE ON {table} "
        f"BEGIN SELECT RAISE(ABORT, 'rows of {table} are never deleted'); END"
    )
