"""The rows of a database as text, one object a line, and back: the same for SQLite and PostgreSQL.

A copy is taken in one snapshot of the database, so it is one point of the journal. It is read back into the schema that
it was taken from.
"""

import json
from collections.abc import Iterator
from itertools import batched
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import OperationalError, SQLAlchemyError

from storage.database import tables
from storage.database.engine import HEAD, migrate, migration_of
from storage.errors import Corrupt, Refused

_LEFT_OUT = {
    "pointer",  # tags of one store's files; a name without a row has a file to be written
    "charged_total",  # what the releases add up to
}
_AT_ONCE = 1_000


def write_rows(connection: sa.Connection, folder: Path) -> None:
    """Write every table to a file of a new folder."""
    folder.mkdir()
    for table in tables.metadata.sorted_tables:
        if table.name not in _LEFT_OUT:
            rows = connection.execute(sa.select(table), execution_options={"yield_per": _AT_ONCE}).mappings()
            with (folder / f"{table.name}.jsonl").open("w", encoding="utf-8") as file:
                for row in rows:
                    file.write(json.dumps({name: _as_text(value) for name, value in row.items()}) + "\n")


def read_rows(connection: sa.Connection, folder: Path, *, migration: str) -> None:
    """Fill an empty database with what `write_rows` wrote, in the caller's transaction.

    Raises
    ------
    Refused
        As `refuse_full`.
    Corrupt
        If they are not the rows of one.
    """
    refuse_full(connection, migration=migration)
    migrate(connection)
    try:
        _fill(connection, folder)
    except OperationalError:  # the database's own failure
        raise
    except (AttributeError, KeyError, OSError, TypeError, ValueError, SQLAlchemyError) as error:
        raise Corrupt(
            f"the rows in {folder} are not those of a ledger ({type(error).__name__}); a backup is restored as it was "
            "written: use another one."
        ) from None


def _fill(connection: sa.Connection, folder: Path) -> None:
    names = [path.stem for path in folder.glob("*.jsonl")]
    found = sa.MetaData()
    found.reflect(connection, only=names)
    for table in found.sorted_tables:
        binary = {column.name for column in table.c if isinstance(column.type, sa.LargeBinary)}
        for rows in batched(_lines(folder / f"{table.name}.jsonl"), _AT_ONCE):
            decoded = [{name: _as_value(row[name], is_binary=name in binary) for name in row} for row in rows]
            connection.execute(table.insert(), decoded)


def refuse_full(connection: sa.Connection, *, migration: str) -> None:
    """Refuse rows of another version, and a database that holds a ledger or the tables of another version.

    Raises
    ------
    Refused
        If either is so.
    """
    if migration != HEAD:
        raise Refused(
            f"the rows of the backup have schema {migration}, of another version of dpca, and this one restores schema "
            f"{HEAD}; restore them with that version."
        )
    standing = migration_of(connection)
    if standing is None:
        return
    held = connection.exec_driver_sql("SELECT id FROM ledger").scalars().all()
    if held or standing != migration:
        what = f"ledger {held[0][:8]}" if held else "the empty tables of another version"
        raise Refused(
            f"the database holds {what}, and a backup is restored into an empty one; move it away, or set "
            "DPCA_DATABASE_URL to an empty one."
        )


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    with path.open(encoding="utf-8") as file:
        for line in file:
            yield json.loads(line)


def _as_text(value: Any) -> Any:
    return bytes(value).hex() if isinstance(value, (bytes, memoryview)) else value


def _as_value(value: Any, *, is_binary: bool) -> Any:
    return bytes.fromhex(value) if is_binary and value is not None else value
