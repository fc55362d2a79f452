"""In-memory budgets: public results depend on arguments and never on rows, and only one process can spend.

Estimators with such a budget in a notebook: scores, a picture, the release as HTML, and warnings about fits without a
guarantee.
"""

import copy
import os
import pickle
import warnings
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.compose import ColumnTransformer
from sklearn.decomposition import PCA
from sklearn.impute import SimpleImputer
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import FunctionTransformer, Normalizer, StandardScaler

import dpca
from dpca.errors import BudgetExhausted, Conflict, Invalid
from flows.estimators import (
    InMemoryBudget,
    LearnedStepWarning,
    NoLedgerWarning,
    PrivateMatrixFactorization,
    PrivatePCA,
    RepeatedFitWarning,
    memory,
)
from tests.flows.estimators.rows import NEIGHBOUR, ROWS, TERMS, model


def fail_after_the_charge(fitted: PrivatePCA, rows: np.ndarray) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(memory, "run_mechanism", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            fitted.fit(rows)


def outcome(second: np.ndarray, **changed: Any) -> list[Any]:
    """Fit twice, the second time on other rows; return all public results.

    The results are warnings, number of releases, spent budget and names.
    """
    budget = InMemoryBudget(5.0, 1e-6)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        fitted = [model(epsilon=1.0, budget=budget, **changed).fit(rows) for rows in (ROWS, second)]
    ids = [each.artifact_.manifest["release"] for each in fitted]
    shown = [(warning.category, str(warning.message)) for warning in caught]
    return [shown, ids, len(budget.releases), budget.spent, budget.remaining, repr(budget)]


@pytest.mark.parametrize("slot", [None, "a"])
def test_neighbours_have_equal_releases_charges_and_warnings(slot: str | None) -> None:
    """Repeat a fit on the same rows, on rows with one row changed, and on other rows: public results are equal."""
    same, changed, others = (outcome(rows, slot=slot) for rows in (ROWS.copy(), NEIGHBOUR, ROWS[::-1] * 0.5))
    assert same == changed == others
    assert same[2] == (2 if slot is None else 1)


def test_a_second_fit_with_equal_parameters_warns_before_it_is_charged() -> None:
    budget = InMemoryBudget(5.0, 1e-6)
    first = model(epsilon=1.0, budget=budget).fit(ROWS)
    spent = budget.spent
    with pytest.raises(RepeatedFitWarning, match=r"^fit 2 with equal parameters on InMemoryBudget.* slot='NAME'"):
        clone(first).fit(ROWS)  # a repeated fit warns, and pytest turns warnings into errors here
    assert budget.spent == spent
    assert len(budget.releases) == 1
    with pytest.warns(RepeatedFitWarning, match="fit 2 with equal parameters") as caught:
        model(epsilon=1.0, budget=budget).fit(NEIGHBOUR)
    assert [warning.filename for warning in caught] == [__file__]
    with pytest.warns(RepeatedFitWarning, match="fit 3 with equal parameters"):
        model(epsilon=1.0, budget=budget).fit(ROWS[:9])
    assert len(budget.releases) == 3


def test_fits_with_other_parameters_or_slots_do_not_warn() -> None:
    budget = InMemoryBudget()
    for changed in ({}, {"clip_norm": 20.0}, {"epsilon": 1.0}, {"slot": "a"}, {"slot": "b"}):
        model(**{"budget": budget, **changed}).fit(ROWS)
    assert len(budget.releases) == 5


def test_a_refused_fit_causes_no_later_warning() -> None:
    budget = InMemoryBudget(**TERMS)
    for _ in range(2):
        with pytest.raises(BudgetExhausted):
            model(epsilon=3.0, budget=budget).fit(ROWS)


def test_a_slot_is_charged_once_and_returned_for_any_rows() -> None:
    """Fit with a used slot on any rows: the stored release is returned, even for rows that would be refused.

    The rows are not read.
    """
    budget = InMemoryBudget(**TERMS)
    first = model(slot="a", budget=budget).fit(ROWS)
    assert budget.spent == pytest.approx(2.0, rel=1e-6)
    for rows in (ROWS.copy(), NEIGHBOUR, np.full((3, 5), np.nan), ROWS[:0], ROWS[:1], ROWS.tolist()):
        for again in (clone(first), copy.deepcopy(first), model(slot="a", budget=budget)):
            assert again.fit(rows).components_.tobytes() == first.components_.tobytes()
    assert budget.spent == pytest.approx(2.0, rel=1e-6)
    assert copy.deepcopy(budget) is budget


@pytest.mark.parametrize("rows", [ROWS, NEIGHBOUR], ids=["same", "changed"])
@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"epsilon": 1.0}, "epsilon"),
        ({"delta": 1e-7}, "delta"),
        ({"clip_norm": 20.0}, "clip_norm"),
        ({"n_components": 1}, "n_components"),
        ({"center": "none"}, "center"),
        ({"row_policy": "normalise"}, "row_policy"),
        ({"refine": "none"}, "refine"),
        ({"mechanism": "noisy_power"}, "mechanism"),
        ({"records_at_most": 5_000}, "records_at_most"),
        ({"relation": "replace_one"}, "relation"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_slot_with_other_terms_is_refused_in_one_line(rows: np.ndarray, changed: dict[str, Any], named: str) -> None:
    budget = InMemoryBudget()
    model(slot="a", budget=budget).fit(ROWS)
    with pytest.raises(Conflict) as refusal:
        model(**{"slot": "a", "budget": budget, **changed}).fit(rows)
    assert str(refusal.value) == (
        f"slot 'a' was charged with other terms ({named}), and a slot has one release; pass the same terms, or "
        "another slot."
    )
    assert len(budget.releases) == 1


def test_a_slot_with_other_columns_is_refused() -> None:
    budget = InMemoryBudget()
    model(slot="a", budget=budget).fit(pd.DataFrame(ROWS, columns=list("abcde")))
    for rows, named in (
        (pd.DataFrame(ROWS, columns=list("edcba")), "column names"),
        (ROWS, "column names"),
        (pd.DataFrame(ROWS[:, :4], columns=list("abcd")), "number of columns, column names"),
    ):
        with pytest.raises(Conflict, match=rf"other terms \({named}\)"):
            model(slot="a", budget=budget).fit(rows)


def test_a_slot_that_failed_after_its_charge_is_finished_from_the_charged_rows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Fail after the charge and fit again: the result must be that of an uninterrupted run on the charged rows.

    Both runs use the same key, and so the same noise.
    """
    monkeypatch.setattr(os, "urandom", lambda size: b"k" * size)
    expected = model(slot="a", budget=InMemoryBudget(**TERMS)).fit(ROWS)
    budget, rows = InMemoryBudget(**TERMS), ROWS.copy()
    fail_after_the_charge(model(slot="a", budget=budget), rows)
    assert budget.spent == pytest.approx(2.0, rel=1e-6)
    assert not [*budget.releases]
    rows[:] = 0.0  # the budget has a copy of the caller's array, so this change has no effect
    with pytest.raises(Conflict, match="clip_norm"):
        model(slot="a", clip_norm=3.0, budget=budget).fit(rows)
    for later in (rows, NEIGHBOUR):
        assert model(slot="a", budget=budget).fit(later).components_.tobytes() == expected.components_.tobytes()
    assert len(budget.releases) == 1
    assert budget._slots["a"].unfinished is None, "rows and key are let go of"


def test_a_failed_fit_without_a_slot_stays_charged() -> None:
    budget = InMemoryBudget(**TERMS)
    fail_after_the_charge(model(budget=budget), ROWS)
    with pytest.raises(BudgetExhausted, match="does not fit into InMemoryBudget"):
        model(budget=budget).fit(ROWS)


def test_other_rows_or_requests_are_charged_until_the_budget_refuses() -> None:
    budget = InMemoryBudget(**TERMS)
    model(budget=budget).fit(ROWS)
    for changed, rows in (({}, ROWS), ({}, ROWS[1:]), ({"clip_norm": 20.0}, ROWS), ({"center": "none"}, ROWS)):
        with pytest.raises(BudgetExhausted, match="does not fit into InMemoryBudget") as refusal:
            model(budget=budget, **changed).fit(rows)
        assert "\n" not in str(refusal.value)


def test_releases_of_one_budget_are_unknown_to_another() -> None:
    first, second = (model(slot="a", budget=InMemoryBudget(**TERMS)).fit(ROWS) for _ in range(2))
    assert first.components_.tobytes() != second.components_.tobytes()


def test_an_unpickled_estimator_transforms_and_cannot_spend() -> None:
    fitted = model(budget=InMemoryBudget(**TERMS)).fit(ROWS)
    again = pickle.loads(pickle.dumps(fitted))
    assert again.transform(ROWS).tobytes() == fitted.transform(ROWS).tobytes()
    with pytest.raises(BudgetExhausted, match="another process"):
        again.fit(ROWS)


def test_a_forked_budget_cannot_spend_what_its_parent_spends_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use a budget in another process: a finished release of a slot is returned, and any other fit is refused."""
    budget, unbounded = InMemoryBudget(**TERMS), InMemoryBudget()
    fitted = model(slot="a", budget=budget, epsilon=1.0).fit(ROWS)
    fail_after_the_charge(model(slot="b", budget=unbounded), ROWS)
    monkeypatch.setattr(os, "getpid", lambda: -1)
    assert fitted.fit(ROWS).n_components_ == 2
    assert model(budget=unbounded).fit(ROWS).n_components_ == 2
    for changed in ({"budget": budget, "epsilon": 0.5}, {"budget": unbounded, "slot": "b"}):
        with pytest.raises(BudgetExhausted, match="another process"):
            model(**changed).fit(ROWS)


def test_an_unbounded_budget_is_shown_as_unbounded() -> None:
    with pytest.raises(Invalid, match="has no bound"):
        _ = InMemoryBudget().spent
    with pytest.raises(Invalid, match="state both, or neither"):
        InMemoryBudget(epsilon=1.0)


WIDTHS = np.array([5.0, 3.0, 1.0, 1.0, 1.0, 0.5])


@pytest.fixture(scope="module")
def rows() -> Any:
    return np.random.default_rng(3).normal(size=(20_000, 6)) * WIDTHS + 1.0


def pca(**terms: Any) -> PrivatePCA:
    given: dict[str, Any] = {"n_components": 2, "epsilon": 50.0, "delta": 1e-6, "clip_norm": 30.0}
    return PrivatePCA(**{**given, "budget": dpca.Budget(epsilon=100, delta=1e-5), **terms})


@pytest.mark.parametrize(("rounds", "error"), [(1, 0.005), ("auto", 0.02)])
def test_scores_and_singular_values_are_those_of_scikit_learn_where_noise_is_small(
    rows, rounds: int | str, error: float
) -> None:
    """In rounds, records are counted as clipped in the last round, which loses up to 1.2 % in 60 draws."""
    ours, theirs = pca(rounds=rounds).fit(rows), PCA(2).fit(rows)
    assert ours.score(rows) == pytest.approx(theirs.score(rows), rel=1e-3)
    assert ours.singular_values_ == pytest.approx(theirs.singular_values_, rel=error)
    assert ours.score(rows) > ours.score(rows + 40.0)


def test_a_release_without_variances_has_no_score(rows) -> None:
    assert np.isnan(pca(center="none", rounds=1).fit(rows).score(rows))


def test_predictions_nearer_to_the_ratings_score_higher() -> None:
    stream = np.random.default_rng(0)
    ratings = np.where(stream.random((3000, 8)) < 0.7, stream.integers(1, 6, (3000, 8)).astype(float), np.nan)
    terms: dict[str, Any] = {
        "ratings_between": (1, 5),
        "ratings_per_user": 8,
        "budget": dpca.Budget(epsilon=9, delta=1e-5),
    }
    model = PrivateMatrixFactorization(1, epsilon=8.0, delta=1e-6, **terms).fit(ratings)
    score, predicted = model.score(ratings), model.predict(ratings)
    known = ~np.isnan(ratings)
    assert score == pytest.approx(-np.sqrt(np.mean((predicted[known] - ratings[known]) ** 2)))
    assert -2.0 < score < 0.0


def test_a_fitted_estimator_shows_verdict_guarantee_and_budget(rows) -> None:
    model = pca()
    assert "left of the budget" not in model._repr_html_()
    shown = model.fit(rows)._repr_html_()
    for text in ("captures ", "(50, 1e-6)-differential privacy", "left of the budget", "epsilon "):
        assert text in shown
    assert shown == model._repr_mimebundle_()["text/html"] or "captures " in model._repr_mimebundle_()["text/html"]


def test_the_picture_is_the_spectrum_or_one_component(rows) -> None:
    model = pca().fit(rows)
    assert model.plot().get_label().startswith("Captures ")
    assert model.plot(1, theme="dark").get_label().startswith("Component 1")


def test_a_fit_without_a_budget_warns(rows) -> None:
    with pytest.warns(NoLedgerWarning, match="dpca.open_budget"):
        PrivatePCA(2, epsilon=1.0, delta=1e-6, clip_norm=30.0).fit(rows)


@pytest.mark.parametrize(
    ("steps", "named"),
    [
        ([StandardScaler()], "StandardScaler"),
        ([SimpleImputer(), Normalizer()], "SimpleImputer"),
        ([ColumnTransformer([("scaled", StandardScaler(), [0, 1])], remainder="passthrough")], "ColumnTransformer"),
        ([Pipeline([("inner", StandardScaler())])], "Pipeline"),
    ],
    ids=["scaler", "imputer", "columns", "nested"],
)
@pytest.mark.parametrize("is_last", [True, False])
def test_a_pipeline_step_fitted_on_the_rows_is_named(rows, steps, named: str, *, is_last: bool) -> None:
    after = [] if is_last else [FunctionTransformer()]
    with pytest.warns(LearnedStepWarning, match=named):
        make_pipeline(*steps, pca(), *after).fit(rows)


def test_steps_without_fitting_and_private_steps_cause_no_warning(rows) -> None:
    make_pipeline(FunctionTransformer(lambda x: x / 2.0), Normalizer(), pca(n_components=3), pca()).fit(rows)
