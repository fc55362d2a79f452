"""The ledger knows the number and the tag of each signed pointer that it wrote.

The table begins empty: a name of an older home is signed when it is published next, or by an operator's command.
"""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the table of signed pointers."""
    op.create_table(
        "signed_pointer",
        sa.Column("name", sa.Text, primary_key=True),
        sa.Column("number", sa.BigInteger, nullable=False),
        sa.Column("tag", sa.Text),
    )
