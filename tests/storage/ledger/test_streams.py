"""Streams and their ticks: a stream is charged once and permanently, and its ticks are free.

Ticks are in order, one per slot, and each is bound to one snapshot.
"""

from collections.abc import Callable
from contextlib import suppress
from multiprocessing import get_context
from typing import Any

import pytest
import sqlalchemy as sa

from dpca.backends import atomic_files
from dpca.backends.atomic_files import STREAM_POINTS
from dpca.errors import BudgetExhausted, Conflict, Corrupt, Invalid, NotFound, Refused
from dpca_tasks.accounting.calibration import smallest_epsilon, units_of
from dpca_tasks.accounting.events import gaussian, stream_tick
from dpca_tasks.errors import InvalidInput
from storage.database import tables
from storage.datasets.catalog import Catalog
from storage.ledger import releases
from storage.ledger.ledger import Ledger
from storage.ledger.stream_rows import enter_tick
from storage.ledger.streams import fingerprint_of
from storage.workspace import Workspace
from tests.storage.releasing import (
    DELTA,
    NAME,
    POPULATION,
    TENTH,
    TERMS,
    answer_tick,
    begin_tick,
    commit,
    key_names,
    open_budget,
    open_stream,
    publish_tick,
    register,
    reserve,
)

SPLIT = gaussian(2 * TENTH["noise_multiplier"])


def spent(ledger: Ledger) -> float:
    return ledger.statement(POPULATION).spent


def test_a_stream_runs_to_its_end_on_either_database(budget: Ledger) -> None:
    register(budget)
    stream = open_stream(budget, ticks=2)
    before = spent(budget)
    assert [publish_tick(budget, slot).tick for slot in ("night 1", "night 2", "night 1")] == [1, 2, 1]
    with pytest.raises(Refused, match="all are used"):
        begin_tick(budget, "night 3")
    assert spent(budget) == before
    budget.verify()
    budget.streams.close(NAME)
    assert budget.release(stream.id).state == "closed"
    budget.verify()


class TestOpening:
    def test_opening_a_stream_charges_one_event_that_is_never_refunded(self, budget: Ledger) -> None:
        stream = open_stream(budget, ticks=365)
        assert stream.is_live
        assert stream.ticks == 365
        assert spent(budget) == smallest_epsilon(units_of(TENTH["noise_multiplier"]), DELTA)
        with pytest.raises(Refused, match="noising"):
            budget.abandon(stream.id)

    def test_opening_a_stream_again_is_free_with_equal_terms_and_refused_with_others(
        self, sqlite_budget: Ledger
    ) -> None:
        stream = open_stream(sqlite_budget)
        before = spent(sqlite_budget)
        assert open_stream(sqlite_budget) == stream
        for other in ({"clip_norm": 2.0}, {"ticks": 4}):
            with pytest.raises(Conflict, match="other terms"):
                open_stream(sqlite_budget, **other)
        assert spent(sqlite_budget) == before

    @pytest.mark.parametrize("kind", ["gdp", "renyi"])
    def test_a_stream_shares_a_budget_with_other_releases_under_both_filters(self, ledger: Ledger, kind: str) -> None:
        open_budget(ledger, filter=kind)
        register(ledger)
        reserve(ledger, "before")
        open_stream(ledger)
        begin_tick(ledger)
        reserve(ledger, "between")
        open_stream(ledger, name="another")
        together = spent(ledger)
        alone = [reserve(ledger, f"more {count}") for count in range(20 if kind == "renyi" else 6) if _fits(ledger)]
        assert len(alone) == (6 if kind == "gdp" else len(alone))
        with pytest.raises(BudgetExhausted):
            ledger.streams.open(
                POPULATION, name="third", ticks=3, event=gaussian(0.5), epsilon=1, delta=DELTA, terms=TERMS
            )
        assert ledger.find("stream third") is None
        assert spent(ledger) > together

    def test_opening_a_stream_requires_a_gaussian_event_and_ticks(self, sqlite_budget: Ledger) -> None:
        whole: dict[str, Any] = {"epsilon": 1.0, "delta": DELTA, "terms": TERMS}
        with pytest.raises(Invalid, match="a Gaussian event"):
            sqlite_budget.streams.open(POPULATION, name=NAME, ticks=1, event=stream_tick("x", 1, 1.0), **whole)
        with pytest.raises(Invalid, match="at least 1"):
            sqlite_budget.streams.open(POPULATION, name=NAME, ticks=0, event=TENTH, **whole)

    def test_opening_a_closed_stream_again_charges_a_new_stream(self, sqlite_budget: Ledger) -> None:
        first = open_stream(sqlite_budget)
        once = spent(sqlite_budget)
        assert not sqlite_budget.streams.close(NAME).is_live
        assert spent(sqlite_budget) == once
        second = open_stream(sqlite_budget)
        assert second.id != first.id
        assert spent(sqlite_budget) > once
        assert [stream.id for stream in sqlite_budget.streams.all()] == [first.id, second.id]


def _fits(ledger: Ledger) -> bool:
    return ledger.quote(POPULATION, TENTH, epsilon=1.0, delta=DELTA).refusal is None


class TestExtending:
    def test_an_extension_is_charged_once_and_states_the_guarantee_of_all_ticks(self, budget: Ledger) -> None:
        register(budget)
        open_stream(budget, ticks=1)
        publish_tick(budget)
        with pytest.raises(Refused, match="all are used"):
            begin_tick(budget, "night 2")
        budget.streams.extend(NAME, ticks=2, event=SPLIT, epsilon=0.1, after=1)
        after = spent(budget)
        units = units_of(TENTH["noise_multiplier"]) + units_of(SPLIT["noise_multiplier"])
        assert after == smallest_epsilon(units, DELTA)
        assert budget.streams.extend(NAME, ticks=2, event=SPLIT, epsilon=0.1, after=1).ticks == 2
        assert spent(budget) == after
        assert budget.release(begin_tick(budget, "night 2").release_id).epsilon == after

    def test_an_extension_of_an_already_extended_or_closed_stream_is_refused(self, sqlite_budget: Ledger) -> None:
        open_stream(sqlite_budget, ticks=1)
        sqlite_budget.streams.extend(NAME, ticks=2, event=SPLIT, epsilon=0.1, after=1)
        with pytest.raises(Conflict, match="now charged for 2 ticks, not 1"):
            sqlite_budget.streams.extend(NAME, ticks=5, event=SPLIT, epsilon=0.1, after=1)
        sqlite_budget.streams.close(NAME)
        with pytest.raises(Refused, match="closed permanently"):
            sqlite_budget.streams.extend(NAME, ticks=5, event=SPLIT, epsilon=0.1, after=2)


class TestTicks:
    @pytest.fixture
    def opened(self, sqlite_budget: Ledger) -> Ledger:
        """Return a ledger with a stream of three ticks, and a snapshot."""
        register(sqlite_budget)
        open_stream(sqlite_budget)
        return sqlite_budget

    def test_ticks_are_free_and_shown_as_one_gaussian_release_each(self, opened: Ledger) -> None:
        before = spent(opened)
        nights = [publish_tick(opened, f"night {number}") for number in (1, 2, 3)]
        assert spent(opened) == before
        assert [night.tick for night in nights] == [1, 2, 3]
        assert {night.state for night in nights} == {"committed"}
        assert len(opened.history(POPULATION)) == 1
        assert key_names(opened) == set()
        assert opened.verify() > 0

    def test_ticks_reserve_one_gaussian_and_other_reservations_cannot_be_ticks(self, opened: Ledger) -> None:
        tick = begin_tick(opened)
        assert opened.begin(tick.release_id).event == gaussian(TERMS["noise_multiplier"])
        for stream in (tick.stream, "nobody's"):
            with pytest.raises(InvalidInput, match="no separate price"):
                reserve(opened, "free", event=stream_tick(stream, 2, 1.0))

    def test_each_slot_has_one_tick_with_its_first_snapshot(self, opened: Ledger) -> None:
        first = begin_tick(opened)
        register(opened, "t")
        assert begin_tick(opened) == first
        assert first.snapshot_id == "s" * 32
        answer_tick(opened, first)
        commit(opened, first.release_id)
        again = begin_tick(opened)
        assert (again.release_id, again.state) == (first.release_id, "committed")
        assert begin_tick(opened, "night 2").snapshot_id == "t" * 32

    def test_begun_ticks_are_refused_with_other_data(self, opened: Ledger) -> None:
        begin_tick(opened)
        corrected = register(opened, "t")
        with pytest.raises(Conflict, match="the next tick includes corrected data"):
            begin_tick(opened, snapshot_id=corrected)

    def test_a_night_without_new_data_has_a_tick_and_a_missed_night_has_none(self, opened: Ledger) -> None:
        first, third = publish_tick(opened, "night 1"), publish_tick(opened, "night 3")
        assert (third.tick, third.snapshot_id) == (2, first.snapshot_id)

    def test_ticks_out_of_order_with_other_terms_or_unpaid_are_refused(self, opened: Ledger) -> None:
        with pytest.raises(Conflict, match="other terms"):
            begin_tick(opened, fingerprint=fingerprint_of({**TERMS, "clip_norm": 2.0}))
        begin_tick(opened)
        with pytest.raises(Refused, match=r"tick 1 .* is under way for slot 'night 1'"):
            begin_tick(opened, "night 2")
        answer_tick(opened, begin_tick(opened))
        commit(opened, begin_tick(opened).release_id)
        for slot in ("night 2", "night 3"):
            publish_tick(opened, slot)
        with pytest.raises(Refused, match="charged for 3 ticks, and all are used"):
            begin_tick(opened, "night 4")
        with pytest.raises(NotFound, match="stream 'unheard-of' does not exist"):
            opened.streams.show("unheard-of")

    def test_ticks_closed_by_an_operator_are_used_up(self, opened: Ledger) -> None:
        tick = begin_tick(opened)
        assert opened.streams.close_tick(NAME, 1).state == "closed"
        assert key_names(opened) == set()
        with pytest.raises(Refused, match="closed"):
            opened.begin(tick.release_id)
        assert publish_tick(opened, "night 2").tick == 2
        with pytest.raises(Refused, match="published"):
            opened.streams.close_tick(NAME, 2)
        with pytest.raises(NotFound, match="not 7"):
            opened.streams.close_tick(NAME, 7)

    def test_ticks_end_with_their_stream(self, opened: Ledger) -> None:
        tick = begin_tick(opened)
        opened.streams.close(NAME)
        assert opened.release(tick.release_id).state == "closed"
        with pytest.raises(Refused, match="closed permanently"):
            begin_tick(opened, "night 2")

    def test_ticks_of_a_stream_whose_charge_was_closed_are_refused(self, opened: Ledger) -> None:
        opened.close(opened.streams.show(NAME)[0].id)
        with pytest.raises(Refused, match="closed permanently"):
            begin_tick(opened)

    def test_ticks_never_use_an_older_snapshot_than_their_predecessors(self, opened: Ledger) -> None:
        newest = register(opened, "t")
        assert publish_tick(opened).number == 2
        Catalog(opened.engine, opened.home).remove("news", snapshot=newest, force=True)
        with pytest.raises(Refused, match="the number of arrived records must not decrease"):
            begin_tick(opened, "night 2")
        register(opened, "u")
        assert begin_tick(opened, "night 2").number == 3

    @pytest.mark.parametrize(
        ("epochs", "found"),
        [
            (["one", "one", "one"], ["one", "one", "one"]),
            (["one", None, "one"], ["one", "unknown", "unknown"]),
            (["one", "two", "one"], ["one", "unknown", "unknown"]),
            ([None, "one", "one"], ["unknown", "unknown", "unknown"]),
        ],
    )
    def test_ticks_keep_the_first_seen_table_of_the_first_tick_or_none(
        self, opened: Ledger, epochs: list[str | None], found: list[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        shown = iter(epochs)
        monkeypatch.setattr("storage.ledger.stream_rows.epoch_of", lambda _: next(shown))
        seen = []
        for slot in ("night 1", "night 2", "night 3"):
            seen.append(begin_tick(opened, slot))
            commit(opened, seen[-1].release_id)
        assert [tick.arrivals for tick in seen] == found

    def test_each_tick_has_one_answer(self, opened: Ledger) -> None:
        tick = begin_tick(opened)
        digest = answer_tick(opened, tick)
        assert answer_tick(opened, tick) == digest
        with pytest.raises(Conflict, match="another answer is recorded"):
            opened.streams.answered(tick, digest="0" * 64)
        assert opened.streams.show(NAME)[1][0].answer == digest


# every second crash point; `tests.crash.soak_streams` kills the process at each
@pytest.mark.parametrize("point", STREAM_POINTS[::2])
def test_a_crash_at_any_point_leaves_one_charge_and_the_same_ticks(
    sqlite_budget: Ledger, point: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    register(sqlite_budget)

    def run(ledger: Ledger) -> None:
        open_stream(ledger)
        for slot in ("night 1", "night 2"):
            publish_tick(ledger, slot)

    def die(reached: str) -> None:
        if reached == point:
            raise KeyboardInterrupt

    crashed = 0
    monkeypatch.setattr(atomic_files, "hook", die)
    for _ in range(3):
        with suppress(KeyboardInterrupt):
            run(sqlite_budget)
            break
        crashed += 1
    assert crashed
    monkeypatch.setattr(atomic_files, "hook", None)
    ledger = Workspace.open().ledger
    run(ledger)
    stream, ticks = ledger.streams.show(NAME)
    assert [(tick.tick, tick.slot, tick.state) for tick in ticks] == [
        (1, "night 1", "committed"),
        (2, "night 2", "committed"),
    ]
    assert len(stream.charges) == 1
    assert spent(ledger) == smallest_epsilon(units_of(TENTH["noise_multiplier"]), DELTA)
    ledger.verify()


def _fire(index: int) -> str:
    return begin_tick(Workspace.open().ledger, "night 1").release_id


def test_a_slot_that_runs_in_many_processes_at_once_is_one_tick(sqlite_budget: Ledger) -> None:
    register(sqlite_budget)
    open_stream(sqlite_budget)
    with get_context("fork").Pool(4) as pool:
        assert len(set(pool.map(_fire, range(8)))) == 1
    assert len(sqlite_budget.streams.show(NAME)[1]) == 1


class TestVerification:
    """Replays of the journal: a missing requirement of a tick is detected, whatever the rows state."""

    @pytest.mark.parametrize(
        ("forge", "text"),
        [
            pytest.param(
                lambda ledger, stream: _forge_tick(ledger, stream, tick=1, paid=False),
                "no live stream was charged",
                id="unpaid",
            ),
            pytest.param(
                lambda ledger, stream: _forge_tick(ledger, stream, tick=9), "no live stream was charged", id="too-late"
            ),
            pytest.param(
                lambda ledger, stream: _forge_tick(ledger, stream, tick=2),
                "before the previous tick",
                id="out-of-order",
            ),
            pytest.param(
                lambda ledger, stream: _forge_release(ledger, stream), "assigns it to no stream", id="no-tick"
            ),
        ],
    )
    def test_a_tick_without_a_charge_is_detected(
        self, sqlite_budget: Ledger, forge: Callable[[Ledger, str], None], text: str
    ) -> None:
        forge(sqlite_budget, open_stream(sqlite_budget).id)
        with pytest.raises(Corrupt, match=text):
            sqlite_budget.verify()

    def test_a_manually_changed_row_of_a_tick_is_detected(self, sqlite_budget: Ledger) -> None:
        register(sqlite_budget)
        open_stream(sqlite_budget)
        publish_tick(sqlite_budget)
        edits = {
            "tick": ("UPDATE tick SET number = 7", "tick 1 of stream"),
            "stream": ("UPDATE stream SET terms = '{}'", "row of stream"),
            "stream_charge": ("UPDATE stream_charge SET ticks = 9", "but its row is missing"),
            "tick_answer": ("UPDATE tick_answer SET digest = 'x'", "answer of tick 1"),
        }
        for table, (edit, text) in edits.items():
            with sqlite_budget.engine.begin() as connection:
                connection.exec_driver_sql(f"DROP TRIGGER {table}_no_update")
                (before,) = connection.execute(sa.select(tables.metadata.tables[table])).mappings().all()
                connection.exec_driver_sql(edit)
            with pytest.raises(Corrupt, match=text):
                sqlite_budget.verify()
            with sqlite_budget.engine.begin() as connection:
                connection.execute(tables.metadata.tables[table].update().values(**before))
        sqlite_budget.verify()


def _forge_release(ledger: Ledger, stream: str, tick: int = 1) -> str:
    accounting = ledger.budget(POPULATION).build_filter().accounting
    with ledger.transaction() as connection:
        row: dict[str, Any] = {"id": "f" * 32, "population": POPULATION, "run_key": "forged", "fingerprint": "f"}
        row |= {"snapshot_id": "s" * 32, "request": {}, "event": stream_tick(stream, tick, 1.0), "epsilon": 1.0}
        row |= {"delta": DELTA, "accounting": accounting}
        releases.enter_release(connection, row, charge=(0,) * 4, state="reserved")
    return "f" * 32


def _forge_tick(ledger: Ledger, stream: str, *, tick: int, paid: bool = True) -> None:
    if not paid:
        ledger.streams.close(NAME)
    release = _forge_release(ledger, stream, tick)
    bound = {"stream": stream, "tick": tick, "slot": "forged", "release_id": release, "snapshot_id": "s" * 32}
    with ledger.transaction() as connection:
        enter_tick(connection, {**bound, "number": 0, "arrivals": "ids"})
