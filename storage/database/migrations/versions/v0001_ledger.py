"""The tables of ledger, catalog and registry, and the rules that hold inside the database."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

APPEND_ONLY = ("event", "version", "budget", "step", "ledger")
TAKEN = {
    "event": "seq = NEW.seq",
    "version": "name = NEW.name AND (version = NEW.version OR release_id = NEW.release_id)",
    "budget": "population = NEW.population",
    "step": "release_id = NEW.release_id AND step = NEW.step",
    "ledger": "id = NEW.id",
    "release": "id = NEW.id OR run_key = NEW.run_key",
}
FORWARD = (
    "(OLD.state = NEW.state"
    " OR (OLD.state = 'reserved' AND NEW.state IN ('noising', 'abandoned'))"
    " OR (OLD.state = 'noising' AND NEW.state IN ('committed', 'closed')))"
)
FIXED = (
    *("id", "population", "snapshot_id", "run_key", "fingerprint", "request", "event"),
    *("epsilon", "delta", "charge", "accounting", "created_at"),
)


def upgrade() -> None:
    """Create everything."""
    _create_tables()
    same = " AND ".join(f"OLD.{column} = NEW.{column}" for column in FIXED)
    once = "(OLD.artifact_digest IS NULL OR OLD.artifact_digest = NEW.artifact_digest)"
    whole = "((NEW.artifact_digest IS NULL) = (NEW.state <> 'committed'))"
    rule = f"COALESCE({FORWARD} AND {same} AND {once} AND {whole}, FALSE)"  # a NULL breaks it too
    if op.get_bind().dialect.name == "postgresql":
        _postgresql_rules(rule)
    else:
        _sqlite_rules(rule)


def _create_tables() -> None:
    text = sa.Text
    op.create_table(
        "ledger",
        sa.Column("id", text, primary_key=True),
        sa.Column("created_at", text, nullable=False),
    )
    op.create_table(
        "budget",
        sa.Column("population", text, primary_key=True),
        sa.Column("epsilon", sa.Double, nullable=False),
        sa.Column("delta", sa.Double, nullable=False),
        sa.Column("failure_delta", sa.Double, nullable=False),
        sa.Column("relation", text, nullable=False),
        sa.Column("filter", text, nullable=False),
        sa.Column("unit", text, nullable=False),
        sa.Column("rows_per_unit", sa.BigInteger),
        sa.Column("created_at", text, nullable=False),
    )
    op.create_table(
        "snapshot",
        sa.Column("id", text, primary_key=True),
        sa.Column("name", text, nullable=False, index=True),
        sa.Column("population", text, nullable=False),
        sa.Column("n_features", sa.BigInteger, nullable=False),
        sa.Column("records_at_most", sa.BigInteger),
        sa.Column("path", text, nullable=False),
        sa.Column("content_digest", text, nullable=False),
        sa.Column("rows_digest", text),
        sa.Column("unit", text, nullable=False),
        sa.Column("rows_per_unit", sa.BigInteger),
        sa.Column("created_at", text, nullable=False),
        sa.Column("removed_at", text),
    )
    op.create_table(
        "release",
        sa.Column("id", text, primary_key=True),
        sa.Column("population", text, sa.ForeignKey("budget.population"), nullable=False, index=True),
        sa.Column("snapshot_id", text, nullable=False),
        sa.Column("run_key", text, nullable=False, unique=True),
        sa.Column("fingerprint", text, nullable=False),
        sa.Column("request", text, nullable=False),
        sa.Column("event", text, nullable=False),
        sa.Column("epsilon", sa.Double, nullable=False),
        sa.Column("delta", sa.Double, nullable=False),
        sa.Column("charge", sa.LargeBinary, nullable=False),
        sa.Column("accounting", text, nullable=False),
        sa.Column("state", text, nullable=False),
        sa.Column("artifact_digest", text),
        sa.Column("created_at", text, nullable=False),
        sa.Column("updated_at", text, nullable=False),
    )
    op.create_table(
        "step",
        sa.Column("release_id", text, sa.ForeignKey("release.id"), primary_key=True),
        sa.Column("step", sa.Integer, primary_key=True),
        sa.Column("digest", text, nullable=False),
    )
    op.create_table(
        "event",
        sa.Column("seq", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("population", text),
        sa.Column("release_id", text),
        sa.Column("name", text, nullable=False),
        sa.Column("detail", text, nullable=False),
        sa.Column("at", text, nullable=False),
        sa.Column("actor", text, nullable=False),
        sa.Column("prev_hash", text, nullable=False),
        sa.Column("hash", text, nullable=False),
    )
    op.create_table(
        "version",
        sa.Column("name", text, primary_key=True),
        sa.Column("version", sa.Integer, primary_key=True),
        sa.Column("digest", text, nullable=False),
        sa.Column("release_id", text, sa.ForeignKey("release.id"), nullable=False),
        sa.Column("created_at", text, nullable=False),
        sa.UniqueConstraint("name", "release_id"),
    )
    op.create_table(
        "alias",
        sa.Column("name", text, primary_key=True),
        sa.Column("alias", text, primary_key=True),
        sa.Column("version", sa.Integer, nullable=False),
    )


def _sqlite_rules(rule: str) -> None:
    for table, taken in TAKEN.items():
        op.execute(  # REPLACE would delete the old row, and fire no trigger of deletion
            f"CREATE TRIGGER {table}_no_replace BEFORE INSERT ON {table} "
            f"WHEN EXISTS (SELECT 1 FROM {table} WHERE {taken}) "
            f"BEGIN SELECT RAISE(ABORT, 'rows of {table} are never replaced'); END"
        )
    for table in APPEND_ONLY:
        for verb in ("UPDATE", "DELETE"):
            op.execute(
                f"CREATE TRIGGER {table}_no_{verb.lower()} BEFORE {verb} ON {table} "
                f"BEGIN SELECT RAISE(ABORT, 'rows of {table} never change'); END"
            )
    op.execute(
        f"CREATE TRIGGER release_forward BEFORE UPDATE ON release WHEN NOT ({rule}) "
        "BEGIN SELECT RAISE(ABORT, 'a release only moves forward'); END"
    )
    op.execute(
        "CREATE TRIGGER release_no_delete BEFORE DELETE ON release "
        "BEGIN SELECT RAISE(ABORT, 'a release is never deleted'); END"
    )


def _postgresql_rules(rule: str) -> None:
    op.execute(
        "CREATE FUNCTION dpca_never() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN RAISE EXCEPTION 'rows of % never change', TG_TABLE_NAME; END $$"
    )
    for table in (*APPEND_ONLY, "release"):
        verbs = "DELETE" if table == "release" else "UPDATE OR DELETE"
        op.execute(f"CREATE TRIGGER {table}_never BEFORE {verbs} ON {table} FOR EACH ROW EXECUTE FUNCTION dpca_never()")
        op.execute(f"CREATE TRIGGER {table}_no_truncate BEFORE TRUNCATE ON {table} EXECUTE FUNCTION dpca_never()")
    op.execute(
        "CREATE FUNCTION dpca_forward() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN RAISE EXCEPTION 'a release only moves forward'; END $$"
    )
    op.execute(
        f"CREATE TRIGGER release_forward BEFORE UPDATE ON release FOR EACH ROW WHEN (NOT ({rule})) "
        "EXECUTE FUNCTION dpca_forward()"
    )
