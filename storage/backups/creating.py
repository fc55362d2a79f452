"""Make a backup: whole or not at all, of one point of the journal, while others go on.

Writers wait while pointer files are read, so that these and the rows are of one point; everything else that is copied
is never changed once it is there.
"""

import shutil
from contextlib import ExitStack
from importlib.metadata import version
from pathlib import Path
from uuid import uuid4

import sqlalchemy as sa

from storage.backends.atomic_files import make_folder, move_folder, writing
from storage.backends.private import FOLDER
from storage.backups.contents import MANIFEST, ROWS, SEALED, SIGNATURE, STORE, Contents, list_files
from storage.backups.rows import write_rows
from storage.backups.sealed_keys import seal, sealable_keys
from storage.backups.signatures import sign_manifest
from storage.backups.stored_files import copy_pointers, copy_store
from storage.database import tables
from storage.database.engine import migration_of, reading, transaction
from storage.errors import Corrupt, Refused
from storage.home import key_folder
from storage.ledger import journal
from storage.ledger.balance import statement_of
from storage.ledger.trail_export import public_key, signing_key
from storage.workspace import Workspace


def create_backup(to: Path, *, datasets: bool = False, passphrase: str | None = None) -> Contents:
    """Back up the configured home: its database, its store, and under a passphrase the keys that sign.

    Parameters
    ----------
    to : Path
        A new folder, outside the home.
    datasets : bool
        Copy raw rows, too.
    passphrase : str, optional
        Without it no key is copied, and the manifest is signed alone.

    Raises
    ------
    Refused
        If something is there already, it is part of the home, or the ledger is locked.
    Corrupt
        If the journal does not hold together.
    Unavailable
        If something cannot be read or written.
    """
    workspace, to = Workspace.open(), to.absolute()
    if to.exists() or to.is_symlink():
        raise Refused(f"{to} exists, and a backup is never written over; name a new folder.")
    if to.resolve().is_relative_to(workspace.home.resolve()):
        raise Refused(f"{to} is part of the home, and would be lost with it; name a folder elsewhere.")
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
                raise Refused(f"{to} exists, and a backup is never written over; name a new folder.")
    finally:
        shutil.rmtree(staged, ignore_errors=True)
    return contents


def _copy(workspace: Workspace, staged: Path, *, datasets: bool, passphrase: str | None, signed_by: str) -> Contents:
    engine, place = workspace.ledger.engine, workspace.store
    with ExitStack() as stack:
        with transaction(engine):  # writers wait
            connection = stack.enter_context(reading(engine))
            head = journal.head(connection)  # what is seen from here on
            lost = copy_pointers(place, staged / STORE)
        if journal.verify(connection) != head.seq:
            raise Corrupt("the journal has gaps; restore the newest copy of the database.")
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
