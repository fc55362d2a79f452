"""A stream goes on in a restored ledger only when every tick that was answered is known again; else it is closed."""

import shutil
from pathlib import Path

import pytest

from storage.errors import Refused
from storage.ledger.ledger import Ledger
from storage.workspace import Workspace
from tests.storage.releasing import POPULATION, open_budget
from tests.storage.streaming import NAME, answer_tick, begin_tick, open_stream, publish_tick, register

WHY = "a disk failed"


@pytest.fixture
def ledger(state: Path, home: Path) -> Ledger:
    """Return a ledger with a budget and a snapshot, on SQLite."""
    ledger = Workspace.open().ledger
    open_budget(ledger)
    register(ledger)
    return ledger


def save(home: Path) -> None:
    shutil.copy(home / "dpca.sqlite", home.with_name("copy"))


def restore(home: Path, *, forget: Path | None = None) -> None:
    """Put the database back; without the witness apart, and the one beside the keys, it is another machine's."""
    for path in home.glob("dpca.sqlite*"):
        path.unlink()
    shutil.copy(home.with_name("copy"), home / "dpca.sqlite")
    if forget is not None:
        shutil.rmtree(forget)


def accepted() -> Ledger:
    with pytest.raises(Refused):
        Workspace.open()
    workspace = Workspace.open(accept_restored=WHY)
    workspace.ledger.verify()
    return workspace.ledger


@pytest.mark.parametrize("knows", ["witness", "registry"])
def test_lost_ticks_are_entered_again_and_the_stream_goes_on(
    ledger: Ledger, home: Path, state: Path, knows: str
) -> None:
    open_stream(ledger, ticks=5)
    publish_tick(ledger, "night 1")
    save(home)
    for slot in ("night 2", "night 3"):
        publish_tick(ledger, slot)
    stream, ticks = ledger.streams.show(NAME)
    spent = ledger.statement(POPULATION).spent
    restore(home, forget=state if knows == "registry" else None)
    again = accepted()
    assert again.streams.show(NAME) == (stream, ticks)
    assert again.statement(POPULATION).spent == spent
    assert publish_tick(again, "night 2") == ticks[1]
    assert publish_tick(again, "night 4").tick == 4
    again.verify()


def test_a_lost_stream_is_charged_again_with_its_ticks(ledger: Ledger, home: Path) -> None:
    save(home)
    stream = open_stream(ledger)
    ticks = [publish_tick(ledger, "night 1")]
    ledger.streams.close_tick(NAME, begin_tick(ledger, "night 2").tick)
    ticks.append(ledger.streams.show(NAME)[1][1])
    ticks.append(begin_tick(ledger, "night 3"))
    digest = answer_tick(ledger, ticks[2])
    spent = ledger.statement(POPULATION).spent
    restore(home)
    again = accepted()
    assert again.statement(POPULATION).spent == spent
    assert again.streams.show(NAME)[0] == stream
    found = again.streams.show(NAME)[1]
    assert [tick.state for tick in found] == ["committed", "closed", "noising"]
    assert found[2].answer == digest
    assert begin_tick(again, "night 3").release_id == ticks[2].release_id


def test_a_stream_of_which_only_versions_are_left_is_charged_in_full_and_closed(
    ledger: Ledger, home: Path, state: Path
) -> None:
    stream = open_stream(ledger)
    for slot in ("night 1", "night 2"):
        publish_tick(ledger, slot)
    spent = ledger.statement(POPULATION).spent
    for path in home.glob("dpca.sqlite*"):
        path.unlink()
    for folder in (state, home / "keys"):
        shutil.rmtree(folder)
    open_budget(Workspace.open(even_locked=True).ledger)
    workspace = Workspace.open(accept_restored=WHY, charge_to=POPULATION)
    assert workspace.ledger.statement(POPULATION).spent == spent
    found, ticks = workspace.ledger.streams.show(NAME)
    assert (found.id, found.is_live) == (stream.id, False)
    assert [tick.state for tick in ticks] == ["committed", "committed"]
    workspace.ledger.verify()


def test_an_answer_that_no_tick_explains_closes_the_stream(ledger: Ledger, home: Path, state: Path) -> None:
    open_stream(ledger)
    publish_tick(ledger, "night 1")
    save(home)
    answer_tick(ledger, begin_tick(ledger, "night 2"))
    restore(home, forget=state)
    again = accepted()
    assert not again.streams.show(NAME)[0].is_live
    with pytest.raises(Refused, match="closed for good"):
        begin_tick(again, "night 2")


def test_a_tick_between_published_ones_of_which_nothing_is_left_closes_the_stream(
    ledger: Ledger, home: Path, state: Path
) -> None:
    stream = open_stream(ledger)
    publish_tick(ledger, "night 1")
    save(home)
    ledger.streams.close_tick(NAME, begin_tick(ledger, "night 2").tick)
    third = publish_tick(ledger, "night 3")
    restore(home, forget=state)
    again = accepted()
    found, ticks = again.streams.show(NAME)
    assert (found.id, found.is_live) == (stream.id, False)
    assert [tick.state for tick in ticks] == ["committed", "closed", "committed"]
    assert ticks[2].release_id == third.release_id
