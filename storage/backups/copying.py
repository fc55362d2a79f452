"""Creation, restoration and rehearsal of backups.

A backup contains the state of the ledger as of one journal entry. The backup appears completely or not at all, and
other processes continue while it is made. Writers of the ledger wait while pointer files are copied, so that pointers
and database rows describe the same state. All other copied files never change once they are written.

A backup is restored into an empty target. The restored ledger is locked until an operator accepts it. The witness is a
file outside the home that records the newest journal entry. It is never restored, so it does not match the restored
database, and this mismatch locks the ledger. Keys and files are restored first, and the database last, in one
transaction. Therefore an interrupted restore leaves no ledger.

A rehearsal restores a backup into a temporary target, checks the restored contents, and removes the target. With
SQLite, the temporary database is a file in a temporary folder. With PostgreSQL, it is a separate schema on the same
server, which is dropped at the end. A rehearsal runs `restore_backup`, and then reads everything that the first command
after a real restore would read.

The dates of the last backup and the last rehearsal are stored in this machine's state folder, where `dpca doctor` reads
them.
"""

import json
import secrets
import shutil
import tempfile
import time
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from secrets import token_hex
from typing import Any, Self
from uuid import uuid4

import sqlalchemy as sa
from sqlalchemy.exc import ProgrammingError

from dpca import home
from dpca.artifacts.files import read_artifact
from dpca.backends.atomic_files import FOLDER, make_folder, move_folder, write_atomically, writing
from dpca.backends.base import Place
from dpca.backends.local import LocalPlace
from dpca.errors import Corrupt, Invalid, Refused
from dpca.home import STAGING, key_folder, state_folder
from dpca.registry.pointers import Pointer, read_names
from storage.backups.contents import (
    ARTIFACTS,
    MANIFEST,
    ROWS,
    SEALED,
    SIGNATURE,
    STORE,
    Contents,
    copy_pointers,
    copy_store,
    list_files,
    put_back,
    read_rows,
    refuse_full_database,
    refuse_full_place,
    write_rows,
)
from storage.backups.signatures import open_backup, seal, sealable_keys, sign_manifest, unseal
from storage.database import tables
from storage.database.engine import connect_as_is, migration_of, reading, schema_transaction, transaction
from storage.ledger import journal
from storage.ledger.balance import statement_of
from storage.ledger.checks import compare
from storage.ledger.journal import now
from storage.ledger.trail_export import public_key, signing_key
from storage.ledger.witness import Witness
from storage.registry.agreement import compare_artifacts
from storage.workspace import Workspace


def note_date(ledger: str, *, what: str, entries: int) -> None:
    """Record the current time as the time of a ledger's last backup or last rehearsal (test restore).

    ``what`` is ``made`` for a backup or ``rehearsed`` for a rehearsal. ``entries`` is the number of journal entries in
    the backup.
    """
    path = _path(ledger)
    with writing(path.parent):
        make_folder(path.parent)
        dates = {**read_dates(ledger), what: {"at": now(), "entries": entries}}
        write_atomically(path, json.dumps(dates).encode())


def read_dates(ledger: str) -> dict[str, Any]:
    """Return when a backup of a ledger was last ``made``, and when one was last ``rehearsed`` (restored as a test).

    Each of the two keys maps to the time and the number of journal entries of that backup. A key is absent if no date
    is known.
    """
    try:
        found = json.loads(_path(ledger).read_bytes())
    except (OSError, RecursionError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _path(ledger: str) -> Path:
    return state_folder() / ledger / "backups.json"


def create_backup(to: Path, *, datasets: bool = False, passphrase: str | None = None) -> Contents:
    """Write a backup of the configured home, including its database and store, to a new folder.

    Signing keys are included only if there is a passphrase.

    Parameters
    ----------
    to : Path
        A new folder, outside the home.
    datasets : bool
        Whether to copy the rows of datasets too.
    passphrase : str, optional
        Encrypts the signing keys, and authenticates the manifest by a MAC. Without a passphrase, no key is copied.

    Raises
    ------
    Refused
        If the folder exists or is inside the home, or if the ledger is locked.
    Corrupt
        If the journal's hash chain is broken.
    Unavailable
        If a file or the database cannot be read or written.
    """
    workspace, to = Workspace.open(), to.absolute()
    if to.exists() or to.is_symlink():
        raise Refused(f"{to} exists, and a backup is never overwritten; choose a new folder.")
    if to.resolve().is_relative_to(workspace.home.resolve()):
        raise Refused(f"{to} is part of the home and would be lost with it; choose a folder elsewhere.")
    staged = to.with_name(f".{uuid4().hex}.tmp")
    try:
        with writing(to.parent):
            make_folder(to.parent)
            staged.mkdir(mode=FOLDER)
            private = signing_key(key_folder())
            contents = _copy(workspace, staged, datasets=datasets, passphrase=passphrase, signed_by=public_key(private))
            manifest = contents.encode()
            (staged / MANIFEST).write_bytes(manifest)
            (staged / SIGNATURE).write_bytes(sign_manifest(manifest, private=private, passphrase=passphrase))
            if not move_folder(staged, to):
                raise Refused(f"{to} exists, and a backup is never overwritten; choose a new folder.")
    finally:
        shutil.rmtree(staged, ignore_errors=True)
    return contents


def _copy(workspace: Workspace, staged: Path, *, datasets: bool, passphrase: str | None, signed_by: str) -> Contents:
    engine, place = workspace.ledger.engine, workspace.store
    with ExitStack() as stack:
        # this transaction holds the ledger's lock, so writers wait while pointer files are copied
        with transaction(engine):
            connection = stack.enter_context(reading(engine))
            # reading the journal's head begins the database snapshot of this connection
            head = journal.head(connection)
            lost = copy_pointers(place, staged / STORE)
        if journal.verify(connection) != head.seq:
            raise Corrupt("the journal lacks entries; restore the newest copy of the database, and then back it up.")
        write_rows(connection, staged / ROWS)
        lost += copy_store(connection, place, staged / STORE, ledger=head.ledger, datasets=datasets)
        populations = connection.execute(sa.select(tables.budget.c.population)).scalars().all()
        spent = {name: statement_of(connection, name, newest=0).spent for name in sorted(populations)}
        migration = migration_of(connection)
    keys = sealable_keys(key_folder()) if passphrase is not None else {}
    if passphrase is not None and keys:
        (staged / SEALED).write_bytes(seal(keys, passphrase=passphrase, ledger=head.ledger))
    return Contents(
        at=journal.now(),
        code_version=version("dpca-pipeline"),
        ledger=head.ledger,
        entries=head.seq,
        head=head.hash,
        migration=str(migration),
        database=engine.dialect.name,
        datasets=datasets,
        keys=tuple(sorted(keys)),
        spent=spent,
        missing=tuple(sorted(lost)),
        files=list_files(staged),
        signed_by=signed_by,
    )


PARTS = ("database", "keys", "store")


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The locations into which a backup is restored.

    Attributes
    ----------
    home : Path, the home folder
    database_url : str, URL of the database
    keys : Path, the folder of keys
    place : Place, the store of artifacts and datasets
    """

    home: Path
    database_url: str
    keys: Path
    place: Place

    @classmethod
    def configured(cls) -> Self:
        """Return the configured home, database, key folder and store; the home folder is created if necessary."""
        found = home.writable_home()
        return cls(home=found, database_url=home.database_url(), keys=home.key_folder(), place=home.store())


def restore_backup(
    source: Path,
    *,
    into: Target,
    only: Collection[str] = PARTS,
    passphrase: str | None = None,
    key: str | None = None,
    datasets: bool = True,
) -> Contents:
    """Restore the database, the keys and the store of a backup, or only some of these three parts.

    Parameters
    ----------
    source : Path
        The folder of the backup. `storage.backups.signatures.open_backup` checks its signature and files first.
    into : Target
        The locations to write to. Each part that is restored must be empty there.
    only : collection of str
        The parts to restore, out of "database", "keys" and "store".
    passphrase : str, optional
        Decrypts the signing keys of the backup; without a passphrase, no key is restored.
    key : str, optional
        The published public key of the ledger's audit trail, in hex. The backup must be signed by this key.
    datasets : bool
        Whether to restore the rows of datasets, if the backup contains them.

    Raises
    ------
    Corrupt
        If the backup is damaged.
    Refused
        If a part of the target contains anything except files that an interrupted restore of this backup left. Also if
        the signer of the backup is unknown. In both cases nothing is changed.
    """
    if unknown := sorted(set(only) - set(PARTS)):
        raise Invalid(f"{unknown[0]!r} is no part of a backup; the parts are {', '.join(PARTS)}: choose among these.")
    contents = open_backup(source, key=key, passphrase=passphrase)
    keys: dict[str, bytes] = {}
    if "keys" in only and passphrase is not None and contents.keys:
        sealed = b"".join(contents.pieces(source, SEALED))
        keys = unseal(sealed, passphrase=passphrase, ledger=contents.ledger)
    engine = connect_as_is(into.database_url) if "database" in only else None
    if engine is not None:
        with schema_transaction(engine) as connection:
            refuse_full_database(connection, migration=contents.migration)
    if "store" in only:
        refuse_full_place(into.place, contents)
    for name, secret in keys.items():
        if (into.keys / name).exists() and (into.keys / name).read_bytes() != secret:
            raise Refused(
                f"{into.keys / name} exists and differs from the key in the backup; a restore never overwrites a key: "
                "move the file away, or restore the other parts with --only."
            )
    with writing(into.home):
        if "store" in only:
            put_back(source, contents, into.place, home=into.home, datasets=datasets)
        for name, secret in keys.items():
            make_folder(into.keys)
            write_atomically(into.keys / name, secret)
        if engine is not None:
            with _copied_rows(source, contents, into.home) as copied, schema_transaction(engine) as connection:
                read_rows(connection, copied, migration=contents.migration)
    return contents


@contextmanager
def _copied_rows(source: Path, contents: Contents, home: Path) -> Iterator[Path]:
    """Yield a temporary folder in the home with copies of the backup's table files; remove it at the end.

    Each file is compared with the manifest while it is copied, so the restore reads exactly the checked bytes.
    """
    staged = home / STAGING / token_hex(16)
    try:
        make_folder(staged)
        for path in contents.files:
            if path.startswith(f"{ROWS}/"):
                contents.copy(source, path, staged / path.removeprefix(f"{ROWS}/"))
        yield staged
    finally:
        shutil.rmtree(staged, ignore_errors=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rehearsal:
    """The result of a successful rehearsal (a test restore of a backup).

    Each count is the number of restored items that were compared with the backup. The exception is ``missing``, the
    number of files that were already missing when the backup was made.
    """

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
    """Restore a backup into a temporary target, check it, and remove the target.

    Parameters
    ----------
    source : Path
    database_url : str
        The URL of the configured database. If it is PostgreSQL, the rehearsal creates a temporary schema there.
    passphrase, key : str, optional
        The passphrase of the backup, and the public key by which it must be signed; see
        `storage.backups.signatures.open_backup`.

    Raises
    ------
    Corrupt
        If anything that was restored differs from the backup.
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
                raise _differs("the restored journal does not end with the same entry")
            if compare(connection).entries != contents.entries:
                raise _differs("the restored journal lacks entries")
            populations = connection.execute(sa.select(tables.budget.c.population)).scalars().all()
            if {name: statement_of(connection, name, newest=0).spent for name in populations} != dict(contents.spent):
                raise _differs("the spent epsilon of a population is not the same")
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
    """Check that a newly restored ledger is locked, since no operator has accepted it yet."""
    try:
        Witness(keys).check(connection, journal.head(connection))
    except Refused:
        return
    if entries > 1:
        raise _differs("the restored ledger is not locked, although no operator has accepted it")


def _check_pointers(connection: sa.Connection, place: Place) -> int:
    """Check that each version in a restored pointer file has a row in the database, with the same digest.

    Return the number of published versions in the database.
    """
    rows = connection.execute(sa.select(tables.published)).all()
    known = {(row.name, row.version): row.digest for row in rows}
    for name in read_names(place):
        for number, digest in Pointer.read(place, name).versions.items():
            if known.get((name, number)) != digest:
                raise _differs(f"{name}@{number} of the registry is not in the database, or has another digest there")
    return len(known)


def _check_artifacts(connection: sa.Connection, place: Place, *, missing: Collection[str]) -> None:
    """Check the content of each restored artifact, except artifacts that the backup already lacked."""
    digests = connection.execute(sa.select(tables.published.c.digest).distinct()).scalars().all()
    for digest in digests:
        if f"{ARTIFACTS}/{digest}" not in missing:
            try:
                read_artifact(place, digest)
            except Corrupt:
                raise _differs(f"artifact {digest} is incomplete") from None


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
            "the database user may not create a schema, and a rehearsal on PostgreSQL requires a separate schema; "
            "GRANT CREATE ON DATABASE to the user, or rehearse on SQLite with DPCA_DATABASE_URL unset."
        ) from None
    try:
        own = sa.make_url(url).update_query_dict({"options": f"-csearch_path={schema}"})
        yield own.render_as_string(hide_password=False)
    finally:
        with schema_transaction(engine) as connection:
            connection.exec_driver_sql(f"DROP SCHEMA {schema} CASCADE")


def _differs(found: str) -> Corrupt:
    return Corrupt(f"the restored backup differs from its source ({found}); make another backup.")
