"""The moment's own matrix, applied: exact for any rows, any blocks, and sums beyond 64 bits."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpca_tasks.errors import InvalidInput
from dpca_tasks.layouts import unpack_symmetric
from dpca_tasks.queries import operator_product
from dpca_tasks.queries.augmented_moment import CentredMoment
from dpca_tasks.queries.operator_product import UnroundedProduct, as_words, carried
from dpca_tasks.queries.second_moment import SecondMoment
from dpca_tasks.records.sources import ArrayBlocks
from dpca_tasks.sums.exact_sum import exact_sum
from tests.strategies import rows

D = 4
KINDS = (SecondMoment, CentredMoment)


def moment(kind=SecondMoment, *, bits=12, relation="add_remove"):
    return kind(n_features=D, clip_norm=1.0, relation=relation, bits=bits)


def value(words):
    """The integers that two words stand for, of any size."""
    return words[0].astype(object) * 2**32 + words[1].astype(object)


def applied(source, asked, query):
    return exact_sum(source, UnroundedProduct.of(query, asked)).reshape(2, *asked.shape)


def identity(query):
    return np.eye(query.layout.order, dtype=np.int64) << 15


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=40)
@given(data=st.data())
def test_the_identity_gives_the_moment_itself(kind, data):
    """So its sensitivity is the moment's, which is proved and attacked there."""
    query = moment(kind, bits=data.draw(st.sampled_from([2, 12, 14])))
    per_record = data.draw(st.sampled_from([1, 2]))
    made = data.draw(rows(n_features=D, min_rows=2, max_rows=4))
    made = made[: len(made) // per_record * per_record]
    source = ArrayBlocks(made, record_rows=[per_record] * (len(made) // per_record), block_records=1)
    whole = unpack_symmetric(exact_sum(source, query).astype(np.float64), query.layout.order)
    found = value(carried(applied(source, identity(query), query)))
    np.testing.assert_array_equal(found, whole.astype(np.int64).astype(object) * 2**15)


@pytest.mark.parametrize("relation", ["add_remove", "zero_out", "replace_one"])
@settings(max_examples=50)
@given(data=st.data())
def test_no_neighbour_moves_the_matrix_beyond_the_stated_sensitivity(relation, data):
    query = moment(relation=relation, bits=data.draw(st.sampled_from([2, 6, 12])))
    common, mine, other = (data.draw(rows(n_features=D, min_rows=low, max_rows=low)) for low in (2, 1, 1))
    there = {"add_remove": [], "zero_out": [np.zeros((1, D))], "replace_one": [other]}[relation]
    left, right = (
        value(applied(ArrayBlocks(np.vstack([common, *part])), identity(query), query)) for part in ([mine], there)
    )
    moved = np.linalg.norm((left - right).astype(np.float64)) / 2**15 / query.steps_per_unit
    assert moved <= query.sensitivity("l2") * (1 + 1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_blocks_and_splits_are_performance_settings(kind, monkeypatch):
    made = np.random.default_rng(0).standard_normal((23, D))
    query = moment(kind)
    asked = np.random.default_rng(1).integers(-(2**14), 2**14, (query.layout.order, 3))
    whole = carried(applied(ArrayBlocks(made), asked, query))
    monkeypatch.setattr(operator_product, "_ROWS_AT_ONCE", 2)
    for size in (1, 7, 23):
        np.testing.assert_array_equal(carried(applied(ArrayBlocks(made, block_records=size), asked, query)), whole)


def test_rows_are_kept_on_the_moments_grid():
    query = moment()
    asked = UnroundedProduct.of(query, identity(query))
    assert asked.plain is query
    block = ArrayBlocks(np.eye(D)).read(0)
    np.testing.assert_array_equal(asked.grid(block).values, query.grid(block).values)


@given(st.lists(st.integers(-(2**61), 2**61), min_size=1, max_size=4), st.integers(1, 2**12))
def test_words_hold_sums_beyond_64_bits(numbers, times):
    total = as_words(np.array(numbers)) * times
    expected = [number * times for number in numbers]
    assert value(total).tolist() == expected
    high, low = carried(total)
    assert value(np.stack([high, low])).tolist() == expected
    assert ((low >= 0) & (low < 2**32)).all()


@pytest.mark.parametrize(
    "asked",
    [np.full((D + 1, 1), 1), np.full((D, 1), 2**15), np.full((D, 1), 2**40)],
    ids=["shape", "norm", "size"],
)
def test_directions_that_could_overflow_are_refused(asked):
    with pytest.raises(InvalidInput, match="orthonormal"):
        UnroundedProduct.of(moment(), asked)


def test_it_has_no_noise_of_its_own():
    query = moment()
    with pytest.raises(InvalidInput, match="release_operator"):
        UnroundedProduct.of(query, identity(query)).sensitivity("l2")
