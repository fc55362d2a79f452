"""Kernels for sums of products: all of them return the same bits as Python's integers."""

import math
import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy import sparse

from dpca_tasks.kernels import dense_products, outer_products, products, word_moments
from dpca_tasks.kernels.dense_products import add_long_products
from dpca_tasks.queries.rounded_product import UNLIMITED
from dpca_tasks.queries.second_moment import SecondMoment
from dpca_tasks.records.blocks import ArrayBlocks
from dpca_tasks.sums.partial_sums import fold

BITS = 14
LARGEST = 1 << BITS
FEATURES = 11


def gridded_rows(*, n_features=FEATURES, largest=LARGEST, max_rows=9):
    """Generate integer rows with many zeros, some with the largest entry of a grid, and no bound on a row's norm."""
    entries = st.one_of(st.just(0), st.sampled_from([largest, -largest, 1]), st.integers(-largest, largest))
    shapes = st.integers(0, max_rows).map(lambda n: (n, n_features))
    return shapes.flatmap(lambda shape: hnp.arrays(np.int64, shape, elements=entries))


def compressed(rows):
    matrix = sparse.csr_array(rows)
    return matrix.data.astype(np.int32), matrix.indices.astype(np.int32), matrix.indptr.astype(np.int64)


def packed(matrix):
    return matrix[np.triu_indices(matrix.shape[0])]


def summed_products(kernel, rows):
    total = np.zeros(rows.shape[1] * (rows.shape[1] + 1) // 2, np.int64)
    kernel(*compressed(rows), rows.shape[1], total)
    return total


OUTER: tuple[Any, ...] = (
    outer_products.add_outer_products,
    outer_products.add_by_strips,
    dense_products.add_dense_outer_products,
)
PACKED = 1 << 14  # PACKED is the largest entry of the finest grid


@pytest.mark.parametrize("kernel", OUTER, ids=lambda kernel: kernel.__name__)
@settings(max_examples=60, deadline=None)
@given(rows=gridded_rows())
def test_outer_products_are_those_of_integers(kernel, rows):
    np.testing.assert_array_equal(summed_products(kernel, rows), packed(rows.T @ rows))


@pytest.mark.parametrize("n_features", [1, 2, 5, 255, 256, 257, 600, outer_products.WIDE, outer_products.WIDE + 3])
def test_full_rows_of_any_width_give_the_same_bits(n_features):
    """Test widths around the size of a panel, of the loop's groups of four rows, and of strips."""
    rows = np.random.default_rng(n_features).integers(-LARGEST, LARGEST + 1, (7, n_features))
    expected = packed(rows.T @ rows)
    for kernel in OUTER:
        np.testing.assert_array_equal(summed_products(kernel, rows), expected)


def test_more_values_than_the_kernel_sorts_at_once_are_summed_exactly():
    """Sum more values than the kernel sorts at once; five of every seven rows are empty, including the last row."""
    rng = np.random.default_rng(1)
    n_rows, n_features = 16_000, 260
    rows = rng.integers(-LARGEST, LARGEST + 1, (n_rows, n_features)).astype(np.int32)
    rows[np.arange(n_rows) % 7 > 1] = 0
    assert np.count_nonzero(rows) > outer_products.SORTED
    by_rows = summed_products(outer_products.add_by_rows, rows)
    np.testing.assert_array_equal(summed_products(outer_products.add_by_strips, rows), by_rows)


def test_kernels_add_to_the_existing_sums():
    rows = np.arange(12).reshape(3, 4)
    for kernel in OUTER:
        total = np.full(10, 5)
        kernel(*compressed(rows), 4, total)
        np.testing.assert_array_equal(total, packed(rows.T @ rows) + 5)


@settings(max_examples=60, deadline=None)
@given(rows=gridded_rows(n_features=37, largest=PACKED, max_rows=40))
def test_products_of_packed_rows_are_those_of_integers(rows):
    found = summed_products(outer_products.add_packed_outer_products, rows)
    np.testing.assert_array_equal(found, packed(rows.T @ rows))


@pytest.mark.parametrize("n_features", [1, 2, 15, 16, 17, 33, 600])
@pytest.mark.parametrize("density", [0.02, 0.3, 1.0])
def test_packed_rows_of_any_width_give_the_same_bits(n_features, density):
    rng = np.random.default_rng(n_features)
    rows = rng.integers(-PACKED, PACKED + 1, (43, n_features)) * (rng.random((43, n_features)) < density)
    found = summed_products(outer_products.add_packed_outer_products, rows)
    np.testing.assert_array_equal(found, packed(rows.T @ rows))


@pytest.mark.parametrize("largest", [PACKED, outer_products.LARGE + 1, outer_products.LARGE, 3000, 2047])
@pytest.mark.parametrize("every", [1, 7, 16])
def test_sums_of_packed_rows_are_flushed_before_they_overflow(largest, every):
    """Sum a thousand packed rows that have the largest allowed entry, whose products all have the same sign."""
    rows = np.ones((1000, 20), np.int64)
    rows[::every, 3:5] = largest
    rows[::every, 7] = -largest
    found = summed_products(outer_products.add_packed_outer_products, rows)
    np.testing.assert_array_equal(found, packed(rows.T @ rows))


@pytest.mark.parametrize("add_others", [outer_products.add_outer_products, dense_products.add_dense_outer_products])
@pytest.mark.parametrize("every", [1, 3])
def test_rows_with_a_large_entry_use_another_kernel(add_others, every):
    rows = np.random.default_rng(3).integers(-9, 10, (50, 20))
    rows[::every, 7] = -PACKED
    rows[11] = 0
    total = np.zeros(20 * 21 // 2, np.int64)
    values, indices, row_ptr = compressed(rows)
    outer_products.add_packed_outer_products(values, indices, row_ptr, 20, total, add_others)
    np.testing.assert_array_equal(total, packed(rows.T @ rows))


def test_packed_rows_are_added_to_existing_sums():
    rows = np.arange(12).reshape(3, 4)
    total = np.full(10, 5)
    values, indices, row_ptr = compressed(rows)
    outer_products.add_packed_outer_products(values, indices, row_ptr, 4, total)
    np.testing.assert_array_equal(total, packed(rows.T @ rows) + 5)


@pytest.mark.audit_only  # slow, because the kernels are recompiled, which takes five seconds
def test_packed_rows_give_the_same_bits_on_a_processor_that_multiplies_no_pairs(tmp_path):
    program = """
import numpy as np
from scipy import sparse
from dpca_tasks.kernels.outer_products import MULTIPLIES_PAIRS
from dpca_tasks.kernels.outer_products import add_packed_outer_products, is_packed
assert not MULTIPLIES_PAIRS and not is_packed(1.0, 500)
rows = np.random.default_rng(0).integers(-(2**14), 2**14 + 1, (43, 33))
matrix = sparse.csr_array(rows)
total = np.zeros(33 * 34 // 2, np.int64)
arrays = matrix.data.astype(np.int32), matrix.indices.astype(np.int32), matrix.indptr.astype(np.int64)
add_packed_outer_products(*arrays, 33, total)
np.testing.assert_array_equal(total, (rows.T @ rows)[np.triu_indices(33)])
"""
    machine = {**os.environ, "NUMBA_CPU_NAME": "generic", "NUMBA_CACHE_DIR": str(tmp_path)}
    subprocess.run([sys.executable, "-c", program], env=machine, check=True)


def test_strips_of_the_dense_kernels_add_up(monkeypatch):
    rows = np.random.default_rng(2).integers(-LARGEST, LARGEST + 1, (50, FEATURES))
    monkeypatch.setattr(dense_products, "CELLS", 7 * FEATURES)
    np.testing.assert_array_equal(summed_products(dense_products.add_dense_outer_products, rows), packed(rows.T @ rows))
    directions = on_grid(np.random.default_rng(3), FEATURES, 3, 24)
    sizes = [1, 20, 0, 3, 7, 2, 17]
    expected = expected_products(rows, sizes, directions, 24)
    np.testing.assert_array_equal(
        moment_products(dense_products.add_dense_moment_products, rows, sizes, directions, 24), expected
    )


def on_grid(rng, n_features, width, direction_bits):
    return np.rint(rng.uniform(-1, 1, (n_features, width)) * 2**direction_bits).astype(np.int32)


def moment_products(kernel, rows, sizes, directions, direction_bits, longest=UNLIMITED, most=4**BITS):
    total = np.zeros(directions.size, np.int64)
    record_ptr = np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)])
    kernel(*compressed(rows), record_ptr, directions, direction_bits, BITS, longest, most, total)
    return total.reshape(directions.shape)


def expected_products(rows, sizes, directions, direction_bits, most=4**BITS):
    """Return the products of all records, computed by definition in Python's integers."""
    total = np.zeros(directions.shape, object)
    stop = 0
    for size in sizes:
        record = rows[stop : stop + size].astype(object)
        stop += size
        exact = record @ directions.astype(object)
        rounded = (exact + 2 ** (direction_bits - 1)) // 2**direction_bits
        limit = 4**BITS if most >= 4**BITS else min(4**BITS, most**2 // max(1, (record**2).sum()))
        if size and (rounded**2).sum() > limit:
            fine_squares = 0.0
            for score in exact.ravel():
                fine_squares += float(score) * float(score)
            shrink = math.sqrt(limit) * (1.0 - 2.0**-24) / math.sqrt(fine_squares)
            rounded = np.array([int(float(score) * shrink) for score in exact.ravel()], object).reshape(exact.shape)
        total += record.T @ rounded
    return total.astype(np.int64)


PRODUCTS: tuple[Any, ...] = (
    products.add_moment_products,
    products.add_near_moment_products,
    dense_products.add_dense_moment_products,
)


@pytest.mark.parametrize("kernel", PRODUCTS, ids=lambda kernel: kernel.__name__)
@settings(max_examples=60, deadline=None)
@given(
    rows=gridded_rows(),
    width=st.integers(1, 9),
    record_rows=st.integers(1, 4),
    seed=st.integers(0, 99),
    most=st.sampled_from([4**BITS, 4**BITS // 4, 999]),
)
def test_moment_products_follow_their_definition(kernel, rows, width, record_rows, seed, most):
    """Compare kernels with the definition on records longer than the bound, so that nearly every score is clipped."""
    sizes = [min(record_rows, len(rows) - start) for start in range(0, len(rows), record_rows)]
    directions = on_grid(np.random.default_rng(seed), FEATURES, width, 24)
    expected = expected_products(rows, sizes, directions, 24, most)
    np.testing.assert_array_equal(moment_products(kernel, rows, sizes, directions, 24, most=most), expected)


@pytest.mark.parametrize("kernel", PRODUCTS, ids=lambda kernel: kernel.__name__)
def test_small_scores_are_rounded_and_not_clipped(kernel):
    rows = np.random.default_rng(4).integers(-900, 900, (40, FEATURES))
    directions = np.linalg.qr(np.random.default_rng(5).standard_normal((FEATURES, 4)))[0]
    directions = np.rint(directions * 2**24).astype(np.int32)
    sizes = [1] * 30 + [2] * 5
    expected = expected_products(rows, sizes, directions, 24)
    np.testing.assert_array_equal(moment_products(kernel, rows, sizes, directions, 24), expected)
    np.testing.assert_allclose(expected, rows.T @ (rows @ (directions / 2**24)), atol=40 * 900)


@pytest.mark.parametrize("width", [1, 4, 27, 29, 57])
def test_panels_add_the_same_at_every_width_and_flush_of_their_floats(width, monkeypatch):
    rng = np.random.default_rng(8)
    rows, sizes = rng.integers(-900, 900, (60, FEATURES)), [1] * 30 + [3] * 10
    directions = on_grid(rng, FEATURES, width, 24)
    expected = moment_products(products.add_moment_products, rows, sizes, directions, 24)
    for records_at_once in (1, 2, 1 << 20):
        monkeypatch.setattr(products, "EXACT_BITS", 2 * BITS + records_at_once.bit_length() - 1)
        added = moment_products(products.add_near_moment_products, rows, sizes, directions, 24)
        np.testing.assert_array_equal(added, expected)


@pytest.mark.parametrize("bits", [BITS, 20, 26])
def test_records_are_added_in_floats_only_while_their_sums_are_exact(bits, monkeypatch):
    added = []
    monkeypatch.setattr(products, "EXACT_BITS", 2 * bits + 2)
    monkeypatch.setattr(products, "_add_panels", lambda *given: added.append(given[3].size - 1))
    values, indices, row_ptr = compressed(np.ones((11, FEATURES), np.int32))
    directions = np.ones((FEATURES, 2), np.int32)
    products.add_near_moment_products(
        values, indices, row_ptr, np.arange(12), directions, 24, bits, 1, 1, np.zeros(2 * FEATURES, np.int64)
    )
    assert added == [4, 4, 3]


def test_panels_are_chosen_by_sizes_alone():
    """The choice between near and far directions depends on array sizes alone, never on values."""
    directions = np.zeros((products.FAR // 8 - 1, 8), np.int64)
    assert products.is_near(len(directions), directions)
    assert not products.is_near(len(directions) - 1, directions)
    assert not products.is_near(10 * products.FAR, np.zeros((products.FAR // 8, 8), np.int64))


def test_records_longer_than_a_strip_are_summed_exactly():
    """Sum records that are longer than a strip: at this width a strip has two rows."""
    width = products.STRIP
    n_features = products.FAR // width + 1
    rows = np.random.default_rng(6).integers(-LARGEST, LARGEST + 1, (12, n_features))
    directions = on_grid(np.random.default_rng(7), n_features, width, 24)
    sizes = [5, 1, 0, 1, 5]
    expected = expected_products(rows, sizes, directions, 24)
    np.testing.assert_array_equal(moment_products(products.add_moment_products, rows, sizes, directions, 24), expected)


def expected_long_product(record, directions, direction_bits):
    """Return one record's product rounded to nearest, or scaled down and rounded toward zero if longer than 1."""
    exact = record.T.astype(object) @ (record.astype(object) @ directions.astype(object))
    rounded = (exact + 2 ** (direction_bits - 1)) // 2**direction_bits
    if (rounded**2).sum() <= 16**BITS:
        return rounded
    length = math.sqrt(sum(float(entry) ** 2 for entry in exact.ravel()))
    scale = min(2.0**-direction_bits, 4.0**BITS * (1.0 - 2.0**-24) / length)
    return np.array([int(float(entry) * scale) for entry in exact.ravel()], object).reshape(exact.shape)


@pytest.mark.parametrize("largest", [900, LARGEST])
@pytest.mark.parametrize("kernel", PRODUCTS, ids=lambda kernel: kernel.__name__)
def test_each_record_is_rounded_by_exactly_one_of_two_kernels(kernel, largest):
    """Divide records between the two kernels by their number of rows: each record is rounded by exactly one kernel.

    Scaled products may differ by one grid step, because squares are added in a different order.
    """
    rng = np.random.default_rng(9)
    sizes, longest = [1, 4, 3, 0, 9, 3, 2], 3
    rows, directions = rng.integers(-largest, largest, (sum(sizes), FEATURES)), on_grid(rng, FEATURES, 3, 24)
    starts = np.concatenate([[0], np.cumsum(sizes)])
    records = [rows[start : start + size] for start, size in zip(starts, sizes, strict=False)]
    for record, size in zip(records, sizes, strict=True):
        short = moment_products(kernel, record, [size], directions, 24, longest)
        long = moment_products(add_long_products, record, [size], directions, 24, longest)
        if size <= longest:
            np.testing.assert_array_equal(short, expected_products(record, [size], directions, 24))
            assert not long.any()
        else:
            assert not short.any()
            expected = expected_long_product(record, directions, 24).astype(np.int64)
            np.testing.assert_allclose(long, expected, rtol=0, atol=0 if largest == 900 else 1)
    together = moment_products(add_long_products, rows, sizes, directions, 24, longest)
    np.testing.assert_array_equal(
        together,
        sum(
            moment_products(add_long_products, record, [size], directions, 24, longest)
            for record, size in zip(records, sizes, strict=True)
        ),
    )


@given(rows=gridded_rows(max_rows=5), width=st.integers(1, 4), seed=st.integers(0, 99))
@settings(max_examples=60, deadline=None)
def test_unrounded_products_are_those_of_integers_modulo_their_word(rows, width, seed):
    directions = np.random.default_rng(seed).integers(-(2**36), 2**36, (FEATURES, width))
    total = np.zeros(directions.size, np.int64)
    values, indices, row_ptr = compressed(rows)
    products.add_unrounded_products(values, indices, row_ptr, directions, total)
    exact = rows.T.astype(object) @ (rows.astype(object) @ directions.astype(object))
    np.testing.assert_array_equal(total.astype(object).reshape(exact.shape) % 2**64, exact % 2**64)


@pytest.mark.parametrize(("density", "chosen"), [(None, False), (0.0, False), (0.19, False), (0.5, True), (1.0, True)])
def test_only_a_declared_density_chooses_blas(density, chosen):
    assert dense_products.is_dense(density) is chosen


@pytest.mark.parametrize(
    ("density", "n_features", "chosen"),
    [
        (0.19, 784, True),
        (1.0, 784, True),
        (None, 784, False),
        (0.1, 784, False),
        (0.19, 255, False),
        (1.0, 4001, False),
    ],
)
def test_only_declared_and_public_facts_choose_packed_rows(density, n_features, chosen, monkeypatch):
    monkeypatch.setattr(outer_products, "MULTIPLIES_PAIRS", True)
    assert outer_products.is_packed(density, n_features) is chosen
    monkeypatch.setattr(outer_products, "MULTIPLIES_PAIRS", False)
    assert not outer_products.is_packed(density, n_features)


@pytest.mark.parametrize("bits", [11, 12, 14])
def test_a_second_moment_has_the_same_bits_for_any_declared_density(bits):
    rows = sparse.random_array((50, 256), density=0.3, rng=np.random.default_rng(0), format="csr")
    query = SecondMoment(n_features=256, clip_norm=1.0, relation="add_remove", bits=bits)
    undeclared, *declared = (
        fold(ArrayBlocks(rows, block_records=20, density=density), query, 0, 3).total for density in (None, 0.2, 1.0)
    )
    for total in declared:
        np.testing.assert_array_equal(total, undeclared)


def retained(counts: list[float], most: int) -> dict[int, int]:
    """Return the counts of a document after its reduction, listed word by word."""
    whole = all(0 <= count < math.inf and count == int(count) for count in counts)
    listed = [word for word, count in enumerate(counts) for _ in range(int(count))] if whole else []
    if not 3 <= len(listed) <= 1 << 40:
        return {}
    length = len(listed)
    if length > most:
        listed = [word for i, word in enumerate(listed, 1) if i * most // length > (i - 1) * most // length]
    return {word: listed.count(word) for word in listed}


@given(
    st.lists(st.lists(st.sampled_from([0, 1, 2, 3, 7, 0.5, 1.5, -1, math.nan, math.inf]), max_size=6), max_size=6),
    st.integers(3, 9),
)
def test_word_counts_are_reduced_evenly_and_invalid_documents_have_none(documents: list[list[float]], most: int):
    values = np.array([count for document in documents for count in document], np.float64)
    indices = np.array([word for document in documents for word in range(len(document))], np.int32)
    row_ptr = np.array([0, *np.cumsum([len(document) for document in documents])], np.int64)
    counts, words, starts = word_moments.count_words(values, indices, row_ptr, most)
    for row, document in enumerate(documents):
        part = slice(starts[row], starts[row + 1])
        assert dict(zip(words[part].tolist(), counts[part].tolist(), strict=True)) == retained(document, most)


def test_a_document_of_too_many_words_is_invalid():
    for lengths in ([2**40, 1], [2**40 + 1]):
        row_ptr, indices = np.array([0, len(lengths)]), np.arange(len(lengths), dtype=np.int32)
        assert word_moments.count_words(np.array(lengths, float), indices, row_ptr, 10)[0].size == 0
    assert word_moments.count_words(np.array([2.0**40]), indices, row_ptr, 10)[0].tolist() == [10]
