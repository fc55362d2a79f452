"""Restore a backup into what is empty. The ledger is locked then, until an operator accepts it.

No witness is ever restored: that it does not know the database is what locks it. Keys and files go first and the
database last, in one transaction, so that a restore that was cut short has no ledger.
"""

import shutil
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from secrets import token_hex
from typing import Self

from storage import home
from storage.backends.atomic_files import make_folder, write_atomically, writing
from storage.backends.base import Place
from storage.backups import rows, stored_files
from storage.backups.contents import ROWS, SEALED, Contents
from storage.backups.sealed_keys import unseal
from storage.backups.signatures import open_backup
from storage.database.engine import connect_as_is, schema_transaction
from storage.errors import Invalid, Refused
from storage.home import STAGING

PARTS = ("database", "keys", "store")


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Where a backup is restored to.

    Attributes
    ----------
    home : Path
    database_url : str
    keys : Path
    place : Place, of artifacts and datasets
    """

    home: Path
    database_url: str
    keys: Path
    place: Place

    @classmethod
    def configured(cls) -> Self:
        """Return the home that is configured, whose folder is made where it is missing."""
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
    """Restore all of a backup, or some parts.

    Parameters
    ----------
    source : Path
        A backup, whose signature and files are checked first; see `storage.backups.signatures.open_backup`.
    into : Target
        Each part that is restored must be empty there.
    only : collection of str
        Of `PARTS`.
    passphrase : str, optional
        Opens the sealed keys; without it none is restored.
    key : str, optional
        The published key of the ledger's audit trail.
    datasets : bool
        Restore raw rows, if there are any in the backup.

    Raises
    ------
    Corrupt
        If the backup is damaged.
    Refused
        If a part is not empty, except for what a killed restore of this backup left, or nobody known signed the
        backup; nothing was changed then.
    """
    if unknown := sorted(set(only) - set(PARTS)):
        raise Invalid(f"part {unknown[0]!r} is none of {', '.join(PARTS)}; name one of them.")
    contents = open_backup(source, key=key, passphrase=passphrase)
    keys: dict[str, bytes] = {}
    if "keys" in only and passphrase is not None and contents.keys:
        sealed = b"".join(contents.pieces(source, SEALED))
        keys = unseal(sealed, passphrase=passphrase, ledger=contents.ledger)
    engine = connect_as_is(into.database_url) if "database" in only else None
    if engine is not None:
        with schema_transaction(engine) as connection:
            rows.refuse_full(connection, migration=contents.migration)
    if "store" in only:
        stored_files.refuse_full(into.place, contents)
    for name, secret in keys.items():
        if (into.keys / name).exists() and (into.keys / name).read_bytes() != secret:
            raise Refused(f"{into.keys / name} is another key; move it away, or restore the other parts with --only.")
    with writing(into.home):
        if "store" in only:
            stored_files.put_back(source, contents, into.place, home=into.home, datasets=datasets)
        for name, secret in keys.items():
            make_folder(into.keys)
            write_atomically(into.keys / name, secret)
        if engine is not None:
            with _copied_rows(source, contents, into.home) as copied, schema_transaction(engine) as connection:
                rows.read_rows(connection, copied, migration=contents.migration)
    return contents


@contextmanager
def _copied_rows(source: Path, contents: Contents, home: Path) -> Iterator[Path]:
    """Copy the rows of a backup to a folder of the home, checked as they are copied."""
    staged = home / STAGING / token_hex(16)
    try:
        make_folder(staged)
        for path in contents.files:
            if path.startswith(f"{ROWS}/"):
                contents.copy(source, path, staged / path.removeprefix(f"{ROWS}/"))
        yield staged
    finally:
        shutil.rmtree(staged, ignore_errors=True)
