"""Private ridge regression as an estimator: the same release and model as through the command, charged once."""

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone

from dpca.errors import BudgetExhausted
from dpca_tasks.errors import InvalidInput
from flows.estimators import InMemoryBudget, PrivateRidge

RNG = np.random.default_rng(2)
ROWS = RNG.uniform(-1.0, 1.0, (8000, 3))
TARGET = ROWS @ [1.0, -0.5, 0.0] + 0.3 + RNG.normal(0, 0.1, 8000)


def test_a_fit_is_one_charge_and_predicts_within_its_errors() -> None:
    budget = InMemoryBudget(epsilon=3.0, delta=1e-5)
    model = PrivateRidge(epsilon=2.0, delta=1e-6, clip_norm=3.0, slot="first", budget=budget).fit(ROWS, TARGET)
    spent = budget.spent
    assert spent > 0
    again = clone(model).fit(ROWS, TARGET)
    assert budget.spent == spent
    assert np.array_equal(again.coef_, model.coef_)
    assert model.artifact_.n_features == 4
    derived = model.artifact_.ridge("3")
    assert derived.weights is not None
    assert derived.errors is not None
    assert np.array_equal(model.coef_, derived.weights[0])
    assert np.array_equal(model.ridge_coef_, derived.coefficients[0])
    assert np.array_equal(model.ridge_coef_errors_, derived.errors[0])
    assert np.allclose(model.predict(ROWS), derived.predict(ROWS))
    assert model.score(ROWS, TARGET) > 0.8
    assert model.r_squared_ > 0.8
    with pytest.raises(BudgetExhausted):
        PrivateRidge(epsilon=2.9, delta=1e-6, clip_norm=3.0, budget=budget).fit(ROWS, TARGET)


def test_columns_have_names_and_no_intercept_needs_no_mean() -> None:
    frame = pd.DataFrame(ROWS, columns=["a", "b", "c"])
    budget = InMemoryBudget(epsilon=9.0, delta=1e-5)
    model = PrivateRidge(epsilon=4.0, delta=1e-6, clip_norm=3.0, fit_intercept=False, budget=budget).fit(frame, TARGET)
    assert list(model.feature_names_in_) == ["a", "b", "c"]
    assert model.intercept_ == 0.0
    assert not model.artifact_.has_mean
    assert model.predict(frame).shape == (8000,)


def test_a_missing_bound_is_refused_and_noise_is_warned_of() -> None:
    budget = InMemoryBudget(epsilon=9.0, delta=1e-5)
    with pytest.raises(InvalidInput, match="clip_norm=None sets no bound"):
        PrivateRidge(budget=budget).fit(ROWS, TARGET)
    assert budget.spent == 0
    with pytest.warns(UserWarning, match="the noise hides whether the columns predict the target"):
        PrivateRidge(epsilon=0.01, clip_norm=3.0, budget=budget).fit(ROWS[:200], TARGET[:200])
