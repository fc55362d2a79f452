"""A look that goes on from an earlier one finds every edit: what was spent at once, and all else within a round."""

from dataclasses import replace
from typing import Any

import pytest
import sqlalchemy as sa

from storage.database.engine import transaction
from storage.datasets.catalog import Catalog
from storage.errors import Corrupt
from storage.ledger import partial_check
from storage.ledger.journal_check import Compared, compare
from storage.ledger.ledger import Ledger
from storage.ledger.partial_check import compare_part, look_over
from storage.registry.publishing import add_version, promote
from tests.storage.ledger.edits import EDITS
from tests.storage.releasing import ANSWER, begin, commit, manifest, open_budget, reserve
from tests.storage.streaming import open_stream, publish_tick, register

AT_ONCE = ("a larger budget", "a smaller charge", "a refund", "another champion")
"""The edits of a budget, an alias, or of what a population has spent."""
PART = 5


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partial_check, "PART", PART)


def known_of(ledger: Ledger) -> Compared:
    with transaction(ledger.engine) as connection:
        return compare(connection)


def after(ledger: Ledger, known: Compared) -> Compared:
    """Look at what is new, which must be enough."""
    with transaction(ledger.engine) as connection:
        return compare_part(connection, known)[0]


def looks_to_find(ledger: Ledger, known: Compared, statement: str, **values: Any) -> int | None:
    """Edit something, return how many looks it takes to find it, at most a round, and put it back."""
    with ledger.engine.connect() as connection:
        assert connection.execute(sa.text(statement), values).rowcount > 0
        for look in range(1, 2 + known.entries // PART):
            try:
                known = look_over(connection, known).known
            except Corrupt:
                connection.rollback()
                return look
        connection.rollback()
    return None


def test_a_row_that_was_edited_is_found_within_a_round(used: Ledger) -> None:
    known = known_of(used)
    for name, (statement, _, _) in EDITS.items():
        values = {"zero": bytes(64)} if ":zero" in statement else {}
        looks = looks_to_find(used, known, statement, **values)
        assert looks is not None, name
        assert name not in AT_ONCE or looks == 1, name


def test_a_row_that_was_removed_or_put_in_is_found_at_once(used_on_sqlite: Ledger) -> None:
    known = known_of(used_on_sqlite)
    for statement in (
        "DELETE FROM step",
        "DELETE FROM alias WHERE alias = 'shadow'",
        "DELETE FROM version",
        "INSERT INTO version SELECT 'other', 1, digest, release_id, created_at FROM version",
        "INSERT INTO alias VALUES ('map', 'third', 1)",
    ):
        assert looks_to_find(used_on_sqlite, known, statement) == 1, statement


def test_any_entry_that_was_edited_dropped_or_exchanged_is_found_within_a_round(used_on_sqlite: Ledger) -> None:
    known = known_of(used_on_sqlite)
    edits = ("UPDATE event SET at = '2000-01-01' WHERE seq = :seq", "DELETE FROM event WHERE seq = :seq")
    exchange = "UPDATE event SET seq = CASE seq WHEN :seq THEN -1 ELSE :seq END WHERE seq IN (:seq, :seq + 1)"
    for seq in range(1, known.entries + 1):
        for edit in edits:
            assert looks_to_find(used_on_sqlite, known, edit, seq=seq) is not None, (edit, seq)
        if seq < known.entries:
            assert looks_to_find(used_on_sqlite, known, exchange, seq=seq) is not None, (exchange, seq)


def test_a_total_that_was_edited_is_found_at_once_also_where_it_agrees_with_the_charges(used_on_sqlite: Ledger) -> None:
    known = known_of(used_on_sqlite)
    assert looks_to_find(used_on_sqlite, known, "UPDATE charged_total SET releases = releases + 1") == 1
    count, charge = known.totals["people"]
    forged = {**known.totals, "people": (count, (0,) * len(charge))}
    with pytest.raises(Corrupt, match="another sum"):
        after(used_on_sqlite, replace(known, totals=forged))


def _new_budget(ledger: Ledger) -> None:
    open_budget(ledger, "others")


def _new_snapshot(ledger: Ledger) -> None:
    catalog = Catalog(ledger.engine, ledger.home)
    admitted = catalog.admit(name="news", population="people")
    catalog.register(manifest(admitted, snapshot="t" * 32), path="datasets/news/t")


def _new_alias(ledger: Ledger) -> None:
    with ledger.transaction() as connection:
        promote(connection, name="map", version=1, alias="third")


def _second_name(ledger: Ledger) -> None:
    with ledger.transaction() as connection:
        release, digest = connection.exec_driver_sql("SELECT release_id, digest FROM version").one()
        add_version(connection, name="other", digest=digest, release_id=release)


def _ended(ledger: Ledger) -> None:
    begun = begin(ledger, "begun")
    begun.keep(0, ANSWER)
    commit(ledger, begun.release_id)
    ledger.abandon(reserve(ledger, "waiting").release_id)


def _ticks(ledger: Ledger) -> None:
    register(ledger, "u")
    open_stream(ledger, ticks=3)
    publish_tick(ledger)


def test_whatever_happens_agrees_without_a_look_at_everything(used: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    known = known_of(used)
    monkeypatch.setattr(partial_check, "PART", 30)
    for happen in (_new_budget, _new_snapshot, _new_alias, _second_name, _ended, _ticks):
        happen(used)
        known = after(used, known)
        assert replace(known, read_to=0) == replace(known_of(used), read_to=0), happen.__name__


def test_the_parts_of_a_round_are_all_entries(used_on_sqlite: Ledger) -> None:
    known = known_of(used_on_sqlite)
    read: list[int] = []
    for _ in range(-(-known.entries // PART)):
        with transaction(used_on_sqlite.engine) as connection:
            found = look_over(connection, known)
        assert found.part is not None
        read += range(found.part[0], found.part[1] + 1)
        known = found.known
    assert read == [*range(1, known.entries + 1)]


def test_everything_is_read_where_the_earlier_look_is_of_another_history(used_on_sqlite: Ledger) -> None:
    known = known_of(used_on_sqlite)
    with transaction(used_on_sqlite.engine) as connection:
        for other in (replace(known, head="f" * 64), replace(known, entries=known.entries + 1)):
            assert look_over(connection, other).part is None
    begin(used_on_sqlite, "one")
    begin(used_on_sqlite, "two")
    begin(used_on_sqlite, "three")
    with transaction(used_on_sqlite.engine) as connection:
        assert look_over(connection, known).known.read_to == known.entries + 7, "more was new than a look reads"


def test_a_tick_that_nothing_pays_for_is_found_among_what_is_new(used_on_sqlite: Ledger) -> None:
    known = known_of(used_on_sqlite)
    with used_on_sqlite.transaction() as connection:
        forged = "UPDATE release SET event = :event WHERE run_key = 'begun'"
        connection.execute(sa.text(forged), {"event": '{"name": "stream_tick"}'})
    with pytest.raises(Corrupt):
        after(used_on_sqlite, known)
