"""Products of the moment with public directions: rounded, clipped, exact and unrounded.

Rounded products are compared with plain linear algebra. For clipped contributions, the bound for a replaced record must
be attained and never exceeded, and a clip of 1 must have no effect. The moment's matrix is applied exactly for any
rows, any blocks, and sums beyond 64 bits. The unrounded product must give the same integers as arbitrary-precision
arithmetic, for any blocks.
"""

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpca_tasks.errors import InvalidInput
from dpca_tasks.layouts import unpack_symmetric
from dpca_tasks.queries import operator_product
from dpca_tasks.queries.operator_product import BITS as EIGENSOLVER_PRODUCT_BITS
from dpca_tasks.queries.operator_product import (
    EIGENSOLVER_DIRECTION_BITS,
    LIMB_BITS,
    LIMBS,
    ExactProduct,
    UnroundedProduct,
    as_words,
    carried,
)
from dpca_tasks.queries.rounded_product import (
    ClippedProduct,
    MomentProduct,
    ReplacedProduct,
    on_direction_grid,
    replaced_bound,
)
from dpca_tasks.queries.second_moment import CentredMoment, SecondMoment
from dpca_tasks.records.blocks import ArrayBlocks
from dpca_tasks.sums.exact_sum import exact_sum
from tests.strategies import rows


def query(directions, **changes):
    facts = {"n_features": len(directions), "clip_norm": 2.0, "relation": "add_remove", "bits": 14}
    return MomentProduct(directions=on_direction_grid(directions), **{**facts, **changes})


def test_the_product_agrees_with_a_float_product_up_to_the_grid():
    rng = np.random.default_rng(8)
    rows = rng.standard_normal((300, 20)) / 8
    directions = np.linalg.qr(rng.standard_normal((20, 3)))[0]
    requested = query(directions)
    found = exact_sum(ArrayBlocks(rows), requested).reshape(20, 3) / requested.steps_per_unit * requested.unit
    np.testing.assert_allclose(found, rows.T @ (rows @ directions), atol=300 * requested.unit * 2**-14)


def test_directions_outside_the_unit_range_or_of_another_height_are_refused():
    with pytest.raises(InvalidInput, match="magnitude at most 1"):
        query(np.full((3, 1), 1.5))
    least = np.full((3, 1), np.iinfo(np.int64).min)  # the magnitude of the smallest int64 does not fit an int64
    with pytest.raises(InvalidInput, match="magnitude at most 1"):
        dataclasses.replace(query(np.eye(3)), directions=least)
    with pytest.raises(InvalidInput, match="rows"):
        query(np.eye(3), n_features=4)


def test_the_digest_covers_the_directions():
    directions = np.eye(3)[:, :2]
    other = directions.copy()
    other[0, 0] -= 2.0**-24
    assert query(directions).digest() == query(directions).digest()
    assert query(directions).digest() != query(other).digest()


D, WIDTH, BITS = 8, 3, 14
DIRECTIONS = on_direction_grid(np.eye(D, WIDTH))
CLIPS = (0.1, 0.25, 0.5, 0.577, 0.6, 0.8, 1.0)


def clipped(clip, *, relation="replace_one", directions=DIRECTIONS):
    return ClippedProduct(
        n_features=D, clip_norm=1.0, relation=relation, bits=BITS, directions=directions, message_clip=clip
    )


def contribution(query, record):
    rows = np.atleast_2d(record)
    return exact_sum(ArrayBlocks(rows, record_rows=[len(rows)]), query) / query.steps_per_unit


def worst_rows(clip, *, width=WIDTH):
    """Return two unit rows that are the worst case of the proof for replaced records.

    The scores of the two rows have norm c, the clip, and cosine u, and the remaining parts of both rows are equal.
    """
    cosine = max(-1.0, -(1 - clip**2) / (2 * clip**2)) if width > 1 else -1.0
    scores = clip * np.array([[1.0, 0.0], [cosine, math.sqrt(1 - cosine**2)]])
    rows = np.zeros((2, D))
    rows[:, : min(2, width)] = scores[:, : min(2, width)]
    rows[:, -1] = math.sqrt(1 - clip**2)
    return rows


@pytest.mark.parametrize("clip", CLIPS)
def test_the_bound_for_a_replaced_record_is_attained(clip):
    query = clipped(clip)
    first, second = worst_rows(clip)
    moved = np.linalg.norm(contribution(query, first) - contribution(query, second))
    bound = replaced_bound(clip, width=WIDTH)
    assert moved == pytest.approx(bound, rel=2e-3)
    assert moved <= query.sensitivity("l2") <= max(bound, math.sqrt(2) * clip) * 1.02


def stretched(rng, mean):
    """Return a random record of 1 to 3 rows, long or short along the directions, around a mean."""
    record = rng.standard_normal((rng.integers(1, 4), D)) * np.exp(rng.normal(0.0, 2.0, D)) + mean
    return record / np.linalg.norm(record) * rng.choice([0.3, 1.0, 1.0, 5.0])


@pytest.mark.parametrize("clip", CLIPS)
def test_no_pair_of_records_exceeds_the_distance_of_the_worst_pair(clip):
    """Search pairs of records of several rows: none may exceed the bound that the worst pair of rows attains.

    The proof holds for all positive semi-definite moments of trace at most 1.
    """
    rng, query = np.random.default_rng(3), clipped(clip)
    worst = worst_rows(clip)
    found = 0.0
    for _ in range(100):
        near = rng.choice([0.0, 0.05, 0.5])
        one, other = (row + near * rng.standard_normal((rng.integers(1, 3), D)) for row in worst)
        if rng.random() < 0.5:
            one, other = stretched(rng, one[0]), stretched(rng, -one[0] * rng.choice([0, 1]))
        moved = np.linalg.norm(contribution(query, one) - contribution(query, other))
        alone = np.linalg.norm(contribution(query, one))
        assert alone <= clipped(clip, relation="add_remove").sensitivity("l2")
        assert moved <= query.sensitivity("l2")
        found = max(found, moved)
    assert found >= 0.9 * replaced_bound(clip, width=WIDTH)


def test_without_a_clip_the_sum_is_that_of_whole_contributions():
    rows = np.random.default_rng(5).standard_normal((60, D))
    facts: dict[str, Any] = {
        "n_features": D,
        "clip_norm": 2.0,
        "relation": "replace_one",
        "bits": 8,
        "directions": DIRECTIONS,
    }
    for source in (ArrayBlocks(rows), ArrayBlocks(rows, record_rows=[2] * 30)):
        whole = exact_sum(source, ReplacedProduct(**facts))
        np.testing.assert_array_equal(exact_sum(source, ClippedProduct(**facts, message_clip=1.0)), whole)


@pytest.mark.parametrize(("relation", "expected"), [("add_remove", 0.25), ("zero_out", 0.25), ("replace_one", 0.4842)])
def test_less_noise_is_needed_for_clipped_contributions(relation, expected):
    assert clipped(0.25, relation=relation).sensitivity("l2") == pytest.approx(expected, rel=5e-3)
    one = clipped(0.8, relation=relation, directions=DIRECTIONS[:, :1]).sensitivity("l2")
    assert one <= 1.01, "along one direction no two records are further apart"


def test_directions_that_are_not_a_contraction_have_twice_the_clip_as_sensitivity():
    long = np.full((D, WIDTH), 1 << 24)
    assert clipped(0.25, directions=long).sensitivity("l2") == 0.5
    assert clipped(0.25).sensitivity("l2") < 0.49


@pytest.mark.parametrize("clip", [0.0, -0.1, 1.01, math.nan, 1e-9])
def test_a_clip_outside_the_grid_is_refused(clip):
    with pytest.raises(InvalidInput, match="message_clip"):
        clipped(clip)


OPERATOR_PRODUCT_D = 4
KINDS = (SecondMoment, CentredMoment)


def moment(kind=SecondMoment, *, bits=12, relation="add_remove"):
    return kind(n_features=OPERATOR_PRODUCT_D, clip_norm=1.0, relation=relation, bits=bits)


def value(words):
    """Return the integers that pairs of 32-bit words represent, in arbitrary precision."""
    return words[0].astype(object) * 2**32 + words[1].astype(object)


def applied(source, requested, query):
    return exact_sum(source, UnroundedProduct.of(query, requested)).reshape(2, *requested.shape)


def identity(query):
    return np.eye(query.layout.order, dtype=np.int64) << 15


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=40)
@given(data=st.data())
def test_the_identity_gives_the_moment_itself(kind, data):
    """Apply the moment to the identity: the result must be the moment itself.

    So the sensitivity is that of the moment, which is proved and attacked elsewhere.
    """
    query = moment(kind, bits=data.draw(st.sampled_from([2, 12, 14])))
    per_record = data.draw(st.sampled_from([1, 2]))
    made = data.draw(rows(n_features=OPERATOR_PRODUCT_D, min_rows=2, max_rows=4))
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
    common, mine, other = (
        data.draw(rows(n_features=OPERATOR_PRODUCT_D, min_rows=low, max_rows=low)) for low in (2, 1, 1)
    )
    there = {"add_remove": [], "zero_out": [np.zeros((1, OPERATOR_PRODUCT_D))], "replace_one": [other]}[relation]
    left, right = (
        value(applied(ArrayBlocks(np.vstack([common, *part])), identity(query), query)) for part in ([mine], there)
    )
    moved = np.linalg.norm((left - right).astype(np.float64)) / 2**15 / query.steps_per_unit
    assert moved <= query.sensitivity("l2") * (1 + 1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_blocks_and_splits_are_performance_settings(kind, monkeypatch):
    made = np.random.default_rng(0).standard_normal((23, OPERATOR_PRODUCT_D))
    query = moment(kind)
    requested = np.random.default_rng(1).integers(-(2**14), 2**14, (query.layout.order, 3))
    whole = carried(applied(ArrayBlocks(made), requested, query))
    monkeypatch.setattr(operator_product, "_ROWS_AT_ONCE", 2)
    for size in (1, 7, 23):
        np.testing.assert_array_equal(carried(applied(ArrayBlocks(made, block_records=size), requested, query)), whole)


def test_rows_are_kept_on_the_moments_grid():
    query = moment()
    requested = UnroundedProduct.of(query, identity(query))
    assert requested.plain is query
    block = ArrayBlocks(np.eye(OPERATOR_PRODUCT_D)).read(0)
    np.testing.assert_array_equal(requested.grid(block).values, query.grid(block).values)


@given(st.lists(st.integers(-(2**61), 2**61), min_size=1, max_size=4), st.integers(1, 2**12))
def test_pairs_of_words_represent_sums_beyond_64_bits(numbers, times):
    total = as_words(np.array(numbers)) * times
    expected = [number * times for number in numbers]
    assert value(total).tolist() == expected
    high, low = carried(total)
    assert value(np.stack([high, low])).tolist() == expected
    assert ((low >= 0) & (low < 2**32)).all()


@pytest.mark.parametrize(
    "requested",
    [
        np.full((OPERATOR_PRODUCT_D + 1, 1), 1),
        np.full((OPERATOR_PRODUCT_D, 1), 2**15),
        np.full((OPERATOR_PRODUCT_D, 1), 2**40),
    ],
    ids=["shape", "norm", "size"],
)
def test_directions_that_could_overflow_are_refused(requested):
    with pytest.raises(InvalidInput, match="orthonormal"):
        UnroundedProduct.of(moment(), requested)


def test_an_applied_moment_has_no_separate_noise():
    query = moment()
    with pytest.raises(InvalidInput, match="release_operator"):
        UnroundedProduct.of(query, identity(query)).sensitivity("l2")


EIGENSOLVER_PRODUCT_D, EIGENSOLVER_PRODUCT_WIDTH = 7, 3
RNG = np.random.default_rng(8)
ROWS = RNG.standard_normal((60, EIGENSOLVER_PRODUCT_D)) * (RNG.random((60, EIGENSOLVER_PRODUCT_D)) < 0.6)
EIGENSOLVER_PRODUCT_DIRECTIONS = np.rint(
    np.linalg.qr(RNG.standard_normal((EIGENSOLVER_PRODUCT_D, EIGENSOLVER_PRODUCT_WIDTH)))[0]
    * 2.0**EIGENSOLVER_DIRECTION_BITS
).astype(np.int64)


def query_of_eigensolver_product(directions=EIGENSOLVER_PRODUCT_DIRECTIONS, **changes):
    facts = {
        "n_features": EIGENSOLVER_PRODUCT_D,
        "clip_norm": 1.0,
        "relation": "add_remove",
        "bits": EIGENSOLVER_PRODUCT_BITS,
        "directions": directions,
    }
    return ExactProduct(**(facts | changes))


def integers(requested, source):
    """Return the sum of ``x^T (x V)`` over all gridded rows x, in Python's integers."""
    total = np.zeros(requested.directions.shape, object)
    for at in range(source.n_blocks):
        block = requested.grid(source.read(at))
        for first, last in zip(block.row_ptr[:-1], block.row_ptr[1:], strict=True):
            row = np.zeros(EIGENSOLVER_PRODUCT_D, object)
            row[block.indices[first:last]] = [int(value) for value in block.values[first:last]]
            total += np.outer(row, row @ requested.directions.astype(object))
    return total


@pytest.mark.parametrize(
    "rows", [ROWS, -10 * np.eye(EIGENSOLVER_PRODUCT_D), ROWS[:0]], ids=["some", "at the bound", "none"]
)
def test_the_limbs_are_the_exact_integers(rows):
    source, requested = ArrayBlocks(rows, record_rows=None), query_of_eigensolver_product()
    limbs = exact_sum(source, requested).reshape(LIMBS, EIGENSOLVER_PRODUCT_D, EIGENSOLVER_PRODUCT_WIDTH).astype(object)
    whole = sum(limbs[at] << LIMB_BITS * at for at in range(LIMBS))
    expected = integers(requested, source)
    assert (whole == expected).all()
    product = requested.product(exact_sum(source, requested))
    np.testing.assert_allclose(
        product, expected.astype(float) / 2.0 ** (2 * EIGENSOLVER_PRODUCT_BITS + EIGENSOLVER_DIRECTION_BITS), rtol=1e-15
    )


def test_the_product_does_not_depend_on_blocks():
    one, other = (exact_sum(ArrayBlocks(ROWS, block_records=size), query_of_eigensolver_product()) for size in (100, 7))
    np.testing.assert_array_equal(one, other)


def test_limbs_of_the_largest_rows_stay_small():
    """Sum the largest possible row: each limb of the product must stay small enough for 2^33 rows.

    Row and direction are along one axis, with either sign.
    """
    for sign in (1, -1):
        along = np.zeros((EIGENSOLVER_PRODUCT_D, 1), np.int64)
        along[0] = sign * 2**EIGENSOLVER_DIRECTION_BITS
        limbs = exact_sum(ArrayBlocks(np.eye(EIGENSOLVER_PRODUCT_D)[:1]), query_of_eigensolver_product(along))
        assert np.abs(limbs).max() <= 2 ** (EIGENSOLVER_PRODUCT_BITS + LIMB_BITS + 1)


@pytest.mark.parametrize(
    "changes",
    [
        {"directions": EIGENSOLVER_PRODUCT_DIRECTIONS[1:]},
        {"directions": 2 * EIGENSOLVER_PRODUCT_DIRECTIONS},
        {"bits": EIGENSOLVER_PRODUCT_BITS + 1},
        {"clip_norm": 0.0},
    ],
    ids=["rows", "length", "bits", "clip norm"],
)
def test_directions_that_could_overflow_the_limbs_are_refused(changes):
    with pytest.raises(InvalidInput):
        query_of_eigensolver_product(**changes)


def test_an_eigensolver_product_reveals_neither_directions_nor_sensitivity():
    assert "directions" not in repr(query_of_eigensolver_product())
    with pytest.raises(InvalidInput, match="MomentProduct"):
        query_of_eigensolver_product().sensitivity("l2")
