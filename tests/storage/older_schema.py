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
    "0008": (
        *(f"DROP INDEX ix_{name}" for name in ("version_release_id", "version_digest", "joint_version_digest")),
        *(f"DROP INDEX ix_{name}" for name in ("event_name", "event_release_id", "release_newest")),
        "DROP TABLE charged_total",
    ),
}
"""What takes away the tables and columns that each migration added."""
RULES: dict[str, dict[str, tuple[str, ...]]] = {
    "sqlite": {"0008": tuple(f"DROP TRIGGER charged_total_{verb}" for verb in ("insert", "update", "delete"))},
    "postgresql": {"0008": ("DROP FUNCTION dpca_charged() CASCADE",)},
}
"""What takes away the triggers that each added to tables of an earlier one."""


def take_back(connection: sa.Connection, *, to: str) -> None:
    """Take away what the migrations after `to` added."""
    for migration in sorted(ADDED, reverse=True):
        if migration > to:
            for statement in (*RULES[connection.dialect.name].get(migration, ()), *ADDED[migration]):
                connection.exec_driver_sql(statement)
    connection.exec_driver_sql(f"UPDATE alembic_version SET version_num = '{to}'")
