"""Attacks on the moment of rating rows: users removed, emptied and replaced, and bugs planted to be caught."""

import dataclasses
import math

import numpy as np
import pytest
from scipy import sparse

from dpca_tasks.errors import InvalidInput
from dpca_tasks.kernels import gridding
from dpca_tasks.layouts import unpack_symmetric
from dpca_tasks.noise.keystream import subkey
from dpca_tasks.queries import rating_moment
from dpca_tasks.records.sources import ArrayBlocks
from dpca_tasks.sums.exact_sum import exact_sum
from tests.dpca_tasks.queries.rating_queries import ITEMS, MOST, joint_norm, moment, moved
from tests.dpca_tasks.queries.test_item_statistics import RELATIONS, STRANGERS, neighbours, user

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
    """By a user with a row at the bound, and by the replacement of one with other items."""
    query = built(relation, "normalise", **NOTHING_BEFORE, prior=math.inf, offsets=np.zeros(ITEMS))
    mine, other = user([0, 1], [5.0, 1.0]), user([2, 3], [5.0, 1.0])
    assert 0.99 < moved(query, *neighbours(relation, mine, other)) <= 1.0


def planted(monkeypatch, bug):
    """Break the code as a hurried engineer might."""
    if bug == "a row is not clipped":
        free = lambda values, *_: np.rint(values * 1024 / 1.5).astype(np.int32)  # noqa: E731
        monkeypatch.setattr(rating_moment, "grid_records", free)
    if bug == "duplicates unmerged":
        monkeypatch.setattr("dpca_tasks.queries.ratings.canonical", lambda block, n_features: block)
        monkeypatch.setattr("dpca_tasks.records.sources.canonical", lambda block, n_features: block)
    if bug == "scaled after the clip":
        clip = gridding.grid_records
        monkeypatch.setattr(rating_moment, "grid_records", lambda *asked: 2 * clip(*asked))


@pytest.mark.parametrize("bug", ["a row is not clipped", "duplicates unmerged", "scaled after the clip"])
def test_a_planted_bug_moves_a_moment_further_than_stated(monkeypatch, bug):
    query = built("add_remove", "clip", **NOTHING_BEFORE, offsets=np.zeros(ITEMS))
    planted(monkeypatch, bug)
    assert max(moved(query, *neighbours("add_remove", mine, None)) for mine in STRANGERS.values()) > 1.01


@pytest.mark.parametrize("scaling", SCALINGS)
def test_blocks_do_not_matter(scaling):
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
def test_the_moment_is_what_the_method_says(scaling):
    """A second implementation, in floats, of what is on the grid."""
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
