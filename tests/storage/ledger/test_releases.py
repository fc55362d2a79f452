"""A release begins, and ends once: committed, closed or abandoned."""

from collections.abc import Callable

import pytest
import sqlalchemy as sa

from storage.database import tables
from storage.datasets.catalog import Catalog
from storage.errors import Conflict, Finished, NotFound, Refused
from storage.ledger.ledger import Ledger, Release
from tests.storage.releasing import (
    ANSWER,
    EPSILON,
    POPULATION,
    begin,
    calibrated,
    commit,
    event_names,
    key_names,
    manifest,
    open_budget,
    reserve,
)


def test_a_release_goes_from_reservation_to_commit(budget: Ledger) -> None:
    begun = begin(budget)
    begun.keep(0, ANSWER)
    budget.begin(begun.release_id)
    commit(budget, begun.release_id)
    row = budget.release(begun.release_id)
    assert (row.state, row.artifact_digest) == ("committed", "d" * 64)
    assert row == budget.find("run") == budget.statement(POPULATION).releases[0]
    assert isinstance(row, Release)
    assert event_names(budget) == [
        "ledger_created",
        "budget_opened",
        "release_reserved",
        "release_begun",
        "step_kept",
        "release_resumed",
        "release_committed",
    ]
    assert budget.verify() == 7


ENDS: dict[str, Callable[[Ledger, str], None]] = {
    "abandoned": Ledger.abandon,
    "closed": Ledger.close,
    "committed": commit,
}


@pytest.mark.parametrize("state", ENDS)
def test_an_ended_release_never_begins_again(budget: Ledger, state: str) -> None:
    release_id = reserve(budget).release_id
    assert key_names(budget) == {release_id}
    if state != "abandoned":
        budget.begin(release_id).keep(0, ANSWER)
    for _ in range(2):
        ENDS[state](budget, release_id)
    assert reserve(budget).state == state
    assert key_names(budget) == set()
    assert not (budget.home / "staging" / release_id).exists()
    message = "was finished by another process" if state == "committed" else f"is {state}; ask again under another"
    with pytest.raises(Refused, match=message):
        budget.begin(release_id)
    for other in ENDS.keys() - {state}:
        with pytest.raises(Refused, match=f"is {state}"):
            ENDS[other](budget, release_id)


def test_abandoned_releases_cost_nothing_and_closed_ones_stay_charged(budget: Ledger) -> None:
    given_up = reserve(budget, "a", event=calibrated(EPSILON))
    budget.abandon(given_up.release_id)
    assert budget.statement(POPULATION).spent == 0
    begun = begin(budget, "b")
    spent = budget.statement(POPULATION).spent
    budget.close(begun.release_id)
    assert budget.statement(POPULATION).spent == spent > 0


def test_only_what_has_not_begun_is_abandoned_and_only_what_has_is_closed_or_committed(budget: Ledger) -> None:
    waiting, begun = reserve(budget, "waiting").release_id, begin(budget, "begun").release_id
    for end in (Ledger.close, commit):
        with pytest.raises(Refused, match="is reserved"):
            end(budget, waiting)
    with pytest.raises(Refused, match="is noising"):
        budget.abandon(begun)
    with pytest.raises(NotFound, match="not in this ledger"):
        budget.begin("nonesuch")


def test_a_commit_is_repeated_with_the_same_artifact_alone(budget: Ledger) -> None:
    begun, calls = begin(budget), []

    def record(connection: sa.Connection) -> int:
        calls.append(connection)
        return len(calls)

    for count in (1, 2):
        assert budget.commit(begun.release_id, artifact_digest="d", record=record) == count
    with pytest.raises(Finished, match="one release has one artifact"):
        budget.commit(begun.release_id, artifact_digest="e", record=record)
    assert len(calls) == 2
    assert event_names(budget).count("release_committed") == 1


def test_a_commit_whose_record_fails_did_not_happen(budget: Ledger) -> None:
    begun = begin(budget)

    def record(connection: sa.Connection) -> None:
        connection.execute(tables.alias.insert().values(name="n", alias="a", version=1))
        raise Conflict("no")

    with pytest.raises(Conflict):
        budget.commit(begun.release_id, artifact_digest="d", record=record)
    assert reserve(budget).state == "noising"
    assert len(begun.key) == 32
    with budget.transaction() as connection:
        assert connection.execute(sa.select(tables.alias)).all() == []


@pytest.mark.parametrize("relation", ["add_remove", "zero_out", "replace_one"])
def test_what_begins_says_whose_neighbours_were_charged_and_which_rows(ledger: Ledger, relation: str) -> None:
    """Of rows from before the reservation said so too: the terms never change, and a removed snapshot keeps its row."""
    open_budget(ledger, relation=relation)
    digest, catalog = "c" * 64, Catalog(ledger.engine, ledger.home)
    catalog.register(manifest(ledger.id), path="datasets/news/s")
    begun = begin(ledger)
    assert (begun.relation, begun.content) == (relation, digest)
    assert digest not in repr(begun)
    catalog.remove("news", force=True)
    assert ledger.begin(begun.release_id).content == digest


def test_a_snapshot_that_was_never_registered_has_no_digest(budget: Ledger) -> None:
    assert begin(budget).content is None
