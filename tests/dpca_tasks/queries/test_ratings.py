"""Attacks on the average rating and the moment of rating rows, and scores of predicted hidden ratings.

Users of every kind are removed, emptied and replaced, and planted bugs must be detected. Scores must equal the metrics
of the artifact's predictions and stay within their bounds.
"""

import dataclasses
import math

import numpy as np
import pytest
from scipy import sparse

from dpca.artifacts.embeddings import ItemEmbeddings
from dpca_tasks.errors import InvalidInput
from dpca_tasks.kernels import gridding
from dpca_tasks.kernels.ratings import hidden_ratings
from dpca_tasks.layouts import unpack_symmetric
from dpca_tasks.metrics import ndcg_of, ranked_items, recall_of, rmse
from dpca_tasks.noise.keystream import subkey
from dpca_tasks.queries import ratings as rating_moment
from dpca_tasks.queries.ratings import ONE_IN, UserMeans
from dpca_tasks.records.blocks import ArrayBlocks
from dpca_tasks.sums.exact_sum import exact_sum
from tests.dpca_tasks.queries.rating_queries import ITEMS, MOST, averages, joint_norm, moment, moved, scores
from tests.dpca_tasks.queries.test_item_statistics import RELATIONS, STRANGERS, neighbours, user

LOW = user(range(7), [1.0] * 7)


@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize("share", [0.01, 0.25, 0.9])
def test_no_user_moves_the_sum_and_the_number_beyond_the_stated_sensitivity(relation, share):
    query, users = averages(relation, count_share=share), [*STRANGERS.values(), LOW]
    worst = max(moved(query, *neighbours(relation, mine, other)) for mine in users for other in users)
    assert 0.999 < worst <= query.sensitivity("joint"), "and some user attains it"


def test_a_user_counts_once_however_many_ratings_there_are():
    query = averages("add_remove")
    rows = sparse.vstack([STRANGERS["rates everything at the end"], STRANGERS["rates one item"]]).tocsr()
    parts = query.split(exact_sum(ArrayBlocks(rows), query))
    assert (parts["sum"].tolist(), parts["number"].tolist()) == ([0], [2 << query.bits]), "5 and 1, around 3"
    assert not exact_sum(ArrayBlocks(STRANGERS["has no ratings"]), query).any()


def test_the_published_centering_exceeds_the_stated_sensitivity(monkeypatch):
    """Use the centering of the paper, which sums and counts all ratings of each user.

    The stated bound holds if each user counts once.
    """

    def published(self, block, total):
        above = 2.0 * block.values / 2.0**16 - 1.0
        total += np.array([np.rint(above.sum() * 2.0**self.bits), block.values.size << self.bits], np.int64)

    monkeypatch.setattr(UserMeans, "add", published)
    mine = STRANGERS["rates everything at the end"]
    assert moved(averages("zero_out"), *neighbours("zero_out", mine, None)) > 6.9


def test_blocks_do_not_matter():
    query, rng = averages("zero_out"), np.random.default_rng(4)
    rows = sparse.csr_array(rng.integers(1, 6, (40, 7)) * (rng.random((40, 7)) < 0.4).astype(float))
    whole, *others = (exact_sum(ArrayBlocks(rows, block_records=size), query) for size in (1000, 1, 7))
    assert whole.all()
    assert all((other == whole).all() for other in others)


def test_the_share_of_the_number_is_checked():
    with pytest.raises(InvalidInput, match="count_share"):
        averages("add_remove", count_share=1.0)


SCALINGS = ("clip", "normalise", "by_count")
NOTHING_BEFORE = {"directions": np.zeros((ITEMS, 0), np.int64), "gains": np.zeros(0)}


def built(relation, scaling, **changes):
    query = moment(relation, scaling=scaling, **changes)
    return dataclasses.replace(query, coin_key=subkey(bytes(32), label="coins", info=b""))


@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize("scaling", SCALINGS)
@pytest.mark.parametrize("before", [{}, NOTHING_BEFORE, {"gains": np.array([1e9, -1e200])}])
def test_no_user_moves_a_moment_beyond_the_stated_sensitivity(relation, scaling, before):
    query = built(relation, scaling, **before)
    for mine in STRANGERS.values():
        for other in STRANGERS.values():
            assert moved(query, *neighbours(relation, mine, other)) <= query.sensitivity("joint")


@pytest.mark.parametrize("relation", RELATIONS)
def test_the_sensitivity_is_attained(relation):
    """Attain the sensitivity by a user with a row at the bound, removed or replaced by a user with other items."""
    query = built(relation, "normalise", **NOTHING_BEFORE, prior=math.inf, offsets=np.zeros(ITEMS))
    mine, other = user([0, 1], [5.0, 1.0]), user([2, 3], [5.0, 1.0])
    assert 0.99 < moved(query, *neighbours(relation, mine, other)) <= 1.0


def planted(monkeypatch, bug):
    """Plant a typical programming mistake."""
    if bug == "a row is not clipped":
        free = lambda values, *_: np.rint(values * 1024 / 1.5).astype(np.int32)  # noqa: E731
        monkeypatch.setattr(rating_moment, "grid_records", free)
    if bug == "duplicates unmerged":
        monkeypatch.setattr("dpca_tasks.queries.ratings.canonical", lambda block, n_features: block)
        monkeypatch.setattr("dpca_tasks.records.blocks.canonical", lambda block, n_features: block)
    if bug == "scaled after the clip":
        clip = gridding.grid_records
        monkeypatch.setattr(rating_moment, "grid_records", lambda *requested: 2 * clip(*requested))


@pytest.mark.parametrize("bug", ["a row is not clipped", "duplicates unmerged", "scaled after the clip"])
def test_a_planted_bug_exceeds_the_stated_sensitivity_of_a_moment(monkeypatch, bug):
    query = built("add_remove", "clip", **NOTHING_BEFORE, offsets=np.zeros(ITEMS))
    planted(monkeypatch, bug)
    assert max(moved(query, *neighbours("add_remove", mine, None)) for mine in STRANGERS.values()) > 1.01


@pytest.mark.parametrize("scaling", SCALINGS)
def test_blocks_do_not_change_the_moment_of_ratings(scaling):
    query, rng = built("zero_out", scaling), np.random.default_rng(4)
    rows = sparse.csr_array(rng.integers(1, 6, (40, ITEMS)) * (rng.random((40, ITEMS)) < 0.8).astype(float))
    whole, *others = (exact_sum(ArrayBlocks(rows, block_records=size), query) for size in (1000, 1, 7))
    assert whole.any()
    assert all((other == whole).all() for other in others)


def test_at_most_k_ratings_of_a_user_are_counted():
    query = built("add_remove", "clip", **NOTHING_BEFORE)
    total = exact_sum(ArrayBlocks(STRANGERS["rates everything at the end"]), query)
    assert np.count_nonzero(np.diag(unpack_symmetric(total.astype(float), ITEMS))) == MOST


@pytest.mark.parametrize("scaling", SCALINGS)
def test_the_moment_equals_that_of_a_second_implementation(scaling):
    """Compare the moment with a second implementation in floats."""
    query = moment("add_remove", scaling=scaling, ratings_per_user=ITEMS)
    rng = np.random.default_rng(6)
    ratings = rng.integers(1, 6, (30, ITEMS)) * (rng.random((30, ITEMS)) < 0.7)
    got = exact_sum(ArrayBlocks(sparse.csr_array(ratings.astype(float))), query)
    expected = np.zeros((ITEMS, ITEMS))
    for row in ratings:
        rated = np.flatnonzero(row)
        left = row[rated] - query.offsets[rated] - query.centre
        left = left - left.sum() / (left.size + query.prior)
        predicted = np.zeros(rated.size)
        for step, gain in enumerate(query.gains):
            direction, gap = query.directions[rated, step] * query.unit, left - predicted
            score = min(1.0, query.row_norm / np.linalg.norm(gap)) * (gap @ direction)
            eta = 2 / (step + 2)
            predicted = (1 - eta) * predicted + eta * gain * score * direction
        rest = left - predicted
        if scaling == "normalise":
            rest *= query.row_norm / np.linalg.norm(rest)
        if scaling == "by_count":
            rest /= math.sqrt(rest.size)
        rest *= min(1.0, query.row_norm / np.linalg.norm(rest))
        whole = np.zeros(ITEMS)
        whole[rated] = rest
        expected += np.outer(whole, whole)
    assert unpack_symmetric(got / 4.0**10 * 1.5**2, ITEMS) == pytest.approx(expected, abs=0.05)
    assert joint_norm(query, got) > 1.0


@pytest.mark.parametrize(
    "wrong",
    [
        {"row_norm": 0.0},
        {"rating_bound": math.inf},
        {"gains": np.zeros(3)},
        {"gains": np.array([0.1, math.nan])},
        {"directions": np.zeros((2, 2), np.int64)},
    ],
)
def test_public_parameters_are_checked(wrong):
    with pytest.raises(InvalidInput):
        moment("add_remove", **wrong)


def test_the_digest_covers_every_parameter():
    query = moment("zero_out")
    changed = {"row_norm": 0.2, "gains": np.array([0.3, 0.2]), "scaling": "by_count", "unit": 2.0**-23}
    digests = {moment("zero_out", **{name: value}).digest() for name, value in changed.items()}
    assert len(digests | {query.digest()}) == len(changed) + 1


RNG = np.random.default_rng(8)
TABLE = sparse.csr_array(RNG.integers(1, 6, (60, ITEMS)) * (RNG.random((60, ITEMS)) < 0.6).astype(float))
GAINS = np.array([0.3, 0.1, 0.2])
FACTORS = scores("add_remove").factors * 2.0**-24
OFFSETS = {"factors": np.zeros((ITEMS, 0), np.int64)}


def predicting(query):
    """Return the artifact with which a consumer predicts ratings, with the query's factors and offsets."""
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


def test_a_user_with_the_worst_errors_and_the_best_ranking_attains_the_sensitivity():
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


def test_an_impossible_list_length_is_refused():
    with pytest.raises(InvalidInput, match="count=0"):
        scores("add_remove", count=0)
    with pytest.raises(InvalidInput, match="gains"):
        scores("add_remove", gains=np.ones(2))
