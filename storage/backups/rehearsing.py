"""Rehearse a backup: restore it into a throw-away place, look at everything that it holds, and remove it again.

SQLite is rehearsed in a file of a temporary folder; PostgreSQL in a schema of its own beside the ledger's tables, which
is dropped at the end. What is rehearsed is what `restore_backup` does, and what the next command would read.
"""

import secrets
import tempfile
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import sqlalchemy as sa
from sqlalchemy.exc import ProgrammingError

from storage.artifacts.files import read_artifact
from storage.backends.base import Place
from storage.backends.local import LocalPlace
from storage.backups.restoring import Target, restore_backup
from storage.backups.stored_files import ARTIFACTS
from storage.database import tables
from storage.database.engine import connect_as_is, reading, schema_transaction
from storage.errors import Corrupt, Refused
from storage.ledger import journal
from storage.ledger.balance import statement_of
from storage.ledger.journal_check import compare
from storage.ledger.witness import Witness
from storage.registry.agreement import compare_artifacts
from storage.registry.pointers import Pointer, read_names


@dataclass(frozen=True, slots=True, kw_only=True)
class Rehearsal:
    """What a rehearsal proved: so much of one ledger was restored, and is what was backed up."""

    ledger: str
    entries: int
    versions: int
    populations: int
    missing: int
    database: str
    seconds: float


def rehearse_backup(
    source: Path, *, database_url: str, passphrase: str | None = None, key: str | None = None
) -> Rehearsal:
    """Restore a backup elsewhere, check it, and leave nothing.

    Parameters
    ----------
    source : Path
    database_url : str
        The configured one: a backup for PostgreSQL is rehearsed on that server.
    passphrase, key : str, optional
        As for `storage.backups.signatures.open_backup`.

    Raises
    ------
    Corrupt
        If anything that was restored is not what was backed up.
    """
    began = time.monotonic()
    with _throw_away(database_url) as target:
        parts, known = ("database", "store"), {"passphrase": passphrase, "key": key}
        contents = restore_backup(source, into=target, only=parts, datasets=False, **known)
        engine = connect_as_is(target.database_url)
        with reading(engine) as connection:
            _check_locked(connection, target.keys, entries=contents.entries)
            found = journal.head(connection)
            if (found.ledger, found.seq, found.hash) != (contents.ledger, contents.entries, contents.head):
                raise _differs("the journal ends otherwise")
            if compare(connection).entries != contents.entries:
                raise _differs("the journal has gaps")
            populations = connection.execute(sa.select(tables.budget.c.population)).scalars().all()
            if {name: statement_of(connection, name, newest=0).spent for name in populations} != dict(contents.spent):
                raise _differs("what was spent is another number")
            versions = _check_pointers(connection, target.place)
            _check_artifacts(connection, target.place, missing=contents.missing)
            if not contents.missing:
                compare_artifacts(connection, target.place)
    return Rehearsal(
        ledger=contents.ledger,
        entries=contents.entries,
        versions=versions,
        populations=len(populations),
        missing=len(contents.missing),
        database=engine.dialect.name,
        seconds=round(time.monotonic() - began, 3),
    )


def _check_locked(connection: sa.Connection, keys: Path, *, entries: int) -> None:
    """Check that the restored ledger spends nothing before it is accepted."""
    try:
        Witness(keys).check(connection, journal.head(connection))
    except Refused:
        return
    if entries > 1:
        raise _differs("the restored ledger is not locked")


def _check_pointers(connection: sa.Connection, place: Place) -> int:
    """Check that pointer files show no version but those of the rows; return the number of these."""
    rows = connection.execute(sa.select(tables.published)).all()
    known = {(row.name, row.version): row.digest for row in rows}
    for name in read_names(place):
        for version, digest in Pointer.read(place, name).versions.items():
            if known.get((name, version)) != digest:
                raise _differs(f"the registry shows another {name}@{version}")
    return len(known)


def _check_artifacts(connection: sa.Connection, place: Place, *, missing: Collection[str]) -> None:
    """Check each byte of the artifacts that were not lost before."""
    digests = connection.execute(sa.select(tables.published.c.digest).distinct()).scalars().all()
    for digest in digests:
        if f"{ARTIFACTS}/{digest}" not in missing:
            try:
                read_artifact(place, digest)
            except Corrupt:
                raise _differs(f"artifact {digest} is not whole") from None


@contextmanager
def _throw_away(url: str) -> Iterator[Target]:
    with (
        tempfile.TemporaryDirectory(prefix="dpca-rehearsal-") as folder,
        _throw_away_database(url, Path(folder)) as own,
    ):
        home = Path(folder)
        yield Target(home=home, database_url=own, keys=home / "keys", place=LocalPlace(home))


@contextmanager
def _throw_away_database(url: str, folder: Path) -> Iterator[str]:
    engine = connect_as_is(url)
    if engine.dialect.name == "sqlite":
        yield f"sqlite:///{folder / 'dpca.sqlite'}"
        return
    schema = f"dpca_rehearsal_{secrets.token_hex(8)}"
    try:
        with schema_transaction(engine) as connection:
            connection.exec_driver_sql(f"CREATE SCHEMA {schema}")
    except ProgrammingError:
        raise Refused(
            "the database's user may not make a schema, and PostgreSQL is rehearsed in one of its own; GRANT CREATE ON "
            "DATABASE to it, or rehearse on SQLite with DPCA_DATABASE_URL unset."
        ) from None
    try:
        own = sa.make_url(url).update_query_dict({"options": f"-csearch_path={schema}"})
        yield own.render_as_string(hide_password=False)
    finally:
        with schema_transaction(engine) as connection:
            connection.exec_driver_sql(f"DROP SCHEMA {schema} CASCADE")


def _differs(found: str) -> Corrupt:
    return Corrupt(f"the backup does not restore what it was made of ({found}); make another one.")
