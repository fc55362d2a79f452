"""Fitted estimators: results, refusals, and scikit-learn's conventions; none contains raw values.

Principal components are tested for the results of a fit, refusals, and attributes. Item factors are tested for ratings
in any container, fitting of new users to the items, and one-line refusals.
"""

import os
import pickle
from collections.abc import Iterator
from typing import Any

import dask.array as da
import numpy as np
import pandas as pd
import pytest
from scipy import sparse
from sklearn import config_context
from sklearn.base import clone
from sklearn.decomposition import PCA
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.utils import get_tags
from sklearn.utils.estimator_checks import check_estimator

from dpca.errors import BudgetExhausted, Conflict, Invalid
from dpca_tasks.errors import InvalidInput, Refused
from flows.estimators import InMemoryBudget, PrivateMatrixFactorization, PrivatePCA
from flows.estimators.tables import Entries, Table, TableRows
from tests.estimators.child import FRESH_NOISE, NON_DETERMINISTIC
from tests.flows.estimators.rows import ROWS, TERMS, model

FRAME = pd.DataFrame(ROWS, columns=list("abcde"))
STARS = np.random.default_rng(8).uniform(0, 5, size=(300, 9))
EXACT = PCA(2).fit(ROWS)
ROWS_AND_WHAT_FOLLOWS = [ROWS, EXACT.mean_, EXACT.components_, EXACT.explained_variance_]

FITS: dict[str, Any] = {
    "components": (lambda budget: model(budget=budget).fit(FRAME), ROWS_AND_WHAT_FOLLOWS),
    "components, clip norm chosen": (
        lambda budget: model(clip_norm="quantile:0.9", budget=budget).fit(FRAME),
        ROWS_AND_WHAT_FOLLOWS,
    ),
    "factors": (
        lambda budget: PrivateMatrixFactorization(
            2, **TERMS, ratings_between=(0, 5), ratings_per_user=5, budget=budget
        ).fit(STARS),
        [STARS, STARS.mean(axis=0)],
    ),
}


def held_bytes(thing: object, seen: set[int]) -> Iterator[bytes]:
    """Yield the bytes of every array, number and text that can be reached from an object's attributes and items."""
    if id(thing) in seen or isinstance(thing, type) or callable(thing):
        return
    seen.add(id(thing))
    if isinstance(thing, np.ndarray):
        yield thing.tobytes()
        yield from held_bytes(thing.base, seen)
    elif isinstance(thing, float):
        yield np.float64(thing).tobytes()
    elif isinstance(thing, (bytes, str)):
        yield thing if isinstance(thing, bytes) else thing.encode()
    elif isinstance(thing, (list, tuple, set, frozenset)):
        for item in thing:
            yield from held_bytes(item, seen)
    elif hasattr(thing, "items"):
        for name, item in thing.items():
            yield from held_bytes(name, seen)
            yield from held_bytes(item, seen)
    else:
        kinds = [name for kind in type(thing).__mro__ for name in getattr(kind, "__slots__", ())]
        for name in {*kinds, *getattr(thing, "__dict__", ())}:
            yield from held_bytes(getattr(thing, name, None), seen)


def words_of(held: bytes) -> set[int]:
    """Return all runs of eight bytes in a byte string, at any offset, as integers."""
    octets = np.frombuffer(held, np.uint8)
    if octets.size < 8:
        return set()
    return set(np.lib.stride_tricks.sliding_window_view(octets, 8).copy().view("<u8").ravel().tolist())


@pytest.mark.parametrize("kind", FITS)
def test_a_fitted_estimator_holds_no_raw_value_and_no_key(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    keys, real, (fit, secrets) = [], os.urandom, FITS[kind]

    def noted(size: int) -> bytes:
        made = real(size)
        if size != 16:  # 16 random bytes are for a UUID, for example in the file name of newly compiled code
            keys.append(made)
        return made

    monkeypatch.setattr(os, "urandom", noted)
    fitted = fit(InMemoryBudget(**TERMS))
    monkeypatch.undo()
    raw = {int(word) for secret in secrets for word in np.ascontiguousarray(secret).ravel().view("<u8")}
    assert [len(key) for key in keys] == [32]
    for held in (b"".join(held_bytes(fitted, set())), pickle.dumps(fitted)):
        assert fitted.components_.tobytes() in held or fitted.components_.T.tobytes() in held
        assert words_of(held) & raw == set()
        assert keys[0] not in held
        assert keys[0].hex().encode() not in held


def test_the_search_for_raw_values_finds_one() -> None:
    """Store a row in a nested attribute of an estimator: the search for raw values must find it."""
    fitted = model(budget=InMemoryBudget(**TERMS)).fit(FRAME)
    fitted.kept_ = {"row": [ROWS[3:4].copy()]}
    raw = {int(word) for word in ROWS[3].view("<u8")}
    assert words_of(b"".join(held_bytes(fitted, set()))) & raw == raw
    assert words_of(pickle.dumps(fitted)) & raw == raw


NAMES = list("abcde")
PCA_FRAME = pd.DataFrame(ROWS, columns=NAMES, index=pd.RangeIndex(len(ROWS)) + 100)


@pytest.mark.filterwarnings("ignore::flows.estimators.RepeatedFitWarning")
def test_scikit_learns_checks_pass_except_for_the_equality_of_two_fits() -> None:
    """Run scikit-learn's checks: only the one that fits twice may fail, because the noise differs.

    One check is skipped unless an environment variable is set; `make estimators` sets it.
    """
    results = check_estimator(PrivatePCA(), on_skip=None, expected_failed_checks=FRESH_NOISE)
    found = {(result["check_name"], result["status"]) for result in results if result["status"] != "passed"}
    left_out = {(check, "skipped") for check in (*NON_DETERMINISTIC, "check_array_api_input")}
    assert found - left_out == {("check_fit_idempotent", "xfail")}
    assert len(results) > 40
    assert get_tags(PrivatePCA()).non_deterministic
    assert get_tags(PrivateMatrixFactorization()).non_deterministic


def test_variances_and_mean_are_those_of_pca_up_to_noise() -> None:
    """Compare variances and mean with scikit-learn's PCA: relative errors must be below 0.1.

    The noise is a hundred times weaker than the signal, so 0.1 exceeds twenty standard deviations.
    """
    private, plain = model(epsilon=50.0).fit(ROWS), PCA(2).fit(ROWS)
    assert private.explained_variance_ == pytest.approx(plain.explained_variance_, rel=0.1)
    assert private.explained_variance_ratio_ == pytest.approx(plain.explained_variance_ratio_, rel=0.1)
    assert private.noise_variance_ == pytest.approx(plain.noise_variance_, rel=0.1)
    assert private.mean_ == pytest.approx(plain.mean_, abs=0.3)
    assert np.abs((private.components_ * plain.components_).sum(axis=1)) == pytest.approx([1.0, 1.0], abs=0.05)


def test_around_the_origin_there_is_no_mean_and_no_variance_per_row() -> None:
    fitted = model(center="none", rounds=1).fit(ROWS)
    assert fitted.mean_.tolist() == [0.0] * 5
    assert np.isnan(fitted.explained_variance_).all()
    assert np.isnan(fitted.noise_variance_)
    assert 0 < fitted.explained_variance_ratio_.sum() <= 1


def test_rounds_release_a_number_of_rows_around_the_origin_too() -> None:
    """Release the number of rows in rounds around the origin: variances must be right to 15 %.

    Over 15 fits, variances had a std of 0.012, so the tolerance is twelve of them.
    """
    for rounds in (2, 3):
        fitted = model(center="none", rounds=rounds, epsilon=50.0).fit(ROWS)
        squares = np.square(ROWS @ fitted.components_.T).mean(axis=0)
        facts = fitted.artifact_.outcome["rounds"]
        counted = fitted.explained_variance_ * facts["noised_records"] / len(ROWS)
        np.testing.assert_allclose(counted, squares, rtol=0.15)
        assert len(facts["shares"]) == rounds


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
    fitted = model().fit(PCA_FRAME).set_output(transform=container)
    scores = fitted.transform(PCA_FRAME)
    assert list(scores.columns) == fitted.get_feature_names_out().tolist() == ["privatepca0", "privatepca1"]
    assert scores.to_numpy() == pytest.approx((ROWS - fitted.mean_) @ fitted.components_.T)
    with config_context(transform_output=container):
        assert list(model().fit(PCA_FRAME).transform(PCA_FRAME).columns) == ["privatepca0", "privatepca1"]
    if container == "pandas":
        assert scores.index.equals(PCA_FRAME.index)


def test_columns_have_the_names_and_the_order_of_the_fit() -> None:
    """Transform columns in another order or without one of them: they are refused, as in scikit-learn."""
    fitted = model().fit(PCA_FRAME)
    assert fitted.feature_names_in_.tolist() == list(fitted.artifact_.manifest["feature_names"]) == NAMES
    with pytest.raises(ValueError, match="Feature names must be in the same order"):
        fitted.transform(PCA_FRAME[NAMES[::-1]])
    with pytest.raises(ValueError, match="Feature names seen at fit time, yet now missing"):
        fitted.transform(PCA_FRAME[NAMES[:4]])
    with pytest.raises(ValueError, match="Feature names unseen at fit time"):
        fitted.transform(PCA_FRAME.assign(f=1.0))
    with pytest.warns(UserWarning, match="X does not have valid feature names"):
        assert fitted.transform(ROWS) == pytest.approx(fitted.transform(PCA_FRAME))


@pytest.mark.filterwarnings("ignore::flows.estimators.RepeatedFitWarning")
def test_a_search_over_a_pipeline_is_one_release_for_each_fit() -> None:
    budget = InMemoryBudget()
    pipeline = make_pipeline(model(budget=budget), LogisticRegression())
    search = GridSearchCV(pipeline, {"privatepca__n_components": np.arange(1, 3)}, cv=2)
    for searches in (1, 2):
        search.fit(ROWS, ROWS[:, 0] > 3)
        assert search.best_estimator_[0].budget is budget
        assert len(budget.releases) == searches * (2 * 2 + 1)


def test_one_slot_for_a_grid_search_is_refused_at_its_second_candidate() -> None:
    """Use one slot for a grid search: the second candidate must be refused.

    Otherwise all folds would get the release of the first fit, which includes rows held out later.
    """
    pipeline = make_pipeline(model(slot="search"), LogisticRegression())
    search = GridSearchCV(pipeline, {"privatepca__n_components": [1, 2]}, cv=2, error_score="raise")
    with pytest.raises(Conflict, match=r"slot 'search' was charged with other terms \(n_components\)"):
        search.fit(ROWS, ROWS[:, 0] > 3)


def test_the_repr_shows_changed_parameters() -> None:
    shown = repr(model(budget=InMemoryBudget(**TERMS)))
    assert "clip_norm=30.0" in shown
    assert "budget=InMemoryBudget(epsilon=2, delta=1e-06)" in shown
    assert "relation" not in shown
    budget = InMemoryBudget()
    assert clone(model(slot="a", budget=budget)).get_params() == model(slot="a", budget=budget).get_params()


@pytest.mark.parametrize(
    ("changed", "error", "message"),
    [
        ({"epsilon": None}, InvalidInput, "epsilon=None and delta=1e-06 guarantee nothing; state both"),
        ({"delta": None}, InvalidInput, "epsilon=2.0 and delta=None guarantee nothing; state both"),
        ({"epsilon": 0.0}, Invalid, "epsilon=0.0 must be greater than 0"),
        ({"clip_norm": None}, InvalidInput, "state a public bound on their norm, not one measured on them"),
        ({"clip_norm": 0.0}, InvalidInput, "clip_norm"),
        ({"n_components": 5}, InvalidInput, "below n_features=5"),
        ({"n_components": 0.9}, InvalidInput, "n_components=0.9 must be a whole number, or 'auto'"),
        ({"n_components": None}, InvalidInput, "n_components=None must be a whole number, or 'auto'"),
        ({"delta": 0.01}, Refused, "is not below 1/records_at_most"),
        ({"records_at_most": 10}, Invalid, "more rows than records_at_most=10"),
        ({"relation": "replace_one"}, Invalid, "differs from the budget's relation 'add_remove'"),
        ({"mechanism": "nothing"}, Invalid, "is not one of auto"),
        ({"mechanism": "non_private"}, Refused, "not private"),
        ({"budget": "patients"}, Invalid, "pass an InMemoryBudget, or"),
        ({"slot": ""}, InvalidInput, "slot='' must be printable text"),
        ({"slot": "a\nb"}, InvalidInput, "must be printable text"),
        ({"slot": 3}, InvalidInput, "slot=3 must be printable text"),
        ({"slot": "a" * 101}, InvalidInput, "slot has 101 characters, but at most 100"),
    ],
    ids=lambda value: "-".join(f"{name}={held}" for name, held in value.items()) if isinstance(value, dict) else "",
)
def test_impossible_fits_are_refused_in_one_line_before_a_charge(
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


def test_a_clip_norm_chosen_by_quantile_is_charged() -> None:
    """Choose the clip norm as a quantile: it is near the rows' quantile, and its epsilon is charged.

    The norm is within one histogram bin.
    """
    budget = InMemoryBudget(**TERMS)
    fitted = model(clip_norm="quantile:0.9", budget=budget).fit(ROWS)
    ratio = fitted.clip_norm_ / np.quantile(np.linalg.norm(ROWS, axis=1), 0.9)
    assert 2.0**-0.25 <= ratio <= 2.0**0.25
    assert fitted.artifact_.manifest["plan"]["clip_epsilon"] == 2.0 / 32
    assert 1.9 < budget.spent <= 2.0
    with pytest.raises(BudgetExhausted):
        model(epsilon=0.5, budget=budget).fit(ROWS)


ITEMS = [f"film{number}" for number in range(12)]


def made_ratings() -> tuple[np.ndarray, np.ndarray]:
    """Return complete ratings from 0 to 5 of 600 users, and a mask of the known half; the last user has none."""
    rng = np.random.default_rng(3)
    taste = rng.normal(size=(600, 2)) @ rng.normal(size=(2, 12))
    known = rng.random((600, 12)) < 0.5
    known[-1] = False
    return np.clip(np.round(2.5 + 1.2 * taste), 0, 5), known


FULL, KNOWN = made_ratings()
SPARSE = sparse.csr_array((FULL[KNOWN], np.nonzero(KNOWN)), shape=FULL.shape)
DENSE = np.where(KNOWN, FULL, np.nan)
FACTORIZATION_TERMS: dict[str, Any] = {"epsilon": 8.0, "delta": 1e-6}


def model_of_factorization(**changed: Any) -> PrivateMatrixFactorization:
    terms = {
        **FACTORIZATION_TERMS,
        "n_components": 2,
        "ratings_between": (0, 5),
        "ratings_per_user": 10,
        "budget": InMemoryBudget(),
    }
    return PrivateMatrixFactorization(**{**terms, **changed})


def stored(dense: np.ndarray) -> sparse.csr_array:
    """Return a sparse matrix that stores every entry, including zeros, and NaN for missing values."""
    return sparse.csr_array((dense.ravel(), np.indices(dense.shape).reshape(2, -1)), shape=dense.shape)


TABLES: dict[str, Any] = {
    "csr": SPARSE,
    "coo": sparse.coo_array(SPARSE),
    "csr with NaN": stored(DENSE),
    "array": DENSE,
    "pandas": pd.DataFrame(DENSE, columns=ITEMS),
    "Dask": da.from_array(DENSE, chunks=(250, 5)),
    "Dask of csr": da.from_array(DENSE, chunks=(250, 12)).map_blocks(stored),
}


def content(table: Any) -> str:
    return TableRows(Table.checked(model_of_factorization(), table, reset=True, entries=Entries(missing=True))).content


@pytest.mark.parametrize("kind", TABLES)
def test_equal_ratings_in_any_container_are_equal_rows_and_zeros_are_ratings(kind: str) -> None:
    assert (SPARSE.data == 0).any()
    assert content(TABLES[kind]) == content(SPARSE)
    # zeros of this sparse matrix are missing values, not ratings
    assert content(sparse.csr_array(np.where(KNOWN, FULL, 0))) != content(SPARSE)
    fitted = model_of_factorization().fit(TABLES[kind])
    expected = [fitted.artifact_.predict(user.indices, user.data) for user in SPARSE[:20]]
    assert np.asarray(fitted.predict(TABLES[kind]))[:20] == pytest.approx(np.array(expected))


def test_predictions_are_those_of_offsets_and_factors_of_users_and_items() -> None:
    fitted = model_of_factorization().fit(SPARSE)
    factors, offsets = fitted.transform(SPARSE), fitted.user_offsets(SPARSE)
    assert (factors.shape, offsets.shape, fitted.components_.shape) == ((600, 2), (600, 1), (2, 12))
    assert fitted.predict(SPARSE) == pytest.approx(np.clip(fitted.inverse_transform(factors, offsets), 0, 5))
    assert fitted.inverse_transform(factors) == pytest.approx(
        fitted.center_ + fitted.item_offsets_ + factors @ fitted.components_
    )
    assert factors[-1].tolist() == [0.0, 0.0]
    assert offsets[-1, 0] == fitted.center_


def test_unknown_ratings_of_new_users_are_predicted_better_than_by_offsets_alone() -> None:
    """Fit 500 users with little noise, and predict the unknown half of 100 new users: better than offsets alone."""
    fitted = model_of_factorization(epsilon=50.0).fit(SPARSE[:500])
    new, unknown = SPARSE[500:], ~KNOWN[500:]
    errors = (fitted.predict(new) - FULL[500:])[unknown]
    alone = (fitted.user_offsets(new) + fitted.item_offsets_ - FULL[500:])[unknown]
    assert np.sqrt(np.mean(errors**2)) < 0.85 * np.sqrt(np.mean(alone**2))


def test_items_have_names_and_factors_come_in_the_set_container() -> None:
    frame = TABLES["pandas"]
    fitted = model_of_factorization().fit(frame).set_output(transform="pandas")
    factors = fitted.transform(frame)
    assert list(factors.columns) == ["privatematrixfactorization0", "privatematrixfactorization1"]
    assert fitted.feature_names_in_.tolist() == ITEMS
    with pytest.raises(ValueError, match="must be in the same order"):
        fitted.transform(frame[ITEMS[::-1]])


def test_users_in_chunks_are_folded_in_chunk_by_chunk() -> None:
    fitted = model_of_factorization().fit(SPARSE)
    factors = fitted.transform(TABLES["Dask"])
    assert factors.chunks == ((250, 250, 100), (2,))
    assert factors[:9].compute() == pytest.approx(fitted.transform(SPARSE[:9]))


@pytest.mark.parametrize(
    ("changed", "error", "message"),
    [
        ({"ratings_between": None}, InvalidInput, "ratings_between=None sets no bound on ratings; state the range"),
        ({"ratings_between": (5, 1)}, InvalidInput, "must be a range"),
        ({"ratings_per_user": None}, InvalidInput, "ratings_per_user=None sets no bound for users; state the maximum"),
        ({"ratings_per_user": 2.5}, InvalidInput, "ratings_per_user=2.5 must be a whole number"),
        ({"epsilon": None}, InvalidInput, "guarantee nothing; state both"),
        ({"n_components": 12}, InvalidInput, "below the 12 items"),
        ({"mechanism": "als"}, Refused, "not private"),
        ({"delta": 0.01}, Refused, "is not below 1/records_at_most"),
    ],
    ids=lambda value: "-".join(f"{name}={held}" for name, held in value.items()) if isinstance(value, dict) else "",
)
def test_impossible_factorizations_are_refused_in_one_line_before_a_charge(
    changed: dict[str, Any], error: type[Exception], message: str
) -> None:
    budget = InMemoryBudget(**FACTORIZATION_TERMS)
    with pytest.raises(error, match=message) as refusal:
        model_of_factorization(budget=budget, **changed).fit(SPARSE)
    assert "\n" not in str(refusal.value)
    assert budget.spent == 0.0


def test_a_factorization_is_cloned_and_pickled_and_refuses_other_items() -> None:
    fitted = model_of_factorization(budget=InMemoryBudget(**FACTORIZATION_TERMS)).fit(SPARSE)
    again = pickle.loads(pickle.dumps(fitted))
    assert again.predict(SPARSE).tobytes() == fitted.predict(SPARSE).tobytes()
    assert clone(fitted).get_params() == fitted.get_params()
    with pytest.raises(NotFittedError):
        model_of_factorization().predict(SPARSE)
    with pytest.raises(ValueError, match="is expecting 12 features"):
        fitted.transform(SPARSE[:, :5])
    with pytest.raises(InvalidInput, match="3 factors for each user, but the release has 2"):
        fitted.inverse_transform(np.ones((1, 3)))


PLACES = (np.array([0, 0, 1, 0, 1]), np.array([1, 1, 0, 1, 2]))
TWICE = sparse.coo_array((np.array([4.0, 2.0, 3.0, 0.0, np.nan]), PLACES), shape=(2, 3))
LAYOUTS: dict[str, Any] = {
    "coo": TWICE,
    "coo matrix": sparse.coo_matrix(TWICE),
    "csr": sparse.csr_array(
        (np.array([4.0, 2.0, 0.0, 3.0, np.nan]), np.array([1, 1, 1, 0, 2]), np.array([0, 3, 5])), shape=(2, 3)
    ),
    "csc": sparse.csc_array(
        (np.array([3.0, 4.0, 2.0, 0.0, np.nan]), np.array([1, 0, 0, 0, 1]), np.array([0, 1, 4, 5])), shape=(2, 3)
    ),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("rule", "merged"), [("last", 0.0), ("mean", 2.0), ("sum", 6.0)])
def test_several_ratings_of_one_item_are_refused_unless_a_rule_is_passed(layout: str, rule: str, merged: float) -> None:
    table = LAYOUTS[layout]
    with pytest.raises(
        InvalidInput, match="X contains two ratings of one user and item; drop one, or pass duplicates="
    ):
        model_of_factorization().fit(table)
    found = Entries(missing=True, duplicates=rule).check(table)
    assert (found.data.tolist(), found.indices.tolist(), found.indptr.tolist()) == ([merged, 3.0], [1, 0], [0, 1, 2])


def test_a_user_with_two_ratings_of_one_item_is_refused_when_factors_are_computed() -> None:
    fitted = model_of_factorization().fit(SPARSE)
    twice = sparse.coo_array((np.array([4.0, 2.0]), ([0, 0], [1, 1])), shape=(1, 12))
    with pytest.raises(InvalidInput, match="two ratings of one user and item"):
        fitted.predict(twice)
    fitted.set_params(duplicates="last")
    assert fitted.predict(twice).shape == (1, 12)


def test_an_unknown_rule_for_duplicates_is_refused() -> None:
    with pytest.raises(InvalidInput, match="duplicates='first' is not one of sum, mean, last, refuse"):
        model_of_factorization(duplicates="first").fit(SPARSE)
