"""The files of a store of artifacts, copied out for a backup and put back into an empty store.

What is copied follows from the rows of the ledger's snapshot, so that files and rows are of one point: the artifacts of
versions and committed releases, the answers of streams, and datasets if they are wanted. Pointer files, and whatever
else lies beside the artifacts, are small; they are copied while no publisher is at work. Checkpoints of the trail are
copied as they are: a signed statement is never too many.
"""

import hashlib
import json
import shutil
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from secrets import token_hex

import sqlalchemy as sa

from storage.backends.atomic_files import make_folder
from storage.backends.base import Place, write_and_check
from storage.backends.digests import digest_tree
from storage.backends.private import FILE
from storage.backends.side_by_side import each
from storage.backups.contents import STORE, Contents
from storage.database import tables
from storage.datasets.manifest import MARKER as DATASET_MARKER
from storage.datasets.snapshot_reader import Dataset
from storage.errors import Corrupt, NotFound, Refused
from storage.home import STAGING
from storage.ledger.stream_answers import FOLDER as ANSWERS
from storage.ledger.stream_answers import answer_path
from storage.ledger.trail_export import FOLDER as TRAIL

REGISTRY, ARTIFACTS, DATASETS = "registry", "registry/artifacts", "datasets"
ARTIFACT_MARKER = "manifest.json"  # comes last when an artifact is published


def copy_pointers(place: Place, to: Path) -> list[str]:
    """Copy all of a registry but its artifacts, while nobody publishes; return the paths that are gone, or damaged."""
    folders = [name for name in place.names(REGISTRY) if name != "artifacts" and not name.startswith(".")]
    return [path for folder in folders for path in _copy_each(place, to, f"{REGISTRY}/{folder}")]


def copy_store(connection: sa.Connection, place: Place, to: Path, *, ledger: str, datasets: bool) -> list[str]:
    """Copy what the rows tell of; return the paths that are missing, or damaged, which are not copied."""
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


def refuse_full(place: Place, contents: Contents) -> None:
    """Refuse a store that holds anything else than files of the backup, which a killed restore has left.

    Raises
    ------
    Refused
        If it does.
    """
    for folder in (f"{REGISTRY}/names", ARTIFACTS, ANSWERS, TRAIL):
        paths = [f"{folder}/{path}" for path in place.paths(folder)]
        if not all(each(lambda path: contents.holds(f"{STORE}/{path}", place.read(path).payload), paths)):
            raise Refused(
                f"{place.at(folder)} is not empty, and a backup is restored into an empty store; move it away, or "
                "restore the other parts with --only."
            )


def put_back(source: Path, contents: Contents, place: Place, *, home: Path, datasets: bool) -> None:
    """Put the files of a backup into an empty store: artifacts and datasets whole, pointer files last.

    What a killed restore has put there already stays.
    """
    paths = sorted(path.removeprefix(f"{STORE}/") for path in contents.files if path.startswith(f"{STORE}/"))
    whole = {_folder(path, 3): ARTIFACT_MARKER for path in paths if path.startswith(f"{ARTIFACTS}/")}
    if datasets:
        whole |= {_folder(path, 3): DATASET_MARKER for path in paths if path.startswith(f"{DATASETS}/")}
    for folder, marker in whole.items():
        staged = home / STAGING / token_hex(16)
        try:
            make_folder(staged)  # it is as old as it is; the copy has the times of the backup, and would be an orphan
            for path in paths:
                if path.startswith(f"{folder}/"):
                    contents.copy(source, f"{STORE}/{path}", staged / "whole" / path.removeprefix(f"{folder}/"))
            place.publish(staged / "whole", folder, marker=marker)
        finally:
            shutil.rmtree(staged, ignore_errors=True)
    small = [path for path in paths if path.startswith((f"{ANSWERS}/", f"{TRAIL}/"))]
    beside = [path for path in paths if path.startswith(f"{REGISTRY}/") and not path.startswith(f"{ARTIFACTS}/")]
    for path in (*small, *beside):
        write_and_check(place, path, b"".join(contents.pieces(source, f"{STORE}/{path}")))


def _folder(path: str, depth: int) -> str:
    return "/".join(path.split("/")[:depth])


def _digests(connection: sa.Connection) -> Sequence[str]:
    table = tables.release
    committed = sa.select(table.c.artifact_digest).where(table.c.artifact_digest.is_not(None))
    both = sa.union(sa.select(tables.published.c.digest), committed).subquery()
    return connection.execute(sa.select(both.c[0]).order_by(both.c[0])).scalars().all()


def _copy(place: Place, to: Path, folder: str, *, digest: str | None = None) -> bool:
    """Copy all files of a folder, or none; an artifact that has not its digest is taken away again."""
    missing = _copy_each(place, to, folder)
    if not missing and (to / folder).is_dir() and digest in (None, digest_tree(to / folder)):
        return True
    shutil.rmtree(to / folder, ignore_errors=True)
    return False


def _is_dataset(folder: Path, content: str) -> bool:
    """Tell whether a copy of a dataset has all the rows that were ingested; a store may have listed a part."""
    try:
        return Dataset.open(folder).verify() == content
    except (Corrupt, NotFound):
        return False


def _copy_each(place: Place, to: Path, folder: str) -> list[str]:
    """Copy the files of a folder; return the paths of those that are gone or damaged, which are not copied."""
    paths = [f"{folder}/{path}" for path in place.paths(folder)]
    copied = each(partial(_copy_file, place, to), paths)
    return [path for path, is_there in zip(paths, copied, strict=True) if not is_there]


def _copy_file(place: Place, to: Path, path: str) -> bool:
    try:
        payload = place.read(path).payload
        if path.endswith(".json"):  # each of them, if it is not whole, is none
            json.loads(payload)
    except (FileNotFoundError, Corrupt, ValueError, RecursionError):
        return False
    _write(to / path, payload)
    return True


def _write(path: Path, payload: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch(mode=FILE)
    path.write_bytes(payload)
