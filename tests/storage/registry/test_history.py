"""The history of an alias is what the journal says of its moves, on both databases, and of that name alone."""

import getpass

from storage.database.engine import transaction
from storage.ledger.ledger import Ledger
from storage.registry.history import alias_history
from storage.registry.publishing import promote
from tests.storage.releasing import publish


def moved(ledger: Ledger, name: str, version: int, alias: str = "champion") -> None:
    with ledger.transaction() as connection:
        promote(connection, name=name, version=version, alias=alias)


def test_every_move_is_told_with_what_the_alias_meant_before(budget: Ledger) -> None:
    for run in ("one", "two", "three"):
        publish(budget, run)
    publish(budget, "other", name="map.a")
    for version in (1, 2, 2, 1, 3):  # the third moves nothing
        moved(budget, "map", version)
    moved(budget, "map.a", 1)
    moved(budget, "map", 1, alias="challenger")
    with transaction(budget.engine) as connection:
        found = alias_history(connection, "map")
        every = alias_history(connection)
        assert alias_history(connection, "none") == ()
    assert [(move.alias, move.before, move.version) for move in found] == [
        ("champion", None, 1),
        ("champion", 1, 2),
        ("champion", 2, 1),
        ("champion", 1, 3),
        ("challenger", None, 1),
    ]
    assert [move.time for move in found] == sorted(move.time for move in found)
    assert {move.name for move in found} == {"map"}
    assert {move.actor for move in found} == {getpass.getuser()}
    assert [move.name for move in every] == ["map"] * 4 + ["map.a", "map"]


def test_a_move_is_told_with_the_facts_that_made_it(budget: Ledger) -> None:
    publish(budget, "one")
    with budget.transaction() as connection:
        promote(connection, name="map", version=1, alias="champion", why={"drift": 0.1})
        assert [dict(move.why) for move in alias_history(connection, "map")] == [{"drift": 0.1}]


def test_a_name_with_a_sign_that_databases_take_for_any_is_found_alone(budget: Ledger) -> None:
    for name in ("a_b", "axb"):
        publish(budget, f"run-{name}", name=name)
        moved(budget, name, 1)
    with transaction(budget.engine) as connection:
        assert [move.name for move in alias_history(connection, "a_b")] == ["a_b"]
