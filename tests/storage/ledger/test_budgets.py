"""What a budget's default terms are, what they exclude, and what a refusal says of it."""

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from dpca_tasks.accounting.calibration import gaussian_noise_multiplier
from storage.database import tables
from storage.datasets.catalog import Catalog
from storage.errors import BudgetExhausted, Conflict, Refused
from storage.ledger.ledger import Ledger
from storage.privacy_unit import PrivacyUnit
from tests.storage.releasing import (
    DELTA,
    POPULATION,
    calibrated,
    event_names,
    gaussian,
    manifest,
    open_budget,
    reserve,
)

TERMS: dict[str, Any] = {"epsilon": 4.0, "delta": DELTA}
SAMPLED = {
    "name": "self_composed",
    "count": 20,
    "event": {"name": "poisson_sampled", "rate": 0.01, "event": gaussian(1.2)},
}


def pure(epsilon: float, delta: float = 0.0) -> dict[str, Any]:
    return {"name": "approximate", "epsilon": epsilon, "delta": delta}


def ask(ledger: Ledger, run_key: str, event: Mapping[str, Any], *, epsilon: float = 1.0, delta: float = 0.0) -> None:
    ledger.reserve(
        POPULATION,
        run_key=run_key,
        fingerprint="f",
        event=event,
        epsilon=epsilon,
        delta=delta,
        snapshot_id="s" * 32,
        request={},
    )


def test_a_tenth_of_delta_is_set_aside_unless_told_otherwise(ledger: Ledger) -> None:
    assert ledger.open_budget("usual", **TERMS).failure_delta == pytest.approx(DELTA / 10)
    assert ledger.open_budget("none", **TERMS, failure_delta=0.0).failure_delta == 0
    assert ledger.open_budget("half", **TERMS, failure_delta=DELTA / 2).failure_delta == DELTA / 2


@pytest.mark.parametrize("stands", [0.0, None, DELTA / 4])
def test_opening_again_without_saying_takes_what_stands(ledger: Ledger, stands: float | None) -> None:
    """A nightly script that was written when the default was 0 goes on, with the terms of then."""
    first = ledger.open_budget(POPULATION, **TERMS, failure_delta=stands)
    assert ledger.open_budget(POPULATION, **TERMS) == first
    assert ledger.open_budget(POPULATION, **TERMS, failure_delta=first.failure_delta) == first
    for other in ({"failure_delta": DELTA / 3}, {"epsilon": 5.0}, {"delta": DELTA / 2}, {"delta": DELTA / 100}):
        with pytest.raises(Conflict, match="never change"):
            ledger.open_budget(POPULATION, **{**TERMS, **other})
    assert event_names(ledger).count("budget_opened") == 1


def test_the_default_costs_a_gaussian_less_than_a_hundredth() -> None:
    for epsilon in (0.1, 1.0, 4.0, 10.0):
        for delta in (1e-5, 1e-6, 1e-9):
            noise = [gaussian_noise_multiplier(epsilon=epsilon, delta=part * delta) for part in (1.0, 0.9)]
            assert 1 < noise[1] / noise[0] < 1.01


@pytest.mark.parametrize("event", [pure(0.5), pure(0.5, 1e-8), SAMPLED], ids=["pure", "approximate", "sampled"])
@pytest.mark.parametrize("filter_", ["gdp", "renyi"])
def test_default_terms_take_every_kind_of_event_after_a_gaussian(
    sqlite_ledger: Ledger, event: Mapping[str, Any], filter_: str
) -> None:
    sqlite_ledger.open_budget(POPULATION, **TERMS, filter=filter_)
    reserve(sqlite_ledger, "first", event=calibrated(0.5))
    ask(sqlite_ledger, "other", event, epsilon=0.5, delta=1e-8)
    reserve(sqlite_ledger, "last", event=calibrated(0.5))


def test_a_pure_request_after_a_gaussian_hears_the_cause_and_what_still_fits(sqlite_ledger: Ledger) -> None:
    """It said "has epsilon 3.81729 left for one release, 1 at delta 0 was asked; ask for less"."""
    sqlite_ledger.open_budget(POPULATION, **TERMS, failure_delta=0.0)
    reserve(sqlite_ledger, "first", event=calibrated(1.0))
    with pytest.raises(BudgetExhausted, match=r"epsilon 3\.81729 left for one Gaussian release; since its first") as no:
        ask(sqlite_ledger, "pure", pure(1.0))
    said = str(no.value)
    assert "charged as the Gaussian that dominates it: 1 at delta 0 would take 6.2073" in said
    most = float(re.search(r"--epsilon ([0-9.]+) and --delta 0 of a pure one\.", said)[1])  # type: ignore[index]
    with pytest.raises(BudgetExhausted):
        ask(sqlite_ledger, "more", pure(1.001 * most))
    ask(sqlite_ledger, "most", pure(most))


@pytest.mark.parametrize("filter_", ["gdp", "renyi"])
@pytest.mark.parametrize("failure_delta", [None, 0.0])
def test_what_a_refusal_says_still_fits_does(sqlite_ledger: Ledger, filter_: str, failure_delta: float | None) -> None:
    """A request for all of delta was told to be one without privacy, and to insist on that."""
    sqlite_ledger.open_budget(POPULATION, **TERMS, filter=filter_, failure_delta=failure_delta)
    reserve(sqlite_ledger, "first", event=calibrated(1.0))
    with pytest.raises(BudgetExhausted, match=r"its first Gaussian release.*; nothing was charged") as no:
        ask(sqlite_ledger, "rough", pure(1.0, DELTA), delta=DELTA)
    epsilon, delta = re.search(r"--epsilon (\S+) and --delta (\S+?)(?:\.$| of)", str(no.value)).groups()  # type: ignore[union-attr]
    assert (float(delta) > 0) == (failure_delta is None)
    ask(sqlite_ledger, "most", pure(float(epsilon), float(delta)), delta=float(delta))


def test_a_gaussian_request_beyond_the_rest_hears_of_no_other_kind(sqlite_ledger: Ledger) -> None:
    sqlite_ledger.open_budget(POPULATION, **TERMS)
    reserve(sqlite_ledger, "first", event=calibrated(1.0))
    with pytest.raises(BudgetExhausted, match=r"left for one release, 1 at delta 1e-06 was asked"):
        reserve(sqlite_ledger, "large", event=calibrated(3.9))


@pytest.mark.parametrize(
    ("declared", "delta", "refused"),
    [
        ((), 9e-6, False),
        ((), 1e-5, True),
        ((200,), 1e-3, False),
        ((200,), 5e-3, True),
        ((200, 5000), 1e-3, True),
        ((200, None), 1e-3, True),
        ((10**7,), 1e-6, True),
    ],
)
def test_a_budgets_delta_is_below_one_over_the_records(
    ledger: Ledger, declared: tuple[int | None, ...], delta: float, *, refused: bool
) -> None:
    facts = {"population": POPULATION, "n_features": 3, "path": "p", "content_digest": "c", "created_at": "now"}
    with ledger.transaction() as connection:
        for number, bound in enumerate((*declared, 10**9)):
            row = {"id": str(number), "name": f"data {number}", "records_at_most": bound, **facts}
            others = {"population": "others"} if number == len(declared) else {}
            connection.execute(tables.snapshot.insert().values(**(row | others)))
    if refused:
        with pytest.raises(Refused, match=r"is not below 1/records_at_most=.*--allow-large-delta"):
            ledger.open_budget(POPULATION, epsilon=1.0, delta=delta)
        assert "budget_opened" not in event_names(ledger)
        ledger.open_budget(POPULATION, epsilon=1.0, delta=delta, allow_large_delta=True)
    ledger.open_budget(POPULATION, epsilon=1.0, delta=delta)  # the same terms again need no insisting


def test_the_newest_bound_of_a_dataset_counts(ledger: Ledger) -> None:
    facts = {"population": POPULATION, "name": "data", "n_features": 3, "path": "p", "content_digest": "c"}
    with ledger.transaction() as connection:
        for seq, bound in enumerate((None, 200)):
            row = {"id": str(seq), "records_at_most": bound, "created_at": "now", "seq": seq, **facts}
            connection.execute(tables.snapshot.insert().values(**row))
    ledger.open_budget(POPULATION, epsilon=1.0, delta=1e-3)


UNITS = (
    PrivacyUnit(),
    *(PrivacyUnit(name="patient_id", rows=rows) for rows in (None, 1, 3, 4)),
    PrivacyUnit(name="visit_id", rows=3),
)


@pytest.mark.parametrize("relation", ["add_remove", "zero_out", "replace_one"])
@pytest.mark.parametrize("unit", UNITS, ids=str)
def test_only_snapshots_of_the_unit_are_charged(sqlite_ledger: Ledger, unit: PrivacyUnit, relation: str) -> None:
    named = None if unit == PrivacyUnit() else unit.name
    open_budget(sqlite_ledger, relation=relation, unit=named, rows_per_unit=unit.rows)
    assert sqlite_ledger.budget("people").privacy_unit == unit
    catalog = Catalog(sqlite_ledger.engine, sqlite_ledger.home)
    for number, found in enumerate(UNITS):
        kept = None if found == PrivacyUnit() else found.rows
        facts: dict[str, Any] = {"dataset": f"d{number}", "snapshot": f"{number}" * 32, "rows_digest": f"{number}"}
        own = replace(manifest(sqlite_ledger.id), privacy_unit=found.name, max_rows_per_unit=kept, **facts)
        assert catalog.register(own, path=f"datasets/d{number}").privacy_unit == found
        if unit.covers(found):
            assert reserve(sqlite_ledger, f"run {number}", snapshot_id=own.snapshot).is_new
            continue
        before = sqlite_ledger.statement("people")
        with pytest.raises(Refused, match="as the unit of privacy, and dataset 'd") as refused:
            reserve(sqlite_ledger, f"run {number}", snapshot_id=own.snapshot)
        assert str(unit) in str(refused.value)
        assert str(found) in str(refused.value)
        assert sqlite_ledger.statement("people") == before
    assert sqlite_ledger.verify() > 0
