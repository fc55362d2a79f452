"""The ledger knows which pointer files it wrote, so that opening it reads none of them again.

The table begins empty: each pointer file of an older home is read once more, in case a crash left it behind.
"""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the table of pointer files that say what the rows say."""
    op.create_table(
        "pointer",
        sa.Column("name", sa.Text, primary_key=True),
        sa.Column("tag", sa.Text, nullable=False),
    )
