"""Word pairs and triples of documents, and third moments of points along public directions: exact and bounded.

The sums over word pairs are exact fractions, rounded toward zero. Word triples are the projection of the whole tensor,
with integers that stay within their bounds. Third moments of points are exact in integers, and opposite points have the
largest effect on them.
"""

import dataclasses
import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from scipy import sparse

from dpca_tasks.errors import InvalidInput
from dpca_tasks.layouts import unpack_symmetric
from dpca_tasks.queries import words
from dpca_tasks.queries.rounded_product import on_direction_grid
from dpca_tasks.queries.words import SCORE_BITS, PointTriples, WordPairs, WordTriples
from dpca_tasks.records.blocks import ArrayBlocks
from dpca_tasks.sums.exact_sum import exact_sum
from tests.dpca_tasks.queries.query_table import full

LONGEST = 40
EXTREME: dict[str, list[float]] = {
    "no word": [0, 0, 0, 0, 0],
    "two words": [1, 0, 1, 0, 0],
    "three words": [1, 1, 0, 0, 1],
    "one word, three times": [3, 0, 0, 0, 0],
    "one word, many times": [0, LONGEST, 0, 0, 0],
    "one word, far too often": [0, 0, 0, 1e9, 0],
    "another word, many times": [0, 0, 0, 0, LONGEST],
    "the longest, of all words": [LONGEST - 10, 1, 2, 3, 4],
    "longer than that": [LONGEST, LONGEST, LONGEST, 1, 0],
}
"""Counts of five words."""
NO_DOCUMENT = (-1.0, 0.5, np.nan, np.inf, -np.inf, 2.0**41)
"""Invalid counts: a document with one of them adds nothing."""


def total(query, rows, **others):
    return exact_sum(ArrayBlocks(np.atleast_2d(np.asarray(rows, float)), **others), query)


def triples(counts):
    """Return how a document's ordered word triples divide among all triples, as exact fractions (D x D x D)."""
    counts = [Fraction(int(count)) for count in counts]
    length, found = sum(counts), np.full((len(counts),) * 3, Fraction(0))
    for i, j, k in itertools.product(range(len(counts)), repeat=3):
        found[i, j, k] = counts[i] * (counts[j] - (i == j)) * (counts[k] - (i == k) - (j == k))
    return found / (length * (length - 1) * (length - 2))


def pairs(counts):
    counts = np.array([Fraction(int(count)) for count in counts])
    length = counts.sum()
    return (np.outer(counts, counts) - np.diag(counts)) / (length * (length - 1))


def furthest(query, records):
    """Return the largest distance between two records' contributions to a sum, and the largest norm of one."""
    points = np.stack([full(query, total(query, record)) for record in records])
    moved = points[:, None] - points
    return np.sqrt(np.square(moved).sum(axis=tuple(range(2, moved.ndim)))).max(), max(map(np.linalg.norm, points))


WHOLE = [1, 2, 0, 3, 0]


def requested(relation="replace_one", **changes):
    return WordPairs(**{"n_features": 5, "relation": relation, "bits": 20, "words_at_most": LONGEST, **changes})


@pytest.mark.parametrize("bits", [0, 3, 20, 28])
def test_a_document_adds_its_shares_of_pairs_rounded_toward_zero(bits):
    query = requested(bits=bits)
    for counts in itertools.product(range(4), repeat=3):
        document = [0, *counts, 0]
        expected = np.zeros((5, 5), int)
        if sum(counts) >= 3:
            expected = np.vectorize(lambda share: math.floor(share * 2**bits))(pairs(document))
        assert (unpack_symmetric(total(query, document), 5) == expected).all(), counts


@pytest.mark.parametrize("relation", ["add_remove", "zero_out", "replace_one"])
@pytest.mark.parametrize("bits", [0, 1, 4, 28])
def test_no_document_moves_the_sum_beyond_the_stated_sensitivity_and_one_word_attains_it(relation, bits):
    query = requested(relation, bits=bits)
    separate, alone = furthest(query, EXTREME.values())
    moved = separate if relation == "replace_one" else alone
    assert moved <= query.sensitivity("l2")
    assert moved == pytest.approx(math.sqrt(2) if relation == "replace_one" else 1.0, rel=1e-15)


def test_a_document_with_invalid_counts_adds_nothing():
    assert total(requested(), WHOLE).any()
    for wrong in NO_DOCUMENT:
        assert not total(requested(), [*WHOLE[:4], wrong]).any(), wrong
    assert not total(requested(), [2, 0, 0, 0, 0]).any(), "two words"


def test_a_long_document_is_cut_to_the_bound_by_its_own_words_alone():
    """Cut long documents to the word limit: the fraction of each word must be preserved to within one word."""
    query, rng = requested(words_at_most=17), np.random.default_rng(8)
    for _ in range(50):
        counts = rng.integers(0, 200, 5)
        kept = query.grid(ArrayBlocks(counts[None].astype(float)).read(0))
        dense = sparse.csr_array((kept.values, kept.indices, kept.row_ptr), shape=(1, 5)).toarray()[0]
        assert dense.sum() == 17
        assert (abs(dense - counts * (17 / counts.sum())) < 1).all()
    assert (total(query, [17, 0, 0, 0, 0]) == total(query, [1e12, 0, 0, 0, 0])).all()
    assert not total(query, [2.0**40, 1, 0, 0, 0]).any(), "more words than any document has"
    thousand = np.ones((1, 1000))
    assert total(requested(n_features=1000, words_at_most=3), thousand).sum() == 3 * (2**20 // 6), (
        "none has a share of one"
    )


def test_lines_of_a_document_are_added_and_an_invalid_line_is_not_compensated():
    query, lines = requested(), np.array([[1.0, 0, 2, 0, 0], [0, 0, 1, 0, 0], [3, 0, 0, 0, 1]])
    assert (total(query, lines, record_rows=[2, 1]) == total(query, [[1, 0, 3, 0, 0], lines[2]])).all()
    assert not total(query, [[4.0, 0, 2, -1, 0], [0, 0, 1, 1, 0]], record_rows=[2]).any()
    assert not total(query, [[4.0, 0, 2, 0.5, 0], [0, 0, 1, 0.5, 0]], record_rows=[2]).any()
    assert (total(query, lines, record_rows=[0, 3]) == total(query, [[4, 0, 3, 0, 1]])).all(), "one has no lines"


def test_blocks_do_not_matter():
    rows = np.vstack([*EXTREME.values(), np.random.default_rng(4).integers(0, 9, (40, 5))])
    whole, *others = (total(requested(), rows, block_records=size) for size in (1000, 1, 7))
    assert whole.all()
    assert all((other == whole).all() for other in others)


def test_columns_in_any_order_and_twice_make_the_same_document():
    merged = total(requested(), [2, 1, 0, 0, 1])
    twice = sparse.csr_array(([1.0, 1, 1, 1], [4, 0, 1, 0], [0, 4]), shape=(1, 5))
    assert (exact_sum(ArrayBlocks(twice), requested()) == merged).all()


def test_the_largest_rounding_loss_is_that_of_a_long_document_of_distinct_words():
    for bits, length in ((10, 20), (6, 20), (20, 100)):
        query = requested(n_features=length, bits=bits, words_at_most=length)
        kept = unpack_symmetric(total(query, np.ones(length)), length).sum() / 2**bits
        assert 1 - kept <= query.largest_loss == min(1, length * (length - 1) / 2**bits)
    assert Fraction(requested(bits=28, words_at_most=1000).largest_loss) < Fraction(1, 100)


@pytest.mark.parametrize("change", [{"words_at_most": 2}, {"words_at_most": 2**16 + 1}, {"clip_norm": 2.0}])
def test_public_parameters_are_checked(change):
    with pytest.raises(InvalidInput, match=next(iter(change))):
        requested(**change)


def test_only_the_frobenius_norm_is_stated():
    with pytest.raises(InvalidInput, match="no sensitivity in norm"):
        requested().sensitivity("l1")


FINE = on_direction_grid(np.linalg.qr(np.random.default_rng(1).standard_normal((5, 3)))[0])
AXES = on_direction_grid(np.eye(5)[:, :2])
SHORT = on_direction_grid(np.full((5, 2), 0.3))
LONG = on_direction_grid(np.ones((5, 2)))


def word_triples(relation="replace_one", **changes):
    terms = {"n_features": 5, "relation": relation, "bits": 24, "words_at_most": LONGEST, "directions": FINE}
    return WordTriples(**terms | changes)


def projected(counts, directions):
    """Project a document's whole D x D x D tensor, from exact fractions, onto the directions."""
    whole, columns = triples(counts).astype(np.longdouble), directions / 2.0**24
    return np.einsum("abc,ai,bj,ck->ijk", whole, columns, columns, columns)


def test_a_core_is_the_tensor_of_all_words_along_the_directions():
    query, documents = (
        word_triples(bits=28),
        [counts for counts in itertools.product(range(3), repeat=5) if sum(counts) >= 3],
    )
    assert len(documents) == 222
    for counts in [*documents, EXTREME["the longest, of all words"]]:
        off = np.abs(full(query, total(query, counts)) - projected(counts, FINE)).max() * 2**28
        assert off < 0.5 + 2**-17, counts


def test_sums_of_documents_are_sums_of_cores():
    query, documents = word_triples(), np.random.default_rng(2).integers(1, 4, (30, 5))
    expected = sum(total(query, counts) for counts in documents)
    assert (total(query, documents) == expected).all()


@pytest.mark.parametrize("relation", ["add_remove", "zero_out", "replace_one"])
@pytest.mark.parametrize("directions", [FINE, AXES, SHORT, LONG], ids=["fine", "axes", "short", "long"])
@pytest.mark.parametrize("bits", [1, 4, 10, 28])
def test_no_document_moves_the_sum_beyond_the_stated_sensitivity(relation, directions, bits):
    query = word_triples(relation, directions=directions, bits=bits)
    separate, alone = furthest(query, [*EXTREME.values(), *np.eye(5) * 3])
    moved = separate if relation == "replace_one" else alone
    assert moved <= query.sensitivity("l2")


@pytest.mark.parametrize(
    ("relation", "directions", "attained"),
    [("zero_out", AXES, 1.0), ("replace_one", AXES, math.sqrt(2)), ("zero_out", SHORT, 0.18**1.5)],
    ids=["axes", "axes replaced", "short"],
)
def test_documents_of_one_word_attain_the_sensitivity(relation, directions, attained):
    query = word_triples(relation, directions=directions, bits=26)
    separate, alone = furthest(query, np.eye(5) * 3)
    moved = separate if relation == "replace_one" else alone
    assert moved == pytest.approx(attained, rel=1e-6)
    assert query.sensitivity("l2") == pytest.approx(attained, rel=1e-3)


def test_rounding_adds_at_most_one_step_for_each_entry_of_two_cores():
    query = word_triples("replace_one", directions=AXES, bits=8)
    exact = math.sqrt(2) * (1 + 2**-12) ** 3
    assert 0 < query.sensitivity("l2") - exact < 2.001 * AXES.shape[1] ** 1.5 / query.steps_per_unit


def test_short_directions_have_the_bound_of_the_triangle_and_opposite_ones_attain_it():
    opposite = on_direction_grid(np.array([[0.5], [-0.5], [0.1], [0.1], [0.1]]))
    query = word_triples(directions=opposite, bits=26)
    separate, _ = furthest(query, np.eye(5) * 3)
    assert separate == pytest.approx(0.25, rel=1e-6)
    assert separate <= query.sensitivity("l2") == pytest.approx(0.25, rel=1e-6)
    assert word_triples(directions=LONG).sensitivity("l2") == pytest.approx(2.0), "no contraction"


def test_a_core_that_rounding_makes_too_long_is_rounded_toward_zero(monkeypatch):
    """Round a core of word triples to its bound: without the rounding toward zero, some cores exceed the bound.

    Documents of one word exceed the bound on several grids.
    """
    directions = on_direction_grid(np.full((5, 3), 3**-0.5))
    beyond = []
    for bits in range(2, 20):
        query = word_triples("zero_out", directions=directions, bits=bits)
        _, alone = furthest(query, [[3, 0, 0, 0, 0]])
        assert alone <= query.sensitivity("l2")
        sharp = query.sensitivity("l2")
        with monkeypatch.context() as patched:
            patched.setattr(WordTriples, "bound", 1 << 60)
            beyond.append(furthest(query, [[3, 0, 0, 0, 0]])[1] > sharp)
    assert sum(beyond) >= 3


def test_a_document_with_invalid_counts_adds_no_word_triples():
    assert total(word_triples(), [1, 2, 0, 3, 0]).any()
    for wrong in NO_DOCUMENT:
        assert not total(word_triples(), [1, 2, 0, 3, wrong]).any(), wrong


def test_blocks_do_not_change_sums_of_word_triples():
    rows = np.vstack([*EXTREME.values(), np.random.default_rng(4).integers(0, 9, (40, 5))])
    whole, *others = (total(word_triples(), rows, block_records=size) for size in (1000, 1, 7))
    assert whole.all()
    assert all((other == whole).all() for other in others)


def test_directions_are_checked():
    for wrong in (FINE[:4], FINE[:, :0], FINE * 3, FINE.astype(float)):
        with pytest.raises(InvalidInput, match="directions"):
            word_triples(directions=wrong)
    with pytest.raises(InvalidInput, match="norm of at most 2"):
        word_triples(directions=on_direction_grid(np.ones((5, 5))))
    assert words.is_contraction(FINE)
    assert not words.is_contraction(LONG)
    with pytest.raises(InvalidInput, match="no sensitivity in norm"):
        word_triples().sensitivity("l1")


D, R = 4, 1.5
RELATIONS = ("add_remove", "zero_out", "replace_one")


def point_triples(relation="replace_one", *, width=2, share=0.1, **changes):
    columns = np.linalg.qr(np.random.default_rng(width).standard_normal((D, D)))[0][:, :width]
    terms = {"directions": on_direction_grid(columns), "score_norm": R, "noise_variance": share * R**2}
    return PointTriples(**{"n_features": D, "relation": relation, "bits": 24, **terms, **changes})


def core(scores, variance):
    """Return ``y y y - variance Sym3(y)`` for the scores y, the third moment of a point less its noise."""
    nearby = np.einsum("i,jk->ijk", scores, np.eye(scores.size))
    sym = nearby + nearby.transpose(1, 0, 2) + nearby.transpose(2, 1, 0)
    return np.einsum("i,j,k->ijk", scores, scores, scores) - variance * sym


@pytest.mark.parametrize("width", [1, 2, 3])
@pytest.mark.parametrize("bits", [3, 24])
def test_a_core_is_that_of_the_clipped_scores_rounded_toward_zero(width, bits):
    query, rng = point_triples(width=width, bits=bits), np.random.default_rng(3)
    for point in rng.standard_normal((40, D)):
        scores = point @ query.directions / 2.0**24 / R
        scores /= max(1.0, np.linalg.norm(scores))
        exact = core(scores, 0.1)
        made = full(query, total(query, point))
        off = (made - exact) * np.where(exact < 0, -1, 1) * 2**bits
        assert -1 - 1e-3 - 2.0 ** (bits - 15) < off.min()
        assert off.max() < 1e-3 + 2.0 ** (bits - 15)


@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize(("width", "share"), [(1, 0.0), (1, 0.2), (1, 0.5), (2, 0.0), (2, 0.5), (3, 0.1), (3, 0.4)])
def test_no_point_moves_the_sum_beyond_the_stated_sensitivity_and_one_attains_it(relation, width, share):
    """Try points along one axis and along all axes, of every length up to twice the bound, and opposite points.

    None may exceed the stated sensitivity, and one must attain it.
    """
    query = point_triples(relation, width=width, share=share)
    columns = query.directions / 2.0**24
    axes = [columns[:, 0], columns.sum(axis=1) / width**0.5]
    lengths = [*np.linspace(0, 1.2, 25), math.sqrt(share), 2.0]
    points = [sign * length * R * axis for axis in axes for length in lengths for sign in (1, -1)]
    separate, alone = furthest(query, points)
    moved = separate if relation == "replace_one" else alone
    assert moved <= query.sensitivity("l2") * (1 + 1e-15)
    assert moved > 0.99 * query.sensitivity("l2"), "so it is sharp"
    assert query.sensitivity("l2") <= (2 if relation == "replace_one" else 1) * (1 + 1e-14)


@pytest.mark.parametrize("bits", [0, 1, 5, 28])
@pytest.mark.parametrize("share", [0.0, 0.3])
def test_rounding_lengthens_no_core(bits, share):
    query = point_triples("zero_out", share=share, bits=bits)
    points = np.random.default_rng(5).standard_normal((200, D)) * 3
    assert furthest(query, points)[1] <= query.sensitivity("l2") * (1 + 1e-15)


def test_scores_are_clipped_in_integers_for_any_directions():
    query = point_triples(directions=on_direction_grid(np.ones((D, 3))))
    for point in (np.ones(D), 1e300 * np.ones(D), -1e-300 * np.ones(D), 0.29 * np.ones(D)):
        scores = query.grid(ArrayBlocks(point[None]).read(0)).values.astype(object)
        assert (scores * scores).sum() <= 4**SCORE_BITS


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
def test_a_point_that_is_not_finite_adds_nothing(wrong):
    assert total(point_triples(), [1.0, 0.5, 0.2, 0.1]).any()
    assert not total(point_triples(), [1.0, 0.5, wrong, 0.1]).any()


def test_only_the_first_row_of_a_record_is_read():
    rows = np.random.default_rng(4).standard_normal((3, D))
    assert (total(point_triples(), rows, record_rows=[2, 0, 1]) == total(point_triples(), rows[[0, 2]])).all()


def test_blocks_do_not_change_sums_of_point_triples():
    rows = np.random.default_rng(4).standard_normal((50, D))
    whole, *others = (total(point_triples(), rows, block_records=size) for size in (1000, 1, 7))
    assert whole.all()
    assert all((other == whole).all() for other in others)


def test_the_noise_variance_is_rounded_down_to_its_own_grid():
    query = point_triples(share=0.1)
    steps = Fraction(0.1 * R**2) / Fraction(R**2) * 4**SCORE_BITS
    assert 0 <= steps - query.variance_steps < 1


def test_released_public_inputs_are_stored_with_the_answer():
    """Store released public inputs with the answer, so that a resumed release sends the same request.

    Recomputed, these numbers could have other last bits.
    """
    query = point_triples(share=0.1)
    assert {name: array.dtype.kind for name, array in query.public_inputs().items()} == {
        "directions": "i",
        "score_norm": "f",
        "noise_variance": "f",
    }
    again = dataclasses.replace(point_triples(share=0.2), **query.public_inputs())
    assert again.digest() == query.digest() != point_triples(share=0.2).digest()


CHANGES: list[dict[str, object]] = [
    {"score_norm": 0.0},
    {"score_norm": [1.0, 2.0]},
    {"share": 0.51},
    {"share": -0.1},
    {"share": np.nan},
    {"clip_norm": 2.0},
]


@pytest.mark.parametrize("change", CHANGES, ids=str)
def test_public_parameters_of_point_triples_are_checked(change):
    with pytest.raises(InvalidInput, match=r"score_norm|noise_variance|clip_norm"):
        point_triples(**change)
