"""Clipped contributions: the bound for a replaced record is attained and never exceeded; a clip of 1 is none."""

import math
from typing import Any

import numpy as np
import pytest

from dpca_tasks.errors import InvalidInput
from dpca_tasks.queries.clipped_product import ClippedProduct, ReplacedProduct, replaced_bound
from dpca_tasks.queries.rounded_product import on_direction_grid
from dpca_tasks.records.sources import ArrayBlocks
from dpca_tasks.sums.exact_sum import exact_sum

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
    """Unit rows whose scores have norm c and cosine u, and whose other parts are equal: the proof's worst case."""
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
    """A record of some rows, long or short along the directions."""
    record = rng.standard_normal((rng.integers(1, 4), D)) * np.exp(rng.normal(0.0, 2.0, D)) + mean
    return record / np.linalg.norm(record) * rng.choice([0.3, 1.0, 1.0, 5.0])


@pytest.mark.parametrize("clip", CLIPS)
def test_no_pair_of_records_of_any_rows_is_further_apart(clip):
    """Records of several rows as well: the proof holds for all positive semi-definite moments of trace at most 1."""
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


def test_directions_that_are_no_contraction_cost_twice_the_clip():
    long = np.full((D, WIDTH), 1 << 24)
    assert clipped(0.25, directions=long).sensitivity("l2") == 0.5
    assert clipped(0.25).sensitivity("l2") < 0.49


@pytest.mark.parametrize("clip", [0.0, -0.1, 1.01, math.nan, 1e-9])
def test_a_clip_outside_the_grid_is_refused(clip):
    with pytest.raises(InvalidInput, match="message_clip"):
        clipped(clip)
