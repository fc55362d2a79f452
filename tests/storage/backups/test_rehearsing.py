"""A rehearsal proves that a backup restores, finds what was changed in it, and leaves nothing behind."""

import json
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import sqlalchemy as sa

from storage.backups.creating import create_backup
from storage.backups.rehearsing import rehearse_backup
from storage.database.engine import transaction
from storage.errors import Corrupt
from storage.home import database_url
from storage.ledger.ledger import Ledger
from tests.storage.backups.conftest import list_anew, sign


def test_it_says_what_was_proven_and_leaves_nothing(
    filled: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    contents = create_backup(tmp_path / "backup")
    before, events = sorted(tmp_path.rglob("*")), filled.verify()
    found = rehearse_backup(tmp_path / "backup", database_url=database_url())
    assert (found.entries, found.versions, found.populations, found.missing) == (contents.entries, 3, 1, 0)
    assert found.database == filled.engine.dialect.name
    assert sorted(tmp_path.rglob("*")) == before
    assert filled.verify() == events
    with transaction(filled.engine) as connection:
        assert not [name for name in sa.inspect(connection).get_schema_names() if "rehearsal" in name]


def _flip(folder: Path, name: str) -> None:
    path = next(folder.glob(name))
    payload = bytearray(path.read_bytes())
    payload[len(payload) // 2] ^= 1
    path.write_bytes(payload)


def _rewrite(folder: Path, table: str, column: str, value: object) -> None:
    path = folder / "database" / f"{table}.jsonl"
    first, *others = path.read_text().splitlines()
    path.write_text("\n".join([json.dumps(json.loads(first) | {column: value}), *others, ""]))


def _cut(folder: Path) -> None:
    path = folder / "database" / "event.jsonl"
    path.write_text("\n".join([*path.read_text().splitlines()[:-1], ""]))


def _halve(folder: Path, table: str) -> None:
    path = folder / "database" / f"{table}.jsonl"
    path.write_text(path.read_text()[: path.stat().st_size // 2])


def _behead(folder: Path, table: str) -> None:
    path = folder / "database" / f"{table}.jsonl"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[1:]))


CHANGES: dict[str, tuple[Callable[[Path], object], bool]] = {
    "a row": (lambda folder: _flip(folder, "database/release.jsonl"), False),
    "a pointer file": (lambda folder: _flip(folder, "store/registry/names/map.json"), False),
    "an artifact": (lambda folder: _flip(folder, "store/registry/artifacts/*/manifest.json"), False),
    "a file more": (lambda folder: (folder / "more").touch(), False),
    "a file less": (lambda folder: (folder / "database" / "step.jsonl").unlink(), False),
    "a charge, listed anew": (lambda folder: _rewrite(folder, "release", "charge", "00" * 32), True),
    "an entry, listed anew": (lambda folder: _rewrite(folder, "event", "at", "2026-01-01"), True),
    "the last entry is gone, listed anew": (_cut, True),
    "an array, listed anew": (lambda folder: _flip(folder, "store/registry/artifacts/*/*/components/c/0/0"), True),
    "half a row, listed anew": (lambda folder: _halve(folder, "release"), True),
    "a release less, listed anew": (lambda folder: _behead(folder, "release"), True),
    "a table more, listed anew": (lambda folder: (folder / "database" / "more.jsonl").write_text("{}\n"), True),
    "a table of numbers, listed anew": (lambda folder: (folder / "database" / "step.jsonl").write_text("3\n"), True),
    "a version, listed anew": (lambda folder: _rewrite(folder, "version", "digest", "ab" * 32), True),
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_was_changed_is_found_in_one_line(filled_on_sqlite: Ledger, tmp_path: Path, change: str) -> None:
    contents = create_backup(tmp_path / "backup")
    act, is_listed = CHANGES[change]
    act(tmp_path / "backup")
    if is_listed:
        sign(tmp_path / "backup", list_anew(tmp_path / "backup", contents))
    with pytest.raises(Corrupt) as found:
        rehearse_backup(tmp_path / "backup", database_url=database_url())
    assert "\n" not in str(found.value)


def test_another_spent_than_was_stated_is_found(filled_on_sqlite: Ledger, tmp_path: Path) -> None:
    contents = create_backup(tmp_path / "backup")
    said = {name: spent * (1 + 1e-15) for name, spent in contents.spent.items()}
    sign(tmp_path / "backup", replace(contents, spent=said))
    with pytest.raises(Corrupt, match="spent is another number"):
        rehearse_backup(tmp_path / "backup", database_url=database_url())
