"""Adversarial search for neighbours that move a query further than it states."""

import numpy as np
import pytest
from hypothesis import given, settings, target
from hypothesis import strategies as st

from dpca_tasks.errors import InvalidInput
from dpca_tasks.queries.second_moment import SecondMoment
from dpca_tasks.records.sources import ArrayBlocks
from dpca_tasks.sums.exact_sum import exact_sum
from tests.dpca_tasks.queries.query_table import (
    NORMS,
    OF_WORDS,
    SAMPLED,
    TABLE,
    D,
    bounds_of,
    moment_product,
    norm_histogram,
    record_mean,
    second_moment,
)
from tests.strategies import counts, rows

CASES = [
    pytest.param(build, norm, relation, id=f"{build.__name__}-{norm}-{relation}")
    for build, norms in TABLE.items()
    for norm in norms
    for relation in bounds_of(build)
]


def neighbours(relation, record_rows, common, mine, other):
    """The two datasets of a relation: mine, and in its place nothing, an empty or another record."""
    first = np.vstack([common, mine])
    counts = [1] * len(common) + [record_rows]
    if relation == "add_remove":
        return (first, counts), (common, counts[:-1])
    instead = np.zeros_like(mine) if relation == "zero_out" else other
    return (first, counts), (np.vstack([common, instead]), counts)


def total(query, dataset):
    matrix, counts = dataset
    return exact_sum(ArrayBlocks(matrix, record_rows=counts), query)


def search(build, norm, relation, data):
    """Try one pair of neighbours.

    A sampled record is replaced through the empty one, so the sensitivity is that of an emptied record there.
    """
    query = build(relation, data.draw(st.sampled_from([2, 6, 12])))
    record_rows = data.draw(st.sampled_from([1, 2]))
    elements = counts() if build in OF_WORDS else None
    common, mine, other = (
        data.draw(rows(n_features=D, min_rows=low, max_rows=high, elements=elements))
        for low, high in ((0, 2), (record_rows, record_rows), (record_rows, record_rows))
    )
    emptied = build in SAMPLED and relation == "replace_one"
    left, right = neighbours("zero_out" if emptied else relation, record_rows, common, mine, other)
    moved = NORMS[norm](query, total(query, left) - total(query, right))
    target(float(moved))
    assert moved <= query.sensitivity(norm) * (1 + 1e-12)


@pytest.mark.parametrize(("build", "norm", "relation"), CASES)
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_no_neighbour_moves_the_sum_beyond_the_stated_sensitivity(build, norm, relation, data):
    search(build, norm, relation, data)


@pytest.mark.audit_only
@pytest.mark.parametrize(("build", "norm", "relation"), CASES)
@settings(max_examples=70, deadline=None)
@given(data=st.data())
def test_a_longer_search_finds_no_such_neighbour_either(build, norm, relation, data):
    search(build, norm, relation, data)


@pytest.mark.parametrize(
    ("relation", "attained"), [("add_remove", 1.0), ("zero_out", 1.0), ("replace_one", np.sqrt(2))]
)
def test_the_second_moments_sensitivity_is_attained(relation, attained):
    query = second_moment(relation, 12)
    mine, other = np.eye(D)[:1], np.eye(D)[1:2]
    left, right = neighbours(relation, 1, np.empty((0, D)), mine, other)
    moved = NORMS["l2"](query, total(query, left) - total(query, right))
    assert moved == pytest.approx(attained, rel=1e-12)
    assert moved <= query.sensitivity("l2")


@pytest.mark.parametrize("relation", ["add_remove", "zero_out"])
def test_the_record_means_l1_sensitivity_is_attained(relation):
    """By a row of equal entries at the bound; the count goes with it where the record is removed."""
    query, mine = record_mean(relation, 12), np.full((1, D), 1 / np.sqrt(D))
    left, right = neighbours(relation, 1, np.empty((0, D)), mine, mine)
    moved = NORMS["l1"](query, total(query, left) - total(query, right))
    assert moved == pytest.approx(query.sensitivity("l1") - (0.25 if relation == "zero_out" else 0.0), rel=1e-3)


def test_a_query_refuses_a_norm_that_it_has_no_proof_for():
    for build, norm in ((moment_product, "l1"), (record_mean, "nuclear"), (norm_histogram, "nuclear")):
        with pytest.raises(InvalidInput, match="not stated"):
            build("add_remove", 8).sensitivity(norm)


@pytest.mark.parametrize(
    "change",
    [
        {"clip_norm": 0.0},
        {"clip_norm": np.nan},
        {"clip_norm": np.inf},
        {"n_features": 0},
        {"relation": "both"},
    ],
)
def test_public_parameters_are_checked(change):
    sound = {"n_features": D, "clip_norm": 1.0, "relation": "add_remove", "bits": 8}
    with pytest.raises(InvalidInput):
        SecondMoment(**{**sound, **change})
