"""Squares along and off directions: whole parts of each record's norm, as in dense arithmetic, within their bounds."""

import numpy as np
import pytest

from dpca_tasks.errors import InvalidInput
from dpca_tasks.queries.captured_energies import CapturedEnergies
from dpca_tasks.queries.recentred_moment import on_shift_grid
from dpca_tasks.queries.rounded_product import on_direction_grid
from dpca_tasks.records.sources import ArrayBlocks
from dpca_tasks.sums.exact_sum import exact_sum

N, D, BITS = 300, 12, 13
RNG = np.random.default_rng(3)
SHORT = RNG.standard_normal((N, D)) * 0.05 * np.arange(D, 0, -1) ** 0.5
DIRECTIONS = np.linalg.qr(RNG.standard_normal((D, 4)))[0]
MEAN = RNG.standard_normal(D) * 0.05
RELATIONS = ("add_remove", "zero_out", "replace_one")


def energies(relation="add_remove", *, directions=DIRECTIONS, mean=None, bits=BITS, clip_norm=1.0):
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


def dense(rows, directions=DIRECTIONS):
    squares = ((rows @ directions) ** 2).sum(axis=0)
    return np.array([squares[0], squares[1:].sum(), (rows**2).sum() - squares.sum()])


def test_sums_are_those_of_dense_arithmetic():
    assert np.linalg.norm(SHORT, axis=1).max() < 1, "nothing is clipped"
    np.testing.assert_allclose(summed(SHORT, energies()), dense(SHORT), rtol=2e-3)
    np.testing.assert_allclose(summed(SHORT * 3.0, energies(clip_norm=3.0)), dense(SHORT), rtol=2e-3)


def test_around_a_mean_they_are_those_of_rows_less_the_mean():
    assert np.linalg.norm(SHORT - MEAN, axis=1).max() < 1
    np.testing.assert_allclose(summed(SHORT, energies(mean=MEAN)), dense(SHORT - MEAN), rtol=2e-3)
    np.testing.assert_allclose(summed(SHORT, energies(mean=np.zeros(D))), summed(SHORT, energies()), rtol=2e-3)


def test_rows_of_one_record_are_clipped_together_and_long_ones_count_one():
    rows = np.array([[3.0, 0.0, 0.0], [0.0, 4.0, 0.0], [0.0, 0.0, 0.0]])
    query = energies(directions=np.eye(3)[:, :2])
    np.testing.assert_allclose(summed(rows, query, record_rows=[2, 1]), [9 / 25, 16 / 25, 0.0], atol=1e-3)
    np.testing.assert_allclose(summed(rows, query), [1.0, 1.0, 0.0], atol=1e-3)


@pytest.mark.parametrize("mean", [None, MEAN], ids=["origin", "mean"])
def test_sums_have_the_same_bits_in_blocks_of_any_size(mean):
    query = energies(mean=mean)
    whole = exact_sum(ArrayBlocks(SHORT), query)
    for size in (1, 7, 299):
        assert np.array_equal(exact_sum(ArrayBlocks(SHORT, block_records=size), query), whole)


@pytest.mark.parametrize("mean", [None, np.eye(D)[0]], ids=["origin", "mean"])
@pytest.mark.parametrize("directions", [DIRECTIONS, np.ones((D, 3)), -np.eye(D)], ids=["few", "alike", "all"])
def test_a_record_adds_parts_of_its_norm_and_none_is_negative(mean, directions):
    query = energies(directions=directions, mean=mean, bits=6)
    for row in np.vstack([SHORT[:20] * 50.0, np.eye(D), -np.eye(D), np.full((1, D), np.nan), np.full((1, D), 1e200)]):
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


def test_around_a_mean_an_emptied_record_is_priced_like_a_replaced_one():
    at_mean = energies("zero_out", directions=np.eye(3)[:, :2], mean=np.eye(3)[0])
    assert at_mean.sensitivity("l2") == energies("replace_one").sensitivity("l2")
    emptied = summed(np.zeros((1, 3)), at_mean)
    mine = summed(np.array([[0.99, 0.0, 0.99]]) / 0.99, at_mean)
    assert np.abs(mine - emptied).sum() > 1.4, "a record that is added moves the sum by 1 at most"


def test_what_is_not_proved_or_not_exact_is_refused():
    with pytest.raises(InvalidInput, match="not stated"):
        energies().sensitivity("nuclear")
    with pytest.raises(InvalidInput, match="at most 1"):
        energies(directions=2.0 * DIRECTIONS)
    with pytest.raises(InvalidInput, match="steps in one unit"):
        energies(mean=MEAN, bits=14)
