"""Every part of a backup counts: each field of manifest and signature, and each file, also of another valid backup."""

import json
import shutil
from pathlib import Path

from storage.backups.contents import MANIFEST, SIGNATURE
from storage.backups.creating import create_backup
from storage.backups.signatures import open_backup
from storage.errors import StorageError
from storage.ledger.ledger import Ledger
from tests.forger import forgeries
from tests.storage.releasing import publish


def is_refused(folder: Path, key: str) -> bool:
    """Tell whether it is refused in one line."""
    try:
        open_backup(folder, key=key)
    except StorageError as refused:
        return "\n" not in str(refused)
    return False


def test_every_forged_part_of_a_backup_is_refused_in_one_line(filled_on_sqlite: Ledger, tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    key = create_backup(one).signed_by
    publish(filled_on_sqlite, "more")
    create_backup(two)
    accepted: list[str] = []
    for name in (MANIFEST, SIGNATURE):
        honest = (one / name).read_bytes()
        for way, forged in forgeries(json.loads(honest), json.loads((two / name).read_bytes())):
            (one / name).write_text(json.dumps(forged, indent=1))
            accepted += [] if is_refused(one, key) else [f"{name}: {way}"]
        (one / name).write_bytes(honest)
    assert accepted == []
    assert not is_refused(one, key)


def test_every_forged_file_of_a_backup_is_refused_in_one_line(filled_on_sqlite: Ledger, tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    key = create_backup(one).signed_by
    publish(filled_on_sqlite, "more")
    create_backup(two)
    paths = [path for path in one.rglob("*") if path.is_file()]
    for at, path in enumerate(paths):
        honest, there = path.read_bytes(), two / path.relative_to(one)
        neighbour = paths[at - 1].read_bytes()
        last = bytes([honest[-1] ^ 1]) if honest else b"1"
        ways = [honest[:-1] + last, honest + honest, b"", neighbour, *([there.read_bytes()] if there.exists() else [])]
        for forged in ways:
            if forged != honest:
                path.write_bytes(forged)
                assert is_refused(one, key), path
        path.unlink()
        assert is_refused(one, key), path
        path.write_bytes(honest)
        shutil.copy(path, path.with_name(f"{path.name}.1"))
        assert is_refused(one, key), path
        path.with_name(f"{path.name}.1").unlink()
    assert not is_refused(one, key)
