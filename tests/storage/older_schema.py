"""The database of today, taken back to the schema of an earlier migration."""

import sqlalchemy as sa

ADDED = {
    "0002": ("ALTER TABLE snapshot DROP COLUMN seq", "ALTER TABLE release DROP COLUMN seq"),
    "0003": ("DROP TABLE pointer",),
    "0004": ("DROP TABLE joint_version",),
    "0005": (
        "DROP TABLE arrival_segment",
        "DROP TABLE arrival_epoch",
        "DROP INDEX ix_snapshot_number",
        "ALTER TABLE snapshot DROP COLUMN number",
        "ALTER TABLE snapshot DROP COLUMN epoch",
    ),
    "0006": ("DROP TABLE tick_answer", "DROP TABLE tick", "DROP TABLE stream_charge", "DROP TABLE stream"),
    "0007": ("DROP TABLE signed_pointer",),
}
"""What takes away the tables and columns that each migration added."""


def take_back(connection: sa.Connection, *, to: str) -> None:
    """Take away what the migrations after `to` added."""
    for migration in sorted(ADDED, reverse=True):
        if migration > to:
            for statement in ADDED[migration]:
                connection.exec_driver_sql(statement)
    connection.exec_driver_sql(f"UPDATE alembic_version SET version_num = '{to}'")
