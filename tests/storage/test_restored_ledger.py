"""A ledger restored from a copy, moved without its keys, or edited, is refused."""

import json
import shutil
from pathlib import Path

import pytest

from storage.errors import Corrupt, Refused
from storage.ledger.ledger import Ledger
from storage.workspace import Workspace
from tests.storage.releasing import (
    ANSWER,
    POPULATION,
    begin,
    event_names,
    open_budget,
    reserve,
)


@pytest.fixture
def restored(sqlite_budget: Ledger) -> Ledger:
    """Return a ledger whose SQLite file was put back to before a release began and was answered."""
    waiting = reserve(sqlite_budget)
    file = sqlite_budget.home / "dpca.sqlite"
    shutil.copy(file, file.with_suffix(".copy"))
    sqlite_budget.begin(waiting.release_id).keep(0, ANSWER)
    file.with_suffix(".copy").rename(file)
    return sqlite_budget


def test_a_restored_ledger_is_refused_until_it_is_accepted(restored: Ledger) -> None:
    with pytest.raises(Refused, match="has un-spent"):
        Workspace.open()
    with pytest.raises(Refused, match="has un-spent"):
        restored.verify()
    accepted = Workspace.open(accept_restored="the disk died").ledger
    assert event_names(accepted)[-1] == "ledger_accepted"
    with accepted.transaction() as connection:
        details = connection.exec_driver_sql("SELECT detail FROM event WHERE name = 'ledger_accepted'").scalars().all()
    (release,) = accepted.statement(POPULATION).releases
    assert [json.loads(detail) for detail in details] == [{"reason": "the disk died", "begun": [release.id]}]
    assert Workspace.open().ledger.verify() == len(event_names(accepted))


def test_what_may_have_begun_after_the_copy_cannot_be_abandoned(restored: Ledger) -> None:
    accepted = Workspace.open(accept_restored="the disk died").ledger
    (release,) = accepted.statement(POPULATION).releases
    with pytest.raises(Refused, match="is noising"):
        accepted.abandon(release.id)
    accepted.begin(release.id).keep(0, ANSWER)


def test_a_step_that_was_answered_is_missed_in_a_restored_ledger(sqlite_budget: Ledger) -> None:
    begun = begin(sqlite_budget)
    file = sqlite_budget.home / "dpca.sqlite"
    shutil.copy(file, file.with_suffix(".copy"))
    begun.keep(0, ANSWER)
    file.with_suffix(".copy").rename(file)
    with pytest.raises(Refused, match="has un-spent"):
        Workspace.open()


def test_a_key_folder_of_another_ledger_is_refused_and_cannot_be_accepted(
    ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_budget(ledger)
    monkeypatch.setenv("DPCA_DATABASE_URL", f"sqlite:///{tmp_path / 'another.sqlite'}")
    for reason in (None, "they look alike"):
        with pytest.raises(Refused, match="of one ledger together"):
            Workspace.open(accept_restored=reason)


def test_a_ledger_without_its_key_folder_is_refused(
    ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_budget(ledger)
    monkeypatch.setenv("DPCA_KEY_FOLDER", str(tmp_path / "empty"))
    with pytest.raises(Refused, match="no witness"):
        Workspace.open()
    Workspace.open(accept_restored="keys were lost")
    Workspace.open()


def test_a_tampered_journal_is_found(budget: Ledger) -> None:
    reserve(budget)
    assert budget.verify() == 3
    with budget.engine.begin() as connection:
        if connection.dialect.name == "postgresql":
            connection.exec_driver_sql("ALTER TABLE event DISABLE TRIGGER ALL")
        else:
            connection.exec_driver_sql("DROP TRIGGER event_no_update")
        connection.exec_driver_sql("UPDATE event SET actor = 'somebody else' WHERE seq = 2")
    with pytest.raises(Corrupt, match="event 2 of the journal was changed"):
        budget.verify()


@pytest.mark.parametrize("earlier", [0, 1, 3])
def test_a_process_under_way_stops_once_the_database_is_put_back_beneath_it(
    sqlite_budget: Ledger, earlier: int
) -> None:
    file = sqlite_budget.home / "dpca.sqlite"
    shutil.copy(file, file.with_suffix(".copy"))
    for number in range(earlier):
        begin(sqlite_budget, f"before {number}")
    waiting = reserve(sqlite_budget, "waiting")
    file.with_suffix(".copy").rename(file)
    for act in (lambda: reserve(sqlite_budget, "after"), lambda: sqlite_budget.begin(waiting.release_id)):
        with pytest.raises(Refused, match="has un-spent"):
            act()
    with pytest.raises(Refused, match="has un-spent"):
        Workspace.open()
    accepted = Workspace.open(accept_restored="the disk died").ledger
    noted = {f"before {number}" for number in range(earlier)}
    assert {row.run_key for row in accepted.statement(POPULATION).releases} == noted


def test_what_began_by_accepting_is_charged_after_the_next_restore_too(sqlite_budget: Ledger) -> None:
    home, copies = sqlite_budget.home, [sqlite_budget.home / name for name in ("none.copy", "reserved.copy")]
    shutil.copy(home / "dpca.sqlite", copies[0])
    waiting = reserve(sqlite_budget, "waiting")
    shutil.copy(home / "dpca.sqlite", copies[1])
    begin(sqlite_budget, "noted")
    shutil.copy(copies[1], home / "dpca.sqlite")
    accepted = Workspace.open(accept_restored="the disk died").ledger
    accepted.begin(waiting.release_id).keep(0, ANSWER)
    shutil.copy(copies[0], home / "dpca.sqlite")
    again = Workspace.open(accept_restored="the disk died again").ledger
    assert {row.run_key for row in again.statement(POPULATION).releases} == {"waiting", "noted"}
