"""Triples of words along public directions: the projection of the whole tensor, within bounds kept in integers."""

import itertools
import math

import numpy as np
import pytest

from dpca_tasks.errors import InvalidInput
from dpca_tasks.queries import words
from dpca_tasks.queries.rounded_product import on_direction_grid
from dpca_tasks.queries.words import WordTriples
from tests.dpca_tasks.queries.documents import EXTREME, LONGEST, NO_DOCUMENT, furthest, total, triples
from tests.dpca_tasks.queries.query_table import full

FINE = on_direction_grid(np.linalg.qr(np.random.default_rng(1).standard_normal((5, 3)))[0])
AXES = on_direction_grid(np.eye(5)[:, :2])
SHORT = on_direction_grid(np.full((5, 2), 0.3))
LONG = on_direction_grid(np.ones((5, 2)))


def asked(relation="replace_one", **changes):
    terms = {"n_features": 5, "relation": relation, "bits": 24, "words_at_most": LONGEST, "directions": FINE}
    return WordTriples(**terms | changes)


def projected(counts, directions):
    """The whole tensor of D x D x D along the directions, from exact fractions."""
    whole, columns = triples(counts).astype(np.longdouble), directions / 2.0**24
    return np.einsum("abc,ai,bj,ck->ijk", whole, columns, columns, columns)


def test_a_core_is_the_tensor_of_all_words_along_the_directions():
    query, documents = asked(bits=28), [counts for counts in itertools.product(range(3), repeat=5) if sum(counts) >= 3]
    assert len(documents) == 222
    for counts in [*documents, EXTREME["the longest, of all words"]]:
        off = np.abs(full(query, total(query, counts)) - projected(counts, FINE)).max() * 2**28
        assert off < 0.5 + 2**-17, counts


def test_sums_of_documents_are_sums_of_cores():
    query, documents = asked(), np.random.default_rng(2).integers(1, 4, (30, 5))
    expected = sum(total(query, counts) for counts in documents)
    assert (total(query, documents) == expected).all()


@pytest.mark.parametrize("relation", ["add_remove", "zero_out", "replace_one"])
@pytest.mark.parametrize("directions", [FINE, AXES, SHORT, LONG], ids=["fine", "axes", "short", "long"])
@pytest.mark.parametrize("bits", [1, 4, 10, 28])
def test_no_document_moves_the_sum_beyond_the_stated_sensitivity(relation, directions, bits):
    query = asked(relation, directions=directions, bits=bits)
    apart, alone = furthest(query, [*EXTREME.values(), *np.eye(5) * 3])
    moved = apart if relation == "replace_one" else alone
    assert moved <= query.sensitivity("l2")


@pytest.mark.parametrize(
    ("relation", "directions", "attained"),
    [("zero_out", AXES, 1.0), ("replace_one", AXES, math.sqrt(2)), ("zero_out", SHORT, 0.18**1.5)],
    ids=["axes", "axes replaced", "short"],
)
def test_documents_of_one_word_attain_it(relation, directions, attained):
    query = asked(relation, directions=directions, bits=26)
    apart, alone = furthest(query, np.eye(5) * 3)
    moved = apart if relation == "replace_one" else alone
    assert moved == pytest.approx(attained, rel=1e-6)
    assert query.sensitivity("l2") == pytest.approx(attained, rel=1e-3)


def test_short_directions_have_the_bound_of_the_triangle_and_opposite_ones_attain_it():
    opposite = on_direction_grid(np.array([[0.5], [-0.5], [0.1], [0.1], [0.1]]))
    query = asked(directions=opposite, bits=26)
    apart, _ = furthest(query, np.eye(5) * 3)
    assert apart == pytest.approx(0.25, rel=1e-6)
    assert apart <= query.sensitivity("l2") == pytest.approx(0.25, rel=1e-6)
    assert asked(directions=LONG).sensitivity("l2") == pytest.approx(2.0), "no contraction"


def test_a_core_that_rounding_makes_too_long_is_rounded_toward_zero(monkeypatch):
    """Without it documents of one word are beyond the bound on many grids."""
    directions = on_direction_grid(np.full((5, 3), 3**-0.5))
    beyond = []
    for bits in range(2, 20):
        query = asked("zero_out", directions=directions, bits=bits)
        _, alone = furthest(query, [[3, 0, 0, 0, 0]])
        assert alone <= query.sensitivity("l2")
        sharp = query.sensitivity("l2")
        with monkeypatch.context() as patched:
            patched.setattr(WordTriples, "bound", 1 << 60)
            beyond.append(furthest(query, [[3, 0, 0, 0, 0]])[1] > sharp)
    assert sum(beyond) >= 3


def test_a_document_that_is_not_made_of_counts_adds_nothing():
    assert total(asked(), [1, 2, 0, 3, 0]).any()
    for wrong in NO_DOCUMENT:
        assert not total(asked(), [1, 2, 0, 3, wrong]).any(), wrong


def test_blocks_do_not_matter():
    rows = np.vstack([*EXTREME.values(), np.random.default_rng(4).integers(0, 9, (40, 5))])
    whole, *others = (total(asked(), rows, block_records=size) for size in (1000, 1, 7))
    assert whole.all()
    assert all((other == whole).all() for other in others)


def test_directions_are_checked():
    for wrong in (FINE[:4], FINE[:, :0], FINE * 3, FINE.astype(float)):
        with pytest.raises(InvalidInput, match="directions"):
            asked(directions=wrong)
    with pytest.raises(InvalidInput, match="norm of at most 2"):
        asked(directions=on_direction_grid(np.ones((5, 5))))
    assert words.is_contraction(FINE)
    assert not words.is_contraction(LONG)
    with pytest.raises(InvalidInput, match="not stated"):
        asked().sensitivity("l1")
