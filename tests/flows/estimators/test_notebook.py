"""Estimators in a notebook: scores, a picture, the release as HTML, and warnings about fits without a guarantee."""

from typing import Any

import numpy as np
import pytest
from sklearn.compose import ColumnTransformer
from sklearn.decomposition import PCA
from sklearn.impute import SimpleImputer
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import FunctionTransformer, Normalizer, StandardScaler

import dpca
from flows.estimators import LearnedStepWarning, NoLedgerWarning, PrivateMatrixFactorization, PrivatePCA

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
