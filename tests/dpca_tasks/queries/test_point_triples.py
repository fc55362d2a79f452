"""Third moments of points along public directions: exact in integers, furthest moved by opposite points."""

import dataclasses
import math
from fractions import Fraction

import numpy as np
import pytest

from dpca_tasks.errors import InvalidInput
from dpca_tasks.queries.point_triples import SCORE_BITS, PointTriples
from dpca_tasks.queries.rounded_product import on_direction_grid
from dpca_tasks.records.sources import ArrayBlocks
from tests.dpca_tasks.queries.documents import furthest, total
from tests.dpca_tasks.queries.query_table import full

D, R = 4, 1.5
RELATIONS = ("add_remove", "zero_out", "replace_one")


def asked(relation="replace_one", *, width=2, share=0.1, **changes):
    columns = np.linalg.qr(np.random.default_rng(width).standard_normal((D, D)))[0][:, :width]
    terms = {"directions": on_direction_grid(columns), "score_norm": R, "noise_variance": share * R**2}
    return PointTriples(**{"n_features": D, "relation": relation, "bits": 24, **terms, **changes})


def core(scores, variance):
    """``y y y - variance Sym3(y)``."""
    beside = np.einsum("i,jk->ijk", scores, np.eye(scores.size))
    sym = beside + beside.transpose(1, 0, 2) + beside.transpose(2, 1, 0)
    return np.einsum("i,j,k->ijk", scores, scores, scores) - variance * sym


@pytest.mark.parametrize("width", [1, 2, 3])
@pytest.mark.parametrize("bits", [3, 24])
def test_a_core_is_that_of_the_clipped_scores_rounded_toward_zero(width, bits):
    query, rng = asked(width=width, bits=bits), np.random.default_rng(3)
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
    """Points along one axis and along all, of every length up to twice the bound, and opposite ones."""
    query = asked(relation, width=width, share=share)
    columns = query.directions / 2.0**24
    axes = [columns[:, 0], columns.sum(axis=1) / width**0.5]
    lengths = [*np.linspace(0, 1.2, 25), math.sqrt(share), 2.0]
    points = [sign * length * R * axis for axis in axes for length in lengths for sign in (1, -1)]
    apart, alone = furthest(query, points)
    moved = apart if relation == "replace_one" else alone
    assert moved <= query.sensitivity("l2") * (1 + 1e-15)
    assert moved > 0.99 * query.sensitivity("l2"), "so it is sharp"
    assert query.sensitivity("l2") <= (2 if relation == "replace_one" else 1) * (1 + 1e-14)


@pytest.mark.parametrize("bits", [0, 1, 5, 28])
@pytest.mark.parametrize("share", [0.0, 0.3])
def test_rounding_makes_no_core_longer(bits, share):
    query = asked("zero_out", share=share, bits=bits)
    points = np.random.default_rng(5).standard_normal((200, D)) * 3
    assert furthest(query, points)[1] <= query.sensitivity("l2") * (1 + 1e-15)


def test_scores_are_clipped_in_integers_whatever_the_directions_are():
    query = asked(directions=on_direction_grid(np.ones((D, 3))))
    for point in (np.ones(D), 1e300 * np.ones(D), -1e-300 * np.ones(D), 0.29 * np.ones(D)):
        scores = query.grid(ArrayBlocks(point[None]).read(0)).values.astype(object)
        assert (scores * scores).sum() <= 4**SCORE_BITS


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
def test_a_point_that_is_not_finite_adds_nothing(wrong):
    assert total(asked(), [1.0, 0.5, 0.2, 0.1]).any()
    assert not total(asked(), [1.0, 0.5, wrong, 0.1]).any()


def test_only_the_first_row_of_a_record_is_read():
    rows = np.random.default_rng(4).standard_normal((3, D))
    assert (total(asked(), rows, record_rows=[2, 0, 1]) == total(asked(), rows[[0, 2]])).all()


def test_blocks_do_not_matter():
    rows = np.random.default_rng(4).standard_normal((50, D))
    whole, *others = (total(asked(), rows, block_records=size) for size in (1000, 1, 7))
    assert whole.all()
    assert all((other == whole).all() for other in others)


def test_the_noise_variance_lies_on_a_grid_of_its_own_rounded_down():
    query = asked(share=0.1)
    steps = Fraction(0.1 * R**2) / Fraction(R**2) * 4**SCORE_BITS
    assert 0 <= steps - query.variance_steps < 1


def test_what_was_released_before_is_stored_with_the_answer_as_the_directions_are():
    """So a resumed release asks for the same, though it may compute these numbers with other last bits."""
    query = asked(share=0.1)
    assert {name: array.dtype.kind for name, array in query.public_inputs().items()} == {
        "directions": "i",
        "score_norm": "f",
        "noise_variance": "f",
    }
    again = dataclasses.replace(asked(share=0.2), **query.public_inputs())
    assert again.digest() == query.digest() != asked(share=0.2).digest()


CHANGES: list[dict[str, object]] = [
    {"score_norm": 0.0},
    {"score_norm": [1.0, 2.0]},
    {"share": 0.51},
    {"share": -0.1},
    {"share": np.nan},
    {"clip_norm": 2.0},
]


@pytest.mark.parametrize("change", CHANGES, ids=str)
def test_public_parameters_are_checked(change):
    with pytest.raises(InvalidInput, match=r"score_norm|noise_variance|clip_norm"):
        asked(**change)
