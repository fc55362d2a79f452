"""Generated records of up to 4^bits rows never move a sum beyond its stated sensitivity, in whole grid steps.

Rows list columns several times, sorted or not, with values from subnormal to infinite, near the bound of the record or
far beyond it. In l1, l2 and the joint norm, moves are compared with the statement in exact integers.
"""

import dataclasses
from collections import Counter
from fractions import Fraction
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpca_tasks.noise.keystream import subkey
from dpca_tasks.records.blocks import CsrBlock
from tests.dpca_tasks.queries import rating_queries
from tests.dpca_tasks.queries.query_table import (
    NORMS,
    OF_WORDS,
    RELATIONS,
    SAMPLED,
    TABLE,
    D,
    bounds_of,
)

BITS = (1, 2, 3)
AWKWARD = np.array([0.0, 5e-324, 1e-300, 1e200, -1e200, np.inf, -np.inf, np.nan])
RATING_QUERIES = ("statistics", "totals", "averages", "moment", "scores")
VALUES = ("even", "one column", "far", "awkward", "half a step", "signs")


def values_of(kind, rng, *, count, rows, bits):
    """Values of a record: of norm about 1 together, of one column, far beyond the bound, awkward, or just rounded."""
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
    """A record of so many rows, each of up to twice as many entries as there are columns."""
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
    """How often each packed coordinate is in the full matrix or tensor."""
    span = range(layout.order)
    if layout.kind in ("symmetric", "stack"):
        one = [1 if i == j else 2 for i in span for j in span if i <= j]
        return one * layout.count
    if layout.kind == "cube":
        found = Counter(tuple(sorted(places)) for places in product(span, repeat=3))
        return [found[i, j, k] for i in span for j in span for k in span if i <= j <= k]
    return [1] * layout.size


def squared(layout, steps):
    """The exact square of the l2 norm, in squared grid steps."""
    return sum(times * int(step) ** 2 for times, step in zip(occurrences(layout), steps, strict=True))


def is_within(query, norm, steps):
    """Tell whether a move is within the stated sensitivity: exactly, where that is a matter of integers."""
    if norm == "joint":
        parts = query.split(steps)
        of_all = sum(
            squared(part.layout, parts[name]) / (Fraction(part.scale) * part.steps_per_unit) ** 2
            for name, part in query.parts.items()
        )
        return of_all <= 1
    stated = Fraction(query.sensitivity(norm)) * query.steps_per_unit
    if norm == "l1":
        return sum(abs(int(step)) for step in steps) <= stated
    if norm == "l2":
        return squared(query.layout, steps) <= stated**2
    return NORMS[norm](query, steps) <= query.sensitivity(norm) * (1 + 1e-12)


def check_pair(query, norms, relation, one, other):
    """Compare one record with none, an emptied or another one."""
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
        halved = build in SAMPLED and relation == "replace_one"  # a sampled record is replaced through the empty one
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
def test_a_longer_search_finds_no_such_record_either(build, data):
    search(build, data)


@pytest.mark.audit_only
@pytest.mark.parametrize("name", RATING_QUERIES)
@settings(max_examples=1000)
@given(data=st.data())
def test_a_longer_search_finds_no_such_user_either(name, data):
    search_ratings(name, data)
