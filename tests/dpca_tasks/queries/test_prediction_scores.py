"""Scores of predictions of hidden ratings: equal to the metrics of what the artifact predicts, and within bounds."""

import math

import numpy as np
import pytest
from scipy import sparse

from dpca_tasks.errors import InvalidInput
from dpca_tasks.kernels.held_out_ratings import hidden_ratings
from dpca_tasks.metrics import ndcg_of, ranked_items, recall_of, rmse
from dpca_tasks.queries.prediction_scores import ONE_IN
from dpca_tasks.records.sources import ArrayBlocks
from dpca_tasks.sums.exact_sum import exact_sum
from storage.artifacts.embeddings import ItemEmbeddings
from tests.dpca_tasks.queries.rating_queries import ITEMS, moved, scores
from tests.dpca_tasks.queries.test_item_statistics import RELATIONS, STRANGERS, neighbours, user

RNG = np.random.default_rng(8)
TABLE = sparse.csr_array(RNG.integers(1, 6, (60, ITEMS)) * (RNG.random((60, ITEMS)) < 0.6).astype(float))
GAINS = np.array([0.3, 0.1, 0.2])
FACTORS = scores("add_remove").factors * 2.0**-24
OFFSETS = {"factors": np.zeros((ITEMS, 0), np.int64)}


def predicting(query):
    """The artifact with which a consumer predicts."""
    step = {"centre": query.centre, "prior": query.prior, "rating_bound": query.rating_bound}
    step |= {"gains": query.gains.tolist(), "row_norm": query.row_norm} if query.gains.size else {"ridge": query.ridge}
    step |= {"unobserved": 0.3} if query.unobserved is not None else {}
    factors = query.factors * query.factor_unit if query.factors.shape[1] else None
    return ItemEmbeddings(
        factors=factors, offsets=query.offsets, low=query.low, high=query.high, manifest={"user_step": step}
    )


@pytest.mark.parametrize(
    "changes",
    [{}, {"gains": GAINS}, OFFSETS, {"unobserved": 0.3 * FACTORS.T @ FACTORS}],
    ids=["ridge", "descent", "offsets", "unobserved"],
)
def test_sums_are_those_of_the_metrics_of_what_a_consumer_predicts(changes):
    query, expected = scores("add_remove", **changes), np.zeros(4)
    embeddings = predicting(query)
    hidden = hidden_ratings(TABLE.indices, TABLE.indptr.astype(np.int64), ONE_IN)
    for row in range(TABLE.shape[0]):
        at = slice(TABLE.indptr[row], TABLE.indptr[row + 1])
        items, ratings, out = TABLE.indices[at], TABLE.data[at], hidden[at]
        assert out.sum() == (0 if items.size < 2 else max(1, items.size // ONE_IN))
        if not out.any():
            continue
        predicted = embeddings.predict(items[~out], ratings[~out])
        seen, held = (user(np.sort(items[part]), np.ones(part.sum())) for part in (~out, out))
        ranked = ranked_items(predicted[None], count=query.count, seen=seen)
        error = rmse(predicted[items[out]], ratings[out]) / 4.0
        expected += [error**2, recall_of(ranked, held)[0], ndcg_of(ranked, held)[0], 1.0]
    np.testing.assert_allclose(exact_sum(ArrayBlocks(TABLE), query) / 2.0**query.bits, expected, rtol=1e-3)


@pytest.mark.parametrize("relation", RELATIONS)
def test_no_user_moves_the_scores_beyond_the_stated_sensitivity(relation):
    worst_predicted = scores(relation, offsets=np.full(ITEMS, -4.0), prior=math.inf, **OFFSETS)
    users = [*STRANGERS.values(), user(range(2), [5.0, 5.0]), user(range(ITEMS), [1.0] * ITEMS)]
    for query in (scores(relation), scores(relation, gains=GAINS), worst_predicted):
        worst = max(moved(query, *neighbours(relation, mine, other)) for mine in users for other in users)
        assert 0.5 < worst <= query.sensitivity("joint")


def test_a_perfectly_wrong_and_perfectly_ranked_user_attains_it():
    query = scores("add_remove", offsets=np.full(ITEMS, -2.0), prior=math.inf, count=ITEMS, **OFFSETS)
    parts = exact_sum(ArrayBlocks(user(range(2), [5.0, 5.0])), query) / 2.0**query.bits
    assert parts[[0, 1, 3]].tolist() == [1.0, 1.0, 1.0], "predicted 1, rated 5, and recommended"
    assert 0.0 < parts[2] <= 1.0


def test_blocks_and_other_users_do_not_matter():
    query = scores("zero_out")
    whole = exact_sum(ArrayBlocks(TABLE), query)
    assert whole.all()
    assert all(np.array_equal(exact_sum(ArrayBlocks(TABLE, block_records=size), query), whole) for size in (1, 7))
    alone = sum(exact_sum(ArrayBlocks(TABLE[[row]]), query) for row in range(TABLE.shape[0]))
    assert np.array_equal(alone, whole)


def test_a_list_that_cannot_be_is_refused():
    with pytest.raises(InvalidInput, match="count=0"):
        scores("add_remove", count=0)
    with pytest.raises(InvalidInput, match="gains"):
        scores("add_remove", gains=np.ones(2))
