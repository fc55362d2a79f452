"""Tables of the ledger, the catalog and the registry, with the triggers that protect them."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

TAKEN = {
    "event": "seq = NEW.seq",
    "version": "name = NEW.name AND (version = NEW.version OR release_id = NEW.release_id)",
    "joint_version": "name = NEW.name AND (version = NEW.version OR joint_id = NEW.joint_id)",
    "budget": "population = NEW.population",
    "step": "release_id = NEW.release_id AND step = NEW.step",
    "ledger": "id = NEW.id",
    "stream": "id = NEW.id",
    "stream_charge": "release_id = NEW.release_id OR (stream = NEW.stream AND ticks = NEW.ticks)",
    "tick": "release_id = NEW.release_id OR (stream = NEW.stream AND (tick = NEW.tick OR slot = NEW.slot))",
    "tick_answer": "stream = NEW.stream AND tick = NEW.tick",
}
"""The tables whose rows never change, each with the SQL condition for an old row whose keys a new row repeats."""
ONCE = {
    "arrival_epoch": "OLD.lost_at IS NULL AND NEW.id = OLD.id AND NEW.population = OLD.population",
    "arrival_segment": "OLD.number IS NULL AND NEW.id = OLD.id AND NEW.epoch = OLD.epoch",
}
"""The tables whose rows change only once, each with the SQL condition that allows the change.

An arrival epoch (a table of ids that ingests have seen) changes when it is marked as lost. An arrival segment (the ids
that first appeared in one ingest) changes when it gets the number of its ingest.
"""
FORWARD = (
    "(OLD.state = NEW.state"
    " OR (OLD.state = 'reserved' AND NEW.state IN ('noising', 'abandoned'))"
    " OR (OLD.state = 'noising' AND NEW.state IN ('committed', 'closed')))"
)
FIXED = (
    *("id", "population", "snapshot_id", "run_key", "fingerprint", "request", "event"),
    *("epsilon", "delta", "charge", "accounting", "created_at"),
)
CHARGED = " OR ".join(
    (
        "(OLD.state = 'abandoned') <> (NEW.state = 'abandoned')",
        *(f"OLD.{column} <> NEW.{column}" for column in ("charge", "population", "accounting")),
    )
)
"""The SQL condition for an update of a release after which triggers remove the population's cached total charge."""


def upgrade() -> None:
    """Create all tables, indexes and triggers."""
    _create_tables()
    same = " AND ".join(f"OLD.{column} = NEW.{column}" for column in FIXED)
    once = "(OLD.artifact_digest IS NULL OR OLD.artifact_digest = NEW.artifact_digest)"
    whole = "((NEW.artifact_digest IS NULL) = (NEW.state <> 'committed'))"
    # COALESCE makes an unknown (NULL) result a violation of the rule
    rule = f"COALESCE({FORWARD} AND {same} AND {once} AND {whole}, FALSE)"
    if op.get_bind().dialect.name == "postgresql":
        op.create_index("ix_release_newest", "release", ["population", sa.text("seq NULLS FIRST")])
        _postgresql_rules(rule)
    else:
        op.create_index("ix_release_newest", "release", ["population", "seq"])  # SQLite sorts NULL first by default
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
        sa.Column("seq", sa.BigInteger),
        sa.Column("number", sa.BigInteger, index=True, unique=True),
        sa.Column("epoch", text),
    )
    op.create_table(
        "arrival_epoch",
        sa.Column("id", text, primary_key=True),
        sa.Column("population", text, nullable=False, index=True),
        sa.Column("created_at", text, nullable=False),
        sa.Column("lost_at", text),
    )
    op.create_table(
        "arrival_segment",
        sa.Column("id", text, primary_key=True),
        sa.Column("epoch", text, sa.ForeignKey("arrival_epoch.id"), nullable=False, index=True),
        sa.Column("number", sa.BigInteger, unique=True),
        sa.Column("digest", text),
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
        sa.Column("seq", sa.BigInteger),
    )
    op.create_table(
        "charged_total",
        sa.Column("population", text, sa.ForeignKey("budget.population"), primary_key=True),
        sa.Column("charge", text, nullable=False),
        sa.Column("accounting", text, nullable=False),
        sa.Column("releases", sa.BigInteger, nullable=False),
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
    op.create_index("ix_event_name", "event", ["name", "population", "seq"])
    op.create_index("ix_event_release_id", "event", ["release_id", "name"])
    op.create_table(
        "version",
        sa.Column("name", text, primary_key=True),
        sa.Column("version", sa.Integer, primary_key=True),
        sa.Column("digest", text, nullable=False, index=True),
        sa.Column("release_id", text, sa.ForeignKey("release.id"), nullable=False, index=True),
        sa.Column("created_at", text, nullable=False),
        sa.UniqueConstraint("name", "release_id"),
    )
    op.create_table(
        "joint_version",
        sa.Column("name", text, primary_key=True),
        sa.Column("version", sa.Integer, primary_key=True),
        sa.Column("digest", text, nullable=False, index=True),
        sa.Column("joint_id", text, nullable=False, index=True),
        sa.Column("sites", text, nullable=False),
        sa.Column("created_at", text, nullable=False),
        sa.UniqueConstraint("name", "joint_id"),
    )
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
    op.create_table(
        "alias",
        sa.Column("name", text, primary_key=True),
        sa.Column("alias", text, primary_key=True),
        sa.Column("version", sa.Integer, nullable=False),
    )
    op.create_table(
        "pointer",
        sa.Column("name", text, primary_key=True),
        sa.Column("tag", text, nullable=False),
    )
    op.create_table(
        "signed_pointer",
        sa.Column("name", text, primary_key=True),
        sa.Column("number", sa.BigInteger, nullable=False),
        sa.Column("tag", text),
    )


def _sqlite_rules(rule: str) -> None:
    once = dict.fromkeys(ONCE, "id = NEW.id")
    for table, taken in (TAKEN | once | {"release": "id = NEW.id OR run_key = NEW.run_key"}).items():
        op.execute(  # INSERT OR REPLACE would delete the old row without firing the trigger against deletion
            f"CREATE TRIGGER {table}_no_replace BEFORE INSERT ON {table} "
            f"WHEN EXISTS (SELECT 1 FROM {table} WHERE {taken}) "
            f"BEGIN SELECT RAISE(ABORT, 'rows of {table} are never replaced'); END"
        )
    for table in TAKEN:
        for verb in ("UPDATE", "DELETE"):
            op.execute(
                f"CREATE TRIGGER {table}_no_{verb.lower()} BEFORE {verb} ON {table} "
                f"BEGIN SELECT RAISE(ABORT, 'rows of {table} never change'); END"
            )
    for table, allowed in ONCE.items():
        op.execute(
            f"CREATE TRIGGER {table}_once BEFORE UPDATE ON {table} WHEN NOT ({allowed}) "
            f"BEGIN SELECT RAISE(ABORT, 'rows of {table} change once'); END"
        )
        op.execute(
            f"CREATE TRIGGER {table}_no_delete BEFORE DELETE ON {table} "
            f"BEGIN SELECT RAISE(ABORT, 'rows of {table} are never deleted'); END"
        )
    op.execute(
        f"CREATE TRIGGER release_forward BEFORE UPDATE ON release WHEN NOT ({rule}) "
        "BEGIN SELECT RAISE(ABORT, 'a release only moves forward'); END"
    )
    op.execute(
        "CREATE TRIGGER release_no_delete BEFORE DELETE ON release "
        "BEGIN SELECT RAISE(ABORT, 'a release is never deleted'); END"
    )
    for verb, row in {"INSERT": "NEW", "DELETE": "OLD"}.items():
        op.execute(
            f"CREATE TRIGGER charged_total_{verb.lower()} AFTER {verb} ON release "
            f"BEGIN DELETE FROM charged_total WHERE population = {row}.population; END"
        )
    op.execute(
        f"CREATE TRIGGER charged_total_update AFTER UPDATE ON release WHEN {CHARGED} "
        "BEGIN DELETE FROM charged_total WHERE population IN (OLD.population, NEW.population); END"
    )


def _postgresql_rules(rule: str) -> None:
    op.execute(
        "CREATE FUNCTION dpca_never() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN RAISE EXCEPTION 'rows of % never change', TG_TABLE_NAME; END $$"
    )
    for table in (*TAKEN, *ONCE, "release"):
        verbs = "UPDATE OR DELETE" if table in TAKEN else "DELETE"
        op.execute(f"CREATE TRIGGER {table}_never BEFORE {verbs} ON {table} FOR EACH ROW EXECUTE FUNCTION dpca_never()")
        op.execute(f"CREATE TRIGGER {table}_no_truncate BEFORE TRUNCATE ON {table} EXECUTE FUNCTION dpca_never()")
    for table, allowed in ONCE.items():
        op.execute(
            f"CREATE TRIGGER {table}_once BEFORE UPDATE ON {table} FOR EACH ROW WHEN (NOT ({allowed})) "
            "EXECUTE FUNCTION dpca_never()"
        )
    op.execute(
        "CREATE FUNCTION dpca_forward() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN RAISE EXCEPTION 'a release only moves forward'; END $$"
    )
    op.execute(
        f"CREATE TRIGGER release_forward BEFORE UPDATE ON release FOR EACH ROW WHEN (NOT ({rule})) "
        "EXECUTE FUNCTION dpca_forward()"
    )
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
        f"CREATE TRIGGER charged_total_update AFTER UPDATE ON release FOR EACH ROW WHEN ({CHARGED}) "
        "EXECUTE FUNCTION dpca_charged()"
    )
