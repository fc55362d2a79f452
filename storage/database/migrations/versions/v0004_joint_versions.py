"""A version may come from releases of several ledgers: a joint release over sites, none of which is charged here."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

_TABLE = "joint_version"


def upgrade() -> None:
    """Add the table of versions of joint releases, whose rows never change."""
    op.create_table(
        _TABLE,
        sa.Column("name", sa.Text, primary_key=True),
        sa.Column("version", sa.Integer, primary_key=True),
        sa.Column("digest", sa.Text, nullable=False),
        sa.Column("joint_id", sa.Text, nullable=False, index=True),
        sa.Column("sites", sa.Text, nullable=False),
        sa.Column("created_at", sa.Text, nullable=False),
        sa.UniqueConstraint("name", "joint_id"),
    )
    if op.get_bind().dialect.name == "postgresql":
        op.execute(
            f"CREATE TRIGGER {_TABLE}_never BEFORE UPDATE OR DELETE ON {_TABLE} "
            "FOR EACH ROW EXECUTE FUNCTION dpca_never()"
        )
        op.execute(f"CREATE TRIGGER {_TABLE}_no_truncate BEFORE TRUNCATE ON {_TABLE} EXECUTE FUNCTION dpca_never()")
        return
    taken = "name = NEW.name AND (version = NEW.version OR joint_id = NEW.joint_id)"
    op.execute(
        f"CREATE TRIGGER {_TABLE}_no_replace BEFORE INSERT ON {_TABLE} "
        f"WHEN EXISTS (SELECT 1 FROM {_TABLE} WHERE {taken}) "
        f"BEGIN SELECT RAISE(ABORT, 'rows of {_TABLE} are never replaced'); END"
    )
    for verb in ("UPDATE", "DELETE"):
        op.execute(
            f"CREATE TRIGGER {_TABLE}_no_{verb.lower()} BEFORE {verb} ON {_TABLE} "
            f"BEGIN SELECT RAISE(ABORT, 'rows of {_TABLE} never change'); END"
        )
