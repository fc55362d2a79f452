"""Long histories: the total that each budget was charged, and indexes for what is asked of every release.

The table of totals begins empty: a total that is missing is added up anew and noted with the next release. Any change
of what a population is charged removes its total in the same transaction, whoever makes it, so none is ever stale: a
process of an earlier version may still be at work, and a row may be edited by hand.
"""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None

_INDEXES = {
    "ix_version_release_id": ("version", ["release_id"]),
    "ix_version_digest": ("version", ["digest"]),
    "ix_joint_version_digest": ("joint_version", ["digest"]),
    "ix_event_name": ("event", ["name", "population", "seq"]),
    "ix_event_release_id": ("event", ["release_id", "name"]),
}
_CHANGED = " OR ".join(
    (
        "(OLD.state = 'abandoned') <> (NEW.state = 'abandoned')",
        *(f"OLD.{column} <> NEW.{column}" for column in ("charge", "population", "accounting")),
    )
)


def upgrade() -> None:
    """Add the table of totals, what keeps it from being stale, and the indexes."""
    op.create_table(
        "charged_total",
        sa.Column("population", sa.Text, sa.ForeignKey("budget.population"), primary_key=True),
        sa.Column("charge", sa.Text, nullable=False),
        sa.Column("accounting", sa.Text, nullable=False),
        sa.Column("releases", sa.BigInteger, nullable=False),
    )
    for name, (table, columns) in _INDEXES.items():
        op.create_index(name, table, columns)
    if op.get_bind().dialect.name == "postgresql":
        op.create_index("ix_release_newest", "release", ["population", sa.text("seq NULLS FIRST")])
        _postgresql_rules()
    else:
        op.create_index("ix_release_newest", "release", ["population", "seq"])  # where NULL comes first by nature
        _sqlite_rules()


def _sqlite_rules() -> None:
    for verb, row in {"INSERT": "NEW", "DELETE": "OLD"}.items():
        op.execute(
            f"CREATE TRIGGER charged_total_{verb.lower()} AFTER {verb} ON release "
            f"BEGIN DELETE FROM charged_total WHERE population = {row}.population; END"
        )
    op.execute(
        f"CREATE TRIGGER charged_total_update AFTER UPDATE ON release WHEN {_CHANGED} "
        "BEGIN DELETE FROM charged_total WHERE population IN (OLD.population, NEW.population); END"
    )


def _postgresql_rules() -> None:
    op.execute(
        "CREATE FUNCTION dpca_charged() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
        "IF TG_OP <> 'INSERT' THEN DELETE FROM charged_total WHERE population = OLD.population; END IF; "
        "IF TG_OP <> 'DELETE' THEN DELETE FROM charged_total WHERE population = NEW.population; END IF; "
        "RETURN NULL; END $$"
    )
    op.execute(
        "CREATE TRIGGER charged_total_changed AFTER INSERT OR DELETE ON release "
        "FOR EACH ROW EXECUTE FUNCTION dpca_charged()"
    )
    op.execute(
        f"CREATE TRIGGER charged_total_update AFTER UPDATE ON release FOR EACH ROW WHEN ({_CHANGED}) "
        "EXECUTE FUNCTION dpca_charged()"
    )
