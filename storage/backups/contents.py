"""Content of a backup: its manifest, the store files, and the database rows.

A backup is a folder. Its manifest lists every file with its digest, and describes the home (the data of one
installation) that was backed up.

::

    backup.json          this manifest
    backup.sig           the manifest's signature, and a MAC of the manifest if there is a passphrase
    database/TABLE.jsonl the rows of a table, one per line
    store/...            the files of the artifact store, under their paths in the store
    keys.sealed          signing keys, encrypted under a passphrase; absent if no passphrase was given

A backup never contains the key of a release's noise, the stored answers of an unfinished release, or the witness file
that detects an outdated ledger; see ``docs/how-to/backup.md``.

All database rows are read in one snapshot of the database. These rows determine which files of the store are copied, so
that files and rows describe the same state. A backup contains the artifacts of versions and committed releases, the
answers of streams and, on request, datasets. Pointer files and the other small files of the registry are copied while a
lock prevents new publications. All checkpoints of the ledger's audit trail are copied, even checkpoints newer than the
rows, because an additional signed statement does no harm. A restore requires an empty store.

The rows of the database are written as text, one JSON object per line, in the same form for SQLite and PostgreSQL. A
restore requires the database schema from which the rows were read.
"""

import hashlib
import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import batched
from pathlib import Path
from secrets import token_hex
from typing import Any, Self

import sqlalchemy as sa
from sqlalchemy.exc import OperationalError, SQLAlchemyError

from dpca.backends.atomic_files import FILE, digest_tree, make_folder, open_regular, relative_paths
from dpca.backends.base import Place, each, write_and_check
from dpca.errors import Corrupt, NotFound, Refused
from dpca.home import STAGING
from storage.database import tables
from storage.database.engine import HEAD, migrate, migration_of
from storage.datasets.content_digest import MARKER as DATASET_MARKER
from storage.datasets.snapshot_reader import Dataset
from storage.ledger.stream_rows import FOLDER as ANSWERS
from storage.ledger.stream_rows import answer_path
from storage.ledger.trail_export import FOLDER as TRAIL

FORMAT, VERSION = "dpca-backup", 1
MANIFEST, SIGNATURE, ROWS, STORE, SEALED = "backup.json", "backup.sig", "database", "store", "keys.sealed"
_PIECE = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """Manifest of a backup, with the state of the backed-up ledger and the list of files.

    Attributes
    ----------
    at : str, time of the backup in UTC
    code_version : str, version of the program that made the backup
    ledger : str, id of the backed-up ledger
    entries, head : int and str, number of journal entries, and hash of the last entry
    migration : str, database migration (schema version) of the rows
    database : str, ``sqlite`` or ``postgresql``, from which the rows were read; a restore may use the other database
    datasets : bool, whether the backup contains the rows of datasets
    keys : tuple of str, file names of the signing keys in ``keys.sealed``
    spent : mapping of population to its spent epsilon
    missing : tuple of str, store paths that the ledger refers to, and whose files were missing or damaged
    files : mapping of path to its size and SHA-256
    signed_by : str, the public key in hex that verifies the manifest's signature
    """

    at: str
    code_version: str
    ledger: str
    entries: int
    head: str
    migration: str
    database: str
    datasets: bool
    keys: tuple[str, ...]
    spent: Mapping[str, float]
    missing: tuple[str, ...]
    files: Mapping[str, tuple[int, str]]
    signed_by: str

    def encode(self) -> bytes:
        """Return the manifest as JSON."""
        return json.dumps({"format": FORMAT, "version": VERSION, **asdict(self)}, indent=1).encode()

    @staticmethod
    def read_bytes(folder: Path) -> bytes:
        """Return the bytes of a backup's manifest file.

        Raises
        ------
        NotFound
            If the folder contains no manifest, so it is not a backup.
        """
        try:
            return (folder / MANIFEST).read_bytes()
        except OSError as error:
            raise NotFound(
                f"{folder} is not a backup ({MANIFEST}: {error.strerror}); give a folder that `dpca backup create` "
                "wrote."
            ) from None

    @classmethod
    def decode(cls, manifest: bytes, folder: Path) -> Self:
        """Parse the bytes of a manifest, without checking the signature or the files of the backup.

        Raises
        ------
        Refused
            If the manifest has another format version.
        Corrupt
            If the manifest is damaged.
        """
        try:
            found = json.loads(manifest)
        except (ValueError, RecursionError):
            raise damaged(folder, f"{MANIFEST} is not JSON") from None
        if isinstance(found, dict) and found.get("format") == FORMAT and found.get("version") != VERSION:
            raise Refused(
                f"{folder} is a backup of format version {found.get('version')}, and this dpca reads only version "
                f"{VERSION}; restore it with a newer dpca."
            )
        try:
            shown = {name: found[name] for name in cls.__slots__}
            shown |= {name: tuple(shown[name]) for name in ("keys", "missing")}
            shown["files"] = {path: (int(size), str(digest)) for path, (size, digest) in shown["files"].items()}
            shown["signed_by"] = str(shown["signed_by"])
            shown["spent"] = {str(name): float(spent) for name, spent in shown["spent"].items()}
            return cls(**shown)
        except (AttributeError, KeyError, TypeError, ValueError):
            raise damaged(folder, f"{MANIFEST} does not have the required fields") from None

    def check_files(self, folder: Path) -> None:
        """Check that a backup folder contains exactly the files listed in this manifest, with the listed content.

        Raises
        ------
        Corrupt
            If a file is missing, is not listed in the manifest, or has changed.
        """
        try:
            here = set(relative_paths(folder)) - {MANIFEST, SIGNATURE}
            if here != self.files.keys():
                strange = sorted(here ^ self.files.keys())[0]
                raise damaged(folder, f"{strange} is {'not listed' if strange in here else 'missing'}")
            if self.keys and SEALED not in here:
                raise damaged(folder, f"{SEALED} is missing")
            for path in self.files:
                for _ in self.pieces(folder, path):
                    pass
        except OSError as error:
            raise damaged(folder, str(error)) from None

    def pieces(self, folder: Path, path: str) -> Iterator[bytes]:
        """Yield the bytes of one file of a backup, piece by piece, and compare them with the manifest at the end.

        The caller must not use the pieces before the last one has been yielded without an error.

        Raises
        ------
        Corrupt
            After the last piece, if the file has changed. Before the first piece, if the file is a pipe or a device.
        """
        size, digest = 0, hashlib.sha256()
        with open_regular(folder / path) as file:
            while piece := file.read(_PIECE):
                size += len(piece)
                digest.update(piece)
                yield piece
        if (size, digest.hexdigest()) != self.files[path]:
            raise damaged(folder, f"{path} differs from the file that was written")

    def copy(self, folder: Path, path: str, to: Path) -> None:
        """Copy a file of a backup to the path `to`, and check the copy as `pieces` does.

        The caller must not use the copy if this method raises.
        """
        to.parent.mkdir(parents=True, exist_ok=True)
        with to.open("wb") as file:
            file.writelines(self.pieces(folder, path))

    def holds(self, path: str, payload: bytes) -> bool:
        """Return whether the manifest lists a file with this path and this content."""
        return self.files.get(path) == (len(payload), hashlib.sha256(payload).hexdigest())


def fingerprint(path: Path) -> tuple[int, str]:
    """Return the size and the SHA-256 of a file."""
    size, digest = 0, hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(_PIECE):
            size += len(piece)
            digest.update(piece)
    return size, digest.hexdigest()


def list_files(folder: Path) -> dict[str, tuple[int, str]]:
    """Return the size and SHA-256 of every file in a folder, by path."""
    return {path: fingerprint(folder / path) for path in relative_paths(folder)}


def facts_of(contents: Contents) -> dict[str, Any]:
    """Return the facts about a backup that commands display, by label."""
    return {
        "ledger": contents.ledger,
        "entries": contents.entries,
        "made": contents.at,
        "database": contents.database,
        "files": len(contents.files),
        "bytes": sum(size for size, _ in contents.files.values()),
        "datasets": contents.datasets,
        "signed by": contents.signed_by,
        "sealed keys": ", ".join(contents.keys) or "none",
        "missing": len(contents.missing),
    }


def damaged(folder: Path, found: str) -> Corrupt:
    """Return the error for a backup that has changed since its creation; `found` describes the damage."""
    return Corrupt(
        f"the backup {folder} is damaged ({found}); a backup must not be changed after its creation: use another "
        "backup."
    )


REGISTRY, ARTIFACTS, DATASETS = "registry", "registry/artifacts", "datasets"
# an artifact's manifest is written last, so an artifact folder with this file is complete
ARTIFACT_MARKER = "manifest.json"


def copy_pointers(place: Place, to: Path) -> list[str]:
    """Copy all files of a registry except artifacts; return the paths of files that are missing or damaged.

    The caller holds the ledger's lock, so that no version is published during the copy.
    """
    folders = [name for name in place.names(REGISTRY) if name != "artifacts" and not name.startswith(".")]
    return [path for folder in folders for path in _copy_each(place, to, f"{REGISTRY}/{folder}")]


def copy_store(connection: sa.Connection, place: Place, to: Path, *, ledger: str, datasets: bool) -> list[str]:
    """Copy the store files to which the database rows refer.

    Return the paths of files that were missing or damaged; these files are not copied.
    """
    missing = [
        f"{ARTIFACTS}/{digest}"
        for digest in _digests(connection)
        if not _copy(place, to, f"{ARTIFACTS}/{digest}", digest=digest)
    ]
    for row in connection.execute(sa.select(tables.tick_answer)):
        path = answer_path(row.stream, row.tick, row.digest)
        if not (_copy_file(place, to, path) and hashlib.sha256((to / path).read_bytes()).hexdigest() == row.digest):
            (to / path).unlink(missing_ok=True)
            missing.append(path)
    missing += _copy_each(place, to, f"{TRAIL}/{ledger}")
    if datasets:
        table = tables.snapshot
        for row in connection.execute(sa.select(table).where(table.c.removed_at.is_(None))):
            if not (_copy(place, to, row.path) and _is_dataset(to / row.path, row.content_digest)):
                shutil.rmtree(to / row.path, ignore_errors=True)
                missing.append(row.path)
    return missing


def refuse_full_place(place: Place, contents: Contents) -> None:
    """Check that a store is empty, except for files that an interrupted restore of this backup left there.

    Raises
    ------
    Refused
        If the store contains other files.
    """
    for folder in (f"{REGISTRY}/names", ARTIFACTS, ANSWERS, TRAIL):
        paths = [f"{folder}/{path}" for path in place.paths(folder)]
        if not all(each(lambda path: contents.holds(f"{STORE}/{path}", place.read(path).payload), paths)):
            raise Refused(
                f"{place.at(folder)} is not empty, and a backup is restored into an empty store; move it away, or "
                "restore the other parts with --only."
            )


def put_back(source: Path, contents: Contents, place: Place, *, home: Path, datasets: bool) -> None:
    """Restore the files of a backup into an empty store.

    Each artifact and dataset is restored completely or not at all. Pointer files are written last. Files that an
    interrupted restore has already written stay unchanged.
    """
    paths = sorted(path.removeprefix(f"{STORE}/") for path in contents.files if path.startswith(f"{STORE}/"))
    whole = {_folder(path, 3): ARTIFACT_MARKER for path in paths if path.startswith(f"{ARTIFACTS}/")}
    if datasets:
        whole |= {_folder(path, 3): DATASET_MARKER for path in paths if path.startswith(f"{DATASETS}/")}
    for folder, marker in whole.items():
        staged = home / STAGING / token_hex(16)
        try:
            make_folder(staged)
            for path in paths:
                if path.startswith(f"{folder}/"):
                    contents.copy(source, f"{STORE}/{path}", staged / "whole" / path.removeprefix(f"{folder}/"))
            place.publish(staged / "whole", folder, marker=marker)
        finally:
            shutil.rmtree(staged, ignore_errors=True)
    small = [path for path in paths if path.startswith((f"{ANSWERS}/", f"{TRAIL}/"))]
    nearby = [path for path in paths if path.startswith(f"{REGISTRY}/") and not path.startswith(f"{ARTIFACTS}/")]
    for path in (*small, *nearby):
        write_and_check(place, path, b"".join(contents.pieces(source, f"{STORE}/{path}")))


def _folder(path: str, depth: int) -> str:
    return "/".join(path.split("/")[:depth])


def _digests(connection: sa.Connection) -> Sequence[str]:
    table = tables.release
    committed = sa.select(table.c.artifact_digest).where(table.c.artifact_digest.is_not(None))
    both = sa.union(sa.select(tables.published.c.digest), committed).subquery()
    return connection.execute(sa.select(both.c[0]).order_by(both.c[0])).scalars().all()


def _copy(place: Place, to: Path, folder: str, *, digest: str | None = None) -> bool:
    """Copy all files of a store folder and return True, or copy none and return False.

    The copy is removed if a file is missing or damaged, or if the folder's digest is not `digest`.
    """
    missing = _copy_each(place, to, folder)
    if not missing and (to / folder).is_dir() and digest in (None, digest_tree(to / folder)):
        return True
    shutil.rmtree(to / folder, ignore_errors=True)
    return False


def _is_dataset(folder: Path, content: str) -> bool:
    """Return whether a copied dataset has the content digest `content`, so that no ingested row is missing.

    This check is necessary because an incomplete listing of the store could have left out files.
    """
    try:
        return Dataset.open(folder).verify() == content
    except (Corrupt, NotFound):
        return False


def _copy_each(place: Place, to: Path, folder: str) -> list[str]:
    """Copy each readable file of a store folder; return the paths of missing or damaged files, which are not copied."""
    paths = [f"{folder}/{path}" for path in place.paths(folder)]
    copied = each(partial(_copy_file, place, to), paths)
    return [path for path, is_there in zip(paths, copied, strict=True) if not is_there]


def _copy_file(place: Place, to: Path, path: str) -> bool:
    try:
        payload = place.read(path).payload
        if path.endswith(".json"):  # an incomplete JSON file counts as missing from the backup
            json.loads(payload)
    except (FileNotFoundError, Corrupt, ValueError, RecursionError):
        return False
    _write(to / path, payload)
    return True


def _write(path: Path, payload: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch(mode=FILE)
    path.write_bytes(payload)


_LEFT_OUT = {
    # the table `pointer` holds tags of files in one store; after a restore, every pointer file is written again
    "pointer",
    "charged_total",  # the table `charged_total` is a cache, which is computed again from the releases
}
_AT_ONCE = 1_000


def write_rows(connection: sa.Connection, folder: Path) -> None:
    """Write each backed-up database table to a JSON Lines file in a new folder."""
    folder.mkdir()
    for table in tables.metadata.sorted_tables:
        if table.name not in _LEFT_OUT:
            rows = connection.execute(sa.select(table), execution_options={"yield_per": _AT_ONCE}).mappings()
            with (folder / f"{table.name}.jsonl").open("w", encoding="utf-8") as file:
                for row in rows:
                    file.write(json.dumps({name: _as_text(value) for name, value in row.items()}) + "\n")


def read_rows(connection: sa.Connection, folder: Path, *, migration: str) -> None:
    """Fill an empty database with the rows that `write_rows` wrote, in the caller's transaction.

    Raises
    ------
    Refused
        If the rows have another schema version, or the database is not empty.
    Corrupt
        If the files do not contain valid rows of a ledger.
    """
    refuse_full_database(connection, migration=migration)
    migrate(connection)
    try:
        _fill(connection, folder)
    except OperationalError:  # an OperationalError is a failure of the database, not of the rows in the backup
        raise
    except (AttributeError, KeyError, OSError, TypeError, ValueError, SQLAlchemyError) as error:
        raise Corrupt(
            f"the rows in {folder} are not rows of a ledger ({type(error).__name__}); a backup must not be changed "
            "after its creation: use another backup."
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


def refuse_full_database(connection: sa.Connection, *, migration: str) -> None:
    """Check that backup rows fit this version of dpca, and that the target database can receive them.

    Raises
    ------
    Refused
        If the rows have another schema version than this version of dpca, or the database contains a ledger or tables
        of another schema version.
    """
    if migration != HEAD:
        raise Refused(
            f"the rows of the backup have database schema {migration}, and this version of dpca restores only schema "
            f"{HEAD}; restore the backup with the version of dpca that wrote it."
        )
    standing = migration_of(connection)
    if standing is None:
        return
    held = connection.exec_driver_sql("SELECT id FROM ledger").scalars().all()
    if held or standing != migration:
        what = f"ledger {held[0][:8]}" if held else "empty tables of another schema version"
        raise Refused(
            f"the database holds {what}, and a backup is restored only into an empty database; move it away, or set "
            "DPCA_DATABASE_URL to an empty database."
        )


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    with path.open(encoding="utf-8") as file:
        for line in file:
            yield json.loads(line)


def _as_text(value: Any) -> Any:
    return bytes(value).hex() if isinstance(value, (bytes, memoryview)) else value


def _as_value(value: Any, *, is_binary: bool) -> Any:
    return bytes.fromhex(value) if is_binary and value is not None else value
