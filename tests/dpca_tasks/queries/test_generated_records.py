"""Generated records against the stated sensitivity of every query, and counts of rejected records.

Records of up to 4^bits rows must never move a sum beyond its stated sensitivity, in whole grid steps. Rows list columns
several times, sorted or not, with values from subnormal to infinite, near the record's bound or far beyond it. In the
l1, l2 and joint norms, changes are compared with the stated sensitivity in exact integers. An adversarial search looks
for neighbors that move a query's sum further than stated.

Counts of rejected and accepted records must be exact, withstand attacks in every relation, and be noised before they
are released.
"""

import dataclasses
import itertools
from collections import Counter
from fractions import Fraction
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings, target
from hypothesis import strategies as st

from dpca_tasks.accounting.filters import build_filter
from dpca_tasks.errors import InvalidInput
from dpca_tasks.mechanisms.base import PrivacyTarget, Problem
from dpca_tasks.mechanisms.prior_releases import QuantileClip, RejectedShare, counts_std, share_of_counts
from dpca_tasks.mechanisms.subspace.analyze_gauss import AnalyzeGauss
from dpca_tasks.mechanisms.subspace.wishart import Wishart
from dpca_tasks.noise.keystream import subkey
from dpca_tasks.privacy.curator import Curator
from dpca_tasks.privacy.gate import InMemoryReservation
from dpca_tasks.queries.counts import RejectedRecords
from dpca_tasks.queries.second_moment import SecondMoment
from dpca_tasks.records.blocks import ArrayBlocks, CsrBlock, NormalisedBlocks
from dpca_tasks.sums.exact_sum import exact_sum
from tests.dpca_tasks.queries import rating_queries
from tests.dpca_tasks.queries.query_table import (
    NORMS,
    OF_WORDS,
    RELATIONS,
    SAMPLED,
    TABLE,
    D,
    bounds_of,
    moment_product,
    norm_histogram,
    record_mean,
    second_moment,
)
from tests.strategies import counts as sensitivity_counts
from tests.strategies import rows

BITS = (1, 2, 3)
AWKWARD = np.array([0.0, 5e-324, 1e-300, 1e200, -1e200, np.inf, -np.inf, np.nan])
RATING_QUERIES = ("statistics", "totals", "averages", "moment", "scores")
VALUES = ("even", "one column", "far", "awkward", "half a step", "signs")


def values_of(kind, rng, *, count, rows, bits):
    """Return the values of a record of a kind: total norm about 1, one column, far beyond the bound, or edge cases."""
    length = 1 / np.sqrt(rows)
    if kind == "even":
        return rng.standard_normal(count) * length
    if kind == "one column":
        return np.full(count, length)
    if kind == "far":
        return rng.choice([-1, 1], count) * 10.0 ** rng.integers(0, 150, count)
    if kind == "awkward":
        return np.where(rng.random(count) < 0.3, rng.choice(AWKWARD, count), rng.standard_normal(count))
    if kind == "half a step":
        return rng.choice([-1, 1], count) * 2.0**-bits * (rng.integers(0, 3, count) + 0.5 + 2.0**-30)
    return rng.choice([-length, length], count)


def counts_of(rng, *, count):
    return np.where(
        rng.random(count) < 0.1, rng.choice([0.5, -1.0, 1e300, np.inf, np.nan], count), rng.integers(0, 9, count)
    )


def record(rng, kind, *, rows, bits, width=D, is_sorted, is_counted=False):
    """Return a record with the given number of rows, each with up to twice as many entries as columns."""
    sizes = rng.integers(0, 2 * width + 1, rows)
    count = int(sizes.sum())
    columns = np.zeros(count, np.int32) if kind == "one column" else rng.integers(0, width, count, dtype=np.int32)
    row_ptr = np.concatenate([[0], np.cumsum(sizes)])
    if is_sorted:
        columns = np.concatenate([np.sort(part) for part in np.split(columns, row_ptr[1:-1])]).astype(np.int32)
    numbers = counts_of(rng, count=count) if is_counted else values_of(kind, rng, count=count, rows=rows, bits=bits)
    return CsrBlock(values=numbers, indices=columns, row_ptr=row_ptr, record_ptr=np.array([0, rows]), first_record=0)


def emptied(block):
    return dataclasses.replace(
        block, values=block.values[:0], indices=block.indices[:0], row_ptr=np.zeros_like(block.row_ptr)
    )


def occurrences(layout):
    """Return how many entries of the full matrix or tensor each packed coordinate represents."""
    span = range(layout.order)
    if layout.kind in ("symmetric", "stack"):
        one = [1 if i == j else 2 for i in span for j in span if i <= j]
        return one * layout.count
    if layout.kind == "cube":
        found = Counter(tuple(sorted(places)) for places in product(span, repeat=3))
        return [found[i, j, k] for i in span for j in span for k in span if i <= j <= k]
    return [1] * layout.size


def squared(layout, steps):
    """Return the exact squared l2 norm of a packed array, in squared grid steps."""
    return sum(times * int(step) ** 2 for times, step in zip(occurrences(layout), steps, strict=True))


def is_within(query, norm, steps):
    """Return whether a change is within the stated sensitivity, in exact arithmetic where integers allow it."""
    if norm == "joint":
        parts = query.split(steps)
        of_all = sum(
            squared(part.layout, parts[name]) / (Fraction(part.scale) * part.steps_per_unit) ** 2
            for name, part in query.parts.items()
        )
        return of_all <= 1
    declared = Fraction(query.sensitivity(norm)) * query.steps_per_unit
    if norm == "l1":
        return sum(abs(int(step)) for step in steps) <= declared
    if norm == "l2":
        return squared(query.layout, steps) <= declared**2
    return NORMS[norm](query, steps) <= query.sensitivity(norm) * (1 + 1e-12)


def check_pair(query, norms, relation, one, other):
    """Compare one record with no record, an emptied record or another record, depending on the relation."""
    here, there = (query.map(query.grid(block)) for block in (one, other))
    gone = {"add_remove": np.zeros_like(here), "zero_out": query.map(query.grid(emptied(one))), "replace_one": there}
    for norm in norms:
        assert is_within(query, norm, here - gone[relation]), norm


def draw_pair(data, *, bits, most, **others):
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    return [
        record(
            rng,
            data.draw(st.sampled_from(VALUES)),
            rows=data.draw(st.one_of(st.integers(1, most), st.just(most))),
            bits=bits,
            is_sorted=data.draw(st.booleans()),
            **others,
        )
        for _ in range(2)
    ]


def search(build, data):
    bits = data.draw(st.sampled_from(BITS))
    pair = draw_pair(data, bits=bits, most=4**bits, is_counted=build in OF_WORDS)
    for relation in bounds_of(build):
        # replacing a sampled record is bounded as removing it and then adding another
        halved = build in SAMPLED and relation == "replace_one"
        check_pair(build(relation, bits), TABLE[build], "zero_out" if halved else relation, *pair)


def search_ratings(name, data):
    pair = draw_pair(data, bits=4, most=1, width=rating_queries.ITEMS)
    for relation in RELATIONS:
        query = getattr(rating_queries, name)(relation)
        if any(field.name == "coin_key" for field in dataclasses.fields(query)):
            query = dataclasses.replace(query, coin_key=subkey(bytes(32), label="coins", info=b""))
        check_pair(query, ("joint",), relation, *pair)


@pytest.mark.parametrize("build", TABLE, ids=lambda build: build.__name__)
@settings(max_examples=20)
@given(data=st.data())
def test_no_generated_record_moves_a_sum_beyond_its_sensitivity(build, data):
    search(build, data)


@pytest.mark.parametrize("name", RATING_QUERIES)
@settings(max_examples=20)
@given(data=st.data())
def test_no_generated_user_moves_a_statistic_of_items_beyond_its_sensitivity(name, data):
    search_ratings(name, data)


@pytest.mark.audit_only
@pytest.mark.parametrize("build", TABLE, ids=lambda build: build.__name__)
@settings(max_examples=1000)
@given(data=st.data())
def test_a_longer_search_finds_no_record_beyond_the_sensitivity(build, data):
    search(build, data)


@pytest.mark.audit_only
@pytest.mark.parametrize("name", RATING_QUERIES)
@settings(max_examples=1000)
@given(data=st.data())
def test_a_longer_search_finds_no_user_beyond_the_sensitivity(name, data):
    search_ratings(name, data)


PROBLEM = Problem(n_features=4, clip_norm=1.0)
TARGET = PrivacyTarget(epsilon=2.0, delta=1e-6)


class Flagged(ArrayBlocks):
    """Rows with a flag for each rejected record."""

    def __init__(self, rows, rejected, **others):
        super().__init__(rows, **others)
        self._flags = np.asarray(rejected, np.bool_)

    def read(self, block, /):
        found = super().read(block)
        last = found.first_record + found.record_ptr.size - 1
        return CsrBlock(
            values=found.values,
            indices=found.indices,
            row_ptr=found.row_ptr,
            record_ptr=found.record_ptr,
            first_record=found.first_record,
            rejected=self._flags[found.first_record : last],
        )


def counts(relation, flags):
    """Return the query and its exact counts of rejected and accepted records, for flags 1 (rejected) and 0."""
    query = RejectedRecords(n_features=2, clip_norm=1.0, relation=relation, bits=3)
    block = CsrBlock(
        values=np.empty(0),
        indices=np.empty(0, np.int32),
        row_ptr=np.zeros(len(flags) + 1, np.int64),
        record_ptr=np.arange(len(flags) + 1),
        first_record=0,
        rejected=np.array(flags, np.bool_),
    )
    return query, query.map(query.grid(block)) / query.steps_per_unit


def test_every_record_is_in_one_count_and_blocks_without_flags_are_accepted():
    assert counts("add_remove", [1, 0, 0, 1, 0])[1].tolist() == [2, 3]
    query = RejectedRecords(n_features=4, clip_norm=1.0, relation="add_remove", bits=0)
    assert query.map(query.grid(ArrayBlocks(np.eye(4)).read(0))).tolist() == [0, 4]


@pytest.mark.parametrize("norm", ["l1", "l2"])
@pytest.mark.parametrize("relation", RELATIONS)
def test_all_neighbours_move_the_counts_by_the_stated_sensitivity_and_some_attain_it(relation, norm):
    order = 1 if norm == "l1" else 2
    moved = []
    for size in range(4):
        for flags in itertools.product([0, 1], repeat=size + 1):
            for other in [flags[:-1]] if relation == "add_remove" else [(*flags[:-1], 0), (*flags[:-1], 1)]:
                query, ours = counts(relation, flags)
                moved.append(np.linalg.norm(ours - counts(relation, other)[1], order))
    assert max(moved) <= query.sensitivity(norm)
    assert max(moved) == pytest.approx(query.sensitivity(norm), rel=1e-15)


def test_an_invalid_norm_or_clip_norm_is_refused():
    query = RejectedRecords(n_features=2, clip_norm=1.0, relation="add_remove", bits=3)
    with pytest.raises(InvalidInput, match="no sensitivity in norm"):
        query.sensitivity("nuclear")
    with pytest.raises(InvalidInput, match="must be 1"):
        RejectedRecords(n_features=2, clip_norm=2.0, relation="add_remove", bits=3)


@pytest.mark.parametrize(
    "mechanism",
    [
        AnalyzeGauss(n_components=2),
        Wishart(n_components=2),
        QuantileClip(mechanism=AnalyzeGauss(n_components=2), quantile=0.9),
    ],
    ids=["gaussian", "pure", "after a clip norm"],
)
@pytest.mark.parametrize("relation", RELATIONS)
def test_the_share_is_released_within_the_target_and_is_near_the_truth(mechanism, relation):
    """Release the fraction of rejected records: cost within the target, and an estimate near the truth.

    The estimate is within six standard deviations: a false alarm in 10^8 runs; the seed is fixed.
    """
    rows, rejected = np.tile(np.eye(4), (1000, 1)), np.arange(4000) < 1000
    rows[rejected] = 0.0
    wrapped = RejectedShare(mechanism=mechanism)
    plan = wrapped.plan(Problem(n_features=4, clip_norm=1.0, relation=relation), TARGET)
    source = NormalisedBlocks(Flagged(rows, rejected, block_records=300), length=1.0)
    reservation = InMemoryReservation(event=plan.event, relation=relation, key=bytes(32))
    found = wrapped.run(Curator(source, reservation), plan)
    assert found.outcome is not None
    share, std = found.outcome["rejected_share"], found.outcome["rejected_share_std"]
    assert 0 < std < 0.05
    assert abs(share - 0.25) < 6 * std
    assert share != 0.25


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 16.0])
def test_a_budget_of_the_target_admits_counts_and_mechanism(epsilon):
    plan = RejectedShare(mechanism=AnalyzeGauss(n_components=2)).plan(
        PROBLEM, PrivacyTarget(epsilon=epsilon, delta=1e-6)
    )
    budget = build_filter("gdp", epsilon=epsilon, delta=1e-6)
    assert budget.admits(budget.charge(plan.event, delta=1e-6))


def test_the_noise_of_the_counts_is_that_of_their_epsilon():
    """Compare the noise of the counts with Laplace noise of scale 16, at their epsilon of 2 / 32.

    The scale doubles for replaced records, which may move from one count to the other.
    """
    assert counts_std(PROBLEM, TARGET) == pytest.approx(16 * np.sqrt(2))
    replaced = Problem(n_features=4, clip_norm=1.0, relation="replace_one")
    assert counts_std(replaced, TARGET) == pytest.approx(32 * np.sqrt(2))


def test_the_estimated_fraction_is_within_0_and_1_for_any_noise():
    for rejected, accepted in ((-5.0, 3.0), (5.0, -4.9), (0.0, 0.0), (10.0, -3.0)):
        found = share_of_counts(rejected, accepted, std=2.0)
        assert 0.0 <= found["rejected_share"] <= 1.0
        assert found["rejected_share_std"] > 0


CASES = [
    pytest.param(build, norm, relation, id=f"{build.__name__}-{norm}-{relation}")
    for build, norms in TABLE.items()
    for norm in norms
    for relation in bounds_of(build)
]


def neighbours(relation, record_rows, common, mine, other):
    """Return neighboring datasets: one with the record ``mine``, one without it, or with it emptied or replaced."""
    first = np.vstack([common, mine])
    counts = [1] * len(common) + [record_rows]
    if relation == "add_remove":
        return (first, counts), (common, counts[:-1])
    instead = np.zeros_like(mine) if relation == "zero_out" else other
    return (first, counts), (np.vstack([common, instead]), counts)


def total(query, dataset):
    matrix, counts = dataset
    return exact_sum(ArrayBlocks(matrix, record_rows=counts), query)


def search_of_sensitivity(build, norm, relation, data):
    """Try one pair of neighbors: the change must be within the stated sensitivity.

    Replacing a sampled record is bounded as removing and then adding it, so the sensitivity is that of an emptied
    record.
    """
    query = build(relation, data.draw(st.sampled_from([2, 6, 12])))
    record_rows = data.draw(st.sampled_from([1, 2]))
    elements = sensitivity_counts() if build in OF_WORDS else None
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
    search_of_sensitivity(build, norm, relation, data)


@pytest.mark.audit_only
@pytest.mark.parametrize(("build", "norm", "relation"), CASES)
@settings(max_examples=70, deadline=None)
@given(data=st.data())
def test_a_longer_search_finds_no_neighbor_beyond_the_sensitivity(build, norm, relation, data):
    search_of_sensitivity(build, norm, relation, data)


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
    """Attain the l1 sensitivity of the mean by a row of equal entries at the bound.

    If the record is removed, the count changes as well.
    """
    query, mine = record_mean(relation, 12), np.full((1, D), 1 / np.sqrt(D))
    left, right = neighbours(relation, 1, np.empty((0, D)), mine, mine)
    moved = NORMS["l1"](query, total(query, left) - total(query, right))
    assert moved == pytest.approx(query.sensitivity("l1") - (0.25 if relation == "zero_out" else 0.0), rel=1e-3)


def test_a_query_refuses_norms_without_a_proof():
    for build, norm in ((moment_product, "l1"), (record_mean, "nuclear"), (norm_histogram, "nuclear")):
        with pytest.raises(InvalidInput, match="no sensitivity in norm"):
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
