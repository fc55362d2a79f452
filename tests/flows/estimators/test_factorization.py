"""Factors of items by scikit-learn's conventions: ratings in any container, users folded in, refusals in one line."""

import pickle
from typing import Any

import dask.array as da
import numpy as np
import pandas as pd
import pytest
from scipy import sparse
from sklearn.base import clone
from sklearn.exceptions import NotFittedError

from dpca_tasks.errors import InvalidInput, Refused
from flows.estimators import InMemoryBudget, PrivateMatrixFactorization
from flows.estimators.tables import Entries, Table, TableRows

ITEMS = [f"film{number}" for number in range(12)]


def made_ratings() -> tuple[np.ndarray, np.ndarray]:
    """Return whole ratings from 0 to 5 of 600 users, and which of them are known: a half; none of the last user."""
    rng = np.random.default_rng(3)
    taste = rng.normal(size=(600, 2)) @ rng.normal(size=(2, 12))
    known = rng.random((600, 12)) < 0.5
    known[-1] = False
    return np.clip(np.round(2.5 + 1.2 * taste), 0, 5), known


FULL, KNOWN = made_ratings()
SPARSE = sparse.csr_array((FULL[KNOWN], np.nonzero(KNOWN)), shape=FULL.shape)
DENSE = np.where(KNOWN, FULL, np.nan)
TERMS: dict[str, Any] = {"epsilon": 8.0, "delta": 1e-6}


def model(**changed: Any) -> PrivateMatrixFactorization:
    terms = {**TERMS, "n_components": 2, "ratings_between": (0, 5), "ratings_per_user": 10, "budget": InMemoryBudget()}
    return PrivateMatrixFactorization(**{**terms, **changed})


def stored(dense: np.ndarray) -> sparse.csr_array:
    """Return a sparse matrix of which every entry is stored: zeros, and NaN for what is missing."""
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
    return TableRows(Table.checked(model(), table, reset=True, entries=Entries(missing=True))).content


@pytest.mark.parametrize("kind", TABLES)
def test_equal_ratings_are_the_same_rows_whatever_holds_them_and_a_zero_is_a_rating(kind: str) -> None:
    assert (SPARSE.data == 0).any()
    assert content(TABLES[kind]) == content(SPARSE)
    assert content(sparse.csr_array(np.where(KNOWN, FULL, 0))) != content(SPARSE)  # its zeros are no ratings
    fitted = model().fit(TABLES[kind])
    expected = [fitted.artifact_.predict(user.indices, user.data) for user in SPARSE[:20]]
    assert np.asarray(fitted.predict(TABLES[kind]))[:20] == pytest.approx(np.array(expected))


def test_predictions_are_those_of_offsets_and_factors_of_users_and_items() -> None:
    fitted = model().fit(SPARSE)
    factors, offsets = fitted.transform(SPARSE), fitted.user_offsets(SPARSE)
    assert (factors.shape, offsets.shape, fitted.components_.shape) == ((600, 2), (600, 1), (2, 12))
    assert fitted.predict(SPARSE) == pytest.approx(np.clip(fitted.inverse_transform(factors, offsets), 0, 5))
    assert fitted.inverse_transform(factors) == pytest.approx(
        fitted.center_ + fitted.item_offsets_ + factors @ fitted.components_
    )
    assert factors[-1].tolist() == [0.0, 0.0]
    assert offsets[-1, 0] == fitted.center_


def test_unknown_ratings_of_new_users_are_predicted_better_than_by_offsets_alone() -> None:
    """Trained on 500 users; of the other hundred the unknown half is predicted, at a guarantee that leaves signal."""
    fitted = model(epsilon=50.0).fit(SPARSE[:500])
    new, unknown = SPARSE[500:], ~KNOWN[500:]
    errors = (fitted.predict(new) - FULL[500:])[unknown]
    alone = (fitted.user_offsets(new) + fitted.item_offsets_ - FULL[500:])[unknown]
    assert np.sqrt(np.mean(errors**2)) < 0.85 * np.sqrt(np.mean(alone**2))


def test_items_have_names_and_factors_a_container() -> None:
    frame = TABLES["pandas"]
    fitted = model().fit(frame).set_output(transform="pandas")
    factors = fitted.transform(frame)
    assert list(factors.columns) == ["privatematrixfactorization0", "privatematrixfactorization1"]
    assert fitted.feature_names_in_.tolist() == ITEMS
    with pytest.raises(ValueError, match="must be in the same order"):
        fitted.transform(frame[ITEMS[::-1]])


def test_users_in_chunks_are_folded_in_chunk_by_chunk() -> None:
    fitted = model().fit(SPARSE)
    factors = fitted.transform(TABLES["Dask"])
    assert factors.chunks == ((250, 250, 100), (2,))
    assert factors[:9].compute() == pytest.approx(fitted.transform(SPARSE[:9]))


@pytest.mark.parametrize(
    ("changed", "error", "message"),
    [
        ({"ratings_between": None}, InvalidInput, "ratings_between=None bounds no rating; state the range"),
        ({"ratings_between": (5, 1)}, InvalidInput, "must be a range"),
        ({"ratings_per_user": None}, InvalidInput, "ratings_per_user=None bounds no user; state how many"),
        ({"ratings_per_user": 2.5}, InvalidInput, "ratings_per_user=2.5 must be a whole number"),
        ({"epsilon": None}, InvalidInput, "promise nothing; state both"),
        ({"n_components": 12}, InvalidInput, "below the 12 items"),
        ({"mechanism": "als"}, Refused, "not private"),
        ({"delta": 0.01}, Refused, "is not below 1/records_at_most"),
    ],
    ids=lambda value: "-".join(f"{name}={held}" for name, held in value.items()) if isinstance(value, dict) else "",
)
def test_what_cannot_be_private_is_refused_in_one_line_before_a_charge(
    changed: dict[str, Any], error: type[Exception], message: str
) -> None:
    budget = InMemoryBudget(**TERMS)
    with pytest.raises(error, match=message) as refusal:
        model(budget=budget, **changed).fit(SPARSE)
    assert "\n" not in str(refusal.value)
    assert budget.spent == 0.0


def test_it_is_cloned_pickled_and_refuses_what_it_was_not_fitted_to() -> None:
    fitted = model(budget=InMemoryBudget(**TERMS)).fit(SPARSE)
    again = pickle.loads(pickle.dumps(fitted))
    assert again.predict(SPARSE).tobytes() == fitted.predict(SPARSE).tobytes()
    assert clone(fitted).get_params() == fitted.get_params()
    with pytest.raises(NotFittedError):
        model().predict(SPARSE)
    with pytest.raises(ValueError, match="is expecting 12 features"):
        fitted.transform(SPARSE[:, :5])
    with pytest.raises(InvalidInput, match="3 factors a user; the release has 2"):
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
    with pytest.raises(InvalidInput, match="X holds two ratings of one user and item; drop one, or pass duplicates="):
        model().fit(table)
    found = Entries(missing=True, duplicates=rule).check(table)
    assert (found.data.tolist(), found.indices.tolist(), found.indptr.tolist()) == ([merged, 3.0], [1, 0], [0, 1, 2])


def test_a_user_with_two_ratings_of_one_item_is_refused_when_factors_are_computed() -> None:
    fitted = model().fit(SPARSE)
    twice = sparse.coo_array((np.array([4.0, 2.0]), ([0, 0], [1, 1])), shape=(1, 12))
    with pytest.raises(InvalidInput, match="two ratings of one user and item"):
        fitted.predict(twice)
    fitted.set_params(duplicates="last")
    assert fitted.predict(twice).shape == (1, 12)


def test_an_unknown_rule_for_duplicates_is_refused() -> None:
    with pytest.raises(InvalidInput, match="duplicates='first' is not one of sum, mean, last, refuse"):
        model(duplicates="first").fit(SPARSE)
