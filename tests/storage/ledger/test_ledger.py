"""Ledger: budgets are opened once, releases spend once, and spending is never undone."""

from collections.abc import Mapping
from typing import Any

import pytest

from dpca.errors import BudgetExhausted, Conflict, Invalid, NotFound, Refused
from dpca_tasks.accounting import filters
from dpca_tasks.errors import InvalidInput
from storage.ledger import releases
from storage.ledger.ledger import Ledger
from storage.workspace import Workspace
from tests.storage.releasing import (
    DELTA,
    EPSILON,
    POPULATION,
    calibrated,
    commit,
    event_names,
    gaussian,
    key_names,
    open_budget,
    reserve,
)

ROUGH = {"name": "approximate", "epsilon": 0.01, "delta": 1e-7}


def test_a_budget_is_opened_once_and_its_terms_never_change(budget: Ledger) -> None:
    open_budget(budget)
    for terms in (
        {"epsilon": 2.0},
        {"delta": 1e-5},
        {"relation": "replace_one"},
        {"filter": "renyi"},
        {"failure_delta": 1e-7},
    ):
        with pytest.raises(Conflict, match="never change"):
            open_budget(budget, **terms)
    assert budget.budget(POPULATION).epsilon == EPSILON
    assert event_names(budget) == ["ledger_created", "budget_opened"]


@pytest.mark.parametrize(
    "terms",
    [
        *({"epsilon": value} for value in (0.0, -1.0, float("nan"), float("inf"), 101.0)),
        *({"delta": value} for value in (0.0, -1.0, 1.0, float("nan"))),
        *({"failure_delta": value} for value in (-1e-9, DELTA, float("nan"))),
        {"relation": "swap"},
        {"filter": "pld"},
        *({"population": value} for value in ("", "  ", "a\nb", "a\0b", "x" * 501)),
    ],
    ids=str,
)
def test_terms_outside_their_domain_are_refused(sqlite_ledger: Ledger, terms: dict[str, object]) -> None:
    with pytest.raises(Invalid):
        open_budget(sqlite_ledger, **terms)  # type: ignore[arg-type]
    assert event_names(sqlite_ledger) == ["ledger_created"]


def test_a_population_without_a_budget_cannot_spend(sqlite_ledger: Ledger) -> None:
    for call in (sqlite_ledger.budget, sqlite_ledger.statement, sqlite_ledger.history):
        with pytest.raises(NotFound, match="dpca budget open"):
            call("nobody")
    with pytest.raises(NotFound, match="dpca budget open"):
        reserve(sqlite_ledger)


def test_each_population_has_a_separate_budget(budget: Ledger) -> None:
    open_budget(budget, "others", epsilon=2.0)
    reserve(budget, "a", event=calibrated(EPSILON))
    assert budget.statement("others").spent == 0
    assert budget.statement(POPULATION).spent == pytest.approx(EPSILON)


def test_ten_releases_fit_and_an_eleventh_is_refused_without_traces(budget: Ledger) -> None:
    for number in range(10):
        reserve(budget, f"run {number}")
    before, kept = event_names(budget), key_names(budget)
    with pytest.raises(BudgetExhausted, match=r"left for one release, and 1 at delta 1e-06 was requested"):
        reserve(budget, "one more")
    assert budget.find("one more") is None
    assert (event_names(budget), key_names(budget)) == (before, kept)
    statement = budget.statement(POPULATION)
    assert len(statement.releases) == 10
    assert statement.spent == pytest.approx(EPSILON, rel=1e-9)
    assert statement.remaining < 1e-3


def test_the_remaining_budget_can_be_requested_and_one_percent_more_cannot(budget: Ledger) -> None:
    reserve(budget, "a", event=calibrated(0.6))
    remaining = budget.statement(POPULATION).remaining
    more = budget.quote(POPULATION, calibrated(1.01 * remaining), epsilon=1.01 * remaining, delta=DELTA)
    assert str(more.refusal).startswith(f"budget {POPULATION!r} has epsilon {remaining:.6g} left")
    with pytest.raises(BudgetExhausted):
        reserve(budget, "b", event=calibrated(1.01 * remaining))
    quote = budget.quote(POPULATION, calibrated(remaining), epsilon=remaining, delta=DELTA)
    assert quote.refusal is None
    reserve(budget, "b", event=calibrated(remaining))
    assert budget.statement(POPULATION).spent == quote.spent


def test_the_same_run_key_is_the_same_release_in_every_state(budget: Ledger) -> None:
    first = reserve(budget)
    assert (first.is_new, first.state) == (True, "reserved")
    again = reserve(budget)
    assert (again.is_new, again.release_id) == (False, first.release_id)
    budget.begin(first.release_id)
    assert reserve(budget).state == "noising"
    commit(budget, first.release_id)
    assert reserve(Workspace.open().ledger).state == "committed"
    assert len(budget.statement(POPULATION).releases) == 1


def test_a_run_key_identifies_one_request_of_one_population(budget: Ledger) -> None:
    open_budget(budget, "others")
    reserve(budget)
    with pytest.raises(Conflict, match="belongs to another request"):
        reserve(budget, fingerprint="g")
    with pytest.raises(Conflict, match="belongs to another request"):
        reserve(budget, population="others")


@pytest.mark.parametrize("run_key", ["", " ", "a\0b", "a\nb", "x" * 501])
def test_invalid_run_keys_are_refused(sqlite_budget: Ledger, run_key: str) -> None:
    with pytest.raises(Invalid, match="run key"):
        reserve(sqlite_budget, run_key)


def test_a_noise_key_that_was_used_before_is_refused(budget: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(releases, "new_key", lambda: b"k" * 32)
    first = reserve(budget, "a")
    with pytest.raises(Conflict, match="a key serves only one release"):
        reserve(budget, "b")
    assert [row.run_key for row in budget.statement(POPULATION).releases] == ["a"]
    assert budget.begin(first.release_id).key == b"k" * 32


def test_events_outside_the_table_are_refused_by_the_ledger(sqlite_budget: Ledger) -> None:
    with pytest.raises(InvalidInput, match="ledger's table"):
        reserve(sqlite_budget, event={"name": "mystery"})


def test_sampled_steps_for_replaced_records_are_charged_by_way_of_the_emptied_record(sqlite_ledger: Ledger) -> None:
    """Charge a sampled event for replaced records: more than twice the epsilon of an added or removed record.

    The epsilon is computed at less than half of the delta.
    """
    event = {"name": "poisson_sampled", "rate": 0.01, "event": gaussian(5.0)}
    spent = {}
    for relation in ("add_remove", "replace_one"):
        open_budget(sqlite_ledger, relation, relation=relation)
        reserve(sqlite_ledger, relation, event=event, population=relation, delta=DELTA / 2)
        spent[relation] = sqlite_ledger.statement(relation).spent
    assert spent["replace_one"] > 2 * spent["add_remove"]


def test_failures_use_only_the_delta_reserved_for_them(sqlite_ledger: Ledger) -> None:
    open_budget(sqlite_ledger)
    open_budget(sqlite_ledger, "careful", failure_delta=2e-7)
    for population in (POPULATION, "careful"):  # from here on, all releases are charged as one composition
        reserve(sqlite_ledger, f"first of {population}", population=population)
    with pytest.raises(BudgetExhausted, match=r"opened with failure_delta=0, .*; one of delta 1e-07 was requested"):
        reserve(sqlite_ledger, event=ROUGH)
    for number in range(2):
        reserve(sqlite_ledger, f"run {number}", event=ROUGH, population="careful")
    with pytest.raises(BudgetExhausted, match=r"2e-07 of it is used and 1e-07 was requested"):
        reserve(sqlite_ledger, "run 2", event=ROUGH, population="careful")
    assert sqlite_ledger.statement("careful").remaining < EPSILON


def test_first_standalone_charges_cost_their_epsilon_and_state_the_remainder(sqlite_budget: Ledger) -> None:
    pure = {"name": "approximate", "epsilon": 0.4, "delta": 0.0}
    reserve(sqlite_budget, "one", event=pure)
    assert sqlite_budget.statement(POPULATION).spent == 0.4
    assert sqlite_budget.statement(POPULATION).remaining == pytest.approx(0.6)
    with pytest.raises(
        BudgetExhausted, match=r"has epsilon 0\.6 and delta 1e-06 left .* 0\.7 at delta 0 was requested"
    ):
        reserve(sqlite_budget, "two", event={**pure, "epsilon": 0.7})
    reserve(sqlite_budget, "three", event=calibrated(0.59))
    assert sqlite_budget.statement(POPULATION).spent == pytest.approx(0.99)
    with pytest.raises(BudgetExhausted):
        reserve(sqlite_budget, "four", event={**pure, "epsilon": 0.1})


def test_a_standalone_charge_is_refunded_only_before_the_composition_begins(sqlite_budget: Ledger) -> None:
    """Abandon the first, standalone charges: possible only until the first charge by composition.

    Otherwise, a person who saw the composition's answer could choose between its bound and the release.
    """
    pure = {"name": "approximate", "epsilon": 0.4, "delta": 0.0}
    first, second = (reserve(sqlite_budget, name, event=pure) for name in ("one", "two"))
    sqlite_budget.abandon(first.release_id)
    assert sqlite_budget.statement(POPULATION).spent == 0.4
    reserve(sqlite_budget, "three", event=calibrated(0.3))
    with pytest.raises(Refused, match="cannot be abandoned: later releases were admitted"):
        sqlite_budget.abandon(second.release_id)
    assert sqlite_budget.statement(POPULATION).spent == pytest.approx(0.7)


def test_a_release_without_privacy_needs_an_explicit_option_and_voids_the_budget(budget: Ledger) -> None:
    terms: dict[str, Any] = {"fingerprint": "f", "epsilon": float("inf"), "delta": 0.0, "request": {}}
    terms["snapshot_id"] = "s" * 32
    event = {"name": "self_composed", "event": {"name": "non_private"}, "count": 1}
    reserve(budget, "before")
    with pytest.raises(BudgetExhausted, match="i-know-this-is-not-private"):
        budget.reserve(POPULATION, run_key="plain", event=event, **terms)
    assert budget.statement(POPULATION).spent < EPSILON
    # --i-know-this-is-not-private does not relax any other limit
    with pytest.raises(BudgetExhausted, match="left for one release"):
        budget.reserve(POPULATION, run_key="dear", event=calibrated(2.0), void=True, **terms)
    for name in ("reference", "another"):
        granted = budget.reserve(POPULATION, run_key=name, event=event, void=True, **terms)
        assert budget.begin(granted.release_id).event == event
    statement = budget.statement(POPULATION)
    assert (statement.spent, statement.remaining) == (float("inf"), 0.0)
    assert event_names(budget).count("budget_voided") == 2
    with pytest.raises(BudgetExhausted, match="voided by a release without privacy"):
        reserve(budget, "after", event=gaussian(1e6))


OWN = {"name": "approximate", "epsilon": 0.4, "delta": 0.0}


@pytest.mark.parametrize("event", [calibrated(0.8), OWN], ids=["composed", "by itself"])
def test_charges_of_an_older_accounting_never_change(
    sqlite_budget: Ledger, monkeypatch: pytest.MonkeyPatch, event: Mapping[str, Any]
) -> None:
    """Change the price of an event that was admitted earlier: statements and later quotes must not change.

    The new price is higher or lower, for a charge by itself or by composition. Later requests are checked against the
    bounds fixed at the time.
    """
    reserve(sqlite_budget, "before", event=event)
    statement, history = sqlite_budget.statement(POPULATION), sqlite_budget.history(POPULATION)
    quote = sqlite_budget.quote(POPULATION, calibrated(0.5), epsilon=0.5, delta=DELTA)
    for price in ((0, 0, 1, 0), (0, 0, 2**60, 2**100)):
        with monkeypatch.context() as newer:
            newer.setattr(filters.GdpFilter, "accounting", "gdp-3")
            newer.setattr(filters.GdpFilter, "_composed", lambda *_, price=price, **__: price[2:])
            assert sqlite_budget.history(POPULATION) == history
            now = sqlite_budget.statement(POPULATION)
            assert (now.spent, now.remaining) == (statement.spent, statement.remaining)
    with monkeypatch.context() as newer:
        newer.setattr(filters.GdpFilter, "accounting", "gdp-3")
        again = sqlite_budget.quote(POPULATION, calibrated(0.5), epsilon=0.5, delta=DELTA)
        assert (again.spent, str(again.refusal)) == (quote.spent, str(quote.refusal))


def test_a_charge_in_unknown_units_is_refused(sqlite_budget: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as other:
        other.setattr(filters.GdpFilter, "accounting", "pld-1")
        reserve(sqlite_budget, "other")
    for call in (sqlite_budget.statement, sqlite_budget.history):
        with pytest.raises(Refused, match=r"'pld-1'.*never recomputed"):
            call(POPULATION)
    with pytest.raises(Refused, match="never recomputed"):
        reserve(sqlite_budget, "more")


@pytest.mark.parametrize("filter_", ["gdp", "renyi"])
def test_the_statement_agrees_with_the_history(sqlite_ledger: Ledger, filter_: str) -> None:
    open_budget(sqlite_ledger, epsilon=5.0, filter=filter_)
    assert sqlite_ledger.statement(POPULATION).spent == 0
    assert sqlite_ledger.history(POPULATION) == []
    for number in range(3):
        reserve(sqlite_ledger, f"run {number}", event=gaussian(10.0))
    given_up = reserve(sqlite_ledger, "given up", event=gaussian(10.0))
    sqlite_ledger.abandon(given_up.release_id)
    history, statement = sqlite_ledger.history(POPULATION), sqlite_ledger.statement(POPULATION)
    assert [row["release"] for row in history] == [row.id for row in statement.releases if row.state == "reserved"]
    assert (history[-1]["spent"], history[-1]["remaining"]) == (statement.spent, statement.remaining)
    assert 0 < history[0]["spent"] < history[1]["spent"] < history[2]["spent"]
    assert history[0]["remaining"] > history[1]["remaining"] > history[2]["remaining"] > 0
