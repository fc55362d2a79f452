"""Records on the integer grid, and generated ratings.

Records must respect the clip bound in integers, have a canonical form, and be independent of other records. Generated
ratings must have the documented rank, std, activity, skew and means.
"""

import itertools
import math

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy import sparse

from dpca_tasks.errors import InvalidInput
from dpca_tasks.kernels.gridding import rows_are_canonical
from dpca_tasks.noise.distributions import MAX_NOISE_STEPS, MAX_STEPS_PER_UNIT, grid_bits
from dpca_tasks.records.blocks import ArrayBlocks, CsrBlock, canonical, grid_block
from dpca_tasks.records.made_ratings import expected_count, low_rank, pairs, skewed
from tests.strategies import rows


def gridded(matrix, *, clip_norm=1.0, bits=12, **cut):
    source = ArrayBlocks(matrix, **cut)
    return [
        grid_block(source.read(at), n_features=source.n_features, clip_norm=clip_norm, bits=bits)
        for at in range(source.n_blocks)
    ]


def record_squares(block):
    squares = np.concatenate([[0], np.cumsum(block.values.astype(np.int64) ** 2)])
    bounds = block.row_ptr[block.record_ptr]
    return squares[bounds[1:]] - squares[bounds[:-1]]


@settings(max_examples=300)
@given(rows(n_features=5), st.sampled_from([1, 4, 12, 14]), st.sampled_from([1e-200, 0.5, math.sqrt(14), 1e200]))
def test_every_record_is_within_the_bound_in_integers(matrix, bits, clip_norm):
    for block in gridded(matrix, clip_norm=clip_norm, bits=bits):
        assert (record_squares(block) <= 4**bits).all()


@given(rows(n_features=4, min_rows=4, max_rows=4, finite=True), st.sampled_from([[4], [1, 3], [2, 0, 2]]))
def test_a_record_of_several_rows_is_clipped_as_a_whole(matrix, record_rows):
    (block,) = gridded(matrix, record_rows=record_rows)
    squares = record_squares(block)
    assert squares.size == len(record_rows)
    assert (squares <= 4**12).all()


@settings(max_examples=100)
@given(rows(n_features=3, max_rows=7), st.integers(1, 7))
def test_a_record_on_the_grid_does_not_depend_on_its_block(matrix, block_records):
    whole = gridded(matrix, block_records=100)
    parts = gridded(matrix, block_records=block_records)
    for name in ("values", "indices"):
        once, separate = (
            np.concatenate([np.zeros(0, np.int32), *(getattr(block, name) for block in blocks)])
            for blocks in (whole, parts)
        )
        np.testing.assert_array_equal(once, separate)


def test_records_inside_the_bound_are_rounded_to_the_nearest_step():
    (block,) = gridded(np.array([[0.5 + 0.4 / 16, -0.25, 0.0]]), bits=4)
    np.testing.assert_array_equal(block.values, [8, -4])


def test_a_record_at_the_bound_is_rounded_again_toward_zero():
    row = np.ones((1, 14))
    (block,) = gridded(row, clip_norm=math.sqrt(14))
    exact = 2**12 / math.sqrt(14)
    assert 14 * round(exact) ** 2 > 4**12  # rounding entries to nearest would exceed the bound on the norm
    np.testing.assert_array_equal(block.values, np.full(14, math.floor(exact)))


@pytest.mark.parametrize("count", [39, 64, 65, 128, 1000])
@pytest.mark.parametrize("size", [1.0, -1.0, 1e300])
def test_many_long_entries_on_the_finest_grid_do_not_wrap_around(count, size):
    """Grid rows with many long entries on the finest grid: the sum of squares must not overflow.

    Without scaling before rounding, squares of 2^56 and more would exceed 2^63 from 128 entries on.
    """
    (block,) = gridded(np.full((1, count), size), bits=28)
    assert (block.values.astype(object) ** 2).sum() <= 4**28
    np.testing.assert_allclose(block.values * math.sqrt(count) / 2**28, np.sign(size), rtol=1e-6)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_record_with_a_non_finite_value_becomes_the_empty_record_and_still_counts(bad):
    (block,) = gridded(np.array([[1.0, bad], [0.5, 0.5]]))
    assert block.n_records == 2
    np.testing.assert_array_equal(record_squares(block) > 0, [False, True])


@pytest.mark.parametrize("scale", [1e200, 1e308, 5e-324, 1e-200])
def test_magnitudes_at_the_edge_of_floats_are_clipped_without_overflow(scale):
    (block,) = gridded(np.array([[3.0, 4.0]]) / 5.0 * scale if scale < 1e308 else np.array([[1e308, 1e308]]))
    squares = record_squares(block)[0]
    assert squares <= 4**12
    if scale >= 1e200:
        assert squares > 0.999 * 4**12


@pytest.mark.parametrize("dtype", [np.float32, np.int8, np.uint16, np.bool_, np.int64])
def test_stored_types_are_widened_before_clipping(dtype):
    matrix = np.array([[1, 0, 1], [0, 1, 1]]).astype(dtype)
    (block,), (expected,) = gridded(matrix), gridded(matrix.astype(np.float64))
    np.testing.assert_array_equal(block.values, expected.values)


COLUMNS = st.lists(st.lists(st.integers(-1, 3), max_size=4), max_size=5)
"""The column ids of the rows of a block: sorted or not, repeated or not, inside 0 .. 2 or not."""


@settings(max_examples=400)
@given(COLUMNS)
@example([[1, 1]])
@example([[0], [0]])
@example([[2], [], [0, 1]])
@example([[0, 1, 1], [2]])
def test_rows_are_canonical_exactly_when_their_ids_increase_strictly_inside_the_range(columns):
    indices = np.array([column for row in columns for column in row], np.int64)
    row_ptr = np.concatenate([[0], np.cumsum([len(row) for row in columns])]).astype(np.int64)
    expected = all(row == sorted(set(row)) and set(row) <= {0, 1, 2} for row in columns)
    assert rows_are_canonical(indices, row_ptr, 3) == expected


@settings(max_examples=200)
@given(
    COLUMNS,
    st.lists(st.sampled_from([0.5, 0.75, -0.75, 1.0, 3e-5, 1e200, -1e200]), min_size=20, max_size=20),
    st.sampled_from([1, 4, 12]),
    st.booleans(),
)
def test_no_record_with_repeated_columns_exceeds_the_bound(columns, drawn, bits, one_record):
    """Generate records that list a column several times: the sum of squares must be within the bound.

    Entries of the same row and column are added, so the bound applies to these sums.
    """
    row_ptr = np.concatenate([[0], np.cumsum([len(row) for row in columns])]).astype(np.int64)
    record_ptr = np.array([0, len(columns)]) if one_record else np.arange(len(columns) + 1)
    indices = np.array([column for row in columns for column in row], np.int64)
    stored = CsrBlock(
        values=np.array(drawn[: indices.size]),
        indices=indices,
        row_ptr=row_ptr,
        record_ptr=record_ptr.astype(np.int64),
        first_record=0,
    )
    block = grid_block(stored, n_features=3, clip_norm=1.0, bits=bits)
    dense = np.zeros((len(columns), 3), np.int64)
    rows_of_entries = np.repeat(np.arange(len(columns)), np.diff(block.row_ptr))
    np.add.at(dense, (rows_of_entries, block.indices), block.values)
    for first, stop in itertools.pairwise(block.record_ptr):
        assert (dense[first:stop] ** 2).sum() <= 4**bits
    assert block.n_records == record_ptr.size - 1


def test_duplicate_columns_are_merged_before_the_clip():
    twice = CsrBlock(
        values=np.array([0.8, 0.8, 0.1]),
        indices=np.array([1, 1, 0]),
        row_ptr=np.array([0, 3]),
        record_ptr=np.array([0, 1]),
        first_record=0,
    )
    merged = canonical(twice, n_features=2)
    np.testing.assert_array_equal(merged.indices, [0, 1])
    np.testing.assert_array_equal(merged.values, [0.1, 1.6])
    assert record_squares(grid_block(twice, n_features=2, clip_norm=1.0, bits=12))[0] <= 4**12


def test_ids_out_of_range_are_dropped_and_empty_rows_survive():
    block = CsrBlock(
        values=np.array([1.0, 2.0, 3.0]),
        indices=np.array([7, 0, 9]),
        row_ptr=np.array([0, 1, 1, 3]),
        record_ptr=np.array([0, 1, 2, 3]),
        first_record=0,
    )
    clean = canonical(block, n_features=3)
    np.testing.assert_array_equal(clean.row_ptr, [0, 0, 0, 1])
    np.testing.assert_array_equal(clean.values, [2.0])


def test_sparse_and_dense_arrays_give_the_same_records():
    rng = np.random.default_rng(3)
    dense = np.where(rng.random((40, 6)) < 0.3, rng.standard_normal((40, 6)), 0.0)
    (left,), (right,) = gridded(dense), gridded(sparse.coo_matrix(dense))
    np.testing.assert_array_equal(left.values, right.values)


@pytest.mark.parametrize("cut", [{"block_records": 0}, {"record_rows": [1, 1]}, {"record_rows": [4, -1]}])
def test_array_blocks_refuse_bounds_that_do_not_fit(cut):
    with pytest.raises(InvalidInput, match="rows into records"):
        ArrayBlocks(np.ones((3, 2)), **cut)


@given(st.floats(1e-6, 1e8), st.sampled_from([1, 2, 3]))
def test_the_grid_is_the_finest_that_keeps_noise_and_capacity(noise_std, degree):
    try:
        bits = grid_bits(noise_std=noise_std, degree=degree)
    except InvalidInput:
        assert noise_std * 2**degree > MAX_NOISE_STEPS
        return
    fits = [b for b in range(1, 40) if max(noise_std * 2.0 ** (degree * b) / MAX_NOISE_STEPS,
                                           2.0 ** (degree * b) / MAX_STEPS_PER_UNIT) <= 1]  # fmt: skip
    assert bits == max(fits)


@pytest.mark.parametrize("noise_std", [0.0, -1.0, math.nan, math.inf, 1e9])
def test_noise_without_a_grid_is_refused(noise_std):
    with pytest.raises(InvalidInput):
        grid_bits(noise_std=noise_std, degree=2)


def test_the_low_rank_task_has_rank_five_std_one_and_the_stated_density() -> None:
    assert expected_count(50_000) == 216
    made = low_rank(n_users=2_000, n_items=400, seed=3, tested=100)
    # the mean number of ratings per user has a std of 0.25
    assert made.train.nnz / 2_000 == pytest.approx(expected_count(2_000), rel=0.02)
    assert made.train.data.std() == pytest.approx(1.0, abs=0.05)
    dense = made.train.toarray()
    whole = low_rank(n_users=30, n_items=20, seed=1)
    known = whole.train.toarray() + whole.held.toarray()
    assert (known != 0.0).all()
    assert np.linalg.matrix_rank(known, tol=1e-9) == 5
    assert not dense[made.held.nonzero()].any()
    assert np.diff(made.held.indptr)[:100].min() == 50
    assert made.held.indptr[100] == made.held.nnz


def test_the_skewed_task_has_the_documented_activity_skew_and_errors() -> None:
    """Compare generated ratings with the documented activity, skew and prediction errors.

    At 4,000 users, the errors are within 0.01 of .986 and .924; item counts scale with the number of users.
    """
    made = skewed(n_users=4_000, seed=0)
    whole = made.train.nnz + made.held.nnz
    assert made.held.nnz / whole == pytest.approx(0.1, abs=0.002)
    assert 4 * made.train.nnz == pytest.approx(1.43e6, rel=0.03)
    per_user = np.diff(made.train.indptr) + np.diff(made.held.indptr)
    assert (per_user.min(), per_user.max() <= 1_000) == (20, True)
    counts = np.sort(np.bincount(made.train.indices, minlength=2_500))[::-1]
    assert counts[:500].sum() / counts.sum() == pytest.approx(0.77, abs=0.01)
    centre = made.train.data.mean()
    assert np.sqrt(np.mean((made.held.data - centre) ** 2)) == pytest.approx(0.986, abs=0.01)
    sums = np.add.reduceat(made.train.data, made.train.indptr[:-1])
    means = np.repeat(sums / np.diff(made.train.indptr), np.diff(made.held.indptr))
    assert np.sqrt(np.mean((made.held.data - means) ** 2)) == pytest.approx(0.924, abs=0.01)
    assert set(np.unique(made.train.data)) == {0.5 * step for step in range(1, 11)}
    assert not (made.train.multiply(made.held)).count_nonzero()


def test_popularity_of_light_users_is_more_skewed() -> None:
    made = skewed(n_users=2_000, seed=1)
    counts = np.diff(made.train.indptr)
    head = np.repeat(counts <= np.median(counts), counts)
    popular = made.train.indices < 500
    assert popular[head].mean() > popular[~head].mean() + 0.1


def test_a_seed_determines_the_ratings_and_implicit_pairs_are_at_the_same_positions() -> None:
    one, same, other = (skewed(n_users=100, n_items=100, seed=seed) for seed in (1, 1, 2))
    assert (one.train != same.train).nnz == 0
    assert (one.train != other.train).nnz > 0
    implicit = pairs(one)
    np.testing.assert_array_equal(implicit.train.indices, one.train.indices)
    assert set(implicit.train.data) == set(implicit.held.data) == {1.0}
    assert (implicit.low, implicit.high) == (0.0, 1.0)
