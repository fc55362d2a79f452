"""Principal components by scikit-learn's conventions: what a fit says, what it refuses, and what it holds."""

from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn import config_context
from sklearn.base import clone
from sklearn.decomposition import PCA
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.utils import get_tags
from sklearn.utils.estimator_checks import check_estimator

from dpca_tasks.errors import InvalidInput, Refused
from flows.estimators import InMemoryBudget, PrivateMatrixFactorization, PrivatePCA
from storage.errors import BudgetExhausted, Conflict, Invalid
from tests.estimators.child import FRESH_NOISE, NON_DETERMINISTIC
from tests.flows.estimators.rows import ROWS, TERMS, model

NAMES = list("abcde")
FRAME = pd.DataFrame(ROWS, columns=NAMES, index=pd.RangeIndex(len(ROWS)) + 100)


@pytest.mark.filterwarnings("ignore::flows.estimators.RepeatedFitWarning")
def test_scikit_learn_finds_no_fault_but_that_two_fits_differ() -> None:
    """One check skips itself without a variable of the environment; `make estimators` sets it."""
    results = check_estimator(PrivatePCA(), on_skip=None, expected_failed_checks=FRESH_NOISE)
    found = {(result["check_name"], result["status"]) for result in results if result["status"] != "passed"}
    left_out = {(check, "skipped") for check in (*NON_DETERMINISTIC, "check_array_api_input")}
    assert found - left_out == {("check_fit_idempotent", "xfail")}
    assert len(results) > 40
    assert get_tags(PrivatePCA()).non_deterministic
    assert get_tags(PrivateMatrixFactorization()).non_deterministic


def test_variances_and_mean_are_those_of_pca_up_to_noise() -> None:
    """Fits of a hundredfold weaker noise than signal: relative errors of 0.1 are beyond twenty standard deviations."""
    private, plain = model(epsilon=50.0).fit(ROWS), PCA(2).fit(ROWS)
    assert private.explained_variance_ == pytest.approx(plain.explained_variance_, rel=0.1)
    assert private.explained_variance_ratio_ == pytest.approx(plain.explained_variance_ratio_, rel=0.1)
    assert private.noise_variance_ == pytest.approx(plain.noise_variance_, rel=0.1)
    assert private.mean_ == pytest.approx(plain.mean_, abs=0.3)
    assert np.abs((private.components_ * plain.components_).sum(axis=1)) == pytest.approx([1.0, 1.0], abs=0.05)


def test_around_the_origin_there_is_no_mean_and_variances_that_need_a_number_of_rows_are_unknown() -> None:
    fitted = model(center="none").fit(ROWS)
    assert fitted.mean_.tolist() == [0.0] * 5
    assert np.isnan(fitted.explained_variance_).all()
    assert np.isnan(fitted.noise_variance_)
    assert 0 < fitted.explained_variance_ratio_.sum() <= 1


def test_scores_and_rows_are_those_of_components_and_mean() -> None:
    fitted = model().fit(ROWS)
    scores = fitted.transform(ROWS)
    assert scores == pytest.approx((ROWS - fitted.mean_) @ fitted.components_.T)
    assert fitted.inverse_transform(scores) == pytest.approx(scores @ fitted.components_ + fitted.mean_)
    assert (fitted.n_components_, fitted.n_features_in_, fitted.clip_norm_) == (2, 5, 30.0)


@pytest.mark.parametrize("container", ["pandas", "polars"])
def test_scores_come_in_the_container_that_was_set(container: str) -> None:
    if container == "polars":
        pytest.importorskip("polars", reason="polars is in the environments of `make estimators` alone")
    fitted = model().fit(FRAME).set_output(transform=container)
    scores = fitted.transform(FRAME)
    assert list(scores.columns) == fitted.get_feature_names_out().tolist() == ["privatepca0", "privatepca1"]
    assert scores.to_numpy() == pytest.approx((ROWS - fitted.mean_) @ fitted.components_.T)
    with config_context(transform_output=container):
        assert list(model().fit(FRAME).transform(FRAME).columns) == ["privatepca0", "privatepca1"]
    if container == "pandas":
        assert scores.index.equals(FRAME.index)


def test_columns_have_the_names_and_the_order_of_the_fit() -> None:
    """As scikit-learn has it: columns in another order, or without one, are refused, never matched in silence."""
    fitted = model().fit(FRAME)
    assert fitted.feature_names_in_.tolist() == list(fitted.artifact_.manifest["feature_names"]) == NAMES
    with pytest.raises(ValueError, match="Feature names must be in the same order"):
        fitted.transform(FRAME[NAMES[::-1]])
    with pytest.raises(ValueError, match="Feature names seen at fit time, yet now missing"):
        fitted.transform(FRAME[NAMES[:4]])
    with pytest.raises(ValueError, match="Feature names unseen at fit time"):
        fitted.transform(FRAME.assign(f=1.0))
    with pytest.warns(UserWarning, match="X does not have valid feature names"):
        assert fitted.transform(ROWS) == pytest.approx(fitted.transform(FRAME))


@pytest.mark.filterwarnings("ignore::flows.estimators.RepeatedFitWarning")
def test_a_search_over_a_pipeline_is_one_release_for_each_fit() -> None:
    budget = InMemoryBudget()
    pipeline = make_pipeline(model(budget=budget), LogisticRegression())
    search = GridSearchCV(pipeline, {"privatepca__n_components": np.arange(1, 3)}, cv=2)
    for searches in (1, 2):
        search.fit(ROWS, ROWS[:, 0] > 3)
        assert search.best_estimator_[0].budget is budget
        assert len(budget.releases) == searches * (2 * 2 + 1)


def test_one_slot_for_a_whole_search_is_refused_at_its_second_candidate() -> None:
    """Its folds would all have the release of the first, rows that are held out there included."""
    pipeline = make_pipeline(model(slot="search"), LogisticRegression())
    search = GridSearchCV(pipeline, {"privatepca__n_components": [1, 2]}, cv=2, error_score="raise")
    with pytest.raises(Conflict, match=r"slot 'search' was charged with other terms \(n_components\)"):
        search.fit(ROWS, ROWS[:, 0] > 3)


def test_it_shows_the_parameters_that_were_changed() -> None:
    shown = repr(model(budget=InMemoryBudget(**TERMS)))
    assert "clip_norm=30.0" in shown
    assert "budget=InMemoryBudget(epsilon=2, delta=1e-06)" in shown
    assert "relation" not in shown
    budget = InMemoryBudget()
    assert clone(model(slot="a", budget=budget)).get_params() == model(slot="a", budget=budget).get_params()


@pytest.mark.parametrize(
    ("changed", "error", "message"),
    [
        ({"epsilon": None}, InvalidInput, "epsilon=None and delta=1e-06 promise nothing; state both"),
        ({"delta": None}, InvalidInput, "epsilon=2.0 and delta=None promise nothing; state both"),
        ({"epsilon": 0.0}, InvalidInput, "epsilon"),
        ({"clip_norm": None}, InvalidInput, "state a public bound, which is a norm that rows have by their kind"),
        ({"clip_norm": 0.0}, InvalidInput, "clip_norm"),
        ({"n_components": 5}, InvalidInput, "below n_features=5"),
        ({"n_components": 0.9}, InvalidInput, "n_components=0.9 must be a whole number, or 'auto'"),
        ({"n_components": None}, InvalidInput, "n_components=None must be a whole number, or 'auto'"),
        ({"delta": 0.01}, Refused, "is not below 1/records_at_most"),
        ({"records_at_most": 10}, Invalid, "more rows than records_at_most=10"),
        ({"relation": "replace_one"}, Invalid, "the budget is of 'add_remove'"),
        ({"mechanism": "nothing"}, InvalidInput, "unknown"),
        ({"mechanism": "non_private"}, Refused, "not private"),
        ({"budget": "patients"}, Invalid, "pass an InMemoryBudget, or"),
        ({"slot": ""}, InvalidInput, "slot='' must be printable text"),
        ({"slot": "a\nb"}, InvalidInput, "must be printable text"),
        ({"slot": 3}, InvalidInput, "slot=3 must be printable text"),
        ({"slot": "a" * 101}, InvalidInput, "slot has 101 characters, and at most 100"),
    ],
    ids=lambda value: "-".join(f"{name}={held}" for name, held in value.items()) if isinstance(value, dict) else "",
)
def test_what_cannot_be_private_is_refused_in_one_line_before_a_charge(
    changed: dict[str, Any], error: type[Exception], message: str
) -> None:
    budget = InMemoryBudget(**TERMS)
    with pytest.raises(error, match=message) as refusal:
        model(**{"budget": budget, **changed}).fit(ROWS)
    assert "\n" not in str(refusal.value)
    assert budget.spent == 0.0


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_rows_that_are_not_finite_are_refused(value: float) -> None:
    with pytest.raises(ValueError, match=r"NaN|infinity"):
        model().fit(np.where(ROWS[0, 0] == ROWS, value, ROWS))


def test_a_clip_norm_of_a_quantile_is_a_release_that_is_paid_for() -> None:
    """The norm is on the public grid of the histogram, and its epsilon is in the event that is charged."""
    budget = InMemoryBudget(**TERMS)
    fitted = model(clip_norm="quantile:0.9", budget=budget).fit(ROWS)
    assert np.log2(fitted.clip_norm_) * 4 == pytest.approx(round(np.log2(fitted.clip_norm_) * 4))
    assert fitted.artifact_.manifest["plan"]["clip_epsilon"] == 2.0 / 32
    assert 1.9 < budget.spent <= 2.0
    with pytest.raises(BudgetExhausted):
        model(epsilon=0.5, budget=budget).fit(ROWS)
