"""Item embeddings: the user's step is that of training, and what does not fit is refused in one line."""

import copy
import dataclasses
import pickle

import numpy as np
import pytest
from scipy import sparse

from dpca_tasks.kernels.user_factors import descend, residuals
from dpca_tasks.records.sources import ArrayBlocks
from storage.artifacts.embeddings import JOINT, ItemEmbeddings
from storage.errors import Invalid
from tests.dpca_tasks.queries.rating_queries import ITEMS, RANK, moment, statistics

STEP = {"centre": 3.0, "prior": 2.0, "ridge": 0.1, "rating_bound": 4.0}


def made(**changes):
    query = statistics("add_remove")
    facts = {
        "factors": query.factors * query.unit,
        "offsets": query.offsets,
        "low": 1.0,
        "high": 5.0,
        "manifest": {"user_step": STEP},
    }
    return ItemEmbeddings(**{**facts, **changes})


@pytest.mark.parametrize("unobserved", [None, 0.4])
def test_a_user_folds_in_as_in_training(unobserved):
    rng = np.random.default_rng(1)
    ratings = rng.uniform(-1, 7, (20, ITEMS)) * (rng.random((20, ITEMS)) < 0.7)
    query, embeddings = statistics("add_remove", clip="weight", user_norm=50.0), made()
    if unobserved is not None:
        factors = query.factors * query.unit
        query = dataclasses.replace(query, unobserved=unobserved * factors.T @ factors)
        embeddings = made(manifest={"user_step": {**STEP, "unobserved": unobserved}})
    block = query.grid(ArrayBlocks(sparse.csr_array(ratings)).read(0))
    trained, _ = query.users(block)
    for row, factor in zip(ratings, trained, strict=True):
        rated = np.flatnonzero(row)
        own, folded = embeddings.fold_in(rated, row[rated])
        # half a step of the users' grid, and the grid of ratings, 2^-16 of their range
        assert folded == pytest.approx(factor / 2.0**10 * 50.0, abs=0.03)
        assert 1.0 <= own <= 5.0


def test_a_user_descends_as_in_training():
    """Along two directions, with the coefficients that the moment of the next round is computed with."""
    rng = np.random.default_rng(1)
    ratings = rng.uniform(-1, 7, (20, ITEMS)) * (rng.random((20, ITEMS)) < 0.7)
    query = moment("add_remove")
    step = {"centre": 3.0, "prior": 2.0, "rating_bound": 4.0, "row_norm": 1.5, "gains": query.gains.tolist()}
    embeddings = made(factors=query.directions * query.unit, manifest={"user_step": step})
    block = query.grid(ArrayBlocks(sparse.csr_array(ratings)).read(0))
    left, _ = residuals(
        block.values, block.indices, block.row_ptr, query.low, query.step, query.offsets, query.centre, query.prior
    )
    bounds = (query.unit, query.gains, query.row_norm, query.rating_bound)
    _, trained = descend(left, block.indices, block.row_ptr, query.directions, *bounds)
    for row, factor in zip(ratings, trained, strict=True):
        rated = np.flatnonzero(row)
        _, folded = embeddings.fold_in(rated, row[rated])
        assert folded == pytest.approx(factor, abs=1e-3)  # the grid of ratings
    assert np.abs(trained).min(axis=0).max() > 1e-3
    assert embeddings.fold_in([], [])[1].tolist() == [0.0, 0.0]


def test_predictions_lie_in_the_range_and_recommendations_leave_out_what_was_rated():
    embeddings = made()
    rated, ratings = [0, 3], [5.0, 1.0]
    scores = embeddings.predict(rated, ratings)
    assert ((scores >= 1.0) & (scores <= 5.0)).all()
    found = embeddings.recommend(rated, ratings, count=100)
    assert sorted(item for item, _ in found) == [1, 2, 4, 5, 6]
    assert [score for _, score in found] == sorted((score for _, score in found), reverse=True)
    assert embeddings.recommend(rated, ratings, count=2) == found[:2]
    own, factor = embeddings.fold_in([], [])
    assert (own, factor.tolist()) == (3.0, [0.0] * RANK)


def test_the_last_of_two_ratings_counts_and_order_does_not():
    embeddings = made()
    twice = embeddings.predict([2, 0, 2], [1.0, 4.0, 5.0])
    assert (twice == embeddings.predict([0, 2], [4.0, 5.0])).all()


def test_offsets_alone_predict():
    embeddings = made(factors=None, manifest={"user_step": {"centre": 3.0, "prior": None}})
    assert embeddings.predict([1], [5.0]) == pytest.approx(3.0 + embeddings.offsets)
    assert embeddings.rank == 0


def test_a_copy_is_equal_and_read_only_and_says_what_the_guarantee_covers():
    embeddings = made(counts=np.arange(1.0, ITEMS + 1))
    for other in (copy.deepcopy(embeddings), pickle.loads(pickle.dumps(embeddings))):
        assert (other.factors == embeddings.factors).all()
        assert not other.offsets.flags.writeable
        assert other.manifest == embeddings.manifest
    assert embeddings.summary()["guarantee"] == JOINT
    assert "joint differential privacy" in JOINT
    built = ItemEmbeddings.build(embeddings.arrays(), embeddings.manifest)
    assert (built.predict([0], [2.0]) == embeddings.predict([0], [2.0])).all()


@pytest.mark.parametrize(
    ("items", "ratings", "rule"),
    [
        ([0, 1], [1.0], "each rating has an item"),
        ([7], [1.0], "outside 0..6"),
        ([-1], [1.0], "outside 0..6"),
        ([0], [np.nan], "not a finite number"),
        ([0.5], [1.0], "each rating has an item"),
    ],
)
def test_ratings_that_are_none_are_refused(items, ratings, rule):
    with pytest.raises(Invalid, match=rule):
        made().predict(items, ratings)


def test_an_unknown_item_is_refused_by_its_id():
    named = made(manifest={"user_step": STEP, "feature_names": [f"film {item}" for item in range(ITEMS)]})
    assert named.items_of(["film 3", "film 0"]).tolist() == [3, 0]
    assert named.id_of(3) == "film 3"
    assert made().items_of(["6"]).tolist() == [6]
    with pytest.raises(Invalid, match="item 'film 9' is unknown"):
        named.items_of(["film 9"])
    with pytest.raises(Invalid, match="count=0"):
        named.recommend([0], [1.0], count=0)


@pytest.mark.parametrize(
    "wrong",
    [
        {"offsets": np.zeros(3)},
        {"low": 5.0},
        {"counts": np.zeros(2)},
        {"manifest": {}},
        {"manifest": {"user_step": {"centre": 3.0, "prior": 1.0}}},
        {"manifest": {"user_step": STEP, "feature_names": ["one"]}},
        {"manifest": {"user_step": {**STEP, "gains": [1.0, 1.0, 1.0]}}},
        {"manifest": {"user_step": {**STEP, "row_norm": 1.0, "gains": [1.0, 1.0]}}},
        {"manifest": {"user_step": {**STEP, "row_norm": 1.0, "gains": [1.0, "a", 1.0]}}},
        {"manifest": {"user_step": {**STEP, "row_norm": 1.0, "gains": 3}}},
        {"manifest": {"user_step": STEP, "users": 7}},
    ],
)
def test_what_is_no_release_is_refused(wrong):
    with pytest.raises(Invalid):
        made(**wrong)
