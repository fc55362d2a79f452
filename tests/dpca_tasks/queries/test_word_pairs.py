"""Pairs of words: exact shares, rounded toward zero, of documents that are counted by rules of their own."""

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from scipy import sparse

from dpca_tasks.errors import InvalidInput
from dpca_tasks.layouts import unpack_symmetric
from dpca_tasks.queries.words import WordPairs
from dpca_tasks.records.sources import ArrayBlocks
from dpca_tasks.sums.exact_sum import exact_sum
from tests.dpca_tasks.queries.documents import EXTREME, LONGEST, NO_DOCUMENT, furthest, pairs, total

WHOLE = [1, 2, 0, 3, 0]


def asked(relation="replace_one", **changes):
    return WordPairs(**{"n_features": 5, "relation": relation, "bits": 20, "words_at_most": LONGEST, **changes})


@pytest.mark.parametrize("bits", [0, 3, 20, 28])
def test_a_document_adds_its_shares_of_pairs_rounded_toward_zero(bits):
    query = asked(bits=bits)
    for counts in itertools.product(range(4), repeat=3):
        document = [0, *counts, 0]
        expected = np.zeros((5, 5), int)
        if sum(counts) >= 3:
            expected = np.vectorize(lambda share: math.floor(share * 2**bits))(pairs(document))
        assert (unpack_symmetric(total(query, document), 5) == expected).all(), counts


@pytest.mark.parametrize("relation", ["add_remove", "zero_out", "replace_one"])
@pytest.mark.parametrize("bits", [0, 1, 4, 28])
def test_no_document_moves_the_sum_beyond_the_stated_sensitivity_and_one_word_attains_it(relation, bits):
    query = asked(relation, bits=bits)
    apart, alone = furthest(query, EXTREME.values())
    moved = apart if relation == "replace_one" else alone
    assert moved <= query.sensitivity("l2")
    assert moved == pytest.approx(math.sqrt(2) if relation == "replace_one" else 1.0, rel=1e-15)


def test_a_document_that_is_not_made_of_counts_adds_nothing():
    assert total(asked(), WHOLE).any()
    for wrong in NO_DOCUMENT:
        assert not total(asked(), [*WHOLE[:4], wrong]).any(), wrong
    assert not total(asked(), [2, 0, 0, 0, 0]).any(), "two words"


def test_a_long_document_is_cut_to_the_bound_by_its_own_words_alone():
    """Shares of words stay as they are, to less than one word."""
    query, rng = asked(words_at_most=17), np.random.default_rng(8)
    for _ in range(50):
        counts = rng.integers(0, 200, 5)
        kept = query.grid(ArrayBlocks(counts[None].astype(float)).read(0))
        dense = sparse.csr_array((kept.values, kept.indices, kept.row_ptr), shape=(1, 5)).toarray()[0]
        assert dense.sum() == 17
        assert (abs(dense - counts * (17 / counts.sum())) < 1).all()
    assert (total(query, [17, 0, 0, 0, 0]) == total(query, [1e12, 0, 0, 0, 0])).all()
    assert not total(query, [2.0**40, 1, 0, 0, 0]).any(), "more words than any document has"
    thousand = np.ones((1, 1000))
    assert total(asked(n_features=1000, words_at_most=3), thousand).sum() == 3 * (2**20 // 6), "none has a share of one"


def test_lines_of_one_document_are_added_up_but_no_line_makes_up_for_another():
    query, lines = asked(), np.array([[1.0, 0, 2, 0, 0], [0, 0, 1, 0, 0], [3, 0, 0, 0, 1]])
    assert (total(query, lines, record_rows=[2, 1]) == total(query, [[1, 0, 3, 0, 0], lines[2]])).all()
    assert not total(query, [[4.0, 0, 2, -1, 0], [0, 0, 1, 1, 0]], record_rows=[2]).any()
    assert not total(query, [[4.0, 0, 2, 0.5, 0], [0, 0, 1, 0.5, 0]], record_rows=[2]).any()
    assert (total(query, lines, record_rows=[0, 3]) == total(query, [[4, 0, 3, 0, 1]])).all(), "one has no lines"


def test_blocks_do_not_matter():
    rows = np.vstack([*EXTREME.values(), np.random.default_rng(4).integers(0, 9, (40, 5))])
    whole, *others = (total(asked(), rows, block_records=size) for size in (1000, 1, 7))
    assert whole.all()
    assert all((other == whole).all() for other in others)


def test_columns_in_any_order_and_twice_make_the_same_document():
    merged = total(asked(), [2, 1, 0, 0, 1])
    twice = sparse.csr_array(([1.0, 1, 1, 1], [4, 0, 1, 0], [0, 4]), shape=(1, 5))
    assert (exact_sum(ArrayBlocks(twice), asked()) == merged).all()


def test_the_largest_loss_is_what_the_grid_takes_of_a_long_document_of_unlike_words():
    for bits, length in ((10, 20), (6, 20), (20, 100)):
        query = asked(n_features=length, bits=bits, words_at_most=length)
        kept = unpack_symmetric(total(query, np.ones(length)), length).sum() / 2**bits
        assert 1 - kept <= query.largest_loss == min(1, length * (length - 1) / 2**bits)
    assert Fraction(asked(bits=28, words_at_most=1000).largest_loss) < Fraction(1, 100)


@pytest.mark.parametrize("change", [{"words_at_most": 2}, {"words_at_most": 2**16 + 1}, {"clip_norm": 2.0}])
def test_public_parameters_are_checked(change):
    with pytest.raises(InvalidInput, match=next(iter(change))):
        asked(**change)


def test_only_the_frobenius_norm_is_stated():
    with pytest.raises(InvalidInput, match="not stated"):
        asked().sensitivity("l1")
