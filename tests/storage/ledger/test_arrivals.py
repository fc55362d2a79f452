"""The numbers of ingests, and the rows of the tables of first-seen ids."""

import pytest
import sqlalchemy as sa

from storage.datasets.catalog import Catalog
from storage.errors import Corrupt
from storage.ledger import arrivals
from storage.ledger.journal_check import compare
from storage.ledger.ledger import Ledger
from storage.workspace import Workspace
from tests.storage.releasing import event_names, manifest


def register(ledger: Ledger, snapshot: str, *, number: int | None = None) -> int | None:
    made = manifest(ledger.id, snapshot=snapshot * 32)
    return Catalog(ledger.engine, ledger.home).register(made, path=f"datasets/{snapshot}", number=number).number


def record(ledger: Ledger, epoch: str, segment: str, known: list[arrivals.Segment]) -> int | None:
    with ledger.transaction() as connection:
        arrivals.plan_segment(connection, epoch=epoch, segment=segment)
    with ledger.transaction() as connection:
        return arrivals.record_segment(connection, epoch=epoch, segment=segment, digest="d", known=known)


def segments(ledger: Ledger, epoch: str) -> list[arrivals.Segment]:
    with ledger.transaction() as connection:
        return arrivals.segments_of(connection, epoch)


@pytest.fixture
def epoch(ledger: Ledger) -> str:
    with ledger.transaction() as connection:
        return arrivals.begin_epoch(connection, population="people", epoch="e1")


def test_numbers_rise_with_registration_whoever_began_first(ledger: Ledger, epoch: str) -> None:
    assert register(ledger, "a") == 1
    slow = record(ledger, epoch, "slow", [])
    quick = record(ledger, epoch, "quick", segments(ledger, epoch))
    assert (slow, quick) == (2, 3)
    assert register(ledger, "b", number=quick) == 3
    assert register(ledger, "c", number=slow) == 4  # not 2: a tick may be bound to the other by now
    assert register(ledger, "d") == 5
    catalog = Catalog(ledger.engine, ledger.home)
    assert [catalog.number(name * 32) for name in "abcd"] == [1, 3, 4, 5]
    assert catalog.current("news").number == 5
    assert ledger.verify() == len(event_names(ledger))


def test_the_number_of_an_ingest_that_failed_is_not_used_again(ledger: Ledger, epoch: str) -> None:
    assert record(ledger, epoch, "failed", []) == 1
    assert register(ledger, "a") == 2


def test_a_segment_that_was_compared_with_others_than_those_there_gets_no_number(ledger: Ledger, epoch: str) -> None:
    assert record(ledger, epoch, "first", []) == 1
    assert record(ledger, epoch, "second", []) is None
    (first,) = segments(ledger, epoch)
    assert record(ledger, epoch, "third", [first]) == 2
    with ledger.transaction() as connection:
        assert arrivals.folders_of(connection, "people") == {"first", "second", "third"}
        arrivals.lose_epoch(connection, epoch)
    assert record(ledger, epoch, "fourth", segments(ledger, epoch)) is None


def test_a_population_has_one_epoch_until_it_is_lost(ledger: Ledger, epoch: str) -> None:
    with ledger.transaction() as connection:
        assert arrivals.begin_epoch(connection, population="people", epoch="e2") == epoch
        assert arrivals.begin_epoch(connection, population="others", epoch="e3") == "e3"
        arrivals.lose_epoch(connection, epoch)
        arrivals.lose_epoch(connection, epoch)
        assert arrivals.epoch_of(connection, "people") is None
        assert arrivals.begin_epoch(connection, population="people", epoch="e4") == "e4"
    assert event_names(ledger).count("arrivals_lost") == 1
    assert ledger.verify() == len(event_names(ledger))


def test_accepting_a_restored_ledger_loses_every_epoch(ledger: Ledger, epoch: str) -> None:
    Workspace.open(accept_restored="a test")
    with ledger.transaction() as connection:
        assert arrivals.epoch_of(connection, "people") is None


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE arrival_segment SET number = 9",
        "UPDATE arrival_segment SET digest = 'x'",
        "UPDATE arrival_epoch SET population = 'x'",
        "UPDATE arrival_epoch SET lost_at = NULL WHERE lost_at IS NOT NULL",
        "DELETE FROM arrival_segment",
        "DELETE FROM arrival_epoch",
    ],
    ids=lambda statement: statement.lower().replace(" ", "-").replace("'", ""),
)
def test_rows_of_first_seen_ids_are_never_changed_or_deleted(ledger: Ledger, epoch: str, statement: str) -> None:
    record(ledger, epoch, "first", [])
    with ledger.transaction() as connection:
        arrivals.lose_every_epoch(connection)
    with pytest.raises(sa.exc.DBAPIError, match=r"never|once"), ledger.engine.begin() as connection:
        connection.exec_driver_sql(statement)


def test_numbers_changed_by_hand_are_found(ledger: Ledger) -> None:
    register(ledger, "a")
    with ledger.transaction() as connection:
        connection.exec_driver_sql("UPDATE snapshot SET number = 7")
    with pytest.raises(Corrupt, match=r"does not say what the journal says \(number\)"), ledger.transaction() as found:
        compare(found)


def test_a_segment_put_in_by_hand_is_found(ledger: Ledger, epoch: str) -> None:
    with ledger.transaction() as connection:
        arrivals.plan_segment(connection, epoch=epoch, segment="planned")
        compare(connection)
        connection.exec_driver_sql("UPDATE arrival_segment SET number = 7, digest = 'x'")
    with pytest.raises(Corrupt, match="knows nothing of segment of arrivals"), ledger.transaction() as found:
        compare(found)
