"""A budget in memory: one charge a release, refusals before any, and nothing to spend in another process."""

import copy
import os
import pickle

import pytest
from sklearn.base import clone

from flows.estimators import InMemoryBudget
from storage.errors import BudgetExhausted, Invalid
from tests.flows.estimators.rows import ROWS, TERMS, model


def test_the_same_rows_and_request_are_charged_once_and_have_the_same_components() -> None:
    budget = InMemoryBudget(**TERMS)
    first = model(budget=budget).fit(ROWS)
    assert budget.spent == pytest.approx(2.0, rel=1e-6)
    assert budget.remaining < 1e-3
    for again in (clone(first), copy.deepcopy(first), model(budget=budget)):
        assert again.fit(ROWS.copy()).components_.tobytes() == first.components_.tobytes()
    assert budget.spent == pytest.approx(2.0, rel=1e-6)
    assert copy.deepcopy(budget) is budget


def test_other_rows_or_requests_are_another_charge_which_a_spent_budget_refuses() -> None:
    budget = InMemoryBudget(**TERMS)
    model(budget=budget).fit(ROWS)
    for changed, rows in (({}, ROWS[1:]), ({"clip_norm": 20.0}, ROWS), ({"center": "none"}, ROWS)):
        with pytest.raises(BudgetExhausted, match="does not fit into InMemoryBudget") as refusal:
            model(budget=budget, **changed).fit(rows)
        assert "\n" not in str(refusal.value)


def test_a_release_of_one_budget_is_no_release_of_another() -> None:
    first, second = (model(budget=InMemoryBudget(**TERMS)).fit(ROWS) for _ in range(2))
    assert first.components_.tobytes() != second.components_.tobytes()


def test_an_unpickled_estimator_transforms_and_cannot_spend() -> None:
    fitted = model(budget=InMemoryBudget(**TERMS)).fit(ROWS)
    again = pickle.loads(pickle.dumps(fitted))
    assert again.transform(ROWS).tobytes() == fitted.transform(ROWS).tobytes()
    with pytest.raises(BudgetExhausted, match="another process"):
        again.fit(ROWS)


def test_a_forked_budget_cannot_spend_what_its_parent_spends_too(monkeypatch: pytest.MonkeyPatch) -> None:
    budget = InMemoryBudget(**TERMS)
    fitted = model(budget=budget, epsilon=1.0).fit(ROWS)
    monkeypatch.setattr(os, "getpid", lambda: -1)
    assert fitted.fit(ROWS).n_components_ == 2  # what was released is known there too
    with pytest.raises(BudgetExhausted, match="another process"):
        model(budget=budget, epsilon=0.5).fit(ROWS)


def test_a_budget_without_bound_says_so() -> None:
    with pytest.raises(Invalid, match="has no bound"):
        _ = InMemoryBudget().spent
    with pytest.raises(Invalid, match="state both, or neither"):
        InMemoryBudget(epsilon=1.0)
