"""The unrounded product: the same integers as plain arithmetic of any size, for any blocks."""

import numpy as np
import pytest

from dpca_tasks.errors import InvalidInput
from dpca_tasks.queries.eigensolver_product import BITS, DIRECTION_BITS, LIMB_BITS, LIMBS, ExactProduct
from dpca_tasks.records.sources import ArrayBlocks
from dpca_tasks.sums.exact_sum import exact_sum

D, WIDTH = 7, 3
RNG = np.random.default_rng(8)
ROWS = RNG.standard_normal((60, D)) * (RNG.random((60, D)) < 0.6)
DIRECTIONS = np.rint(np.linalg.qr(RNG.standard_normal((D, WIDTH)))[0] * 2.0**DIRECTION_BITS).astype(np.int64)


def query(directions=DIRECTIONS, **changes):
    facts = {"n_features": D, "clip_norm": 1.0, "relation": "add_remove", "bits": BITS, "directions": directions}
    return ExactProduct(**(facts | changes))


def integers(asked, source):
    """Add up ``x^T (x V)`` in Python's integers."""
    total = np.zeros(asked.directions.shape, object)
    for at in range(source.n_blocks):
        block = asked.grid(source.read(at))
        for first, last in zip(block.row_ptr[:-1], block.row_ptr[1:], strict=True):
            row = np.zeros(D, object)
            row[block.indices[first:last]] = [int(value) for value in block.values[first:last]]
            total += np.outer(row, row @ asked.directions.astype(object))
    return total


@pytest.mark.parametrize("rows", [ROWS, -10 * np.eye(D), ROWS[:0]], ids=["some", "at the bound", "none"])
def test_the_limbs_are_the_exact_integers(rows):
    source, asked = ArrayBlocks(rows, record_rows=None), query()
    limbs = exact_sum(source, asked).reshape(LIMBS, D, WIDTH).astype(object)
    whole = sum(limbs[at] << LIMB_BITS * at for at in range(LIMBS))
    expected = integers(asked, source)
    assert (whole == expected).all()
    product = asked.product(exact_sum(source, asked))
    np.testing.assert_allclose(product, expected.astype(float) / 2.0 ** (2 * BITS + DIRECTION_BITS), rtol=1e-15)


def test_the_product_does_not_depend_on_blocks():
    one, other = (exact_sum(ArrayBlocks(ROWS, block_records=size), query()) for size in (100, 7))
    np.testing.assert_array_equal(one, other)


def test_limbs_of_the_largest_rows_stay_small():
    """So that 2^33 rows fit: a row and a direction along one axis, in either sign."""
    for sign in (1, -1):
        along = np.zeros((D, 1), np.int64)
        along[0] = sign * 2**DIRECTION_BITS
        limbs = exact_sum(ArrayBlocks(np.eye(D)[:1]), query(along))
        assert np.abs(limbs).max() <= 2 ** (BITS + LIMB_BITS + 1)


@pytest.mark.parametrize(
    "changes",
    [{"directions": DIRECTIONS[1:]}, {"directions": 2 * DIRECTIONS}, {"bits": BITS + 1}, {"clip_norm": 0.0}],
    ids=["rows", "length", "bits", "clip norm"],
)
def test_what_could_overflow_is_refused(changes):
    with pytest.raises(InvalidInput):
        query(**changes)


def test_it_shows_neither_directions_nor_a_sensitivity():
    assert "directions" not in repr(query())
    with pytest.raises(InvalidInput, match="moment_product"):
        query().sensitivity("l2")
