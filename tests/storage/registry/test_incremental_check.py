"""A check of ledger and registry goes on from the one before, unless that one found a fault."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from storage.errors import Corrupt
from storage.home import key_folder, store
from storage.ledger import partial_check
from storage.ledger.ledger import Ledger
from storage.registry.incremental_check import NOTE, IncrementalCheck
from tests.storage.releasing import publish

RELEASES = 4


@pytest.fixture
def published(sqlite_budget: Ledger, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Publish a few versions, of each of which a check reads a part; return their digests."""
    monkeypatch.setattr(partial_check, "PART", 8)
    return [publish(sqlite_budget, f"run {number}") for number in range(RELEASES)]


def check(ledger: Ledger, *, everything: bool = False) -> tuple[tuple[int, int] | None, int]:
    """IncrementalCheck at a home; return the part of the ledger and the number of versions that were read."""
    one = IncrementalCheck(ledger, store(), keys=key_folder(), everything=everything)
    return one.ledger().part, one.registry()


def round_of(ledger: Ledger) -> list[tuple[tuple[int, int] | None, int]]:
    entries = ledger.verify()
    return [check(ledger) for _ in range(-(-entries // partial_check.PART))]


def test_a_round_reads_each_manifest_and_a_look_reads_few(sqlite_budget: Ledger, published: list[str]) -> None:
    assert check(sqlite_budget) == (None, RELEASES)
    seen = round_of(sqlite_budget)
    assert sum(count for _, count in seen) >= RELEASES
    assert max(count for _, count in seen) < RELEASES
    publish(sqlite_budget, "new")
    part, count = check(sqlite_budget)
    assert part is not None
    assert 1 <= count <= RELEASES
    assert check(sqlite_budget, everything=True) == (None, RELEASES + 1)


def test_an_old_manifest_that_was_edited_is_found_within_a_round_and_stays_found(
    sqlite_budget: Ledger, published: list[str], home: Path
) -> None:
    check(sqlite_budget)
    for digest in published:
        path = home / "registry" / "artifacts" / digest / "manifest.json"
        sound = path.read_bytes()
        path.write_bytes(sound.replace(b'"epsilon": 1.0', b'"epsilon": 0.5'))
        with pytest.raises(Corrupt, match="another release, event or epsilon"):
            round_of(sqlite_budget)
        with pytest.raises(Corrupt, match="another release, event or epsilon"):
            check(sqlite_budget)
        with pytest.raises(Corrupt, match="another release, event or epsilon"):
            check(sqlite_budget, everything=True)
        path.write_bytes(sound)
        check(sqlite_budget)


def _of_another_version(note: Path) -> None:
    note.write_text(note.read_text().replace('"writer": "', '"writer": "x'))


def _of_another_form(note: Path) -> None:
    note.write_text(json.dumps({**json.loads(note.read_text()), "totals": 1}))


@pytest.mark.parametrize(
    "damage", [Path.unlink, _of_another_version, _of_another_form, lambda note: note.write_text("{")]
)
def test_without_a_note_that_this_program_wrote_everything_is_read(
    sqlite_budget: Ledger, published: list[str], damage: Callable[[Path], object]
) -> None:
    check(sqlite_budget)
    assert check(sqlite_budget)[0] is not None
    damage(key_folder() / NOTE)
    assert check(sqlite_budget) == (None, RELEASES)
    assert check(sqlite_budget)[0] is not None


def test_a_ledger_that_does_not_agree_leaves_no_note(sqlite_budget: Ledger, published: list[str]) -> None:
    with sqlite_budget.engine.begin() as connection:
        connection.exec_driver_sql("DROP TRIGGER budget_no_update")
        connection.exec_driver_sql("UPDATE budget SET epsilon = 100")
    one = IncrementalCheck(sqlite_budget, store(), keys=key_folder(), everything=False)
    with pytest.raises(Corrupt, match="budget 'people'"):
        one.ledger()
    assert one.registry() == RELEASES
    assert not (key_folder() / NOTE).exists()
