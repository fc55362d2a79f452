"""Running totals: what a query adds is what it returns, and the declared density moves no bit."""

from typing import Any

import numpy as np
import pytest

from dpca_tasks.errors import InvalidInput
from dpca_tasks.queries.augmented_moment import CentredMoment
from dpca_tasks.queries.clipped_product import ReplacedProduct
from dpca_tasks.queries.record_mean import RecordMean
from dpca_tasks.queries.rounded_product import MomentProduct, on_direction_grid
from dpca_tasks.queries.second_moment import SecondMoment
from dpca_tasks.records.sources import ArrayBlocks

D = 6
FACTS: dict[str, Any] = {"n_features": D, "clip_norm": 1.5, "relation": "add_remove", "bits": 14}
DIRECTIONS = on_direction_grid(np.linalg.qr(np.random.default_rng(1).standard_normal((D, 3)))[0])
QUERIES = [
    SecondMoment(**FACTS),
    CentredMoment(**FACTS),
    MomentProduct(directions=DIRECTIONS, **FACTS),
    RecordMean(**FACTS),
    ReplacedProduct(directions=DIRECTIONS, **FACTS | {"relation": "replace_one", "bits": 8}),
]
ROWS = np.where(np.random.default_rng(2).random((90, D)) < 0.6, np.random.default_rng(3).standard_normal((90, D)), 0)


def gridded(query, **cut):
    source = ArrayBlocks(ROWS, **cut)
    return [query.grid(source.read(at)) for at in range(source.n_blocks)]


def added(query, **cut):
    total = np.zeros(query.layout.size, np.int64)
    for block in gridded(query, **cut):
        query.add(block, total)
    return total


each_query = pytest.mark.parametrize("query", QUERIES, ids=lambda query: query.name)


@each_query
def test_what_a_query_adds_is_what_it_returns(query):
    expected = np.sum([query.map(block) for block in gridded(query, block_records=7)], axis=0)
    np.testing.assert_array_equal(added(query, block_records=7), expected)


@each_query
@pytest.mark.parametrize("record_rows", [[1] * 90, [3] * 30, [0, 9] * 10])
def test_the_declared_density_moves_no_bit(query, record_rows):
    for density in (None, 0.1, 1.0):
        declared = added(query, density=density, record_rows=record_rows, block_records=11)
        np.testing.assert_array_equal(declared, added(query, density=0.2, record_rows=record_rows))


def test_a_grid_finer_than_the_capacity_is_refused():
    with pytest.raises(InvalidInput, match="use at most 14"):
        SecondMoment(**{**FACTS, "bits": 15})


def test_a_block_passes_its_density_on():
    for query in QUERIES:
        assert {block.density for block in gridded(query, density=0.7)} == {0.7}
    assert ArrayBlocks(ROWS).read(0).density == 1.0
