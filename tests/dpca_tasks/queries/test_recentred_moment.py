"""Moments of records around a public mean: centered rows are bounded in exact integers, and sums are exact.

The captured energies along and off directions add up to each record's squared norm, and equal dense arithmetic within
their bounds.
"""

import dataclasses
import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from dpca_tasks.errors import InvalidInput
from dpca_tasks.kernels.gridding import SHIFT_BITS
from dpca_tasks.layouts import unpack_symmetric
from dpca_tasks.queries.operator_product import BITS, EIGENSOLVER_DIRECTION_BITS, ExactProduct
from dpca_tasks.queries.operator_product import on_direction_grid as on_eigensolver_grid
from dpca_tasks.queries.recentred_moment import CapturedEnergies, ShiftedMoment, lifted, moment_around, on_shift_grid
from dpca_tasks.queries.rounded_product import on_direction_grid
from dpca_tasks.records.blocks import ArrayBlocks
from dpca_tasks.sums.exact_sum import exact_sum
from tests.strategies import entries, rows

D = 5
MEAN = np.array([0.5, -0.3, 0.2, 0.1, 0.0])
ROWS = MEAN + np.random.default_rng(3).standard_normal((90, D)) / 9
FACTS: dict[str, Any] = {"n_features": D, "clip_norm": 2.0, "relation": "add_remove", "bits": 13}


def query(mean=MEAN, **changes):
    facts = FACTS | {"n_features": len(mean), "shift": on_shift_grid(np.asarray(mean, float))} | changes
    return ShiftedMoment(**facts)


def stands_for(requested, source):
    """Return the centered rows that each gridded record represents, as integers in steps of ``2^-(bits + 16)``."""
    shift, found = requested.shift.astype(object), []
    for block in (requested.grid(source.read(at)) for at in range(source.n_blocks)):
        dense = np.zeros((block.row_ptr.size - 1, requested.n_features + 1), object)
        for row, (start, stop) in enumerate(itertools.pairwise(block.row_ptr)):
            dense[row, block.indices[start:stop]] = [int(value) for value in block.values[start:stop]]
        whole = (dense[:, :-1] << SHIFT_BITS) - np.outer(dense[:, -1], shift)
        for start, stop in itertools.pairwise(block.record_ptr):
            assert (dense[start:stop] ** 2).sum() <= 4 ** (requested.bits + 1)
            found.append(whole[start:stop])
    return found


@settings(max_examples=300, deadline=None)
@given(
    made=st.integers(1, 4).flatmap(lambda d: rows(n_features=d, min_rows=1, max_rows=4)),
    bits=st.integers(0, 13),
    data=st.data(),
)
def test_no_centered_record_exceeds_the_bound_for_any_mean_and_grid(made, bits, data):
    """Generate means that are arbitrary, equal to a row or its negative: no record may exceed the bound."""
    entry = st.one_of(entries(finite=True), st.sampled_from(sorted({*made.ravel(), *-made.ravel()})))
    mean = data.draw(hnp.arrays(np.float64, made.shape[1], elements=entry).filter(lambda m: np.isfinite(m).all()))
    with np.errstate(over="ignore"):
        requested = query(np.clip(mean, -1e100, 1e100), clip_norm=1.0, bits=bits)
    (record,) = stands_for(requested, ArrayBlocks(made, record_rows=[len(made)]))
    assert (record**2).sum() <= 4 ** (bits + SHIFT_BITS)


@given(hnp.arrays(np.float64, 6, elements=st.floats(-1e100, 1e100)))
def test_a_mean_on_its_grid_is_never_longer_than_one_clip_norm(mean):
    requested = query(mean)
    assert sum(int(entry) ** 2 for entry in requested.shift) <= 4**SHIFT_BITS
    short = mean / max(1.0, np.linalg.norm(mean))
    np.testing.assert_allclose(requested.shift / 2.0**SHIFT_BITS, short, atol=2.0**-SHIFT_BITS)


@pytest.mark.parametrize("counts", [[1] * 90, [1, 5] * 15, [0, 9] * 10], ids=["rows", "records", "empty"])
@pytest.mark.parametrize("scale", [1.0, 4.0], ids=["within", "clipped"])
def test_the_matrix_is_the_moment_of_clipped_records_around_the_mean(counts, scale):
    """Compare the matrix with the moment of clipped centered records, of one and several rows.

    Norms are up to 10; the clip norm is 2.
    """
    requested = query(MEAN * 0.7)
    expected = np.zeros((D, D))
    for record in np.split(ROWS * scale, np.cumsum(counts)[:-1]):
        clipped = record / 2.0 / max(1.0, np.linalg.norm(record / 2.0))
        around = clipped - MEAN * 0.7 / np.sqrt(max(len(record), 1))
        around /= max(1.0, np.linalg.norm(around))
        expected += around.T @ around
    found = requested.matrix(exact_sum(ArrayBlocks(scale * ROWS, record_rows=counts), requested))
    np.testing.assert_allclose(found, expected, atol=2e-3 * len(counts))
    np.testing.assert_array_equal(found, found.T)


def test_centered_sparse_rows_have_one_additional_entry():
    made = np.zeros((3, 40))
    made[:, [2, 30]] = 0.5
    block = query(np.full(40, 0.1)).grid(ArrayBlocks(made).read(0))
    assert np.diff(block.row_ptr).tolist() == [3, 3, 3]


def test_a_record_that_is_not_finite_is_replaced_by_the_mean():
    made = np.vstack([np.full(D, np.nan), np.zeros(D)])
    one, other = stands_for(query(), ArrayBlocks(made))
    np.testing.assert_array_equal(one, other)
    np.testing.assert_array_equal(one[0], [-(1 << 13) * int(entry) for entry in query().shift])


@pytest.mark.parametrize("density", [None, 1.0])
def test_blocks_and_kernels_change_no_bit(density):
    whole, cut = (
        exact_sum(ArrayBlocks(ROWS, record_rows=[3] * 30, block_records=size, density=density), query())
        for size in (100, 7)
    )
    np.testing.assert_array_equal(whole, cut)
    np.testing.assert_array_equal(whole, exact_sum(ArrayBlocks(ROWS, record_rows=[3] * 30, density=0.1), query()))


DIRECTIONS = on_eigensolver_grid(np.linalg.qr(np.random.default_rng(4).standard_normal((D, 3)))[0], shifted=True)


def product(**changes):
    facts = FACTS | {"bits": BITS, "directions": DIRECTIONS, "shift": on_shift_grid(MEAN)} | changes
    return ExactProduct(**facts)


def test_products_around_a_mean_are_exact():
    """Compare products around a mean with Python's integers; only the final conversion to floats rounds."""
    source, requested = ArrayBlocks(ROWS, block_records=11), product()
    exact = np.zeros(DIRECTIONS.shape, object)
    for record in stands_for(requested.plain, source):
        exact += record.T @ (record @ DIRECTIONS.astype(object))
    found = requested.product(exact_sum(source, requested))
    unit = 2.0 ** -(2 * (BITS + SHIFT_BITS) + EIGENSOLVER_DIRECTION_BITS)
    np.testing.assert_allclose(found, exact.astype(float) * unit, rtol=1e-12, atol=1e-13)
    matrix = requested.plain.matrix(exact_sum(source, requested.plain))
    np.testing.assert_allclose(found, matrix @ (DIRECTIONS / 2.0**EIGENSOLVER_DIRECTION_BITS), atol=1e-12)
    assert requested.layout.size == exact_sum(source, requested).size


def test_directions_are_lifted_without_rounding():
    shift = on_shift_grid(MEAN)
    last = [-int(sum(m * v for m, v in zip(map(int, shift), map(int, column), strict=True))) for column in DIRECTIONS.T]
    assert [int(entry) << SHIFT_BITS for entry in lifted(DIRECTIONS, shift)[-1]] == last


def test_limbs_of_the_largest_records_stay_small():
    """Sum the largest possible record: each limb must stay below 2^29, so that 2^33 rows fit.

    Record, mean and direction are along one axis, with either sign.
    """
    for sign, row in itertools.product((1, -1), (1, -1)):
        along = np.zeros((D, 1), np.int64)
        along[0] = sign << EIGENSOLVER_DIRECTION_BITS
        requested = product(directions=along, shift=on_shift_grid(np.eye(D)[0]))
        limbs = exact_sum(ArrayBlocks(9.0 * row * np.eye(D)[:1]), requested)
        assert np.abs(limbs).max() <= 2**29


def test_rows_on_the_grid_serve_every_product_and_the_mean_enters_every_digest():
    one, other = product(), product(directions=DIRECTIONS[:, ::-1].copy())
    assert one.plain.digest() == other.plain.digest() == query(bits=BITS).digest()
    assert one.digest() != other.digest()
    moved = on_shift_grid(MEAN) + np.eye(D, dtype=np.int64)[0]
    assert product(shift=moved).plain.digest() != one.plain.digest()
    assert set(query().public_inputs()) == {"shift"}
    assert moment_around(None, **FACTS).name == "second_moment"


@pytest.mark.parametrize(
    "shift",
    [
        np.zeros(D + 1, np.int64),
        np.full(D, 2.0),
        np.full(D, 2**SHIFT_BITS),
        np.array([-(2**63), 0, 0, 0, 0]),
        np.eye(D, dtype=np.int64)[0] + 2**SHIFT_BITS,
    ],
    ids=["shape", "floats", "long", "least", "longer"],
)
def test_an_invalid_mean_is_refused(shift):
    for build in (query, product):
        with pytest.raises(InvalidInput, match="on_shift_grid"):
            build(shift=shift)


def test_directions_that_could_round_or_overflow_are_refused():
    with pytest.raises(InvalidInput, match="on_direction_grid"):
        product(directions=DIRECTIONS + 1)
    with pytest.raises(InvalidInput, match="bits"):
        query(bits=14)


@pytest.mark.parametrize("norm", ["l1", "l2", "nuclear"])
def test_a_sum_of_extended_records_has_no_sensitivity(norm):
    """Request a sensitivity for the sum of extended records, which must be refused.

    Extended records have norm up to 2; only the centered rows that they represent are bounded.
    """
    with pytest.raises(InvalidInput, match="CentredMoment"):
        query().sensitivity(norm)


def test_an_emptied_record_changes_the_scores_more_than_a_removed_one():
    """Empty a record at 60 degrees from a mean of norm 1, one clip norm away: scores move by sqrt 3.

    Removing the record would move them by 1 at most.
    """
    requested = query([1.0, 0.0], clip_norm=1.0, relation="zero_out")
    here, there = (
        requested.matrix(exact_sum(ArrayBlocks(np.array([row])), requested))
        for row in ([0.5, np.sqrt(0.75)], [0.0, 0.0])
    )
    moved = np.linalg.eigvalsh(here - there)
    assert moved[1] - moved[0] == pytest.approx(np.sqrt(3), abs=1e-3)
    assert requested.sensitivity("scores") == 2.0
    assert dataclasses.replace(requested, relation="add_remove").sensitivity("scores") == 1.0


def test_a_record_opposite_to_the_mean_attains_the_bound_and_no_more():
    requested = query([1.0, 0.0], clip_norm=1.0)
    packed = exact_sum(ArrayBlocks(np.array([[-3.0, 0.0]])), requested)
    assert np.linalg.eigvalsh(requested.matrix(packed))[-1] == pytest.approx(1.0, abs=1e-3)
    assert np.trace(unpack_symmetric(packed / 4.0**13, 3)) == pytest.approx(0.5, abs=1e-3)


N, CAPTURED_ENERGIES_D, CAPTURED_ENERGIES_BITS = 300, 12, 13
RNG = np.random.default_rng(3)
SHORT = RNG.standard_normal((N, CAPTURED_ENERGIES_D)) * 0.05 * np.arange(CAPTURED_ENERGIES_D, 0, -1) ** 0.5
CAPTURED_ENERGIES_DIRECTIONS = np.linalg.qr(RNG.standard_normal((CAPTURED_ENERGIES_D, 4)))[0]
CAPTURED_ENERGIES_MEAN = RNG.standard_normal(CAPTURED_ENERGIES_D) * 0.05
RELATIONS = ("add_remove", "zero_out", "replace_one")


def energies(
    relation="add_remove",
    *,
    directions=CAPTURED_ENERGIES_DIRECTIONS,
    mean=None,
    bits=CAPTURED_ENERGIES_BITS,
    clip_norm=1.0,
):
    return CapturedEnergies(
        n_features=len(directions),
        clip_norm=clip_norm,
        relation=relation,
        bits=bits,
        directions=on_direction_grid(directions),
        shift=None if mean is None else on_shift_grid(mean / clip_norm),
    )


def summed(rows, query, **others):
    return exact_sum(ArrayBlocks(rows, **others), query) / query.steps_per_unit


def dense(rows, directions=CAPTURED_ENERGIES_DIRECTIONS):
    squares = ((rows @ directions) ** 2).sum(axis=0)
    return np.array([squares[0], squares[1:].sum(), (rows**2).sum() - squares.sum()])


def test_sums_are_those_of_dense_arithmetic():
    assert np.linalg.norm(SHORT, axis=1).max() < 1, "nothing is clipped"
    np.testing.assert_allclose(summed(SHORT, energies()), dense(SHORT), rtol=2e-3)
    np.testing.assert_allclose(summed(SHORT * 3.0, energies(clip_norm=3.0)), dense(SHORT), rtol=2e-3)


def test_energies_around_a_mean_are_those_of_centered_rows():
    assert np.linalg.norm(SHORT - CAPTURED_ENERGIES_MEAN, axis=1).max() < 1
    np.testing.assert_allclose(
        summed(SHORT, energies(mean=CAPTURED_ENERGIES_MEAN)), dense(SHORT - CAPTURED_ENERGIES_MEAN), rtol=2e-3
    )
    np.testing.assert_allclose(
        summed(SHORT, energies(mean=np.zeros(CAPTURED_ENERGIES_D))), summed(SHORT, energies()), rtol=2e-3
    )


def test_rows_of_one_record_are_clipped_together_and_long_ones_count_one():
    rows = np.array([[3.0, 0.0, 0.0], [0.0, 4.0, 0.0], [0.0, 0.0, 0.0]])
    query = energies(directions=np.eye(3)[:, :2])
    np.testing.assert_allclose(summed(rows, query, record_rows=[2, 1]), [9 / 25, 16 / 25, 0.0], atol=1e-3)
    np.testing.assert_allclose(summed(rows, query), [1.0, 1.0, 0.0], atol=1e-3)


@pytest.mark.parametrize("mean", [None, CAPTURED_ENERGIES_MEAN], ids=["origin", "mean"])
def test_sums_have_the_same_bits_in_blocks_of_any_size(mean):
    query = energies(mean=mean)
    whole = exact_sum(ArrayBlocks(SHORT), query)
    for size in (1, 7, 299):
        assert np.array_equal(exact_sum(ArrayBlocks(SHORT, block_records=size), query), whole)


@pytest.mark.parametrize("mean", [None, np.eye(CAPTURED_ENERGIES_D)[0]], ids=["origin", "mean"])
@pytest.mark.parametrize(
    "directions",
    [CAPTURED_ENERGIES_DIRECTIONS, np.ones((CAPTURED_ENERGIES_D, 3)), -np.eye(CAPTURED_ENERGIES_D)],
    ids=["few", "alike", "all"],
)
def test_a_record_adds_parts_of_its_norm_and_none_is_negative(mean, directions):
    query = energies(directions=directions, mean=mean, bits=6)
    for row in np.vstack(
        [
            SHORT[:20] * 50.0,
            np.eye(CAPTURED_ENERGIES_D),
            -np.eye(CAPTURED_ENERGIES_D),
            np.full((1, CAPTURED_ENERGIES_D), np.nan),
            np.full((1, CAPTURED_ENERGIES_D), 1e200),
        ]
    ):
        parts = exact_sum(ArrayBlocks(row[None]), query)
        assert (parts >= 0).all()
        assert parts.sum() <= query.steps_per_unit


@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize("norm", ["l1", "l2"])
def test_the_stated_sensitivity_is_attained(relation, norm):
    query = energies(relation, directions=np.eye(3)[:, :2])
    mine, other = summed(np.eye(3)[:1], query), summed(np.eye(3)[1:2], query)
    moved = mine - other if relation == "replace_one" else mine
    assert np.linalg.norm(moved, 1 if norm == "l1" else 2) == pytest.approx(query.sensitivity(norm), rel=1e-12)


def test_an_emptied_record_around_a_mean_has_the_sensitivity_of_a_replaced_one():
    at_mean = energies("zero_out", directions=np.eye(3)[:, :2], mean=np.eye(3)[0])
    assert at_mean.sensitivity("l2") == energies("replace_one").sensitivity("l2")
    emptied = summed(np.zeros((1, 3)), at_mean)
    mine = summed(np.array([[0.99, 0.0, 0.99]]) / 0.99, at_mean)
    assert np.abs(mine - emptied).sum() > 1.4, "a record that is added moves the sum by 1 at most"


def test_unproved_and_inexact_queries_are_refused():
    with pytest.raises(InvalidInput, match="no sensitivity in norm"):
        energies().sensitivity("nuclear")
    with pytest.raises(InvalidInput, match="at most 1"):
        energies(directions=2.0 * CAPTURED_ENERGIES_DIRECTIONS)
    with pytest.raises(InvalidInput, match="one unit of the output must have"):
        energies(mean=CAPTURED_ENERGIES_MEAN, bits=14)
